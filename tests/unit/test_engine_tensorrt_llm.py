"""TensorRT-LLM's rules with numbers worked out by hand."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcalc.errors import BadInput, UnsupportedByEngine
from tests.property.specs import small_spec
from tests.served import Served

MIB, GIB = 2**20, 2**30

LOCAL = {"kind": "sliding", "window": 100}
LATENT = {"kind": "mla", "kv_lora_rank": 512, "qk_rope_head_dim": 64}
INDEX = {"kind": "indexer", "index_head_dim": 128}
MAMBA = {"kind": "state", "variant": "mamba1", "channels": 8, "state_size": 4, "conv_kernel": 4}
HYBRID = {"global": {"kind": "full"}, "local": LOCAL}
_ARGUMENTS = ("options", "dtype", "kv_dtype", "tp", "pp", "dp", "dcp")


def prepared(kinds: dict[str, Any] | None = None, pattern: list[Any] | None = None, **given: Any) -> Served:
    """Return a small model: 4 layers, 8 heads, 4 kv heads of 64 unless kinds or dimensions say otherwise."""
    arguments = {name: given.pop(name) for name in _ARGUMENTS if name in given}
    if kinds is not None:
        given |= {"kinds": kinds, "pattern": pattern or list(kinds)}
    served = Served(small_spec(**given), "tensorrt-llm", arguments)
    assert served.setup  # refusals show here
    return served


def per_token(setup: Served) -> list[int]:
    """Return the bytes of a token on every rank."""
    found: list[int] = setup.report()["bytes_per_token_per_rank"]
    return found


# Bytes of a token -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kv_dtype", "size"), [(None, 4096), ("fp8", 2048), ("nvfp4", 1024 + 128)])
def test_formats(kv_dtype: str | None, size: int) -> None:
    """4 heads x 64 x 2 x 4 layers are 2,048 elements; nvfp4 is half a byte and 1/16 of scale for each."""
    setup = prepared(kv_dtype=kv_dtype)
    assert per_token(setup) == [size]
    assert per_token(prepared(options={"dtype": kv_dtype or "auto"})) == [size]


@pytest.mark.parametrize(("kv_heads", "tp", "heads"), [(4, 1, 4), (4, 4, 1), (4, 8, 1), (6, 4, 2)])
def test_heads_of_a_rank_are_rounded_up(kv_heads: int, tp: int, heads: int) -> None:
    """Where others floor, six heads on four ranks are two on each."""
    assert per_token(prepared(heads=24, kv_heads=kv_heads, tp=tp)) == [heads * 128 * 2 * 4] * tp


@pytest.mark.parametrize(
    ("kv_heads", "tp", "kv_dtype", "estimate"),
    [(4, 4, None, 1024), (4, 8, None, 512), (6, 4, None, 1536), (4, 2, "fp8", 1024), (4, 1, "nvfp4", None)],
)
def test_the_estimator_has_its_own_number(kv_heads: int, tp: int, kv_dtype: str | None, estimate: int | None) -> None:
    """head_dim x heads floored over the ranks: half the truth where ranks are twice the heads."""
    setup = prepared(heads=24, kv_heads=kv_heads, tp=tp, kv_dtype=kv_dtype)
    assert setup.report()["estimated_bytes_per_token_per_rank"] == [estimate] * tp


def test_a_latent_has_no_values_and_is_whole_on_every_rank() -> None:
    """576 elements; the estimator's figure for it is not known."""
    assert per_token(prepared({"mla": LATENT})) == [4 * 576 * 2]
    setup = prepared({"mla": LATENT}, kv_dtype="nvfp4", tp=4)
    assert per_token(setup) == [4 * 324] * 4
    assert setup.report()["estimated_bytes_per_token_per_rank"] == [None] * 4


def test_attention_data_parallel_ranks_keep_whole_heads() -> None:
    """Each of 4 ranks serves a fourth of the batch with all heads."""
    setup = prepared(tp=4, options={"enable_attention_dp": True})
    result = setup.size(32, 6)
    assert per_token(setup) == [4096]
    assert result.per_rank_bytes == (2 * 32 * 4096,) * 4
    assert setup.fit(10 * 32 * 4096, context=32).max_batch == 40
    assert setup.setup.engine.weight_shares(setup.setup.spec, setup.setup.deployment) == (Fraction(1, 4),)


# Blocks ---------------------------------------------------------------------------------------------------------------


@given(memory=st.integers(1, 30 * MIB), block=st.sampled_from([32, 64]))
def test_blocks_are_the_whole_ones_and_none_is_kept_back(memory: int, block: int) -> None:
    """int(memory / bytes per token // tokens per block); all of them hold sequences."""
    result = prepared(options={"tokens_per_block": block}).fit(memory, context=block)
    blocks = int(memory / 4096 // block)
    report = result.engine_report
    assert (report["num_blocks"], report["max_tokens"], result.max_batch) == (blocks, blocks * block, blocks)
    assert report["allocated_bytes_per_rank"] == [blocks * block * 4096]


def test_max_tokens_caps_the_blocks() -> None:
    """1,000 tokens are 31 blocks of 32."""
    setup = prepared(options={"max_tokens": 1000})
    assert setup.report(GIB)["num_blocks"] == 31
    assert setup.report(5 * 32 * 4096)["num_blocks"] == 5


def test_stages_take_the_least() -> None:
    """Two layers on each of two stages."""
    setup = prepared(pp=2)
    assert per_token(setup) == [2048, 2048]
    assert setup.report(10 * 32 * 2048)["num_blocks"] == 10


def test_a_sequence_longer_than_the_pool_is_cut() -> None:
    """10 blocks hold 320 tokens: a longer context does not fit, and the server lowers its own."""
    result = prepared().fit(10 * 32 * 4096, context=1000)
    assert (result.fits, result.max_context, result.engine_report["max_seq_len"]) == (False, 320, 320)
    assert result.engine_report["log_lines"] == [
        "Max KV cache blocks per sequence: 10 [window size=320], tokens per block=32, primary blocks=10",
        "Allocated 0.00 GiB for max tokens in paged KV cache (320)",
    ]


def test_no_block_at_all() -> None:
    """Is said, and nothing is logged."""
    report = prepared().fit(1000).engine_report
    assert (report["admitted"], report["admission_error"], report["log_lines"]) == (
        False,
        "not enough memory for a block",
        [],
    )


# Windows --------------------------------------------------------------------------------------------------------------


@given(memory=st.integers(1, 30 * MIB), kv_dtype=st.sampled_from(["bf16", "fp8", "nvfp4"]))
def test_windows_share_the_memory_equally_whatever_their_layers(memory: int, kv_dtype: str) -> None:
    """One full layer and three windowed ones: half the memory each, divided without scales; capacity agrees."""
    setup = prepared(HYBRID, ["local", "local", "local", "global"], kv_dtype=kv_dtype)
    result = setup.fit(memory, context=90)
    element = {"bf16": Fraction(2), "fp8": Fraction(1), "nvfp4": Fraction(1, 2)}[kv_dtype]
    blocks = [int(Fraction(memory, 2) / (layers * 512 * element) // 32) for layers in (3, 1)]
    counts = [(row["window"], row["num_blocks"]) for row in result.engine_report["windows"]]
    assert counts == [(100, blocks[0]), (None, blocks[1])]
    assert result.max_batch == min(blocks) // 3  # 90 tokens are three blocks in either
    with_scales = element + Fraction(1, 16) * (kv_dtype == "nvfp4")
    size = 32 * 512 * with_scales * (3 * blocks[0] + blocks[1])
    assert result.engine_report["allocated_bytes_per_rank"] == [size]


def test_a_window_keeps_the_blocks_of_its_last_tokens() -> None:
    """100 tokens are four blocks of 32, whatever the context; the full layer grows."""
    setup = prepared(HYBRID, ["local", "local", "local", "global"])
    result = setup.size(1000, 1)
    assert result.engine_report["blocks_per_sequence"] == {"100": 4, "all": 32}
    assert result.total_bytes == (3 * 4 + 32) * 32 * 1024


def test_a_window_that_never_binds_is_none() -> None:
    """With max_seq_len 100 all layers keep every token and share their blocks."""
    setup = prepared(HYBRID, options={"max_seq_len": 100})
    assert setup.report(32 * 4096 * 7)["num_blocks"] == 7
    with pytest.raises(BadInput, match="context 101 exceeds max_seq_len=100"):
        setup.size(101, 1)


def test_windows_can_be_given() -> None:
    """A list is repeated over the layers; one entry is a window of its own for all."""
    setup = prepared(HYBRID, ["local", "global"], options={"max_attention_window": "64,5000"})
    assert setup.report(context=9999)["blocks_per_sequence"] == {"64": 2, "5000": 157}
    uniform = prepared(HYBRID, options={"max_attention_window": "4096"})
    assert uniform.report(32 * 4096 * 7, context=64)["num_blocks"] == 7
    with pytest.raises(UnsupportedByEngine, match="several windows"):
        prepared(options={"max_attention_window": "64,5000"})


def test_too_little_memory_for_one_sequence_of_several_windows_is_not_guessed() -> None:
    """How the largest windows shrink is not covered: it does not fit, and that is said."""
    setup = prepared(HYBRID, ["local", "local", "local", "global"], options={"max_tokens": 32})
    result = setup.fit(2 * 32 * 1024 * 10, context=400)
    assert (result.fits, result.engine_report["admitted"]) == (False, False)
    assert "by a rule that is not covered" in result.engine_report["admission_error"]
    assert any("max_tokens 32 has no effect" in text for text in result.assumptions)


def test_windows_of_one_size_share_one_pool() -> None:
    """Mistral's: no cut of the memory."""
    setup = prepared({"local": LOCAL})
    result = setup.fit(32 * 4096 * 7, context=5000)
    assert (result.engine_report["num_blocks"], result.fits, result.max_context) == (7, True, None)


# Refusals -------------------------------------------------------------------------------------------------------------

STRANGE: list[tuple[dict[str, Any], str]] = [
    ({"kinds": {"c": {"kind": "chunked", "chunk": 64}}}, "small is not covered .*chunked"),
    ({"kinds": {"c": {"kind": "cross", "encoder_context": 9}, "f": {"kind": "full"}}}, "cross"),
    ({"kinds": {"f": {"kind": "full"}, "s": {"kind": "shared", "of": "f"}}}, "shared"),
    ({"kinds": {"a": LATENT, "i": INDEX}, "pattern": [["a", "i"]]}, "indexer"),
    ({"kinds": {"f": {"kind": "full"}, "m": MAMBA}}, "V2 cache manager"),
    ({"kinds": {"m": MAMBA}}, "it has state layers"),
    ({"architecture": "gemma4_text"}, "V2 cache manager"),
    ({"kinds": {"l": LOCAL, "a": LATENT}}, "windowed beside MLA"),
    ({"v_head_dim": 32}, "one head size"),
    ({"kv_dtype": "int8"}, "does not store the cache as int8"),
    ({"kv_dtype": "fp8/nvfp4"}, "K and V alike"),
    ({"dtype": "fp32"}, "not fp32"),
    ({"tp": 3}, "tp 3 does not divide the 8 heads"),
    ({"pp": 3}, "pp 3 does not divide the 4 layers"),
    ({"tp": 2, "dcp": 2}, "dcp 2 is not covered"),
    ({"pp": 2, "kinds": HYBRID, "pattern": ["global", "global", "local", "local"]}, "lack a sort of window"),
]


@pytest.mark.parametrize(("given_", "message"), STRANGE, ids=[message for _, message in STRANGE])
def test_what_is_not_covered_is_refused_by_name(given_: dict[str, Any], message: str) -> None:
    """Each refusal says what it is about."""
    with pytest.raises(UnsupportedByEngine, match=message):
        prepared(**given_)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens_per_block": "0"}, "tokens_per_block"),
        ({"free_gpu_memory_fraction": "0.9"}, "no option 'free_gpu_memory_fraction'"),
        ({"max_attention_window": "12,x"}, "whole numbers"),
        ({"max_attention_window": "0"}, "whole numbers"),
        ({"dtype": "int8"}, "dtype"),
    ],
)
def test_options_out_of_range(options: dict[str, str], message: str) -> None:
    """One line that names the option."""
    with pytest.raises(BadInput, match=message):
        prepared(options=options)


def test_two_dtypes_that_differ() -> None:
    """`--kv-dtype` and `-o dtype` must agree."""
    assert prepared(kv_dtype="fp8", options={"dtype": "fp8"}).setup.kv_dtype == "fp8"
    with pytest.raises(BadInput, match="contradict"):
        prepared(kv_dtype="bf16", options={"dtype": "fp8"})


def test_the_least_memory_is_the_least() -> None:
    """With windows, half of it must hold the blocks of the hungrier part."""
    setup = prepared(HYBRID, ["local", "local", "local", "global"])
    least = setup.least_memory(context=2000)
    assert least == 2 * math.ceil(2000 / 32) * 32 * 1024
    assert setup.fit(least, context=2000).fits
    assert not setup.fit(least - 1, context=2000).fits
