"""How long a user waits for `kvcalc`: `python tests/benchmarks/startup.py`.

Start-up is compared with what its dependencies take alone, in alternating runs, so that a busy machine slows both.
Medians of wall-clock time.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

RUNS = 15


@dataclass(frozen=True)
class Comparison:
    """A command, what its dependencies need by themselves, and how many times as long it may take."""

    name: str
    command: tuple[str, ...]
    alone: str
    aim: float


COMPARISONS = (
    Comparison(
        "size gpt2-small",
        ("size", "gpt2-small", "--ctx", "4096", "--batch", "8"),
        "import click, yaml; from pydantic import BaseModel, ConfigDict, Field",
        1.5,
    ),
    Comparison("--help", ("--help",), "import click", 1.6),
    Comparison("size --help", ("size", "--help"), "import click", 1.6),
)


def seconds(code: str, *arguments: str) -> float:
    """Return the wall-clock seconds of one run of Python."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code, *arguments], check=True, capture_output=True)
    return time.perf_counter() - start


def compare(comparison: Comparison) -> tuple[float, float]:
    """Return the median seconds of the command and of its dependencies alone."""
    run = "from kvcalc.cli import main; main()"
    command, alone = [], []
    for _ in range(RUNS):
        command.append(seconds(run, *comparison.command))
        alone.append(seconds(comparison.alone))
    return statistics.median(command), statistics.median(alone)


def main() -> int:
    """Print a line for every comparison; return 1 if an aim is missed."""
    missed = 0
    for comparison in COMPARISONS:
        command, alone = compare(comparison)
        ratio = command / alone
        missed += ratio > comparison.aim
        times = f"{command * 1000:4.0f} ms, its dependencies {alone * 1000:4.0f} ms"
        print(f"{comparison.name:<16} {times}: {ratio:.2f}x (aim {comparison.aim}x)")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
