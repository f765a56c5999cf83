"""Published config.json files: what each model type's layers keep, and what is refused.

The configs are shortened: what stays is what a cache depends on. Where a model is named, the fields are those that its
publisher gives, in the spelling of its time; the layers expected are what its paper, model card or modelling code says.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kvcalc import api
from kvcalc.errors import SpecError
from kvcalc.read.hf_config import config_spec, model_types, read_config
from kvcalc.read.parameters import counted_types
from kvcalc.spec.model import ModelSpec

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "torch_dtype": "bfloat16",
}


def read(config: dict[str, Any]) -> ModelSpec:
    """Return the spec of a config."""
    text = json.dumps(config, indent=2)
    return config_spec(json.loads(text), text, "config.json")


def layers(config: dict[str, Any]) -> Counter[str]:
    """Return how many layers of each description there are; `-` keeps nothing."""
    return Counter(" + ".join(kind.describe for kind in layer.kinds) or "-" for layer in read(config).layers)


def refusal(config: dict[str, Any]) -> str:
    """Return the message with which a config is refused."""
    with pytest.raises(SpecError) as caught:
        read(config)
    return str(caught.value)


# --- Heads ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, "GQA, 2 kv heads of 64"),
        ({"num_key_value_heads": None}, "MHA, 8 kv heads of 64"),
        ({"num_key_value_heads": 1}, "MQA, 1 kv head of 64"),
        ({"head_dim": 128}, "GQA, 2 kv heads of 128"),
        ({"head_dim": None}, "GQA, 2 kv heads of 64"),
        ({"sliding_window": 128}, "GQA, 2 kv heads of 64"),  # Llama has no window, whatever a config says
        ({"layer_types": ["full_attention"] * 4}, "GQA, 2 kv heads of 64"),
        ({"model_type": "mistral", "sliding_window": None}, "GQA, 2 kv heads of 64"),
        ({"model_type": "mistral", "sliding_window": 4096}, "GQA, 2 kv heads of 64, window 4,096"),
        ({"model_type": "mistral"}, "GQA, 2 kv heads of 64, window 4,096"),  # the class's default
        ({"model_type": "mixtral"}, "GQA, 2 kv heads of 64"),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}, "GQA, 2 kv heads of 64"),
        ({"model_type": "qwen3", "head_dim": 128, "sliding_window": None}, "GQA, 2 kv heads of 128"),
        ({"model_type": "phi3", "sliding_window": 2047}, "GQA, 2 kv heads of 64, window 2,047"),
        ({"model_type": "stablelm", "num_key_value_heads": 8}, "MHA, 8 kv heads of 64"),
        ({"model_type": "gemma", "head_dim": 256}, "GQA, 2 kv heads of 256"),
        ({"model_type": "exaone4", "sliding_window": None}, "GQA, 2 kv heads of 64"),
        ({"model_type": "smollm3", "use_sliding_window": False, "sliding_window": 512}, "GQA, 2 kv heads of 64"),
        ({"model_type": "minimax_m2", "attn_type_list": [1] * 4, "head_dim": 64}, "GQA, 2 kv heads of 64"),
        ({"model_type": "deepseek_v2", "use_mla": False, "kv_lora_rank": None}, "GQA, 2 kv heads of 64"),
    ],
)
def test_every_layer_of_a_plain_decoder_is_the_same(config: dict[str, Any], expected: str) -> None:
    """Null, missing and ignored fields mean what the model type makes of them."""
    assert layers({**LLAMA, **config}) == {expected: 4}


OLDER: dict[str, tuple[dict[str, Any], str]] = {
    "gpt2": ({"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12}, "MHA, 12 kv heads of 64"),
    "gpt-j": ({"model_type": "gptj", "n_layer": 28, "n_embd": 4096, "n_head": 16}, "MHA, 16 kv heads of 256"),
    "bloom-560m": (
        {"model_type": "bloom", "n_layer": 24, "n_embed": 1024, "num_attention_heads": 16},
        "MHA, 16 kv heads of 64",
    ),
    "bloom-7b1": ({"model_type": "bloom", "n_layer": 30, "hidden_size": 4096, "n_head": 32}, "MHA, 32 kv heads of 128"),
    "opt-350m": (
        {"model_type": "opt", "num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16,
         "word_embed_proj_dim": 512},
        "MHA, 16 kv heads of 64",
    ),
    "falcon-7b": (
        {"model_type": "falcon", "num_hidden_layers": 32, "hidden_size": 4544, "num_attention_heads": 71,
         "multi_query": True, "new_decoder_architecture": False},
        "MQA, 1 kv head of 64",
    ),
    "falcon-7b as first published": (
        {"model_type": "falcon", "n_layer": 32, "hidden_size": 4544, "n_head": 71, "multi_query": True},
        "MQA, 1 kv head of 64",
    ),
    "falcon-40b": (
        {"model_type": "falcon", "num_hidden_layers": 60, "hidden_size": 8192, "num_attention_heads": 128,
         "num_kv_heads": 8, "multi_query": True, "new_decoder_architecture": True},
        "GQA, 8 kv heads of 64",
    ),
    "falcon-rw-1b": (
        {"model_type": "falcon", "num_hidden_layers": 24, "hidden_size": 2048, "num_attention_heads": 32,
         "multi_query": False, "new_decoder_architecture": False, "alibi": True},
        "MHA, 32 kv heads of 64",
    ),
    "mpt-7b": (
        {"model_type": "mpt", "n_layers": 32, "d_model": 4096, "n_heads": 32, "max_seq_len": 2048,
         "attn_config": {"attn_type": "multihead_attention", "alibi": True}},
        "MHA, 32 kv heads of 128",
    ),
    "mpt with grouped queries": (
        {"model_type": "mpt", "n_layers": 32, "d_model": 4096, "n_heads": 32,
         "attn_config": {"attn_type": "grouped_query_attention", "kv_n_heads": 8}},
        "GQA, 8 kv heads of 128",
    ),
    "mpt with one KV head": (
        {"model_type": "mpt", "n_layers": 32, "d_model": 4096, "n_heads": 32,
         "attn_config": {"attn_type": "multiquery_attention"}},
        "MQA, 1 kv head of 128",
    ),
    "dbrx": (
        {"model_type": "dbrx", "n_layers": 40, "d_model": 6144, "n_heads": 48, "attn_config": {"kv_n_heads": 8}},
        "GQA, 8 kv heads of 128",
    ),
    "starcoder": (
        {"model_type": "gpt_bigcode", "n_layer": 40, "n_embd": 6144, "n_head": 48, "multi_query": True},
        "MQA, 1 kv head of 128",
    ),
    "gpt_bigcode without multi_query": (
        {"model_type": "gpt_bigcode", "n_layer": 12, "n_embd": 768, "n_head": 12, "multi_query": False},
        "MHA, 12 kv heads of 64",
    ),
    "chatglm3-6b": (
        {"model_type": "chatglm", "num_layers": 28, "hidden_size": 4096, "num_attention_heads": 32, "kv_channels": 128,
         "multi_query_attention": True, "multi_query_group_num": 2},
        "GQA, 2 kv heads of 128",
    ),
    "exaone-3": (
        {"model_type": "exaone", "num_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
         "num_key_value_heads": 8, "head_dim": 128},
        "GQA, 8 kv heads of 128",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OLDER)
def test_older_and_custom_spellings_are_understood(name: str) -> None:
    """n_layer, n_embed, n_head_kv, attn_config: one quantity has many names."""
    config, expected = OLDER[name]
    (found,) = layers(config)
    assert found == expected


# --- Windows and mixtures of layers -----------------------------------------------------------------------------------

GEMMA_27B = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "text_config": {
        "head_dim": 128,
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "model_type": "gemma3_text",
        "num_attention_heads": 32,
        "num_hidden_layers": 62,
        "num_key_value_heads": 16,
        "query_pre_attn_scalar": 168,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "torch_dtype": "bfloat16",
    "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27},
}
MAMBA2 = {"mamba_n_heads": 128, "mamba_d_head": "auto", "mamba_n_groups": 1, "mamba_d_state": 128, "mamba_d_conv": 4,
          "mamba_expand": 2}  # fmt: skip

MIXED: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "gemma-3-27b": (
        GEMMA_27B,
        {"GQA, 16 kv heads of 128, window 1,024": 52, "GQA, 16 kv heads of 128": 10},
    ),
    "gemma-3-4b, whose heads are the class's": (
        {"model_type": "gemma3", "text_config": {"hidden_size": 2560, "model_type": "gemma3_text",
                                                 "num_hidden_layers": 34, "sliding_window": 1024}},
        {"GQA, 4 kv heads of 256, window 1,024": 29, "GQA, 4 kv heads of 256": 5},
    ),
    "gemma-2-9b": (
        {"model_type": "gemma2", "num_hidden_layers": 42, "hidden_size": 3584, "num_attention_heads": 16,
         "num_key_value_heads": 8, "head_dim": 256, "sliding_window": 4096},
        {"GQA, 8 kv heads of 256, window 4,096": 21, "GQA, 8 kv heads of 256": 21},
    ),
    "gemma-3n-e4b": (
        {"model_type": "gemma3n", "text_config": {"hidden_size": 2048, "num_hidden_layers": 35,
                                                  "num_kv_shared_layers": 15}},
        {"GQA, 2 kv heads of 256, window 512": 16, "GQA, 2 kv heads of 256": 4, "reads the KV of 'local'": 12,
         "reads the KV of 'global'": 3},
    ),
    "command-r7b": (
        {"model_type": "cohere2", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
         "num_key_value_heads": 8, "sliding_window": 4096, "layer_switch": 4},
        {"GQA, 8 kv heads of 128, window 4,096": 24, "GQA, 8 kv heads of 128": 8},
    ),
    "exaone-4-32b": (
        {"model_type": "exaone4", "num_hidden_layers": 64, "hidden_size": 5120, "num_attention_heads": 40,
         "num_key_value_heads": 8, "sliding_window": 4096, "sliding_window_pattern": "LLLG"},
        {"GQA, 8 kv heads of 128, window 4,096": 48, "GQA, 8 kv heads of 128": 16},
    ),
    "gpt-oss-20b": (
        {"model_type": "gpt_oss", "num_hidden_layers": 24, "hidden_size": 2880, "num_attention_heads": 64,
         "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128},
        {"GQA, 8 kv heads of 64, window 128": 12, "GQA, 8 kv heads of 64": 12},
    ),
    "a Qwen2 that uses its window from layer 3 on": (
        {**LLAMA, "model_type": "qwen2", "use_sliding_window": True, "sliding_window": 64, "max_window_layers": 3},
        {"GQA, 2 kv heads of 64": 3, "GQA, 2 kv heads of 64, window 64": 1},
    ),
    "a SmolLM3 that uses its window": (
        {**LLAMA, "model_type": "smollm3", "use_sliding_window": True, "sliding_window": 64},
        {"GQA, 2 kv heads of 64": 3, "GQA, 2 kv heads of 64, window 64": 1},
    ),
    "llama-4-scout": (
        {"model_type": "llama4", "text_config": {"model_type": "llama4_text", "num_hidden_layers": 48,
         "hidden_size": 5120, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
         "attention_chunk_size": 8192, "no_rope_layers": []}},
        {"GQA, 8 kv heads of 128, chunk 8,192": 36, "GQA, 8 kv heads of 128": 12},
    ),
    "deepseek-v2-lite": (
        {"model_type": "deepseek_v2", "num_hidden_layers": 27, "hidden_size": 2048, "num_attention_heads": 16,
         "num_key_value_heads": 16, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
         "v_head_dim": 128, "q_lora_rank": None},
        {"MLA, latent 512 + rope 64": 27},
    ),
    "longcat-flash": (
        {"model_type": "longcat_flash", "num_layers": 28, "hidden_size": 6144, "num_attention_heads": 64,
         "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128},
        {"MLA, latent 512 + rope 64": 56},
    ),
    "glm-5.2 by its schedule": (
        {"model_type": "glm_moe_dsa", "num_hidden_layers": 78, "hidden_size": 6144, "num_attention_heads": 64,
         "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 192, "v_head_dim": 256,
         "index_head_dim": 128, "index_topk_freq": 4, "index_skip_topk_offset": 3, "index_topk_pattern": None},
        {"MLA, latent 512 + rope 64 + indexer keys of 128": 21, "MLA, latent 512 + rope 64": 57},
    ),
    "kimi-linear-48b-a3b": (
        {"model_type": "kimi_linear", "num_hidden_layers": 27, "hidden_size": 2304, "num_attention_heads": 32,
         "num_key_value_heads": 32, "head_dim": 72, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
         "qk_nope_head_dim": 128, "v_head_dim": 128, "model_max_length": 1048576,
         "linear_attn_config": {"full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "head_dim": 128, "num_heads": 32,
                                "short_conv_kernel_size": 4,
                                "kda_layers": [n for n in range(1, 28) if n not in (4, 8, 12, 16, 20, 24, 27)]}},
        {"kda, state 32 x 128 x 128": 20, "MLA, latent 512 + rope 64": 7},
    ),
    "qwen3-next-80b-a3b": (
        {"model_type": "qwen3_next", "num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 16,
         "num_key_value_heads": 2, "head_dim": 256, "full_attention_interval": 4, "linear_num_key_heads": 16,
         "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
         "linear_conv_kernel_dim": 4},
        {"gated_deltanet, state 32 x 128 x 128": 36, "GQA, 2 kv heads of 256": 12},
    ),
    "minimax-text-01": (
        {"model_type": "minimax_text_01", "num_hidden_layers": 80, "hidden_size": 6144, "num_attention_heads": 64,
         "num_key_value_heads": 8, "head_dim": 128, "attn_type_list": [0, 0, 0, 0, 0, 0, 0, 1] * 10},
        {"lightning, state 64 x 128 x 128": 70, "GQA, 8 kv heads of 128": 10},
    ),
    "minimax as transformers writes it": (
        {"model_type": "minimax", "num_hidden_layers": 3, "hidden_size": 512, "num_attention_heads": 8,
         "num_key_value_heads": 2, "layer_types": ["full_attention", "linear_attention", "full_attention"]},
        {"lightning, state 8 x 64 x 64": 1, "GQA, 2 kv heads of 64": 2},
    ),
    "mamba-130m": (
        {"model_type": "mamba", "num_hidden_layers": 24, "hidden_size": 768, "intermediate_size": 1536,
         "state_size": 16, "conv_kernel": 4, "expand": 2, "d_model": 768, "n_layer": 24},
        {"mamba1, state 1536 x 16": 24},
    ),
    "mamba-codestral-7b": (
        {"model_type": "mamba2", "num_hidden_layers": 64, "hidden_size": 4096, "num_heads": 128, "head_dim": 64,
         "n_groups": 8, "state_size": 128, "conv_kernel": 4, "expand": 2},
        {"mamba2, state 128 x 64 x 128": 64},
    ),
    "jamba-v0.1": (
        {"model_type": "jamba", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
         "num_key_value_heads": 8, "attn_layer_period": 8, "attn_layer_offset": 4, "mamba_expand": 2,
         "mamba_d_state": 16, "mamba_d_conv": 4, "intermediate_size": 14336},
        {"mamba1, state 8192 x 16": 28, "GQA, 8 kv heads of 128": 4},
    ),
    "bamba-9b": (
        {"model_type": "bamba", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
         "num_key_value_heads": 8, "attn_layer_indices": [9, 18, 27], **MAMBA2},
        {"mamba2, state 128 x 64 x 128": 29, "GQA, 8 kv heads of 128": 3},
    ),
    "granite-4 with its layers' older names": (
        {"model_type": "granitemoehybrid", "num_hidden_layers": 4, "hidden_size": 4096, "num_attention_heads": 32,
         "num_key_value_heads": 8, "layer_types": ["mamba", "mamba", "attention", "mamba"], **MAMBA2},
        {"mamba2, state 128 x 64 x 128": 3, "GQA, 8 kv heads of 128": 1},
    ),
    "falcon-h1": (
        {"model_type": "falcon_h1", "num_hidden_layers": 36, "hidden_size": 1024, "num_attention_heads": 8,
         "num_key_value_heads": 2, "head_dim": 64, **MAMBA2, "mamba_d_ssm": 1536, "mamba_n_heads": 24,
         "mamba_d_head": 64},
        {"GQA, 2 kv heads of 64 + mamba2, state 24 x 64 x 128": 36},
    ),
    "nemotron-nano-9b-v2, whose heads are wider than its hidden size allows": (
        {"model_type": "nemotron_h", "num_hidden_layers": 8, "hidden_size": 4480, "num_attention_heads": 40,
         "num_key_value_heads": 8, "head_dim": 128, "hybrid_override_pattern": "M-M*-M-E", "mamba_num_heads": 128,
         "mamba_head_dim": 80, "n_groups": 8, "ssm_state_size": 128, "conv_kernel": 4},
        {"mamba2, state 128 x 80 x 128": 3, "GQA, 8 kv heads of 128": 1, "-": 4},
    ),
    "nemotron-h-8b, which calls the head size otherwise": (
        {"model_type": "nemotron_h", "num_hidden_layers": 2, "hidden_size": 4096, "num_attention_heads": 16,
         "num_key_value_heads": 8, "attention_head_dim": 128, "hybrid_override_pattern": "M*", "mamba_num_heads": 128,
         "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128, "conv_kernel": 4},
        {"mamba2, state 128 x 64 x 128": 1, "GQA, 8 kv heads of 128": 1},
    ),
    "zamba-7b-v1 by its period": (
        {"model_type": "zamba", "num_hidden_layers": 76, "hidden_size": 3712, "num_attention_heads": 16,
         "attn_layer_period": 6, "attn_layer_offset": 4, "mamba_expand": 2, "mamba_d_state": 16, "mamba_d_conv": 4},
        {"mamba1, state 7424 x 16": 63, "mamba1, state 7424 x 16 + MHA, 16 kv heads of 464": 13},
    ),
    "zamba2 by its hybrid layers": (
        {"model_type": "zamba2", "num_hidden_layers": 4, "hidden_size": 2560, "num_attention_heads": 32,
         "hybrid_layer_ids": [2], "mamba_expand": 2, "n_mamba_heads": 80, "mamba_ngroups": 1, "mamba_d_state": 64,
         "mamba_d_conv": 4, "kv_channels": 80},
        {"mamba2, state 80 x 64 x 64": 3, "mamba2, state 80 x 64 x 64 + MHA, 32 kv heads of 160": 1},
    ),
    "recurrentgemma-2b": (
        {"model_type": "recurrent_gemma", "num_hidden_layers": 26, "hidden_size": 2560, "num_attention_heads": 10,
         "num_key_value_heads": 1, "lru_width": 2560, "attention_window_size": 2048, "conv1d_width": 4,
         "block_types": ["recurrent", "recurrent", "attention"]},
        {"rg_lru, state 2560": 18, "MQA, 1 kv head of 256, window 2,048": 8},
    ),
    "lfm2-1.2b": (
        {"model_type": "lfm2", "num_hidden_layers": 16, "hidden_size": 2048, "num_attention_heads": 32,
         "num_key_value_heads": 8, "conv_L_cache": 3, "full_attn_idxs": [2, 5, 8, 10, 12, 14]},
        {"short_conv, convolution only": 10, "GQA, 8 kv heads of 64": 6},
    ),
    "rwkv-4": (
        {"model_type": "rwkv", "num_hidden_layers": 12, "hidden_size": 768, "attention_hidden_size": 768,
         "context_length": 1024},
        {"rwkv4, state 3 x 768": 12},
    ),
    "rwkv-6": (
        {"model_type": "rwkv6", "num_hidden_layers": 24, "hidden_size": 2048, "attention_hidden_size": 2048,
         "head_size": 64},
        {"rwkv, state 32 x 64 x 64": 24},
    ),
    "nemotron-nas with a window and layers without attention": (
        {"model_type": "nemotron-nas", "num_hidden_layers": 4, "hidden_size": 8192, "num_attention_heads": 64,
         "num_key_value_heads": None, "block_configs": [
             {"attention": {"n_heads_in_group": 8, "no_op": False, "replace_with_linear": False}},
             {"attention": {"n_heads_in_group": None, "no_op": True, "replace_with_linear": False}},
             {"attention": {"n_heads_in_group": None, "no_op": False, "replace_with_linear": True}},
             {"attention": {"n_heads_in_group": 16, "window_length": 8192}}]},
        {"GQA, 8 kv heads of 128": 1, "-": 2, "GQA, 4 kv heads of 128, window 8,192": 1},
    ),
    "flan-t5-small, with decoder layers left out": (
        {"model_type": "t5", "num_layers": 8, "d_model": 512, "num_heads": 6, "d_kv": 64, "n_positions": 512},
        {"MHA, 6 kv heads of 64 + MHA, 6 kv heads of 64, 512 encoder positions": 8},
    ),
    "whisper-large-v3-turbo, with fewer decoder than encoder layers": (
        {"model_type": "whisper", "num_hidden_layers": 32, "decoder_layers": 4, "encoder_layers": 32, "d_model": 1280,
         "decoder_attention_heads": 20, "max_source_positions": 1500, "max_target_positions": 448},
        {"MHA, 20 kv heads of 64 + MHA, 20 kv heads of 64, 1,500 encoder positions": 4},
    ),
    "deepseek-v4 by names": (
        {"model_type": "deepseek_v4", "num_hidden_layers": 3, "hidden_size": 4096, "num_attention_heads": 64,
         "num_key_value_heads": 1, "head_dim": 512, "sliding_window": 128, "index_head_dim": 128,
         "layer_types": ["heavily_compressed_attention", "compressed_sparse_attention", "sliding_attention"]},
        {"HCA, 1 per 128 tokens of 512, window 128": 1, "CSA, 1 per 4 tokens of 512, window 128": 1,
         "MQA, 1 kv head of 512 (V 0), window 128": 1},
    ),
    "mimo-v2 as transformers writes it": (
        {"model_type": "mimo_v2_flash", "num_hidden_layers": 2, "hidden_size": 4096, "num_attention_heads": 64,
         "num_key_value_heads": 4, "head_dim": 192, "v_head_dim": 128, "sliding_window": 128,
         "layer_types": ["full_attention", "sliding_attention"]},
        {"GQA, 4 kv heads of 192 (V 128)": 1, "GQA, 8 kv heads of 192 (V 128), window 128": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MIXED)
def test_layers_that_differ_are_told_apart(name: str) -> None:
    """By layer lists, patterns, periods and letters, or by what the class makes of their absence."""
    config, expected = MIXED[name]
    assert layers(config) == expected


def test_gemma_3_27b_has_the_bytes_that_its_report_gives() -> None:
    """Windows, nested text config, no pattern and no dtype in it: 10 global layers of 62, 8,192 bytes a token each."""
    setup = api.prepare(read(GEMMA_27B))
    assert setup.placement.total_bytes(32_768, 1) == 3_120_562_176 == 10 * 32_768 * 8_192 + 52 * 1_024 * 8_192
    assert setup.spec.max_context == 131_072
    assert "dtype" not in setup.spec.file.assumed


# --- The top level ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "dtype", "assumed"),
    [
        ({"torch_dtype": "float16"}, "float16", ()),
        ({"dtype": "float32", "torch_dtype": None}, "float32", ()),
        ({"torch_dtype": "torch.bfloat16"}, "bfloat16", ()),
        ({"torch_dtype": None}, "bfloat16", ("dtype",)),
        ({"torch_dtype": "auto"}, "bfloat16", ("dtype",)),
        ({"quantization_config": {"quant_method": "fp8"}}, "bfloat16", ()),  # the cache stays in the model's dtype
        ({"model_type": "gpt2", "torch_dtype": None}, "float16", ("dtype",)),
    ],
)
def test_the_dtype_is_the_models_not_that_of_quantised_weights(
    config: dict[str, Any], dtype: str, assumed: tuple[str, ...]
) -> None:
    """And where no part of the config says it, it is assumed, and said so."""
    spec = read({**LLAMA, **config})
    assert (spec.dtype, spec.file.assumed) == (dtype, assumed)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"max_position_embeddings": 32768}, 32768),
        ({"max_position_embeddings": 32768, "rope_scaling": {"type": "linear", "factor": 4.0}}, 32768),
        (
            {"max_position_embeddings": 32768,
             "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}},
            131072,
        ),
        (
            {"max_position_embeddings": 163840,
             "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}},
            163840,
        ),
        (
            {"max_position_embeddings": 1000,
             "rope_parameters": {"rope_type": "yarn", "factor": 8, "original_max_position_embeddings": 1000}},
            8000,
        ),
        ({"max_position_embeddings": 1000, "rope_scaling": {"type": "yarn", "factor": "x"}}, 1000),
    ],
)  # fmt: skip
def test_the_trained_context_includes_what_yarn_multiplies(config: dict[str, Any], expected: int) -> None:
    """DeepSeek writes the product, Qwen the length before it."""
    assert read({**LLAMA, **config}).max_context == expected


def test_a_model_is_called_by_its_repository_folder_or_file(tmp_path: Path) -> None:
    """In this order; a fine-tune's _name_or_path names another model."""
    config = tmp_path / "My Model-7B" / "config.json"
    config.parent.mkdir()
    config.write_text(json.dumps({**LLAMA, "_name_or_path": "meta-llama/Llama-2-7b-hf"}), encoding="utf-8")
    assert read_config(config).name == "my-model-7b"
    assert read_config(config).file.source.url == "file:config.json"
    spec = read_config(config, repository="org/Other", url="https://example.org")
    assert (spec.name, spec.file.aliases, spec.file.source.url) == ("other", ("org/Other",), "https://example.org")
    copy = config.rename(tmp_path / "qwen_3.json")
    assert read_config(copy).name == "qwen_3"


def test_facts_that_engines_need_are_taken_over() -> None:
    """Vocabulary, feed-forward widths, tied embeddings, parameters."""
    file = read({**LLAMA, "vocab_size": 1000, "intermediate_size": 1024, "tie_word_embeddings": True}).file
    assert (file.vocab_size, file.intermediate_size, file.tie_word_embeddings) == (1000, 1024, True)
    attention, mlp, norms = 512 * (512 + 2 * 128) + 512 * 512, 3 * 512 * 1024, 2 * 512
    assert file.parameters == 1000 * 512 + 4 * (attention + mlp + norms) + 512
    sparse = read({**LLAMA, "model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2,
                   "moe_intermediate_size": 64}).file  # fmt: skip
    assert (sparse.experts_per_token, sparse.moe_intermediate_size) == (2, 64)


def test_an_unknown_number_of_parameters_has_a_reason() -> None:
    """It reaches whoever asks for the size."""
    spec = read({**LLAMA, "model_type": "deepseek"})
    assert spec.parameters is None
    assert "model type deepseek is not counted" in spec.weights_note
    assert "weights       unknown (model type deepseek is not counted" in str(api.size(spec, context=10))


def test_what_is_counted_can_be_read() -> None:
    """There is no counter for a model type without a family."""
    assert set(counted_types()) <= set(model_types())


# --- Refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "lama"}, 'config.json:2:3: model_type: unknown model type "lama"; did you mean llama'),
        ({"model_type": "brand_new"}, "what its layers keep is not known (looked at: num_hidden_layers, num_att"),
        ({"model_type": "brand_new"}, "write a spec instead: docs/specs.md shows how"),
        ({"model_type": None}, "model_type: is missing; a Hugging Face config names its model type (looked at: num_"),
        ({"model_type": ["llama"]}, "model_type: is missing"),
        ({"num_hidden_layers": None}, "num_hidden_layers: is missing; a published config gives it"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: 0 layers are not possible"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers: 1000000000 layers are not possible; from 1 to 10,000"),
        ({"num_hidden_layers": -4}, "num_hidden_layers: -4 is out of range"),
        ({"num_hidden_layers": 4.0}, "num_hidden_layers: must be a whole number, not 4.0"),
        ({"num_hidden_layers": "4"}, 'num_hidden_layers: must be a whole number, not "4"'),
        ({"num_hidden_layers": True}, "num_hidden_layers: must be a whole number, not true"),
        ({"num_attention_heads": [8]}, "num_attention_heads: must be a whole number, not [8]"),
        ({"num_key_value_heads": 3}, "heads 8 is not divisible by kv_heads 3"),
        ({"hidden_size": 2**30}, "hidden_size"),
        ({"num_attention_heads": 2**63}, "num_attention_heads: 9223372036854775808 is out of range"),
        ({"torch_dtype": "float7"}, "unknown dtype 'float7'"),
        ({"layer_types": ["full_attention"] * 3}, "layer_types: has 3 entries for 4 layers"),
        ({"layer_types": ["full_attention", 1]}, "layer_types: must be a list of names"),
        ({"layer_types": ["sliding_attention"] * 4}, "names 'sliding_attention', which model type llama does not have"),
        ({"model_type": "mistral", "layer_types": ["linear_attention"] * 4}, "does not have; known: full_attent"),
        ({"model_type": "qwen2", "use_sliding_window": "yes"}, 'use_sliding_window: must be true or false, not "yes"'),
        ({"per_layer_config": {"0": {"head_dim": 8}}}, "per_layer_config: is not understood for model type llama"),
        ({"model_type": "minimax_m2", "attn_type_list": [0, 1, 1, 1]}, "attn_type_list: has layers other than 1"),
        ({"model_type": "nemotron_h"}, "hybrid_override_pattern: is missing; it says what each layer is"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M*X-"}, "has a letter that is none of M"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M*"}, "describes 2 layers, not 4"),
        ({"model_type": "nemotron-nas"}, "block_configs: must list 4 layers"),
        ({"model_type": "dbrx"}, "attn_config: is missing; it has the number of KV heads"),
        ({"model_type": "kimi_linear"}, "linear_attn_config: model type kimi_linear needs this mapping"),
        ({"model_type": "gemma3n_text", "num_kv_shared_layers": 4}, "4 of 4 layers have no layer to read from"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "this is an encoder, and keeps no KV"),
        ({"model_type": "mimo_v2_flash"}, "hybrid_layer_pattern: is missing; it says which layers have a window"),
        ({"model_type": "recurrent_gemma", "block_types": ["x"]}, "block_types: must say which layers are 'recurrent'"),
        ({"model_type": "deepseek_v4", "compress_ratios": [0, 4, 8, 128]}, "has the ratio 8; known: 0 (window)"),
        ({"model_type": "jamba", "attn_layer_period": 0}, "attn_layer_period: must be at least 1"),
        ({"model_type": "llava", "text_config": {"model_type": "new"}}, 'unknown model type "new"'),
    ],
)  # fmt: skip
def test_a_config_that_says_too_little_or_the_impossible_is_refused(config: dict[str, Any], message: str) -> None:
    """With file, line, field, and what there is."""
    assert message in refusal({**LLAMA, **config})


def test_configs_of_other_libraries_are_refused_by_name() -> None:
    """state-spaces' and Mistral's own files have no model type."""
    assert "(looked at: n_layer, d_model, ssm_cfg)" in refusal({"d_model": 768, "n_layer": 24, "ssm_cfg": {}})
    assert "(looked at: n_layers, n_heads)" in refusal({"dim": 4096, "n_layers": 32, "n_heads": 32})


# --- Hostile files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not valid JSON"),
        (b"[1, 2]", "not a config: the top level must be a JSON object"),
        (b"{'a': 1}", ":1:2: not valid JSON"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not a config: nested too deeply"),
        (b'{"a": ' + b'{"a": ' * 100_000 + b"1" + b"}" * 100_001, "not a config: nested too deeply"),
        (b'{"num_hidden_layers": ' + b"9" * 10_000 + b"}", "not a config: a number has 10,000 digits"),
        (b'{"a": ' + b"9" * 1_000_000 + b"}", "not a config: a number has 1,000,000 digits"),
        (b'{"model_type": "caf\xe9"}', "is not UTF-8 text (byte 0xe9)"),
        (b"\x00" * 1000, "not valid JSON"),
        (b'{"model_type": "llama", "num_hidden_layers": NaN, "hidden_size": 1}', "must be a whole number, not NaN"),
        (b'{"model_type": "llama", "num_hidden_layers": 1e400, "hidden_size": 1}', "must be a whole number, not Inf"),
        (b'{"model_type": "' + b"x" * 1_000_000 + b'"}', "unknown model type"),
        (b'{"model_type": "\\u001b[31m"}', "unknown model type"),
        (json.dumps({**LLAMA, "model_type": "nemotron_h", "layers_block_type": ["mamba"] * 500_000}).encode(),
         "layers_block_type: has 500000 entries for 4 layers"),
        (json.dumps({"model_type": "qwen3_next", "hidden_size": 8, "num_hidden_layers": 9_999, "num_attention_heads": 8,
                     "layer_types": ["linear_attention"] * 9_998 + ["x"]}).encode(), "names 'x'"),
        (b" " * (8 * 2**20 + 1), "is larger than 8,388,608 bytes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_hostile_file_is_refused_in_a_moment(tmp_path: Path, content: bytes, message: str) -> None:
    """No hang, no traceback, a short printable message."""
    path = tmp_path / "config.json"
    path.write_bytes(content)
    began = time.monotonic()
    with pytest.raises(SpecError) as caught:
        read_config(path)
    assert time.monotonic() - began < 5  # well under a second alone on the machine
    assert message in str(caught.value)
    assert len(str(caught.value)) < 600


def test_ten_thousand_layers_that_all_but_repeat_take_a_moment() -> None:
    """The shortest pattern is found in one pass."""
    types = ["linear_attention"] * 9_999 + ["full_attention"]
    config = {**LLAMA, "model_type": "qwen3_next", "num_hidden_layers": 10_000, "layer_types": types}
    began = time.monotonic()
    assert len(read(config).layers) == 10_000
    assert time.monotonic() - began < 5
