"""Chunked attention: the keys and values of the current chunk only."""

from __future__ import annotations

from typing import ClassVar, Literal

from kvcalc.footprint import Retention
from kvcalc.spec.kinds._base import CacheEntry, Heads, Tokens


class Chunked(Heads):
    """A layer whose queries see the tokens of their own chunk of `chunk` tokens."""

    kind: Literal["chunked"] = "chunked"
    chunk: Tokens
    """Tokens of one chunk; a query sees none of the chunks before its own."""

    keeps: ClassVar[str] = "the keys and values of the current chunk"
    rule_source: ClassVar[str] = "Llama 4's attention_chunk_size (published config.json of Llama-4-Scout)"

    @property
    def describe(self) -> str:
        """For example `GQA, 8 kv heads of 128, chunk 8,192`."""
        return f"{super().describe}, chunk {self.chunk:,}"

    def entries(self) -> tuple[CacheEntry, ...]:
        """Return K and V of the current chunk."""
        return self.keys_and_values(Retention.chunk(self.chunk))
