"""The project's own files, as the tests look at them."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_NOT_OURS = {".git", ".venv", "venv", "build", "dist", "shared", "__pycache__"}


def files() -> list[Path]:
    """Return every file that is or would be under version control; without git, every file that is not made."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode == 0 and listed.stdout:
        found = [ROOT / name for name in listed.stdout.split("\0") if name]
        return [path for path in found if path.is_file()]
    return [path for path in ROOT.rglob("*") if path.is_file() and not _is_made(path.relative_to(ROOT))]


def modules() -> list[Path]:
    """Return every Python file of the project."""
    return [path for path in files() if path.suffix == ".py"]


def _is_made(path: Path) -> bool:
    return any(
        part in _NOT_OURS or part.endswith(".egg-info") or (part.startswith(".") and part.endswith("_cache"))
        for part in path.parts
    )
