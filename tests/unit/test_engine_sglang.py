"""SGLang's rules with numbers worked out by hand, and the cut of the memory against a search byte by byte."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcalc.capacity import capacity
from kvcalc.engines import _sglang_rules as rules
from kvcalc.errors import BadInput, UnsupportedByEngine
from tests.property.specs import small_spec
from tests.served import Served

MIB, GIB = 2**20, 2**30

LOCAL = {"kind": "sliding", "window": 100}
MAMBA = {
    "kind": "state",
    "variant": "mamba2",
    "state_heads": 8,
    "state_head_dim": 16,
    "groups": 2,
    "state_size": 32,
    "conv_kernel": 4,
}
RG_LRU = {"kind": "state", "variant": "rg_lru", "channels": 8, "conv_kernel": 4}
LATENT = {"kind": "mla", "kv_lora_rank": 512, "qk_rope_head_dim": 64}
INDEX = {"kind": "indexer", "index_head_dim": 128}
SPARSE = {"a": LATENT, "i": INDEX}
_ARGUMENTS = ("options", "dtype", "kv_dtype", "tp", "pp", "dp", "dcp")


def prepared(kinds: dict[str, Any] | None = None, pattern: list[Any] | None = None, **given: Any) -> Served:
    """Return a small model on SGLang: 4 layers, 8 heads, 4 kv heads of 64 unless kinds or dimensions say otherwise."""
    arguments = {name: given.pop(name) for name in _ARGUMENTS if name in given}
    if kinds is not None:
        given |= {"kinds": kinds, "pattern": pattern or list(kinds)}
    served = Served(small_spec(**given), "sglang", arguments)
    assert served.setup  # refusals show here
    return served


def cells(setup: Served) -> list[Fraction]:
    """Return the bytes of a token of max_total_num_tokens on every rank."""
    return [Fraction(text) for text in setup.report()["cell_bytes_per_rank"]]


# Bytes of a token -----------------------------------------------------------------------------------------------------


def test_a_token_takes_its_keys_and_values_in_every_layer() -> None:
    """4 kv heads x (64 + 64) x 2 bytes x 4 layers."""
    assert cells(prepared()) == [4096]


@pytest.mark.parametrize(
    ("kv_dtype", "expected"),
    [("bf16", 4096), ("fp8", 2048), ("mxfp8", 2048 + 2048 // 32), ("fp8/nvfp4", 1024 + 512 + 64)],
)
def test_formats_of_keys_and_values(kv_dtype: str, expected: int) -> None:
    """mxfp8 adds a byte to 32 elements; fp4 values are half a byte and a byte of scale for 16."""
    assert cells(prepared(kv_dtype=kv_dtype)) == [expected]


@pytest.mark.parametrize(
    ("name", "kv_dtype"), [("auto", "bf16"), ("bfloat16", "bf16"), ("fp8_e5m2", "fp8"), ("mxfp8", "mxfp8")]
)
def test_the_cache_dtype_by_its_own_name(name: str, kv_dtype: str) -> None:
    """`-o kv_cache_dtype` is another way to say it."""
    setup = prepared(options={"kv_cache_dtype": name})
    assert (setup.setup.kv_dtype, cells(setup)) == (kv_dtype, cells(prepared(kv_dtype=kv_dtype)))


@pytest.mark.parametrize(("tp", "heads"), [(1, 4), (2, 2), (4, 1), (8, 1)])
def test_heads_of_a_rank(tp: int, heads: int) -> None:
    """The floor of the share, at least one."""
    assert cells(prepared(tp=tp)) == [heads * 128 * 2 * 4] * tp


def test_uneven_heads_are_floored_and_said() -> None:
    """6 kv heads on 4 ranks are sized as one on each: a size with a remark."""
    setup = prepared(heads=12, kv_heads=6, tp=4)
    assert cells(setup) == [128 * 2 * 4] * 4
    assert any("6 kv_heads on 4 ranks: sized as 1 on each" in text for text in setup.setup.assumptions)


def test_context_parallel_ranks_have_copies_of_the_heads_and_a_part_of_the_tokens() -> None:
    """On tp 4, dcp 2 a rank has the heads of tp 2 and every second token; indexer keys are those of all tokens."""
    setup = prepared(tp=4, dcp=2)
    assert cells(setup) == [2 * 128 * 2 * 4] * 4
    assert setup.size(1001, 1).per_rank_bytes == (501 * 2 * 128 * 2 * 4,) * 4
    sparse = prepared({"mla": LATENT, "index": INDEX}, [["mla", "index"]], tp=4, dcp=2)
    assert cells(sparse) == [4 * (576 * 2 + 132 * 2)] * 4


def test_attention_replicas_share_the_ranks() -> None:
    """Tp 8 with 4 replicas of attention: each has 2 ranks, whose heads are split in two."""
    setup = prepared(tp=8, dp=4, options={"enable_dp_attention": True})
    assert cells(setup) == [2 * 128 * 2 * 4] * 2
    result = setup.size(10, 4)
    assert len(result.per_rank_bytes) == 8
    assert set(result.per_rank_bytes) == {10 * 2048}
    assert setup.fit(10 * 2048, context=10).max_batch == 4
    shares = setup.setup.engine.weight_shares(setup.setup.spec, setup.setup.deployment)
    assert shares == (Fraction(1, 8),) * 2
    assert any("copies of the attention's" in text for text in setup.setup.assumptions)


@pytest.mark.parametrize(
    ("kv_dtype", "options", "row"),
    [
        (None, {}, 1152),
        ("nvfp4", {}, 324),
        ("fp8", {}, 656),
        ("fp8", {"dsa_prefill_backend": "flashmla_sparse", "dsa_decode_backend": "tilelang"}, 656),
        ("fp8", {"dsa_prefill_backend": "tilelang", "dsa_decode_backend": "tilelang"}, 576),
        ("fp8", {"dsa_prefill_backend": "trtllm", "dsa_decode_backend": "trtllm"}, 576),
    ],
)
def test_rows_of_sparse_attention(kv_dtype: str | None, options: dict[str, str], row: int) -> None:
    """fp8 is packed with scales and a 16-bit rotary part unless the kernels read plain rows; 132 for the indexer."""
    setup = prepared({"mla": LATENT, "index": INDEX}, [["mla", "index"]], kv_dtype=kv_dtype, options=options)
    assert cells(setup) == [4 * (row + 132)]


def test_a_latent_without_an_indexer_is_not_packed() -> None:
    """Dense MLA in fp8 is 576 bytes, whole on every rank."""
    assert cells(prepared({"mla": LATENT}, kv_dtype="fp8", tp=8)) == [4 * 576] * 8


# Pages and pools ------------------------------------------------------------------------------------------------------


@given(memory=st.integers(1, 5 * MIB), page=st.sampled_from([1, 16, 64]))
def test_tokens_are_the_memory_in_whole_pages(memory: int, page: int) -> None:
    """floor(memory / cell), floored to pages; one page more is allocated, beyond the memory."""
    setup = prepared(options={"page_size": page})
    report = setup.report(memory)
    tokens = memory // 4096 // page * page
    assert report["max_total_num_tokens"] == tokens
    assert report["allocated_bytes_per_rank"] == [(tokens + page) * 4096 if tokens else 0]
    assert report["admitted"] == (tokens > 0)


def test_a_sequence_takes_whole_pages() -> None:
    """17 tokens are two pages of 16."""
    result = prepared(options={"page_size": 16}).size(17, 3)
    assert result.total_bytes == 3 * 32 * 4096
    assert result.engine_report["full_pages_per_sequence"] == 2


def test_max_total_tokens_caps_the_pool() -> None:
    """100 tokens in pages of 16 are 96, however much memory there is."""
    setup = prepared(options={"page_size": 16, "max_total_tokens": 100})
    result = setup.fit(GIB, context=16)
    assert (result.engine_report["max_total_num_tokens"], result.max_batch) == (96, 6)
    assert setup.report(32 * 4096, context=16)["max_total_num_tokens"] == 32
    assert not setup.fit(GIB, context=97).fits


def test_stages_take_the_least() -> None:
    """Both stages have two layers; tokens are those of one of them."""
    setup = prepared(pp=2)
    assert cells(setup) == [2048, 2048]
    assert setup.report(2048 * 100)["max_total_num_tokens"] == 100


def test_windowed_layers_have_a_smaller_pool() -> None:
    """Two full and two windowed layers of 1,024 bytes: 1,843.2 x 2 bytes a token; 0.8 tokens for each."""
    setup = prepared({"global": {"kind": "full"}, "local": LOCAL}, options={"page_size": 16})
    assert cells(setup) == [2048 + Fraction(4, 5) * 2048]
    result = setup.fit(MIB, context=500)
    report = result.engine_report
    assert (report["full_tokens"], report["swa_tokens"]) == (272, 208)  # 284.4 -> 17 pages; 13.6 -> 13 pages
    assert report["max_total_num_tokens"] == 272
    assert report["allocated_bytes_per_rank"] == [(272 + 16) * 2048 + (208 + 16) * 2048]
    assert report["swa_pages_per_sequence"] == -(-116 // 16)


def test_a_window_that_does_not_fit_stops_the_server() -> None:
    """The windowed pool must have more tokens than the window and a page: 116 + 1 -> 8 pages, so 10 full pages."""
    setup = prepared({"global": {"kind": "full"}, "local": LOCAL}, options={"page_size": 16})
    least = 10 * 16 * 3687  # 10 x 0.8 = 8 pages of 16 = 128 > 116; 3,686.4 bytes a token
    enough = setup.fit(least, context=10)
    assert enough.engine_report["swa_tokens"] == 128
    assert enough.fits
    short = setup.fit(9 * 16 * 3687, context=10)
    assert (short.fits, short.max_batch, short.engine_report["admitted"]) == (False, 0, False)
    assert "window" in short.engine_report["admission_error"]
    assert setup.least_memory(context=10) == 589_824
    assert setup.fit(589_824, context=10).fits
    assert not setup.fit(589_823, context=10).fits


def test_only_windowed_layers_have_only_their_pool() -> None:
    """The ratio plays no part."""
    setup = prepared({"local": LOCAL})
    assert cells(setup) == [4096]
    report = setup.report(4096 * 300)
    assert (report["max_total_num_tokens"], report["full_tokens"], report["swa_tokens"]) == (300, None, 300)


def test_states_and_tokens_share_the_memory() -> None:
    """Rho / (1 + rho) of 1 MiB for states: 496,695 bytes are 25 slots of 19,328 bytes, one of them padding."""
    setup = prepared({"full": {"kind": "full"}, "mamba": MAMBA})
    state = 2 * (4 * 8 * 16 * 32 + 2 * 3 * (8 * 16 + 2 * 2 * 32))  # fp32 state, bf16 inputs, two layers
    assert setup.report()["state_bytes_per_slot_per_rank"] == [state]
    report = setup.report(MIB)
    slots = int(MIB * 9 / 19) // state - 1
    assert report["state_slots"] == slots
    assert report["max_total_num_tokens"] == (MIB - (slots + 1) * state) // 2048
    assert report["allocated_bytes_per_rank"] == [(slots + 1) * state + (report["max_total_num_tokens"] + 1) * 2048]


@pytest.mark.parametrize(("disable", "each"), [(False, 3), (True, 1)])
def test_a_request_takes_three_slots_with_the_radix_cache(disable: bool, each: int) -> None:
    """So that slots, not tokens, bound the batch of short sequences."""
    setup = prepared({"full": {"kind": "full"}, "mamba": MAMBA}, options={"disable_radix_cache": disable})
    result = setup.fit(MIB, context=1)
    assert result.max_batch == result.engine_report["state_slots"] // each
    assert result.binding is not None
    assert result.binding.pool == "mamba"


def test_slots_can_be_given() -> None:
    """max_mamba_cache_size takes its slots and one more from the memory; more sequences contradict it."""
    options = {"max_mamba_cache_size": 6}
    setup = prepared({"full": {"kind": "full"}, "mamba": MAMBA}, options=options)
    result = setup.fit(MIB, context=1, batch=2)
    state = result.engine_report["state_bytes_per_slot_per_rank"][0]
    assert result.engine_report["state_slots"] == 6
    assert result.engine_report["max_total_num_tokens"] == (MIB - 7 * state) // 2048
    assert result.max_batch == 2
    with pytest.raises(BadInput, match="batch 3 needs 9 state slots, more than max_mamba_cache_size=6"):
        setup.fit(MIB, context=1, batch=3)


@pytest.mark.parametrize(("dtype", "size"), [("auto", 4), ("float32", 4), ("bfloat16", 2)])
def test_the_dtype_of_states(dtype: str, size: int) -> None:
    """The recurrent part is fp32 unless the option says otherwise."""
    setup = prepared({"full": {"kind": "full"}, "mamba": MAMBA}, options={"mamba_ssm_dtype": dtype})
    state = 2 * (size * 8 * 16 * 32 + 2 * 3 * (8 * 16 + 2 * 2 * 32))
    assert setup.report()["state_bytes_per_slot_per_rank"] == [state]


# The cut of the memory, both ways -------------------------------------------------------------------------------------

splits = st.builds(
    rules.Split,
    page_size=st.integers(1, 4),
    full_bytes=st.integers(1, 5),
    swa_bytes=st.integers(0, 5),
    swa_ratio=st.fractions(min_value=Fraction(1, 10), max_value=1, max_denominator=10),
    swa_floor=st.integers(0, 8),
)
state_splits = st.builds(
    rules.Split,
    page_size=st.integers(1, 4),
    full_bytes=st.integers(1, 5),
    swa_bytes=st.just(0),
    swa_ratio=st.just(Fraction(4, 5)),
    state_bytes=st.integers(1, 12),
    state_ratio=st.fractions(min_value=Fraction(1, 10), max_value=4, max_denominator=10),
    slots=st.none() | st.integers(1, 6),
)


def literal(split: rules.Split, memory: int) -> tuple[int, int, int]:
    """Return (full tokens, windowed tokens, slots) as the server's steps give them, one after another."""
    slots = 0
    if split.state_bytes:
        for_states = memory * split.state_ratio / (1 + split.state_ratio)
        slots = split.slots or (for_states - split.state_bytes) // split.state_bytes
        memory -= (slots + 1) * split.state_bytes
    cell = split.full_bytes + split.swa_ratio * split.swa_bytes
    tokens = max(memory, 0) // cell
    tokens -= tokens % split.page_size
    windowed = int(tokens * split.swa_ratio) if split.swa_bytes else 0
    windowed -= windowed % split.page_size
    starts = tokens > 0 and slots >= (1 if split.state_bytes else 0)
    if split.swa_bytes and windowed <= split.swa_floor:
        starts = False
    return (int(tokens), windowed, int(slots)) if starts else (0, 0, 0)


@given(split=splits | state_splits, memory=st.integers(1, 400))
def test_the_memory_is_cut_as_the_server_cuts_it(split: rules.Split, memory: int) -> None:
    """Exact fractions in one formula against the steps."""
    shares = split.divide(memory)
    assert (shares.full_tokens, shares.swa_tokens, shares.state_slots) == literal(split, memory)


POOLS: tuple[rules.PoolName, ...] = ("full", "swa", "state")


@given(split=splits | state_splits, pool=st.sampled_from(POOLS), units=st.integers(1, 6), at_least=st.integers(0, 60))
def test_the_least_memory_is_the_least(split: rules.Split, pool: rules.PoolName, units: int, at_least: int) -> None:
    """A search byte by byte finds the same, from any memory on, though more memory may hold fewer tokens.

    A pool's answer takes the other pools' needs for met, so the search asks only for its own.
    """
    if (pool == "swa" and not split.swa_bytes) or (pool == "state" and (not split.state_bytes or split.slots)):
        return
    found = split.least_memory(pool, units, at_least)
    assert found >= at_least
    held = [_alone(split, pool, memory) for memory in range(at_least, found + 1)]
    assert held[-1] >= units
    assert all(each < units for each in held[:-1])


def _alone(split: rules.Split, pool: rules.PoolName, memory: int) -> int:
    """Return the units of one pool, whether or not the server would start for the others' sake."""
    slots = 0
    if split.state_bytes:
        for_states = memory * split.state_ratio / (1 + split.state_ratio)
        slots = split.slots or int((for_states - split.state_bytes) // split.state_bytes)
        if pool == "state":
            return slots
        memory -= (slots + 1) * split.state_bytes
    cell = split.full_bytes + split.swa_ratio * split.swa_bytes
    pages = max(memory, 0) // (cell * split.page_size)
    if pool == "full":
        return int(pages)
    windowed = int(pages * split.swa_ratio)
    return windowed if windowed * split.page_size > split.swa_floor else 0


@given(memory=st.integers(1, 3 * MIB), context=st.integers(1, 600), batch=st.integers(1, 9))
def test_a_hybrid_fits_exactly_from_the_least_memory_on(memory: int, context: int, batch: int) -> None:
    """The least memory fits, a byte less does not, and the batch that is named fits while one more does not."""
    setup = prepared({"full": {"kind": "full"}, "mamba": MAMBA}, options={"page_size": 4})
    placement = setup.setup.placement
    found = capacity(placement, [memory], context, batch)
    if found.max_batch:
        assert capacity(placement, [memory], context, found.max_batch).fits
        assert not capacity(placement, [memory], context, found.max_batch + 1).fits
    assert capacity(placement, [found.needed_memory], context, batch).fits
    assert not capacity(placement, [found.needed_memory - 1], context, batch).fits


# Memory for the pools -------------------------------------------------------------------------------------------------


def test_what_is_not_static_stays_free() -> None:
    """16 of 24 GiB are free and 0.88 are static: 16 - 0.12 x 24 GiB are for the pools."""
    rest = rules.rest_memory(16 * GIB, 24 * GIB, Fraction("0.88"))
    assert rest == int(Fraction("13.12") * GIB)


@pytest.mark.parametrize(
    ("tokens", "context", "slots", "each", "expected"),
    [
        (100_000, 32_768, None, 1, 2048),
        (1_000_000, 131_072, None, 1, 3906),
        (10_000_000, 4096, None, 1, 4096),
        (1000, 4096, None, 1, 500),
        (100_000, 32_768, 90, 3, 30),
    ],
)
def test_running_requests(tokens: int, context: int, slots: int | None, each: int, expected: int) -> None:
    """512 for every full context, 2,048 to 4,096, half the tokens at most, and as many as have slots."""
    assert rules.max_running_requests(tokens, context, slots, each) == expected


# Log lines and refusals -----------------------------------------------------------------------------------------------


def test_the_line_of_one_pool() -> None:
    """(tokens + page) x bytes, in GB that are GiB."""
    report = Served("llama-3.1-8b", "sglang").report(442750 * 131072, context=8192)
    assert report["log_lines"] == [
        "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 442750, K size: 27.02 GB, V size: 27.02 GB"
    ]


def test_no_line_is_made_up() -> None:
    """Of latents and of mxfp8 no log was seen, and a server that does not start prints none."""
    assert prepared({"mla": LATENT}).report(GIB)["log_lines"] == []
    assert prepared(kv_dtype="mxfp8").report(GIB)["log_lines"] == []
    assert prepared().report(10)["log_lines"] == []


STRANGE: list[tuple[dict[str, Any], str]] = [
    ({"kinds": {"c": {"kind": "chunked", "chunk": 64}}}, "small is not covered .*chunked"),
    ({"kinds": {"c": {"kind": "cross", "encoder_context": 9}, "f": {"kind": "full"}}}, "cross"),
    ({"kinds": {"f": {"kind": "full"}, "s": {"kind": "shared", "of": "f"}}}, "shared"),
    ({"kinds": {"m": MAMBA}}, "no layer of attention"),
    ({"kinds": {"f": {"kind": "full"}, "i": INDEX}, "pattern": [["f", "i"]]}, "indexer beside attention"),
    ({"kinds": {"l": LOCAL, "m": MAMBA}}, "windowed beside recurrent"),
    ({"kinds": {"l": LOCAL, "a": LATENT}}, "windowed beside MLA"),
    ({"kinds": {"l": LOCAL, "k": {"kind": "sliding", "window": 9}}}, "several sizes"),
    ({"kinds": {"f": {"kind": "full", "v_head_dim": 0}}}, "serve as values"),
    ({"kinds": {"f": {"kind": "full"}, "m": RG_LRU}}, "rg_lru"),
    ({"kv_dtype": "nvfp4"}, "fp4 depends on its recipe"),
    ({"kv_dtype": "q8_0"}, "does not store the cache as q8_0"),
    ({"kv_dtype": "mxfp8", "kinds": {"a": LATENT}}, "MLA's latent as mxfp8"),
    ({"dtype": "fp8"}, "not fp8"),
    ({"tp": 3}, "tp 3 does not divide the 8 heads"),
    ({"pp": 3}, "pp 3 does not divide the 4 layers"),
    ({"tp": 4, "dcp": 3}, "dcp 3 must divide"),
    ({"tp": 2, "dcp": 2, "kinds": {"l": LOCAL}}, "dcp 2 is not covered"),
    ({"tp": 4, "dp": 3, "options": {"enable_dp_attention": True}}, "dp 3 must divide tp 4"),
    ({"pp": 2, "kinds": {"f": {"kind": "full"}, "m": MAMBA}}, "pp 2 is not covered"),
    ({"options": {"max_total_tokens": 9}, "kinds": {"f": {"kind": "full"}, "m": MAMBA}}, "max_total_tokens is not"),
    ({"pp": 2, "kinds": {"f": {"kind": "full"}, "l": LOCAL}, "pattern": ["f", "f", "l", "l"]}, "lack a sort of layer"),
    ({"options": {"dsa_decode_backend": "trtllm"}, "kinds": SPARSE, "pattern": [["a", "i"]]}, "trtllm for both"),
]  # fmt: skip


@pytest.mark.parametrize(("given_", "message"), STRANGE, ids=[message for _, message in STRANGE])
def test_what_is_not_covered_is_refused_by_name(given_: dict[str, Any], message: str) -> None:
    """Each refusal says what it is about."""
    with pytest.raises(UnsupportedByEngine, match=message):
        prepared(**given_)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"page_size": "0"}, "page_size"),
        ({"swa_full_tokens_ratio": "nan"}, "swa_full_tokens_ratio"),
        ({"swa_full_tokens_ratio": "1.5"}, "swa_full_tokens_ratio"),
        ({"kv_cache_dtype": "int3"}, "knows no such dtype"),
        ({"mem_fraction_static": "0.9"}, "no option 'mem_fraction_static'"),
    ],
)
def test_options_out_of_range(options: dict[str, str], message: str) -> None:
    """One line that names the option."""
    with pytest.raises(BadInput, match=message):
        prepared(options=options)


def test_two_dtypes_that_differ() -> None:
    """`--kv-dtype` and `-o kv_cache_dtype` must agree."""
    assert prepared(kv_dtype="fp8", options={"kv_cache_dtype": "fp8_e4m3"}).setup.kv_dtype == "fp8"
    with pytest.raises(BadInput, match="contradict"):
        prepared(kv_dtype="bf16", options={"kv_cache_dtype": "fp8_e4m3"})
