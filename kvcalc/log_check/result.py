"""The outcome of a log's check: as data, and as the report that `kvcalc validate --log` prints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvcalc.log_check.figures import Figure
from kvcalc.output import fold, printable, render


@dataclass(frozen=True)
class LogCheck:
    """Every figure of a log beside its prediction, the settings that were read from the log, and what was assumed."""

    model: str
    engine: str
    engine_version: str
    kv_dtype: str
    settings: dict[str, Any]
    figures: tuple[Figure, ...]
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def equal(self) -> bool | None:
        """Whether all that was compared agrees, as far as the printed digits tell; None where nothing was compared."""
        compared = [figure for figure in self.figures if figure.verdict != "not compared"]
        return all(figure.agrees for figure in compared) if compared else None

    @property
    def missing(self) -> str:
        """Say why nothing was compared: the reasons, each once."""
        reasons = dict.fromkeys(figure.note for figure in self.figures if figure.note)
        return "; ".join(reasons) or "the log has no figure of a cache"

    def rows(self) -> list[dict[str, Any]]:
        """Return the figures as rows."""
        return [
            {
                "figure": figure.name,
                "line": figure.line,
                "printed": figure.printed,
                "predicted": figure.predicted,
                "verdict": figure.verdict,
            }
            for figure in self.figures
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the outcome as JSON data."""
        return {
            "schema": "kvcalc.validate_log/1",
            "engine": {"name": self.engine, "version": self.engine_version},
            "model": self.model,
            "kv_dtype": self.kv_dtype,
            "settings": self.settings,
            "equal": self.equal,
            "figures": [
                {
                    "name": figure.name,
                    "line": figure.line,
                    "printed": figure.printed,
                    "predicted": figure.predicted,
                    "verdict": figure.verdict,
                    "note": figure.note,
                }
                for figure in self.figures
            ],
            "assumptions": list(self.assumptions),
            "warnings": list(self.warnings),
        }

    def report(self) -> str:
        """Return the report for people; remarks on single figures stand below the table, by their lines."""
        lines = [fold(f"{self.model}, KV {self.kv_dtype}, as {self.engine} {self.engine_version}", hanging="  ")]
        lines += [fold(f"from the log: {self._settings()}", hanging="  "), ""]
        rows = [{**row, "line": f"{row['line']:,}"} for row in self.rows()]
        lines += [render(rows, "table", aligned_right=("line", "printed", "predicted")), "", self._verdict()]
        lines += [
            fold(f"line {figure.line:,}, {figure.name}: {printable(figure.note)}", hanging="  ")
            for figure in self.figures
            if figure.note
        ]
        lines += [fold(f"assumed: {text}", hanging="  ") for text in self.assumptions]
        return "\n".join(lines)

    __str__ = report

    def _settings(self) -> str:
        given = {**self.settings, **self.settings["options"]}
        shown = {key: value for key, value in given.items() if key != "options" and value is not None}
        return ", ".join(f"{key} {value}" for key, value in shown.items())

    def _verdict(self) -> str:
        counts = dict.fromkeys(("equal", "within rounding", "differs", "not compared"), 0)
        for figure in self.figures:
            counts[figure.verdict] += 1
        told = [f"{count} {verdict}" for verdict, count in counts.items() if count]
        return f"{len(self.figures)} figure{'s' * (len(self.figures) != 1)}: {', '.join(told)}"
