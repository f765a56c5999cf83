"""Real loads: how many sequences of mixed lengths a memory holds, on average and nearly always.

A sequence counts with all the tokens that it has in the end, and with the most bytes on its way there. Two answers:

- expected: the budget divided by the mean bytes of a sequence, rounded down. At so many the budget is full on average.
- safe: the largest number of which independently drawn sequences fit together with a probability of at least 99 %.

The sum's distribution is found by repeated convolution in whole numbers: nothing is drawn at random. Where the budget
has more than 4,096 of its units (a pool's blocks, or the greatest common divisor of the sequences' bytes), a size
between two points of a grid of 4,096 is split over both so that its mean stays: the spread only grows, and `safe` is
rather too small than too large.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from statistics import NormalDist
from typing import Any

from kvcalc.capacity import Limit, limits
from kvcalc.errors import BadInput, Problem, SpecError, UnsupportedByEngine
from kvcalc.footprint import Placement
from kvcalc.units import MAX_TOKENS, parse_tokens

SAFE = Fraction(99, 100)

_GRID = 4096
_SCALE_BITS = 60  # probabilities are whole multiples of 2^-60, rounded down
_SLOT_BYTES = 17  # holds a sum of 4,097 products of two of them
_FINE = 2048  # a lognormal's lengths beyond this are rounded up to steps of a 1,024th of an octave's start
_MAX_TRACE_BYTES = 2**28
_LONGEST_COUNT = 13  # digits
_COLUMNS = ("tokens", "total_tokens", "length", "lengths", "context")
# A prompt and what was generated: a sequence has both in its cache in the end.
_PAIRS = (
    ("ContextTokens", "GeneratedTokens"),
    ("input_length", "output_length"),
    ("num_prefill_tokens", "num_decode_tokens"),
)
_QUANTILE = re.compile(r"\s*p(?P<percent>[0-9]{1,2}(?:\.[0-9]{1,6})?)\s*=\s*(?P<tokens>\S+)\s*")


@dataclass(frozen=True)
class Lengths:
    """How long sequences are: token counts, each with its weight, and where they come from."""

    weights: tuple[tuple[int, int], ...]
    source: str

    def clipped(self, longest: int) -> Lengths:
        """Return the lengths with what is longer cut at `longest` tokens, as a server cuts it."""
        counts: dict[int, int] = {}
        for tokens, weight in self.weights:
            counts[min(tokens, longest)] = counts.get(min(tokens, longest), 0) + weight
        return Lengths(tuple(sorted(counts.items())), self.source)

    def share_beyond(self, longest: int) -> Fraction:
        """Return the share of sequences that are longer than `longest` tokens."""
        beyond = sum(weight for tokens, weight in self.weights if tokens > longest)
        return Fraction(beyond, sum(weight for _, weight in self.weights))

    @property
    def mean_tokens(self) -> Fraction:
        """Mean length."""
        return Fraction(sum(tokens * weight for tokens, weight in self.weights), sum(w for _, w in self.weights))


@dataclass(frozen=True)
class Load:
    """How many sequences of mixed lengths fit, over all replicas; None where memory sets no limit."""

    source: str
    longest: int
    clipped_share: Fraction
    mean_tokens: Fraction
    expected: int | None
    safe: int | None

    def to_json(self) -> dict[str, Any]:
        """Return the load as JSON data."""
        return {
            "lengths": self.source,
            "longest": self.longest,
            "clipped_share": float(self.clipped_share),
            "mean_tokens": float(self.mean_tokens),
            "expected": self.expected,
            "safe": self.safe,
            "safe_probability": float(SAFE),
        }


def read_lengths(text: str, longest: int) -> Lengths:
    """Return the lengths that `p50=800,p95=6000` (a lognormal through both) or the path of a CSV file means.

    `longest` bounds a lognormal's tail. BadInput for anything else, SpecError for a file that holds no token counts.
    """
    return _lognormal(text, longest) if "=" in text else _trace(text)


def load(placement: Placement, budgets: Sequence[int], lengths: Lengths, longest: int) -> Load:
    """Return how many sequences of these lengths, cut at `longest`, fit on average and with 99 % probability.

    UnsupportedByEngine where sequences do not take their bytes one by one: an engine that sets cells aside at the
    start holds what it holds, whatever the lengths.
    """
    cut = lengths.clipped(longest)
    expected, safe = list[int](), list[int]()
    for limit in limits(placement, budgets):
        costs = _costs(limit, cut)
        mean = Fraction(sum(c * w for c, w in costs.items()), sum(costs.values()))
        if mean > 0:
            expected.append(math.floor(limit.budget / mean))
            safe.append(_safe_count(costs, limit.budget, limit.pool.unit_bytes if limit.pool else 0))
    return Load(
        source=lengths.source,
        longest=longest,
        clipped_share=lengths.share_beyond(longest),
        mean_tokens=cut.mean_tokens,
        expected=min(expected) * placement.dp if expected else None,
        safe=min(safe) * placement.dp if safe else None,
    )


def _costs(limit: Limit, lengths: Lengths) -> Mapping[int, int]:
    """Return the bytes of one sequence, each with the weight of the lengths that take them."""
    longest = lengths.weights[-1][0]
    if limit.needed(longest, 7) != 7 * limit.needed(longest, 1):
        raise UnsupportedByEngine("sequences share memory here, so that lengths cannot be counted one by one")
    costs: dict[int, int] = {}
    for tokens, weight in lengths.weights:
        needed = limit.needed(tokens, 1)
        costs[needed] = costs.get(needed, 0) + weight
    return costs


# Where lengths come from


def _lognormal(text: str, longest: int) -> Lengths:
    """Return the lognormal through two quantiles, in whole tokens rounded up, what is beyond `longest` at the last."""
    low, high = _quantiles(text)
    normal = NormalDist()
    (z_low, tokens_low), (z_high, tokens_high) = ((normal.inv_cdf(share), tokens) for share, tokens in (low, high))
    sigma = (math.log(tokens_high) - math.log(tokens_low)) / (z_high - z_low)
    mean = math.log(tokens_low) - sigma * z_low
    total, weights, before = 1 << 53, [], 0
    beyond = 0
    for tokens in _edges(longest):
        below = total * normal.cdf((math.log(tokens) - mean) / sigma)
        weight = round(below) - before
        before = round(below)
        if weight:
            weights.append((tokens, weight))
    beyond = total - before
    if beyond:
        weights.append((longest + 1, beyond))
    return Lengths(tuple(weights), f"lognormal through {text.strip()}")


def _quantiles(text: str) -> list[tuple[float, int]]:
    """Return two quantiles as (share, tokens), the lower first."""
    found = []
    for part in text.split(","):
        match = _QUANTILE.fullmatch(part)
        if not match or float(match["percent"]) <= 0:
            raise BadInput(f"--lengths '{text[:40]}': write two quantiles, for example p50=800,p95=6000, or a CSV file")
        found.append((float(match["percent"]) / 100, parse_tokens(match["tokens"], "--lengths")))
    found.sort()
    if len(found) != 2 or found[0][0] == found[1][0] or found[0][1] >= found[1][1]:
        raise BadInput(f"--lengths '{text[:40]}': needs two different quantiles, the higher with more tokens")
    return found


def _edges(longest: int) -> Iterator[int]:
    """Yield every length up to 2,048, then lengths whose distance is a 1,024th of them, at last the longest."""
    tokens, step = 1, 1
    while tokens < longest:
        yield tokens
        if tokens >= _FINE * step:
            step *= 2
        tokens += step
    yield longest


def _trace(text: str) -> Lengths:
    """Return the lengths in a CSV file: its only column, one called tokens or length, or prompt and answer added."""
    import csv

    path = Path(text).expanduser()
    if not path.is_file():
        raise BadInput(f"--lengths {text[:200]}: no such file; write a CSV file, or quantiles such as p50=800,p95=6000")
    if path.stat().st_size > _MAX_TRACE_BYTES:
        raise BadInput(f"--lengths {path}: is larger than {_MAX_TRACE_BYTES:,} bytes")
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            counts = _counted(csv.reader(stream), str(path))
    except (UnicodeDecodeError, csv.Error) as error:
        raise SpecError([Problem(str(path), 1, 1, "", f"is no CSV text ({error})")]) from None
    return Lengths(tuple(sorted(counts.items())), path.name)


def _counted(rows: Any, file: str) -> dict[int, int]:
    """Return how often each token count stands in the rows of a CSV file."""
    columns: tuple[int, ...] | None = None
    counts = dict[int, int]()
    for row in rows:
        if not row:
            continue
        if columns is None:
            columns = _columns(row, file)
            if not row[columns[0]].strip().isdecimal():
                continue
        tokens = sum(_count(row[column] if column < len(row) else "", file, rows.line_num) for column in columns)
        if not 1 <= tokens <= MAX_TOKENS:
            raise SpecError([Problem(file, rows.line_num, 1, "", f"{tokens:,} tokens are no length of a sequence")])
        counts[tokens] = counts.get(tokens, 0) + 1
    if not counts:
        raise SpecError([Problem(file, 1, 1, "", "holds no token counts")])
    return counts


def _count(cell: str, file: str, line: int) -> int:
    text = cell.strip()
    if not text.isascii() or not text.isdecimal() or len(text) > _LONGEST_COUNT:
        message = f"'{text[:20]}' is no token count; a whole number is needed"
        raise SpecError([Problem(file, line, 1, "", message)])
    return int(text)


def _columns(header: Sequence[str], file: str) -> tuple[int, ...]:
    """Return the indices of the columns whose sum is a sequence's length."""
    names = [name.strip() for name in header]
    if len(names) == 1:
        return (0,)
    for wanted in (*((name,) for name in _COLUMNS), *_PAIRS):
        if set(wanted) <= set(names):
            return tuple(names.index(name) for name in wanted)
    pairs = ", ".join(" and ".join(pair) for pair in _PAIRS)
    message = f"has no column called {', '.join(_COLUMNS)}, nor {pairs}; keep one column"
    raise SpecError([Problem(file, 1, 1, "", message)])


# The sum of many sequences


def _safe_count(costs: Mapping[int, int], budget: int, unit: int) -> int:
    """Return the largest number of sequences whose sum is within the budget with 99 % probability."""
    one = _distribution(costs, budget, unit or math.gcd(*costs))
    enough = math.ceil(SAFE * (1 << _SCALE_BITS)) - (1 << (_SCALE_BITS // 2))  # what rounding down may have lost
    powers = []
    while sum(one) >= enough:
        powers.append(one)
        one = _convolved(one, one)
    count, sum_so_far = 0, [1 << _SCALE_BITS]
    for exponent in range(len(powers) - 1, -1, -1):
        larger = _convolved(sum_so_far, powers[exponent])
        if sum(larger) >= enough:
            count, sum_so_far = count + (1 << exponent), larger
    return count


def _distribution(costs: Mapping[int, int], budget: int, unit: int) -> list[int]:
    """Return the probabilities of a sequence's size in points of the grid, up to the budget, scaled to 2^60."""
    points = budget // unit
    step = Fraction(unit) if points <= _GRID else Fraction(budget, _GRID)
    points = min(points, _GRID)
    whole = sum(costs.values())
    exact = [Fraction(0)] * (points + 2)
    for cost, weight in costs.items():
        place = cost / step
        low = math.floor(place)
        for point, share in ((low, 1 - (place - low)), (low + 1, place - low)):
            if share and point <= points:
                exact[point] += share * weight
    return [math.floor(value * (1 << _SCALE_BITS) / whole) for value in exact[: points + 1]]


def _convolved(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """Return the distribution of the sum of two sizes, as far as the longer reaches: one product of two large ints."""
    points = max(len(first), len(second))
    product = _packed(first) * _packed(second)
    raw = product.to_bytes(_SLOT_BYTES * (len(first) + len(second)), "little")
    slots = (raw[start : start + _SLOT_BYTES] for start in range(0, _SLOT_BYTES * points, _SLOT_BYTES))
    return [int.from_bytes(slot, "little") >> _SCALE_BITS for slot in slots]


def _packed(values: Sequence[int]) -> int:
    return int.from_bytes(b"".join(value.to_bytes(_SLOT_BYTES, "little") for value in values), "little")
