"""Multi-head latent attention: one compressed vector per token instead of keys and values per head."""

from __future__ import annotations

from typing import ClassVar, Literal

from kvcalc.footprint import Retention
from kvcalc.spec.kinds._base import CacheEntry, Dimension, Kind


class Mla(Kind):
    """A layer that keeps a latent of `kv_lora_rank` and the rotary part of the keys, shared by all heads."""

    kind: Literal["mla"] = "mla"
    heads: Dimension
    """Query heads."""
    kv_lora_rank: Dimension
    """Elements of the latent from which keys and values are recomputed."""
    qk_rope_head_dim: Dimension
    """Elements of the rotary key part, one for all heads."""
    qk_nope_head_dim: Dimension | None = None
    """Elements of the non-rotary part of one expanded key head; engines that expand the latent need it."""
    v_head_dim: Dimension | None = None
    """Elements of one expanded value head; engines that expand the latent need it."""

    keeps: ClassVar[str] = "one latent and one rotary key per token, whatever the number of heads"
    rule_source: ClassVar[str] = "DeepSeek-V2, arXiv:2405.04434"

    @property
    def attention_heads(self) -> int | None:
        """Query heads."""
        return self.heads

    @property
    def describe(self) -> str:
        """For example `MLA, latent 512 + rope 64`."""
        return f"MLA, latent {self.kv_lora_rank} + rope {self.qk_rope_head_dim}"

    def entries(self) -> tuple[CacheEntry, ...]:
        """Return the latent and the rotary key of every token; no rank can split either."""
        latent = CacheEntry("latent", (("kv_lora_rank", self.kv_lora_rank),), Retention.all(), "k")
        return (latent, CacheEntry("k", (("qk_rope_head_dim", self.qk_rope_head_dim),), Retention.all(), "k"))
