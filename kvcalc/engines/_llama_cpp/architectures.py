"""What llama.cpp calls a model_type, and what it does with it beyond its hyper-parameters.

Windows, memory kinds and refusals were read off the logs of the library itself (0c1e5709 in llama-cpp-python 0.3.36,
models given by metadata alone), except where docs/engines/llama-cpp.md marks a rule as read only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from kvcalc.errors import UnsupportedByEngine, did_you_mean

MemoryKind = Literal["attention", "dsa", "msa", "dsv4"]


@dataclass(frozen=True)
class Architecture:
    """One architecture of llama.cpp (`general.architecture` of a GGUF)."""

    name: str
    # Whether layers with a window get a cache of their own; elsewhere the window is ignored and the cache is full.
    windows: bool = False
    # Layers (of the whole model) without which the windows are ignored after all.
    windows_need_layers: int | None = None
    # Window that replaces the model's own.
    fixed_window: int | None = None
    # Layers, from the first, that own keys and values whatever the file says.
    layers_with_kv: int | None = None
    memory: MemoryKind = "attention"
    # Whether the latent of MLA is what is cached, given the keys key_length_mla and value_length_mla.
    latent: bool = False
    # Whether recurrent states can be kept several times over (n_rs_seq).
    rollback: bool = False
    # Whether layers without attention have kv heads in the file (one number for all layers).
    kv_heads_in_every_layer: bool = False
    flash_attn: bool = True
    # Attention and a recurrent memory side by side, even if a model has no layer of one sort.
    hybrid: bool = False
    # Cross-attention is computed anew from the encoder's output, which lies in the output buffer: it caches nothing.
    encoder_decoder: bool = False


def _plain(name: str, *model_types: str) -> dict[str, Architecture]:
    return dict.fromkeys(model_types or (name,), Architecture(name))


def _known(architecture: Architecture, *model_types: str) -> dict[str, Architecture]:
    return dict.fromkeys(model_types, architecture)


_WINDOWS = Architecture("", windows=True)
_LATENT = Architecture("", latent=True)
_HYBRID = Architecture("", hybrid=True)
_INTERVAL = Architecture("", hybrid=True, kv_heads_in_every_layer=True)

# Hugging Face model_type -> architecture.
ARCHITECTURES: dict[str, Architecture] = {
    # Mistral 7B v0.1 has a window of 4,096; its architecture is llama, which reads no window.
    **_plain("llama", "llama", "mistral", "mixtral", "internlm3"),
    **_plain("mistral3", "ministral3", "ministral", "mistral3"),
    **_plain("qwen", "qwen"),
    **_plain("qwen2", "qwen2", "qwen2_audio"),
    **_plain("qwen2moe", "qwen2_moe"),
    **_plain("qwen2vl", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"),
    **_plain("qwen3", "qwen3"),
    **_plain("qwen3moe", "qwen3_moe"),
    **_plain("qwen3vl", "qwen3_vl", "qwen3_vl_text"),
    **_plain("qwen3vlmoe", "qwen3_vl_moe", "qwen3_vl_moe_text"),
    # Phi-3 publishes a window and llama.cpp turns it off.
    **_plain("phi3", "phi3", "phi4"),
    **_plain("phi2", "phi", "phi2"),
    **_plain("phimoe", "phimoe"),
    **_plain("gpt2"),
    **_plain("gptneox", "gpt_neox"),
    **_plain("starcoder", "gpt_bigcode"),
    **_plain("starcoder2"),
    **_plain("falcon"),
    **_plain("bloom"),
    **_plain("mpt"),
    **_plain("refact", "gpt_refact", "refact"),
    **_plain("stablelm"),
    **_plain("baichuan"),
    **_plain("xverse"),
    **_plain("orion"),
    **_plain("internlm2"),
    **_plain("minicpm"),
    **_plain("minicpm3"),
    **_plain("gemma"),
    **_plain("command-r", "cohere"),
    **_plain("dbrx"),
    **_plain("olmo"),
    **_plain("olmoe"),
    **_plain("openelm"),
    **_plain("arctic"),
    **_plain("deepseek"),
    **_plain("chatglm", "chatglm", "glm"),
    **_plain("glm4"),
    **_plain("glm4moe", "glm4_moe"),
    **_plain("bitnet"),
    **_plain("jais"),
    **_plain("jais2"),
    **_plain("nemotron"),
    **_plain("deci", "nemotron-nas", "deci"),
    **_plain("exaone"),
    **_plain("granite"),
    **_plain("granitemoe"),
    **_plain("arcee"),
    **_plain("ernie4_5"),
    **_plain("ernie4_5-moe", "ernie4_5_moe"),
    **_plain("hunyuan-dense", "hunyuan_v1_dense"),
    **_plain("hunyuan-moe", "hunyuan_v1_moe"),
    **_plain("smollm3"),
    **_plain("seed_oss"),
    **_plain("dots1"),
    **_plain("bailingmoe", "bailing_moe"),
    **_plain("bailingmoe2", "bailing_moe_v2"),
    **_plain("grovemoe", "grove_moe"),
    **_plain("maincoder"),
    **_plain("minimax-m2", "minimax_m2"),
    **_plain("pangu-embedded", "PanguEmbedded"),
    **_plain("codeshell"),
    **_plain("plamo"),
    **_plain("plm"),
    **_known(Architecture("grok", flash_attn=False), "grok-1", "grok"),
    **_known(Architecture("t5", encoder_decoder=True), "t5"),
    # A window and a cache of its own for the layers that have it.
    **_known(replace(_WINDOWS, name="gemma2"), "gemma2"),
    **_known(replace(_WINDOWS, name="gemma3"), "gemma3", "gemma3_text"),
    **_known(replace(_WINDOWS, name="gemma3n", layers_with_kv=20), "gemma3n", "gemma3n_text"),
    **_known(replace(_WINDOWS, name="gemma4"), "gemma4", "gemma4_text"),
    **_known(replace(_WINDOWS, name="gpt-oss"), "gpt_oss"),
    **_known(replace(_WINDOWS, name="cohere2"), "cohere2"),
    **_known(replace(_WINDOWS, name="llama4", fixed_window=8192), "llama4", "llama4_text"),
    **_known(replace(_WINDOWS, name="olmo2"), "olmo2", "olmo3"),
    **_known(replace(_WINDOWS, name="exaone4", windows_need_layers=64), "exaone4"),
    **_known(replace(_WINDOWS, name="exaone-moe"), "exaone_moe"),
    **_known(replace(_WINDOWS, name="afmoe"), "afmoe"),
    **_known(replace(_WINDOWS, name="plamo3"), "plamo3"),
    **_known(replace(_WINDOWS, name="laguna"), "laguna"),
    **_known(replace(_WINDOWS, name="mimo2"), "mimo_v2_flash"),
    **_known(replace(_WINDOWS, name="step35"), "step3p5", "step3p7"),
    **_known(replace(_WINDOWS, name="smallthinker", fixed_window=4096), "smallthinker"),
    # Multi-head latent attention, alone or with an indexer.
    **_known(replace(_LATENT, name="deepseek2"), "deepseek_v2", "deepseek_v3", "kimi_k2", "kimi_k25", "glm4_moe_lite"),
    **_known(replace(_LATENT, name="mistral4"), "mistral4"),
    **_known(replace(_LATENT, name="deepseek32", memory="dsa"), "deepseek_v32"),
    **_known(replace(_LATENT, name="glm-dsa", memory="dsa"), "glm_moe_dsa"),
    **_known(replace(_LATENT, name="hy_v4", memory="dsa"), "hy_v4"),
    **_known(Architecture("minimax-m3", memory="msa"), "minimax_m3"),
    **_known(Architecture("deepseek4", memory="dsv4", rollback=True), "deepseek_v4"),
    # Recurrent states, alone or beside attention.
    **_plain("mamba", "mamba", "falcon_mamba"),
    **_plain("mamba2"),
    **_plain("rwkv6"),
    **_plain("rwkv7"),
    **_known(replace(_HYBRID, name="jamba"), "jamba"),
    **_known(replace(_HYBRID, name="granitehybrid"), "granitemoehybrid", "bamba"),
    **_known(replace(_HYBRID, name="falcon-h1"), "falcon_h1"),
    **_known(replace(_HYBRID, name="plamo2"), "plamo2"),
    **_known(replace(_HYBRID, name="kimi-linear", latent=True), "kimi_linear"),
    **_known(replace(_HYBRID, name="kimi-k3", latent=True, rollback=True), "kimi_k3"),
    **_known(replace(_HYBRID, name="nemotron_h", rollback=True), "nemotron_h"),
    **_known(replace(_HYBRID, name="lfm2", windows=True, rollback=True), "lfm2"),
    **_known(replace(_HYBRID, name="lfm2moe", rollback=True), "lfm2_moe"),
    **_known(replace(_INTERVAL, name="qwen3next"), "qwen3_next"),
    **_known(replace(_INTERVAL, name="qwen35", rollback=True), "qwen3_5", "qwen3_5_text"),
    **_known(replace(_INTERVAL, name="qwen35moe", rollback=True), "qwen3_5_moe", "qwen3_5_moe_text"),
    **_known(replace(_INTERVAL, name="minimax-01"), "minimax", "minimax_text_01", "minimax_m1"),
}

# Models that llama.cpp runs without any cache.
_WITHOUT_CACHE = {
    **dict.fromkeys(("bert", "modernbert", "nomic_bert", "roberta", "xlm-roberta", "eurobert"), "an encoder"),
    **dict.fromkeys(("dream", "Dream", "llada", "rnd1"), "a diffusion model"),
}


def find_architecture(model_type: str) -> Architecture:
    """Return what llama.cpp does with a Hugging Face model_type; UnsupportedByEngine if it does not know it."""
    if model_type in _WITHOUT_CACHE:
        raise UnsupportedByEngine(f"{model_type} is {_WITHOUT_CACHE[model_type]}: llama.cpp creates no cache for it")
    found = ARCHITECTURES.get(model_type)
    if found is None:
        hint = did_you_mean(model_type, ARCHITECTURES)
        raise UnsupportedByEngine(f"llama.cpp 0c1e5709 is not known to run the architecture '{model_type}'{hint}")
    return found
