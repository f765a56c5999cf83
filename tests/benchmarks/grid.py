"""How fast sizes are worked out in one process: `python tests/benchmarks/grid.py`."""

from __future__ import annotations

import random
import sys
import time

import numpy

import kvcalc
from kvcalc.spec.load import index

HYBRID = "gemma-3-27b"  # 62 layers, windows and full attention
SIDE = 1_000
SAMPLE = 20_000
CATALOGUE_AIM_SECONDS = 3.0


def grid() -> None:
    """Evaluate a grid of contexts and batches as arrays, and a sample of it one by one; the numbers must agree."""
    cache = kvcalc.prepare(HYBRID).placement.whole()
    contexts = numpy.arange(1, SIDE + 1, dtype=numpy.int64)[:, None] * 128
    batches = numpy.arange(1, SIDE + 1, dtype=numpy.int64)[None, :]
    start = time.perf_counter()
    table = cache.bytes(contexts, batches)
    arrays = time.perf_counter() - start

    draw = random.Random(0)
    points = [(draw.randrange(SIDE), draw.randrange(SIDE)) for _ in range(SAMPLE)]
    start = time.perf_counter()
    one_by_one = [cache.bytes((row + 1) * 128, column + 1) for row, column in points]
    scalar = (time.perf_counter() - start) / SAMPLE * SIDE * SIDE
    assert one_by_one == [int(table[row, column]) for row, column in points]
    print(
        f"{HYBRID}, {SIDE:,} contexts x {SIDE:,} batches: {arrays * 1000:.0f} ms as arrays; one by one {scalar:.2f} s"
        f" ({scalar / SIDE**2 * 1e6:.2f} us each, from a sample of {SAMPLE:,}): {scalar / arrays:.0f}x"
    )


def catalogue() -> bool:
    """Size every bundled model at three contexts and two batches; return whether it took no longer than the aim."""
    start = time.perf_counter()
    sizes = 0
    for name in index():
        spec = kvcalc.load(name)
        for context in {1, 4096, spec.max_context or 4096}:
            for batch in (1, 8):
                sizes += kvcalc.size(spec, context=context, batch=batch).total_bytes > 0
    taken = time.perf_counter() - start
    print(f"{len(index())} models, {sizes:,} sizes: {taken:.2f} s (aim {CATALOGUE_AIM_SECONDS:.0f} s)")
    return taken <= CATALOGUE_AIM_SECONDS


def main() -> int:
    """Run both; return 1 if the aim is missed."""
    grid()
    return int(not catalogue())


if __name__ == "__main__":
    sys.exit(main())
