"""The answer to "does it fit": as data, and as the report that `kvcalc fit` prints."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kvcalc.capacity import Binding
from kvcalc.output import fold, render
from kvcalc.units import format_bytes, format_exact


@dataclass(frozen=True)
class Rung:
    """The largest batch at one context; None if there is no largest."""

    context: int
    max_batch: int | None


@dataclass(frozen=True)
class FitResult:
    """What fits into a budget. Sizes are exact integers in bytes; `str()` gives the report that the command prints.

    `max_batch` is the largest batch at `context` and `max_context` the largest context at `batch`, over all replicas;
    0 where none fits, None where there is no largest. `budget_bytes` is the memory for the cache on every rank.
    """

    model: str
    engine: str
    engine_version: str
    context: int
    batch: int
    dtype: str
    kv_dtype: str
    fits: bool
    max_batch: int | None
    max_context: int | None
    budget_bytes: int
    weights_bytes: int | None
    binding: Binding | None
    suggestions: tuple[str, ...]
    ladder: tuple[Rung, ...]
    engine_report: dict[str, Any] = field(default_factory=dict)
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
            "fits": self.fits,
            "max_batch": self.max_batch,
            "max_context": self.max_context,
            "budget_bytes": self.budget_bytes,
            "weights_bytes": self.weights_bytes,
            "binding": None if self.binding is None else self.binding.to_json(),
            "suggestions": list(self.suggestions),
            "ladder": [dict(vars(rung)) for rung in self.ladder],
            "engine_report": self.engine_report,
            "assumptions": list(self.assumptions),
            "warnings": list(self.warnings),
        }

    def report(self, units: str = "iec") -> str:
        """Return the report for people; running text folds at 78 columns."""
        engine = f"{self.engine} {self.engine_version}".strip()
        heading = f"{self.model}  context {self.context:,}, batch {self.batch:,}, KV {self.kv_dtype}, engine {engine}"
        lines = [
            fold(heading, hanging="  "),
            "",
            f"fits             {'yes' if self.fits else 'no'}",
            f"budget           {format_exact(self.budget_bytes, units)}, the cache's on every rank",
            f"largest batch    {_shown(self.max_batch)} at context {self.context:,}",
            f"largest context  {_shown(self.max_context)} at batch {self.batch:,}",
            fold(self._binding_text(units), "binding          ", " " * 17),
        ]
        lines += self._engine_lines() + self._ladder_lines()
        lines += [fold(f"instead: {text}", hanging="  ") for text in self.suggestions]
        lines += [fold(f"assumed: {text}", hanging="  ") for text in self.assumptions]
        return "\n".join(lines)

    __str__ = report

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
        lines = [f"log: {line}" for line in self.engine_report.get("log_lines", ())]
        if refusal := self.engine_report.get("admission_error"):
            lines.append(fold(f"{self.engine} refuses: {refusal}", hanging="  "))
        return ["", *lines] if lines else []

    def _ladder_lines(self) -> list[str]:
        rows = [{"context": f"{rung.context:,}", "largest batch": _shown(rung.max_batch)} for rung in self.ladder]
        return ["", render(rows, "table", aligned_right=("context", "largest batch")), ""]


def _shown(value: int | None) -> str:
    return "any" if value is None else f"{value:,}"
