"""GGUF headers as model specs: what llama.cpp's architectures keep, from the keys of the header.

The keys are those of llama.cpp's converters; what a file leaves to its architecture (which layers slide, which keep a
state) is the table below.
"""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias

from kvcalc.errors import did_you_mean
from kvcalc.read._pattern import shortest_pattern
from kvcalc.read._refusal import quoted, refuse
from kvcalc.read.gguf import MAX_ARRAY_KEPT, GgufHeader, Value

if TYPE_CHECKING:
    from kvcalc.spec.model import ModelSpec

# --- Architectures ----------------------------------------------------------------------------------------------------

# A kind of a layer as the YAML would have it, in a form that can be compared and counted.
_Kind: TypeAlias = tuple[tuple[str, Any], ...]
_Layer: TypeAlias = tuple[_Kind, ...]

# Which layers of a hybrid keep a recurrent state instead of, or beside, keys and values:
#   none: no layer does; all: every layer, and none attends; both: every layer does both;
#   no_kv: layers without kv heads; no_kv_no_ff: those that have no feed-forward part either (the rest of the layers
#   without kv heads are MLPs); interval: all but every n-th.
_Recurrent = Literal["none", "all", "both", "no_kv", "no_kv_no_ff", "interval"]


@dataclass(frozen=True)
class _Architecture:
    """What the header leaves to the architecture.

    `window` says which layers slide where the file gives a window and no pattern: `every` layer; all but every n-th;
    none, because the published models turn the window off (`off`); None: no rule is known, the file must say.
    """

    model_type: str
    window: int | Literal["every", "off"] | None = None
    window_default: int | None = None
    needs_window: bool = False
    chunk: int | None = None
    recurrent: _Recurrent = "none"
    state: Callable[[_Hparams, int], _Kind] | None = None
    interval: int = 0
    own_kv: int | None = None
    indexer: Literal["every", "typed", "sparse"] | None = None
    layout: Literal["decoder", "encoder_decoder", "compressed"] = "decoder"


class _Hparams:
    """The keys of one architecture, checked as they are read."""

    def __init__(self, header: GgufHeader, architecture: str) -> None:
        self.header = header
        self.architecture = architecture
        self._per_layer: dict[str, list[int]] = {}
        self.blocks = self.positive("decoder_block_count" if self.has("decoder_block_count") else "block_count")
        if self.blocks > 10_000:
            self.fail("block_count", f"{self.blocks:,} layers are out of range; at most 10,000 are possible")
        # The layers that predict further tokens keep nothing while decoding one token at a time.
        self.layers = self.blocks - self.integer("nextn_predict_layers", 0)
        if self.layers < 1:
            self.fail("nextn_predict_layers", f"leaves {self.layers} of {self.blocks} layers")

    def has(self, key: str) -> bool:
        """Return whether the file has the key (also as an array too long to be kept)."""
        full = f"{self.architecture}.{key}"
        return full in self.header.metadata or full in self.header.array_lengths

    def value(self, key: str) -> Value | None:
        """Return a value as it stands, None if it is absent."""
        full = f"{self.architecture}.{key}"
        if full not in self.header.metadata and full in self.header.array_lengths:
            length = self.header.array_lengths[full]
            self.fail(key, f"is an array of {length:,} elements; numbers, at most {MAX_ARRAY_KEPT:,}, are expected")
        return self.header.metadata.get(full)

    def fail(self, key: str, message: str) -> NoReturn:
        """Raise a SpecError that names the key."""
        refuse(self.header.file, f"{self.architecture}.{key}", message)

    def integer(self, key: str, default: int | None = None) -> int:
        """Return a whole number from 0 on; an array counts if all its elements are equal."""
        value = self.value(key)
        if isinstance(value, tuple) and len(set(value)) == 1:
            value = value[0]
        if value is None:
            value = default
        if value is None:
            self.fail(key, "is missing")
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            self.fail(key, f"must be a whole number, not {_described(value)}")
        return value

    def positive(self, key: str) -> int:
        """Return a whole number from 1 on; there is no default."""
        value = self.integer(key)
        if value == 0:
            self.fail(key, "must be at least 1, not 0")
        return value

    def optional(self, key: str) -> int | None:
        """Return a whole number from 1 on; None if it is absent or 0."""
        return self.integer(key, 0) or None

    def per_layer(self, key: str, default: int | list[int] | None = None) -> list[int]:
        """Return one whole number from 0 on per layer, from an array or from one number for all."""
        if key not in self._per_layer:
            self._per_layer[key] = self._read_per_layer(key, default)
        return self._per_layer[key]

    def _read_per_layer(self, key: str, default: int | list[int] | None) -> list[int]:
        value = self.value(key)
        if isinstance(default, list) and value is None:
            return default
        if not isinstance(value, tuple):
            return [self.integer(key, default if isinstance(default, int) else None)] * self.layers
        if len(value) < self.layers:
            self.fail(key, f"has {len(value)} values for {self.layers} layers")
        numbers = []
        for number in value[: self.layers]:
            if isinstance(number, float) or number < 0:
                self.fail(key, f"must hold whole numbers, not {_described(number)}")
            numbers.append(int(number))
        return numbers

    def flags(self, key: str) -> list[bool] | None:
        """Return one yes or no per layer; None if the key is absent."""
        return [bool(number) for number in self.per_layer(key)] if self.has(key) else None


def _described(value: object) -> str:
    """Return a value for a message."""
    return f"an array of {len(value)}" if isinstance(value, tuple) else quoted(repr(value), 40)


def _kind(kind: str, **fields: Any) -> _Kind:
    """Return a kind with the fields that are given."""
    return (("kind", kind), *((name, value) for name, value in fields.items() if value is not None))


# Recurrent states; the keys and their meaning as in llama.cpp's converters.


def _mamba(hparams: _Hparams, _: int) -> _Kind:
    """Mamba 1 has no groups (B and C bypass the convolution), Mamba 2 at least one."""
    channels, groups = hparams.positive("ssm.inner_size"), hparams.optional("ssm.group_count")
    common = {"state_size": hparams.positive("ssm.state_size"), "conv_kernel": hparams.positive("ssm.conv_kernel")}
    if groups is None:
        return _kind("state", variant="mamba1", channels=channels, **common)
    heads = hparams.positive("ssm.time_step_rank")
    if channels % heads:
        hparams.fail("ssm.inner_size", f"{channels:,} is not divisible by the {heads:,} heads (ssm.time_step_rank)")
    return _kind(
        "state", variant="mamba2", state_heads=heads, state_head_dim=channels // heads, groups=groups, **common
    )


def _gated_deltanet(hparams: _Hparams, _: int) -> _Kind:
    """Groups are the key heads, the time step's rank the value heads, the state's size the key head's."""
    channels, heads = hparams.positive("ssm.inner_size"), hparams.positive("ssm.time_step_rank")
    if channels % heads:
        hparams.fail("ssm.inner_size", f"{channels:,} is not divisible by the {heads:,} heads (ssm.time_step_rank)")
    return _kind(
        "state",
        variant="gated_deltanet",
        key_heads=hparams.positive("ssm.group_count"),
        value_heads=heads,
        key_head_dim=hparams.positive("ssm.state_size"),
        value_head_dim=channels // heads,
        conv_kernel=hparams.positive("ssm.conv_kernel"),
    )


def _kda(hparams: _Hparams, _: int) -> _Kind:
    """Kimi Delta Attention has as many heads as the model's first layer."""
    return _kind(
        "state",
        variant="kda",
        state_heads=hparams.per_layer("attention.head_count")[0],
        state_head_dim=hparams.positive("kda.head_dim"),
        conv_kernel=hparams.positive("ssm.conv_kernel"),
    )


def _rwkv(hparams: _Hparams, _: int) -> _Kind:
    """The state's heads fill the hidden size."""
    hidden, head_dim = hparams.positive("embedding_length"), hparams.positive("wkv.head_size")
    shifts = hparams.integer("token_shift_count", 2)
    if shifts != 2:
        hparams.fail("token_shift_count", f"{shifts} shifted tokens cannot be described; only 2")
    if hidden % head_dim:
        hparams.fail("wkv.head_size", f"{head_dim:,} does not divide the hidden size {hidden:,}")
    return _kind("state", variant="rwkv", channels=hidden, state_heads=hidden // head_dim, state_head_dim=head_dim)


def _short_conv(hparams: _Hparams, _: int) -> _Kind:
    """LFM2's convolution over the hidden size."""
    channels, kernel = hparams.positive("embedding_length"), hparams.positive("shortconv.l_cache")
    return _kind("state", variant="short_conv", channels=channels, conv_kernel=kernel)


def _lightning(hparams: _Hparams, layer: int) -> _Kind:
    """Lightning attention has the heads of the full attention layers."""
    heads = hparams.per_layer("attention.head_count")[layer]
    head_dim = hparams.optional("attention.key_length")
    if head_dim is None:
        head_dim = hparams.positive("embedding_length") // max(heads, 1)
    return _kind("state", variant="lightning", state_heads=heads, state_head_dim=head_dim)


# llama.cpp's names whose models have attention of one kind in every layer, unless the file gives a window with a
# pattern. Names: general.architecture as llama.cpp's gguf package lists them (MODEL_ARCH_NAMES). Values: model_type of
# the published config.json (of its text_config) of the models that convert to the name; where several do, the oldest.
_PLAIN: dict[str, str] = {
    "apertus": "apertus",
    "arcee": "arcee",
    "arctic": "arctic",
    "baichuan": "baichuan",
    "bailingmoe": "bailing_moe",
    "bailingmoe2": "bailing_moe_v2",
    "bitnet": "bitnet",
    "bloom": "bloom",
    "chameleon": "chameleon",
    "chatglm": "chatglm",
    "codeshell": "codeshell",
    "command-r": "cohere",
    "dbrx": "dbrx",
    "deci": "nemotron-nas",
    "deepseek": "deepseek",
    "dots1": "dots1",
    "ernie4_5": "ernie4_5",
    "ernie4_5-moe": "ernie4_5_moe",
    "exaone": "exaone",
    "exaone-moe": "exaone_moe",
    "falcon": "falcon",
    "gemma": "gemma",
    "glm4": "glm4",
    "glm4moe": "glm4_moe",
    "gpt2": "gpt2",
    "gptj": "gptj",
    "gptneox": "gpt_neox",
    "granite": "granite",
    "granitemoe": "granitemoe",
    "grok": "grok-1",
    "grovemoe": "grove_moe",
    "hunyuan-dense": "hunyuan_v1_dense",
    "hunyuan-moe": "hunyuan_v1_moe",
    "internlm2": "internlm2",
    "jais": "jais",
    "jais2": "jais2",
    "maincoder": "maincoder",
    "mimo2": "mimo_v2_flash",
    "minicpm": "minicpm",
    "minicpm3": "minicpm3",
    "minimax-m2": "minimax_m2",
    "mistral3": "ministral3",
    "mistral4": "mistral4",
    "mpt": "mpt",
    "nemotron": "nemotron",
    "olmo": "olmo",
    "olmoe": "olmoe",
    "openelm": "openelm",
    "orion": "orion",
    "pangu-embedded": "PanguEmbedded",
    "phi2": "phi",
    "phimoe": "phimoe",
    "plamo": "plamo",
    "plamo3": "plamo3",
    "plm": "plm",
    "refact": "gpt_refact",
    "seed_oss": "seed_oss",
    "smallthinker": "smallthinker",
    "smollm3": "smollm3",
    "stablelm": "stablelm",
    "starcoder": "gpt_bigcode",
    "step35": "step3p5",
    "xverse": "xverse",
}

# Qwen 2, 2.5 and 3 publish a window with use_sliding_window false: that a file has one does not mean that layers slide.
_QWEN: dict[str, str] = {
    "qwen": "qwen",
    "qwen2": "qwen2",
    "qwen2moe": "qwen2_moe",
    "qwen2vl": "qwen2_vl_text",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
    "qwen3vl": "qwen3_vl_text",
    "qwen3vlmoe": "qwen3_vl_moe_text",
}

# Architectures with rules of their own. Windows: the layer_types (or sliding_window_pattern) of the published configs
# and of the model_type's defaults; layer splits and states: llama.cpp 0c1e5709, docs and converters.
_ARCHITECTURES: dict[str, _Architecture] = {
    **{name: _Architecture(model_type) for name, model_type in _PLAIN.items()},
    **{name: _Architecture(model_type, window="off") for name, model_type in _QWEN.items()},
    # Mistral 7B v0.1 converts to llama: a window there is every layer's. So it is in Phi-3 and StarCoder2.
    "llama": _Architecture("llama", window="every"),
    "phi3": _Architecture("phi3", window="every"),
    "starcoder2": _Architecture("starcoder2", window="every"),
    "llama4": _Architecture("llama4_text", window=4, chunk=8192),
    "gemma2": _Architecture("gemma2", window=2, window_default=4096),
    "gemma3": _Architecture("gemma3_text", window=6),
    # Gemma 3n: layers 20 and up read the keys and values of the layers before (35 - 15, 30 - 10 in the two sizes).
    "gemma3n": _Architecture("gemma3n_text", window=5, needs_window=True, own_kv=20),
    "gemma4": _Architecture("gemma4_text", needs_window=True),
    "gpt-oss": _Architecture("gpt_oss", window=2, needs_window=True),
    "cohere2": _Architecture("cohere2", window=4, needs_window=True),
    "olmo2": _Architecture("olmo2", window=4),
    "exaone4": _Architecture("exaone4", window=4),
    "afmoe": _Architecture("afmoe", window=4),
    "deepseek2": _Architecture("deepseek_v2"),
    "deepseek32": _Architecture("deepseek_v32", indexer="every"),
    "glm-dsa": _Architecture("glm_moe_dsa", indexer="typed"),
    "hy_v4": _Architecture("hy_v4", indexer="typed"),
    "minimax-m3": _Architecture("minimax_m3", indexer="sparse"),
    "deepseek4": _Architecture("deepseek_v4", layout="compressed"),
    "t5": _Architecture("t5", layout="encoder_decoder"),
    "mamba": _Architecture("mamba", recurrent="all", state=_mamba),
    "mamba2": _Architecture("mamba2", recurrent="all", state=_mamba),
    "rwkv6": _Architecture("rwkv6", recurrent="all", state=_rwkv),
    "rwkv7": _Architecture("rwkv7", recurrent="all", state=_rwkv),
    "falcon-h1": _Architecture("falcon_h1", recurrent="both", state=_mamba),
    "jamba": _Architecture("jamba", recurrent="no_kv", state=_mamba),
    "granitehybrid": _Architecture("granitemoehybrid", recurrent="no_kv", state=_mamba),
    "plamo2": _Architecture("plamo2", recurrent="no_kv", state=_mamba),
    "lfm2": _Architecture("lfm2", recurrent="no_kv", state=_short_conv),
    "lfm2moe": _Architecture("lfm2_moe", recurrent="no_kv", state=_short_conv),
    "kimi-linear": _Architecture("kimi_linear", recurrent="no_kv", state=_kda),
    "kimi-k3": _Architecture("kimi_linear", recurrent="no_kv", state=_kda),
    "nemotron_h": _Architecture("nemotron_h", recurrent="no_kv_no_ff", state=_mamba),
    "nemotron_h_moe": _Architecture("nemotron_h", recurrent="no_kv_no_ff", state=_mamba),
    "qwen3next": _Architecture("qwen3_next", recurrent="interval", interval=4, state=_gated_deltanet),
    "qwen35": _Architecture("qwen3_5_text", recurrent="interval", interval=4, state=_gated_deltanet),
    "qwen35moe": _Architecture("qwen3_5_moe_text", recurrent="interval", interval=4, state=_gated_deltanet),
    "minimax-01": _Architecture("minimax", recurrent="interval", interval=8, state=_lightning),
}

# Architectures that keep nothing between tokens, and why.
_NO_CACHE: dict[str, str] = {
    **dict.fromkeys(
        (
            "bert",
            "modern-bert",
            "nomic-bert",
            "nomic-bert-moe",
            "neo-bert",
            "jina-bert-v2",
            "jina-bert-v3",
            "eurobert",
            "gemma-embedding",
            "llama-embed",
            "t5encoder",
            "wavtokenizer-dec",
        ),
        "is an encoder: it keeps no KV cache",
    ),
    **dict.fromkeys(("dream", "llada", "llada-moe", "rnd1"), "is a diffusion model: it keeps no KV cache"),
    "clip": "is a projector of images or sound, not a language model",
}

# DeepSeek-V4's ratios (compress_ratios of its published config.json): 4 is sparse attention with an indexer (CSA), 128
# heavily compressed attention (HCA), 0 a window alone.
_CSA_RATIO, _HCA_RATIO = 4, 128

# The gating function of DeepSeek's experts: V3 (and Kimi K2) scores by sigmoid, V2 by softmax; else the two are alike.
_SIGMOID = 2


# --- From the header to a spec ----------------------------------------------------------------------------------------


def to_spec(header: GgufHeader, origin: str = "") -> ModelSpec:
    """Return the model that the header describes, validated as a spec file is.

    The cache's dtype is assumed to be float16, llama.cpp's default, because quantised weights do not say. SpecError
    for an architecture that is not known, for keys that are missing or contradict each other, and for every value
    that a spec file would be refused for.
    """
    from kvcalc.spec.resolve import resolve
    from kvcalc.yaml_tree import Tree

    return resolve(Tree(header.file, data=to_data(header)), origin or header.file)


def to_data(header: GgufHeader) -> dict[str, Any]:
    """Return the model as the data of a spec file (plain ints, texts, lists and dicts); errors as in `to_spec`."""
    name, known = _known_architecture(header)
    hparams = _Hparams(header, name)
    layers = _layers(hparams, known)
    if not any(layers):
        hparams.fail("attention.head_count_kv", "no layer keeps anything: every one has 0 kv heads and no state")
    context = hparams.integer("context_length", 0)
    vocabulary = header.array_lengths.get("tokenizer.ggml.tokens") or hparams.integer("vocab_size", 0)
    data = {
        "name": _model_name(header),
        "architecture": _model_type(hparams, known),
        "source": {"url": _source(header), "checked": datetime.date.today().isoformat()},
        "layers": hparams.layers,
        "hidden_size": hparams.positive("embedding_length"),
        **_attention(layers, hparams),
        "dtype": "float16",
        "max_context": context or None,
        "parameters": header.parameters or None,
        "assumed": ["dtype"],
    }
    if vocabulary:
        data["vocab_size"] = vocabulary
    data.update(_feed_forward(hparams))
    names = {tensor.name for tensor in header.tensors}
    if "token_embd.weight" in names:
        data["tie_word_embeddings"] = "output.weight" not in names
    if known.layout == "encoder_decoder":
        # T5's positions are relative: its trained length is no limit, but the best guess at what an encoder is given.
        data.update(max_context=None, encoder_context=context, assumed=["dtype", "encoder_context"])
    return data


def _feed_forward(hparams: _Hparams) -> dict[str, int]:
    """Return the widths of the feed-forward layers, where one number says them for all."""
    found = {"intermediate_size": hparams.value("feed_forward_length")}
    if hparams.optional("expert_count"):
        found["experts_per_token"] = hparams.value("expert_used_count")
        found["moe_intermediate_size"] = hparams.value("expert_feed_forward_length")
    return {name: value for name, value in found.items() if type(value) is int and value > 0}


def _known_architecture(header: GgufHeader) -> tuple[str, _Architecture]:
    """Return the architecture's name and rules; SpecError says what the file is instead."""
    key = "general.architecture"
    purpose = header.metadata.get("general.type", "model")
    if purpose != "model":
        refuse(header.file, "general.type", f"is {_described(purpose)}, not a model")
    name = header.architecture
    if name is None:
        refuse(header.file, key, f"is missing; {_keys_seen(header, '')}")
    if name in _NO_CACHE:
        refuse(header.file, key, f"{name} {_NO_CACHE[name]}")
    if name not in _ARCHITECTURES:
        hint = did_you_mean(name, _ARCHITECTURES)
        message = f"unknown architecture '{quoted(name)}'{hint}; {_keys_seen(header, f'{name}.')}"
        refuse(header.file, key, message)
    return name, _ARCHITECTURES[name]


def _keys_seen(header: GgufHeader, prefix: str, limit: int = 40) -> str:
    """Return the keys that start with `prefix`, without it, as a sentence."""
    seen = {*header.metadata, *header.array_lengths}
    keys = sorted(key[len(prefix) :] for key in seen if key.startswith(prefix))
    more = f" and {len(keys) - limit} more" if len(keys) > limit else ""
    listed = ", ".join(quoted(key) for key in keys[:limit])
    return f"keys in the file: {listed or 'none'}{more}"


def _model_type(hparams: _Hparams, known: _Architecture) -> str:
    """Return the Hugging Face model_type; several may convert to one architecture, told apart by their keys."""
    match hparams.architecture:
        case "llama" if hparams.integer("expert_count", 0):
            return "mixtral"
        case "llama" if hparams.integer("attention.sliding_window", 0):
            return "mistral"
        case "olmo2" if hparams.integer("attention.sliding_window", 0):
            return "olmo3"
        case "deepseek2" if hparams.integer("expert_gating_func", 0) == _SIGMOID:
            return "deepseek_v3"
        case "mamba" if hparams.value("ssm.dt_b_c_rms") is True:
            return "falcon_mamba"
    return known.model_type


def _model_name(header: GgufHeader) -> str:
    """Return the model's own name, or the file's, in the characters and the length that a name may have."""
    stem = re.sub(r"(-[0-9]{5}-of-[0-9]{5})?\.gguf$", "", Path(header.file).name)
    for candidate in (header.metadata.get("general.name"), header.metadata.get("general.basename"), stem):
        if isinstance(candidate, str):
            name = re.sub(r"[^a-z0-9._+]+", "-", candidate.lower()).strip("-._+")[:200].rstrip("-._+")
            if name:
                return name
    return "model"


def _source(header: GgufHeader) -> str:
    """Return the file's name as the source of the numbers."""
    return f"file:{quoted(Path(header.file).name, 400) or 'model.gguf'}"


def _layers(hparams: _Hparams, known: _Architecture) -> list[_Layer]:
    """Return the kinds of every layer."""
    if known.layout == "compressed":
        return _compressed_layers(hparams)
    heads = hparams.per_layer("attention.head_count", 0 if known.recurrent == "all" else None)
    kv_heads = hparams.per_layer("attention.head_count_kv", heads)
    recurrent = _recurrent_layers(hparams, known, kv_heads)
    attending = [
        known.recurrent in ("none", "both") or (known.recurrent != "all" and not recurrent[layer])
        for layer in range(hparams.layers)
    ]
    attention = _Attention(hparams, known, heads, kv_heads)
    layers = []
    for layer in range(hparams.layers):
        kinds = attention.kinds(layer) if attending[layer] else ()
        if recurrent[layer] and known.state is not None:
            kinds = (*kinds, known.state(hparams, layer))
        layers.append(kinds)
    return _shared(hparams, known, layers)


def _recurrent_layers(hparams: _Hparams, known: _Architecture, kv_heads: list[int]) -> list[bool]:
    """Return which layers keep a recurrent state."""
    written = hparams.flags("attention.recurrent_layers") if known.recurrent == "interval" else None
    if written is not None:
        return written
    match known.recurrent:
        case "all" | "both":
            return [True] * hparams.layers
        case "no_kv":
            return [count == 0 for count in kv_heads]
        case "no_kv_no_ff":
            feed_forward = hparams.per_layer("feed_forward_length")
            return [kv == 0 and ff == 0 for kv, ff in zip(kv_heads, feed_forward, strict=True)]
        case "interval":
            interval = hparams.integer("full_attention_interval", known.interval)
            if interval == 0:
                hparams.fail("full_attention_interval", "must be at least 1, not 0")
            return [(layer + 1) % interval != 0 for layer in range(hparams.layers)]
    return [False] * hparams.layers


@dataclass
class _Attention:
    """The attention of a decoder's layers, one kind for each (and an indexer beside it)."""

    hparams: _Hparams
    known: _Architecture
    heads: list[int]
    kv_heads: list[int]
    window: int | None = field(init=False)
    slides: list[bool] = field(init=False)
    head_dim: int | None = field(init=False)
    index_head_dim: int | None = field(init=False)
    indexed: list[bool] = field(init=False)

    def __post_init__(self) -> None:
        self.window = self._window()
        self.slides = self._sliding_layers()
        self.head_dim = self._head_dim()
        self.index_head_dim = self.hparams.optional("attention.indexer.key_length")
        self.indexed = self._indexed_layers()

    def kinds(self, layer: int) -> _Layer:
        """Return what the layer's attention keeps; nothing for a layer without heads."""
        heads, kv_heads = self.heads[layer], self.kv_heads[layer]
        if heads == 0 or kv_heads == 0:
            return ()
        # A file from before MLA's keys is run with a cache of every expanded head: that is what its model keeps.
        if self.hparams.integer("attention.kv_lora_rank", 0) and self.hparams.optional("attention.key_length_mla"):
            own = self._latent(heads)
        else:
            own = self._keys_and_values(layer, heads, kv_heads)
        if self.known.layout == "encoder_decoder":
            return (own, _kind("cross", **dict(own[1:])))
        if self.index_head_dim is not None and self.indexed[layer]:
            return (own, _kind("indexer", index_head_dim=self.index_head_dim))
        return (own,)

    def _keys_and_values(self, layer: int, heads: int, kv_heads: int) -> _Kind:
        """Return a full, sliding or chunked kind."""
        sliding = self.slides[layer]
        key, value = self._head_dims(sliding)
        dims = {"heads": heads, "kv_heads": kv_heads, "head_dim": key, "v_head_dim": None if value == key else value}
        if not sliding:
            return _kind("full", **dims)
        if self.known.chunk is not None:
            return _kind("chunked", **dims, chunk=self.known.chunk)
        return _kind("sliding", **dims, window=self.window)

    def _head_dims(self, sliding: bool) -> tuple[int, int]:
        """Return the elements of one key and one value head; sliding layers may have their own."""
        hparams = self.hparams
        key = hparams.optional("attention.key_length") or self.head_dim
        value = hparams.optional("attention.value_length") or self.head_dim
        if sliding:
            key = hparams.optional("attention.key_length_swa") or key
            value = hparams.optional("attention.value_length_swa") or value
        if key is None or value is None:
            hparams.fail("attention.key_length", "is missing, and the hidden size does not say how large a head is")
        return key, value

    def _head_dim(self) -> int | None:
        """Return the head size that the hidden size implies, by the first layer that has heads."""
        heads = next((count for count in self.heads if count), 0)
        return self.hparams.positive("embedding_length") // heads or None if heads else None

    def _latent(self, heads: int) -> _Kind:
        """Return an MLA kind: key_length is latent + rope, and the *_mla keys give the expanded heads."""
        hparams = self.hparams
        rank, key = hparams.positive("attention.kv_lora_rank"), hparams.positive("attention.key_length")
        expanded_key = hparams.positive("attention.key_length_mla")
        expanded_value = hparams.optional("attention.value_length_mla")
        rope = key - rank
        if not 0 < rope < expanded_key:
            message = f"{key:,} does not fit a latent of {rank:,} and expanded heads of {expanded_key:,}"
            hparams.fail("attention.key_length", message)
        return _kind(
            "mla",
            heads=heads,
            kv_lora_rank=rank,
            qk_rope_head_dim=rope,
            qk_nope_head_dim=expanded_key - rope,
            v_head_dim=expanded_value,
        )

    def _indexed_layers(self) -> list[bool]:
        """Return which layers have an indexer of their own beside them."""
        hparams = self.hparams
        match self.known.indexer:
            case "every":
                return [True] * hparams.layers
            case "typed":
                return hparams.flags("attention.indexer.types") or [True] * hparams.layers
            case "sparse":
                dense = hparams.integer("leading_dense_block_count", 0)
                return [layer >= dense for layer in range(hparams.layers)]
        return [False] * hparams.layers

    def _window(self) -> int | None:
        """Return the sliding window in tokens; None if there is none."""
        hparams, known = self.hparams, self.known
        if known.chunk is not None or known.window == "off":
            return None
        window = hparams.integer("attention.sliding_window", known.window_default or 0)
        if window == 0 and known.needs_window:
            hparams.fail("attention.sliding_window", "is missing; this architecture has layers with a window")
        return window or None

    def _sliding_layers(self) -> list[bool]:
        """Return which layers see a window (or chunk) only."""
        hparams, key = self.hparams, "attention.sliding_window_pattern"
        if self.window is None and self.known.chunk is None:
            return [False] * hparams.layers
        if isinstance(hparams.value(key), tuple):
            return [number != 0 for number in hparams.per_layer(key)]
        period = hparams.integer(key) if hparams.has(key) else self.known.window
        if period in ("every", 0):
            return [True] * hparams.layers
        if not isinstance(period, int):
            message = "is missing; the file gives a window, but neither it nor the architecture says to which layers"
            hparams.fail(key, message)
        return [layer % period < period - 1 for layer in range(hparams.layers)]


def _shared(hparams: _Hparams, known: _Architecture, layers: list[_Layer]) -> list[_Layer]:
    """Return the layers with the last ones reading, each, the nearest earlier layer of its kind that keeps its own."""
    key = "attention.shared_kv_layers"
    count = hparams.integer(key, 0)
    if count == 0 and known.own_kv is not None:
        count = max(hparams.layers - known.own_kv, 0)
    own = hparams.layers - count
    if own < 1:
        hparams.fail(key, f"{count:,} of {hparams.layers} layers leave none with keys and values of its own")
    kept = {_sorts(layer): layer for layer in layers[:own]}
    result = layers[:own]
    for index, layer in enumerate(layers[own:], start=own):
        if _sorts(layer) not in kept:
            hparams.fail(key, f"layer {index} shares keys and values, but no layer of its kind keeps any before it")
        result.append(tuple(_kind("shared", of=kind) for kind in kept[_sorts(layer)]))
    return result


def _sorts(layer: _Layer) -> frozenset[str]:
    """Return what sorts of kinds a layer has, whatever their dimensions."""
    return frozenset(str(dict(kind)["kind"]) for kind in layer)


def _compressed_layers(hparams: _Hparams) -> list[_Layer]:
    """Return DeepSeek-V4's layers: a window, and beside it compressed entries in most."""
    key = "attention.compress_ratios"
    ratios = hparams.per_layer(key)
    heads = hparams.per_layer("attention.head_count")
    head_dim, window = hparams.positive("attention.key_length"), hparams.positive("attention.sliding_window")
    index_head_dim = hparams.optional("attention.indexer.key_length")
    layers: list[_Layer] = []
    for layer, ratio in enumerate(ratios):
        dims = {"heads": heads[layer], "head_dim": head_dim, "window": window}
        if ratio == 0:
            layers.append((_kind("sliding", **dims, kv_heads=1, v_head_dim=0),))
        elif ratio == _CSA_RATIO:
            if index_head_dim is None:
                hparams.fail("attention.indexer.key_length", f"is missing; ratio {_CSA_RATIO} comes with an indexer")
            layers.append((_kind("compressed", **dims, ratio=ratio, index_head_dim=index_head_dim),))
        elif ratio == _HCA_RATIO:
            layers.append((_kind("compressed", **dims, ratio=ratio),))
        else:
            hparams.fail(key, f"unknown ratio {ratio:,}; known: 0, {_CSA_RATIO} and {_HCA_RATIO}")
    return layers


# --- Layers as a spec writes them -------------------------------------------------------------------------------------

_SHARED_FIELDS = ("heads", "kv_heads", "head_dim")
_STATE_NAMES = {
    "mamba1": "mamba",
    "mamba2": "mamba",
    "gated_deltanet": "linear",
    "kda": "linear",
    "lightning": "linear",
    "short_conv": "conv",
}


def _attention(layers: list[_Layer], hparams: _Hparams) -> dict[str, Any]:
    """Return the spec's heads, kv_heads, head_dim, pattern and kinds: the simplest that say the same."""
    common = _common_dims(layers)
    named = _named(list(dict.fromkeys(kind for layer in layers for kind in layer)))
    if list(named.values()) == ["full"] and all(layers) and "v_head_dim" not in dict(next(iter(named))):
        return _without_defaults(common, hparams.positive("embedding_length"))
    kinds = {}
    for layer in layers:
        for kind in layer:
            fields = {name: value for name, value in kind if common.get(name) != value}
            kinds[named[kind]] = {**fields, **({"of": named[fields["of"]]} if "of" in fields else {})}
    entries = [[named[kind] for kind in layer] for layer in layers]
    pattern = [entry[0] if len(entry) == 1 else entry or "none" for entry in shortest_pattern(entries)]
    return {**common, "pattern": pattern, "kinds": kinds}


def _common_dims(layers: list[_Layer]) -> dict[str, int]:
    """Return the dimensions that most layers have, written once at the top of a spec."""
    common = {}
    for name in _SHARED_FIELDS:
        counts = Counter(value for layer in layers for kind in layer for field_, value in kind if field_ == name)
        if counts:
            common[name] = counts.most_common(1)[0][0]
    return common


def _without_defaults(dims: dict[str, int], hidden: int) -> dict[str, int]:
    """Return the dimensions of a model with one kind of layer, without those that a spec works out itself."""
    heads, kv_heads, head_dim = (dims[name] for name in _SHARED_FIELDS)
    written = {"heads": heads}
    if kv_heads != heads:
        written["kv_heads"] = kv_heads
    if head_dim * heads != hidden:
        written["head_dim"] = head_dim
    return written


def _named(kinds: list[_Kind]) -> dict[_Kind, str]:
    """Return a name for every kind: `full`, or `full_kv8` and `full_kv4` where several differ in their kv heads."""
    beside = {str(dict(kind)["kind"]) for kind in kinds}
    readers = [kind for kind in kinds if dict(kind)["kind"] == "shared"]
    groups: dict[str, list[dict[str, Any]]] = {}
    named: dict[_Kind, str] = {}
    for kind in kinds:
        if kind not in readers:
            groups.setdefault(_base_name(dict(kind), beside), []).append(dict(kind))
    for base, group in groups.items():
        heads = {fields.get("kv_heads") for fields in group}
        apart = len(heads) == len(group) and None not in heads
        for number, fields in enumerate(group, start=1):
            suffix = "" if len(group) == 1 else f"_kv{fields['kv_heads']}" if apart else f"_{number}"
            named[tuple(fields.items())] = f"{base}{suffix}"
    named.update({kind: f"shared_{named[dict(kind)['of']]}" for kind in readers})
    return named


def _base_name(fields: dict[str, Any], beside: set[str]) -> str:
    """Return the name of a kind that is the only one of its sort, in a model with the kinds `beside` it."""
    match fields["kind"]:
        case "state":
            return _STATE_NAMES.get(fields["variant"], str(fields["variant"]))
        case "compressed":
            return "csa" if "index_head_dim" in fields else "hca"
        case "sliding":
            return "local"
        case "full" if beside & {"sliding", "chunked"}:
            return "global"
        case "full" if "state" in beside:
            return "attention"
        case "full" if "cross" in beside:
            return "self"
    return str(fields["kind"])
