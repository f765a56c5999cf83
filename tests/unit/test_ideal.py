"""The ideal engine on known models: each remedy alone, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc import api
from kvcalc.engines.ideal import ENGINE, Eviction
from kvcalc.errors import BadInput, UnsupportedByEngine
from tests.property.specs import small_spec

TOKEN = 2 * 4 * 64 * 2  # bytes of one token in one layer of the small model: K and V, 4 kv heads of 64 in bf16


def set_aside(context: int, batch: int, options: dict[str, Any] | None = None, **changes: Any) -> tuple[int, int]:
    """Return (held, set aside) in tokens of one layer of the small model."""
    placement = api.prepare(small_spec(layers=1, **changes), options=options).placement
    sizes = placement.held_bytes(context, batch), placement.total_bytes(context, batch)
    assert all(size % TOKEN == 0 for size in sizes)
    return sizes[0] // TOKEN, sizes[1] // TOKEN


def test_gpt2_small_takes_what_the_formula_says() -> None:
    """2 x 12 layers x 12 heads x 64 x 4,096 tokens x 8 sequences x 2 bytes."""
    assert api.size("gpt2-small", context=4096, batch=8).total_bytes == 2 * 12 * 12 * 64 * 4096 * 8 * 2 == 1_207_959_552


def test_blocks_are_counted_whole() -> None:
    """100 tokens lie in 7 blocks of 16."""
    assert set_aside(100, 3, {"block_size": 16}) == (300, 3 * 112)


def test_a_window_is_a_ring_of_whole_blocks() -> None:
    """A window of 20 needs 2 blocks of 16, however long the context."""
    kinds = {"local": {"kind": "sliding", "window": 20}}

    assert set_aside(10, 1, {"block_size": 16}, kinds=kinds) == (10, 16)
    assert set_aside(100_000, 1, {"block_size": 16}, kinds=kinds) == (20, 32)


def test_a_reservation_is_made_at_the_start() -> None:
    """Memory for 2,048 tokens, whether they come or not; a window reserves its window."""
    kinds = {"local": {"kind": "sliding", "window": 20}}

    assert set_aside(1, 2, {"reserve_ctx": 2048}) == (2, 4096)
    assert set_aside(1, 2, {"reserve_ctx": 2048}, kinds=kinds) == (2, 40)


def test_streaming_keeps_sinks_and_recent_tokens() -> None:
    """Window 1,020 and 4 sinks: 1,024 tokens at any later context."""
    options = {"evict": "window:1020,sinks:4"}

    assert set_aside(1024, 1, options) == (1024, 1024)
    assert set_aside(32_768, 1, options) == (1024, 1024)


@pytest.mark.parametrize(("window", "kept"), [(512, 512), (1020, 1020), (1022, 1022), (1024, 1024), (4096, 1024)])
def test_eviction_never_gives_a_layer_more_than_its_own_window(window: int, kept: int) -> None:
    """A sliding layer keeps the smaller of both; sinks fit only beside the recent tokens."""
    kinds = {"local": {"kind": "sliding", "window": window}}

    assert set_aside(32_768, 1, {"evict": "window:1020,sinks:4"}, kinds=kinds) == (kept, kept)


def test_a_budget_keeps_that_many_tokens() -> None:
    """H2O and SnapKV: which ones depends on the data, how many does not."""
    assert set_aside(32_768, 2, {"evict": "budget:1000"}) == (2000, 2000)


def test_a_shared_prefix_is_stored_once_in_whole_blocks() -> None:
    """100 prefix tokens in blocks of 16: 96 are shared, the other 4 belong to each sequence."""
    assert set_aside(200, 8, {"shared_prefix": 100}) == (100 + 8 * 100,) * 2
    assert set_aside(200, 8, {"shared_prefix": 100, "block_size": 16}) == (96 + 8 * 104, 96 + 8 * 112)


def test_prefix_blocks_leave_with_the_last_window_that_covers_them() -> None:
    """With a window of 10, prefix tokens 0..31 in blocks of 8: one more block is released every 8 tokens."""
    kinds = {"local": {"kind": "sliding", "window": 10}}
    options = {"shared_prefix": 32, "block_size": 8}

    shared = [set_aside(n, 1, options, kinds=kinds)[1] - -(-min(n - 32, 10) // 8) * 8 for n in (32, 34, 41, 42, 60)]

    assert shared == [16, 8, 8, 0, 0]


@pytest.mark.parametrize(
    ("text", "eviction"),
    [
        ("window:1020,sinks:4", Eviction(1020, 4)),
        ("window:8", Eviction(8)),
        ("budget:64", Eviction(64, which_depends_on_data=True)),
    ],
)
def test_eviction_rules_are_read(text: str, eviction: Eviction) -> None:
    """The two forms of --evict."""
    assert Eviction.parse(text) == eviction


@pytest.mark.parametrize(
    "text", ["", "window", "window:", "window:-1", "sinks:4", "window:8,sinks:", "lru:3", "window:8 "]
)
def test_other_eviction_rules_are_refused(text: str) -> None:
    """With the form that is wanted and an example."""
    with pytest.raises(BadInput) as caught:
        ENGINE.parse_options({"evict": text})
    assert str(caught.value) == (
        f"option evict={text}: must be window:W[,sinks:S] or budget:N, for example window:1020,sinks:4"
    )


@pytest.mark.parametrize("text", ["window:0", f"budget:{2**41}"])
def test_an_eviction_keeps_at_least_one_token(text: str) -> None:
    """And no more than a context can have."""
    with pytest.raises(BadInput, match=r"must keep at least one token, and at most 2\^40"):
        ENGINE.parse_options({"evict": text})


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ({"blok_size": "16"}, "engine ideal has no option 'blok_size'; did you mean block_size?"),
        ({"zzz": "1"}, "engine ideal has no option 'zzz'; it takes block_size, reserve_ctx, evict, shared_prefix"),
        ({"block_size": "0"}, "option block_size=0: must be at least 1"),
        (
            {"block_size": "x"},
            "option block_size=x: must be a whole number",
        ),
        ({"shared_prefix": "-1"}, "option shared_prefix=-1: must be at least 0"),
    ],
)
def test_options_out_of_range_are_refused(pairs: dict[str, str], message: str) -> None:
    """By the option's own name."""
    with pytest.raises(BadInput) as caught:
        ENGINE.parse_options(pairs)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reserve_ctx": 99}, "context 100 exceeds --reserve-ctx 99; reserve at least as much"),
        ({"shared_prefix": 101}, "--shared-prefix 101 exceeds the context 100"),
    ],
)
def test_a_context_that_contradicts_the_options_is_refused(options: dict[str, Any], message: str) -> None:
    """Nothing is computed for a question that makes no sense."""
    with pytest.raises(BadInput) as caught:
        api.size(small_spec(), context=100, options=options)
    assert str(caught.value) == message


CHUNKED = {"kinds": {"x": {"kind": "chunked", "chunk": 20}}}
COMPRESSED = {"kinds": {"x": {"kind": "compressed", "head_dim": 64, "window": 8, "ratio": 4}}}


@pytest.mark.parametrize(
    ("changes", "arguments", "message"),
    [
        ({}, {"dcp": 2}, "engine ideal has no decode context parallelism; drop --dcp"),
        ({}, {"tp": 3}, "tp 3 does not divide the 8 heads; use tp 1 2 4 8"),
        ({"heads": 24, "kv_heads": 3, "head_dim": 64}, {"tp": 2},
         "tp 2 neither divides the 3 kv_heads nor is a multiple of them"),
        ({}, {"pp": 5}, "pp 5 needs at least 5 layers; small has 4"),
        ({"head_dim": 80}, {"kv_dtype": "q8_0"},
         "format q8_0 stores blocks of 32 elements, which do not divide a row of 80"),
        ({}, {"options": {"evict": "budget:8", "shared_prefix": 4}},
         "--evict budget:N with --shared-prefix is not covered: which prefix tokens survive depends on the data; "
         "use --evict window:W,sinks:S"),
        (CHUNKED, {"options": {"evict": "window:8", "shared_prefix": 4}},
         "chunked layers with a shared prefix and eviction are not covered"),
        (CHUNKED, {"options": {"block_size": 16, "shared_prefix": 32}},
         "chunked layers with a shared prefix and blocks of 16 that do not divide the chunk of 20 are not covered"),
        (COMPRESSED, {"options": {"block_size": 16}}, "block_size is not covered for compressed layers (DeepSeek-V4)"),
        (COMPRESSED, {"options": {"evict": "window:8"}}, "--evict is not covered for compressed layers (DeepSeek-V4)"),
    ],
)  # fmt: skip
def test_what_the_engine_cannot_do_is_refused_with_the_reason(
    changes: dict[str, Any], arguments: dict[str, Any], message: str
) -> None:
    """One line that names the option or the dimension."""
    with pytest.raises(UnsupportedByEngine) as caught:
        api.prepare(small_spec(**changes), **arguments)
    assert str(caught.value) == message


def test_rows_of_odd_sizes_are_split_before_they_are_stored() -> None:
    """Tensor parallelism splits heads, not rows: q8_0 needs whole blocks in one head, whatever tp is."""
    spec = small_spec(heads=8, kv_heads=8, head_dim=64)

    ranks = api.prepare(spec, tp=8, kv_dtype="q8_0").placement.per_rank_bytes(10, 1)

    assert ranks == (10 * 4 * 2 * (64 // 32 * 34),) * 8


def test_keys_and_values_may_be_stored_apart() -> None:
    """q8_0 keys (34 bytes per 32) and q4_0 values (18 per 32)."""
    assert api.size(small_spec(layers=1), context=10, kv_dtype="q8_0/q4_0").total_bytes == 10 * 4 * (2 * 34 + 2 * 18)


def test_the_cache_format_leaves_states_alone() -> None:
    """An fp8 cache shrinks keys and values; the recurrent state keeps fp32, the convolution the model's dtype."""
    kinds = {"x": {"kind": "state", "variant": "mamba1", "channels": 10, "state_size": 4, "conv_kernel": 3}}
    spec = small_spec(layers=1, kinds=kinds)

    assert api.size(spec, context=9, kv_dtype="fp8").total_bytes == 10 * (2 * 2 + 4 * 4)
    assert api.size(spec, context=9, dtype="fp32").total_bytes == 10 * (2 * 4 + 4 * 4)


def test_the_report_says_what_is_set_aside_and_unused() -> None:
    """Held and admitted bytes are never merged."""
    result = api.size(small_spec(layers=1), context=100, options={"block_size": 16})

    assert result.engine_report == {"held_bytes": 100 * TOKEN, "set_aside_unused_bytes": 12 * TOKEN}
    assert result.total_bytes == 112 * TOKEN
