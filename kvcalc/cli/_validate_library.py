"""`kvcalc validate --engine transformers`: the prediction against the cache objects of the library itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvcalc import api
from kvcalc.cli._compared import compared_rows
from kvcalc.measure.transformers_cache import Measured, measure_spec
from kvcalc.output import render
from kvcalc.units import format_exact

# A key of the engine's report, and what it is called here.
_FIGURES = {
    "storage_bytes": "storage",
    "after_decode_bytes": "after one more token",
    "after_decode_storage_bytes": "its storage",
    "growth_peak_bytes": "peak in between",
}


def validate(setup: api.Setup, context: int, batch: int) -> LibraryValidation:
    """Return the prediction of a prepared setup beside what the library holds."""
    predicted = api.measure(setup, context, batch)
    return LibraryValidation(predicted, measure_spec(setup.spec, setup.deployment, context, batch))


@dataclass(frozen=True)
class LibraryValidation:
    """A prediction beside the tensors and storages of the library's cache."""

    predicted: api.SizeResult
    found: Measured

    @property
    def equal(self) -> bool:
        """Whether every kind of layer, and every figure that was measured, is exactly what was predicted."""
        return all(row["predicted_bytes"] == row["allocated_bytes"] for row in (*self.rows(), *self.figures()))

    def rows(self) -> list[dict[str, Any]]:
        """Return the bytes of the cache's tensors by kind of layer, kinds that nobody predicted included."""
        return compared_rows(self.predicted.breakdown, dict(self.found.by_label))

    def figures(self) -> list[dict[str, Any]]:
        """Return the figures of the engine's report that were measured."""
        report = self.predicted.engine_report
        return [
            {"figure": key, "predicted_bytes": report[key], "allocated_bytes": measured}
            for key in _FIGURES
            if (measured := getattr(self.found, key)) is not None
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as JSON data."""
        size, found = self.predicted, self.found
        return {
            "schema": "kvcalc.validate/1",
            "model": size.model,
            "engine": {"name": size.engine, "version": size.engine_version},
            "device": found.device,
            "context": size.context,
            "batch": size.batch,
            "dtype": size.dtype,
            "kv_dtype": size.kv_dtype,
            "predicted_bytes": size.total_bytes,
            "allocated_bytes": found.total_bytes,
            "equal": self.equal,
            "tensors": len(found.tensors),
            "by_kind": self.rows(),
            "figures": self.figures(),
            "transformers_version": found.transformers_version,
            "torch_version": found.torch_version,
            "assumptions": list(size.assumptions),
            "warnings": list(size.warnings),
        }

    def report(self, units: str) -> str:
        """Return the comparison for people, the verdict in words."""
        size, found = self.predicted, self.found
        rows = [self._row(row["label"], row) for row in self.rows()]
        rows += [self._row(_FIGURES[row["figure"]], row) for row in self.figures()]
        lines = [
            size.heading,
            f"against transformers {found.transformers_version} with torch {found.torch_version}, on {found.device}",
            "",
            f"predicted  {format_exact(size.total_bytes, units)}",
            f"library    {format_exact(found.total_bytes, units)}  in {len(found.tensors):,} tensors",
            f"           {'equal, byte for byte' if self.equal else 'they differ'}",
            "",
            render(rows, "table", aligned_right=("predicted bytes", "library's bytes")),
        ]
        return "\n".join([*lines, *(f"assumed: {text}" for text in size.assumptions)])

    def _row(self, name: str, row: dict[str, Any]) -> dict[str, str]:
        return {
            "part": name,
            "predicted bytes": f"{row['predicted_bytes']:,}",
            "library's bytes": f"{row['allocated_bytes']:,}",
        }
