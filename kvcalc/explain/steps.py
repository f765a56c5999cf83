"""From the terms of one rank to the steps of its derivation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kvcalc.explain import words
from kvcalc.explain.result import TOTAL, Step
from kvcalc.footprint import Steps, Term
from kvcalc.formats import Format
from kvcalc.spec.kinds import Kind

# Factors that multiply what one position takes in one layer: layers and blocks become steps of their own, the others
# (-1 for what is taken back) stand beside the count.
_UNITS, _SIGNS = ("block_tokens", "layers"), ("released", "times")


@dataclass(frozen=True)
class Share:
    """Terms of one kind of layer that are counted alike: K and V, usually."""

    label: str
    kind: Kind | None
    terms: tuple[Term, ...]

    @property
    def steps(self) -> Steps:
        """The staircase that counts all of them."""
        return self.terms[0].steps

    @property
    def sign(self) -> int:
        """How often every unit counts: -1 for a partner that takes back what another share counts."""
        return math.prod(value for name, value in self.terms[0].factors if name in _SIGNS)

    @property
    def unit(self) -> int:
        """Bytes of one unit (a token or a block, in all layers), without the sign."""
        return sum(term.unit_bytes for term in self.terms) // self.sign

    @property
    def noun(self) -> str:
        """What one position is: a token, an encoder position, a state."""
        return words.kept_noun(self.kind, self.steps)

    @property
    def owner(self) -> str:
        """What an entry belongs to: a position, or the sequence whose state it is."""
        return "sequence" if self.noun == "state" else self.noun

    @property
    def unit_noun(self) -> str:
        """What the staircase counts: positions, or blocks of them."""
        return "block" if dict(self.terms[0].factors).get("block_tokens", 1) > 1 else self.noun

    @property
    def position(self) -> tuple[Any, ...]:
        """What one unit is made of: shares that agree in it need its derivation only once."""
        factors = tuple(tuple(factor for factor in term.factors if factor[0] not in _SIGNS) for term in self.terms)
        return self.noun, tuple(term.role for term in self.terms), factors


def shares(label: str, kind: Kind | None, terms: Sequence[Term]) -> list[Share]:
    """Return the terms of one label, those that are counted alike together."""
    found: dict[Any, list[Term]] = {}
    for term in terms:
        multipliers = tuple(factor for factor in term.factors if factor[0] in (*_UNITS, *_SIGNS))
        found.setdefault((term.steps, multipliers), []).append(term)
    return [Share(label, kind, tuple(alike)) for alike in found.values()]


def unit_steps(share: Share, tp: int, stored: Sequence[Format]) -> list[Step]:
    """Return the steps up to one unit in all layers: every entry, their sum, a block, the layers.

    `stored` are the cache's formats of K and V, as far as they are known.
    """
    steps = [_entry(share, term, tp, stored) for term in share.terms]
    bytes_, unit = sum(step.bytes for step in steps), share.noun
    if len(steps) > 1:
        roles = dict.fromkeys(words.role(term.role, share.kind) for term in share.terms)
        text = f"{' + '.join(roles)} of one {share.owner} in one layer{', together' * (len(roles) < len(steps))}"
        steps.append(Step(share.label, text, " + ".join(f"{step.bytes:,}" for step in steps), bytes_))
    factors = dict(share.terms[0].factors)
    block, layers = factors.get("block_tokens", 1), factors.get("layers", 1)
    if block > 1:
        positions, bytes_, unit = words.plural(block, unit), bytes_ * block, "block"
        formula = f"{steps[-1].bytes:,} x {positions}"
        steps.append(Step(share.label, f"one block of {positions} in one layer", formula, bytes_))
    if layers > 1:
        formula = f"{bytes_:,} x {layers:,} layers"
        steps.append(Step(share.label, f"one {unit} in all {layers:,} layers", formula, bytes_ * layers))
    return steps


def count_step(share: Share, n: int, b: int) -> Step | None:
    """Return the step that counts a share's units at context n and batch b; None for one state, which needs none."""
    steps, sign = share.steps, share.sign
    count = int(steps.per_scope(n, b))
    if steps.rate == 0 and count == 1 and share.noun == "state" and sign == 1:
        return None
    why = words.reason(share.kind, steps, b)
    if sign < 0:
        released = "released" in dict(share.terms[0].factors)
        why = f"taken back: {'left behind by every window' if released else 'counted for every sequence, but shared'}"
    text = f"{words.owner(steps)}: {words.plural(count, share.unit_noun)}, {why}"
    times = "" if sign == 1 else f" x ({sign:,})"
    noun = words.plural_noun(share.unit_noun)
    formula = f"{share.unit:,}{times} x {words.expression(steps, n, b)} {noun}"
    return Step(share.label, text, formula, share.unit * sign * count)


def _entry(share: Share, term: Term, tp: int, stored: Sequence[Format]) -> Step:
    """Return what one entry takes of one position in one layer."""
    parts = [(name, value) for name, value in term.factors if name not in (*_UNITS, *_SIGNS)]
    text = f"{share.label} of one unit"  # the engine's own: no layer keeps it
    if share.kind is not None:
        role = words.role(term.role, share.kind)
        text = f"{role} of one {share.owner} in one layer{_sharding(share, term, tp)}"
    formula = " x ".join(_factor(term, name, value, stored) for name, value in parts)
    return Step(share.label, text, formula, math.prod(value for _, value in parts))


def _factor(term: Term, name: str, value: int, stored: Sequence[Format]) -> str:
    """Return one factor in words: `64 head_dim`, `2 blocks of 32 per row`, `34 bytes`."""
    if name in ("bytes", "block_bytes"):
        return words.plural(value, "byte")
    if name == "row_bytes":
        return f"{words.plural(value, 'byte')} per row"
    if name != "blocks_per_row":
        return f"{value:,} {name}"
    own = stored[-1 if term.role == "v" else 0] if stored else None
    known = own is not None and dict(term.factors).get("block_bytes") == own.block_bytes
    return f"{words.plural(value, 'block')}{f' of {own.block}' if own and known else ''} per row"


def _sharding(share: Share, term: Term, tp: int) -> str:
    """Return how tensor parallelism changed a factor from the model's own dimension; nothing where it did not."""
    axes = [dict(entry.axes) for entry in share.kind.entries() if entry.role == term.role] if share.kind else []
    for name, value in term.factors:
        sizes = [axis[name] for axis in axes if name in axis]
        if tp == 1 or not sizes or value in sizes:
            continue
        if value * tp in sizes:
            return f": {value * tp:,} {name} / tp {tp} = {value:,} on each rank"
        return f": {sizes[0]:,} {name} on tp {tp} ranks, {value:,} on each, in {value * tp // sizes[0]:,} copies"
    return ""


@dataclass
class RankSums:
    """What the parts of one rank end in: the bytes of one sequence each, and those that the batch stores once."""

    per_sequence: list[int] = field(default_factory=list)
    once: list[int] = field(default_factory=list)

    def steps(self, b: int, sequences: str) -> list[Step]:
        """Return the steps that add up one rank: its kinds of layer, its b sequences, what is stored once."""
        steps: list[Step] = []
        bytes_ = sum(self.per_sequence)
        if len(self.per_sequence) > 1:
            steps.append(Step(TOTAL, "one sequence, all of the above", _sum(self.per_sequence), bytes_))
        if self.per_sequence and b > 1:
            steps.append(Step(TOTAL, sequences, f"{bytes_:,} x {b:,} sequences", bytes_ * b))
            bytes_ *= b
        parts = [bytes_, *self.once] if self.per_sequence else self.once
        if self.once and len(parts) > 1:
            steps.append(Step(TOTAL, "with what the batch stores once", _sum(parts), sum(parts)))
        return steps


def all_rank_steps(ranks: Sequence[tuple[str, int, int]], dp: int) -> list[Step]:
    """Return the steps from one rank to all: (which ranks, how many of them, the bytes of one), then the replicas."""
    steps: list[Step] = []
    for place, count, bytes_ in ranks:
        if count > 1:
            text = f"{count:,} equal ranks{f' ({place})' if place else ''}"
            steps.append(Step(TOTAL, text, f"{bytes_:,} x {count:,} ranks", bytes_ * count))
    parts = [count * bytes_ for _, count, bytes_ in ranks]
    if len(parts) > 1:
        steps.append(Step(TOTAL, "all ranks" + (" of one replica" if dp > 1 else ""), _sum(parts), sum(parts)))
    if dp > 1:
        steps.append(Step(TOTAL, f"all {dp:,} replicas (dp)", f"{sum(parts):,} x {dp:,} replicas", sum(parts) * dp))
    return steps


def _sum(parts: Sequence[int]) -> str:
    return " + ".join(f"{part:,}" if part >= 0 else f"({part:,})" for part in parts)
