"""Arrays give the same numbers as ints, or refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcalc.errors import BadInput
from kvcalc.footprint import Footprint, Steps
from tests.property.strategies import batches, footprint, footprints, growing_footprints

contexts = st.lists(st.integers(1, 80), min_size=1, max_size=6)
int64_limit = 2**63


@given(footprints, contexts, st.lists(batches, min_size=1, max_size=4))
def test_a_grid_of_contexts_and_batches_equals_the_scalars(total: Footprint, ns: list[int], bs: list[int]) -> None:
    """A column of contexts with a row of batches broadcasts to the grid of scalar results."""
    grid = total.bytes(np.array(ns)[:, None], np.array(bs)[None, :])

    assert grid.dtype == np.int64
    assert grid.shape == (len(ns), len(bs))
    assert grid.tolist() == [[total.bytes(n, b) for b in bs] for n in ns]


@given(footprints, contexts, batches)
def test_an_array_beside_an_int_equals_the_scalars(total: Footprint, ns: list[int], batch: int) -> None:
    """Either argument may be an array alone."""
    assert total.bytes(np.array(ns), batch).tolist() == [total.bytes(n, batch) for n in ns]
    assert total.bytes(batch, np.array(ns)).tolist() == [total.bytes(batch, n) for n in ns]


@given(footprints, st.integers(1, 80), batches)
def test_a_numpy_integer_equals_the_int(total: Footprint, context: int, batch: int) -> None:
    """What indexing an array gives can be used like an int."""
    assert int(total.bytes(np.int64(context), np.int64(batch))) == total.bytes(context, batch)


@given(growing_footprints, st.integers(1, int64_limit - 1), st.integers(1, int64_limit - 1), st.integers(1, 2**40))
def test_large_arrays_are_right_or_refused(total: Footprint, context: int, batch: int, scale: int) -> None:
    """No result wraps around; and where every number stays below 2^62, there is a result."""
    large = Footprint(tuple(_scaled(term, scale) for term in total.terms))
    parts = sum(abs(Footprint((term,)).bytes(context, batch)) for term in large.terms)
    try:
        result = large.bytes(np.array([context]), np.array([batch])).tolist()
    except OverflowError:
        result = None

    if result is None:  # the most that a period reaches and what is counted on the way may be a little larger
        assert parts + 300 * scale * batch + 64 * context * batch >= int64_limit // 2
    else:
        assert result == [large.bytes(context, batch)]


def _scaled(term: Any, scale: int) -> Any:
    return type(term)(term.label, term.kind, term.role, (*term.factors, ("scale", scale)), term.steps, term.reason)


def test_a_window_is_not_refused_for_a_context_far_beyond_it() -> None:
    """What is refused is what int64 cannot hold, not what merely has a long context."""
    window = footprint((Steps.window(1024), 2**20))

    assert window.bytes(np.array([2**40]), np.array([2**20])).tolist() == [2**50]


def test_a_result_beyond_int64_is_refused_with_its_size() -> None:
    """The message names the context, the batch and the bytes."""
    full = footprint((Steps.per_token(), 2**40))

    with pytest.raises(
        OverflowError, match=r"context 16,777,216 and batch 1 need up to 18,446,744,073,709,551,616 bytes"
    ):
        full.bytes(np.array([1, 2**24]))


@pytest.mark.parametrize("wrong", [np.array([1], dtype=np.int32), np.array([1.0]), np.array([True]), [1], 1.0, "1"])
def test_other_types_than_int_and_int64_are_refused(wrong: Any) -> None:
    """Smaller integers would overflow unseen, and floats would round."""
    with pytest.raises(TypeError, match="must be an int or an int64 array"):
        footprint((Steps.per_token(), 2)).bytes(wrong)
    with pytest.raises(TypeError, match="must be an int or an int64 array"):
        footprint((Steps.per_token(), 2)).bytes(1, wrong)


def test_contexts_and_batches_start_at_one() -> None:
    """Zero and negative numbers are refused, alone and in arrays."""
    full = footprint((Steps.per_token(), 2))

    for context, batch in ((0, 1), (-3, 1), (1, 0), (np.array([2, 0]), 1), (1, np.array([-1]))):
        with pytest.raises(BadInput, match="must be at least 1"):
            full.bytes(context, batch)


def test_an_empty_array_gives_an_empty_array() -> None:
    """A plot without points is no error."""
    assert footprint((Steps.per_token(), 2)).bytes(np.array([], dtype=np.int64)).tolist() == []


def test_constants_take_the_shape_of_the_arguments() -> None:
    """A footprint that depends on neither argument still answers for each of them."""
    shared_state = footprint((Steps.constant(3).once(), 5))

    assert shared_state.bytes(np.array([1, 2])[:, None], np.array([1, 9, 2])[None, :]).tolist() == [[15] * 3] * 2
    assert Footprint().bytes(np.array([1, 2])).tolist() == [0, 0]
