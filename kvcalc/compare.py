"""Caches side by side: models, kinds of attention, element formats, engines, and the remedies of the field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from kvcalc.api import SizeResult, load, measure, prepare
from kvcalc.engines import find_engine
from kvcalc.errors import BadInput, KvcalcError, UnsupportedByEngine
from kvcalc.explain.against_ideal import against_ideal
from kvcalc.explain.attention import example_kv_heads, head_kinds
from kvcalc.formats import find_format
from kvcalc.output import fold, render
from kvcalc.spec.model import ModelSpec
from kvcalc.spec.resolve import with_kv_heads
from kvcalc.units import format_bytes, format_ratio

# What the remedies assume unless the options say otherwise.
REMEDY_FORMATS = ("fp8", "q8_0", "q4_0")
REMEDY_BLOCK = 16
REMEDY_SINKS = 4

_NUMBERS = ("per token", "sequence", "total", "bytes", "ratio")


@dataclass(frozen=True)
class Case:
    """A question of one context and batch: `deployment` are the arguments of `api.prepare` beside the model."""

    context: int
    batch: int
    deployment: Mapping[str, Any]

    def load(self, model: str) -> ModelSpec:
        """Return a model by name or path; the network is asked only if the deployment's arguments allow it."""
        return load(model, download=bool(self.deployment.get("download")))

    def size(self, model: ModelSpec, **changes: Any) -> SizeResult:
        """Return the size of a model in this deployment with some arguments replaced."""
        return measure(prepare(model, **{**self.deployment, **changes}), self.context, self.batch)

    def against_ideal(self, model: ModelSpec, size: SizeResult, **changes: Any) -> str:
        """Return what the engine's rules cost against the ideal engine; empty for the ideal engine."""
        return against_ideal(prepare(model, **{**self.deployment, **changes}), size)


@dataclass(frozen=True)
class Row:
    """One cache of a comparison; `size` is None where it does not apply, and the note says why."""

    label: str
    size: SizeResult | None
    note: str = ""

    def to_json(self, baseline: int) -> dict[str, Any]:
        """Return the row as JSON data, with its ratio to `baseline` bytes, and that as an exact fraction."""
        size = self.size
        return {
            "label": self.label,
            "model": size.model if size else None,
            "engine": {"name": size.engine, "version": size.engine_version} if size else None,
            "kv_dtype": size.kv_dtype if size else None,
            "per_token_bytes": size.per_token_bytes if size else None,
            "per_sequence_bytes": size.per_sequence_bytes if size else None,
            "total_bytes": size.total_bytes if size else None,
            "ratio": round(size.total_bytes / baseline, 6) if size and baseline else None,
            "exact_ratio": str(Fraction(size.total_bytes, baseline)) if size and baseline else None,
            "note": self.note,
        }


@dataclass(frozen=True)
class Comparison:
    """Caches of one context and batch; the first row is the baseline of the ratios and always applies."""

    context: int
    batch: int
    rows: tuple[Row, ...]

    @property
    def sizes(self) -> tuple[SizeResult, ...]:
        """The sizes of the rows that apply."""
        return tuple(row.size for row in self.rows if row.size)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The rows' warnings, each once."""
        return tuple(dict.fromkeys(text for size in self.sizes for text in size.warnings))

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The rows' assumptions, each once."""
        return tuple(dict.fromkeys(text for size in self.sizes for text in size.assumptions))

    def json_rows(self) -> list[dict[str, Any]]:
        """Return the rows as JSON data."""
        return [row.to_json(self.sizes[0].total_bytes) for row in self.rows]

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as JSON data with the stable keys of `kvcalc compare --json`."""
        return {
            "schema": "kvcalc.compare/1",
            "context": self.context,
            "batch": self.batch,
            "baseline": self.rows[0].label,
            "rows": self.json_rows(),
            "assumptions": list(self.assumptions),
            "warnings": list(self.warnings),
        }

    def report(self, units: str = "iec", width: int | None = None) -> str:
        """Return the table for people, at most `width` columns wide, with what its rows assume below."""
        heading = f"context {self.context:,}, batch {self.batch:,}; ratios to {self.rows[0].label}"
        rows = [self._cells(row, units) for row in self.rows]
        blocks = [
            heading,
            render(rows, "table", aligned_right=_NUMBERS, width=width),
            "\n".join(fold(f"{row.label}: {row.note}", hanging="  ") for row in self.rows if row.note),
            "\n".join(fold(f"assumed: {text}", hanging="  ") for text in self.assumptions),
        ]
        return "\n\n".join(block for block in blocks if block)

    __str__ = report

    def _cells(self, row: Row, units: str) -> dict[str, str]:
        """Return one line of the table; `-` where a row does not apply."""
        names = [name for name in _NUMBERS if units != "bytes" or name != "total"]
        size = row.size
        if size is None:
            return {"cache": row.label, **dict.fromkeys(names, "-")}
        figures = {"per token": size.per_token_bytes, "sequence": size.per_sequence_bytes, "total": size.total_bytes}
        cells = {
            name: f"{value:,}" if units == "bytes" else format_bytes(value, units) for name, value in figures.items()
        }
        cells["bytes"] = f"{size.total_bytes:,}"
        cells["ratio"] = format_ratio(size.total_bytes, self.sizes[0].total_bytes)
        return {"cache": row.label, **{name: cells[name] for name in names}}


def compare_models(models: Sequence[str], case: Case) -> Comparison:
    """Return several models in the same deployment."""
    specs = [case.load(model) for model in models]
    return _comparison(case, [(spec.name, spec, {}) for spec in specs])


def compare_attention(model: str, choices: Sequence[str], case: Case) -> Comparison:
    """Return a model with other numbers of key and value heads: `mha`, `gqa:N`, `mqa`."""
    spec = case.load(model)
    return _comparison(case, [(name, with_kv_heads(spec, kv_heads_of(name, spec)), {}) for name in choices])


def compare_kv_dtypes(model: str, formats: Sequence[str], case: Case) -> Comparison:
    """Return a model with other formats of its cache, `F` or `K/V` each."""
    spec = case.load(model)
    return _comparison(case, [(text, spec, {"kv_dtype": text}) for text in formats])


def compare_engines(model: str, engines: Sequence[str], case: Case) -> Comparison:
    """Return a model as several engines hold it, each with its rule and what that costs against the ideal engine."""
    spec = case.load(model)
    found = _comparison(case, [(name, spec, {"engine": name}) for name in engines], keep_refused=True)
    rows = [
        row if row.size is None else replace(row, note=case.against_ideal(spec, row.size, engine=row.label))
        for row in found.rows
    ]
    return replace(found, rows=tuple(rows))


def _comparison(
    case: Case, entries: Sequence[tuple[str, ModelSpec, dict[str, Any]]], keep_refused: bool = False
) -> Comparison:
    """Return the sizes of labelled specs with changed arguments; errors name the label.

    With `keep_refused` what an engine does not do is a row without a size that says why, except as the baseline.
    """
    rows: list[Row] = []
    for label, spec, changes in entries:
        if any(row.label == label for row in rows):
            raise BadInput(f"'{label}' is listed twice")
        try:
            rows.append(Row(label, case.size(spec, **changes)))
        except (BadInput, UnsupportedByEngine) as error:
            if keep_refused and rows and isinstance(error, UnsupportedByEngine):
                rows.append(Row(label, None, str(error)))
                continue
            raise type(error)(str(error) if label in str(error) else f"{label}: {error}") from None
    return Comparison(case.context, case.batch, tuple(rows))


def kv_heads_of(choice: str, spec: ModelSpec) -> int:
    """Return kv_heads of `mha`, `gqa:N` or `mqa` in a model; BadInput for anything else."""
    if choice == "mqa":
        return 1
    if choice == "mha":
        return _heads(spec)
    kind, _, number = choice.partition(":")
    if kind == "gqa" and number.isascii() and number.isdecimal() and len(number) < 9 and int(number) >= 1:
        return int(number)
    raise BadInput(f"--attention '{choice}': write mha, mqa, or gqa with its kv heads, for example gqa:4")


def _heads(spec: ModelSpec) -> int:
    """Return the query heads of the layers with K and V heads; BadInput if there are none or several numbers."""
    heads = sorted({kind.heads for kind in head_kinds(spec)})
    if not heads:
        raise BadInput(f"{spec.name} has no layer with key and value heads (MLA and recurrent layers have none)")
    if len(heads) > 1:
        raise BadInput(f"mha: layers of {spec.name} have {' and '.join(map(str, heads))} heads; no one kv_heads is MHA")
    return heads[0]


# The remedies


def compare_remedies(model: str, case: Case) -> Comparison:
    """Return a model as it is, then with each remedy of the field and what it assumes.

    The ideal engine's options say what the remedies assume (`evict`, `shared_prefix`, `reserve_ctx`, `block_size`);
    the baseline has none of them. A remedy that does not apply is a row without a size.
    """
    if case.deployment.get("engine", "ideal") != "ideal":
        raise BadInput("--remedies are those of the ideal engine; drop --engine, or compare with --engines")
    given = dict(case.deployment.get("options") or {})
    find_engine("ideal").parse_options({name: str(value) for name, value in given.items()})  # refuses typing errors
    plain = replace(case, deployment={**case.deployment, "options": {}})
    spec = case.load(model)
    baseline = Row("baseline", plain.size(spec), _baseline_note(spec))
    attention = [_fewer_heads(spec, plain, "MQA"), _fewer_heads(spec, plain, "GQA")]
    formats = [
        _remedy(f"KV in {name}", spec, plain, f"{find_format(name).describe}; rounding is lossy", kv_dtype=name)
        for name in REMEDY_FORMATS
    ]
    allocation = [remedy(spec, plain, given) for remedy in (_evicted, _shared, _reserved, _paged)]
    rows = [*attention, *formats, *allocation]
    return Comparison(case.context, case.batch, (baseline, *(_unchanged(row, baseline) for row in rows)))


def _baseline_note(spec: ModelSpec) -> str:
    kinds = dict.fromkeys(group.kind.describe for group in spec.groups())
    return f"{spec.name} as published ({'; '.join(kinds)}); exact tokens, nothing shared or evicted"


def _remedy(label: str, spec: ModelSpec, case: Case, note: str, **changes: Any) -> Row:
    """Return the row of one remedy, without a size where the model or the engine refuses it."""
    try:
        return Row(label, case.size(spec, **changes), note)
    except KvcalcError as error:
        return _not_applicable(label, str(error))


def _not_applicable(label: str, why: str) -> Row:
    return Row(label, None, f"does not apply: {why}")


def _unchanged(row: Row, baseline: Row) -> Row:
    """Return the row with a word where the remedy changes nothing."""
    same = row.size is not None and baseline.size is not None and row.size.total_bytes == baseline.size.total_bytes
    return replace(row, note=f"{row.note}; changes nothing here") if same else row


def _fewer_heads(spec: ModelSpec, case: Case, name: str) -> Row:
    """Return MQA, or an example of GQA, where the model's layers do not have it already."""
    kinds = head_kinds(spec)
    groupings = {kind.grouping for kind in kinds}
    if name in groupings or (name == "GQA" and groupings == {"MQA"}):
        listed = " and ".join(str(number) for number in sorted({kind.kv_heads for kind in kinds}))
        return _not_applicable(name, f"{spec.name} has {listed} kv heads already")
    try:
        kv_heads = 1 if name == "MQA" else example_kv_heads(_heads(spec))
        changed = with_kv_heads(spec, kv_heads)
    except BadInput as error:
        return _not_applicable(name, str(error))
    if name == "GQA" and kv_heads == 1:
        return _not_applicable(name, f"no number between 1 and {_heads(spec)} divides the heads")
    return _remedy(name, changed, case, f"kv_heads {kv_heads} of {_heads(spec)} heads; the model must be trained so")


def _evicted(spec: ModelSpec, case: Case, given: Mapping[str, Any]) -> Row:
    """Return the cache with an eviction rule: as given, or a quarter of the context with four sinks."""
    rule = given.get("evict") or f"window:{max(case.context // 4 - REMEDY_SINKS, 1)},sinks:{REMEDY_SINKS}"
    note = f"{rule} in every layer that keeps more; the rest is forgotten"
    return _remedy("evicted", spec, case, note, options={"evict": rule})


def _shared(spec: ModelSpec, case: Case, given: Mapping[str, Any]) -> Row:
    """Return the cache with a shared prefix: as given, or half of the context."""
    prefix = given.get("shared_prefix") or case.context // 2
    if not prefix:
        return _not_applicable("shared prefix", "one token has no prefix")
    if case.batch == 1:
        return _not_applicable("shared prefix", "one sequence has no other to share with; --batch N takes more")
    note = f"the first {int(prefix):,} tokens are the same in all {case.batch:,} sequences and stored once"
    return _remedy("shared prefix", spec, case, note, options={"shared_prefix": prefix})


def _reserved(spec: ModelSpec, case: Case, given: Mapping[str, Any]) -> Row:
    """Return the cache reserved for the context given, or for the trained maximum."""
    trained = spec.max_context
    reserve = given.get("reserve_ctx") or (trained if trained and trained > case.context else None)
    if reserve is None:
        maximum = "unknown" if trained is None else f"{trained:,}, not above the context"
        return _not_applicable("reserved", f"the trained maximum is {maximum}; --reserve-ctx N reserves for N tokens")
    origin = "as given" if "reserve_ctx" in given else "the trained maximum"
    note = f"every sequence reserves {int(reserve):,} tokens ({origin}) from the start"
    return _remedy("reserved", spec, case, note, options={"reserve_ctx": reserve})


def _paged(spec: ModelSpec, case: Case, given: Mapping[str, Any]) -> Row:
    """Return the cache in whole blocks."""
    block = given.get("block_size", REMEDY_BLOCK)
    note = f"whole blocks of {block} tokens, at most {int(block) - 1} unused per sequence, instead of a reservation"
    return _remedy("paged", spec, case, note, options={"block_size": block})
