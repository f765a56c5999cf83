"""`kvcalc explain`: a derivation that ends in the number of `size`, whatever the model and the deployment."""

from __future__ import annotations

import json
import re

import pytest

from kvcalc import api
from kvcalc.engines import ENGINES
from kvcalc.errors import BadInput, UnsupportedByEngine
from kvcalc.explain import explain
from kvcalc.spec.load import index
from tests.cli.running import answer

# Each compiles to other terms: exact tokens, blocks, reservations, limits, shared prefixes, their combinations, ranks.
DEPLOYMENTS = (
    {},
    {"kv_dtype": "q8_0/q4_0"},
    {"kv_dtype": "int8"},
    {"tp": 2, "pp": 2, "dp": 2},
    {"tp": 16},
    {"options": {"block_size": 16}},
    {"options": {"reserve_ctx": 10_000}},
    {"options": {"evict": "window:500,sinks:4"}},
    {"options": {"evict": "budget:700", "block_size": 16}},
    {"options": {"shared_prefix": 300}},
    {"options": {"shared_prefix": 300, "block_size": 64}, "tp": 2},
    {"options": {"shared_prefix": 300, "evict": "window:500,sinks:4"}},
    *({"engine": name} for name in ENGINES),
)


def test_the_worked_example_of_gpt2_small() -> None:
    """12 heads x 64 x 2 bytes, twice, x 12 layers x 4,096 tokens x 8 sequences: computed by hand."""
    data = json.loads(answer("explain", "gpt2-small", "--ctx", "4096", "--batch", "8", "--json"))
    steps = [step["bytes"] for step in data["steps"]]
    assert steps == [1_536, 1_536, 3_072, 36_864, 150_994_944, 1_207_959_552]
    assert data["steps"][0]["formula"] == "12 kv_heads x 64 head_dim x 2 bytes"
    assert data["steps"][4]["formula"] == "36,864 x 4,096 tokens"
    assert data["total_bytes"] == 1_207_959_552


def test_mha_gqa_and_mqa_differ_by_their_kv_heads() -> None:
    """A third of the heads takes a third of the bytes, one head a twelfth."""
    data = json.loads(answer("explain", "gpt2-small", "--ctx", "4096", "--json"))
    rows = {row["name"]: (row["kv_heads"], row["total_bytes"], row["is_model"]) for row in data["attention"]}
    assert rows == {
        "MHA": (12, 150_994_944, True),
        "GQA": (4, 50_331_648, False),
        "MQA": (1, 12_582_912, False),
    }
    assert "KV groups" in data["attention_note"]


def test_a_model_without_kv_heads_says_so() -> None:
    """MLA keeps one latent for all heads: there is nothing to group."""
    data = json.loads(answer("explain", "deepseek-v3", "--ctx", "4096", "--json"))
    assert data["attention"] == []
    assert "no part" in data["attention_note"]


def test_megabytes_and_mebibytes_are_told_apart() -> None:
    """144 MiB are 151 MB; a figure between them mixes the two."""
    text = " ".join(answer("explain", "gpt2-small", "--ctx", "4096").split())
    assert "144 MiB = 151 MB" in text
    assert "145 MB" in text
    assert text.count("151 MB") == 1


@pytest.mark.parametrize("model", index())
def test_the_last_step_is_the_size(model: str) -> None:
    """For every model and deployment the derivation ends in the total of `size`, and the steps before lead there."""
    for deployment in DEPLOYMENTS:
        try:
            setup = api.prepare(model, **deployment)  # type: ignore[arg-type]
        except UnsupportedByEngine:
            continue  # heads that tp does not divide, rows that blocks do not divide
        try:
            result = explain(setup, 5_000, 3)
        except UnsupportedByEngine:
            continue  # an engine that serves this model one sequence at a time
        assert result.steps[-1].bytes == api.measure(setup, 5_000, 3).total_bytes
        assert result.report().count("\n") < 400


@pytest.mark.parametrize("model", ["gpt2-small", "gemma-3-27b", "llama-4-scout", "deepseek-v4-flash", "zamba2-2.7b"])
@pytest.mark.parametrize("context", [1, 100, 4_099, 20_000])
def test_every_formula_gives_its_bytes(model: str, context: int) -> None:
    """The printed arithmetic, evaluated as it stands, gives the printed result."""
    for deployment in DEPLOYMENTS:
        try:
            result = explain(api.prepare(model, **deployment), context, 3)  # type: ignore[arg-type]
        except (BadInput, UnsupportedByEngine):
            continue
        for step in result.steps:
            assert _evaluate(step.formula) == step.bytes, step


def _evaluate(formula: str) -> int:
    """Return the value of a formula's numbers; the words between them are units."""
    numbers = re.sub(r"(?<=\d),(?=\d{3})", "", formula)
    numbers = re.sub(r"blocks? of \d+ per row|per row", "", numbers)
    numbers = re.sub(r"\bx\b", "*", numbers)
    numbers = numbers.replace(" mod ", " % ").replace("ceil(", "ceil (").replace("floor(", "floor (")
    numbers = re.sub(r"\b(?!min|ceil|floor)[a-z_]*[a-z]+\b(?! \()", "", numbers)
    numbers = re.sub(r"ceil \((.*) / (\d+)\)", r"-(-(\1) // \2)", numbers)
    numbers = re.sub(r"floor \((.*) / (\d+)\)", r"((\1) // \2)", numbers)
    assert re.fullmatch(r"[-0-9+*%/(), min]*", numbers), numbers
    value = eval(numbers, {"__builtins__": {}, "min": min})  # digits, operators and min only, as just asserted
    return int(value)
