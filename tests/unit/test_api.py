"""The library's front door: arguments in, typed results out."""

from __future__ import annotations

import json
from typing import Any

import pytest

import kvcalc
from kvcalc import api
from kvcalc.errors import BadInput
from tests.property.specs import small_spec

TOKEN = 4 * 2 * 4 * 64 * 2  # bytes of one token of the small model


def test_the_public_names_are_those_of_the_modules() -> None:
    """Loaded when they are used, listed before."""
    for name in (
        "load", "prepare", "size", "Setup", "SizeResult", "ModelSpec", "Footprint", "Placement", "KvcalcError",
        "BadInput", "SpecError", "UnsupportedByEngine",
    ):  # fmt: skip
        assert name in dir(kvcalc)
        assert getattr(kvcalc, name).__name__ == name
    with pytest.raises(AttributeError, match="module 'kvcalc' has no attribute 'sizes'"):
        getattr(kvcalc, "sizes")  # noqa: B009  (the attribute does not exist, which is the point)


def test_a_size_counts_every_sequence_and_every_rank() -> None:
    """Per token, per sequence, per rank and in total."""
    result = api.size(small_spec(), context=100, batch=3, tp=2, pp=2)

    assert result.per_token_bytes == TOKEN
    assert result.per_sequence_bytes == 100 * TOKEN
    assert result.total_bytes == 300 * TOKEN
    assert result.per_rank_bytes == (75 * TOKEN,) * 4


def test_copies_of_heads_count_in_the_total() -> None:
    """With more ranks than kv heads each rank holds a whole one."""
    result = api.size(small_spec(kv_heads=1), context=100, tp=8)

    assert result.total_bytes == 8 * 100 * TOKEN // 4
    assert result.per_token_bytes == 8 * TOKEN // 4


def test_replicas_share_the_batch() -> None:
    """Five sequences on two replicas: both provide for three, and the result says so."""
    result = api.size(small_spec(), context=10, batch=5, dp=2)

    assert result.per_rank_bytes == (30 * TOKEN, 30 * TOKEN)
    assert result.per_token_bytes == TOKEN
    assert result.assumptions == ("each of the 2 replicas provides for 3 sequences",)


@pytest.mark.parametrize(
    ("context", "layers_growing"),
    [(1, 4), (15, 4), (16, 2), (10**9, 2)],
)
def test_bytes_per_token_count_the_layers_that_still_grow(context: int, layers_growing: int) -> None:
    """A full window adds nothing."""
    kinds = {"local": {"kind": "sliding", "window": 16}, "global": {"kind": "full"}}
    spec = small_spec(kinds=kinds, pattern=["local", "global"])

    assert api.size(spec, context=context).per_token_bytes == layers_growing * TOKEN // 4


def test_bytes_per_token_are_not_rounded_to_blocks() -> None:
    """Blocks are set aside at once; a token still is a token."""
    assert api.size(small_spec(), context=1, options={"block_size": 16}).per_token_bytes == TOKEN


def test_a_chunk_grows_until_it_is_full() -> None:
    """The first chunk adds tokens; later ones only fill again what was held before."""
    spec = small_spec(kinds={"local": {"kind": "chunked", "chunk": 16}})

    assert api.size(spec, context=1).per_token_bytes == TOKEN
    assert api.size(spec, context=16).per_token_bytes == 0
    assert api.size(spec, context=20).per_token_bytes == 0
    assert api.size(spec, context=20).total_bytes == 4 * TOKEN


def test_the_breakdown_adds_up_and_lists_empty_layers() -> None:
    """By named kind, in order of first appearance; layers that keep nothing have a row of their own."""
    kinds = {"local": {"kind": "sliding", "window": 16}, "reader": {"kind": "shared", "of": "local"}}
    result = api.size(small_spec(kinds=kinds, pattern=["local", "reader", "none", "local"]), context=100)

    rows = [(row.label, row.kind, row.layers, row.bytes) for row in result.breakdown]

    assert rows == [("local", "sliding", 2, 8 * TOKEN), ("reader", "shared", 1, 0), ("none", "none", 1, 0)]
    assert sum(row.bytes for row in result.breakdown) == result.total_bytes


def test_weights_stand_beside_the_cache() -> None:
    """One copy, in the model's format or another; and the context from which the cache is larger."""
    spec = small_spec(parameters=10 * TOKEN)

    result = api.size(spec, context=1, batch=2)

    assert result.weights_bytes == 20 * TOKEN
    assert result.cache_passes_weights_at == 11
    assert api.size(spec, context=1, weights="q8_0").weights_bytes == 10 * TOKEN // 32 * 34
    assert api.size(small_spec(), context=1).weights_bytes is None
    assert api.size(small_spec(), context=1).cache_passes_weights_at is None


def test_a_context_beyond_the_trained_one_is_computed_with_a_warning() -> None:
    """gpt2-small at 4,096 is such a case."""
    spec = small_spec(max_context=50)

    assert api.size(spec, context=50).warnings == ()
    assert api.size(spec, context=51).warnings == ("small was trained for 50 positions; context 51 is beyond them",)
    assert api.size(spec, context=51).total_bytes == 51 * TOKEN


def test_assumptions_are_listed_until_they_are_replaced() -> None:
    """What the source does not give is said, with the option that changes it."""
    spec = small_spec(assumed=["dtype"])

    assert api.size(spec, context=1).assumptions == (
        "dtype bfloat16: the source of small does not give it (--dtype changes it)",
    )
    assert api.size(spec, context=1, dtype="fp16").assumptions == ()


def test_the_dtype_decides_the_cache_unless_that_is_given() -> None:
    """`dtype` replaces the model's format, `kv_dtype` the cache's alone."""
    assert api.size(small_spec(), context=10, dtype="fp32").total_bytes == 20 * TOKEN
    assert api.size(small_spec(), context=10, dtype="fp32", kv_dtype="fp8").total_bytes == 5 * TOKEN
    assert api.size(small_spec(), context=10, kv_dtype="fp16/fp8").kv_dtype == "fp16/fp8"


def test_the_encoder_context_replaces_the_spec_s() -> None:
    """In cross-attention layers; a model without any refuses it."""
    kinds = {"self": {"kind": "full"}, "cross": {"kind": "cross", "encoder_context": 7}}
    spec = small_spec(kinds=kinds, pattern=[["self", "cross"]])

    assert api.size(spec, context=10).total_bytes == 17 * TOKEN
    assert api.size(spec, context=10, encoder_context=100).total_bytes == 110 * TOKEN
    with pytest.raises(BadInput, match=r"^small has no cross-attention layers; drop the encoder context$"):
        api.size(small_spec(), context=10, encoder_context=5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"context": 0}, "context must be between 1 and 1,000,000,000,000, not 0"),
        ({"context": -1}, "context must be between 1 and 1,000,000,000,000, not -1"),
        ({"context": 10**13}, "context must be between 1 and 1,000,000,000,000, not 10,000,000,000,000"),
        ({"context": 1, "batch": 0}, "batch must be between 1 and 1,000,000,000,000, not 0"),
        ({"context": 1, "tp": 0}, "tp must be between 1 and 4,096, not 0"),
        ({"context": 1, "dp": 5000}, "dp must be between 1 and 4,096, not 5,000"),
        ({"context": 1, "tp": 8, "dp": 4096}, "tp * pp * dp must be between 1 and 4,096, not 32,768"),
        ({"context": 1, "engine": "vlm"}, "unknown engine 'vlm'; did you mean vllm?"),
        ({"context": 1, "dtype": "bf17"}, "unknown dtype 'bf17'; did you mean bf16?"),
        ({"context": 1, "kv_dtype": "q8_1"}, "unknown kv dtype 'q8_1'; did you mean q8_0 or q5_1 or q4_1?"),
        ({"context": 1, "weights": "int5"}, "unknown weights format 'int5'; did you mean int8 or int4?"),
        (
            {"context": 1, "options": {"blocksize": 3}},
            "engine ideal has no option 'blocksize'; did you mean block_size?",
        ),
    ],
)
def test_values_out_of_range_are_refused_by_name(arguments: dict[str, Any], message: str) -> None:
    """One line that names the argument, its range or the nearest known value."""
    with pytest.raises(BadInput) as caught:
        api.size(small_spec(), **arguments)
    assert str(caught.value) == message


def test_results_are_json_and_text() -> None:
    """The stable keys, whole numbers, and the report that `str` gives."""
    result = api.size("gpt2-small", context=4096, batch=8)
    data = json.loads(json.dumps(result.to_json()))

    assert data["schema"] == "kvcalc.size/1"
    assert data["total_bytes"] == 1_207_959_552
    assert set(data) >= {
        "model", "engine", "context", "batch", "dtype", "kv_dtype", "per_token_bytes", "per_sequence_bytes",
        "total_bytes", "per_rank_bytes", "weights_bytes", "breakdown", "engine_report", "log_lines", "assumptions",
        "warnings",
    }  # fmt: skip
    assert "KV cache      1.12 GiB  (1,207,959,552 bytes)" in str(result)


def test_a_prepared_setup_answers_many_questions() -> None:
    """Placed once, measured at any context and batch."""
    setup = api.prepare(small_spec())

    assert [api.measure(setup, n, 2).total_bytes for n in (1, 10, 100)] == [2 * TOKEN, 20 * TOKEN, 200 * TOKEN]


def test_the_largest_arguments_are_answered_exactly() -> None:
    """Nothing overflows: integers are as long as they need to be."""
    assert api.size(small_spec(), context=10**12, batch=10**12).total_bytes == 10**24 * TOKEN
