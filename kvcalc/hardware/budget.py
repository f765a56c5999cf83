"""How much memory an engine gives its cache: one pure rule per family of engines."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from kvcalc.errors import BadInput
from kvcalc.hardware.overhead import Overhead


@dataclass(frozen=True)
class Budget:
    """The memory of one rank, in bytes, and what of it is left for the cache; nothing is left where it is negative.

    `cache_high_bytes` goes with the low end of the overhead. `rule` says in words how the cache's bytes come about.
    """

    total_bytes: int
    share: Fraction
    weights_bytes: int
    overhead: Overhead
    cache_low_bytes: int
    cache_typical_bytes: int
    cache_high_bytes: int
    rule: str

    @property
    def outside_bytes(self) -> int:
        """What the engine leaves alone, where everything that is not inside its share must fit."""
        return self.total_bytes - int(self.share * self.total_bytes)


def parse_share(text: str) -> Fraction:
    """Return the share that a text such as `0.92` means, exactly; BadInput unless it is above 0 and at most 1."""
    try:
        share = Fraction(text.strip()) if len(text) <= 40 else Fraction(0)
    except (ValueError, ZeroDivisionError):
        share = Fraction(0)
    if not 0 < share <= 1:
        raise BadInput(f"'{text[:40]}' is not a share of the memory; write a number above 0 and up to 1, such as 0.92")
    return share


def share_of_total(total: int, share: Fraction, weights: int, overhead: Overhead) -> Budget:
    """Return what vLLM and SGLang leave: a share of the total, less the weights and the overhead inside the share."""
    asked = int(share * total)
    rule = f"{_shown(share)} of the total, less the weights and the overhead inside that share"
    most, typical, least = (asked - weights - inside for inside in overhead.total(inside=True))
    return Budget(total, share, weights, overhead, least, typical, most, rule)


def share_of_free(total: int, share: Fraction, weights: int, overhead: Overhead) -> Budget:
    """Return what TensorRT-LLM leaves: a share of what is free beside the weights and the overhead."""
    rule = f"{_shown(share)} of what the weights and the overhead leave free"
    most, typical, least = (math.floor(share * (total - weights - inside)) for inside in overhead.total(inside=True))
    return Budget(total, share, weights, overhead, least, typical, most, rule)


def remainder(total: int, weights: int, overhead: Overhead) -> Budget:
    """Return what is left beside the weights and all of the overhead: llama.cpp, transformers, the ideal engine."""
    most, typical, least = (total - weights - taken for taken in overhead.total())
    rule = "the total, less the weights and the overhead"
    return Budget(total, Fraction(1), weights, overhead, least, typical, most, rule)


def _shown(share: Fraction) -> str:
    return f"{float(share):g}"
