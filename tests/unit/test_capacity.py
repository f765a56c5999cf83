"""Capacity of placements built by hand: bytes, units of pools, replicas, the binding rank, and both answers' edges."""

from __future__ import annotations

from fractions import Fraction

import pytest

from kvcalc.capacity import Capacity, capacity, limits, max_batch, max_context
from kvcalc.errors import BadInput
from kvcalc.footprint import Footprint, Placement, Pool, Rank, Steps, Term


def footprint(unit_bytes: int, steps: Steps | None = None, label: str = "full") -> Footprint:
    """Return one term of `unit_bytes` for every token, or for every unit of other steps."""
    return Footprint((Term(label, "full", "k", (("bytes", unit_bytes),), steps or Steps.per_token(), "by hand"),))


def pool(unit_bytes: int, reserved: int = 0, share: Fraction = Fraction(1), label: str = "blocks") -> Pool:
    """Return a pool without groups, which capacity does not look at."""
    return Pool(label, unit_bytes, reserved, share, ())


def placement(*ranks: tuple[Footprint, tuple[Pool, ...]], dp: int = 1) -> Placement:
    """Return a placement with one pipeline stage for each footprint and its pools."""
    return Placement(tuple(Rank(stage, 0, each, each, pools) for stage, (each, pools) in enumerate(ranks)), dp)


def test_bytes_are_divided_exactly() -> None:
    """1,000 bytes hold 10 sequences of 10 tokens of 10 bytes, or one of 100 tokens; a byte less holds less."""
    where = placement((footprint(10), ()))
    assert (max_batch(where, [1000], 10), max_context(where, [1000], 1)) == (10, 100)
    assert (max_batch(where, [999], 10), max_context(where, [999], 1)) == (9, 99)


def test_a_pool_is_divided_in_units_not_in_bytes() -> None:
    """Blocks of 16 tokens and 160 bytes: 1,000 bytes are 6 blocks, 5 without the null block, 5 short sequences."""
    where = placement((footprint(160, Steps.per_token(16)), (pool(160, reserved=1),)))
    assert max_batch(where, [1000], 1) == 5
    assert max_context(where, [1000], 1) == 80
    assert max_batch(where, [1000], 17) == 2
    assert max_batch(where, [319], 1) == 0


def test_the_poorest_rank_binds_and_is_named() -> None:
    """The stage with more bytes for a token binds, unless it has more memory too."""
    where = placement((footprint(10), ()), (footprint(30), ()))
    found = capacity(where, [1000, 1000], context=10, batch=2)
    assert (found.fits, found.max_batch, found.max_context) == (True, 3, 16)
    assert found.binding is not None
    assert (found.binding.rank, found.binding.pp, found.binding.pool) == (1, 1, None)
    assert (found.binding.needed_bytes, found.binding.spare_bytes) == (600, 400)
    rich = capacity(where, [1000, 9000], context=10, batch=2)
    assert rich.binding is not None
    assert rich.binding.rank == 0


def test_pools_of_a_rank_share_its_memory() -> None:
    """Each pool has its share, its units, and the terms of its label; the fuller one binds."""
    terms = (footprint(10, label="full") + footprint(100, Steps.window(4), label="window"),)
    pools = (pool(10, share=Fraction(1, 3), label="full"), pool(100, share=Fraction(2, 3), label="window"))
    where = placement((terms[0], pools))
    first, second = limits(where, [3000])
    assert (first.budget, second.budget) == (1000, 2000)
    assert max_context(where, [3000], 1) == 100
    assert max_batch(where, [3000], 4) == 5
    assert max_batch(where, [3000], 100) == 1
    found = capacity(where, [3000], context=4, batch=1)
    assert found.binding is not None
    assert found.binding.pool == "window"


def test_the_memory_that_is_needed_is_the_least_that_fits() -> None:
    """Reserved units and the pool's share are part of it, rounded up to a byte."""
    where = placement((footprint(160, Steps.per_token(16)), (pool(160, reserved=1, share=Fraction(2, 3)),)))
    needed = capacity(where, [1], context=33, batch=2).needed_memory
    assert needed == (6 + 1) * 160 * 3 // 2
    assert capacity(where, [needed], context=33, batch=2).fits
    assert not capacity(where, [needed - 1], context=33, batch=2).fits


def test_replicas_each_have_the_budget() -> None:
    """With dp 4 four times as many sequences fit; a batch of 5 gives one replica two."""
    where = placement((footprint(10), ()), dp=4)
    assert max_batch(where, [1000], 10) == 40
    assert max_context(where, [1000], 4) == 100
    assert max_context(where, [1000], 5) == 50


def test_what_does_not_grow_has_no_largest() -> None:
    """A constant footprint fits any context, one stored once any batch, an empty one everything and binds nowhere."""
    constant = placement((footprint(100, Steps.constant()), ()))
    assert (max_context(constant, [250], 2), max_batch(constant, [250], 9)) == (None, 2)
    once = placement((footprint(10, Steps.per_token().once()), ()))
    assert (max_context(once, [250], 7), max_batch(once, [250], 25)) == (25, None)
    nothing = placement((Footprint(), ()))
    assert capacity(nothing, [1], 10, 10) == Capacity(True, None, None, None, 0)


def test_nothing_fits() -> None:
    """0 is an answer, with what is missing."""
    found = capacity(placement((footprint(10), ())), [5], context=100, batch=3)
    assert (found.fits, found.max_batch, found.max_context, found.needed_memory) == (False, 0, 0, 3000)
    assert found.binding is not None
    assert found.binding.spare_bytes == -2995


def test_what_is_set_aside_whole_binds_where_nothing_else_does() -> None:
    """A fixed allocation bounds no batch; it is named with what it leaves, or lacks."""
    where = placement((footprint(100, Steps.constant().once()), ()))
    for budget in (250, 50):
        found = capacity(where, [budget], 10, 3)
        assert found.binding is not None
        assert (found.fits, found.binding.spare_bytes) == (budget > 100, budget - 100)


def test_a_sequence_fits_on_its_whole_way() -> None:
    """A chunk of 8 tokens is full at 8 and nearly empty at 9: the way there counts."""
    where = placement((footprint(10, Steps.chunk(8)), ()))
    assert max_batch(where, [100], 9) == 1
    assert max_context(where, [70], 1) == 7


@pytest.mark.parametrize("budgets", [[100], [100, 100, 100]])
def test_budgets_are_one_per_rank(budgets: list[int]) -> None:
    """Another number of them is refused."""
    with pytest.raises(BadInput, match="budget"):
        limits(placement((footprint(10), ()), (footprint(10), ())), budgets)


def test_equal_ranks_are_one_limit() -> None:
    """A thousand equal ranks are asked once; another budget makes another limit."""
    each = footprint(10)
    ranks = tuple(Rank(0, tp, each, each) for tp in range(1000))
    assert len(limits(Placement(ranks), [100] * 1000)) == 1
    assert [limit.rank for limit in limits(Placement(ranks), [100] * 999 + [50])] == [0, 999]


def test_a_budget_below_zero_holds_nothing() -> None:
    """Where weights exceed the memory not even a cache of no bytes fits, and what is missing is counted in full."""
    nothing = placement((Footprint(), ()))
    assert capacity(nothing, [-1], 10, 10).fits is False
    assert (max_batch(nothing, [-1], 10), max_context(nothing, [-1], 10)) == (0, 0)
    found = capacity(placement((footprint(160, Steps.per_token(16)), (pool(160, reserved=1),))), [-500], 16, 1)
    assert (found.fits, found.max_batch, found.max_context) == (False, 0, 0)
    assert found.binding is not None
    assert found.binding.spare_bytes == -660
