"""Cross-attention: keys and values of the encoder's output, written once and read by every decoded token."""

from __future__ import annotations

from typing import ClassVar, Literal

from kvcalc.footprint import Retention
from kvcalc.spec.kinds._base import CacheEntry, Heads, OptionalDimension


class Cross(Heads):
    """A decoder layer's attention to the encoder (text, audio frames or image patches)."""

    kind: Literal["cross"] = "cross"
    encoder_context: OptionalDimension
    """Encoder positions of one sequence; 0 where the input has none (text without an image)."""

    keeps: ClassVar[str] = "the keys and values of every encoder position, however long the decoded text"
    rule_source: ClassVar[str] = "Vaswani et al. 2017, arXiv:1706.03762"

    @property
    def describe(self) -> str:
        """For example `MHA, 20 kv heads of 64, 1,500 encoder positions`."""
        return f"{super().describe}, {self.encoder_context:,} encoder positions"

    def entries(self) -> tuple[CacheEntry, ...]:
        """Return K and V of the encoder's positions."""
        return self.keys_and_values(Retention.encoder(self.encoder_context))
