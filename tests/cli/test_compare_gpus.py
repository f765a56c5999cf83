"""`kvcalc compare --gpu`: the largest batch and context of each card, and a sequence's cost at the user's prices."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest

from tests.cli.running import answer, run

ASKED = ("compare", "llama-3.1-8b", "--ctx", "8K", "--engine", "vllm", "--gpu", "l4,h100-80gb")


def test_each_row_is_what_fit_says() -> None:
    """Batch, context and cache of every card are those of `kvcalc fit` with it."""
    data = json.loads(answer(*ASKED, "--json"))
    assert [row["gpu"] for row in data["rows"]] == ["l4", "h100-80gb"]
    for row in data["rows"]:
        asked = ("fit", "llama-3.1-8b", "--ctx", "8K", "--engine", "vllm", "--gpu", row["gpu"], "--json")
        alone = json.loads(answer(*asked))
        assert [row[name] for name in ("max_batch", "max_context", "fits")] == [
            alone[name] for name in ("max_batch", "max_context", "fits")
        ]
        assert row["cache_bytes"] == alone["budget_bytes"]
        assert row["cost_per_sequence_hour"] is None


def test_a_price_is_divided_by_the_sequences() -> None:
    """2.50 an hour over the largest batch; without a price there is no cost; all GPUs of a replica are paid."""
    data = json.loads(answer(*ASKED, "--price", "h100-80gb=2.50", "--json"))
    free, paid = data["rows"]
    assert free["price"] is None
    assert paid["price"] == "2.5"
    assert abs(Fraction(paid["cost_per_sequence_hour"]) - Fraction("2.5") / paid["max_batch"]) < Fraction(1, 10**8)
    two = json.loads(answer(*ASKED, "--price", "h100-80gb=2.50", "--tp", "2", "--json"))["rows"][1]
    assert two["gpus"] == 2
    assert abs(Fraction(two["cost_per_sequence_hour"]) - 5 / Fraction(two["max_batch"])) < Fraction(1, 10**8)
    assert f"{2.5 / paid['max_batch']:.4f}" in answer(*ASKED, "--price", "h100-80gb=2.50")


def test_a_card_that_is_too_small_is_a_row() -> None:
    """It says by how much the weights exceed it; the others keep their answer."""
    text = answer("compare", "llama-3.1-70b", "--gpu", "l4,b200", "--ctx", "8K")
    assert "l4: weights and overhead exceed it by 109 GiB" in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpu", "l4,h10"], "no GPU 'h10'"),
        (["--gpu", "l4,nvidia-l4"], "l4 is listed twice"),
        (["--gpu", "l4,"], "an item is empty"),
        (["--gpu", "l4", "--price", "h200=3"], "not among the GPUs"),
        (["--gpu", "l4", "--price", "l4=free"], "GPU=PRICE"),
        (["--gpu", "l4", "--price", "l4=1", "--price", "l4=2"], "given twice"),
        (["--gpu", "l4", "--kv-dtypes", "fp16,fp8"], "one comparison at a time"),
        (["--price", "l4=1", "--kv-dtypes", "fp16,fp8"], "--price needs --gpu"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], message: str) -> None:
    """Names, prices and contradictions."""
    result = run("compare", "llama-3.1-8b", "--ctx", "1K", *arguments)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert result.err.count("\n") == 1
