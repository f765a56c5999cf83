"""Rows to table, JSON, CSV or Markdown: the one place that lays results out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

FORMATS = ("table", "json", "csv", "md")

Row = Mapping[str, Any]


def render(rows: Sequence[Row], style: str, *, aligned_right: Sequence[str] = ()) -> str:
    """Return rows (mappings with the same keys) as a table for people, CSV or Markdown, without a final newline.

    Cells are shown as `str` gives them, None as nothing; `aligned_right` names the columns of numbers.
    """
    columns = list(rows[0]) if rows else []
    cells = [["" if row[column] is None else str(row[column]) for column in columns] for row in rows]
    if style == "csv":
        return _csv([columns, *cells])
    right = [column in aligned_right for column in columns]
    if style == "md":
        return _markdown(columns, cells, right)
    return _table(columns, cells, right)


def to_json(data: Any) -> str:
    """Return data as indented JSON."""
    return json.dumps(data, indent=2, ensure_ascii=False)


def _table(columns: list[str], cells: list[list[str]], right: list[bool]) -> str:
    widths = [max(len(line[index]) for line in [columns, *cells]) for index in range(len(columns))]

    def line(texts: list[str]) -> str:
        padded = zip(texts, widths, right, strict=True)
        return "  ".join(text.rjust(width) if flush else text.ljust(width) for text, width, flush in padded).rstrip()

    return "\n".join([line(columns), line(["-" * width for width in widths]), *map(line, cells)])


def _markdown(columns: list[str], cells: list[list[str]], right: list[bool]) -> str:
    rule = ["--:" if flush else "---" for flush in right]
    escaped = [[text.replace("|", "\\|") for text in line] for line in cells]
    return "\n".join("| " + " | ".join(line) + " |" for line in [columns, rule, *escaped])


def _csv(lines: list[list[str]]) -> str:
    import csv
    import io

    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(lines)
    return buffer.getvalue().rstrip("\n")
