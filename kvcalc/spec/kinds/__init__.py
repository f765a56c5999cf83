"""The attention kinds, one file each, and the union of them that a spec may name."""

from __future__ import annotations

from typing import Annotated, get_args

from pydantic import Field

from kvcalc.spec.kinds._base import CacheEntry, Element, Heads, Kind
from kvcalc.spec.kinds.chunked import Chunked
from kvcalc.spec.kinds.compressed import Compressed
from kvcalc.spec.kinds.cross import Cross
from kvcalc.spec.kinds.full import Full
from kvcalc.spec.kinds.indexer import Indexer
from kvcalc.spec.kinds.mla import Mla
from kvcalc.spec.kinds.shared import Shared
from kvcalc.spec.kinds.sliding import Sliding
from kvcalc.spec.kinds.state import AnyState, State

AnyKind = Annotated[
    Full | Sliding | Chunked | Mla | Indexer | Cross | Shared | Compressed | AnyState,
    Field(discriminator="kind"),
]

STATE_VARIANTS: dict[str, type[State]] = {
    variant.model_fields["variant"].default: variant for variant in get_args(get_args(AnyState)[0])
}
KINDS: dict[str, type[Kind]] = {
    kind.model_fields["kind"].default: kind
    for kind in (Full, Sliding, Chunked, Mla, Indexer, Cross, Shared, Compressed, State)
}

__all__ = [
    "KINDS",
    "STATE_VARIANTS",
    "AnyKind",
    "CacheEntry",
    "Chunked",
    "Compressed",
    "Cross",
    "Element",
    "Full",
    "Heads",
    "Indexer",
    "Kind",
    "Mla",
    "Shared",
    "Sliding",
    "State",
]
