"""The algebra of memory: staircases in context and batch, summed exactly.

A `Steps` counts units (tokens, blocks, padded cells, states) as a function of the context n and the batch b; a `Term`
gives one such count its bytes and its reason; a `Footprint` is a sum of terms: one rank's whole batch. A `Placement`
holds the footprints and pools of every rank. Nothing here knows a model, an engine or a third-party package: arrays
are recognised by their behaviour, so that numpy stays optional.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal, TypeAlias

from kvcalc.errors import BadInput, UnsupportedByEngine

Scope = Literal["sequence", "once", "pooled"]
Role = Literal["k", "v", "latent", "conv", "ssm", "index"]
RetentionRule = Literal["all", "window", "chunk", "state", "encoder", "compressed", "remainder", "onset"]

# An int, or an int64 array of any shape; arrays broadcast against each other.
Count: TypeAlias = Any

_INT64_LIMIT = 2**63
_JSON_EXACT = 2**53  # larger integers travel as strings: a double cannot hold them
_BATCH_WITHOUT_END = 2**64
_MAX_FALLS = 200_000  # no engine's rules come near it; a search beyond it would not end in sensible time


@dataclass(frozen=True, slots=True)
class Steps:
    """How many units are held: `m * (fixed + (min(rate * x, cap + cap_per_sequence * b) + shift) // width)`.

    `x = max(n - start, 0)`, modulo `period` if set. `scope` is `sequence` (m = b), `once` (m = 1) or `pooled` (m = 1
    and n * b takes n's place). Built by the named constructors below, never from bare numbers.
    """

    rate: int = 1
    start: int = 0
    period: int | None = None
    cap: int | None = None
    cap_per_sequence: int = 0
    shift: int = 0
    width: int = 1
    fixed: int = 0
    scope: Scope = "sequence"

    def __post_init__(self) -> None:
        """Reject what no rule means; a pooled count has no period, because its x advances by whole batches."""
        low = min(self.rate, self.start, self.shift, self.fixed, self.cap_per_sequence, self.cap or 0)
        if low < 0 or self.width < 1 or (self.period is not None and self.period < 1):
            raise ValueError(f"not a staircase: {self}")
        if self.scope == "pooled" and self.period is not None:
            raise ValueError("a pooled count has no period")
        if self.cap is None and self.cap_per_sequence:
            raise ValueError("cap_per_sequence needs a cap")

    @classmethod
    def per_token(cls, block: int = 1, start: int = 0) -> Steps:
        """Every token after the first `start`, in whole blocks of `block` tokens (the unit is a block)."""
        return cls(start=start, shift=block - 1, width=block)

    @classmethod
    def window(cls, keep: int, block: int = 1, start: int = 0, spare: int = 0) -> Steps:
        """The last `keep` tokens after `start`, in a ring of whole blocks, and `spare` blocks beside them."""
        return cls(start=start, cap=keep, shift=block - 1, width=block, fixed=spare)

    @classmethod
    def released(cls, keep: int, block: int = 1, limit: int | None = None) -> Steps:
        """Blocks wholly older than the last `keep` tokens, at most those of the first `limit` tokens.

        The negative partner of `per_token` where an engine frees blocks by position instead of reusing a ring.
        """
        return cls(start=keep, cap=limit, width=block)

    @classmethod
    def chunk(cls, size: int, block: int = 1, keep: int | None = None, start: int = 0) -> Steps:
        """The tokens of the current chunk of `size`, counted from `start`, of which at most `keep` stay.

        With `start` 0 the first chunk begins at once; otherwise pair it with `onset(start)`, which adds the first unit.
        """
        cap = None if keep is None else keep - 1
        return cls(start=start + 1, period=size, cap=cap, width=block, fixed=0 if start else 1)

    @classmethod
    def onset(cls, start: int) -> Steps:
        """One unit as soon as there are more than `start` tokens."""
        return cls(start=start, cap=1)

    @classmethod
    def compressed(cls, ratio: int, start: int = 0) -> Steps:
        """One entry for every `ratio` whole tokens after `start`."""
        return cls(start=start, width=ratio)

    @classmethod
    def remainder(cls, ratio: int, start: int = 0) -> Steps:
        """The tokens after `start` that do not yet fill a group of `ratio`."""
        return cls(start=start, period=ratio)

    @classmethod
    def constant(cls, units: int = 1) -> Steps:
        """`units` for every sequence, whatever the context."""
        return cls(rate=0, fixed=units)

    @classmethod
    def padded(cls, cells: int, unified: bool = False, keep: int | None = None, keep_per_sequence: int = 0) -> Steps:
        """Tokens rounded up to whole groups of `cells`, per sequence or in one pool of all sequences' tokens."""
        scope: Scope = "pooled" if unified else "sequence"
        return cls(cap=keep, cap_per_sequence=keep_per_sequence, shift=cells - 1, width=cells, scope=scope)

    def once(self) -> Steps:
        """The same count, stored once for the whole batch."""
        return replace(self, scope="once")

    def capped(self, cap: int | None) -> Steps:
        """The same count of at most `cap` tokens."""
        return replace(self, cap=cap)

    def count(self, n: Count, b: Count) -> Count:
        """Return the units held at context n and batch b (ints, or int64 arrays that broadcast)."""
        per_scope = self.per_scope(n, b)
        return per_scope * b if self.scope == "sequence" else per_scope

    def per_scope(self, n: Count, b: Count) -> Count:
        """Return the units of one sequence (or of the batch, for `once` and `pooled`)."""
        if self.rate == 0:
            return self.fixed + self.shift // self.width
        x = _at_least_zero((n * b if self.scope == "pooled" else n) - self.start)
        if self.period is not None:
            x = x % self.period
        return self.fixed + (self._grown(x, b) + self.shift) // self.width

    def next_change(self, n: int, b: int) -> int | None:
        """Return the smallest context above n at which the count differs from the one at n, None if there is none."""
        changes = (self.next_rise(n, b), self.next_fall(n, b))
        return min((change for change in changes if change is not None), default=None)

    def next_rise(self, n: int, b: int) -> int | None:
        """Return the smallest context above n at which the count is larger than just before, None if there is none."""
        stride = self._stride(b)
        position = max(stride * n - self.start, 0)
        begun = 0 if self.period is None else position - position % self.period
        rise = self._rise(position - begun, b)
        if rise is None and self.period is not None:
            begun, rise = begun + self.period, self._rise(0, b)
        return None if rise is None else -(-(begun + rise + self.start) // stride)

    def next_fall(self, n: int, b: int) -> int | None:
        """Return the smallest context above n at which a periodic count falls back, None if it never does."""
        if self.period is None or self._rise(0, b) is None:
            return None
        position = max(n - self.start, 0)
        return position - position % self.period + self.period + self.start

    def corners(self, b: int) -> Iterator[int]:
        """Yield the contexts where the staircase begins or stops to grow: its behaviour is regular between them."""
        if self.rate == 0:
            return
        stride = self._stride(b)
        yield self.start // stride + 1
        if self.cap is not None and self.period is None:
            full = -(-(self.cap + self.cap_per_sequence * b) // self.rate)
            yield -(-(full + self.start) // stride)

    def onward(self, n: int, b: int) -> Steps | None:
        """Return the steps that are taken from context n to the next corner, None if the count rests.

        They start at 0, know no cap, and differ from the count by a constant: staircases that move alike are equal.
        """
        position = self._stride(b) * n - self.start
        if self.rate == 0 or position <= 0:
            return None
        scope: Scope = "pooled" if self.scope == "pooled" else "once"
        if self.period is not None:
            repeated = replace(self, start=self.start % self.period, fixed=0, scope=scope)
            return None if self._rise(0, b) is None else repeated
        if self.cap is not None and position * self.rate >= self.cap + self.cap_per_sequence * b:
            return None
        shift = (self.shift - self.rate * self.start) % self.width
        return Steps(rate=self.rate, shift=shift, width=self.width, scope=scope)

    def cycle(self, b: int) -> int:
        """Return the number of contexts after which steps without corners repeat their shape."""
        if self.period is not None:
            return self.period
        return self.width // math.gcd(self.rate * self._stride(b), self.width)

    def slope(self, b: int) -> Fraction:
        """Return the units that steps without corners add for every context, in the long run."""
        return Fraction(0) if self.period is not None else Fraction(self.rate * self._stride(b), self.width)

    def swing(self, b: int) -> tuple[Fraction, Fraction]:
        """Return how far steps without corners lie from the line of their slope: at the least and at the most."""
        if self.period is not None:
            return Fraction(self.per_scope(self.start, b)), Fraction(self.per_scope(self.start + self.period - 1, b))
        grain = math.gcd(self.rate * self._stride(b), self.width)
        rest = self.shift % grain  # remainders of the division are rest, rest + grain, ...
        return Fraction(self.shift - (self.width - grain + rest), self.width), Fraction(self.shift - rest, self.width)

    def growth(self, n: int, b: int) -> Fraction:
        """Return the unrounded units that token n + 1 of one sequence adds: 0 where the count no longer grows.

        A periodic count grows in its first period; later it only returns to what it has been.
        """
        before = max((n * b if self.scope == "pooled" else n) - self.start, 0)
        after = max((n * b + 1 if self.scope == "pooled" else n + 1) - self.start, 0)
        if self.rate == 0 or (self.period is not None and after >= self.period):
            return Fraction(0)
        return Fraction(self._grown(after, b) - self._grown(before, b), self.width)

    def _stride(self, b: int) -> int:
        """Return how far x advances when the context grows by one."""
        return b if self.scope == "pooled" else 1

    def _grown(self, x: Count, b: Count) -> Count:
        """Return rate * x, at most the cap."""
        if self.cap is None:
            return x * self.rate
        # An array only where it must be one: the cap of most staircases is the same for every batch.
        cap = self.cap + self.cap_per_sequence * b if self.cap_per_sequence else self.cap
        return _at_most(x * self.rate, cap)

    def _rise(self, x: int, b: int) -> int | None:
        """Return the next x above `x`, in the same period, where the count rises; None if it does not rise again."""
        if self.rate == 0:
            return None
        needed = ((self._grown(x, b) + self.shift) // self.width + 1) * self.width - self.shift
        if self.cap is not None and needed > self.cap + self.cap_per_sequence * b:
            return None
        rise: int = -(-needed // self.rate)
        return None if self.period is not None and rise >= self.period else rise


@dataclass(frozen=True)
class Term:
    """One reason for memory: a named product of integers (`factors`) for every unit that `steps` counts.

    `label` groups terms in reports (a kind's name in the spec), `kind` is its attention kind, `role` what the entry
    is, `reason` the rule's source. The product may be negative: a partner that takes back what another term counts.
    """

    label: str
    kind: str
    role: Role
    factors: tuple[tuple[str, int], ...]
    steps: Steps
    reason: str

    @cached_property
    def unit_bytes(self) -> int:
        """Bytes of one unit: the product of the factors."""
        return math.prod(value for _, value in self.factors)

    def bytes(self, n: Count, b: Count) -> Count:
        """Return the bytes at context n and batch b."""
        return self.unit_bytes * self.steps.count(n, b)

    def to_json(self) -> dict[str, Any]:
        """Return the term as plain JSON data; integers above 2^53 become strings.

        UnsupportedByEngine for a count that an engine works out in its own way and that no staircase states.
        """
        if type(self.steps) is not Steps:
            raise UnsupportedByEngine(f"'{self.label}' is no staircase in context and batch and cannot be exported")
        steps = {name: getattr(self.steps, name) for name in Steps.__slots__}
        numbers = {name: _json_int(value) if isinstance(value, int) else value for name, value in steps.items()}
        factors = [[name, _json_int(value)] for name, value in self.factors]
        texts = {"label": self.label, "kind": self.kind, "role": self.role, "reason": self.reason}
        return {**texts, "unit_bytes": _json_int(self.unit_bytes), "factors": factors, **numbers}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Term:
        """Return the term that `to_json` wrote."""
        steps = {name: _from_json_int(data[name]) for name in Steps.__slots__}
        factors = tuple((str(name), int(value)) for name, value in data["factors"])
        return cls(data["label"], data["kind"], data["role"], factors, Steps(**steps), data["reason"])


@dataclass(frozen=True)
class Footprint:
    """A sum of terms: the bytes of one rank's whole batch, as a function of context and batch."""

    terms: tuple[Term, ...] = ()

    def __add__(self, other: Footprint) -> Footprint:
        return Footprint(self.terms + other.terms)

    def bytes(self, n: Count, b: Count = 1) -> Count:
        """Return the bytes held at context n (>= 1) and batch b (>= 1).

        Ints give an int. int64 arrays broadcast and give an int64 array of the same numbers; OverflowError where int64
        could not hold the terms at the largest context and batch, TypeError for other types. BadInput below 1.
        """
        if isinstance(n, int) and isinstance(b, int):
            _require_positive(n, b)
            return sum(unit * steps.count(n, b) for steps, unit in self._combined)
        return self._array_bytes(_checked_array(n, "context"), _checked_array(b, "batch"))

    def by_label(self, n: int, b: int = 1) -> dict[str, int]:
        """Return the bytes of each label, in the order in which labels first appear."""
        _require_positive(n, b)
        totals: dict[str, int] = {}
        for term in self.terms:
            totals[term.label] = totals.get(term.label, 0) + term.bytes(n, b)
        return totals

    def growth(self, n: int) -> Fraction:
        """Return the unrounded bytes that token n + 1 adds to one sequence."""
        _require_positive(n, 1)
        return sum((unit * steps.growth(n, 1) for steps, unit in self._combined), Fraction(0))

    def next_step(self, n: int, b: int = 1) -> int | None:
        """Return the smallest context above n at which the bytes differ from those at n; None if they never do."""
        now, here = self.bytes(n, b), n
        corners = sorted(self._corners(b))
        settled = max([n, *corners[-1:]])
        # Beyond the last corner the sum repeats its shape: one unchanged cycle there is unchanged for ever.
        end = settled + _cycle(self._onward(settled, b), b)
        while here < end:
            changes = [steps.next_change(here, b) for steps in self._onward(here, b)]
            changes.append(next((corner for corner in corners if corner > here), None))
            here = min((change for change in changes if change is not None), default=end)
            if self.bytes(here, b) != now:
                return here
        return None

    def peak(self, n: int, b: int = 1) -> int:
        """Return the largest bytes at any context from 1 to n: what a sequence that grew to n once needed."""
        if self._never_falls:
            return int(self.bytes(n, b))
        _require_positive(n, b)
        starts = sorted({1, *(corner for corner in self._corners(b) if 1 < corner <= n)})
        ends = [start - 1 for start in starts[1:]] + [n]
        return max(self._highest(low, high, b) for low, high in zip(starts, ends, strict=True))

    def max_tokens(self, budget: int, b: int = 1) -> int | None:
        """Return the largest context that `budget` bytes hold for b sequences on the whole way there.

        0 if not even one token fits; None if the footprint stops growing below the budget.
        """
        if self.peak(1, b) > budget:
            return 0
        settled = max([1, *self._corners(b)])
        if self.peak(settled, b) > budget:
            return _largest(lambda n: self.peak(n, b) <= budget, 1, settled)
        moving = self._onward(settled, b)
        slope, once_around = _slope(moving, b), settled + _cycle(moving, b)
        if slope > 0:
            # Below the first of these contexts the budget holds for certain, at the second it does not.
            least, most = _swing(moving, b)
            left = budget - int(self.bytes(settled, b)) + _moved(moving, settled, b)
            low, high = math.floor((left - most) / slope), math.floor((left - least) / slope) + 1
        elif self._highest(settled, once_around, b) <= budget:
            return None
        else:
            low, high = settled, once_around
        return _largest(lambda n: self._highest(settled, n, b) <= budget, max(low, settled), high)

    def max_batch(self, budget: int, n: int) -> int | None:
        """Return the largest batch of sequences of context n that `budget` bytes hold; 0 if none, None if any."""
        one = self.peak(n, 1)
        if one > budget:
            return 0
        if self._proportional:
            return budget // one if one > 0 else None
        if self.peak(n, _BATCH_WITHOUT_END * (budget + 1)) <= budget:
            return None
        return _largest(lambda b: self.peak(n, b) <= budget, 1)

    def sample(self, low: int, high: int, points: int, b: int = 1) -> tuple[tuple[int, int], ...]:
        """Return (context, bytes) pairs from low to high: `points` evenly spread, and both sides of every corner.

        So that a line through them is true, both sides of a periodic count's falls are there too, unless there are
        more falls than points.
        """
        if not 1 <= low <= high or points < 2:
            raise BadInput(f"cannot sample {points} points from {low} to {high}")
        span = high - low
        contexts = {low + span * index // (points - 1) for index in range(points)}
        for turn in self._turns(low, high, points, b):
            contexts.update(context for context in (turn - 1, turn) if low <= context <= high)
        return tuple((context, int(self.bytes(context, b))) for context in sorted(contexts))

    def to_json(self) -> dict[str, Any]:
        """Return the footprint as plain JSON data."""
        return {"schema": "kvcalc.footprint/1", "terms": [term.to_json() for term in self.terms]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Footprint:
        """Return the footprint that `to_json` wrote."""
        return cls(tuple(Term.from_json(term) for term in data["terms"]))

    @cached_property
    def _combined(self) -> tuple[tuple[Steps, int], ...]:
        """The distinct staircases with their summed unit bytes: what evaluation needs of the terms."""
        units: dict[Steps, int] = {}
        for term in self.terms:
            units[term.steps] = units.get(term.steps, 0) + term.unit_bytes
        return tuple((steps, unit) for steps, unit in units.items() if unit)

    @cached_property
    def _proportional(self) -> bool:
        """Whether every sequence of the batch adds the same bytes: nothing is shared."""
        # An engine's own kind of staircase may count a sequence by the batch it is in.
        return all(
            type(steps) is Steps and steps.scope == "sequence" and not steps.cap_per_sequence
            for steps, _ in self._combined
        )

    @cached_property
    def _never_falls(self) -> bool:
        """Whether the bytes can only grow with the context."""
        return all(unit > 0 and steps.period is None for steps, unit in self._combined)

    def _corners(self, b: int) -> list[int]:
        return [corner for steps, _ in self._combined for corner in steps.corners(b)]

    def _turns(self, low: int, high: int, most: int, b: int) -> Iterator[int]:
        """Yield the corners, and the falls between low and high of periodic counts that have at most `most` there."""
        for steps, _ in self._combined:
            yield from steps.corners(b)
            fall = steps.next_fall(low, b)
            if fall is not None and steps.period is not None and (high - fall) // steps.period < most:
                yield from range(fall, high + 1, steps.period)

    def _onward(self, n: int, b: int) -> dict[Steps, int]:
        """Return the steps taken from context n to the next corner with their bytes; those that cancel are left out."""
        units: dict[Steps, int] = {}
        for steps, unit in self._combined:
            moving = steps.onward(n, b)
            if moving is not None:
                units[moving] = units.get(moving, 0) + unit * (b if steps.scope == "sequence" else 1)
        return {steps: unit for steps, unit in units.items() if unit}

    def _highest(self, low: int, high: int, b: int) -> int:
        """Return the peak over contexts low..high, which have no corner but low.

        There the bytes swing about a straight line, so the peak is near its higher end, and within one cycle of it.
        In that reach it is the last context, or just before some staircase makes the sum fall.
        """
        moving = self._onward(low, b)
        if all(unit > 0 and steps.period is None for steps, unit in moving.items()):
            return int(self.bytes(high, b))
        slope = _slope(moving, b)
        end = high if slope >= 0 else low
        room = slope * end + _swing(moving, b)[1] - _moved(moving, end, b)
        reach = _cycle(moving, b) - 1
        if slope:
            reach = min(reach, math.floor(room / abs(slope)))
        elif not room:
            reach = 0
        low, high = (max(low, high - reach), high) if slope >= 0 else (low, min(high, low + reach))
        return max(int(self.bytes(n, b)) for n in (high, *_before_falls(moving, low, high, b)))

    def _array_bytes(self, n: Count, b: Count) -> Count:
        """Return `bytes` of int64 arrays, after proving with Python ints that nothing overflows."""
        top_n, top_b = _top(n), _top(b)
        largest = sum(_bound(steps, top_n, top_b) * max(abs(unit), 1) for steps, unit in self._combined)
        if max([largest, *(_largest_operand(steps, top_n, top_b) for steps, _ in self._combined)]) >= _INT64_LIMIT:
            raise OverflowError(f"context {top_n:,} and batch {top_b:,} need up to {largest:,} bytes, beyond int64")
        per_sequence = sum(unit * steps.per_scope(n, b) for steps, unit in self._combined if steps.scope == "sequence")
        shared = sum(unit * steps.per_scope(n, b) for steps, unit in self._combined if steps.scope != "sequence")
        return per_sequence * b + shared + 0 * n + 0 * b  # the last summands give constants the arrays' shape


@dataclass(frozen=True, slots=True)
class Retention:
    """What a layer keeps of a sequence, free of any engine: a rule and its size in tokens (0 where it has none)."""

    rule: RetentionRule
    size: int = 0

    @classmethod
    def all(cls) -> Retention:
        """Every token."""
        return cls("all")

    @classmethod
    def window(cls, size: int) -> Retention:
        """The last `size` tokens, the current one included."""
        return cls("window", size)

    @classmethod
    def chunk(cls, size: int) -> Retention:
        """The tokens of the current chunk of `size` tokens."""
        return cls("chunk", size)

    @classmethod
    def state(cls) -> Retention:
        """One state per sequence, whatever the context."""
        return cls("state")

    @classmethod
    def encoder(cls, size: int) -> Retention:
        """The encoder's `size` tokens, written once per sequence."""
        return cls("encoder", size)

    @classmethod
    def compressed(cls, ratio: int) -> Retention:
        """One entry for each `ratio` tokens seen whole."""
        return cls("compressed", ratio)

    @classmethod
    def remainder(cls, ratio: int) -> Retention:
        """The tokens that wait to fill the next group of `ratio`."""
        return cls("remainder", ratio)

    @classmethod
    def onset(cls, start: int) -> Retention:
        """One entry from the moment the context has reached `start` tokens."""
        return cls("onset", start)


@dataclass(frozen=True, slots=True)
class BlockGroup:
    """Layers that share one block table: their number, the tokens of a block, and what they keep."""

    layers: int
    block_tokens: int
    retention: Retention


@dataclass(frozen=True, slots=True)
class Pool:
    """Equal units that an allocator hands out: bytes of one, how many it never hands out, its share of the memory."""

    label: str
    unit_bytes: int
    reserved_units: int
    share: Fraction
    groups: tuple[BlockGroup, ...]

    def usable_units(self, budget: int) -> int:
        """Return the units that can be handed out of `budget` bytes; never negative."""
        return max(math.floor(budget * self.share) // self.unit_bytes - self.reserved_units, 0)

    def budget_for(self, units: int, at_least: int = 1) -> int:
        """Return the smallest budget, `at_least` or more, out of which `units` can be handed out."""
        return max(at_least, math.ceil((units + self.reserved_units) * self.unit_bytes / self.share))

    def to_json(self) -> dict[str, Any]:
        """Return the pool as plain JSON data; the share is an exact fraction in text."""
        groups = [
            {"layers": group.layers, "block_tokens": group.block_tokens, "retention": _retention_json(group.retention)}
            for group in self.groups
        ]
        counts = {"unit_bytes": _json_int(self.unit_bytes), "reserved_units": self.reserved_units}
        return {"label": self.label, **counts, "share": str(self.share), "groups": groups}


@dataclass(frozen=True)
class Rank:
    """One device of a replica: its place, the bytes held now, the bytes reserved before a request is accepted."""

    pp: int
    tp: int
    held: Footprint
    admitted: Footprint
    pools: tuple[Pool, ...] = ()


@dataclass(frozen=True)
class Placement:
    """Where the cache lies: the ranks of one replica (listed pp, then tp) and the number of equal replicas (dp)."""

    ranks: tuple[Rank, ...]
    dp: int = 1

    def local_batch(self, batch: int) -> int:
        """Return the sequences of one replica: all replicas provide for the fullest one."""
        return -(-batch // self.dp)

    def per_rank_bytes(self, n: int, batch: int) -> tuple[int, ...]:
        """Return the admitted bytes of every rank, listed dp, pp, tp."""
        local = self.local_batch(batch)
        return tuple(int(rank.admitted.bytes(n, local)) for rank in self.ranks) * self.dp

    def total_bytes(self, n: int, batch: int) -> int:
        """Return the admitted bytes of all ranks and sequences."""
        return sum(self.per_rank_bytes(n, batch))

    def held_bytes(self, n: int, batch: int) -> int:
        """Return the bytes in use of all ranks and sequences."""
        local = self.local_batch(batch)
        return self.dp * sum(int(rank.held.bytes(n, local)) for rank in self.ranks)

    def whole(self) -> Footprint:
        """Return the admitted bytes of one replica as a single footprint, all ranks added."""
        return total(rank.admitted for rank in self.ranks)

    def to_json(self) -> dict[str, Any]:
        """Return the placement as plain JSON data."""
        ranks = [
            {
                "pp": rank.pp,
                "tp": rank.tp,
                "held": rank.held.to_json(),
                "admitted": rank.admitted.to_json(),
                "pools": [pool.to_json() for pool in rank.pools],
            }
            for rank in self.ranks
        ]
        return {"schema": "kvcalc.placement/1", "dp": self.dp, "ranks": ranks}


def _retention_json(retention: Retention) -> dict[str, Any]:
    return {"rule": retention.rule, "size": retention.size}


def _at_least_zero(x: Count) -> Count:
    return max(x, 0) if isinstance(x, int) else x.clip(0, None)


def _at_most(x: Count, cap: Count) -> Count:
    """Return min(x, cap); either may be an array."""
    if not isinstance(x, int):
        return x.clip(None, cap)
    return min(x, cap) if isinstance(cap, int) else cap.clip(None, x)


def _top(x: Count) -> int:
    return x if isinstance(x, int) else int(x.max(initial=1))


def _slope(moving: Mapping[Steps, int], b: int) -> Fraction:
    return sum((unit * steps.slope(b) for steps, unit in moving.items()), Fraction(0))


def _swing(moving: Mapping[Steps, int], b: int) -> tuple[Fraction, Fraction]:
    """Return how far the sum of moving steps lies from its line, at the least and at the most."""
    swings = [(unit, steps.swing(b)) for steps, unit in moving.items()]
    least = sum((unit * swing[unit < 0] for unit, swing in swings), Fraction(0))
    return least, sum((unit * swing[unit > 0] for unit, swing in swings), Fraction(0))


def _moved(moving: Mapping[Steps, int], n: int, b: int) -> int:
    """Return the bytes of moving steps at context n."""
    return int(sum(unit * steps.per_scope(n, b) for steps, unit in moving.items()))


def _cycle(moving: Mapping[Steps, int], b: int) -> int:
    return math.lcm(*(steps.cycle(b) for steps in moving))


def _before_falls(moving: Mapping[Steps, int], low: int, high: int, b: int) -> Iterator[int]:
    """Yield the contexts of low..high after which a periodic count falls back, or one with negative bytes rises."""
    left = _MAX_FALLS
    for steps, unit in moving.items():
        fall = steps.next_fall(low, b) if unit > 0 else steps.next_rise(low, b)
        while fall is not None and fall <= high:
            yield fall - 1
            fall = steps.next_fall(fall, b) if unit > 0 else steps.next_rise(fall, b)
            left -= 1
            if not left:
                sizes = ", ".join(f"{steps.cycle(b):,}" for steps in moving)
                raise UnsupportedByEngine(f"the peak of layers that repeat every {sizes} tokens is too far to search")


def _bound(steps: Steps, n: int, b: int) -> int:
    """Return the largest count at any context up to n and batch up to b."""
    if steps.period is None:
        return int(steps.count(n, b))
    top = steps.per_scope(steps.start + min(steps.period - 1, n), b)
    return int(top * b if steps.scope == "sequence" else top)


def _largest_operand(steps: Steps, n: int, b: int) -> int:
    """Return an upper bound of every number that `per_scope` handles at contexts up to n and batches up to b."""
    x = n * b if steps.scope == "pooled" else n
    return max(x * steps.rate, (steps.cap or 0) + steps.cap_per_sequence * b) + steps.start + steps.shift + b


def _checked_array(value: Count, name: str) -> Count:
    """Return `value` as an int or a non-empty int64 array of numbers >= 1."""
    if isinstance(value, int):
        _require_positive(value, 1)
        return value
    if str(getattr(value, "dtype", "")) != "int64":
        raise TypeError(f"{name} must be an int or an int64 array, not {getattr(value, 'dtype', type(value).__name__)}")
    if value.size and int(value.min()) < 1:
        raise BadInput(f"{name} must be at least 1, not {int(value.min()):,}")
    return value


def _require_positive(n: int, b: int) -> None:
    if n < 1 or b < 1:
        name, value = ("context", n) if n < 1 else ("batch", b)
        raise BadInput(f"{name} must be at least 1, not {value:,}")


def _largest(fits: Callable[[int], bool], low: int, high: int | None = None) -> int:
    """Return the largest number that fits, given that `low` does, `high` does not, and that fitting is monotone."""
    if high is None:
        high = 2 * low
        while fits(high):
            low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _json_int(value: int) -> int | str:
    return value if abs(value) <= _JSON_EXACT else str(value)


def _from_json_int(value: Any) -> Any:
    return int(value) if isinstance(value, str) and value.lstrip("-").isdigit() else value


def total(footprints: Iterable[Footprint]) -> Footprint:
    """Return the sum of footprints."""
    return Footprint(tuple(term for footprint in footprints for term in footprint.terms))
