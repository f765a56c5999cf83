"""vLLM's rules at their edges, with numbers worked out by hand, and its blocks against a literal allocator."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from kvcalc import api
from kvcalc.api import Setup
from kvcalc.engines import _vllm_rules as rules
from kvcalc.engines.vllm import PADDING, CapacityReport, capacity_report
from kvcalc.errors import BadInput, UnsupportedByEngine
from kvcalc.footprint import Retention, Steps
from tests.property import literal
from tests.property.specs import small_spec

MIB, GIB = 2**20, 2**30


def prepared(kinds: dict[str, Any] | None = None, pattern: list[Any] | None = None, **given: Any) -> Setup:
    """Return a small model on vLLM: 4 layers, 8 heads, 4 kv heads of 64 unless kinds or dimensions say otherwise.

    `options`, `tp` and the other arguments of `prepare` are passed on; the rest are fields of the spec.
    """
    arguments = {
        name: given.pop(name) for name in ("options", "dtype", "kv_dtype", "tp", "pp", "dp", "dcp") if name in given
    }
    spec = small_spec(**given) if kinds is None else small_spec(kinds=kinds, pattern=pattern or list(kinds), **given)
    return api.prepare(spec, engine="vllm", **arguments)


def report(setup: Setup, context: int = 1024, batch: int = 1) -> dict[str, Any]:
    """Return the engine's report."""
    return api.measure(setup, context, batch).engine_report


def server(setup: Setup, available: int, max_model_len: int) -> CapacityReport:
    """Return what the server prints with that memory on every rank."""
    return capacity_report(setup.spec, setup.deployment, [available] * len(setup.placement.ranks), max_model_len)


FULL: dict[str, Any] = {"kind": "full"}
SLIDING: dict[str, Any] = {"kind": "sliding", "window": 100}
CHUNKED: dict[str, Any] = {"kind": "chunked", "chunk": 128}
MLA: dict[str, Any] = {"kind": "mla", "kv_lora_rank": 512, "qk_rope_head_dim": 64}
INDEXER: dict[str, Any] = {"kind": "indexer", "index_head_dim": 128}
CROSS: dict[str, Any] = {"kind": "cross", "encoder_context": 1500}
MAMBA2: dict[str, Any] = {
    "kind": "state", "variant": "mamba2", "state_heads": 16, "state_head_dim": 64, "groups": 2, "state_size": 128,
    "conv_kernel": 4,
}  # fmt: skip
MAMBA1: dict[str, Any] = {
    "kind": "state", "variant": "mamba1", "channels": 1024, "state_size": 16, "conv_kernel": 4
}  # fmt: skip
DELTA: dict[str, Any] = {
    "kind": "state", "variant": "gated_deltanet", "key_heads": 4, "value_heads": 8, "key_head_dim": 64,
    "value_head_dim": 64, "conv_kernel": 4,
}  # fmt: skip
KDA: dict[str, Any] = {"kind": "state", "variant": "kda", "state_heads": 8, "state_head_dim": 64, "conv_kernel": 4}


# 1.1 and 1.2: heads, and the bytes of a token -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kv_heads", "tp", "each"), [(8, 1, 8), (8, 4, 2), (8, 16, 1), (10, 4, 2), (1, 8, 1), (6, 4, 1)]
)
def test_heads_of_a_rank_are_a_floor_and_at_least_one(kv_heads: int, tp: int, each: int) -> None:
    """10 heads on 4 ranks are 2 on each, not 3; beyond one rank per head, heads are copied."""
    assert rules.kv_heads_on_rank(kv_heads, tp) == each


@pytest.mark.parametrize(
    ("kv_cache_dtype", "token_bytes"),
    [
        ("auto", 4 * 64 * 2 * 2),
        ("bfloat16", 4 * 64 * 2 * 2),
        ("fp8", 4 * 64 * 2),
        ("fp8_e5m2", 4 * 64 * 2),
        ("fp8_inc", 4 * 64 * 2),
        ("int8_per_token_head", 4 * (64 + 64 + 8)),
        ("fp8_per_token_head", 4 * (64 + 64 + 8)),
        ("int4_per_token_head", 4 * (32 + 32 + 8)),
        ("nvfp4", 2 * 4 * (32 + 4)),
        ("nvfp4_4over6", 2 * 4 * (32 + 4)),
    ],
)
def test_bytes_of_a_token(kv_cache_dtype: str, token_bytes: int) -> None:
    """Scales of a token and head lie in the cache, those of a whole tensor do not; nvfp4 has one for 16 elements."""
    setup = prepared(options={"kv_cache_dtype": kv_cache_dtype})
    assert report(setup)["bytes_per_block_per_rank"] == [4 * 16 * token_bytes]


@pytest.mark.parametrize(
    ("kv_cache_dtype", "backend", "row"),
    [
        ("auto", "FLASHMLA", 1152),
        ("fp8", "FLASHMLA", 576),
        ("fp8", "FLASHMLA_SPARSE", 656),
        ("fp8_e4m3", "FLASHMLA_SPARSE", 656),
        ("auto", "FLASHMLA_SPARSE", 1152),
        ("fp8_ds_mla", None, 656),
        ("nvfp4_ds_mla", None, 352),
        ("int8_per_token_head", "TRITON_MLA", 576 + 8),
        ("int4_per_token_head", "TRITON_MLA", 288 + 8),
    ],
)
@pytest.mark.parametrize("tp", [1, 8])
def test_a_latent_is_whole_on_every_rank(kv_cache_dtype: str, backend: str | None, row: int, tp: int) -> None:
    """MLA's row is the same on one rank and on eight; sparse FlashMLA packs fp8 with its scales."""
    options = {"kv_cache_dtype": kv_cache_dtype, "attention_backend": backend, "block_size": 128}
    setup = prepared({"mla": MLA}, options=options, tp=tp)
    assert report(setup)["bytes_per_block_per_rank"] == [4 * 128 * row] * tp


def test_an_indexer_shares_the_block_of_its_latent() -> None:
    """Latents and fp8 indexer keys (128 and a 4-byte scale) are one group, whose block is the sum of their pages."""
    setup = prepared({"mla": MLA, "indexer": INDEXER}, [["mla", "indexer"]])
    assert report(setup)["bytes_per_block_per_rank"] == [4 * 64 * (1152 + 132)]
    (group,) = report(setup)["groups"]
    assert (group["kind"], group["layers"], group["page_bytes"]) == ("mla_attention", 8, [64 * 132, 64 * 1152])


def test_values_may_be_narrower_than_keys() -> None:
    """K and V sizes are added apart."""
    setup = prepared(v_head_dim=32)
    assert report(setup)["bytes_per_block_per_rank"] == [4 * 16 * 4 * (64 + 32) * 2]


def test_layers_that_share_have_no_page() -> None:
    """Sharing layers are in no group, and count as layers of a pipeline stage."""
    kinds = {"own": FULL, "reader": {"kind": "shared", "of": "own"}}
    setup = prepared(kinds, ["own", "own", "reader", "reader"], pp=2)
    assert report(setup)["bytes_per_block_per_rank"] == [2 * 16 * 1024, 0]
    assert report(setup)["groups"][0]["layers"] == 2


# 1.3: the block -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backend", "given", "resolved"),
    [
        ("FLASH_ATTN", None, 16),
        ("TRITON_ATTN", 48, 48),
        ("FLASHINFER", None, 16),
        ("CPU_ATTN", None, 32),
        ("FLASHMLA", None, 64),
        ("FLASHMLA", 128, 128),
        ("CUTLASS_MLA", None, 128),
        ("TRITON_MLA", None, 16),
        ("FLASHINFER_MLA", 32, 32),
    ],
)
def test_a_backend_picks_its_block(backend: str, given: int | None, resolved: int) -> None:
    """The backend's preferred size, or any multiple of a kernel's size that the user gives."""
    assert rules.BACKENDS[backend].resolve(given) == resolved


@pytest.mark.parametrize(("backend", "given"), [("FLASH_ATTN", 8), ("FLASHMLA", 96), ("CPU_ATTN", 16)])
def test_a_block_that_no_kernel_divides_is_refused(backend: str, given: int) -> None:
    """The message names the size and the backend."""
    with pytest.raises(UnsupportedByEngine, match=f"{given}.*{backend}"):
        rules.BACKENDS[backend].resolve(given)


def test_a_block_that_depends_on_the_gpu_must_be_given() -> None:
    """FlashInfer's MLA kernels have 32 or 64: the message says so."""
    with pytest.raises(UnsupportedByEngine, match=r"32 or 64.*-o block_size"):
        prepared({"mla": MLA}, options={"attention_backend": "FLASHINFER_MLA"})


@pytest.mark.parametrize(("token_bytes", "block"), [(1024, 16), (2048, 16), (512, 32), (400, 32), (341, 48)])
def test_a_sliding_layer_fits_its_page_into_that_of_full_attention(token_bytes: int, block: int) -> None:
    """The largest multiple of the kernel's 16 tokens whose page is within 16 x 1,024 bytes, and 16 at least."""
    assert rules.sliding_block_size(16, token_bytes, 1024, rules.BACKENDS["FLASH_ATTN"]) == block


# 1.4: recurrent state -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "tp", "state"),
    [
        (MAMBA2, 1, (1024 + 2 * 2 * 128) * 3 * 2 + 16 * 64 * 128 * 2),
        (MAMBA2, 2, (1024 + 2 * 2 * 128) // 2 * 3 * 2 + 8 * 64 * 128 * 2),
        # 4 ranks do not divide 2 groups: as many copies of a group as ranks, one on each.
        (MAMBA2, 4, (1024 + 2 * 4 * 128) // 4 * 3 * 2 + 4 * 64 * 128 * 2),
        (MAMBA1, 1, 1024 * 3 * 2 + 1024 * 16 * 2),
        (MAMBA1, 4, 256 * 3 * 2 + 256 * 16 * 2),
        (DELTA, 1, (2 * 4 * 64 + 8 * 64) * 3 * 2 + 8 * 64 * 64 * 2),
        (DELTA, 4, (2 * 4 * 64 + 8 * 64) // 4 * 3 * 2 + 2 * 64 * 64 * 2),
        (KDA, 1, 3 * 8 * 64 * 3 * 2 + 8 * 64 * 64 * 4),
        (KDA, 8, 3 * 64 * 3 * 2 + 64 * 64 * 4),
    ],
)
def test_bytes_of_a_state(kind: dict[str, Any], tp: int, state: int) -> None:
    """Convolution inputs and recurrent state of one layer on one rank; KDA's state is fp32, the others bf16."""
    setup = prepared({"linear": kind}, tp=tp)
    assert report(setup)["groups"][0]["used_page_bytes"] == [state]


@pytest.mark.parametrize(
    ("architecture", "options", "conv", "ssm"),
    [
        ("bamba", {}, 2, 2),
        ("bamba", {"mamba_cache_dtype": "float32"}, 4, 4),
        ("bamba", {"mamba_cache_dtype": "float32", "mamba_ssm_cache_dtype": "bfloat16"}, 4, 2),
        ("bamba", {"mamba_ssm_cache_dtype": "float32"}, 2, 4),
        ("nemotron_h", {}, 2, 4),
        ("nemotron_h", {"mamba_ssm_cache_dtype": "float16"}, 2, 2),
        ("qwen3_5_text", {}, 2, 4),
    ],
)
def test_dtypes_of_a_state(architecture: str, options: dict[str, Any], conv: int, ssm: int) -> None:
    """The state follows the convolution unless the user or the model's type says otherwise."""
    setup = prepared({"linear": MAMBA1}, architecture=architecture, options=options)
    assert report(setup)["groups"][0]["used_page_bytes"] == [1024 * 3 * conv + 1024 * 16 * ssm]


def test_a_block_grows_until_a_page_holds_a_state() -> None:
    """A state of 38,912 bytes beside 1,024 bytes a token: 38 tokens, in units of 16 or of the user's block."""
    for given, expected in ((None, 48), (16, 48), (32, 64), (64, 64)):
        setup = prepared({"linear": MAMBA1, "full": FULL}, options={"block_size": given})
        assert report(setup)["resolved_block_size"] == expected
        assert {tuple(group["page_bytes"]) for group in report(setup)["groups"]} == {(expected * 1024,)}


def test_mla_is_aligned_in_units_of_128() -> None:
    """With MLA a block has at least 128 tokens, and multiples of them."""
    for heads, expected in ((8, 128), (64, 1024)):
        kda = {**KDA, "state_heads": heads}
        setup = prepared({"linear": kda, "mla": MLA})
        state = 3 * heads * 64 * 3 * 2 + heads * 64 * 64 * 4
        assert report(setup)["resolved_block_size"] == expected == 128 * -(-state // (128 * 1152))


@pytest.mark.parametrize(("kind", "states"), [(MAMBA2, 3), (DELTA, 2), (KDA, 2), (MAMBA1, 2)])
def test_prefix_caching_adds_states(kind: dict[str, Any], states: int) -> None:
    """Two states per sequence, three for Mamba 2; one without prefix caching, whose block is the whole context."""
    on, off = prepared({"linear": kind}), prepared({"linear": kind}, options={"enable_prefix_caching": "false"})
    assert report(on)["blocks_per_sequence"] == states
    assert (report(on)["mamba_cache_mode"], report(on)["mamba_block_size"]) == ("align", 16)
    assert report(off, 5000)["blocks_per_sequence"] == 1
    assert (report(off, 5000)["mamba_cache_mode"], report(off, 5000)["mamba_block_size"]) == ("none", 5000)


@pytest.mark.parametrize("variant", ["lightning", "short_conv", "rg_lru"])
def test_states_without_a_stated_rule_are_refused_by_name(variant: str) -> None:
    """The message names the variant."""
    model = {"lightning": "minimax-text-01", "short_conv": "lfm2-1.2b", "rg_lru": "recurrentgemma-2b"}[variant]
    with pytest.raises(UnsupportedByEngine, match=variant):
        api.prepare(model, engine="vllm")


def test_ranks_must_divide_a_state() -> None:
    """A state of 6 heads cannot be split over 4 ranks."""
    kind = {**KDA, "state_heads": 6}
    with pytest.raises(UnsupportedByEngine, match="tp 4 does not divide"):
        prepared({"linear": kind, "mla": MLA}, tp=4)


# 1.5: groups, pages, stages -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("buckets", "size"),
    [([12, 12], 12), ([20, 30], 20), ([20, 29], 29), ([2, 3], 2), ([10, 52], 10), ([4, 28], 4), ([24], 24)],
)
def test_the_size_of_a_group(buckets: list[int], size: int) -> None:
    """The largest kind's layers if they are fewer than 1.5 times the smallest's (30 of 20 are not), else those."""
    assert rules.group_size(buckets) == size


def test_layers_go_to_groups_by_stride_and_short_groups_are_padded() -> None:
    """7 sliding layers beside 2 full ones: groups of 2, 2, 2 and 1; a block is 2 pages, and one page is unused."""
    setup = prepared({"local": SLIDING, "global": FULL}, ["local"] * 7 + ["global"] * 2, layers=9)
    groups = report(setup)["groups"]
    assert [(group["kind"], group["layers"]) for group in groups] == [
        ("sliding_window", 2), ("sliding_window", 2), ("sliding_window", 2), ("sliding_window", 1),
        ("full_attention", 2),
    ]  # fmt: skip
    page = 16 * 1024
    assert report(setup)["bytes_per_block_per_rank"] == [2 * page]
    blocks = groups[0]["blocks_per_sequence"]
    by_label = setup.placement.ranks[0].admitted.by_label(1024)
    assert by_label == {"local": 7 * blocks * page, "global": 2 * 64 * page, PADDING: blocks * page}


def test_kinds_are_grouped_in_order_of_appearance_and_by_size_not_by_name() -> None:
    """Two names for equal layers are one bucket; the first layer's kind comes first."""
    kinds = {"a": FULL, "b": SLIDING, "c": dict(FULL)}
    setup = prepared(kinds, ["b", "a", "c", "b"])
    assert [(group["kind"], group["layers"]) for group in report(setup)["groups"]] == [
        ("sliding_window", 2), ("full_attention", 2),
    ]  # fmt: skip
    assert set(setup.placement.ranks[0].admitted.by_label(1024)) == {"a", "b", "c"}


def test_a_smaller_page_that_divides_holds_more_tokens() -> None:
    """Full layers with half the heads of sliding ones have blocks of 32 tokens, and so do the derived sizes."""
    kinds = {"local": {**SLIDING, "kv_heads": 8}, "global": FULL}
    setup = prepared(kinds)
    found = report(setup)
    assert [(group["kind"], group["block_size"]) for group in found["groups"]] == [
        ("sliding_window", 16), ("full_attention", 32),
    ]  # fmt: skip
    assert (found["block_size"], found["scheduler_block_size"], found["hash_block_size"]) == (16, 32, 16)


def test_a_smaller_page_that_does_not_divide_is_padded() -> None:
    """Cross-attention of 3 heads beside full attention of 4: three quarters of its page are used."""
    kinds = {"self": FULL, "cross": {**CROSS, "heads": 6, "kv_heads": 3}}
    setup = prepared(kinds, [["self", "cross"]])
    _, cross = report(setup)["groups"]
    assert (cross["page_bytes"], cross["used_page_bytes"]) == ([16 * 1024], [16 * 768])
    unused = cross["blocks_per_sequence"] * 4 * 16 * 256
    assert setup.placement.ranks[0].admitted.by_label(64)[PADDING] == unused


def test_full_attention_of_different_heads_is_one_group() -> None:
    """Pages of different bytes and equal tokens need no unification: a block is their sum."""
    setup = prepared({"wide": {**FULL, "kv_heads": 8}, "narrow": {**FULL, "kv_heads": 2}})
    (group,) = report(setup)["groups"]
    assert group["layers"] == 4
    assert report(setup)["bytes_per_block_per_rank"] == [2 * 16 * 2048 + 2 * 16 * 512]


def test_mla_pages_cannot_be_padded() -> None:
    """An indexer's page that does not divide a state's is refused, not guessed."""
    kinds = {"mla": MLA, "indexer": INDEXER, "linear": KDA}
    with pytest.raises(UnsupportedByEngine, match="MLA pages"):
        prepared(kinds, [["mla", "indexer"], "linear"])


def test_without_the_hybrid_manager_windows_are_full_attention() -> None:
    """One group of all layers, every token kept; the pools keep them too."""
    setup = prepared({"local": SLIDING, "global": FULL}, options={"disable_hybrid_kv_cache_manager": "true"})
    (group,) = report(setup, 10**6)["groups"]
    assert (group["kind"], group["layers"], group["blocks_per_sequence"]) == ("full_attention", 4, 62500)
    assert setup.placement.ranks[0].pools[0].groups[0].retention == Retention.all()


def test_chunked_layers_have_no_hybrid_manager_unless_asked_for() -> None:
    """The default is said, and `false` turns it on."""
    assert len(report(prepared({"local": CHUNKED, "global": FULL}))["groups"]) == 1
    assert any("hybrid" in text for text in prepared({"local": CHUNKED, "global": FULL}).assumptions)
    options = {"disable_hybrid_kv_cache_manager": "false"}
    assert len(report(prepared({"local": CHUNKED, "global": FULL}, options=options))["groups"]) == 2


@pytest.mark.parametrize("kinds", [{"linear": MAMBA1, "full": FULL}, {"self": FULL, "cross": CROSS}])
def test_what_cannot_share_a_group_needs_the_hybrid_manager(kinds: dict[str, Any]) -> None:
    """States and cross-attention do not become full attention."""
    with pytest.raises(UnsupportedByEngine, match="hybrid KV cache manager"):
        prepared(kinds, options={"disable_hybrid_kv_cache_manager": "true"})


@pytest.mark.parametrize(
    ("layers", "pp", "sizes"),
    [(80, 3, [27, 27, 26]), (61, 2, [31, 30]), (61, 4, [15, 15, 16, 15]), (62, 4, [15, 16, 16, 15]), (5, 5, [1] * 5)],
)
def test_stages_take_the_remainder_from_the_last_but_one_backwards(layers: int, pp: int, sizes: list[int]) -> None:
    """The last stage never has more than the others."""
    assert [len(stage) for stage in rules.layer_split(layers, pp)] == sizes
    assert [index for stage in rules.layer_split(layers, pp) for index in stage] == list(range(layers))


def test_groups_are_made_before_the_layers_are_split() -> None:
    """9 layers on 2 stages: each stage keeps its part of every group, and all groups' blocks count on both."""
    setup = prepared({"local": SLIDING, "global": FULL}, ["local"] * 7 + ["global"] * 2, layers=9, pp=2)
    # Groups by stride: locals 0 4, 1 5, 2 6, 3; globals 7 8. Stage 0 has layers 0 to 4, stage 1 layers 5 to 8.
    page = 16 * 1024
    assert report(setup)["bytes_per_block_per_rank"] == [2 * page, 2 * page]
    first, second = setup.placement.ranks
    assert [group.layers for group in first.pools[0].groups] == [2, 1, 1, 1, 0]
    assert [group.layers for group in second.pools[0].groups] == [0, 1, 1, 0, 2]
    assert first.admitted.bytes(1024) == second.admitted.bytes(1024) == report(setup)["blocks_per_sequence"] * 2 * page


# 1.6: the blocks of a request -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pp", "async_scheduling", "v2", "batches"),
    [
        (1, True, True, 2),
        (4, True, True, 5),
        (1, True, False, 2),
        (4, True, False, 4),
        (1, False, True, 1),
        (4, False, False, 4),
    ],
)
def test_batches_in_flight(pp: int, async_scheduling: bool, v2: bool, batches: int) -> None:
    """One per stage; asynchronous scheduling adds one, on runner V1 only without pipeline parallelism."""
    assert rules.batches_in_flight(pp, async_scheduling, v2) == batches


@pytest.mark.parametrize(
    ("n", "blocks"), [(1, 2), (16, 2), (17, 3), (130, 10), (131, 10), (144, 10), (145, 10), (10**6, 10)]
)
def test_a_window_admits_one_token_less_than_it_sees_and_a_block_more(n: int, blocks: int) -> None:
    """A window of 81 and 64 tokens in flight: ceil(min(80 + 64, n) / 16) + 1."""
    kinds = {"local": {**SLIDING, "window": 81}}
    setup = prepared(kinds, options={"max_num_batched_tokens": 64, "async_scheduling": "false"})
    assert report(setup, n)["blocks_per_sequence"] == blocks


@pytest.mark.parametrize(("n", "blocks"), [(16, 1), (192, 12), (193, 12), (10**6, 12)])
def test_a_chunk_admits_itself_and_what_is_in_flight(n: int, blocks: int) -> None:
    """A chunk of 128 and 64 tokens in flight: ceil(min(192, n) / 16), and no block more."""
    options = {"max_num_batched_tokens": 64, "async_scheduling": "false", "disable_hybrid_kv_cache_manager": "false"}
    assert report(prepared({"local": CHUNKED}, options=options), n)["blocks_per_sequence"] == blocks


def test_cross_attention_admits_a_step_and_holds_the_encoder() -> None:
    """8,192 tokens of a step are 512 blocks, whatever the encoder's 1,500 positions, which are 94."""
    setup = prepared({"cross": CROSS})
    page = 4 * 16 * 1024
    assert setup.placement.total_bytes(10, 1) == 512 * page
    assert setup.placement.held_bytes(10, 1) == 94 * page


@pytest.mark.parametrize(("window", "block"), [(100, 16), (96, 16), (97, 16), (1, 16), (40, 64)])
def test_a_window_holds_what_a_literal_allocator_holds(window: int, block: int) -> None:
    """Blocks are freed by position as soon as the next token sees none of theirs."""
    setup = prepared({"local": {**SLIDING, "window": window}}, options={"block_size": block})
    unit = 4 * block * 1024
    held = [setup.placement.held_bytes(n, 1) // unit for n in range(1, 301)]
    assert held == list(literal.freed_by_position(300, window - 1, block))


def test_a_chunk_holds_what_a_literal_allocator_holds() -> None:
    """Blocks of past chunks are free."""
    options = {"disable_hybrid_kv_cache_manager": "false"}
    setup = prepared({"local": CHUNKED}, options=options)
    held = [setup.placement.held_bytes(n, 1) // (4 * 16 * 1024) for n in range(1, 401)]
    assert held == list(literal.current_chunk(400, 128, 16))


def test_blocks_across_a_chunks_end_are_refused() -> None:
    """The message names both sizes."""
    options = {"disable_hybrid_kv_cache_manager": "false", "block_size": 48}
    with pytest.raises(UnsupportedByEngine, match=r"48.*128"):
        prepared({"local": CHUNKED}, options=options)


def test_what_is_held_is_never_more_than_what_is_admitted() -> None:
    """For every kind, at any context."""
    options = {"disable_hybrid_kv_cache_manager": "false", "max_num_batched_tokens": 2048}
    for kinds in ({"a": FULL, "b": SLIDING, "c": CHUNKED}, {"a": FULL, "b": SLIDING, "d": MAMBA2}, {"e": CROSS}):
        rank = prepared(kinds, list(kinds), options=options).placement.ranks[0]
        assert all(rank.held.bytes(n) <= rank.admitted.bytes(n) for n in range(1, 600))


# Decode context parallelism -------------------------------------------------------------------------------------------


def test_ranks_split_the_tokens_of_a_sequence() -> None:
    """With dcp 4 a block of 64 covers 256 tokens; block sizes that the scheduler sees are four times as large."""
    setup = prepared({"mla": MLA}, tp=4, dcp=4)
    assert [report(setup, n)["blocks_per_sequence"] for n in (1, 256, 257, 1025)] == [1, 1, 2, 5]
    found = report(setup)
    assert (found["block_size"], found["scheduler_block_size"], found["hash_block_size"]) == (64, 256, 256)
    assert setup.placement.ranks[0].pools[0].groups[0].block_tokens == 256


def test_states_are_copied_to_all_of_them() -> None:
    """Recurrent layers keep their states on every rank."""
    found = report(prepared({"linear": KDA, "mla": MLA}, tp=4, dcp=4))
    assert [group["blocks_per_sequence"] for group in found["groups"]] == [2, 2]
    assert found["scheduler_block_size"] == 4 * found["resolved_block_size"]


@pytest.mark.parametrize(
    ("kinds", "tp", "dcp"), [({"full": FULL}, 2, 4), ({"full": FULL}, 4, 3), ({"local": SLIDING}, 4, 2)]
)
def test_dcp_must_divide_tp_and_know_the_layers(kinds: dict[str, Any], tp: int, dcp: int) -> None:
    """Windows split over ranks are not covered."""
    with pytest.raises(UnsupportedByEngine, match=f"dcp {dcp}"):
        prepared(kinds, tp=tp, dcp=dcp)


def test_a_split_that_loses_tokens_is_said() -> None:
    """4 kv heads on 8 ranks have two copies: dcp 2 is sound, dcp 4 is not."""
    assert not any("copies" in text for text in prepared(tp=8, dcp=2).assumptions)
    assert any("copies" in text for text in prepared(tp=8, dcp=4).assumptions)


# 1.7: what the server prints ------------------------------------------------------------------------------------------


def test_the_null_block_is_missing_from_admission_and_not_from_concurrency() -> None:
    """A pool of R blocks admits nothing and reports 1.00x; one block more admits it."""
    setup = prepared()
    block = 4 * 16 * 1024
    refused, accepted = server(setup, 64 * block, 1024), server(setup, 65 * block, 1024)
    assert (refused.admitted, refused.max_concurrency_printed, refused.max_context_that_fits) == (False, "1.00x", 1008)
    assert (accepted.admitted, accepted.max_concurrency) == (True, Fraction(65, 64))
    assert accepted.log_lines == (
        "GPU KV cache size: 1,040 tokens",
        "Maximum concurrency for 1,024 tokens per request: 1.02x",
    )
    assert refused.log_lines == ()


def test_one_byte_decides_the_number_of_blocks() -> None:
    """Memory is cut to whole blocks; the rest is not allocated."""
    block = 4 * 16 * 1024
    for available, blocks in ((100 * block - 1, 99), (100 * block, 100), (100 * block + 1, 100)):
        found = server(prepared(), available, 64)
        assert (found.num_blocks, found.allocated_bytes_per_rank) == (blocks, (blocks * block,))


def test_the_refusal_rounds_as_the_server_does() -> None:
    """5.625 GiB print as 5.62, a whole number with one zero; without room for a token there is no estimate."""
    error = server(api.prepare("qwen3-8b", engine="vllm"), 3 * GIB, 40960).admission_error
    assert error is not None
    assert "(5.62 GiB KV cache is needed" in error
    assert "(3.0 GiB). Based on the available memory, the estimated maximum model length is 21824. Try" in error
    nothing = server(prepared(), 4 * 16 * 1024, 1024)
    assert (nothing.max_context_that_fits, nothing.usable_blocks) == (0, 0)
    assert nothing.admission_error is not None
    assert "Based on" not in nothing.admission_error


def test_reported_tokens_are_the_engines_own_floats() -> None:
    """int(concurrency x context), as vLLM's Python computes it, where whole numbers would give one token more."""
    assert rules.reported_tokens(16384, 14726, 131072) == 145829
    assert rules.reported_tokens(1001, 500, 8000) == 16015  # 1001 / 500 * 8000 is just below 16,016 in floats
    assert rules.reported_tokens(1000, 500, 8000) == 16000


def test_the_poorest_stage_decides() -> None:
    """All ranks take the least number of blocks; each allocates it in its own bytes."""
    setup = prepared(layers=5, pp=2)
    block = 16 * 1024
    found = capacity_report(setup.spec, setup.deployment, [100 * 3 * block, 90 * 2 * block], 64)
    assert found.num_blocks == 90
    assert found.allocated_bytes_per_rank == (90 * 3 * block, 90 * 2 * block)
    with pytest.raises(BadInput, match="1 budgets for 2 ranks"):
        capacity_report(setup.spec, setup.deployment, [GIB], 64)


def test_auto_fit_lowers_the_context() -> None:
    """The bound is kept where it fits, lowered to the largest that does, and refused where nothing fits."""
    setup, block = prepared(options={"auto_fit": "true"}), 4 * 16 * 1024
    assert server(setup, 100 * block, 1024).max_model_len == 1024
    lowered = server(setup, 11 * block, 1024)
    assert (lowered.max_model_len, lowered.admitted, lowered.max_concurrency) == (160, True, Fraction(11, 10))
    assert not server(setup, block, 1024).admitted


def test_an_override_replaces_the_blocks_and_not_the_admission() -> None:
    """Blocks, reported tokens and bytes are those of the override; the request is still measured by the memory."""
    setup, block = prepared(options={"num_gpu_blocks_override": 500}), 4 * 16 * 1024
    found = server(setup, 65 * block, 1024)
    assert (found.num_blocks, found.kv_cache_size_tokens, found.admitted) == (500, 8000, True)
    assert not server(setup, 64 * block, 1024).admitted


# Options and refusals -------------------------------------------------------------------------------------------------


def test_the_common_option_has_vllms_names() -> None:
    """--kv-dtype takes kvcalc's names; the two ways to say it may agree, and not contradict each other."""
    for short, long in (("fp8", "fp8_e5m2"), ("int8", "int8_per_token_head"), ("nvfp4", "nvfp4"), ("fp16", "float16")):
        common, own = prepared(kv_dtype=short), prepared(options={"kv_cache_dtype": long})
        assert common.placement.total_bytes(100, 3) == own.placement.total_bytes(100, 3)
        prepared(kv_dtype=short, options={"kv_cache_dtype": long})
    assert prepared(options={"kv_cache_dtype": "fp8_e5m2"}).kv_dtype == "fp8_e5m2"
    with pytest.raises(BadInput, match=r"fp8.*int8_per_token_head"):
        prepared(kv_dtype="fp8", options={"kv_cache_dtype": "int8_per_token_head"})


@pytest.mark.parametrize("kv_dtype", ["fp8/fp16", "q8_0", "mxfp8", "fp32"])
def test_formats_that_vllm_does_not_store_are_refused(kv_dtype: str) -> None:
    """K and V apart, and formats that it does not know."""
    with pytest.raises(UnsupportedByEngine, match=kv_dtype.split("/", maxsplit=1)[0]):
        prepared(kv_dtype=kv_dtype)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"kv_cache_dtype": "turboquant_k8v4"}, UnsupportedByEngine, "turboquant_k8v4 is not covered"),
        ({"kv_cache_dtype": "fp9"}, BadInput, "fp8_ds_mla"),
        ({"kv_cache_dtype": "fp8_ds_mla"}, UnsupportedByEngine, "packs MLA's latent"),
        ({"attention_backend": "FLASH_ATN"}, BadInput, "FLASH_ATTN"),
        ({"attention_backend": "FLASHMLA"}, UnsupportedByEngine, "without MLA"),
        ({"block_size": "0"}, BadInput, "block_size"),
        ({"gpu_memory_utilization": "0.9"}, BadInput, "no option"),
    ],
)
def test_options_out_of_reach_are_refused_by_name(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    """Each message names what was asked for and what is known."""
    with pytest.raises(error, match=message):
        prepared(options=options)


@pytest.mark.parametrize(
    ("kinds", "given", "message"),
    [
        ({"mla": {**MLA, "kv_lora_rank": 256}}, {"options": {"kv_cache_dtype": "fp8_ds_mla"}}, "512"),
        ({"mla": MLA}, {"kv_dtype": "nvfp4"}, "nvfp4_ds_mla"),
        ({"mla": MLA}, {"kv_dtype": "int8"}, "-o attention_backend"),
        ({"full": FULL, "indexer": INDEXER}, {}, "indexer"),
        ({"full": FULL}, {"tp": 3}, "tp 3"),
        ({"full": FULL}, {"dtype": "fp8"}, "fp8"),
        ({"linear": DELTA, "full": FULL}, {"options": {"attention_backend": "FLASHINFER"}}, "checkpoint"),
        ({"local": {"kind": "compressed", "head_dim": 512, "window": 128, "ratio": 4}}, {}, "block-outermost"),
    ],
)
def test_models_out_of_reach_are_refused_by_name(kinds: dict[str, Any], given: dict[str, Any], message: str) -> None:
    """Nothing is guessed where a rule is not stated."""
    with pytest.raises(UnsupportedByEngine, match=message):
        prepared(kinds, **given)


def test_defaults_that_decide_the_figures_are_said() -> None:
    """A step's tokens and the backend are assumptions until they are given, and only where they matter."""
    windowed = prepared({"local": SLIDING})
    assert any("max_num_batched_tokens 8,192" in text for text in windowed.assumptions)
    given = {"max_num_batched_tokens": 8192, "async_scheduling": "true", "attention_backend": "FLASH_ATTN"}
    assert prepared({"local": SLIDING}, options=given).assumptions == ()
    assert len(prepared().assumptions) == 1
    assert any("3 states" in text for text in prepared({"linear": MAMBA2, "full": FULL}).assumptions)


def test_a_token_of_the_growing_layers_is_what_a_sequence_adds() -> None:
    """Beyond the window only full attention grows: 2 layers of 1,024 bytes, and no padding."""
    setup = prepared({"local": SLIDING, "global": FULL})
    assert api.per_token_bytes(setup, 50) == 4 * 1024
    assert api.per_token_bytes(setup, 5000) == 2 * 1024


def test_a_pool_is_what_the_server_hands_out() -> None:
    """Its unit is a block, its reserve the null block, its groups the model's with what they keep."""
    (pool,) = prepared({"local": SLIDING, "global": FULL}).placement.ranks[0].pools
    assert (pool.unit_bytes, pool.reserved_units, pool.share) == (2 * 16 * 1024, 1, Fraction(1))
    assert [group.retention for group in pool.groups] == [Retention.window(100), Retention.all()]


def test_terms_count_the_steps_of_the_rules() -> None:
    """Groups that are counted alike are one term for each tensor of a kind."""
    terms = prepared({"local": SLIDING, "global": FULL}, ["local"] * 7 + ["global"] * 2, layers=9).placement.ranks[0]
    counted = [(term.label, term.role, dict(term.factors).get("layers"), term.steps) for term in terms.admitted.terms]
    window = Steps.window(99 + 2 * 8192, 16, spare=1)
    assert counted == [
        ("local", "k", 7, window),
        ("local", "v", 7, window),
        ("global", "k", 2, Steps.per_token(16)),
        ("global", "v", 2, Steps.per_token(16)),
        (PADDING, "k", None, window),
    ]
