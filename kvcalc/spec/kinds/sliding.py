"""Sliding-window attention: the keys and values of the last tokens only."""

from __future__ import annotations

from typing import ClassVar, Literal

from kvcalc.footprint import Retention
from kvcalc.spec.kinds._base import CacheEntry, Heads, Tokens


class Sliding(Heads):
    """A layer whose queries see the last `window` tokens, themselves included."""

    kind: Literal["sliding"] = "sliding"
    window: Tokens
    """Tokens that a query sees, the current one included."""

    keeps: ClassVar[str] = "the keys and values of the last `window` tokens"
    rule_source: ClassVar[str] = "Beltagy et al. 2020, arXiv:2004.05150; Jiang et al. 2023, arXiv:2310.06825"

    @property
    def describe(self) -> str:
        """For example `GQA, 8 kv heads of 128, window 4,096`."""
        return f"{super().describe}, window {self.window:,}"

    def entries(self) -> tuple[CacheEntry, ...]:
        """Return K and V of the last `window` tokens."""
        return self.keys_and_values(Retention.window(self.window))
