"""DeepSeek-V4's compressed attention: a short window, and one entry for every few tokens before it."""

from __future__ import annotations

from typing import ClassVar, Literal

from kvcalc.footprint import Retention
from kvcalc.spec.kinds._base import CacheEntry, Dimension, Kind, Tokens


class Compressed(Kind):
    """A layer with one key-value vector for all heads (values are keys): a window, and compressed entries.

    With `index_head_dim` it is compressed sparse attention (CSA), whose groups overlap by one and whose indexer keeps
    keys of its own; without, heavily compressed attention (HCA).
    """

    kind: Literal["compressed"] = "compressed"
    heads: Dimension
    """Query heads."""
    head_dim: Dimension
    """Elements of the one key-value vector."""
    window: Tokens
    """Recent tokens kept uncompressed, the current one included."""
    ratio: Tokens
    """Tokens that become one compressed entry."""
    index_head_dim: Dimension | None = None
    """Elements of one indexer key (CSA); omitted for HCA."""

    keeps: ClassVar[str] = "a short window, one compressed entry per `ratio` tokens, and the tokens not yet compressed"
    rule_source: ClassVar[str] = "DeepSeek-V4 as held by transformers 5.24.0 (values share the keys' storage)"

    @property
    def attention_heads(self) -> int | None:
        """Query heads."""
        return self.heads

    @property
    def describe(self) -> str:
        """For example `CSA, 1 per 4 tokens of 512, window 128`."""
        family = "HCA" if self.index_head_dim is None else "CSA"
        return f"{family}, 1 per {self.ratio} tokens of {self.head_dim}, window {self.window:,}"

    def entries(self) -> tuple[CacheEntry, ...]:
        """Return the window, the compressed entries, and what the compressor still needs; no rank can split any.

        The compressor's input is twice as wide in CSA, whose groups overlap: it keeps the last group's KV (`conv`) and
        its gate, the gate in fp32.
        """
        window = CacheEntry("k", (("head_dim", self.head_dim),), Retention.window(self.window), "k")
        entry = CacheEntry("latent", (("head_dim", self.head_dim),), Retention.compressed(self.ratio), "k")
        if self.index_head_dim is None:
            return (window, entry, *self._waiting("head_dim", self.head_dim, parts=1))
        index = CacheEntry("index", (("index_head_dim", self.index_head_dim),), Retention.compressed(self.ratio), "k")
        waiting = self._waiting("head_dim", self.head_dim, 2) + self._waiting("index_head_dim", self.index_head_dim, 2)
        overlap = self._overlap("head_dim", self.head_dim) + self._overlap("index_head_dim", self.index_head_dim)
        return (window, entry, index, *waiting, *overlap)

    def _waiting(self, axis: str, size: int, parts: int) -> tuple[CacheEntry, ...]:
        """Return the KV and the gate of the tokens that do not yet fill a group, in the model's dtype."""
        axes = (("kv_and_gate", 2), ("parts", parts), (axis, size))
        return (CacheEntry("conv", axes, Retention.remainder(self.ratio), "model"),)

    def _overlap(self, axis: str, size: int) -> tuple[CacheEntry, ...]:
        """Return the last whole group's KV and gate, kept from the first whole group on."""
        axes = (("group", self.ratio), (axis, size))
        kept = Retention.onset(self.ratio)
        return (CacheEntry("conv", axes, kept, "model"), CacheEntry("conv", axes, kept, "fp32"))
