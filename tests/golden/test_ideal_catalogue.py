"""The bundled models' sizes, computed again from a catalogue of published dimensions by plain formulas.

The catalogue (reference material beside the repository) was transcribed from the published config files on its own;
nothing here goes through a spec, a kind or an engine.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

import pytest

from kvcalc import api
from kvcalc.spec.load import index
from tests.shared_material import shared

Row = dict[str, Any]
# What one layer keeps of a sequence of n tokens, in bytes; a Fraction where a token is a part of an entry.
Held = Callable[[int], int | Fraction]

# What the notes add to a row.
ADDED: dict[str, Row] = {
    "mimo-v2-flash": {"sliding_window": 128, "sliding_kv_heads": 8},
    "glm-5.2": {"indexed_layers": {0, 1, 2, *range(6, 75, 4)}},
    "llama-3.2-11b-vision": {"cross_layers": set(range(3, 40, 5))},
    "recurrentgemma-2b": {"conv_kernel": 4},
    "mamba2-2.7b": {"state_head_dim": 64},
    "mamba-codestral-7b": {"state_head_dim": 64},
    "starcoder2-15b": {"torch_dtype": "float32"},  # which the row leaves out and the published config gives
}
# Encoder positions where the published config gives no length: what the specs assume.
ENCODER_CONTEXT = {"t5": 512, "bart": 1024}


@lru_cache
def rows() -> dict[str, Row]:
    """Return the catalogue's rows by the names that the bundled specs have."""
    loaded: list[Row] = json.loads(shared("models/catalogue.json").read_text(encoding="utf-8"))
    return {"gpt2-small" if row["name"] == "gpt2" else str(row["name"]): row for row in loaded}


def all_tokens(unit: int) -> Held:
    """Every token."""
    return lambda n: n * unit


def last_tokens(unit: int, window: int) -> Held:
    """The last ones."""
    return lambda n: min(n, window) * unit


def this_chunk(unit: int, chunk: int) -> Held:
    """Those of the current chunk."""
    return lambda n: ((n - 1) % chunk + 1) * unit


def always(size: int) -> Held:
    """A state, whatever the length."""
    return lambda n: size


def element_bytes(row: Row) -> int:
    """Return the bytes of one element of the cache."""
    return 4 if row["torch_dtype"] == "float32" else 2


def types_of(row: Row) -> list[str]:
    """Return the type of every layer."""
    if row["layer_types_rle"]:
        return [kind for kind, times in row["layer_types_rle"] for _ in range(times)]
    return ["sliding_attention" if row["sliding_window"] else "full_attention"] * row["num_hidden_layers"]


def heads_unit(row: Row, layer_type: str) -> int:
    """Return the bytes of one token's keys and values in one layer."""
    kv_heads, head_dim = row["num_key_value_heads"], row["head_dim"]
    if layer_type == "full_attention":
        kv_heads = row["num_global_key_value_heads"] or kv_heads
        head_dim = row["global_head_dim"] or head_dim
    elif layer_type == "sliding_attention":
        kv_heads = row.get("sliding_kv_heads", kv_heads)
    values = row["v_head_dim"] or head_dim
    return int(kv_heads * (head_dim + values) * element_bytes(row))


def latent_unit(row: Row) -> int:
    """Return the bytes of one token's latent and rotary key."""
    return int((row["kv_lora_rank"] + row["qk_rope_head_dim"]) * element_bytes(row))


def state_bytes(row: Row) -> int:
    """Return the bytes of one recurrent layer's state: the last k - 1 convolution inputs, and fp32 states."""
    if row["model_type"] == "minimax":  # lightning attention: no convolution, the model's dtype
        return int(row["num_attention_heads"] * row["head_dim"] ** 2 * element_bytes(row))
    recurrent, hidden = row["recurrent"], row["hidden_size"]
    past, size = (recurrent.get("conv_kernel") or row.get("conv_kernel", 1)) - 1, recurrent.get("state_size", 0)
    if "linear_num_key_heads" in recurrent:
        keys = recurrent["linear_num_key_heads"] * recurrent["linear_key_head_dim"]
        values = recurrent["linear_num_value_heads"] * recurrent["linear_value_head_dim"]
        return int(past * (2 * keys + values) * element_bytes(row) + 4 * values * recurrent["linear_key_head_dim"])
    if row["model_type"] == "recurrent_gemma":
        return int(recurrent["lru_width"] * (past * element_bytes(row) + 4))
    if "n_groups" in recurrent:
        inner = recurrent["n_heads"] * (recurrent.get("head_dim") or row["state_head_dim"])
        return int(past * (inner + 2 * recurrent["n_groups"] * size) * element_bytes(row) + 4 * inner * size)
    inner = recurrent["expand"] * hidden
    return int(inner * (past * element_bytes(row) + 4 * size))


def rwkv4_bytes(row: Row) -> int:
    """Return the bytes of one RWKV-4 layer: two tokens in the model's dtype, three fp32 accumulators."""
    return int(row["hidden_size"] * (2 * element_bytes(row) + 3 * 4))


def compressed(row: Row, ratio: int) -> Held:
    """DeepSeek-V4: a window, an entry for every `ratio` tokens, the waiting tokens' inputs and the last group's."""
    head, size = int(row["head_dim"]), element_bytes(row)
    index_dim = int(row["index_head_dim"]) if ratio == 4 else 0
    waiting = (2 if index_dim else 1) * (head + index_dim)
    overlap = ratio * (head + index_dim) * (size + 4) if index_dim else 0

    def held(n: int) -> int | Fraction:
        entries = Fraction(n, ratio) * (head + index_dim) * size
        recent = min(n, int(row["sliding_window"])) * head * size
        return recent + entries + n % ratio * 2 * waiting * size + (n >= ratio) * overlap

    return held


def layers(row: Row) -> list[Held]:
    """Return what every layer of a model keeps."""
    if row["encdec"]:
        encoder = row["encdec"]["cross_len"] or ENCODER_CONTEXT[row["model_type"]]
        unit = heads_unit(row, "full_attention")
        return [all_tokens(unit), always(encoder * unit)] * row["encdec"]["decoder_layers"]
    if row["model_type"] == "rwkv":
        return [always(rwkv4_bytes(row))] * row["num_hidden_layers"]
    types = types_of(row)
    own = len(types) - (row["num_kv_shared_layers"] or 0)
    return [held for index, layer_type in enumerate(types[:own]) for held in layer(row, layer_type, index)]


def layer(row: Row, layer_type: str, index: int) -> list[Held]:
    """Return what one layer keeps."""
    match layer_type:
        case "full_attention" | "indexed_attention" if row["kv_lora_rank"]:
            indexed = layer_type == "indexed_attention" and index in row.get("indexed_layers", {index})
            keys = row["index_head_dim"] * element_bytes(row) if indexed else 0
            return [all_tokens(latent_unit(row) + keys)]
        case "full_attention":
            cross = index in row.get("cross_layers", ())
            return [] if cross else [all_tokens(heads_unit(row, layer_type))]
        case "sliding_attention":
            unit = row["head_dim"] * element_bytes(row) if row["compress_ratios"] else heads_unit(row, layer_type)
            return [last_tokens(unit, row["sliding_window"])]
        case "chunked_attention":
            return [this_chunk(heads_unit(row, layer_type), row["attention_chunk_size"])]
        case "linear_attention":
            return [always(state_bytes(row))]
        case "hybrid":
            return [all_tokens(heads_unit(row, "full_attention")), always(state_bytes(row))]
        case "conv":
            past = row["recurrent"]["conv_kernel"] - 1
            return [always(past * row["hidden_size"] * element_bytes(row))]
        case "compressed_sparse_attention" | "heavily_compressed_attention":
            return [compressed(row, row["compress_ratios"][index])]
        case "moe" | "mlp":
            return []
    raise AssertionError(layer_type)


def config(name: str) -> Row:
    """Return a published config file, the part about text where it has several."""
    loaded: Row = json.loads(shared(f"models/configs/{name}.json").read_text(encoding="utf-8"))
    return {**loaded, **loaded.get("text_config", {})}


def kda_bytes(heads: int, head_dim: int, kernel: int) -> int:
    """Return the bytes of one KDA layer: inputs of three convolutions in bf16, a square matrix per head in fp32."""
    return 3 * heads * head_dim * (kernel - 1) * 2 + heads * head_dim**2 * 4


def exaone_3() -> list[Held]:
    """EXAONE 3.0 7.8B: published in float32."""
    read = config("LGAI-EXAONE__EXAONE-3.0-7.8B-Instruct")
    return [all_tokens(2 * read["num_key_value_heads"] * read["head_dim"] * 4)] * read["num_layers"]


def kimi_k3() -> list[Held]:
    """Kimi K3: MLA on some layers, KDA on the others."""
    read = config("moonshotai__Kimi-K3")
    linear = read["linear_attn_config"]
    state = kda_bytes(linear["num_heads"], linear["head_dim"], linear["short_conv_kernel_size"])
    latent = (read["kv_lora_rank"] + read["qk_rope_head_dim"]) * 2
    return [all_tokens(latent)] * len(linear["full_attn_layers"]) + [always(state)] * len(linear["kda_layers"])


def kimi_linear() -> list[Held]:
    """Kimi Linear 48B, as llama.cpp loads it: MLA (512 + 64) on 7 of 27 layers, KDA with 32 heads of 128 elsewhere."""
    return [all_tokens((512 + 64) * 2)] * 7 + [always(kda_bytes(32, 128, 4))] * 20


def minicpm3() -> list[Held]:
    """MiniCPM3-4B: MLA."""
    read = config("openbmb__MiniCPM3-4B")
    return [all_tokens((read["kv_lora_rank"] + read["qk_rope_head_dim"]) * 2)] * read["num_hidden_layers"]


def minimax_m3() -> list[Held]:
    """MiniMax-M3: grouped heads everywhere, and one index key per token on the sparse layers."""
    read = config("MiniMaxAI__MiniMax-M3")
    sparse = read["sparse_attention_config"]
    unit = 2 * read["num_key_value_heads"] * read["head_dim"] * 2
    indexed = sum(sparse["sparse_attention_freq"])
    return [all_tokens(unit)] * read["num_hidden_layers"] + [all_tokens(sparse["sparse_index_dim"] * 2)] * indexed


def nemotron_super() -> list[Held]:
    """Nemotron Super 49B: every layer has its own number of kv heads, or no attention."""
    read = config("nvidia__Llama-3_3-Nemotron-Super-49B-v1")
    heads, head_dim = read["num_attention_heads"], read["hidden_size"] // read["num_attention_heads"]
    groups = [block["attention"]["n_heads_in_group"] for block in read["block_configs"]]
    return [all_tokens(2 * heads // group * head_dim * 2) for group in groups if group]


def phi_3_small() -> list[Held]:
    """Phi-3-small: block-sparse layers mask, they do not forget."""
    read = config("microsoft__Phi-3-small-8k-instruct")
    head_dim = read["hidden_size"] // read["num_attention_heads"]
    return [all_tokens(2 * read["num_key_value_heads"] * head_dim * 2)] * read["num_hidden_layers"]


def rwkv_5() -> list[Held]:
    """RWKV-5 World 3B: two tokens in bf16, and a square matrix per head in fp32."""
    read = config("RWKV__rwkv-5-world-3b")
    state = read["attention_hidden_size"] * read["head_size"] * 4
    return [always(2 * read["hidden_size"] * 2 + state)] * read["num_hidden_layers"]


def step_37() -> list[Held]:
    """Step 3.7 Flash: a window on three layers of four; the three prediction layers at the end are not counted."""
    read = config("stepfun-ai__Step-3.7-Flash")
    unit = 2 * read["num_key_value_heads"] * read["head_dim"] * 2
    kept = {"full_attention": all_tokens(unit), "sliding_attention": last_tokens(unit, read["sliding_window"])}
    return [kept[layer_type] for layer_type in read["layer_types"][: read["num_hidden_layers"]]]


# Models whose rows the catalogue's notes call wrong or incomplete: read from their published configs.
FROM_CONFIGS: dict[str, Callable[[], list[Held]]] = {
    "exaone-3-7.8b": exaone_3,
    "kimi-k3": kimi_k3,
    "kimi-linear-48b-a3b": kimi_linear,
    "minicpm3-4b": minicpm3,
    "minimax-m3": minimax_m3,
    "nemotron-super-49b": nemotron_super,
    "phi-3-small": phi_3_small,
    "rwkv-5-world-3b": rwkv_5,
    "step-3.7-flash": step_37,
}


def expected(name: str) -> tuple[int, int]:
    """Return (bytes at context 4,096, what token 2 adds) of a model."""
    kept = FROM_CONFIGS[name]() if name in FROM_CONFIGS else layers({**rows()[name], **ADDED.get(name, {})})
    return int(sum(held(4096) for held in kept)), int(sum(held(2) - held(1) for held in kept))


@pytest.mark.parametrize("name", sorted(index()))
def test_a_bundled_model_takes_what_its_published_dimensions_say(name: str) -> None:
    """At 4,096 tokens, and for the second token."""
    result = api.size(name, context=4096)

    assert (result.total_bytes, api.size(name, context=1).per_token_bytes) == expected(name)
