"""Real loads: expected and safe numbers of sequences against sums added up another way."""

from __future__ import annotations

import csv
import math
from fractions import Fraction
from pathlib import Path
from statistics import NormalDist

import pytest

from kvcalc.errors import BadInput, SpecError, UnsupportedByEngine
from kvcalc.footprint import Footprint, Placement, Pool, Rank, Steps, Term
from kvcalc.lengths import Lengths, load, read_lengths
from tests.shared_material import shared


def placement(steps: Steps, unit_bytes: int = 1, pools: tuple[Pool, ...] = (), dp: int = 1) -> Placement:
    """Return one rank that takes `unit_bytes` for every unit of some steps."""
    found = Footprint((Term("full", "full", "k", (("bytes", unit_bytes),), steps, "by hand"),))
    return Placement((Rank(0, 0, found, found, pools),), dp)


def chance(weights: dict[int, Fraction], count: int, budget: int) -> Fraction:
    """Return the probability that `count` sequences fit, one sequence after the other."""
    sums = {0: Fraction(1)}
    for _ in range(count):
        after: dict[int, Fraction] = {}
        for size, likely in sums.items():
            for each, share in weights.items():
                if size + each <= budget:
                    after[size + each] = after.get(size + each, Fraction(0)) + likely * share
        sums = after
    return sum(sums.values(), Fraction(0))


@pytest.mark.parametrize("budget", [5, 17, 40, 100])
@pytest.mark.parametrize("weights", [((1, 1), (9, 1)), ((2, 7), (3, 2), (11, 1)), ((5, 1),)])
def test_safe_is_the_largest_number_that_fits_nearly_always(budget: int, weights: tuple[tuple[int, int], ...]) -> None:
    """It fits with 99 %, one more does not; counted sequence by sequence in fractions."""
    whole = sum(weight for _, weight in weights)
    shares = {tokens: Fraction(weight, whole) for tokens, weight in weights}
    found = load(placement(Steps.per_token()), [budget], Lengths(weights, "by hand"), 1000)
    assert found.safe is not None
    assert found.safe == 0 or chance(shares, found.safe, budget) >= Fraction(99, 100)
    assert chance(shares, found.safe + 1, budget) < Fraction(99, 100)
    mean = sum(tokens * share for tokens, share in shares.items())
    assert found.expected == math.floor(budget / mean)


def test_sequences_take_whole_blocks_of_a_pool() -> None:
    """Of 17 tokens each takes two blocks of 16: 20 usable blocks hold ten, expected and safe alike."""
    pool = Pool("blocks", 160, 1, Fraction(1), ())
    found = load(placement(Steps.per_token(16), 160, (pool,)), [21 * 160], Lengths(((17, 1),), "by hand"), 1000)
    assert (found.expected, found.safe) == (10, 10)


def test_a_fine_budget_is_counted_on_a_grid_and_never_above_the_truth() -> None:
    """A million units, each sequence 1,000 or 3,000: the grid of 4,096 costs at most one sequence in a hundred."""
    weights = ((1000, 1), (3001, 1))
    found = load(placement(Steps.per_token()), [1_000_000], Lengths(weights, "by hand"), 10_000)
    exact = largest_of_two(1_000_000, 1000, 3001)
    assert found.safe is not None
    assert exact * 99 // 100 <= found.safe <= exact


def largest_of_two(budget: int, short: int, long: int) -> int:
    """Return the largest number of sequences of two lengths that fit with 99 %, by binomials."""

    def enough(count: int) -> bool:
        ways = sum(math.comb(count, n) for n in range(count + 1) if n * long + (count - n) * short <= budget)
        return Fraction(ways, 2**count) >= Fraction(99, 100)

    return max(count for count in range(400, 600) if enough(count))


def test_replicas_each_have_their_sequences() -> None:
    """Two replicas hold twice as many."""
    lengths = Lengths(((10, 1),), "by hand")
    assert load(placement(Steps.per_token(), dp=2), [100], lengths, 100).safe == 20


def test_what_is_longer_is_cut() -> None:
    """At the longest context, and the share is told."""
    found = load(placement(Steps.per_token()), [100], Lengths(((10, 3), (90, 1)), "by hand"), 20)
    assert found.clipped_share == Fraction(1, 4)
    assert found.mean_tokens == Fraction(50, 4)


def test_nothing_that_is_shared_can_be_counted_one_by_one() -> None:
    """A prefix stored once is refused; what takes no memory has no limit."""
    with pytest.raises(UnsupportedByEngine, match="share"):
        load(placement(Steps.per_token().once()), [100], Lengths(((10, 1),), "by hand"), 100)
    nothing = Placement((Rank(0, 0, Footprint(), Footprint()),))
    assert load(nothing, [100], Lengths(((10, 1),), "by hand"), 100).safe is None


def test_a_lognormal_has_its_quantiles_and_its_mean() -> None:
    """Half are at most 800 tokens, 95 % at most 6,000, the mean is exp(mu + sigma^2 / 2)."""
    lengths = read_lengths("p50=800,p95=6000", 10**7)
    whole = sum(weight for _, weight in lengths.weights)
    for tokens, share in ((800, 0.5), (6000, 0.95)):
        below = sum(weight for each, weight in lengths.weights if each <= tokens)
        assert abs(below / whole - share) < 1e-3
    sigma = math.log(6000 / 800) / NormalDist().inv_cdf(0.95)
    assert abs(float(lengths.mean_tokens) / (800 * math.exp(sigma**2 / 2)) - 1) < 2e-3


@pytest.mark.parametrize(
    "text", ["p50=800", "p50=1,p50=2", "p50=9,p95=3", "p0=1,p50=2", "p50=x,p95=3", "=", "p50=1,p60=2,p70=3"]
)
def test_quantiles_that_say_nothing_are_refused(text: str) -> None:
    """Two different ones are needed, the higher with more tokens."""
    with pytest.raises(BadInput):
        read_lengths(text, 1000)


@pytest.mark.parametrize(
    ("text", "place"),
    [("", ":1:1:"), ("a,b\n1,2\n", ":1:1:"), ("tokens\n12\nmany\n", ":3:1:"), ("tokens\n0\n", ":2:1:"),
     ("x\n" + "9" * 30 + "\n", ":2:1:"), ("tokens\n", ":1:1:")],
)  # fmt: skip
def test_a_file_without_token_counts_is_refused_with_the_line(tmp_path: Path, text: str, place: str) -> None:
    """Where the fault stands, in one line."""
    path = tmp_path / "trace.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SpecError, match=place):
        read_lengths(str(path), 1000)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="no CSV text"):
        read_lengths(str(path), 1000)


def test_columns_are_found_by_name(tmp_path: Path) -> None:
    """A column of lengths, the only column without a name, or prompt and answer added."""
    path = tmp_path / "trace.csv"
    for text in ("5\n7\n", "tokens\n5\n7\n", "id,length\na,5\nb,7\n", "ContextTokens,GeneratedTokens\n2,3\n3,4\n"):
        path.write_text(text, encoding="utf-8")
        assert read_lengths(str(path), 1000).weights == ((5, 1), (7, 1))


def test_a_public_trace_is_read_whole() -> None:
    """Azure's conversations of 2023: the mean of prompt plus answer, row by row."""
    path = shared("traces/azure/AzureLLMInferenceTrace_conv.csv")
    with path.open(encoding="utf-8") as stream:
        totals = [int(row["ContextTokens"]) + int(row["GeneratedTokens"]) for row in csv.DictReader(stream)]
    lengths = read_lengths(str(path), 10**6)
    assert sum(weight for _, weight in lengths.weights) == len(totals)
    assert lengths.mean_tokens == Fraction(sum(totals), len(totals))
