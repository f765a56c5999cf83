"""Layers that read another layer's keys and values and store nothing of their own."""

from __future__ import annotations

from typing import ClassVar, Literal

from kvcalc.spec.kinds._base import CacheEntry, Kind


class Shared(Kind):
    """A layer that attends to the keys and values of an earlier layer of kind `of`."""

    kind: Literal["shared"] = "shared"
    of: str
    """Name of the kind, defined in the same spec, whose last layer before this one holds the keys and values."""

    keeps: ClassVar[str] = "nothing: it reads the keys and values of an earlier layer"
    rule_source: ClassVar[str] = "Gemma 3n's num_kv_shared_layers; Sun et al. 2024, arXiv:2405.05254 (YOCO)"

    @property
    def describe(self) -> str:
        """For example `reads the KV of 'local'`."""
        return f"reads the KV of '{self.of}'"

    def entries(self) -> tuple[CacheEntry, ...]:
        """Return nothing."""
        return ()
