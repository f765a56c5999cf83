"""Random rules with a literal allocator beside them, and random sums of staircases."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hypothesis import strategies as st

from kvcalc.footprint import Footprint, Scope, Steps, Term
from tests.property import literal

Held = Callable[[int, int], Iterable[int]]  # (contexts, batch) -> bytes held at context 1, 2, ...

sizes = st.integers(1, 12)
starts = st.integers(0, 15)
batches = st.integers(1, 4)
unit_bytes = st.integers(1, 9)


@dataclass(frozen=True)
class Rule:
    """Terms built by the named constructors, and an allocator that holds the same bytes."""

    terms: tuple[Term, ...]
    held: Held


def term(steps: Steps, unit: int, label: str = "layer") -> Term:
    """Return a term of `unit` bytes."""
    return Term(label, "full", "k", (("unit", unit),), steps, "test")


def footprint(*pairs: tuple[Steps, int]) -> Footprint:
    """Return the sum of staircases with their bytes per unit."""
    return Footprint(tuple(term(steps, unit) for steps, unit in pairs))


def _per_sequence(steps: Steps, unit: int, one: Callable[[int], Iterable[int]], once: bool) -> Rule:
    """Return a rule whose every sequence (or, with `once`, the batch) holds what `one` counts."""

    def held(contexts: int, batch: int) -> list[int]:
        copies = [list(one(contexts)) for _ in range(1 if once else batch)]
        return [unit * sum(counts) for counts in zip(*copies, strict=True)]

    return Rule((term(steps.once() if once else steps, unit),), held)


@st.composite
def simple_rules(draw: st.DrawFn) -> Rule:
    """Return one rule of one staircase, per sequence or once."""
    size, block, start, unit = draw(sizes), draw(sizes), draw(starts), draw(unit_bytes)
    keep, spare, once = draw(sizes), draw(st.integers(0, 2)), draw(st.booleans())
    some_keep = draw(st.none() | st.integers(1, size))
    choices: list[tuple[Steps, Callable[[int], Iterable[int]]]] = [
        (Steps.per_token(block, start), lambda n: literal.whole_blocks(n, block, start)),
        (Steps.window(keep, block, start, spare), lambda n: literal.ring(n, keep, block, start, spare)),
        (Steps.chunk(size, block, some_keep), lambda n: literal.current_chunk(n, size, block, some_keep)),
        (Steps.remainder(size, start), lambda n: literal.waiting_tokens(n, size, start)),
        (Steps.compressed(size, start), lambda n: literal.compressed_entries(n, size, start)),
        (Steps.onset(start), lambda n: literal.from_a_moment_on(n, start)),
        (Steps.constant(spare), lambda n: [spare] * n),
    ]
    steps, one = draw(st.sampled_from(choices))
    return _per_sequence(steps, unit, one, once)


@st.composite
def late_chunks(draw: st.DrawFn) -> Rule:
    """Return chunks counted from a later token: two staircases, the first unit apart."""
    size, block, start, unit = draw(sizes), draw(sizes), draw(st.integers(1, 15)), draw(unit_bytes)
    steps = (Steps.onset(start), Steps.chunk(size, block, start=start))

    def held(contexts: int, batch: int) -> list[int]:
        return [unit * batch * units for units in literal.current_chunk(contexts, size, block, start=start)]

    return Rule(tuple(term(each, unit) for each in steps), held)


@st.composite
def released_windows(draw: st.DrawFn) -> Rule:
    """Return a window held by blocks: a staircase and the negative partner that frees them."""
    keep, block, unit = draw(sizes), draw(sizes), draw(unit_bytes)
    limit = draw(st.none() | st.integers(0, 4).map(lambda blocks: blocks * block))
    terms = (term(Steps.per_token(block), unit), term(Steps.released(keep, block, limit), -unit))

    def held(contexts: int, batch: int) -> list[int]:
        return [unit * batch * blocks for blocks in literal.freed_by_position(contexts, keep, block, limit)]

    return Rule(terms, held)


@st.composite
def padded_cells(draw: st.DrawFn) -> Rule:
    """Return cells in padded groups, per stream or in one unified stream, capped or not."""
    cells, unit, unified = draw(sizes), draw(unit_bytes), draw(st.booleans())
    keep, per_sequence = draw(st.none() | st.integers(1, 30)), draw(st.integers(0, 5))
    steps = Steps.padded(cells, unified, keep, 0 if keep is None else per_sequence)

    def held(contexts: int, batch: int) -> list[int]:
        most = None if keep is None else keep + per_sequence * batch
        return [unit * groups for groups in literal.padded_stream(contexts, cells, most, batch, unified)]

    return Rule((term(steps, unit),), held)


@st.composite
def quantised_caches(draw: st.DrawFn) -> Rule:
    """Return a packed cache with an unpacked tail: the tail's bytes, and a partner that takes back its packed ones."""
    prompt, residual, packed = draw(starts), draw(sizes), draw(unit_bytes)
    unit = packed + draw(unit_bytes)
    tail = Steps.remainder(residual, start=prompt)
    terms = (term(Steps.per_token(), packed), term(tail, unit), term(tail, -packed))

    def held(contexts: int, batch: int) -> list[int]:
        return [batch * size for size in literal.quantised_tail(contexts, prompt, residual, unit, packed)]

    return Rule(terms, held)


rules = st.one_of(simple_rules(), late_chunks(), released_windows(), padded_cells(), quantised_caches())
rule_sums = st.lists(rules, min_size=1, max_size=4)


@st.composite
def staircases(draw: st.DrawFn) -> Steps:
    """Return any staircase that the algebra allows, small enough for brute force."""
    scopes: tuple[Scope, ...] = ("sequence", "once", "pooled")
    scope = draw(st.sampled_from(scopes))
    cap = draw(st.none() | st.integers(0, 25))
    return Steps(
        rate=draw(st.integers(0, 4)),
        start=draw(starts),
        period=None if scope == "pooled" else draw(st.none() | sizes),
        cap=cap,
        cap_per_sequence=0 if cap is None else draw(st.integers(0, 3)),
        shift=draw(st.integers(0, 12)),
        width=draw(sizes),
        fixed=draw(st.integers(0, 3)),
        scope=scope,
    )


# Sums of any staircases, negative ones too: what the laws must hold for, whatever the rules of an engine are.
footprints = st.lists(st.tuples(staircases(), st.integers(-6, 9)), max_size=5).map(lambda pairs: footprint(*pairs))

# Sums that mean memory: bytes that a larger batch never lowers.
growing_footprints = rule_sums.map(lambda found: Footprint(tuple(each for rule in found for each in rule.terms)))
