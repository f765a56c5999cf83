"""What changes next, and what was the most on the way: both against brute force."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from kvcalc.footprint import Footprint, Steps
from tests.property.strategies import batches, footprint, footprints, rule_sums, staircases

# Enough contexts for every corner and two full cycles of most small staircases.
FAR = 200


@given(staircases(), st.integers(1, 60), batches)
def test_the_next_change_of_a_staircase_is_the_first_different_count(steps: Steps, context: int, batch: int) -> None:
    """Before the next change every count is the same, and there it differs; without one none differs."""
    changed = steps.next_change(context, batch)
    now = steps.count(context, batch)
    brute = next((n for n in range(context + 1, context + FAR) if steps.count(n, batch) != now), None)

    assert changed == brute


@given(st.one_of(footprints, rule_sums.map(lambda found: sum((Footprint(rule.terms) for rule in found), Footprint()))),
       st.integers(1, 60), batches)  # fmt: skip
def test_the_next_step_of_a_sum_is_the_first_different_size(total: Footprint, context: int, batch: int) -> None:
    """Steps that cancel are no steps; None means that no size up to far beyond all corners differs."""
    step = total.next_step(context, batch)
    now = total.bytes(context, batch)

    for n in range(context + 1, context + FAR if step is None else step):
        assert total.bytes(n, batch) == now
    if step is not None:
        assert total.bytes(step, batch) != now


@given(footprints, batches)
def test_the_peak_is_the_running_maximum(total: Footprint, batch: int) -> None:
    """Sums with negative and periodic terms fall and rise: the peak is the most up to each context."""
    running = list(accumulate((total.bytes(n, batch) for n in range(1, FAR)), max))

    assert [total.peak(n, batch) for n in range(1, FAR)] == running


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), st.integers(0, 20), st.integers(1, 2_000))
def test_the_peak_of_long_cycles_is_found_without_the_middle(a: int, b: int, c: int, slow: int, context: int) -> None:
    """With cycles of coprime lengths and a slow growth beside them the peak still is the running maximum."""
    total = footprint(
        (Steps.chunk(a), 50), (Steps.chunk(b), 30), (Steps.per_token(c), 7), (Steps.released(a, c), -7),
        (Steps.per_token(97), slow),
    )  # fmt: skip

    assert total.peak(context, 2) == max(total.bytes(n, 2) for n in range(1, context + 1))


def test_peaks_do_not_add() -> None:
    """Two layers whose peaks lie at different contexts need less together than their peaks together."""
    long, short = footprint((Steps.chunk(5), 1)), footprint((Steps.chunk(3), 1))

    assert (long.peak(5), short.peak(5), (long + short).peak(5)) == (5, 3, 7)


def test_a_cycle_too_long_to_search_is_refused() -> None:
    """Chunks of three coprime sizes and nothing that grows repeat only after 549 billion tokens: no search, no hang."""
    import pytest

    from kvcalc.errors import UnsupportedByEngine

    total = footprint((Steps.chunk(8192), 1), (Steps.chunk(8191), 1), (Steps.chunk(8189), 1))

    assert total.peak(100_000) == max(total.bytes(n) for n in range(1, 100_001))
    with pytest.raises(UnsupportedByEngine, match=r"8,192, 8,191, 8,189 tokens is too far to search"):
        total.peak(10**12)
