"""The rules of llama.cpp and Ollama, one by one."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvcalc
from kvcalc.api import prepare
from kvcalc.engines._llama_cpp.cells import AutomaticWindow, CellRule, Context, SlotRule, Span, TotalRule
from kvcalc.engines._llama_cpp.devices import CPU, allocated_bytes, layer_devices
from kvcalc.errors import BadInput, UnsupportedByEngine
from kvcalc.footprint import Steps
from kvcalc.formats import find_format
from kvcalc.spec.model import ModelSpec
from kvcalc.spec.resolve import resolve
from kvcalc.yaml_tree import Tree

GPUS = ("CUDA0", "CUDA1")


def spec(architecture: str, **more: Any) -> ModelSpec:
    """Return a small model of an architecture: 4 layers, 8 heads of 64, 2 kv heads, unless `more` says otherwise."""
    data = {
        "name": "small",
        "architecture": architecture,
        "source": {"url": "test", "checked": "2026-11-29"},
        "layers": 4,
        "hidden_size": 512,
        "heads": 8,
        "kv_heads": 2,
        "dtype": "bfloat16",
        "max_context": 8192,
        "parameters": None,
        "vocab_size": 1000,
    }
    return resolve(Tree("small.yaml", data={**data, **more}))


def local_and_global(**more: Any) -> dict[str, Any]:
    """Return three layers in four with a window of 100."""
    local = {"kind": "sliding", "window": 100}
    return {"pattern": ["local"] * 3 + ["global"], "kinds": {"local": local, "global": {"kind": "full"}}, **more}


def report(
    model: str | ModelSpec, context: Any = 1000, batch: Any = 1, engine: Any = "llama.cpp", **options: Any
) -> dict[str, Any]:
    """Return the engine report."""
    return kvcalc.size(model, context=context, batch=batch, engine=engine, options=options).engine_report


def caches(model: str | ModelSpec, context: Any = 1000, batch: Any = 1, **options: Any) -> dict[str, tuple[int, ...]]:
    """Return cells, streams and layers of every cache by name."""
    found = report(model, context, batch, **options)["caches"]
    return {cache["name"]: (cache["cells"], cache["streams"], cache["layers"]) for cache in found}


# --- Section 1: context size to cells ---------------------------------------------------------------------------------


def padded(x: int, multiple: int) -> int:
    """Round up, the slow way."""
    while x % multiple:
        x += 1
    return x


def literal_total(rule: TotalRule, span: Span, n: int, b: int) -> int:
    """Return the cells of all streams by the rule as llama.cpp states it: pad the total, divide, pad again."""
    wanted = n * b if rule.n_ctx is None else rule.n_ctx
    slots = b if rule.n_seq_max is None else rule.n_seq_max
    n_batch = min(wanted, rule.n_batch)
    n_ubatch = min(n_batch, rule.n_ubatch or rule.n_batch)
    total = padded(wanted, 256)
    per_stream = total if rule.unified else padded(total // slots, 256)
    streams = 1 if rule.unified and not span.per_slot else slots
    if span.rule == "window" and not rule.swa_full:
        windows = slots if rule.unified and not span.per_slot else 1
        per_stream = padded(min(per_stream, span.size * windows + n_ubatch), 256)
    if span.rule == "compressed":
        per_stream = padded(max(1, -(-per_stream // span.size)), 256)
    return per_stream * streams


def literal_slots(rule: SlotRule, span: Span, n: int, b: int) -> int:
    """Return the cells of all slots as Ollama asks for them: -c num_ctx * np -np np -b B -ub B."""
    tokens = n if rule.num_ctx is None else rule.num_ctx
    tokens = max(4, tokens if rule.max_context is None else min(tokens, rule.max_context))
    slots = b if rule.num_parallel is None else rule.num_parallel
    batch = rule.num_batch or (512 if tokens * slots <= 4096 else 1024 if tokens * slots <= 32768 else 2048)
    as_server = TotalRule(False, rule.swa_full, 256, tokens * slots, slots, batch, batch)
    return literal_total(as_server, span, 1, 1)


SPANS = st.one_of(
    st.just(Span()),
    st.builds(Span, st.just("window"), st.integers(1, 6000)),
    st.builds(Span, st.just("window"), st.integers(1, 6000), st.just(True)),
    st.builds(Span, st.just("compressed"), st.sampled_from((4, 128)), st.just(True)),
)
TOTAL_RULES = st.builds(
    TotalRule,
    unified=st.booleans(),
    swa_full=st.booleans(),
    n_ctx=st.none() | st.integers(1, 300_000),
    n_seq_max=st.none() | st.integers(1, 256),
    n_batch=st.integers(1, 5000),
    n_ubatch=st.just(0) | st.integers(1, 5000),
)
SLOT_RULES = st.builds(
    SlotRule,
    swa_full=st.booleans(),
    num_ctx=st.none() | st.integers(4, 100_000),
    num_parallel=st.none() | st.integers(1, 20),
    num_batch=st.none() | st.integers(1, 5000),
    max_context=st.none() | st.integers(4, 50_000),
)


def counted(rule: CellRule, span: Span, n: int, b: int) -> int:
    """Return the cells that the staircase and its unit's factors give."""
    steps, factors = rule.allocated(span)
    unit = 1
    for _, size in factors:
        unit *= size
    return int(steps.count(n, b)) * unit


@given(TOTAL_RULES, SPANS, st.integers(1, 40_000), st.integers(1, 256))
def test_the_staircase_is_the_literal_rule_of_llama_cpp(rule: TotalRule, span: Span, n: int, b: int) -> None:
    """For every context, batch and choice of options the cells are those of pad, divide, pad."""
    assert counted(rule, span, n, b) == literal_total(rule, span, n, b)


@given(SLOT_RULES, SPANS, st.integers(1, 60_000), st.integers(1, 40))
def test_the_staircase_is_the_literal_rule_of_ollama(rule: SlotRule, span: Span, n: int, b: int) -> None:
    """Every slot has num_ctx tokens, and the batch follows the tokens of all slots."""
    assert counted(rule, span, n, b) == literal_slots(rule, span, n, b)


@given(TOTAL_RULES | SLOT_RULES, SPANS, st.integers(1, 40_000), st.integers(1, 256))
def test_the_literal_cells_and_the_staircase_of_one_context_agree(rule: CellRule, span: Span, n: int, b: int) -> None:
    """The two ways in which the profile itself counts cells give the same."""
    context = rule.context(n, b)
    assert rule.cells(span, context) * rule.streams(span, context) == counted(rule, span, n, b)


def test_dividing_the_padded_total_pads_every_slots_own_context() -> None:
    """ceil256(ceil256(n * b) // b) is ceil256(n) for every n and up to 256 slots: the identity behind the staircase."""
    for n in (1, 2, 255, 256, 257, 511, 512, 513, 1000, 4097):
        for b in range(1, 257):
            assert padded(padded(n * b, 256) // b, 256) == padded(n, 256)


@given(TOTAL_RULES | SLOT_RULES, SPANS, st.lists(st.integers(1, 30_000), min_size=1, max_size=5), st.integers(1, 30))
def test_arrays_are_counted_as_numbers_are(rule: CellRule, span: Span, contexts: list[int], b: int) -> None:
    """int64 arrays of contexts and batches give the same counts, also where the rule is no plain staircase."""
    steps, _ = rule.allocated(span)
    found = steps.count(np.array(contexts, dtype=np.int64), np.int64(b))
    assert list(np.broadcast_to(found, (len(contexts),))) == [steps.count(n, b) for n in contexts]


@given(SLOT_RULES, st.integers(1, 2000), st.integers(1, 5000), st.integers(1, 12))
def test_the_next_change_of_an_automatic_window_is_the_next(rule: SlotRule, window: int, n: int, b: int) -> None:
    """Nothing changes before the context that is named, and it does change there."""
    steps, _ = rule.allocated(Span("window", window))
    change = steps.next_change(n, b)
    here = steps.count(n, b)
    end = n + 3000 if change is None else change - 1
    assert all(steps.count(each, b) == here for each in {n + 1, (n + end) // 2, end} if n < each <= end)
    assert change is None or steps.count(change, b) != here


def test_an_automatic_window_grows_where_the_slots_pass_a_bound() -> None:
    """Two slots of 2,048 tokens take batches of 512, of 2,049 tokens batches of 1,024."""
    steps = AutomaticWindow(cap=1024, width=256)
    assert [steps.per_scope(n, 2) * 256 for n in (2048, 2049, 16384, 16385)] == [1536, 2048, 2048, 3072]


def test_more_slots_of_a_given_total_have_fewer_cells_each() -> None:
    """4,097 tokens for four slots are 1,280 cells each, 5,120 in all."""
    assert caches("llama-3-8b", 1000, 4, n_ctx=4097) == {"unified": (1280, 4, 32)}
    assert report("llama-3-8b", 1000, 4, n_ctx=4097)["n_ctx"] == 5120


def test_a_unified_cache_is_one_stream_of_all_tokens() -> None:
    """4 sequences of 1,000 tokens share 4,096 cells."""
    assert caches("llama-3-8b", 1000, 4, kv_unified=True) == {"unified": (4096, 1, 32)}


def test_a_window_keeps_room_for_a_micro_batch() -> None:
    """128 + 512 tokens are 768 cells, 128 + 2,048 are 2,304."""
    assert caches("gpt-oss-20b", 32768)["swa"] == (768, 1, 12)
    assert caches("gpt-oss-20b", 32768, n_ubatch=2048)["swa"] == (2304, 1, 12)
    assert caches("gpt-oss-20b", 32768, swa_full=True)["swa"] == (32768, 1, 12)


def test_an_n_ctx_of_zero_is_the_trained_context() -> None:
    """As in llama.cpp; without one the option is refused."""
    assert caches(spec("llama"), 1, n_ctx=0) == {"unified": (8192, 1, 4)}
    with pytest.raises(BadInput, match="trained context"):
        report(spec("llama", max_context=None), 1, n_ctx=0)


def test_august_2025_padded_by_32_without_flash_attention_and_named_its_cache_otherwise() -> None:
    """The older rules, as far as they are known."""
    old = {"engine_version": "2025-08", "flash_attn": "off"}
    assert caches("llama-3-8b", 1000, **old) == {"unified": (1024, 1, 32)}
    assert caches("llama-3-8b", 1025, **old) == {"unified": (1056, 1, 32)}
    lines = kvcalc.size("llama-3-8b", context=1024, engine="llama.cpp", options=old).log_lines
    assert lines[-1].startswith("llama_kv_cache_unified: size =  128.00 MiB (  1024 cells,  32 layers,  1/1 seqs)")


def test_august_2025_stored_the_latent_on_the_v_side_too() -> None:
    """576 elements of K and 512 of V per token and layer."""
    found = report("deepseek-v3", 1024, engine_version="2025-08")
    assert (found["k_bytes"], found["v_bytes"]) == (61 * 576 * 2 * 1024, 61 * 512 * 2 * 1024)


# --- Which layers are where -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["llama", "mistral", "phi3", "qwen2", "qwen3", "starcoder2", "ministral3"])
def test_windows_that_llama_cpp_does_not_read_make_full_caches(architecture: str) -> None:
    """The published window is ignored."""
    assert caches(spec(architecture, **local_and_global()), 4096) == {"unified": (4096, 1, 4)}


def test_mistral_takes_four_gib_at_its_full_context() -> None:
    """2 x 32 layers x 8 kv heads x 128 x 32,768 tokens x 2 bytes: its window of 4,096 is not read."""
    assert kvcalc.size("mistral-7b-v0.1", context=32768, engine="llama.cpp").total_bytes == 2 * 32 * 8 * 128 * 32768 * 2


@pytest.mark.parametrize("architecture", ["gemma3_text", "gpt_oss", "cohere2", "olmo3", "mimo_v2_flash", "laguna"])
def test_windows_that_llama_cpp_reads_make_small_caches(architecture: str) -> None:
    """100 + 512 tokens in the layers with a window, rounded up."""
    assert caches(spec(architecture, **local_and_global()), 4096) == {"base": (4096, 1, 1), "swa": (768, 1, 3)}


def test_exaone_4_has_windows_only_with_64_layers() -> None:
    """The larger model of the family; in the smaller the window is ignored."""
    assert set(caches(spec("exaone4", **local_and_global()), 4096)) == {"unified"}
    assert set(caches(spec("exaone4", **local_and_global(layers=64)), 4096)) == {"base", "swa"}


def test_llama_4_has_chunks_of_8192_whatever_the_config_says() -> None:
    """The chunk is fixed in the engine."""
    kinds = {"local": {"kind": "chunked", "chunk": 64}, "global": {"kind": "full"}}
    found = caches(spec("llama4_text", pattern=["local", "global"], kinds=kinds), 32768)
    assert found == {"base": (32768, 1, 2), "swa": (8704, 1, 2)}


def test_gemma_3n_has_twenty_layers_with_a_cache_whatever_the_spec_says() -> None:
    """Later layers read earlier ones; the number is fixed in the engine."""
    shared = {"kind": "shared", "of": "global"}
    kinds = {"global": {"kind": "full"}, "shared": shared}
    found = caches(spec("gemma3n_text", layers=30, pattern=["global"] * 15 + ["shared"] * 15, kinds=kinds))
    assert found == {"unified": (1024, 1, 20)}


def test_layers_that_read_anothers_cache_have_none() -> None:
    """Gemma 4's shared layers take nothing, and are not counted."""
    kinds = {"global": {"kind": "full"}, "shared": {"kind": "shared", "of": "global"}}
    found = caches(spec("gemma4_text", pattern=["global", "global", "global", "shared"], kinds=kinds))
    assert found == {"unified": (1024, 1, 3)}


def test_two_windows_are_refused() -> None:
    """llama.cpp has one window for all layers."""
    kinds = {"a": {"kind": "sliding", "window": 10}, "b": {"kind": "sliding", "window": 20}}
    with pytest.raises(UnsupportedByEngine, match="one window for all layers; small has 10, 20"):
        report(spec("gemma2", pattern=["a", "b"], kinds=kinds))


def test_mla_is_one_latent_or_all_heads_depending_on_the_files_keys() -> None:
    """With its keys 576 elements of K alone, without them 192 and 128 for each of 16 heads."""
    with_keys, without = report("deepseek-v2-lite", 256), report("deepseek-v2-lite", 256, mla=False)
    assert (with_keys["k_bytes"], with_keys["v_bytes"]) == (27 * 576 * 2 * 256, 0)
    assert (without["k_bytes"], without["v_bytes"]) == (27 * 16 * 192 * 2 * 256, 27 * 16 * 128 * 2 * 256)


def test_minicpm3_never_caches_its_latent() -> None:
    """40 heads of 96 and 64: MLA that llama.cpp expands."""
    found = report("minicpm3-4b", 256)
    assert (found["k_bytes"], found["v_bytes"]) == (62 * 40 * 96 * 2 * 256, 62 * 40 * 64 * 2 * 256)


def test_expanding_mla_needs_the_sizes_of_its_heads() -> None:
    """A spec without them is refused, not guessed."""
    bare = spec("deepseek_v2", kv_heads=8, kinds={"mla": {"kind": "mla", "kv_lora_rank": 64, "qk_rope_head_dim": 32}})
    with pytest.raises(UnsupportedByEngine, match="qk_nope_head_dim and v_head_dim"):
        report(bare, mla=False)


def test_without_flash_attention_v_is_as_wide_as_the_widest_layer() -> None:
    """Gemma 4's layers with 1,024 elements of V are padded to 4,096, and the log says so."""
    kinds = {"local": {"kind": "sliding", "window": 100}, "global": {"kind": "full", "kv_heads": 1}}
    two = spec("gemma4_text", pattern=["local", "global"], kinds=kinds)
    on, off = report(two), report(two, flash_attn="off")
    assert off["v_bytes"] == on["v_bytes"] + 2 * 64 * 2 * 1024
    lines = kvcalc.size(two, context=1000, engine="llama.cpp", options={"flash_attn": "off"}).log_lines
    assert sum("padding V cache to 128" in line for line in lines) == 2


def test_layers_without_attention_count_in_an_ordinary_cache() -> None:
    """They hold nothing, but a padded V is padded there too."""
    empty = spec("nemotron-nas", pattern=["full", "none"], kinds={"full": {"kind": "full"}})
    assert caches(empty) == {"unified": (1024, 1, 4)}
    assert report(empty)["v_bytes"] == 2 * 128 * 2 * 1024
    assert report(empty, flash_attn="off")["v_bytes"] == 4 * 128 * 2 * 1024


def test_t5_caches_nothing_for_cross_attention() -> None:
    """Six layers of self-attention; the encoder's output lies in the output buffer."""
    found = report("t5-small", 100)
    assert found["context_bytes"] == 6 * 2 * 8 * 64 * 2 * 256
    assert found["output_buffer_bytes"] == 4 * (32128 + 512)


@pytest.mark.parametrize(
    ("architecture", "reason"),
    [
        ("zamba2", "llama.cpp 0c1e5709 is not known to run the architecture 'zamba2'"),
        ("bert", "bert is an encoder: llama.cpp creates no cache for it"),
        ("dream", "dream is a diffusion model: llama.cpp creates no cache for it"),
    ],
)
def test_models_that_llama_cpp_does_not_run_are_refused_by_name(architecture: str, reason: str) -> None:
    """Nothing is guessed about an architecture."""
    with pytest.raises(UnsupportedByEngine) as caught:
        report(spec(architecture))
    assert str(caught.value).startswith(reason)


# --- Section 3: recurrent states --------------------------------------------------------------------------------------


def test_recurrent_states_are_single_precision_for_every_slot() -> None:
    """Qwen3-Next: 24,576 and 524,288 elements in 36 layers, 79,036,416 bytes a sequence, at any context."""
    for context, batch in itertools.product((1, 10_000), (1, 3)):
        found = report("qwen3-next-80b-a3b", context, batch)
        assert found["r_bytes"] == 36 * 24_576 * 4 * batch
        assert found["r_bytes"] + found["s_bytes"] == 79_036_416 * batch


def test_copies_for_going_back_exist_where_the_architecture_knows_them() -> None:
    """Qwen3.5 keeps 1 + n_rs_seq states, Qwen3-Next one, which is said."""
    assert report("qwen3.5-27b", n_rs_seq=4)["s_bytes"] == 5 * report("qwen3.5-27b")["s_bytes"]
    assert report("qwen3-next-80b-a3b", n_rs_seq=4)["s_bytes"] == report("qwen3-next-80b-a3b")["s_bytes"]
    setup = prepare("qwen3-next-80b-a3b", engine="llama.cpp", options={"n_rs_seq": 4})
    assert "n_rs_seq 4 has no effect: qwen3next keeps no copies of its states" in setup.assumptions


def test_falcon_h1_has_both_in_every_layer() -> None:
    """36 layers with attention and with a state."""
    found = report("falcon-h1-0.5b", 256)
    assert (found["caches"][0]["layers"], found["recurrent"]["layers"]) == (36, 36)


# --- Section 2 and messages: what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("gpt2-xl", {"flash_attn": "off", "type_v": "q8_0"}, "quantized V cache requires flash_attn to be enabled"),
        ("grok-1", {"type_v": "q8_0"}, "quantized V cache requires flash_attn to be enabled"),
        ("phi-2", {"type_k": "q8_0"}, "K cache type q8_0 with block size 32 does not divide n_embd_head_k=80"),
        ("phi-2", {"type_v": "iq4_nl"}, "V cache type iq4_nl with block size 32 does not divide n_embd_head_v=80"),
        ("deepseek-v3", {"type_k": "q8_0"}, "model does not support different K (q8_0) and V (f16) cache types"),
    ],
)
def test_refusals_are_llama_cpps_own(model: str, options: dict[str, str], message: str) -> None:
    """The message of llama_init_from_model."""
    with pytest.raises(UnsupportedByEngine) as caught:
        report(model, **options)
    assert str(caught.value) == f"llama_init_from_model: {message}"


def test_without_flash_attention_a_block_may_reach_over_heads() -> None:
    """Heads of 80 in rows of 2,560 are stored in blocks of 32; llama.cpp aborts where blocks do not divide a row."""
    assert report("phi-2", 256, type_k="q8_0", flash_attn="off")["k_bytes"] == 32 * 2560 // 32 * 34 * 256
    with pytest.raises(UnsupportedByEngine, match="aborts: q8_0 stores blocks of 32"):
        report(spec("llama", kv_heads=1, head_dim=80), type_k="q8_0", flash_attn="off")


def test_a_cache_is_f16_whatever_the_model_is() -> None:
    """The model's bfloat16 does not matter; other types are asked for, once."""
    size = kvcalc.size("llama-3-8b", context=256, engine="llama.cpp")
    assert (size.dtype, size.kv_dtype, size.engine_report["type_k"]) == ("bf16", "fp16", "f16")
    mixed = kvcalc.size("llama-3-8b", context=256, engine="llama.cpp", kv_dtype="q8_0/q4_0")
    assert (mixed.kv_dtype, mixed.engine_report["type_v"]) == ("q8_0/q4_0", "q4_0")
    with pytest.raises(BadInput, match="type_k=q8_0 contradicts --kv-dtype fp16"):
        kvcalc.size("llama-3-8b", context=256, engine="llama.cpp", kv_dtype="fp16", options={"type_k": "q8_0"})


def test_formats_that_are_no_cache_types_are_refused() -> None:
    """llama.cpp's caches know nine types."""
    with pytest.raises(UnsupportedByEngine, match="no cache type fp8; it takes f32 f16 bf16 q8_0"):
        kvcalc.size("llama-3-8b", context=256, engine="llama.cpp", kv_dtype="fp8")


@pytest.mark.parametrize(
    ("options", "batch", "message"),
    [
        ({"n_seq_max": 2}, 3, "batch 3 exceeds n_seq_max=2"),
        ({}, 257, "n_seq_max must be <= 256"),
        ({"n_ctx": 512}, 2, "context 1,000 for 2 sequences exceeds the 512 cells of n_ctx=512"),
        ({"ngl": 3, "n_gpu_layers": 4}, 1, "option ngl=3: contradicts n_gpu_layers=4"),
        ({"tensor_split": "0,0"}, 1, "one is above 0"),
        ({"tensor_split": "1,x"}, 1, "tensor_split=1,x"),
        ({"flash_attn": "perhaps"}, 1, "must be auto, on or off"),
        ({"device": "CUDA0,CUDA0"}, 1, "must be different names"),
        ({"device": "CUDA0", "tensor_split": "1,1"}, 1, "has 1 names for 2 parts"),
        ({"type_k": "f17"}, 1, "unknown type_k 'f17'"),
    ],
)
def test_options_that_contradict_each_other_are_bad_input(options: dict[str, Any], batch: int, message: str) -> None:
    """One clear line that names the option."""
    with pytest.raises(BadInput) as caught:
        report("llama-3-8b", 1000, batch, **options)
    assert message in str(caught.value)


def test_whole_layers_go_to_devices_so_heads_are_not_split() -> None:
    """Tensor parallelism is refused with what to use instead."""
    with pytest.raises(UnsupportedByEngine, match="--pp N or -o tensor_split="):
        kvcalc.size("llama-3-8b", context=256, engine="llama.cpp", tp=2)


# --- Section 4: devices -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_gpu_layers", "split", "expected"),
    [
        (20, (3, 1), {CPU: 13, "CUDA0": 15, "CUDA1": 4}),
        (33, (1, 1), {CPU: 0, "CUDA0": 17, "CUDA1": 15}),
        (1, (1, 1), {CPU: 32, "CUDA0": 0, "CUDA1": 0}),
        (99, (1, 2), {CPU: 0, "CUDA0": 11, "CUDA1": 21}),
        (-1, (), {CPU: 0, "CUDA0": 17, "CUDA1": 15}),
        (0, (1, 1), {CPU: 32, "CUDA0": 0, "CUDA1": 0}),
        (32, (1, 0), {CPU: 1, "CUDA0": 31, "CUDA1": 0}),
    ],
)
def test_layers_go_to_devices_with_the_output_counted_as_one(
    n_gpu_layers: int, split: Any, expected: dict[str, int]
) -> None:
    """32 layers: the last n_gpu_layers of 33, divided by the split."""
    found = layer_devices(32, n_gpu_layers, split, GPUS)
    assert {name: found.count(name) for name in (CPU, *GPUS)} == expected


def test_layers_for_multi_token_prediction_shift_the_split() -> None:
    """They count in the file's layers, have no cache here, and stand at the end."""
    found = report("llama-3-8b", 256, n_gpu_layers=2, nextn_predict_layers=1)
    assert [(device["name"], device["layers"]) for device in found["devices"]] == [("CUDA0", 0), (CPU, 32)]


def test_no_kv_offload_keeps_the_cache_with_the_cpu() -> None:
    """Both spellings; the layers themselves are offloaded all the same."""
    for option in ({"no_kv_offload": True}, {"offload_kqv": False}):
        found = report("llama-3-8b", 256, n_gpu_layers=99, **option)
        assert [device["context_bytes"] for device in found["devices"]] == [0, 32 * 2 * 1024 * 2 * 256]


def test_pipeline_parallelism_stands_for_equal_devices() -> None:
    """--pp 2 is a split in two, the ranks are the devices."""
    size = kvcalc.size("llama-3-8b", context=256, engine="llama.cpp", pp=2)
    assert size.per_rank_bytes == (17 * 2 * 1024 * 2 * 256, 15 * 2 * 1024 * 2 * 256)


@pytest.mark.parametrize(("row", "extra"), [(256, 384), (576, 512), (512, 0), (1024, 0)])
def test_cuda_keeps_room_behind_quantised_rows(row: int, extra: int) -> None:
    """Rows of q8_0 are read in steps of 512 elements: 272 or 476 bytes more, rounded up to 128."""
    q8_0 = find_format("q8_0")
    size = q8_0.row_bytes(row) * 4096
    assert allocated_bytes("CUDA0", size, row, q8_0) == size + extra
    assert allocated_bytes("CPU", size, row, q8_0) == size


# --- Section 6 and the rest of the report -----------------------------------------------------------------------------


def test_the_compute_buffer_is_given_where_its_form_is_known() -> None:
    """Llama-3-8B at 4,096 on the CPU: ggml reserved 279,447,552 bytes for outputs of the whole micro-batch."""
    known = report("llama-3-8b", 4096, feed_forward_length=14336, n_outputs_max=0)
    assert 0 <= 279_447_552 - known["compute_buffer_bytes"] <= 28 * 512
    assert report(spec("llama"), 4096)["compute_buffer_note"].startswith(
        "the spec does not give the feed-forward width"
    )
    assert (
        report(spec("llama"), 4096, ngl=5)["compute_buffer_note"] == "the closed form is that of the CPU backend alone"
    )
    wide = spec("llama", intermediate_size=2048)
    assert (
        report(wide)["compute_buffer_bytes"] == report(spec("llama"), feed_forward_length=2048)["compute_buffer_bytes"]
    )
    assert report("mixtral-8x7b", 4096)["compute_buffer_bytes"] is None


def test_what_the_spec_does_not_say_is_null_with_the_reason() -> None:
    """No vocabulary, no output buffer."""
    bare = spec("llama", vocab_size=None)
    found = report(bare)
    assert (found["output_buffer_bytes"], found["output_buffer_note"]) == (
        None,
        "the spec of small gives no vocab_size",
    )


def test_held_is_what_the_tokens_take_of_the_cells() -> None:
    """1,000 tokens of 1,024 cells; 100 of them in the window."""
    windowed = spec("gemma2", **local_and_global())
    row = 2 * 2 * 64 * 2
    size = kvcalc.size(windowed, context=1000, engine="llama.cpp")
    assert size.engine_report["held_bytes"] == row * (1000 + 3 * 100)
    assert size.total_bytes == row * (1024 + 3 * 768)
    assert size.per_token_bytes == row


def test_replicas_are_servers_of_their_own() -> None:
    """--dp 2 divides the batch between two servers."""
    one = kvcalc.size("llama-3-8b", context=1000, batch=2, engine="llama.cpp")
    two = kvcalc.size("llama-3-8b", context=1000, batch=4, dp=2, engine="llama.cpp")
    assert two.total_bytes == 2 * one.total_bytes
    assert two.log_lines == one.log_lines


# --- Ollama -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "num_ctx", "slots", "num_batch"),
    [("llama-3-8b", 4096, 4, 512), ("gemma-3-27b", 32768, 1, 2048), ("gpt-oss-20b", 10000, 3, 512)],
)
def test_ollama_is_llama_server_with_its_flags(model: str, num_ctx: int, slots: int, num_batch: int) -> None:
    """-c num_ctx*np -np np -b B -ub B give the same caches."""
    ollama = report(model, num_ctx, slots, "ollama", num_batch=num_batch)
    flags = {"n_ctx": num_ctx * slots, "n_seq_max": slots, "n_batch": num_batch, "n_ubatch": num_batch}
    assert ollama["caches"] == report(model, 1, **flags)["caches"]


def test_ollama_gives_no_slot_more_than_the_trained_context() -> None:
    """num_ctx is cut to it before llama-server is started."""
    found = report("gpt2", 4096, 2, "ollama")
    assert (found["num_ctx"], found["n_ctx"], found["context_fits_slot"]) == (1024, 2048, False)


def test_ollama_has_one_cache_type_for_both_sides() -> None:
    """Different types for K and V are refused."""
    assert kvcalc.size("llama-3-8b", context=256, engine="ollama", kv_dtype="q8_0").kv_dtype == "q8_0"
    with pytest.raises(BadInput, match="one type, not q8_0/q4_0"):
        kvcalc.size("llama-3-8b", context=256, engine="ollama", kv_dtype="q8_0/q4_0")


def test_ollama_serves_some_families_in_one_slot() -> None:
    """Qwen3-Next among them, whatever is asked for."""
    with pytest.raises(UnsupportedByEngine, match="qwen3next models in one slot"):
        report("qwen3-next-80b-a3b", 256, 2, "ollama")


@pytest.mark.parametrize(
    ("options", "batch", "message"),
    [
        ({"num_parallel": 2}, 3, "exceeds num_parallel=2"),
        ({"num_ctx": 512}, 1, "exceeds num_ctx=512"),
        ({}, 300, "256 slots"),
    ],
)
def test_ollama_refuses_what_its_slots_do_not_hold(options: dict[str, int], batch: int, message: str) -> None:
    """More sequences than slots, more tokens than num_ctx."""
    with pytest.raises(BadInput, match=message):
        report("llama-3-8b", 1000, batch, "ollama", **options)


def test_ollamas_guess_before_loading_knows_no_windows_and_no_types() -> None:
    """2 x layers x kv heads x hidden_size / heads x tokens x 2 bytes, whatever the cache is."""
    found = report("gemma-3-27b", 4096, 2, "ollama", kv_cache_type="q8_0")
    assert found["preload_estimate_bytes"] == 2 * 62 * 16 * (5376 // 32) * 8192 * 2
    assert report("mamba-2.8b", 4096, 1, "ollama")["preload_estimate_bytes"] is None


def test_a_context_is_created_from_its_flags() -> None:
    """What llama.cpp's log calls n_ctx, n_ctx_seq, n_batch and n_ubatch."""
    assert Context.create(1000, 1, 2048, 0, unified=False, pad=256) == Context(1024, 1024, 1000, 1000, 1, False)


def test_plain_cases_stay_plain_staircases() -> None:
    """Totals that slots divide, slots that each have the total and automatic batches alone need more than that."""
    for rule in (TotalRule(), TotalRule(unified=True), TotalRule(n_seq_max=4), TotalRule(n_ctx=8, n_seq_max=2)):
        for span in (Span(), Span("window", 100), Span("compressed", 4)):
            assert type(rule.allocated(span)[0]) is Steps
