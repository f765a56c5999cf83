"""JSON answers: the keys that scripts rely on, whole numbers of bytes, and nothing else on standard output."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.running import answer, run

# The stable keys of each answer; a later version may add to them, never take away.
KEYS = {
    "size gpt2-small --ctx 4096 --batch 8": {
        "schema", "model", "engine", "context", "batch", "dtype", "kv_dtype", "per_token_bytes", "per_sequence_bytes",
        "total_bytes", "per_rank_bytes", "weights_bytes", "breakdown", "engine_report", "log_lines", "assumptions",
        "warnings",
    },
    "explain gpt2-small --ctx 4096 --batch 8": {
        "schema", "model", "engine", "context", "batch", "steps", "total_bytes", "attention", "sources", "assumptions",
        "warnings",
    },
    "compare gpt2-small --attention mha,mqa --ctx 4096": {
        "schema", "context", "batch", "baseline", "rows", "warnings",
    },
    "models gpt2": {"schema", "models"},
    "show gpt2-small": {
        "schema", "name", "aliases", "architecture", "layers", "hidden_size", "heads", "kv_heads", "head_dim", "dtype",
        "max_context", "parameters", "layout", "kinds", "source", "assumed", "file",
    },
    "engines": {"schema", "engines"},
}  # fmt: skip
ROW_KEYS = {
    ("size", "breakdown"): {"label", "kind", "layers", "bytes"},
    ("explain", "steps"): {"text", "formula", "bytes"},
    ("explain", "attention"): {"name", "kv_heads", "total_bytes"},
    ("compare", "rows"): {
        "label", "model", "engine", "kv_dtype", "per_token_bytes", "per_sequence_bytes", "total_bytes", "ratio", "note",
    },
    ("models", "models"): {
        "name", "aliases", "architecture", "layers", "per_token_bytes", "context_4096_bytes", "max_context",
        "parameters",
    },
    ("show", "kinds"): {"name", "kind", "layers", "dimensions", "keeps", "source"},
    ("engines", "engines"): {"name", "version", "summary", "options"},
}  # fmt: skip


@pytest.mark.parametrize("call", KEYS)
def test_an_answer_has_its_stable_keys(call: str) -> None:
    """`--json` and `--format json` are one thing, with the schema's name and every key that was promised."""
    data = json.loads(answer(*call.split(), "--json"))
    assert json.loads(answer(*call.split(), "--format", "json")) == data
    command = call.split(maxsplit=1)[0]
    assert data["schema"] == f"kvcalc.{command}/1"
    assert set(data) >= KEYS[call]
    for (owner, name), keys in ROW_KEYS.items():
        if owner == command:
            assert all(set(row) >= keys for row in data[name])


@pytest.mark.parametrize("call", KEYS)
def test_sizes_are_whole_numbers(call: str) -> None:
    """A key that ends in _bytes, or is called bytes, holds an int (or null), or a list of them."""
    for name, value in _pairs(json.loads(answer(*call.split(), "--json"))):
        if name == "bytes" or name.endswith("_bytes"):
            assert value is None or isinstance(value, int), name


def _pairs(data: Any) -> Iterator[tuple[str, Any]]:
    """Yield every key with its value, lists item by item."""
    if isinstance(data, dict):
        for name, value in data.items():
            for item in value if isinstance(value, list) else [value]:
                yield name, item
                yield from _pairs(item)


@pytest.mark.parametrize("call", KEYS)
def test_csv_has_one_heading_and_rows_of_its_length(call: str) -> None:
    """Every CSV answer parses, with as many cells in each row as in the heading."""
    heading, *rows = csv.reader(io.StringIO(answer(*call.split(), "--format", "csv")))
    assert rows
    assert {len(row) for row in rows} == {len(heading)}


@pytest.mark.parametrize("call", KEYS)
def test_markdown_is_one_table(call: str) -> None:
    """Every Markdown answer is a table whose rows all have the columns of its heading."""
    lines = answer(*call.split(), "--format", "md").splitlines()
    assert set(lines[1]) <= set("|-: ")
    assert {line.replace("\\|", "").count("|") for line in lines} == {lines[0].count("|")}


def test_a_warning_goes_to_standard_error_and_into_the_answer() -> None:
    """A context beyond the trained maximum is computed; standard output stays pure JSON."""
    calls = (
        ("size", "gpt2", "--ctx", "4096"),
        ("explain", "gpt2", "--ctx", "4096"),
        ("compare", "gpt2", "--attention", "mha,mqa", "--ctx", "4096"),
    )
    for call in calls:
        result = run(*call, "--json")
        text = "gpt2-small was trained for 1,024 positions; context 4,096 is beyond them"
        assert result.err == f"warning: {text}\n"
        assert json.loads(result.out)["warnings"] == [text]


def test_every_engine_explains_all_its_options() -> None:
    """No option is listed without words."""
    for engine in json.loads(answer("engines", "--json"))["engines"]:
        assert engine["summary"]
        for option in engine["options"]:
            assert option["meaning"], (engine["name"], option["name"])


def test_the_whole_catalogue_is_listed() -> None:
    """`models` lists every bundled spec once, sorted, each sized in the published dtype."""
    from kvcalc import api
    from kvcalc.spec.load import index

    rows = json.loads(answer("models", "--json"))["models"]
    assert [row["name"] for row in rows] == sorted(index())
    for row in rows:
        assert row["context_4096_bytes"] == api.size(row["name"], context=4096).total_bytes


def test_a_query_matches_names_and_aliases_in_any_case() -> None:
    """`OpenAI-Community/GPT2-XL` is an alias of gpt2-xl."""
    rows = json.loads(answer("models", "COMMUNITY/gpt2-x", "--json"))["models"]
    assert [row["name"] for row in rows] == ["gpt2-xl"]
