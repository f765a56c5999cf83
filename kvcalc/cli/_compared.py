"""Predicted and measured bytes by kind of layer: the table that every form of `kvcalc validate` prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvcalc.api import BreakdownRow


def compared_rows(predicted: Iterable[BreakdownRow], measured: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return a row for every kind of layer, those that were measured and that nobody predicted included."""
    left = dict(measured)
    rows = [
        {
            "label": row.label,
            "kind": row.kind,
            "layers": row.layers,
            "predicted_bytes": row.bytes,
            "allocated_bytes": left.pop(row.label, 0),
        }
        for row in predicted
    ]
    unforeseen = {"kind": "unforeseen", "layers": 0, "predicted_bytes": 0}
    return rows + [{"label": label, **unforeseen, "allocated_bytes": size} for label, size in left.items()]
