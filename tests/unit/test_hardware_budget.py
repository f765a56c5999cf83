"""How much memory an engine gives its cache: the rules by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest

from kvcalc.engines import find_engine
from kvcalc.errors import BadInput
from kvcalc.hardware.budget import Budget, parse_share, remainder, share_of_free, share_of_total
from kvcalc.hardware.overhead import Overhead, OverheadPart

INSIDE = OverheadPart("inside", 1, 10, 100, True, "assumed", "")
OUTSIDE = OverheadPart("outside", 2, 20, 200, False, "assumed", "")
OVERHEAD = Overhead((INSIDE, OUTSIDE))


def _cache(budget: Budget) -> tuple[int, int, int]:
    return budget.cache_low_bytes, budget.cache_typical_bytes, budget.cache_high_bytes


def test_a_share_of_the_total() -> None:
    """vLLM: the share first, then weights and what is inside it; what is outside fits beside it."""
    budget = share_of_total(1000, Fraction("0.9"), 500, OVERHEAD)
    assert _cache(budget) == (300, 390, 399)
    assert budget.outside_bytes == 100


def test_a_share_of_what_is_free() -> None:
    """TensorRT-LLM: weights and overhead first, then the share."""
    assert _cache(share_of_free(1000, Fraction("0.9"), 500, OVERHEAD)) == (360, 441, 449)


def test_what_remains() -> None:
    """llama.cpp: the total less everything."""
    assert _cache(remainder(1000, 500, OVERHEAD)) == (200, 470, 497)


def test_shares_floor_exactly() -> None:
    """0.9 is nine tenths, not the float below or above."""
    assert _cache(share_of_total(10, parse_share("0.9"), 0, Overhead())) == (9, 9, 9)
    assert parse_share("0.92") == Fraction(23, 25)


def test_what_does_not_fit_is_negative() -> None:
    """By how much is an answer."""
    assert _cache(remainder(100, 500, Overhead())) == (-400, -400, -400)


@pytest.mark.parametrize("text", ["0", "1.1", "-0.5", "most", "1/0", "nan", "9" * 100, ""])
def test_a_share_is_above_zero_and_at_most_one(text: str) -> None:
    """Anything else is refused in one line."""
    with pytest.raises(BadInput, match="is not a share of the memory"):
        parse_share(text)


def test_engines_have_their_rules() -> None:
    """And their default shares: 0.92 of the total, 0.9 of what is free, all that remains."""
    assert _cache(find_engine("vllm").budget(1000, 500, OVERHEAD))[1] == 920 - 510
    assert _cache(find_engine("tensorrt-llm").budget(1000, 500, OVERHEAD))[1] == 441
    assert _cache(find_engine("llama.cpp").budget(1000, 500, OVERHEAD))[1] == 470
    assert _cache(find_engine("ideal").budget(1000, 500, OVERHEAD, Fraction("0.8")))[1] == 290


def test_sglangs_share_replaces_what_it_leaves_free() -> None:
    """Without one, what was seen to be left free counts as overhead."""
    free = Overhead((OverheadPart("static_reserve", 120, 170, 230, True, "assumed", ""),))
    assert _cache(find_engine("sglang").budget(1000, 500, free)) == (270, 330, 380)
    assert _cache(find_engine("sglang").budget(1000, 500, free, Fraction("0.8"))) == (300, 300, 300)
