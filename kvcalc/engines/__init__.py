"""The engine profiles, one file each; `find_engine` loads only the one that is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from kvcalc.engines._base import EngineProfile
from kvcalc.errors import BadInput, did_you_mean

# Engine name -> module in this package; each module calls its profile ENGINE.
ENGINES = {"ideal": "ideal"}


def find_engine(name: str) -> EngineProfile[Any]:
    """Return the profile called `name`; BadInput names the nearest known ones."""
    if name not in ENGINES:
        hint = did_you_mean(name, ENGINES) or f"; known: {', '.join(ENGINES)}"
        raise BadInput(f"unknown engine '{name}'{hint}")
    profile: EngineProfile[Any] = import_module(f"kvcalc.engines.{ENGINES[name]}").ENGINE
    return profile
