"""kvcalc: how much memory a transformer's KV cache takes, exactly, and why.

The public names load what they need when they are first used, so that importing kvcalc is cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "load": "kvcalc.api",
    "prepare": "kvcalc.api",
    "size": "kvcalc.api",
    "fit": "kvcalc.api",
    "Setup": "kvcalc.api",
    "SizeResult": "kvcalc.api",
    "FitResult": "kvcalc.fit_result",
    "ModelSpec": "kvcalc.spec.model",
    "Footprint": "kvcalc.footprint",
    "Placement": "kvcalc.footprint",
    "KvcalcError": "kvcalc.errors",
    "BadInput": "kvcalc.errors",
    "SpecError": "kvcalc.errors",
    "UnsupportedByEngine": "kvcalc.errors",
}

if TYPE_CHECKING:
    from kvcalc.api import Setup as Setup
    from kvcalc.api import SizeResult as SizeResult
    from kvcalc.api import fit as fit
    from kvcalc.api import load as load
    from kvcalc.api import prepare as prepare
    from kvcalc.api import size as size
    from kvcalc.errors import BadInput as BadInput
    from kvcalc.errors import KvcalcError as KvcalcError
    from kvcalc.errors import SpecError as SpecError
    from kvcalc.errors import UnsupportedByEngine as UnsupportedByEngine
    from kvcalc.fit_result import FitResult as FitResult
    from kvcalc.footprint import Footprint as Footprint
    from kvcalc.footprint import Placement as Placement
    from kvcalc.spec.model import ModelSpec as ModelSpec


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'kvcalc' has no attribute '{name}'")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted([*_PUBLIC, "__version__"])
