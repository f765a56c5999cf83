"""Layers in order as the shortest pattern that gives them all when it is repeated and cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

Entry = TypeVar("Entry")


def shortest_pattern(entries: Sequence[Entry]) -> list[Entry]:
    """Return the shortest run of layers that, repeated and cut, gives all of them.

    It is as long as what remains outside the longest border, the beginning that is also the end (Knuth, Morris, Pratt).
    """
    borders = [0]
    for entry in entries[1:]:
        border = borders[-1]
        while border and entries[border] != entry:
            border = borders[border - 1]
        borders.append(border + (entries[border] == entry))
    return list(entries[: len(entries) - borders[-1]])
