"""Rows to table, JSON, CSV or Markdown: the one place that lays results out."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

FORMATS = ("table", "json", "csv", "md")

# Where no terminal says otherwise, running text is folded here.
TEXT_WIDTH = 78
_NO_BREAK = "\u00a0"
_SPACES = (_NO_BREAK, "\n", "\t")

Row = Mapping[str, Any]


def render(
    rows: Sequence[Row],
    style: str,
    *,
    aligned_right: Sequence[str] = (),
    optional: Sequence[str] = (),
    width: int | None = None,
) -> str:
    """Return rows (mappings with the same keys) as a table for people, CSV or Markdown, without a final newline.

    Cells are shown as `str` gives them, None as nothing; `aligned_right` names the columns of numbers. A table wider
    than `width` loses its `optional` columns from the right, then shortens the first column.
    """
    if not rows:
        return ""
    columns = list(rows[0])
    cells = [["" if row[column] is None else str(row[column]) for column in columns] for row in rows]
    if style == "csv":
        return _csv([columns, *cells])
    right = [column in aligned_right for column in columns]
    if style == "md":
        return _markdown(columns, cells, right)
    lines = [columns, *cells]
    if width is not None:
        while _table_width(lines) > width and lines[0][-1] in optional:
            lines, right = [line[:-1] for line in lines], right[:-1]
        room = max(len(lines[0][0]), 8, max(len(line[0]) for line in lines) - max(_table_width(lines) - width, 0))
        lines = [[shorten(line[0], room), *line[1:]] for line in lines]
    return _table(lines, right)


def to_json(data: Any) -> str:
    """Return data as indented JSON."""
    return json.dumps(data, indent=2, ensure_ascii=False)


def terminal_width() -> int | None:
    """Return the columns that a table may take: `$COLUMNS`, else the terminal's; None where output goes to a file."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    if sys.stdout is None or not sys.stdout.isatty():
        return None
    return os.get_terminal_size(sys.stdout.fileno()).columns or None


def shorten(text: str, width: int) -> str:
    """Return text in at most `width` characters, with `...` in its middle where it is longer."""
    if len(text) <= width:
        return text
    kept = max(width - 3, 2)
    return f"{text[: kept - kept // 2]}...{text[len(text) - kept // 2 :]}"


def fold(text: str, indent: str = "", hanging: str | None = None) -> str:
    """Return running text folded at 78 columns, never inside a word or what `unbroken` made one.

    `hanging` indents all lines but the first.
    """
    folded = textwrap.fill(
        "".join(character if character in _SPACES else printable(character) for character in text),
        TEXT_WIDTH,
        initial_indent=indent,
        subsequent_indent=indent if hanging is None else hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return folded.replace(_NO_BREAK, " ")


def printable(text: str) -> str:
    r"""Return text with control characters, which a terminal would obey, written out: `\x1b`."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


def unbroken(text: str) -> str:
    """Return text whose spaces `fold` leaves alone."""
    return text.replace(" ", _NO_BREAK)


def _table_width(lines: Sequence[Sequence[str]]) -> int:
    widths = [max(len(line[index]) for line in lines) for index in range(len(lines[0]))]
    return sum(widths) + 2 * (len(widths) - 1)


def _table(lines: Sequence[Sequence[str]], right: Sequence[bool]) -> str:
    widths = [max(len(line[index]) for line in lines) for index in range(len(lines[0]))]

    def one_line(texts: Sequence[str]) -> str:
        padded = zip(texts, widths, right, strict=True)
        return "  ".join(text.rjust(width) if flush else text.ljust(width) for text, width, flush in padded).rstrip()

    head, *body = lines
    return "\n".join([one_line(head), one_line(["-" * width for width in widths]), *map(one_line, body)])


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
