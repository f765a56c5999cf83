"""Where tests find reference material that is not part of the repository: engine-made numbers, published configs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_BESIDE = Path(__file__).resolve().parents[2] / "shared"


def shared(path: str) -> Path:
    """Return `path` below $KVCALC_SHARED, or `shared` beside the repository; skip the test where it is missing."""
    found = Path(os.environ.get("KVCALC_SHARED") or _BESIDE) / path
    if not found.exists():
        pytest.skip(f"reference material {path} is not there; set KVCALC_SHARED to the folder that holds it")
    return found
