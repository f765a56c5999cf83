"""How the readers of foreign files refuse one: file, field and words, printable whatever the file holds."""

from __future__ import annotations

from typing import NoReturn

from kvcalc.errors import Problem, SpecError


def refuse(file: str, field: str, message: str) -> NoReturn:
    """Raise a SpecError about a file, or about one of its fields; binary files have no lines: it stands at 1:1."""
    raise SpecError([Problem(file, 1, 1, field, message)])


def quoted(text: str, limit: int = 80) -> str:
    """Return text from a file as it may be printed: control characters escaped, long text cut."""
    shown = text if text.isprintable() else repr(text)[1:-1]
    return shown if len(shown) <= limit else f"{shown[: limit - 3]}..."
