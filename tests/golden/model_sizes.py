"""Rewrites `model_sizes.json`: what every bundled model's cache takes under the ideal engine.

Run `python tests/golden/model_sizes.py` after adding a model, and read the difference before committing it: a changed
number of an old model is a changed answer.
"""

from __future__ import annotations

import json
from pathlib import Path

from kvcalc import api
from kvcalc.spec.load import index

TABLE = Path(__file__).with_suffix(".json")

Sizes = dict[str, dict[str, int]]


def sizes() -> Sizes:
    """Return name -> bytes that the second token adds, and bytes of one sequence of 4,096 tokens."""
    return {
        name: {
            "per_token_bytes": api.size(name, context=1).per_token_bytes,
            "context_4096_bytes": api.size(name, context=4096).total_bytes,
        }
        for name in sorted(index())
    }


def text(table: Sizes) -> str:
    """Return the table as JSON, one model a line."""
    lines = [f" {json.dumps(name)}: {json.dumps(row)}" for name, row in table.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    TABLE.write_text(text(sizes()), encoding="utf-8")
