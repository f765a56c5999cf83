"""`kvcalc validate --engine llama.cpp`: the predicted log lines against those of llama.cpp's own library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from kvcalc import api
from kvcalc.engines import llama_cpp, ollama
from kvcalc.engines._llama_cpp.placement import Memory
from kvcalc.measure.llama_cpp import Comparison, compare
from kvcalc.units import format_exact

_MEMORY: dict[str, Callable[..., Memory]] = {"llama.cpp": llama_cpp.memory_of, "ollama": ollama.memory_of}


def validate(setup: api.Setup, context: int, batch: int) -> LlamaCppValidation:
    """Return the prediction of a prepared setup beside what llama.cpp prints for the same model."""
    predicted = api.measure(setup, context, batch)
    found = _MEMORY[setup.engine.name](setup.spec, setup.deployment)
    sized = found.settings.rule.context(context, setup.placement.local_batch(batch))
    return LlamaCppValidation(predicted, compare(setup.spec, found, sized))


@dataclass(frozen=True)
class LlamaCppValidation:
    """A prediction beside the lines that the library printed, on the CPU and without allocating the cache."""

    predicted: api.SizeResult
    compared: Comparison

    @property
    def equal(self) -> bool:
        """Whether every line is exactly what was predicted."""
        return self.compared.equal

    def rows(self) -> list[dict[str, Any]]:
        """Return the lines side by side."""
        pairs = zip_longest(self.compared.predicted, self.compared.printed, fillvalue="")
        return [
            {"predicted": predicted, "printed": printed, "equal": predicted == printed} for predicted, printed in pairs
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as JSON data."""
        size = self.predicted
        return {
            "schema": "kvcalc.validate/1",
            "model": size.model,
            "engine": {"name": size.engine, "version": size.engine_version},
            "device": "cpu",
            "context": size.context,
            "batch": size.batch,
            "dtype": size.dtype,
            "kv_dtype": size.kv_dtype,
            "predicted_bytes": size.total_bytes,
            "equal": self.equal,
            "lines": self.rows(),
            "library": self.compared.library,
            "assumptions": list(size.assumptions),
            "warnings": list(size.warnings),
        }

    def report(self, units: str) -> str:
        """Return the comparison for people: the lines, those that differ twice, and the verdict in words."""
        size = self.predicted
        lines = [size.heading, f"against {self.compared.library}, on the CPU, the cache simulated by the library", ""]
        for row in self.rows():
            if row["equal"]:
                lines.append(f"= {row['printed']}")
            else:
                lines += [f"- {row['predicted']}", f"+ {row['printed']}"]
        verdict = "equal, line for line" if self.equal else "they differ (- predicted, + printed)"
        lines += ["", f"predicted  {format_exact(size.total_bytes, units)}", f"library    {verdict}"]
        return "\n".join([*lines, *(f"assumed: {text}" for text in size.assumptions)])
