"""The library's front door: names and options in, typed results out. The command line and Python users call this."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcalc.engines._base import Deployment
from kvcalc.errors import UnsupportedByEngine
from kvcalc.footprint import Retention
from kvcalc.output import fold
from kvcalc.prepared import Setup, check, load, prepare, warnings
from kvcalc.spec.kinds import CacheEntry
from kvcalc.spec.model import ModelSpec
from kvcalc.units import format_bytes, format_exact, format_percent

if TYPE_CHECKING:  # `size` starts without what only `fit` and `validate` need
    from kvcalc.fit_result import FitResult
    from kvcalc.measure.cache import CacheTensor

__all__ = [
    "BreakdownRow",
    "Setup",
    "SizeResult",
    "cache_tensors",
    "check",
    "fit",
    "load",
    "measure",
    "per_token_bytes",
    "prepare",
    "size",
    "warnings",
]


@dataclass(frozen=True)
class BreakdownRow:
    """The bytes of one named kind of layer, over all ranks and sequences."""

    label: str
    kind: str
    layers: int
    bytes: int
    detail: str


@dataclass(frozen=True)
class SizeResult:
    """What one cache takes. Sizes are exact integers in bytes; `str()` gives the report that the command prints.

    `total_bytes` counts all ranks and sequences, `per_sequence_bytes` is the same for batch 1, and `per_token_bytes`
    is what the next token of one sequence adds, unrounded, in the layers that still grow.
    """

    model: str
    engine: str
    engine_version: str
    context: int
    batch: int
    dtype: str
    kv_dtype: str
    per_token_bytes: int
    per_sequence_bytes: int
    total_bytes: int
    per_rank_bytes: tuple[int, ...]
    weights_bytes: int | None
    weights_note: str
    cache_passes_weights_at: int | None
    trained_context: int | None
    breakdown: tuple[BreakdownRow, ...]
    engine_report: dict[str, Any] = field(default_factory=dict)
    log_lines: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON data with the stable keys of `kvcalc size --json`."""
        rows = [
            {"label": row.label, "kind": row.kind, "layers": row.layers, "bytes": row.bytes} for row in self.breakdown
        ]
        return {
            "schema": "kvcalc.size/1",
            "model": self.model,
            "engine": {"name": self.engine, "version": self.engine_version},
            "context": self.context,
            "batch": self.batch,
            "dtype": self.dtype,
            "kv_dtype": self.kv_dtype,
            "per_token_bytes": self.per_token_bytes,
            "per_sequence_bytes": self.per_sequence_bytes,
            "total_bytes": self.total_bytes,
            "per_rank_bytes": list(self.per_rank_bytes),
            "weights_bytes": self.weights_bytes,
            "weights_note": self.weights_note or None,
            "cache_passes_weights_at": self.cache_passes_weights_at,
            "trained_context": self.trained_context,
            "breakdown": rows,
            "engine_report": self.engine_report,
            "log_lines": list(self.log_lines),
            "assumptions": list(self.assumptions),
            "warnings": list(self.warnings),
        }

    @property
    def heading(self) -> str:
        """The question in one line: model, context, batch, the cache's format, the engine."""
        engine = f"{self.engine} {self.engine_version}".strip()
        return f"{self.model}  context {self.context:,}, batch {self.batch:,}, KV {self.kv_dtype}, engine {engine}"

    def report(self, units: str = "iec") -> str:
        """Return the report for people, every main figure with its exact bytes; running text folds at 78 columns."""
        lines = [
            fold(self.heading, hanging="  "),
            "",
            f"KV cache      {format_exact(self.total_bytes, units)}",
            f"per sequence  {format_exact(self.per_sequence_bytes, units)}",
            f"per token     {format_exact(self.per_token_bytes, units)}",
        ]
        lines += self._rank_lines(units) + self._breakdown_lines(units) + self._engine_lines(units)
        lines += self._weights_lines(units)
        lines += [f"log: {line}" for line in self.log_lines]
        lines += [fold(f"assumed: {text}", hanging="  ") for text in self.assumptions]
        return "\n".join(lines)

    def __str__(self) -> str:
        """The report with the warnings, which the command prints apart."""
        return "\n".join([self.report(), *(fold(f"warning: {text}", hanging="  ") for text in self.warnings)])

    def _rank_lines(self, units: str) -> list[str]:
        """The ranks, equal neighbours on one line."""
        if len(self.per_rank_bytes) == 1:
            return []
        lines, start = ["", f"ranks ({len(self.per_rank_bytes)}, listed dp, pp, tp)"], 0
        for index in range(1, len(self.per_rank_bytes) + 1):
            if index == len(self.per_rank_bytes) or self.per_rank_bytes[index] != self.per_rank_bytes[start]:
                name = f"{start}" if index - start == 1 else f"{start}-{index - 1}"
                each = "" if index - start == 1 else " each"
                lines.append(f"  {name:<11} {format_exact(self.per_rank_bytes[start], units)}{each}")
                start = index
        return lines

    def _breakdown_lines(self, units: str) -> list[str]:
        """The kinds of layer: layers, bytes, share, and what such a layer is."""
        label_width = max((len(row.label) for row in self.breakdown), default=0)
        sizes = [format_bytes(row.bytes, units) for row in self.breakdown]
        width = max(map(len, sizes), default=0)
        lines = ["", "by kind of layer"]
        for row, size_ in zip(self.breakdown, sizes, strict=True):
            layers = f"{row.layers:>4} layer{'s' if row.layers != 1 else ' '}" if row.layers else " " * 11
            share = format_percent(row.bytes, self.total_bytes)
            columns = f"  {row.label:<{label_width}} {layers}  {size_:>{width}}  {share:>7}  "
            lines.append(fold(row.detail, columns, " " * len(columns)))
        return lines

    def _engine_lines(self, units: str) -> list[str]:
        """The engine's own figures, without those that only repeat the total; lists are left to JSON."""
        shown = {
            name.removesuffix("_bytes").replace("_", " "): (
                format_exact(value, units) if name.endswith("_bytes") else f"{value:,}"
            )
            for name, value in self.engine_report.items()
            if type(value) is int and not (name.endswith("_bytes") and value in (0, self.total_bytes))
        }
        width = max(map(len, shown), default=0)
        lines = [f"  {name:<{width}}  {text}" for name, text in shown.items()]
        return ["", f"as {self.engine} counts it", *lines] if lines else []

    def _weights_lines(self, units: str) -> list[str]:
        """The weights, and the context at which the cache outgrows them."""
        if self.weights_bytes is None:
            why = self.weights_note or "the spec gives no parameter count"
            return ["", fold(f"unknown ({why})", "weights       ", " " * 14)]
        note = f", {self.weights_note}" if self.weights_note else ""
        lines = ["", fold(f"{format_exact(self.weights_bytes, units)}{note}", "weights       ", " " * 14)]
        passes = self.cache_passes_weights_at
        if passes is None:
            text = f"at batch {self.batch:,} the cache never passes the weights"
        else:
            beyond = self.trained_context is not None and passes > self.trained_context
            note = f", beyond the trained {self.trained_context:,}" if beyond else ""
            text = f"at batch {self.batch:,} the cache passes them at context {passes:,}{note}"
        return [*lines, fold(text, " " * 14)]


def size(
    model: str | Path | ModelSpec,
    *,
    context: int,
    batch: int = 1,
    engine: str = "ideal",
    dtype: str | None = None,
    kv_dtype: str | None = None,
    weights: str | None = None,
    tp: int = 1,
    pp: int = 1,
    dp: int = 1,
    dcp: int = 1,
    encoder_context: int | None = None,
    options: Mapping[str, object] | None = None,
    download: bool = False,
) -> SizeResult:
    """Return the bytes of the cache of `batch` sequences of `context` tokens; arguments as for `prepare`.

    >>> import kvcalc
    >>> kvcalc.size("gpt2-small", context=4096, batch=8).total_bytes
    1207959552
    """
    setup = prepare(
        model,
        engine=engine,
        dtype=dtype,
        kv_dtype=kv_dtype,
        weights=weights,
        tp=tp,
        pp=pp,
        dp=dp,
        dcp=dcp,
        encoder_context=encoder_context,
        options=options,
        download=download,
    )
    return measure(setup, context, batch)


def measure(setup: Setup, context: int, batch: int) -> SizeResult:
    """Return the size of a prepared setup at one context and batch."""
    check(setup, context, batch)
    spec, placement = setup.spec, setup.placement
    per_rank = placement.per_rank_bytes(context, batch)
    uneven = batch % placement.dp
    replicas = (
        (f"each of the {placement.dp} replicas provides for {_sequences(placement.local_batch(batch))}",)
        if uneven
        else ()
    )
    return SizeResult(
        model=spec.name,
        engine=setup.engine.name,
        engine_version=setup.engine.version,
        context=context,
        batch=batch,
        dtype=setup.deployment.dtype.name,
        kv_dtype=setup.kv_dtype,
        per_token_bytes=per_token_bytes(setup, context),
        per_sequence_bytes=placement.total_bytes(context, 1),
        total_bytes=sum(per_rank),
        per_rank_bytes=per_rank,
        weights_bytes=setup.weights_bytes(),
        weights_note=_weights_note(setup),
        cache_passes_weights_at=_passes_weights_at(setup, batch),
        trained_context=spec.max_context,
        breakdown=_breakdown(setup, context, batch),
        engine_report=setup.engine.report(spec, setup.deployment, context, batch, placement),
        log_lines=setup.engine.log_lines(spec, setup.deployment, context, batch),
        assumptions=setup.assumptions + replicas,
        warnings=warnings(spec, context),
    )


def fit(
    model: str | Path | ModelSpec,
    *,
    kv_memory: int | None = None,
    gpu: str | None = None,
    gpus: int | tuple[int, int] | None = None,
    context: int | None = None,
    batch: int = 1,
    engine: str = "ideal",
    dtype: str | None = None,
    kv_dtype: str | None = None,
    weights: str | None = None,
    tp: int | None = None,
    pp: int | None = None,
    dp: int | None = None,
    dcp: int = 1,
    encoder_context: int | None = None,
    options: Mapping[str, object] | None = None,
    download: bool = False,
    utilization: str | None = None,
    overhead: int | None = None,
    overhead_parts: Mapping[str, int] | None = None,
    memory_reserve: int = 0,
    log: str | None = None,
    lengths: str | None = None,
    draft: str | Path | ModelSpec | None = None,
    emit: bool = False,
) -> FitResult:
    """Return what `kv_memory` bytes for the cache on every rank hold, or a GPU beside the weights and the overhead.

    `gpus` is a number of GPUs or a range (first, last) of which the smallest layout that fits is searched; the degrees
    tp, pp and dp that are given are kept. `overhead` replaces all of the estimated overhead of a GPU, `overhead_parts`
    some parts, `log` (the text of a server's log) those that it prints; `memory_reserve` is what others use of it.
    `lengths` (two quantiles or a CSV file) asks for the real load too, `emit` for a server's command line. `context`
    is the trained maximum unless given; other arguments as for `prepare`.

    >>> import kvcalc
    >>> kvcalc.fit("llama-3.1-8b", kv_memory=16 * 2**30, context=8192).max_batch
    16
    """
    from kvcalc.answer import answer, counts_of, memory_of
    from kvcalc.fitting import Question

    spec = model if isinstance(model, ModelSpec) else load(model, download=download)
    second = draft if draft is None or isinstance(draft, ModelSpec) else load(draft, download=download)
    memory = memory_of(
        kv_memory,
        gpu,
        utilization=utilization,
        overhead=overhead,
        overhead_parts=overhead_parts,
        reserve=memory_reserve,
        log=log,
    )
    fixed = {name: value for name, value in (("tp", tp), ("pp", pp), ("dp", dp)) if value is not None}
    arguments = {
        "engine": engine,
        "dtype": dtype,
        "kv_dtype": kv_dtype,
        "weights": weights,
        "dcp": dcp,
        "encoder_context": encoder_context,
        "options": options or {},
        **fixed,
    }
    question = Question(spec, arguments, context, batch, memory, second)
    return answer(question, counts=counts_of(gpus), fixed=fixed, lengths=lengths, emit=emit)


def _sequences(count: int) -> str:
    return f"{count:,} sequence{'' if count == 1 else 's'}"


def per_token_bytes(setup: Setup, context: int) -> int:
    """Return the unrounded bytes that token context + 1 of one sequence adds, over the ranks of its replica."""
    growth = sum(rank.held.growth(context) for rank in setup.placement.ranks)
    return int(growth)


def cache_tensors(setup: Setup, context: int, batch: int) -> tuple[CacheTensor, ...]:
    """Return every tensor that the cache of `batch` sequences of `context` tokens consists of, layer by layer.

    Written from what the kinds keep, not from the placement's terms, so that the two can be held against each other.
    Covers the ideal engine on one device and without remedies; UnsupportedByEngine for anything else.
    """
    _require_plain_ideal(setup)
    check(setup, context, batch)
    return tuple(
        _cache_tensor(group.name, entry, setup.deployment, context, batch)
        for group in setup.spec.groups()
        for _ in group.indices
        for entry in group.kind.entries()
    )


def _require_plain_ideal(setup: Setup) -> None:
    """Raise UnsupportedByEngine unless one device holds exactly the tokens that the layers need."""
    deployment = setup.deployment
    if setup.engine.name != "ideal":
        raise UnsupportedByEngine(
            f"only the ideal engine's cache can be laid out as tensors, not {setup.engine.name}'s"
        )
    for name in sorted(deployment.options.model_fields_set):
        if getattr(deployment.options, name) != type(deployment.options).model_fields[name].default:
            raise UnsupportedByEngine(f"a cache laid out as tensors has no {name}; drop it")
    for name in ("tp", "pp", "dp"):
        if getattr(deployment, name) > 1:
            raise UnsupportedByEngine(
                f"a cache laid out as tensors lies on one device; drop {name} {getattr(deployment, name)}"
            )


# torch's name of every format that it has; the others are laid out as rows of bytes.
_TORCH_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp8": "float8_e4m3fn"}


def _cache_tensor(label: str, entry: CacheEntry, deployment: Deployment[Any], context: int, batch: int) -> CacheTensor:
    """Return the tensor of one entry in one layer: [batch, positions kept, axes...], a state without positions."""
    from kvcalc.measure.cache import CacheTensor

    stored = deployment.format_of(entry)
    kept = _positions(entry.retention, context)
    leading = (batch,) if kept is None else (batch, kept)
    if stored.name in _TORCH_DTYPES:
        return CacheTensor(label, (*leading, *(size for _, size in entry.axes)), _TORCH_DTYPES[stored.name])
    rows = tuple(size for _, size in entry.rows)
    return CacheTensor(label, (*leading, *rows, stored.row_bytes(entry.row_elements)), "uint8")


def _positions(retention: Retention, context: int) -> int | None:
    """Return how many positions of a sequence of `context` tokens a layer keeps; None for a state, which has none."""
    size = retention.size
    return {
        "all": context,
        "window": min(context, size),
        "chunk": (context - 1) % max(size, 1) + 1,
        "state": None,
        "encoder": size,
        "compressed": context // max(size, 1),
        "remainder": context % max(size, 1),
        "onset": int(context >= size),
    }[retention.rule]


def _breakdown(setup: Setup, context: int, batch: int) -> tuple[BreakdownRow, ...]:
    """Return the bytes by named kind, over all ranks; kinds that keep nothing are listed with 0."""
    placement = setup.placement
    local, totals = placement.local_batch(batch), dict[str, int]()
    for rank in placement.ranks:
        for label, size_ in rank.admitted.by_label(context, local).items():
            totals[label] = totals.get(label, 0) + size_ * placement.dp
    rows = [
        BreakdownRow(group.name, group.kind.name, len(group.indices), totals.pop(group.name, 0), group.kind.describe)
        for group in setup.spec.groups()
    ]
    rows += [BreakdownRow(label, "engine", 0, size_, "held by the engine itself") for label, size_ in totals.items()]
    empty = setup.spec.empty_layers()
    if empty:
        rows.append(BreakdownRow("none", "none", empty, 0, "MLP only, keeps nothing"))
    return tuple(rows)


def _passes_weights_at(setup: Setup, batch: int) -> int | None:
    """Return the smallest context at which one replica's cache is larger than its weights; None if none is."""
    weights = setup.weights_bytes()
    if weights is None:
        return None
    largest = setup.placement.whole().max_tokens(weights, setup.placement.local_batch(batch))
    return None if largest is None else largest + 1


def _weights_note(setup: Setup) -> str:
    """Return where the bytes of the weights come from, or why they are unknown; nothing for parameters x format."""
    from_parameters = not setup.weights_from_file and setup.spec.weights_bytes is not None
    return "" if from_parameters and setup.spec.parameters is not None else setup.spec.weights_note
