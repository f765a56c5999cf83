"""The size of a cache as a derivation: every step with its numbers, its exact bytes, and the source of each rule.

It reads the terms that `size` sums, so its last step is that total. It knows no engine: a term brings its named
factors, the staircase that counts its units, and its reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvcalc.api import Setup, SizeResult, measure
from kvcalc.engines._base import Deployment
from kvcalc.errors import BadInput
from kvcalc.explain import words
from kvcalc.explain.against_ideal import against_ideal
from kvcalc.explain.attention import NO_HEADS, NOTE, attention_rows, head_kinds
from kvcalc.explain.result import TOTAL, Attention, Explanation, Section, Step
from kvcalc.explain.steps import RankSums, Share, all_rank_steps, count_step, shares, unit_steps
from kvcalc.footprint import Placement, Rank, Term
from kvcalc.formats import Format, find_kv_formats
from kvcalc.spec.kinds import Kind
from kvcalc.units import format_bytes, format_exact

__all__ = ["Attention", "Explanation", "Section", "Step", "explain"]


def explain(setup: Setup, context: int, batch: int) -> Explanation:
    """Return the derivation of a prepared setup's size; errors as for `api.measure`."""
    size = measure(setup, context, batch)
    return Explanation(
        size=size,
        settings=_settings(setup),
        sections=tuple(_sections(setup, context, batch)),
        attention=attention_rows(setup, size),
        attention_note=NOTE if head_kinds(setup.spec) else NO_HEADS,
        remarks=(*_remarks(setup.placement, size), *filter(None, [against_ideal(setup, size)])),
        sources=_sources(setup),
    )


def _sections(setup: Setup, context: int, batch: int) -> list[Section]:
    """Return the kinds of layer and the sum of every distinct rank, then all ranks together."""
    alike: dict[tuple[Term, ...], list[Rank]] = {}
    for rank in setup.placement.ranks:
        alike.setdefault(rank.admitted.terms, []).append(rank)
    reader = _RankReader(setup, context, batch)
    sections: list[Section] = []
    totals: list[tuple[str, int, int]] = []
    for terms, ranks in alike.items():
        place = _place(ranks, setup.deployment) if len(alike) > 1 else ""
        found = reader.sections(terms, place, with_empty=not sections)
        sections += found
        totals.append((place, len(ranks), found[-1].steps[-1].bytes))
    steps = all_rank_steps(totals, setup.placement.dp)
    return [*sections, Section("all ranks", "", tuple(steps))] if steps else sections


@dataclass(frozen=True)
class _RankReader:
    """Derives the bytes of one rank at a context and batch from its terms."""

    setup: Setup
    context: int
    batch: int

    def sections(self, terms: Sequence[Term], place: str, with_empty: bool) -> list[Section]:
        """Return the sections of one rank, at the first also what keeps nothing; the last step has the rank's bytes."""
        kinds = {group.name: group.kind for group in self.setup.spec.groups()}
        sections: list[Section] = []
        sums = RankSums()
        for label in dict.fromkeys(term.label for term in terms):
            kind, own = kinds.get(label), [term for term in terms if term.label == label]
            steps = self._label_steps(shares(label, kind, own), sums)
            sections.append(Section(_title(label, place, own, kind), _note(kind), tuple(steps)))
        empty = _empty(self.setup) if with_empty else ()
        if empty:
            sections.append(Section("layers that keep nothing", "", empty))
            sums.per_sequence.extend(step.bytes for step in empty)
        placement = self.setup.placement
        steps = sums.steps(placement.local_batch(self.batch), _sequences(placement, self.batch))
        if not sections:
            steps = [Step(TOTAL, "no layer here keeps anything", "0", 0)]
        if steps:
            title = "the batch" if len(sums.per_sequence) == 1 and not sums.once else "together"
            sections.append(Section(f"one rank of {place}" if place else title, "", tuple(steps)))
        return sections

    def _label_steps(self, found: Sequence[Share], sums: RankSums) -> list[Step]:
        """Return the steps of one kind of layer, adding what they end in to the sums."""
        local = self.setup.placement.local_batch(self.batch)
        steps: list[Step] = []
        explained = set()
        for share in found:
            if share.position not in explained:
                steps += unit_steps(share, self.setup.deployment.tp, _kv_formats(self.setup))
                explained.add(share.position)
            count = count_step(share, self.context, local)
            steps += [count] if count else []
            (sums.per_sequence if share.steps.scope == "sequence" else sums.once).append(steps[-1].bytes)
        return steps


def _empty(setup: Setup) -> tuple[Step, ...]:
    """Return what keeps nothing, a step of 0 bytes each: kinds without a term, and layers without a kind."""
    labels = {term.label for rank in setup.placement.ranks for term in rank.admitted.terms}
    steps = [
        Step(
            group.name,
            f"{group.name}: each of {words.plural(len(group.indices), 'layer')} keeps {words.keeps(group.kind)}",
            f"{len(group.indices):,} layers x 0 bytes",
            0,
        )
        for group in setup.spec.groups()
        if group.name not in labels
    ]
    empty = setup.spec.empty_layers()
    if empty:
        text = f"none: {words.plural(empty, 'layer')} without attention or state (MLP only)"
        steps.append(Step("none", text, f"{empty:,} layers x 0 bytes", 0))
    return tuple(steps)


def _title(label: str, place: str, terms: Sequence[Term], kind: Kind | None) -> str:
    """Return the heading of a kind of layer: its name in the spec, where, how many layers, its dimensions."""
    layers = dict(terms[0].factors).get("layers")
    parts = [label, place, "" if layers is None else words.plural(layers, "layer"), kind.describe if kind else ""]
    return ", ".join(part for part in parts if part)


def _note(kind: Kind | None) -> str:
    return "held by the engine itself" if kind is None else f"each layer keeps {words.keeps(kind)}"


def _sequences(placement: Placement, batch: int) -> str:
    """Return how many sequences one replica holds, in words."""
    local = words.plural(placement.local_batch(batch), "sequence")
    return local if placement.dp == 1 else f"one replica: ceil({batch:,} / dp {placement.dp}) = {local}"


def _place(ranks: Sequence[Rank], deployment: Deployment[Any]) -> str:
    """Return which ranks of a replica a derivation speaks of: `pipeline stages 0-2`."""
    stages, slices = sorted({rank.pp for rank in ranks}), sorted({rank.tp for rank in ranks})
    place = f"pipeline stage{'s' * (len(stages) > 1)} {_span(stages)}" if deployment.pp > 1 else ""
    if len(slices) == deployment.tp and place:
        return place
    return ", ".join(filter(None, (place, f"tensor rank{'s' * (len(slices) > 1)} {_span(slices)}")))


def _span(numbers: Sequence[int]) -> str:
    """Return `0-2` for consecutive numbers, `0, 2` otherwise."""
    if len(numbers) > 1 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]}-{numbers[-1]}"
    return ", ".join(str(number) for number in numbers)


def _settings(setup: Setup) -> tuple[str, ...]:
    """Return what the numbers depend on beside the model: formats, ranks, the engine's options."""
    deployment = setup.deployment
    formats = _kv_formats(setup)
    lines = ["; ".join(f"{name} in {one.name}: {one.describe}" for name, one in zip("KV", formats, strict=False))]
    if len(set(formats)) == 1:
        lines = [f"K and V in {formats[0].name}: {formats[0].describe}"]
    degrees = {"tp": deployment.tp, "pp": deployment.pp, "dp": deployment.dp, "dcp": deployment.dcp}
    if any(degree > 1 for degree in degrees.values()):
        split = " x ".join(f"{name} {degree}" for name, degree in degrees.items() if degree > 1)
        lines.append(f"{split}: {len(setup.placement.ranks) * setup.placement.dp:,} ranks")
    options = deployment.options.model_dump(exclude_defaults=True)
    if options:
        lines.append(f"engine options: {', '.join(f'{name}={_typed(given)}' for name, given in options.items())}")
    return tuple(line for line in lines if line)


def _typed(value: object) -> str:
    """Return a value as it is written after `-o KEY=`."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _kv_formats(setup: Setup) -> tuple[Format, ...]:
    """Return the formats of K and V; none where the engine packs them in a way of its own."""
    try:
        return find_kv_formats(setup.kv_dtype)
    except BadInput:
        return ()


def _remarks(placement: Placement, size: SizeResult) -> tuple[str, ...]:
    """Return what a reader should know about the total: what of it is in use, and what its unit means."""
    remarks = []
    held = placement.held_bytes(size.context, size.batch)
    if held != size.total_bytes:
        spare = size.total_bytes - held
        remarks.append(f"{format_exact(held)} of these hold tokens now; {format_exact(spare)} are set aside")
    sequence = size.per_sequence_bytes
    if sequence >= 2**20:
        iec, si = format_bytes(sequence), format_bytes(sequence, "si")
        between = int(iec.split()[0].split(".")[0]) + 1
        example = f" (such as {between} {si.split()[1]})" if iec.split()[0].isdigit() and between > 100 else ""
        remarks.append(
            f"One sequence is {iec} = {si} (1 MiB is 1,048,576 bytes, 1 MB is 1,000,000): notes that give a figure "
            f"between the two{example} mix the units."
        )
    return tuple(remarks)


def _sources(setup: Setup) -> tuple[str, ...]:
    """Return where the dimensions, the rules and the formats come from."""
    source = setup.spec.file.source
    note = f" ({source.note.rstrip('.')})" if source.note else ""
    texts = [f"{setup.spec.name}: {source.url}, checked {source.checked}{note}"]
    reasons: dict[str, str] = {}
    for rank in setup.placement.ranks:
        for term in rank.admitted.terms:
            reasons.setdefault(term.label, term.reason)
    for group in setup.spec.groups():
        reasons.setdefault(group.name, group.kind.rule_source)
    texts += [f"{label}: {text}" for label, text in reasons.items()]
    texts += dict.fromkeys(f"{stored.name}: {stored.source}" for stored in _kv_formats(setup))
    if setup.engine.version:
        texts.append(f"engine {setup.engine.name} {setup.engine.version}: {setup.engine.summary}")
    return tuple(texts)
