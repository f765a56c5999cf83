"""`kvcalc compare`: figures that are known, ratios that are exact, and remedies that say what they assume."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest

from tests.cli.running import answer, run


def rows_of(*arguments: str) -> dict[str, Any]:
    """Return the rows of a comparison by their label."""
    data = json.loads(answer("compare", *arguments, "--json"))
    return {row["label"]: row for row in data["rows"]}


def test_attention_of_gpt2_small() -> None:
    """MHA, GQA with 4 kv heads and MQA at 4,096 tokens: 144, 48 and 12 MiB."""
    rows = rows_of("gpt2-small", "--attention", "mha,gqa:4,mqa", "--ctx", "4096")
    assert {label: row["total_bytes"] for label, row in rows.items()} == {
        "mha": 150_994_944,
        "gqa:4": 50_331_648,
        "mqa": 12_582_912,
    }
    assert [row["exact_ratio"] for row in rows.values()] == ["1", "1/3", "1/12"]


def test_models_side_by_side() -> None:
    """Llama 3.1 8B keeps 32 layers, Qwen3 8B 36, of 8 heads of 128 in 2 bytes: the ratio is 9/8."""
    rows = rows_of("llama-3.1-8b", "qwen3-8b", "--ctx", "32768")
    assert rows["llama-3.1-8b"]["total_bytes"] == 2 * 8 * 128 * 2 * 32 * 32_768
    assert rows["qwen3-8b"]["exact_ratio"] == "9/8"


def test_formats_of_k_and_v_apart() -> None:
    """q8_0 is 34 bytes and q4_0 18 bytes for 32 elements: together 52/128 of two fp16."""
    rows = rows_of("llama-3.1-8b", "--kv-dtypes", "fp16,q8_0/q4_0", "--ctx", "1000")
    assert rows["q8_0/q4_0"]["exact_ratio"] == str(Fraction(34 + 18, 128))
    assert rows["q8_0/q4_0"]["kv_dtype"] == "q8_0/q4_0"


def test_ratios_are_those_of_the_bytes() -> None:
    """Whatever is compared, each ratio is the row's total over the first row's."""
    data = json.loads(answer("compare", "gemma-3-27b", "--remedies", "--ctx", "9999", "--batch", "3", "--json"))
    first = data["rows"][0]
    assert data["baseline"] == first["label"] == "baseline"
    for row in data["rows"]:
        if row["total_bytes"] is not None:
            assert Fraction(row["exact_ratio"]) == Fraction(row["total_bytes"], first["total_bytes"])


def test_remedies_by_hand() -> None:
    """GPT-2 small at 512 tokens and 8 sequences, each remedy computed from its definition."""
    rows = rows_of("gpt2-small", "--remedies", "--ctx", "512", "--batch", "8")
    token = 36_864
    assert {label: row["total_bytes"] for label, row in rows.items()} == {
        "baseline": token * 512 * 8,
        "MQA": token // 12 * 512 * 8,
        "GQA": token // 3 * 512 * 8,
        "KV in fp8": token // 2 * 512 * 8,
        "KV in q8_0": token * 34 // 64 * 512 * 8,
        "KV in q4_0": token * 18 // 64 * 512 * 8,
        "evicted": token * 128 * 8,
        "shared prefix": token * (256 + 256 * 8),
        "reserved": token * 1_024 * 8,
        "paged": token * 512 * 8,
    }


def test_remedies_take_the_options_given() -> None:
    """The ideal engine's options say what the remedies assume, and leave the baseline alone."""
    given = ("--evict", "window:96,sinks:4", "--shared-prefix", "500", "--reserve-ctx", "2000", "-o", "block_size=64")
    rows = rows_of("gpt2-small", "--remedies", "--ctx", "1000", "--batch", "4", *given)
    token = 36_864
    assert rows["baseline"]["total_bytes"] == token * 1_000 * 4
    assert rows["evicted"]["total_bytes"] == token * 100 * 4
    assert rows["shared prefix"]["total_bytes"] == token * (500 + 500 * 4)
    assert rows["reserved"]["total_bytes"] == token * 2_000 * 4
    assert rows["paged"]["total_bytes"] == token * 1_024 * 4
    assert "2,000 tokens (as given)" in rows["reserved"]["note"]


def test_what_does_not_apply_is_listed_with_its_reason() -> None:
    """A recurrent model has no heads to share; the rows stay, without figures."""
    rows = rows_of("mamba2-2.7b", "--remedies", "--ctx", "4096")
    assert rows["MQA"]["total_bytes"] is None
    assert rows["MQA"]["exact_ratio"] is None
    assert "does not apply: mamba2-2.7b has no layer with key and value heads" in rows["MQA"]["note"]
    assert "changes nothing here" in rows["KV in fp8"]["note"]
    text = answer("compare", "mamba2-2.7b", "--remedies", "--ctx", "4096")
    assert "MQA" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gpt2-small",), "name several models, or one of --attention, --kv-dtypes, --engines, --remedies"),
        ((), "name a model"),
        (("gpt2-small", "gpt2"), "'gpt2-small' is listed twice"),
        (("gpt2", "qwen3-8b", "--remedies"), "one comparison at a time: 2 models and --remedies"),
        (("gpt2", "--attention", "mha", "--kv-dtypes", "fp8"), "one comparison at a time: --attention and --kv-dtypes"),
        (("gpt2", "--kv-dtypes", "fp8,fp16", "--kv-dtype", "fp8"), "--kv-dtypes contradicts --kv-dtype"),
        (("gpt2", "--engines", "ideal", "--engine", "ideal"), "--engines contradicts --engine"),
        (("gpt2", "--attention", "mha,,mqa"), "an item is empty"),
        (("gpt2", "--attention", "gqa"), "for example gqa:4"),
        (("gpt2", "--attention", "gqa:5"), "kv_heads 5 does not divide the 12 heads"),
        (("gpt2", "--kv-dtypes", "fp16,fp61"), "unknown kv dtype 'fp61'; did you mean fp16"),
        (("gpt2", "--engines", "ideal,idael"), "unknown engine 'idael'; did you mean ideal?"),
        (("gpt2", "--remedies", "--engine", "transformers"), "--remedies are those of the ideal engine"),
        (("gpt2", "--remedies", "--evict", "windw:3"), "must be window:W[,sinks:S] or budget:N"),
    ],
)
def test_one_clear_comparison_at_a_time(arguments: tuple[str, ...], message: str) -> None:
    """Nothing to compare, or two things at once, is one line that says what to write."""
    result = run("compare", *arguments, "--ctx", "100")
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert result.err.count("\n") == 1


def test_an_engine_that_refuses_one_of_the_models_is_named_with_it() -> None:
    """16 ranks can split 32 heads, not 12: the message says whose."""
    result = run("compare", "llama-3.1-8b", "gpt2", "--tp", "16", "--ctx", "100")
    assert result.code == 1
    assert result.err.startswith("error: gpt2-small: tp 16 does not divide the 12 heads")
