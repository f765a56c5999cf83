"""The answer to "does it fit": as data, and as the report that `kvcalc fit` prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvcalc.capacity import Binding
from kvcalc.lengths import SAFE, Load
from kvcalc.memory import MemoryReport
from kvcalc.output import fold, render
from kvcalc.units import format_bytes, format_exact, format_percent


@dataclass(frozen=True)
class Rung:
    """The largest batch at one context; None if there is no largest."""

    context: int
    max_batch: int | None

    def to_json(self) -> dict[str, Any]:
        """Return the rung as JSON data."""
        return dict(vars(self))


@dataclass(frozen=True)
class Interval:
    """What fits with the most and with the least that was seen beside the cache."""

    fits: tuple[bool, bool]
    max_batch: tuple[int | None, int | None]
    max_context: tuple[int | None, int | None]

    def to_json(self) -> dict[str, Any]:
        """Return the interval as JSON data, the smaller answers first."""
        return {name: list(pair) for name, pair in vars(self).items()}


@dataclass(frozen=True)
class Suggestion:
    """The least change of one kind: what to write, and what then fits; `helps` is false where no such change does."""

    kind: str
    change: str
    helps: bool
    text: str
    max_batch: int | None = None
    max_context: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the suggestion as JSON data."""
        return dict(vars(self))


@dataclass(frozen=True)
class Layout:
    """One way to split a model over GPUs, and whether it fits; `why` says what is in the way."""

    tp: int
    pp: int
    dp: int
    fits: bool
    max_batch: int | None
    why: str = ""

    @property
    def gpus(self) -> int:
        """GPUs that it takes."""
        return self.tp * self.pp * self.dp

    def to_json(self) -> dict[str, Any]:
        """Return the layout as JSON data."""
        return {"gpus": self.gpus, **vars(self)}


@dataclass(frozen=True)
class FitResult:
    """What fits into a budget. Sizes are exact integers in bytes; `str()` gives the report that the command prints.

    `max_batch` is the largest batch at `context` and `max_context` the largest context at `batch`, over all replicas;
    0 where none fits, None where there is no largest. `budget_bytes` is the memory for the cache on the rank that has
    the least of it (negative where weights and overhead exceed the GPU), `weights_bytes` one copy of the weights, None
    where the budget is the cache's alone. `memory` says how a GPU's memory divides, `interval` how far the answers
    move with the estimates, `layouts` which ways of splitting were tried.
    """

    model: str
    engine: str
    engine_version: str
    context: int
    batch: int
    dtype: str
    kv_dtype: str
    weights_format: str
    tp: int
    pp: int
    dp: int
    fits: bool
    max_batch: int | None
    max_context: int | None
    trained_context: int | None
    budget_bytes: int
    weights_bytes: int | None
    binding: Binding | None
    suggestions: tuple[Suggestion, ...]
    ladder: tuple[Rung, ...]
    engine_report: dict[str, Any] = field(default_factory=dict)
    memory: MemoryReport | None = None
    interval: Interval | None = None
    layouts: tuple[Layout, ...] = ()
    load: Load | None = None
    offload: tuple[dict[str, Any], ...] = ()
    command: str = ""
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON data with the stable keys of `kvcalc fit --json`."""
        return {
            "schema": "kvcalc.fit/1",
            "model": self.model,
            "engine": {"name": self.engine, "version": self.engine_version},
            "context": self.context,
            "batch": self.batch,
            "dtype": self.dtype,
            "kv_dtype": self.kv_dtype,
            "weights": self.weights_format,
            "tp": self.tp,
            "pp": self.pp,
            "dp": self.dp,
            "fits": self.fits,
            "max_batch": self.max_batch,
            "max_context": self.max_context,
            "trained_context": self.trained_context,
            "budget_bytes": self.budget_bytes,
            "weights_bytes": self.weights_bytes,
            "binding": None if self.binding is None else self.binding.to_json(),
            "suggestions": [suggestion.to_json() for suggestion in self.suggestions],
            "ladder": [rung.to_json() for rung in self.ladder],
            "engine_report": self.engine_report,
            "memory": None if self.memory is None else self.memory.to_json(),
            "interval": None if self.interval is None else self.interval.to_json(),
            "layouts": [layout.to_json() for layout in self.layouts],
            "load": None if self.load is None else self.load.to_json(),
            "offload": list(self.offload),
            "command": self.command or None,
            "assumptions": list(self.assumptions),
            "warnings": list(self.warnings),
        }

    def report(self, units: str = "iec") -> str:
        """Return the report for people; running text folds at 78 columns."""
        return "\n\n".join("\n".join(block) for block in self._blocks(units) if block)

    __str__ = report

    def _blocks(self, units: str) -> Iterator[list[str]]:
        engine = f"{self.engine} {self.engine_version}".strip()
        heading = f"{self.model}  context {self.context:,}, batch {self.batch:,}, KV {self.kv_dtype}, engine {engine}"
        yield [fold(heading, hanging="  ")]
        yield self._answer_lines(units)
        yield _memory_lines(self.memory, units) if self.memory else []
        yield self._engine_lines()
        yield _load_lines(self.load) if self.load else []
        yield self._ladder_lines()
        yield _layout_lines(self.layouts)
        yield _offload_lines(self.offload)
        notes = [fold(f"instead: {each.text}", hanging="  ") for each in self.suggestions]
        yield [*notes, *(fold(f"assumed: {text}", hanging="  ") for text in self.assumptions)]

    def _answer_lines(self, units: str) -> list[str]:
        """Whether it fits, the two largest, and what binds; behind them how far the estimates move the answers."""
        interval = self.interval
        certain = "" if interval is None or interval.fits[0] == interval.fits[1] else _uncertain(self.fits)
        batches = _between(interval.max_batch if interval else None, self.max_batch)
        contexts = _between(interval.max_context if interval else None, self.max_context)
        return [
            fold(f"{'yes' if self.fits else 'no'}{certain}", "fits             ", " " * 17),
            f"budget           {format_exact(self.budget_bytes, units)}, the cache's on {self._whose()}",
            f"largest batch    {_shown(self.max_batch)} at context {self.context:,}{batches}",
            f"largest context  {_shown(self.max_context)} at batch {self.batch:,}{contexts}{self._beyond_training()}",
            fold(self._binding_text(units), "binding          ", " " * 17),
        ]

    def _beyond_training(self) -> str:
        """Where the largest context is more than the model was trained for."""
        if self.max_context is None or self.trained_context is None or self.max_context <= self.trained_context:
            return ""
        return f"\n                 beyond the trained {self.trained_context:,}"

    def _whose(self) -> str:
        return "every rank" if self.memory is None else f"rank {self.memory.rank}"

    def _binding_text(self, units: str) -> str:
        """Where the cache ends, and what is left or missing there."""
        binding = self.binding
        if binding is None:
            return "nothing: the cache takes no memory"
        pool = "" if binding.pool is None else f", pool {binding.pool}"
        needed, spare = format_bytes(binding.needed_bytes, units), format_bytes(abs(binding.spare_bytes), units)
        rest = "to spare" if binding.spare_bytes >= 0 else "missing"
        return f"rank {binding.rank} (pp {binding.pp}, tp {binding.tp}){pool}: {needed} needed, {spare} {rest}"

    def _engine_lines(self) -> list[str]:
        """What the engine itself would say: the lines of its log, or the error with which it refuses."""
        if self.budget_bytes < 0:
            return []  # it does not come so far: the weights do not load
        lines = [f"log: {line}" for line in self.engine_report.get("log_lines", ())]
        if refusal := self.engine_report.get("admission_error"):
            lines.append(fold(f"{self.engine} refuses: {refusal}", hanging="  "))
        return lines

    def _ladder_lines(self) -> list[str]:
        rows = [{"context": f"{rung.context:,}", "largest batch": _shown(rung.max_batch)} for rung in self.ladder]
        return [render(rows, "table", aligned_right=("context", "largest batch"))] if rows else []


def _uncertain(fits: bool) -> str:
    return (
        ", but not with the most overhead that was seen" if fits else ", except with the least overhead that was seen"
    )


def _between(pair: tuple[int | None, int | None] | None, value: int | None) -> str:
    """Return the interval of an answer in brackets; nothing where it is a point."""
    if pair is None or pair == (value, value):
        return ""
    return f"  ({_shown(pair[0])} to {_shown(pair[1])})"


def _memory_lines(memory: MemoryReport, units: str) -> list[str]:
    """How the memory of one GPU divides: what is handed out, weights, each part of the overhead, what is left."""
    budget, cache = memory.budget, memory.cache
    count = f", {memory.gpus} of them" if memory.gpus > 1 else ""
    share = "" if budget.share == 1 else f"; the engine takes {format_percent(*budget.share.as_integer_ratio())}"
    basis = {"measured": "seen"}.get(memory.runtime_basis, memory.runtime_basis)
    rows = [_memory_row("handed out", memory.runtime_bytes, units, basis)]
    if memory.reserve_bytes:
        rows.append(_memory_row("reserve", -memory.reserve_bytes, units, "given"))
    rows.append(_memory_row("weights", -budget.weights_bytes, units))
    for part in budget.overhead.parts:
        where = part.basis if part.inside or budget.share == 1 else f"{part.basis}, beside the share"
        rows.append(_memory_row(part.name, -part.typical_bytes, units, where, (part.low_bytes, part.high_bytes)))
    rows.append(_memory_row("cache", cache.typical, units, "", (cache.low, cache.high)))
    head = fold(f"{memory.gpu}{count}, rank {memory.rank}{share}", hanging="  ")
    return [head, render(rows, "table", aligned_right=("typical", "seen"))]


def _memory_row(
    part: str, typical: int, units: str, basis: str = "", seen: tuple[int, int] | None = None
) -> dict[str, str]:
    """Return one line of the division; the spread is left out where there is none."""

    def text(size: int) -> str:
        return f"{size:,}" if units == "bytes" else format_bytes(size, units)

    spread = "" if seen is None or seen[0] == seen[1] else f"{text(seen[0])} to {text(seen[1])}"
    return {"part": part, "typical": text(typical), "seen": spread, "from": basis}


def _load_lines(load: Load) -> list[str]:
    """How many sequences of mixed lengths fit, and what the words mean."""
    cut = float(load.clipped_share)
    lines = [
        f"lengths          {load.source}, mean {float(load.mean_tokens):,.0f} tokens",
        f"expected         {_shown(load.expected)} sequences: the budget over the mean bytes of one",
        f"safe             {_shown(load.safe)} sequences: so many fit with a probability of {float(SAFE):.0%}",
    ]
    if cut:
        lines.append(f"cut              {cut:.3%} of the sequences at {load.longest:,} tokens")
    return [fold(line, hanging=" " * 17) for line in lines]


def _layout_lines(layouts: Sequence[Layout]) -> list[str]:
    """The layouts that were tried, smallest first."""
    rows = [
        {
            "gpus": each.gpus,
            "tp": each.tp,
            "pp": each.pp,
            "dp": each.dp,
            "batch": "-" if each.max_batch is None and not each.fits else _shown(each.max_batch),
            "": "fits" if each.fits else each.why.split(";", maxsplit=1)[0],
        }
        for each in layouts
    ]
    return [render(rows, "table", aligned_right=("gpus", "tp", "pp", "dp", "batch"))] if rows else []


def _offload_lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What llama.cpp could do with other cache types and fewer layers on the GPU."""
    cells = [
        {
            "KV": row["kv_dtype"],
            "context with all layers": _shown(row["max_context_all_layers"]),
            "-ngl at the context": "none" if row["n_gpu_layers"] is None else f"{row['n_gpu_layers']}",
        }
        for row in rows
    ]
    return [render(cells, "table", aligned_right=list(cells[0])[1:])] if cells else []


def _shown(value: int | None) -> str:
    return "any" if value is None else f"{value:,}"
