"""Samples for plots and unrounded growth."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcalc.errors import BadInput
from kvcalc.footprint import Footprint, Steps
from tests.property.strategies import batches, footprint, footprints


@given(footprints, st.integers(1, 40), st.integers(0, 60), st.integers(2, 12), batches)
def test_a_sample_covers_both_ends_in_order(total: Footprint, low: int, span: int, points: int, batch: int) -> None:
    """Contexts are strictly increasing from the first to the last, and every size is the size there."""
    sample = total.sample(low, low + span, points, batch)
    contexts = [context for context, _ in sample]

    assert contexts == sorted(set(contexts))
    assert (contexts[0], contexts[-1]) == (low, low + span)
    assert all(size == total.bytes(context, batch) for context, size in sample)
    assert len(sample) >= min(points, span + 1)


@given(st.integers(1, 40), st.integers(0, 40), st.integers(2, 5))
def test_a_sample_has_both_sides_of_every_corner(keep: int, start: int, points: int) -> None:
    """A line through the sample turns where the bytes turn: where a window begins and where it is full."""
    total = footprint((Steps.window(keep, start=start), 3))
    contexts = {context for context, _ in total.sample(1, 100, points)}

    assert {context for context in (start, start + 1, start + keep - 1, start + keep) if context} <= contexts


@given(st.integers(10, 60), st.integers(20, 40))
def test_a_line_through_a_sample_is_true(size: int, points: int) -> None:
    """Chunks rise by the token and fall at once: between neighbours in the sample all sizes lie on the line."""
    total = footprint((Steps.chunk(size), 3), (Steps.window(25), 2), (Steps.per_token(), 1))
    sample = total.sample(1, 200, points)

    for (left, low), (right, high) in pairwise(sample):
        for n in range(left, right + 1):
            assert total.bytes(n) == low + Fraction((high - low) * (n - left), right - left)


@pytest.mark.parametrize(("low", "high", "points"), [(0, 5, 3), (6, 5, 3), (1, 5, 1), (-2, -1, 2)])
def test_a_range_that_cannot_be_sampled_is_refused(low: int, high: int, points: int) -> None:
    """Contexts start at 1, and a sample has two ends."""
    with pytest.raises(BadInput, match="cannot sample"):
        Footprint().sample(low, high, points)


@given(st.integers(1, 12), st.integers(0, 9), st.integers(1, 50), st.integers(1, 9), st.booleans())
def test_growth_over_a_full_block_is_what_is_added(
    block: int, start: int, context: int, unit: int, unified: bool
) -> None:
    """Blocks are added at once and grow unrounded: over one width both are the same."""
    steps = Steps.padded(block, unified=True) if unified else Steps.per_token(block, start=start)
    total = footprint((steps, unit))
    begun = context + (0 if unified else start)

    grown = sum((total.growth(n) for n in range(begun, begun + block)), Fraction(0))

    assert grown == total.bytes(begun + block) - total.bytes(begun)


@given(st.integers(1, 40), st.integers(1, 80))
def test_a_full_window_grows_no_more(keep: int, context: int) -> None:
    """Token by token, growth is the difference of sizes where units are single tokens."""
    total = footprint((Steps.window(keep), 4), (Steps.per_token(start=7), 2), (Steps.constant(3), 5))

    assert total.growth(context) == total.bytes(context + 1) - total.bytes(context)


@given(st.integers(2, 30), st.integers(1, 120))
def test_a_chunk_grows_in_its_first_round_only(size: int, context: int) -> None:
    """The first chunk fills like a window; later chunks only return to what has been held before."""
    total = footprint((Steps.chunk(size), 4))

    assert total.growth(context) == (4 if context < size else 0)


def test_growth_is_exact_where_a_token_is_a_fraction_of_an_entry() -> None:
    """One compressed entry of 10 bytes for every 4 tokens: 2.5 bytes per token, not 2."""
    assert footprint((Steps.compressed(4), 10)).growth(1) == Fraction(5, 2)
