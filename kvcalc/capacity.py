"""What fits: the largest batch and the largest context that the ranks and pools of a placement can hold.

Budgets are the bytes for the cache on every rank of one replica, listed pp, then tp, as the placement's ranks are. A
rank without pools hands out bytes. A pool hands out equal units, and its budget is what its usable units hold; where a
rank has several pools, each holds the terms that carry its label. A sequence must fit on its whole way: every answer
counts the peak up to the context.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kvcalc.errors import BadInput
from kvcalc.footprint import Footprint, Placement, Pool, Rank


@dataclass(frozen=True)
class Limit:
    """One thing that can run out: a rank's bytes, or the units of one of its pools. Equal ranks are one limit.

    `rank` is the first such rank's number in its replica, `budget` the bytes that can be handed out.
    """

    rank: int
    pp: int
    tp: int
    pool: Pool | None
    footprint: Footprint
    budget: int

    def needed(self, context: int, batch: int) -> int:
        """Return the bytes that `batch` sequences of one replica need on their way to `context`."""
        return self.footprint.peak(context, batch)

    def memory_for(self, context: int, batch: int, at_least: int = 0) -> int:
        """Return the smallest memory of the rank, `at_least` or more, with which they fit, reserved units included."""
        needed = self.needed(context, batch)
        if self.pool is None:
            return max(needed, at_least)
        return self.pool.budget_for(-(-needed // self.pool.unit_bytes), at_least)


@dataclass(frozen=True)
class Binding:
    """The limit that is reached first as the batch grows: where, what is needed there, and what there is."""

    rank: int
    pp: int
    tp: int
    pool: str | None
    needed_bytes: int
    budget_bytes: int

    @property
    def spare_bytes(self) -> int:
        """What is left, or (negative) missing."""
        return self.budget_bytes - self.needed_bytes

    def to_json(self) -> dict[str, Any]:
        """Return the binding as JSON data."""
        place = {"rank": self.rank, "pp": self.pp, "tp": self.tp, "pool": self.pool}
        sizes = {"needed_bytes": self.needed_bytes, "budget_bytes": self.budget_bytes, "spare_bytes": self.spare_bytes}
        return {**place, **sizes}


@dataclass(frozen=True)
class Capacity:
    """What a placement holds at one context and batch, over all replicas; None: there is no largest.

    `max_batch` is the largest batch at the context, `max_context` the largest context at the batch; 0 if none fits.
    """

    fits: bool
    max_batch: int | None
    max_context: int | None
    binding: Binding | None
    needed_memory: int


def capacity(placement: Placement, budgets: Sequence[int], context: int, batch: int) -> Capacity:
    """Return what fits into `budgets`; BadInput if they are not one per rank of a replica.

    A budget below zero is what the weights exceed the memory by: not even an empty cache fits.

    `needed_memory` is the smallest budget, equal on all ranks, with which this batch fits at this context.
    """
    found = limits(placement, budgets)
    local = placement.local_batch(batch)
    return Capacity(
        fits=all(limit.needed(context, local) <= limit.budget for limit in found),
        max_batch=max_batch(placement, budgets, context),
        max_context=max_context(placement, budgets, batch),
        binding=_binding(found, context, local),
        needed_memory=_needed_memory(found, context, local),
    )


def max_batch(placement: Placement, budgets: Sequence[int], context: int) -> int | None:
    """Return the largest batch of sequences of `context` tokens over all replicas; 0 if none fits, None if any does."""
    local = _least(limit.footprint.max_batch(limit.budget, context) for limit in limits(placement, budgets))
    return None if local is None else local * placement.dp


def max_context(placement: Placement, budgets: Sequence[int], batch: int) -> int | None:
    """Return the largest context that fits `batch` sequences; 0 if not one token does, None if every context does."""
    local = placement.local_batch(batch)
    return _least(limit.footprint.max_tokens(limit.budget, local) for limit in limits(placement, budgets))


def limits(placement: Placement, budgets: Sequence[int]) -> tuple[Limit, ...]:
    """Return everything that can run out in one replica, equal ranks once."""
    if len(budgets) != len(placement.ranks):
        raise BadInput(f"{len(budgets)} budgets for {len(placement.ranks)} ranks")
    found: dict[tuple[Footprint, tuple[Pool, ...], int], tuple[Limit, ...]] = {}
    for number, (rank, budget) in enumerate(zip(placement.ranks, budgets, strict=True)):
        key = (rank.admitted, rank.pools, budget)
        if key not in found:
            found[key] = tuple(_limits_of(number, rank, budget))
    return tuple(limit for each in found.values() for limit in each)


def _limits_of(number: int, rank: Rank, budget: int) -> Iterator[Limit]:
    """Yield a rank's bytes, or each of its pools with the terms that it holds."""
    if not rank.pools:
        yield Limit(number, rank.pp, rank.tp, None, rank.admitted, budget)
    for pool in rank.pools:
        terms = rank.admitted.terms
        if len(rank.pools) > 1:
            terms = tuple(term for term in terms if term.label == pool.label)
        handed_out = pool.usable_units(budget) * pool.unit_bytes if budget >= 0 else budget
        yield Limit(number, rank.pp, rank.tp, pool, Footprint(terms), handed_out)


def _needed_memory(found: Sequence[Limit], context: int, batch: int) -> int:
    """Return the smallest memory with which all fit: more memory can leave a pool with less, where pools share it."""
    memory = 0
    while True:
        needed = max((limit.memory_for(context, batch, memory) for limit in found), default=0)
        if needed == memory:
            return memory
        memory = needed


def _binding(found: Sequence[Limit], context: int, batch: int) -> Binding | None:
    """Return the limit with the smallest largest batch (of equals, the one with least to spare); None if none is used.

    What is set aside whole at the start bounds no batch, and comes last.
    """
    bound = []
    for limit in found:
        most, needed = limit.footprint.max_batch(limit.budget, context), limit.needed(context, batch)
        if most is not None or needed:
            bound.append((math.inf if most is None else most, limit.budget - needed, limit, needed))
    if not bound:
        return None
    _, _, limit, needed = min(bound, key=lambda entry: entry[:2])
    pool = limit.pool.label if limit.pool else None
    return Binding(limit.rank, limit.pp, limit.tp, pool, needed, limit.budget)


def _least(values: Iterator[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)
