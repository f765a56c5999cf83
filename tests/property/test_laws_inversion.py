"""The largest context and the largest batch: the answer fits, and one more does not."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from kvcalc.footprint import Footprint, Steps
from tests.property.strategies import batches, footprint, footprints, growing_footprints

# Budgets that hit a size exactly, miss it by one byte, or are anywhere.
nudges = st.integers(-1, 1)
FAR = 400


@given(growing_footprints, st.integers(1, 70), nudges, batches)
def test_max_tokens_fits_and_one_more_does_not(total: Footprint, context: int, nudge: int, batch: int) -> None:
    """For budgets at, just below and just above a size that occurs."""
    budget = total.peak(context, batch) + nudge

    _check_largest_context(total, budget, batch)


@given(footprints, st.integers(-50, 400), batches)
def test_max_tokens_of_any_sum_is_two_sided(total: Footprint, budget: int, batch: int) -> None:
    """Also where sizes fall again: every context on the way must fit."""
    _check_largest_context(total, budget, batch)


def _check_largest_context(total: Footprint, budget: int, batch: int) -> None:
    largest = total.max_tokens(budget, batch)
    if largest is None:
        assert max(total.bytes(n, batch) for n in range(1, FAR)) <= budget
    elif largest == 0:
        assert total.bytes(1, batch) > budget
    else:
        assert total.bytes(largest + 1, batch) > budget
        assert total.peak(largest, batch) <= budget
        assert max(total.bytes(n, batch) for n in range(1, min(largest, FAR) + 1)) <= budget


@given(growing_footprints, st.integers(1, 60), batches, nudges)
def test_max_batch_fits_and_one_more_does_not(total: Footprint, context: int, batch: int, nudge: int) -> None:
    """For budgets at, just below and just above what some batch takes."""
    budget = total.peak(context, batch) + nudge
    largest = total.max_batch(budget, context)

    if largest is None:
        assert total.peak(context, 10**6) <= budget
    elif largest == 0:
        assert total.peak(context, 1) > budget
    else:
        assert total.peak(context, largest) <= budget < total.peak(context, largest + 1)


@given(st.integers(1, 10**18), st.integers(1, 10**9), st.integers(1, 10**6))
def test_the_inversions_of_plain_growth_are_divisions(budget: int, unit: int, batch: int) -> None:
    """Full attention without blocks: budget / (bytes per token * batch), rounded down."""
    full = footprint((Steps.per_token(), unit))

    assert full.max_tokens(budget, batch) == budget // (unit * batch)
    assert full.max_batch(budget, batch) == budget // (unit * batch)


@given(growing_footprints, st.integers(0, 10**6))
def test_a_larger_budget_never_holds_less(total: Footprint, budget: int) -> None:
    """Both inversions grow with the budget; None is the end of it."""
    for small, large in ((total.max_tokens(budget), total.max_tokens(budget + 1)),
                         (total.max_batch(budget, 9), total.max_batch(budget + 1, 9))):  # fmt: skip
        assert large is None or (small is not None and small <= large)


def test_a_state_fits_any_context_or_none() -> None:
    """What does not grow with the context has no largest one."""
    state = footprint((Steps.constant(), 100))

    assert state.max_tokens(99) == 0
    assert state.max_tokens(100) is None
    assert state.max_tokens(299, b=3) == 0
    assert state.max_batch(350, 10**9) == 3


def test_a_window_fits_any_context_once_it_is_full() -> None:
    """A budget below the full window has a largest context, a budget of it has none."""
    window = footprint((Steps.window(8), 10))

    assert window.max_tokens(79) == 7
    assert window.max_tokens(80) is None


def test_what_is_held_once_fits_any_batch() -> None:
    """Bytes that all sequences share do not limit their number."""
    shared = footprint((Steps.per_token().once(), 10))

    assert shared.max_batch(100, 10) is None
    assert shared.max_batch(99, 10) == 0


def test_a_huge_budget_still_has_a_largest_batch() -> None:
    """None means that no budget is too small, not that the number is large."""
    assert footprint((Steps.constant(), 3)).max_batch(10**40, 1) == 10**40 // 3
    assert footprint((Steps.constant(), 3), (Steps.constant().once(), 1)).max_batch(10**40, 1) == (10**40 - 1) // 3
    assert footprint((Steps.padded(256, unified=True), 1)).max_batch(10**40, 1) == 256 * 10**40


@given(growing_footprints)
def test_nothing_fits_without_a_budget(total: Footprint) -> None:
    """Zero bytes hold nothing, unless nothing is needed."""
    assume(total.bytes(1) > 0)

    assert total.max_tokens(0) == 0
    assert total.max_batch(0, 1) == 0


def test_an_empty_footprint_fits_everything() -> None:
    """A model of MLP layers alone needs no cache."""
    assert Footprint().max_tokens(0) is None
    assert Footprint().max_batch(0, 10**6) is None
    assert Footprint().bytes(5, 5) == 0
    assert Footprint().next_step(1) is None
