"""What a derivation is, as data and as text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvcalc.api import SizeResult
from kvcalc.output import fold, unbroken
from kvcalc.units import format_bytes, format_exact, format_ratio

# The label of steps that add up kinds of layer, sequences or ranks.
TOTAL = "total"


@dataclass(frozen=True)
class Step:
    """One line of a derivation: of which kind of layer (or `total`), what, from which numbers, how many bytes."""

    label: str
    text: str
    formula: str
    bytes: int

    def report(self, number: int, units: str) -> str:
        """Return the numbered step on two lines or more."""
        readable = "" if units == "bytes" or abs(self.bytes) < 1000 else f" ({format_bytes(self.bytes, units)})"
        result = f"{self.formula} = {unbroken(f'{self.bytes:,} bytes{readable}')}"
        return "\n".join((fold(f"{number:>3}. {self.text}", hanging="     "), fold(result, "       ", "         ")))


@dataclass(frozen=True)
class Section:
    """The steps of one kind of layer on one kind of rank, or those that add everything up."""

    title: str
    note: str
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Attention:
    """What the cache takes with some number of key and value heads; `kv_heads` is None where layers differ."""

    name: str
    kv_heads: int | None
    total_bytes: int
    is_model: bool


@dataclass(frozen=True)
class Explanation:
    """A derivation that ends in `size.total_bytes`; `str()` gives the text that the command prints."""

    size: SizeResult
    settings: tuple[str, ...]
    sections: tuple[Section, ...]
    attention: tuple[Attention, ...]
    attention_note: str
    remarks: tuple[str, ...]
    sources: tuple[str, ...]

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps in order."""
        return tuple(step for section in self.sections for step in section.steps)

    def to_json(self) -> dict[str, Any]:
        """Return the derivation as JSON data with the stable keys of `kvcalc explain --json`."""
        size = self.size
        return {
            "schema": "kvcalc.explain/1",
            "model": size.model,
            "engine": {"name": size.engine, "version": size.engine_version},
            "context": size.context,
            "batch": size.batch,
            "dtype": size.dtype,
            "kv_dtype": size.kv_dtype,
            "settings": list(self.settings),
            "steps": [vars(step) for step in self.steps],
            "total_bytes": size.total_bytes,
            "remarks": list(self.remarks),
            "attention": [vars(row) for row in self.attention],
            "attention_note": self.attention_note,
            "sources": list(self.sources),
            "assumptions": list(size.assumptions),
            "warnings": list(size.warnings),
        }

    def report(self, units: str = "iec") -> str:
        """Return the derivation for people, folded at 78 columns."""
        parts = [fold(self.size.heading, hanging="  "), *(fold(text) for text in self.settings)]
        done = 0
        for section in self.sections:
            parts += ["", fold(section.title, hanging="  ")]
            parts += [fold(section.note, "  ")] if section.note else []
            parts += [step.report(number, units) for number, step in enumerate(section.steps, done + 1)]
            done += len(section.steps)
        parts += ["", f"KV cache  {format_exact(self.size.total_bytes, units)}"]
        parts += [fold(remark) for remark in self.remarks]
        parts += ["", fold(self.attention_note), *(self._attention_line(row, units) for row in self.attention)]
        parts += ["", "sources", *(fold(source, "  ", "    ") for source in self.sources)]
        parts += [fold(f"assumed: {text}", hanging="  ") for text in self.size.assumptions]
        return "\n".join(parts)

    __str__ = report

    def _attention_line(self, row: Attention, units: str) -> str:
        heads = "" if row.kv_heads is None else f"{row.kv_heads:,}"
        exact = f"{row.total_bytes:,} bytes"
        readable = "" if units == "bytes" else f"{format_bytes(row.total_bytes, units):>9}  "
        ratio = format_ratio(row.total_bytes, self.size.total_bytes)
        mark = "  this model" if row.is_model else ""
        return f"  {row.name:<4}{heads:>4} kv_heads  {readable}{exact:>23}  {ratio:>7}{mark}"
