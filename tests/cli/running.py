"""Running the command line: in this process, or as a program of its own."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from kvcalc.cli import main

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Result:
    """What a run left behind: its exit code and what it wrote."""

    code: int
    out: str
    err: str


def run(*arguments: str) -> Result:
    """Return the result of `kvcalc ARGUMENTS` in this process; what kvcalc does not catch is raised."""
    out, err = io.StringIO(), io.StringIO()
    code: object = None
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main(arguments)
        except SystemExit as stop:
            code = stop.code
    assert isinstance(code, int)
    return Result(code, out.getvalue(), err.getvalue())


def answer(*arguments: str) -> str:
    """Return the standard output of a run that must succeed."""
    result = run(*arguments)
    assert result.code == 0, result.err
    return result.out


def program(*arguments: str, **environment: str) -> Result:
    """Return the result of `python -m kvcalc ARGUMENTS` as a program of its own, started outside the source tree."""
    done = subprocess.run(
        [sys.executable, "-m", "kvcalc", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=ROOT / "tests",
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )
    return Result(done.returncode, done.stdout, done.stderr)
