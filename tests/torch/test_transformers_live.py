"""The transformers profile against the library that is installed: whole models, and cache objects, on the meta device.

Whole models are small and of many types; their own code decides what is cached, so that nothing of kvcalc is believed.
Cache objects are filled with the shapes of catalogue models, which also shows static and quantised caches and, with a
meter on every operation, the peak of a step.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

from kvcalc import api
from kvcalc.spec.model import ModelSpec
from tests.property.specs import small_spec

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed"),
    # The library's own deprecations are not this project's.
    pytest.mark.filterwarnings("ignore"),
]

PROMPTS = (1, 7, 8, 40)
ATTENTION = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
COMMON = {"hidden_size": 64, "intermediate_size": 64, "vocab_size": 32, "pad_token_id": 0}
MOE = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_group": 1, "topk_group": 1}
MLA = {"kv_lora_rank": 32, "q_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16}
FULL = {"kind": "full"}
LOCAL = {"kind": "sliding", "window": 8}
LATENT = {"kind": "mla", "kv_lora_rank": 32, "qk_rope_head_dim": 8}


def spec(architecture: str, layers: int, **changes: Any) -> ModelSpec:
    """Return a spec of 4 heads, 2 kv heads of 16, as `ATTENTION` says it to the library."""
    dimensions = {"hidden_size": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, **changes}
    return small_spec(name=f"small-{architecture}", architecture=architecture, layers=layers, **dimensions)


def state(variant: str, **dimensions: Any) -> dict[str, Any]:
    """Return a state kind."""
    return {"kind": "state", "variant": variant, **dimensions}


# (name, the library's configuration, the same as a spec)
MODELS: list[tuple[str, dict[str, Any], ModelSpec]] = [
    ("full", {"model_type": "llama", "num_hidden_layers": 3, **ATTENTION}, spec("llama", 3)),
    ("gpt2", {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4}, spec("gpt2", 2, kv_heads=4)),
    (
        "falcon-new-decoder",
        {
            "model_type": "falcon",
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_kv_heads": 2,
            "new_decoder_architecture": True,
        },
        spec("falcon", 2),
    ),
    (
        "falcon-multi-query",
        {"model_type": "falcon", "num_hidden_layers": 2, "num_attention_heads": 4, "multi_query": True},
        spec("falcon", 2, kv_heads=1),
    ),
    (
        "sliding-everywhere",
        {"model_type": "mistral", "num_hidden_layers": 2, "sliding_window": 8, **ATTENTION},
        spec("mistral", 2, kinds={"local": LOCAL}),
    ),
    (
        "sliding-and-full",
        {"model_type": "gemma2", "num_hidden_layers": 4, "sliding_window": 8, **ATTENTION},
        spec("gemma2", 4, kinds={"local": LOCAL, "global": FULL}, pattern=["local", "global"]),
    ),
    (
        "window-without-query",
        {
            "model_type": "mimo_v2_flash",
            "num_hidden_layers": 3,
            "sliding_window_size": 8,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
            "v_head_dim": 8,
            "swa_num_key_value_heads": 4,
            **ATTENTION,
            **MOE,
        },
        spec(
            "mimo_v2_flash",
            3,
            v_head_dim=8,
            kinds={"global": FULL, "local": {**LOCAL, "kv_heads": 4}},
            pattern=["global", "local", "local"],
        ),
    ),
    (
        "chunked",
        {
            "model_type": "llama4_text",
            "num_hidden_layers": 4,
            "attention_chunk_size": 8,
            "intermediate_size_mlp": 64,
            "num_local_experts": 2,
            **ATTENTION,
        },
        spec(
            "llama4_text",
            4,
            kinds={"chunk": {"kind": "chunked", "chunk": 8}, "global": FULL},
            pattern=["chunk"] * 3 + ["global"],
        ),
    ),
    (
        "shared",
        {
            "model_type": "gemma3n_text",
            "num_hidden_layers": 6,
            "num_kv_shared_layers": 3,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
            "vocab_size_per_layer_input": 32,
            "hidden_size_per_layer_input": 8,
            "laurel_rank": 4,
            "activation_sparsity_pattern": [0.0] * 6,
            **ATTENTION,
        },
        spec(
            "gemma3n_text",
            6,
            kinds={"local": LOCAL, "global": FULL, "reads": {"kind": "shared", "of": "global"}},
            pattern=["local", "local", "global", "reads", "reads", "reads"],
        ),
    ),
    (
        "keys-are-values",
        {
            "model_type": "gemma4_text",
            "num_hidden_layers": 6,
            "global_head_dim": 32,
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "sliding_window": 8,
            "num_kv_shared_layers": 0,
            "hidden_size_per_layer_input": 0,
            **ATTENTION,
        },
        spec(
            "gemma4_text",
            6,
            kinds={"local": LOCAL, "global": {**FULL, "kv_heads": 1, "head_dim": 32, "v_head_dim": 0}},
            pattern=["local"] * 5 + ["global"],
        ),
    ),
    (
        "mla",
        {"model_type": "deepseek_v3", "num_hidden_layers": 2, "num_attention_heads": 4, **MLA, **MOE},
        spec("deepseek_v3", 2, kinds={"mla": LATENT}),
    ),
    (
        "mla-and-indexer",
        {
            "model_type": "deepseek_v32",
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "index_head_dim": 16,
            "index_n_heads": 2,
            "index_topk": 4,
            **MLA,
            **MOE,
        },
        spec(
            "deepseek_v32",
            2,
            kinds={"mla": LATENT, "indexer": {"kind": "indexer", "index_head_dim": 16}},
            pattern=[["mla", "indexer"]],
        ),
    ),
    (
        "compressed",
        {
            "model_type": "deepseek_v4",
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 32,
            "q_lora_rank": 32,
            "qk_rope_head_dim": 8,
            "o_groups": 2,
            "o_lora_rank": 16,
            "sliding_window": 8,
            "index_head_dim": 16,
            "index_n_heads": 2,
            "index_topk": 4,
            "layer_types": ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"],
            "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 16},
            **{key: MOE[key] for key in ("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size")},
        },
        spec(
            "deepseek_v4",
            3,
            kv_heads=1,
            head_dim=32,
            kinds={
                "local": {**LOCAL, "v_head_dim": 0},
                "csa": {"kind": "compressed", "window": 8, "ratio": 4, "index_head_dim": 16},
                "hca": {"kind": "compressed", "window": 8, "ratio": 16},
            },
            pattern=["local", "csa", "hca"],
        ),
    ),
    (
        "cross",
        {
            "model_type": "t5",
            "num_layers": 2,
            "num_decoder_layers": 2,
            "d_model": 64,
            "d_kv": 16,
            "num_heads": 4,
            "d_ff": 64,
        },
        spec(
            "t5",
            2,
            kv_heads=4,
            encoder_context=11,
            kinds={"self": FULL, "cross": {"kind": "cross"}},
            pattern=[["self", "cross"]],
        ),
    ),
    (
        "mamba1",
        {"model_type": "mamba", "num_hidden_layers": 2, "state_size": 8, "intermediate_size": 128},
        spec("mamba", 2, kinds={"mamba": state("mamba1", channels=128, state_size=8, conv_kernel=4)}),
    ),
    (
        "mamba2",
        {
            "model_type": "mamba2",
            "num_hidden_layers": 2,
            "num_heads": 16,
            "head_dim": 8,
            "state_size": 8,
            "n_groups": 2,
        },
        spec(
            "mamba2",
            2,
            kinds={"mamba": state("mamba2", state_heads=16, state_head_dim=8, groups=2, state_size=8, conv_kernel=4)},
        ),
    ),
    (
        "mamba1-beside-full",
        {
            "model_type": "jamba",
            "num_hidden_layers": 4,
            "attn_layer_period": 4,
            "attn_layer_offset": 1,
            "num_experts": 2,
            "mamba_d_state": 8,
            **ATTENTION,
        },
        spec(
            "jamba",
            4,
            kinds={"mamba": state("mamba1", channels=128, state_size=8, conv_kernel=4), "attention": FULL},
            pattern=["mamba", "attention", "mamba", "mamba"],
        ),
    ),
    (
        "mamba2-and-full-in-one-layer",
        {
            "model_type": "falcon_h1",
            "num_hidden_layers": 2,
            "mamba_d_ssm": 48,
            "mamba_n_heads": 6,
            "mamba_d_head": 8,
            "mamba_n_groups": 1,
            "mamba_d_state": 8,
            **ATTENTION,
        },
        spec(
            "falcon_h1",
            2,
            kinds={
                "mamba": state("mamba2", state_heads=6, state_head_dim=8, groups=1, state_size=8, conv_kernel=4),
                "attention": FULL,
            },
            pattern=[["mamba", "attention"]],
        ),
    ),
    (
        "gated-deltanet",
        {
            "model_type": "qwen3_next",
            "num_hidden_layers": 4,
            "linear_num_value_heads": 4,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 16,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16,
            **ATTENTION,
        },
        spec(
            "qwen3_next",
            4,
            kinds={
                "linear": state(
                    "gated_deltanet", key_heads=2, value_heads=4, key_head_dim=8, value_head_dim=16, conv_kernel=4
                ),
                "attention": FULL,
            },
            pattern=["linear", "linear", "linear", "attention"],
        ),
    ),
    (
        "kda-and-mla",
        {
            "model_type": "kimi_linear",
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
            "linear_attn_config": {
                "num_heads": 4,
                "head_dim": 8,
                "short_conv_kernel_size": 4,
                "kda_layers": [1, 2, 4],
                "full_attn_layers": [3],
            },
            "num_experts": 4,
            "num_experts_per_token": 2,
            "num_expert_group": 1,
            "topk_group": 1,
            **MLA,
        },
        spec(
            "kimi_linear",
            4,
            kinds={"linear": state("kda", state_heads=4, state_head_dim=8, conv_kernel=4), "mla": LATENT},
            pattern=["linear", "linear", "mla", "linear"],
        ),
    ),
    (
        "rg-lru",
        {
            "model_type": "recurrent_gemma",
            "num_hidden_layers": 3,
            "lru_width": 64,
            "attention_window_size": 8,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
        },
        spec(
            "recurrent_gemma",
            3,
            kv_heads=1,
            kinds={"linear": state("rg_lru", channels=64, conv_kernel=4), "local": LOCAL},
            pattern=["linear", "linear", "local"],
        ),
    ),
    (
        "rwkv4",
        {"model_type": "rwkv", "num_hidden_layers": 2, "attention_hidden_size": 64},
        spec("rwkv", 2, kinds={"linear": state("rwkv4", channels=64)}),
    ),
    (
        "short-convolution",
        {
            "model_type": "lfm2",
            "num_hidden_layers": 3,
            "conv_L_cache": 3,
            "layer_types": ["conv", "full_attention", "conv"],
            **ATTENTION,
        },
        spec(
            "lfm2",
            3,
            kinds={"conv": state("short_conv", channels=64, conv_kernel=3), "attention": FULL},
            pattern=["conv", "attention", "conv"],
        ),
    ),
    (
        "lightning",
        {
            "model_type": "minimax",
            "num_hidden_layers": 4,
            "num_local_experts": 2,
            "block_size": 16,
            "layer_types": ["linear_attention", "full_attention"] * 2,
            **ATTENTION,
        },
        spec(
            "minimax",
            4,
            kinds={"linear": state("lightning", state_heads=4, state_head_dim=16), "attention": FULL},
            pattern=["linear", "attention"],
        ),
    ),
]


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize(("config", "model"), [row[1:] for row in MODELS], ids=[row[0] for row in MODELS])
def test_a_whole_model_keeps_what_is_predicted(config: dict[str, Any], model: ModelSpec, prompt: int) -> None:
    """Tensors and storages after a prefill of two sequences, and after one more token, in bf16."""
    from kvcalc.measure.transformers_cache import measure_model

    found = measure_model({**COMMON, **config}, dtype="bf16", batch=2, prompt=prompt, encoder_context=11)
    size = api.size(model, context=prompt, batch=2, engine="transformers", dtype="bf16")
    report = size.engine_report
    assert found.total_bytes == size.total_bytes, found.tensors
    assert found.storage_bytes == report["storage_bytes"]
    assert found.after_decode_bytes == report["after_decode_bytes"]
    assert found.after_decode_storage_bytes == report["after_decode_storage_bytes"]


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_recurrent_state_stays_fp32(dtype: str) -> None:
    """The model's dtype decides everything but recurrent state and DeepSeek-V4's overlap gate."""
    from kvcalc.measure.transformers_cache import measure_model

    for name, config, model in MODELS:
        if name in ("mamba2-and-full-in-one-layer", "compressed", "rwkv4", "lightning"):
            found = measure_model({**COMMON, **config}, dtype=dtype, batch=1, prompt=9)
            assert found.total_bytes == api.size(model, context=9, engine="transformers", dtype=dtype).total_bytes


# Cache objects with the shapes of catalogue models: at least one for every kind of layer that a cache object has.
CATALOGUE = (
    "gpt2-small",
    "gemma-2-2b",
    "llama-4-scout",
    "deepseek-v3.2",
    "deepseek-v4-flash",
    "gemma-3n-e4b",
    "whisper-tiny",
    "falcon-h1-0.5b",
    "mamba-130m",
    "kimi-linear-48b-a3b",
    "lfm2-1.2b",
)


def compare(name: str, context: int, batch: int, **options: Any) -> None:
    """Assert that the library's cache objects hold what is predicted for a catalogue model, kind by kind."""
    from kvcalc.measure.transformers_cache import CacheChoice, layer_shapes, measure_layers

    setup = api.prepare(name, engine="transformers", dtype="bf16", options=options)
    size = api.measure(setup, context, batch)
    prompt = options.pop("prompt_tokens", context)
    choice = CacheChoice(**options)
    found = measure_layers(layer_shapes(setup.spec), choice, dtype="bf16", batch=batch, prompt=prompt, context=context)
    report = size.engine_report
    assert {row.label: row.bytes for row in size.breakdown if row.bytes} == found.by_label
    assert (found.total_bytes, found.storage_bytes) == (size.total_bytes, report["storage_bytes"])
    assert found.after_decode_bytes == report["after_decode_bytes"]
    assert found.after_decode_storage_bytes == report["after_decode_storage_bytes"]
    if found.growth_peak_bytes is not None:
        assert found.growth_peak_bytes == report["growth_peak_bytes"]


@pytest.mark.parametrize("name", CATALOGUE)
def test_cache_objects_hold_what_is_predicted(name: str) -> None:
    """After a prefill, and after steps; where a step's allocations are all cache, its peak is measured too."""
    compare(name, 130, 2)
    compare(name, 12, 3, prompt_tokens=5)


@pytest.mark.parametrize("name", [name for name in CATALOGUE if name != "deepseek-v4-flash"])
def test_static_caches_are_allocated_as_predicted(name: str) -> None:
    """Also beyond a full window, where a step rolls it through a copy."""
    compare(name, 3, 2, cache="static", max_cache_len=100)
    compare(name, 600, 1, cache="static", max_cache_len=9000, prompt_tokens=598)


def test_a_static_window_that_is_full_is_rolled_through_a_copy() -> None:
    """Gemma 2's 4,096 rows, all taken."""
    compare("gemma-2-2b", 5000, 1, cache="static", max_cache_len=9000)


@pytest.mark.parametrize("name", ["gpt2-small", "gemma-2-2b", "deepseek-v2-lite"])
def test_a_cache_without_the_config_knows_no_windows(name: str) -> None:
    """Every layer is a plain DynamicLayer."""
    compare(name, 5000, 1, config=False)


@pytest.mark.parametrize("backend", ["quanto", "hqq", "fp8"])
@pytest.mark.parametrize("name", ["gpt2-small", "falcon-7b", "deepseek-v2-lite"])
def test_quantised_caches_take_what_is_predicted(name: str, backend: str) -> None:
    """Rows of 768, 64, and 512 and 64 elements; runs of packed bytes that several groups share included."""
    package = {"quanto": "optimum", "hqq": "hqq"}.get(backend)
    if package is not None and find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    rest = {"cache": "quantized", "backend": backend}
    folds = {} if backend == "fp8" else {"residual_length": 8}
    for nbits in (None,) if backend == "fp8" else (2, 4):
        bits = {} if nbits is None else {"nbits": nbits}
        compare(name, 5, 3, **rest, **bits)
        compare(name, 7, 3, **rest, **bits, **folds, prompt_tokens=5)
        compare(name, 20, 1, **rest, **bits, **folds, prompt_tokens=3)
