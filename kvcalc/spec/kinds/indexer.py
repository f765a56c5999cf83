"""The extra keys of sparse attention: a small key per token from which the tokens to attend to are chosen."""

from __future__ import annotations

from typing import ClassVar, Literal

from kvcalc.footprint import Retention
from kvcalc.spec.kinds._base import CacheEntry, Dimension, Kind


class Indexer(Kind):
    """The selector beside a layer's attention: one key of `index_head_dim` per token, shared by its heads."""

    kind: Literal["indexer"] = "indexer"
    index_head_dim: Dimension
    """Elements of one indexer key."""

    keeps: ClassVar[str] = "one small key per token, from which the attended tokens are chosen"
    rule_source: ClassVar[str] = (
        "DeepSeek-V3.2 (DeepSeek Sparse Attention): index_head_dim of its published config.json"
    )

    @property
    def describe(self) -> str:
        """For example `indexer keys of 128`."""
        return f"indexer keys of {self.index_head_dim}"

    def entries(self) -> tuple[CacheEntry, ...]:
        """Return the indexer key of every token; no rank can split it."""
        return (CacheEntry("index", (("index_head_dim", self.index_head_dim),), Retention.all(), "k"),)
