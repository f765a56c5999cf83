"""The attention kinds, one file each; a kind's file is loaded when a spec names it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from kvcalc.spec.kinds._base import CacheEntry, Element, Heads, Kind

if TYPE_CHECKING:
    from kvcalc.spec.kinds.chunked import Chunked as Chunked
    from kvcalc.spec.kinds.compressed import Compressed as Compressed
    from kvcalc.spec.kinds.cross import Cross as Cross
    from kvcalc.spec.kinds.full import Full as Full
    from kvcalc.spec.kinds.indexer import Indexer as Indexer
    from kvcalc.spec.kinds.mla import Mla as Mla
    from kvcalc.spec.kinds.shared import Shared as Shared
    from kvcalc.spec.kinds.sliding import Sliding as Sliding
    from kvcalc.spec.kinds.state import State as State
    from kvcalc.spec.kinds.union import AnyKind as AnyKind

_AnyKind = TypeVar("_AnyKind", bound=Kind)

# Class -> module in this package.
_MODULES = {
    "Full": "full",
    "Sliding": "sliding",
    "Chunked": "chunked",
    "Mla": "mla",
    "Indexer": "indexer",
    "Cross": "cross",
    "Shared": "shared",
    "Compressed": "compressed",
    "State": "state",
    "AnyKind": "union",
}


class Classes(Mapping[str, type[_AnyKind]], Generic[_AnyKind]):
    """Name in a spec -> class, which is imported when it is asked for: most models need one or two."""

    def __init__(self, classes: Mapping[str, str], module: str = "") -> None:
        self._classes = classes
        self._module = module

    def __getitem__(self, name: str) -> type[_AnyKind]:
        class_name = self._classes[name]
        found: type[_AnyKind] = _load(class_name, self._module or _MODULES[class_name])
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._classes)

    def __len__(self) -> int:
        return len(self._classes)


def _load(class_name: str, module: str) -> Any:
    return getattr(import_module(f"kvcalc.spec.kinds.{module}"), class_name)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'kvcalc.spec.kinds' has no attribute '{name}'")
    return _load(name, _MODULES[name])


KINDS: Classes[Kind] = Classes({name.lower(): name for name in _MODULES if name != "AnyKind"})
STATE_VARIANTS: Classes[State] = Classes(
    {
        "mamba1": "Mamba1",
        "mamba2": "Mamba2",
        "gated_deltanet": "GatedDeltaNet",
        "kda": "Kda",
        "rg_lru": "RgLru",
        "rwkv4": "Rwkv4",
        "rwkv": "Rwkv",
        "short_conv": "ShortConv",
        "lightning": "Lightning",
    },
    module="state",
)

__all__ = ["KINDS", "STATE_VARIANTS", "CacheEntry", "Element", "Heads", "Kind"]
