"""How long the smallest layout of up to 8 GPUs takes to find, for the whole catalogue: `python -m tests.benchmarks...`.

    python -m tests.benchmarks.layout_search [ENGINE] [GPU]

One process, the catalogue's files included: every model, its trained context (at most 32,768 tokens), a batch of 8.
"""

from __future__ import annotations

import sys
import time

from kvcalc.advise import smallest_layout
from kvcalc.answer import memory_of
from kvcalc.errors import KvcalcError
from kvcalc.fitting import Question
from kvcalc.spec.load import bundled_folder, index, load_file

CONTEXT = 32_768
BATCH = 8
COUNTS = range(1, 9)


def search(engine: str, gpu: str) -> dict[str, int]:
    """Return how many models fit on how many GPUs, do not fit, or are refused; and how many layouts were tried."""
    memory = memory_of(None, gpu)
    counts = {"models": 0, "fit": 0, "do not fit": 0, "refused or of unknown size": 0, "layouts": 0}
    for entry in index().values():
        spec = load_file(bundled_folder() / str(entry["file"]))
        context = min(spec.max_context or CONTEXT, CONTEXT)
        counts["models"] += 1
        try:
            found = smallest_layout(Question(spec, {"engine": engine}, context, BATCH, memory), COUNTS, {})
        except KvcalcError:
            counts["refused or of unknown size"] += 1
            continue
        counts["layouts"] += len(found.tried)
        counts["fit" if found.standing.fits else "do not fit"] += 1
    return counts


def main(engine: str = "ideal", gpu: str = "rtx-4090") -> None:
    """Print the counts and the seconds, those of the processor too: the others depend on what else it runs."""
    begun, busy = time.perf_counter(), time.process_time()
    counts = search(engine, gpu)
    seconds, busy = time.perf_counter() - begun, time.process_time() - busy
    print(f"{engine} on up to {COUNTS[-1]} x {gpu}, context {CONTEXT:,} or the trained one, batch {BATCH}")
    print(", ".join(f"{count:,} {name}" for name, count in counts.items()))
    print(f"{seconds:.2f} s, {busy:.2f} s of the processor")


if __name__ == "__main__":
    main(*sys.argv[1:3])
