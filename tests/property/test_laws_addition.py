"""Addition of footprints: order and grouping do not matter, and every question may be asked of a sum."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvcalc.footprint import Footprint, total
from tests.property.strategies import batches, footprints

contexts = st.integers(1, 80)


def answers(footprint: Footprint, context: int, batch: int) -> tuple[object, ...]:
    """Return everything that a footprint says about one context and batch."""
    return (
        footprint.bytes(context, batch),
        footprint.growth(context),
        footprint.peak(context, batch),
        footprint.next_step(context, batch),
    )


@given(footprints, footprints, contexts, batches)
def test_addition_is_commutative(a: Footprint, b: Footprint, context: int, batch: int) -> None:
    """The order of layers does not change a size."""
    assert answers(a + b, context, batch) == answers(b + a, context, batch)


@given(footprints, footprints, footprints, contexts, batches)
def test_addition_is_associative(a: Footprint, b: Footprint, c: Footprint, context: int, batch: int) -> None:
    """Stages may be added in any grouping."""
    assert (a + b) + c == a + (b + c)
    assert answers(total([a, b, c]), context, batch) == answers(a + (b + c), context, batch)


@given(footprints, footprints, contexts, batches)
def test_bytes_and_growth_add(a: Footprint, b: Footprint, context: int, batch: int) -> None:
    """A sum holds what its parts hold."""
    assert (a + b).bytes(context, batch) == a.bytes(context, batch) + b.bytes(context, batch)
    assert (a + b).growth(context) == a.growth(context) + b.growth(context)


@given(footprints, contexts, batches)
def test_the_empty_footprint_changes_nothing(a: Footprint, context: int, batch: int) -> None:
    """Layers that keep nothing add nothing."""
    assert a + Footprint() == a == Footprint() + a
    assert total([]) == Footprint()
    assert answers(total([Footprint(), a]), context, batch) == answers(a, context, batch)
