"""Published Hugging Face `config.json` files as model specs. The only module that knows Hugging Face's key names.

A config leaves out what equals its class's default, so the defaults are data (`hf_defaults.json`, from the
configuration classes of transformers, with the version). What a class derives (which layers have a window, which keep
a state) is one small function per family below. A model type that is not listed is refused by name: its layers could
keep anything.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

from kvcalc.errors import Problem, SpecError, did_you_mean
from kvcalc.spec.model import NO_KIND, ModelSpec
from kvcalc.spec.resolve import resolve
from kvcalc.spec.yaml_tree import Tree, read_text

MAX_CONFIG_BYTES = 8 * 2**20
# Where multimodal configs keep the language model.
_TEXT_CONFIGS = ("text_config", "llm_config", "language_config", "thinker_config")
# A text config without a model type takes the one that its container implies.
_TEXT_TYPE_OF = {
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "llama4": "llama4_text",
    "mllama": "mllama_text_model",
    "kimi_k25": "kimi_k2",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "mistral3": "mistral",
    "llava": "llama",
}

# One quantity, the names it goes by in published configs, in order of preference.
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers")
_HIDDEN = ("hidden_size", "n_embd", "d_model", "n_embed")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "decoder_attention_heads", "num_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
_HEAD_DIM = ("head_dim", "d_kv", "kv_channels")
_CONTEXT = ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "context_length", "seq_length",
            "max_sequence_length", "max_target_positions", "model_max_length")  # fmt: skip


class _Config:
    """The language model's part of a config, with the class's defaults and a record of what was looked at."""

    def __init__(self, data: dict[str, Any], model_type: str, file: str, text: str) -> None:
        self.data = data
        self.model_type = model_type
        self.file = file
        self.text = text
        self.defaults = _defaults().get(model_type, {})
        self.used: dict[str, str] = {}

    def get(self, *names: str) -> Any:
        """Return the first of the names that the config gives, else the class's default, else None."""
        for name in names:
            if self.data.get(name) is not None:
                return self.data[name]
        for name in names:
            # A key that is null in the file overrules the default: that is how a window is switched off.
            if self.defaults.get(name) is not None and name not in self.data:
                return self.defaults[name]
        return None

    def integer(self, *names: str) -> int:
        """Return a whole number; SpecError if none of the names has one."""
        value = self.optional(*names)
        if value is None:
            self.fail(names[0], f"is missing, and model type {self.model_type} has no default for it")
        return value

    def optional(self, *names: str) -> int | None:
        """Return a whole number or None; SpecError if the value is something else."""
        value = self.get(*names)
        if value is None:
            return None
        name = next((name for name in names if name in self.data), names[0])
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail(name, f"must be a whole number, not {_shown(value)}")
        if not 0 <= value < 2**63:
            self.fail(name, f"{value:,} is out of range" if value.bit_length() < 200 else "is out of range")
        return value

    def flag(self, name: str) -> bool:
        """Return whether a switch is on."""
        return bool(self.get(name))

    def strings(self, name: str) -> list[str] | None:
        """Return a list of texts, or None if the config has none."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.fail(name, f"must be a list of names, not {_shown(value)}")
        return value

    def integers(self, name: str) -> list[int] | None:
        """Return a list of whole numbers, or None if the config has none."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            self.fail(name, f"must be a list of whole numbers, not {_shown(value)}")
        return value

    def nested(self, name: str) -> _Config:
        """Return a nested mapping as a config of its own; SpecError if there is none."""
        value = self.data.get(name)
        if not isinstance(value, dict):
            self.fail(name, f"model type {self.model_type} needs this mapping")
        return _Config(value, self.model_type, self.file, self.text)

    def fail(self, name: str, message: str) -> NoReturn:
        """Raise a SpecError at the field's place in the file."""
        raise SpecError([Problem(self.file, *_place(self.text, name), name, message)])

    @property
    def layers(self) -> int:
        """Layers of the decoder; the length of the layer list where a config gives only that."""
        count = self.optional(*_LAYERS)
        listed = self.get("hybrid_override_pattern", "layers_block_type", "layer_types")
        if count is None and isinstance(listed, (str, list)):
            count = len(listed)
        count = self.integer(*_LAYERS) if count is None else count
        if not 1 <= count <= 10_000:
            self.fail(
                next(name for name in _LAYERS if self.get(name) is not None), f"{count:,} layers are not possible"
            )
        return count

    @property
    def heads(self) -> int:
        """Query heads."""
        return self.integer(*_HEADS)

    @property
    def hidden(self) -> int:
        """Width of the model."""
        return self.integer(*_HIDDEN)


@dataclass
class Layout:
    """What a family's function finds: named kinds, their order, and what differs from the usual top level."""

    kinds: dict[str, dict[str, Any]] = field(default_factory=dict)
    pattern: list[str | list[str]] = field(default_factory=list)
    top: dict[str, Any] = field(default_factory=dict)


_Family = Callable[[_Config], Layout]


def read_config(path: Path) -> ModelSpec:
    """Return the spec of a published `config.json`, or of the folder that holds one.

    SpecError for a file that is not such a config, an unknown model type, or fields that contradict each other.
    """
    file = path / "config.json" if path.is_dir() else path
    text = read_text(file, MAX_CONFIG_BYTES)
    return config_spec(_parse(text, str(file)), text, str(file))


def config_spec(data: dict[str, Any], text: str, file: str) -> ModelSpec:
    """Return the spec of a parsed config; `text` is the file's, for the places of errors."""
    from kvcalc.read.parameters import count_parameters

    config = _language_model(data, text, file)
    family = _FAMILIES.get(config.model_type)
    if family is None:
        _refuse(config)
    layout = family(config)
    written = {**_top_level(data, config, file), **layout.top}
    if layout.kinds:
        written["kinds"] = layout.kinds
        written["pattern"] = _shortest(layout.pattern)
    written["parameters"] = count_parameters(config.model_type, {**config.defaults, **config.data}, layout.pattern)
    return resolve(Tree(file, written), origin=file)


def model_types() -> tuple[str, ...]:
    """Return the model types that can be read, sorted."""
    return tuple(sorted(_FAMILIES))


@lru_cache(maxsize=1)
def _defaults() -> dict[str, dict[str, Any]]:
    """Return the defaults of each model type's configuration class."""
    path = Path(__file__).with_name("hf_defaults.json")
    defaults: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["model_types"]
    return defaults


def _parse(text: str, file: str) -> dict[str, Any]:
    """Return a JSON object; SpecError for anything else."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise SpecError([Problem(file, error.lineno, error.colno, "", f"not valid JSON: {error.msg}")]) from None
    except RecursionError:
        raise SpecError([Problem(file, 1, 1, "", "not a config: nested too deeply")]) from None
    except ValueError:  # Python refuses to convert numbers of thousands of digits
        raise SpecError([Problem(file, 1, 1, "", "not a config: a number has too many digits")]) from None
    if not isinstance(data, dict):
        raise SpecError([Problem(file, 1, 1, "", "not a config: the top level must be a JSON object")])
    return data


def _language_model(data: dict[str, Any], text: str, file: str) -> _Config:
    """Return the part of a config that describes the language model."""
    outer = data.get("model_type")
    inner = next((data[name] for name in _TEXT_CONFIGS if isinstance(data.get(name), dict)), None)
    if inner is not None and isinstance(inner.get("text_config"), dict):
        inner = inner["text_config"]
    if inner is None:
        if not isinstance(outer, str):
            message = "is missing; a Hugging Face config names its model type"
            raise SpecError([Problem(file, 1, 1, "model_type", message)])
        config = _Config(data, outer, file, text)
        if config.model_type in _FAMILIES:
            _require_size(config)
        return config
    # A nested config leaves out what equals its class's default; a file of its own always gives these two.
    model_type = inner.get("model_type") or _TEXT_TYPE_OF.get(str(outer), str(outer))
    return _Config(inner, str(model_type), file, text)


def _require_size(config: _Config) -> None:
    """Refuse a file that names a model type and nothing else: the class's defaults would describe another model."""
    listed = ("hybrid_override_pattern", "layers_block_type", "layer_types")
    for names in ((*_LAYERS, *listed), _HIDDEN):
        if all(config.data.get(name) is None for name in names):
            config.fail(names[0], "is missing; a published config gives it")


def _refuse(config: _Config) -> NoReturn:
    looked_at = [name for name in (*_LAYERS, *_HEADS, *_KV_HEADS, *_HEAD_DIM, "layer_types") if name in config.data]
    hint = did_you_mean(config.model_type, _FAMILIES)
    seen = f" (the file has {', '.join(looked_at)})" if looked_at else ""
    config.fail(
        "model_type",
        f"unknown model type '{config.model_type}'{hint}; what its layers keep is not known{seen}; "
        "write a spec instead: see docs/specs.md",
    )


def _top_level(data: dict[str, Any], config: _Config, file: str) -> dict[str, Any]:
    """Return the dimensions that every model type names in the usual way."""
    hidden = config.hidden
    heads = config.optional(*_HEADS)
    dtype = config.get("dtype", "torch_dtype") or data.get("dtype") or data.get("torch_dtype")
    known = isinstance(dtype, str) and dtype not in ("auto", "None")
    written: dict[str, Any] = {
        "name": _name(data, file),
        "architecture": config.model_type,
        "source": {"url": _url(data, file), "checked": datetime.date.today().isoformat()},
        "layers": config.layers,
        "hidden_size": hidden,
        "dtype": dtype if known else ("float16" if config.model_type == "gpt2" else "bfloat16"),
        "max_context": config.optional(*_CONTEXT) or None,
        "parameters": None,
        "vocab_size": config.optional("vocab_size", "padded_vocab_size"),
    }
    if not known:
        written["assumed"] = ["dtype"]
    if heads:
        written["heads"] = heads
        # Some configs say null or 0 where every head has its own keys and values.
        written["kv_heads"] = config.optional(*_KV_HEADS) or heads
        head_dim = config.optional(*_HEAD_DIM)
        if head_dim:
            written["head_dim"] = head_dim
    return written


def _name(data: dict[str, Any], file: str) -> str:
    """Return a spec name for a config: the repository it says it comes from, else its folder or file name."""
    path = Path(file)
    own = path.stem if path.name != "config.json" else path.resolve().parent.name
    given = data.get("_name_or_path")
    name = given.rsplit("/", 1)[-1] if isinstance(given, str) and given.strip("./") else own
    cleaned = re.sub(r"[^A-Za-z0-9._+-]+", "-", name).strip("-._+").lower()[:120]
    return cleaned or "config"


def _url(data: dict[str, Any], file: str) -> str:
    given = data.get("_name_or_path")
    if isinstance(given, str) and re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", given):
        return f"https://huggingface.co/{given}/blob/main/config.json"
    return f"file:{Path(file).name}"


def _shortest(pattern: list[str | list[str]]) -> list[str | list[str]]:
    """Return the shortest beginning that gives the whole pattern when it is repeated and cut."""
    for length in range(1, len(pattern)):
        if all(entry == pattern[index % length] for index, entry in enumerate(pattern)):
            return pattern[:length]
    return pattern


def _place(text: str, name: str) -> tuple[int, int]:
    """Return the line and column of a key in JSON text, (1, 1) if it does not stand there."""
    match = re.search(rf'"{re.escape(name)}"\s*:', text)
    if not match:
        return 1, 1
    return text.count("\n", 0, match.start()) + 1, match.start() - text.rfind("\n", 0, match.start())


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 40 else f"{text[:36]}..."


# --- Families: what a configuration class derives from its fields -------------------------------------------------


def _full(_config: _Config) -> Layout:
    """Every layer attends to every token."""
    return Layout()


def _window_everywhere(config: _Config) -> Layout:
    """A `sliding_window` without a layer list applies to every layer (Mistral, Mixtral, Phi-3, StarCoder2)."""
    window = config.optional("sliding_window")
    if config.strings("layer_types"):
        return _by_layer_types(config)
    if not window:
        return Layout()
    return Layout({"local": _sliding(window)}, ["local"])


def _window_if_used(config: _Config) -> Layout:
    """Qwen: the window counts only with `use_sliding_window`, and from layer `max_window_layers` on."""
    window = config.optional("sliding_window")
    if not config.flag("use_sliding_window") or not window:
        return Layout()
    if config.strings("layer_types"):
        return _by_layer_types(config)
    first = config.optional("max_window_layers") or 0
    return _local_and_global(config, [index >= first for index in range(config.layers)])


def _alternating(every: int, key: str = "sliding_window_pattern") -> _Family:
    """Return a family whose every n-th layer is global and the others have the window."""

    def family(config: _Config) -> Layout:
        if config.strings("layer_types"):
            return _by_layer_types(config)
        step = config.optional(key, "_sliding_window_pattern", "layer_switch") or every
        return _local_and_global(config, [(index + 1) % step != 0 for index in range(config.layers)])

    return family


def _by_layer_types(config: _Config) -> Layout:
    """`layer_types` names each layer's attention; states and sizes come from the family that calls this."""
    types = _layer_types(config)
    unknown = set(types) - {"full_attention", "sliding_attention", "chunked_attention"}
    if unknown:
        config.fail("layer_types", f"names '{sorted(unknown)[0]}', which model type {config.model_type} does not have")
    layout = _local_and_global(config, [name == "sliding_attention" for name in types])
    if "chunked_attention" in types:
        layout.kinds["chunked"] = {"kind": "chunked", "chunk": config.integer("attention_chunk_size")}
        order = {"full_attention": "global", "sliding_attention": "local", "chunked_attention": "chunked"}
        layout.pattern = [order[name] for name in types]
        layout.kinds = {name: kind for name, kind in layout.kinds.items() if name in layout.pattern}
    return layout


def _layer_types(config: _Config) -> list[str]:
    types = config.strings("layer_types") or []
    if len(types) != config.layers:
        config.fail("layer_types", f"has {len(types)} entries for {config.layers} layers")
    return types


def _local_and_global(config: _Config, local: Sequence[bool]) -> Layout:
    """Return windows where `local` says so and full attention elsewhere; one kind alone needs no pattern."""
    if not any(local):
        return Layout()
    kinds = {"local": _sliding(config.integer("sliding_window"))}
    if not all(local):
        kinds["global"] = {"kind": "full"}
    return Layout(kinds, ["local" if is_local else "global" for is_local in local])


def _sliding(window: int) -> dict[str, Any]:
    return {"kind": "sliding", "window": window}


def _gemma3n(config: _Config) -> Layout:
    """Gemma 3n: of every five layers one is global; the last `num_kv_shared_layers` read earlier layers' KV."""
    layout = _alternating(5)(config)
    return _share_last(layout, config.optional("num_kv_shared_layers") or 0)


def _gemma4(config: _Config) -> Layout:
    """Gemma 4: global layers have a head size and KV heads of their own; the last layers may share KV."""
    layout = _alternating(6)(config)
    if "global" in layout.kinds:
        heads = config.optional("num_global_key_value_heads")
        if heads:
            layout.kinds["global"]["kv_heads"] = heads
        wide = config.optional("global_head_dim")
        if wide:
            layout.kinds["global"]["head_dim"] = wide
    return _share_last(layout, config.optional("num_kv_shared_layers") or 0)


def _share_last(layout: Layout, shared: int) -> Layout:
    """Turn the last `shared` layers into layers that read the KV of the last earlier layer of their kind."""
    if not shared:
        return layout
    first = len(layout.pattern) - shared
    for index in range(max(first, 0), len(layout.pattern)):
        name = str(layout.pattern[index])
        layout.kinds[f"shared_{name}"] = {"kind": "shared", "of": name}
        layout.pattern[index] = f"shared_{name}"
    return layout


def _llama4(config: _Config) -> Layout:
    """Llama 4: chunked attention except where rotary embedding is off (every fourth layer)."""
    if config.strings("layer_types"):
        return _by_layer_types(config)
    chunk = config.optional("attention_chunk_size")
    if not chunk:
        return Layout()
    # no_rope_layers: 1 where the layer has rotary embedding, and then chunks; an empty list means the default.
    rope = config.integers("no_rope_layers") or []
    step = config.optional("no_rope_layer_interval") or 4
    chunked = [bool(flag) for flag in rope] or [(index + 1) % step != 0 for index in range(config.layers)]
    if len(chunked) != config.layers:
        config.fail("no_rope_layers", f"has {len(chunked)} entries for {config.layers} layers")
    kinds: dict[str, dict[str, Any]] = {"chunked": {"kind": "chunked", "chunk": chunk}, "global": {"kind": "full"}}
    pattern: list[str | list[str]] = ["chunked" if flag else "global" for flag in chunked]
    return Layout({name: kind for name, kind in kinds.items() if name in pattern}, pattern)


def _mimo_v2(config: _Config) -> Layout:
    """MiMo-V2: sliding layers have KV heads of their own; K and V heads differ in size."""
    hybrid = config.integers("hybrid_layer_pattern")
    local = [flag == 1 for flag in hybrid] if hybrid else [name == "sliding_attention" for name in _layer_types(config)]
    layout = _local_and_global(config, local)
    for key, field_name in (("swa_num_key_value_heads", "kv_heads"), ("swa_head_dim", "head_dim"),
                            ("swa_v_head_dim", "v_head_dim"), ("swa_num_attention_heads", "heads")):  # fmt: skip
        value = config.optional(key)
        if value and "local" in layout.kinds:
            layout.kinds["local"][field_name] = value
    wide = config.optional("v_head_dim")
    if wide:
        layout.top["v_head_dim"] = wide
    return layout


def _step3(config: _Config) -> Layout:
    """Step 3.5 and 3.7: `layer_types`; sliding layers may have heads of their own (`attention_other_setting`)."""
    layout = _by_layer_types(config)
    other = config.data.get("attention_other_setting")
    if isinstance(other, dict) and "local" in layout.kinds:
        for key, field_name in (("num_attention_heads", "heads"), ("num_attention_groups", "kv_heads"),
                                ("head_dim", "head_dim")):  # fmt: skip
            value = other.get(key)
            if isinstance(value, int) and value:
                layout.kinds["local"][field_name] = value
    groups = config.optional("num_attention_groups")
    if groups:
        layout.top["kv_heads"] = groups
    return layout


def _mla_kind(config: _Config) -> dict[str, Any]:
    kind: dict[str, Any] = {"kind": "mla"}
    for name in ("kv_lora_rank", "qk_rope_head_dim"):
        kind[name] = config.integer(name)
    for name in ("qk_nope_head_dim", "v_head_dim"):
        value = config.optional(name)
        if value:
            kind[name] = value
    return kind


def _mla(config: _Config) -> Layout:
    """Latent attention in every layer."""
    return Layout({"mla": _mla_kind(config)}, ["mla"])


def _mla_twice(config: _Config) -> Layout:
    """LongCat-Flash: two latent attentions in every layer."""
    return Layout({"mla": _mla_kind(config)}, ["mla"], {"layers": 2 * config.integer("num_layers")})


def _mla_indexed(config: _Config) -> Layout:
    """Latent attention with sparse selection; layers of indexer type `shared` reuse another's selection."""
    kinds = {
        "mla": _mla_kind(config),
        "indexer": {"kind": "indexer", "index_head_dim": config.integer("index_head_dim")},
    }
    types = config.strings("indexer_types")
    if types is None:
        return Layout(kinds, [["mla", "indexer"]])
    if len(types) < config.layers:
        config.fail("indexer_types", f"has {len(types)} entries for {config.layers} layers")
    return Layout(kinds, [["mla", "indexer"] if name == "full" else "mla" for name in types[: config.layers]])


def _deepseek_v4(config: _Config) -> Layout:
    """DeepSeek-V4: `compress_ratios` per layer (0 a plain window), one entry more for multi-token prediction."""
    ratios = config.integers("compress_ratios") or []
    if len(ratios) < config.layers:
        config.fail("compress_ratios", f"has {len(ratios)} entries for {config.layers} layers")
    window, index = config.integer("sliding_window"), config.integer("index_head_dim")
    kinds: dict[str, dict[str, Any]] = {"local": {**_sliding(window), "kv_heads": 1, "v_head_dim": 0}}
    names = {0: "local", 4: "csa", 128: "hca"}
    unknown = sorted(set(ratios[: config.layers]) - set(names))
    if unknown:
        config.fail("compress_ratios", f"has the ratio {unknown[0]}; known: 0 (window), 4 (CSA), 128 (HCA)")
    kinds["csa"] = {"kind": "compressed", "window": window, "ratio": 4, "index_head_dim": index}
    kinds["hca"] = {"kind": "compressed", "window": window, "ratio": 128}
    pattern: list[str | list[str]] = [names[ratio] for ratio in ratios[: config.layers]]
    return Layout({name: kind for name, kind in kinds.items() if name in pattern}, pattern)


def _minimax_m3(config: _Config) -> Layout:
    """MiniMax-M3: full attention, and an indexer in the layers that `sparse_attention_config` marks."""
    sparse = config.nested("sparse_attention_config")
    marked = sparse.integers("sparse_attention_freq") or []
    if not sparse.flag("use_sparse_attention"):
        return Layout()
    if len(marked) < config.layers:
        config.fail("sparse_attention_freq", f"has {len(marked)} entries for {config.layers} layers")
    kinds: dict[str, dict[str, Any]] = {
        "full": {"kind": "full"},
        "indexer": {"kind": "indexer", "index_head_dim": sparse.integer("sparse_index_dim")},
    }
    return Layout(kinds, [["full", "indexer"] if flag else "full" for flag in marked[: config.layers]])


def _gated_delta(config: _Config) -> Layout:
    """Qwen3-Next, Qwen3.5 and OLMo Hybrid: gated DeltaNet, and full attention every fourth layer or as listed."""
    kind = {
        "kind": "state",
        "variant": "gated_deltanet",
        "key_heads": config.integer("linear_num_key_heads"),
        "value_heads": config.integer("linear_num_value_heads"),
        "key_head_dim": config.integer("linear_key_head_dim"),
        "value_head_dim": config.integer("linear_value_head_dim"),
        "conv_kernel": config.integer("linear_conv_kernel_dim"),
    }
    return _states_and_attention(config, kind, config.optional("full_attention_interval") or 4)


def _states_and_attention(config: _Config, state: dict[str, Any], interval: int) -> Layout:
    """Return a state in linear layers and full attention elsewhere, by `layer_types` or every `interval` layers."""
    if config.strings("layer_types"):
        attends = [name in ("full_attention", "attention") for name in _layer_types(config)]
    else:
        attends = [(index + 1) % interval == 0 for index in range(config.layers)]
    return _two_kinds("linear", state, attends)


def _two_kinds(name: str, state: dict[str, Any], attends: Sequence[bool]) -> Layout:
    kinds = {name: state, "attention": {"kind": "full"}}
    pattern: list[str | list[str]] = ["attention" if flag else name for flag in attends]
    return Layout({key: kind for key, kind in kinds.items() if key in pattern}, pattern)


def _kimi_linear(config: _Config) -> Layout:
    """Kimi Linear and Kimi K3: KDA, and latent attention in the layers that are listed (counted from 1)."""
    linear = config.nested("linear_attn_config")
    listed = set(linear.integers("full_attn_layers") or [])
    kda = {
        "kind": "state",
        "variant": "kda",
        "state_heads": linear.integer("num_heads"),
        "state_head_dim": linear.integer("head_dim"),
        "conv_kernel": linear.integer("short_conv_kernel_size"),
    }
    kinds = {"linear": kda, "mla": _mla_kind(config)}
    pattern: list[str | list[str]] = ["mla" if layer in listed else "linear" for layer in range(1, config.layers + 1)]
    return Layout({name: kind for name, kind in kinds.items() if name in pattern}, pattern)


def _minimax(config: _Config) -> Layout:
    """MiniMax-Text-01: lightning attention, and full attention as listed (1 in `attn_type_list`)."""
    state = {
        "kind": "state",
        "variant": "lightning",
        "state_heads": config.heads,
        "state_head_dim": config.optional(*_HEAD_DIM) or config.hidden // max(config.heads, 1),
    }
    listed = config.integers("attn_type_list")
    if listed and not config.strings("layer_types"):
        if len(listed) != config.layers:
            config.fail("attn_type_list", f"has {len(listed)} entries for {config.layers} layers")
        return _two_kinds("linear", state, [flag == 1 for flag in listed])
    return _states_and_attention(config, state, 2)


def _mamba1_kind(config: _Config, prefix: str = "") -> dict[str, Any]:
    expand = config.integer(f"{prefix}expand")
    channels = config.optional("mamba_intermediate_size") or expand * config.hidden
    if not prefix:
        channels = config.optional("intermediate_size", "d_inner") or channels
    return {
        "kind": "state",
        "variant": "mamba1",
        "channels": channels,
        "state_size": config.integer(f"{prefix}d_state", "state_size"),
        "conv_kernel": config.integer(f"{prefix}d_conv", "conv_kernel"),
    }


def _mamba(config: _Config) -> Layout:
    """Mamba and Falcon Mamba: a state in every layer."""
    return Layout({"mamba": _mamba1_kind(config)}, ["mamba"])


def _jamba(config: _Config) -> Layout:
    """Jamba: Mamba, and full attention every `attn_layer_period` layers from `attn_layer_offset` on."""
    period, offset = config.integer("attn_layer_period"), config.integer("attn_layer_offset")
    if not period:
        config.fail("attn_layer_period", "must be at least 1")
    attends = [index % period == offset for index in range(config.layers)]
    return _two_kinds("mamba", _mamba1_kind(config, "mamba_"), attends)


def _mamba2_kind(heads: int, head_dim: int, groups: int, state: int, kernel: int) -> dict[str, Any]:
    return {
        "kind": "state",
        "variant": "mamba2",
        "state_heads": heads,
        "state_head_dim": head_dim,
        "groups": groups,
        "state_size": state,
        "conv_kernel": kernel,
    }


def _mamba2(config: _Config) -> Layout:
    """Mamba 2: a state in every layer."""
    return Layout({"mamba": _mamba2_pure(config)}, ["mamba"], {"heads": None, "kv_heads": None, "head_dim": None})


def _mamba2_pure(config: _Config) -> dict[str, Any]:
    heads, wide = config.integer("num_heads"), config.integer("head_dim")
    sizes = config.integer("n_groups"), config.integer("state_size"), config.integer("conv_kernel")
    return _mamba2_kind(heads, wide, *sizes)


def _mamba2_prefixed(config: _Config) -> dict[str, Any]:
    """Bamba, Granite 4 and Falcon-H1 prefix their Mamba 2 fields with `mamba_`."""
    heads = config.integer("mamba_n_heads")
    inner = config.optional("mamba_d_ssm") or config.integer("mamba_expand") * config.hidden
    wide = config.get("mamba_d_head")
    head_dim = inner // max(heads, 1) if wide in (None, "auto") else config.integer("mamba_d_head")
    sizes = config.integer("mamba_n_groups"), config.integer("mamba_d_state"), config.integer("mamba_d_conv")
    return _mamba2_kind(heads, head_dim, *sizes)


def _bamba(config: _Config) -> Layout:
    """Bamba: Mamba 2, and full attention in `attn_layer_indices`."""
    listed = set(config.integers("attn_layer_indices") or [])
    return _two_kinds("mamba", _mamba2_prefixed(config), [index in listed for index in range(config.layers)])


def _granite_hybrid(config: _Config) -> Layout:
    """Granite 4: `layer_types` (or `layers_block_type`) names `mamba` and `attention` layers."""
    types = config.strings("layer_types") or config.strings("layers_block_type")
    if types is None:
        return Layout()
    if len(types) != config.layers:
        config.fail("layer_types", f"has {len(types)} entries for {config.layers} layers")
    return _two_kinds("mamba", _mamba2_prefixed(config), [name in ("attention", "full_attention") for name in types])


def _falcon_h1(config: _Config) -> Layout:
    """Falcon-H1: attention and Mamba 2 side by side in every layer."""
    return Layout({"attention": {"kind": "full"}, "mamba": _mamba2_prefixed(config)}, [["attention", "mamba"]])


def _nemotron_h(config: _Config) -> Layout:
    """Nemotron-H: one letter per layer: M Mamba 2, * attention, - MLP, E experts."""
    letters = config.get("hybrid_override_pattern")
    types = config.strings("layers_block_type") or config.strings("layer_types")
    by_letter = {"M": "mamba", "*": "attention", "-": NO_KIND, "E": NO_KIND}
    by_type = {"mamba": "mamba", "linear_attention": "mamba", "attention": "attention", "full_attention": "attention",
               "moe": NO_KIND, "mlp": NO_KIND}  # fmt: skip
    if isinstance(letters, str):
        pattern, key = [by_letter.get(letter, "") for letter in letters], "hybrid_override_pattern"
    else:
        pattern, key = [by_type.get(name, "") for name in types or []], "layers_block_type"
    if "" in pattern:
        config.fail(key, "names a layer that is none of mamba (M), attention (*), mlp (-), moe (E)")
    if len(pattern) != config.layers:
        config.fail(key, f"describes {len(pattern)} layers, num_hidden_layers is {config.layers}")
    sizes = config.integer("n_groups"), config.integer("ssm_state_size"), config.integer("conv_kernel")
    mamba = _mamba2_kind(config.integer("mamba_num_heads"), config.integer("mamba_head_dim"), *sizes)
    kinds = {"mamba": mamba, "attention": {"kind": "full"}}
    order: list[str | list[str]] = list(pattern)
    return Layout({name: kind for name, kind in kinds.items() if name in pattern}, order)


def _zamba(config: _Config) -> Layout:
    """Zamba: Mamba 1 in every layer, and in hybrid layers attention over twice the hidden size beside it."""
    return _zamba_layers(config, {**_mamba1_kind(config, "mamba_")}, "attention_hidden_size")


def _zamba2(config: _Config) -> Layout:
    """Zamba 2: the same with Mamba 2."""
    inner = config.integer("mamba_expand") * config.hidden
    heads = config.integer("n_mamba_heads")
    sizes = config.integer("mamba_ngroups"), config.integer("mamba_d_state"), config.integer("mamba_d_conv")
    mamba = _mamba2_kind(heads, config.optional("mamba_headdim") or inner // max(heads, 1), *sizes)
    return _zamba_layers(config, mamba, "attention_hidden_size")


def _zamba_layers(config: _Config, mamba: dict[str, Any], width: str) -> Layout:
    types = config.strings("layers_block_type") or config.strings("layer_types")
    if types is None:
        config.fail("layers_block_type", f"is missing; model type {config.model_type} needs its layer list")
    if len(types) != config.layers:
        config.fail("layers_block_type", f"has {len(types)} entries for {config.layers} layers")
    wide = config.optional("attention_head_dim")
    if not wide:
        wide = (config.optional(width) or 2 * config.hidden) // max(config.heads, 1)
    kinds = {"mamba": mamba, "attention": {"kind": "full", "head_dim": wide}}
    return Layout(kinds, [["mamba", "attention"] if name == "hybrid" else "mamba" for name in types])


def _recurrent_gemma(config: _Config) -> Layout:
    """RecurrentGemma: `block_types` repeats: recurrent, recurrent, attention with a window."""
    blocks = config.strings("block_types") or config.strings("_block_types")
    if blocks is None:
        config.fail("block_types", "is missing; it says which layers are recurrent")
    width = config.optional("lru_width") or config.hidden
    recurrent = {"kind": "state", "variant": "rg_lru", "channels": width, "conv_kernel": config.integer("conv1d_width")}
    kinds = {"recurrent": recurrent, "local": _sliding(config.integer("attention_window_size"))}
    names = ["local" if blocks[index % len(blocks)] == "attention" else "recurrent" for index in range(config.layers)]
    return Layout(kinds, list(names))


def _lfm2(config: _Config) -> Layout:
    """LFM2: short convolutions, and full attention as listed."""
    conv = {
        "kind": "state",
        "variant": "short_conv",
        "channels": config.hidden,
        "conv_kernel": config.integer("conv_L_cache"),
    }
    indices = config.integers("full_attn_idxs")
    if indices is not None and not config.strings("layer_types"):
        return _two_kinds("conv", conv, [index in set(indices) for index in range(config.layers)])
    return _two_kinds("conv", conv, [name == "full_attention" for name in _layer_types(config)])


def _rwkv4(config: _Config) -> Layout:
    """RWKV 4."""
    return Layout({"rwkv": {"kind": "state", "variant": "rwkv4", "channels": config.hidden}}, ["rwkv"])


def _rwkv5(config: _Config) -> Layout:
    """RWKV 5 and 6: heads of `head_size` over the attention's width."""
    size = config.integer("head_size", "head_dim")
    width = config.optional("attention_hidden_size") or config.hidden
    if not size or width % size:
        config.fail("head_size", f"{size} does not divide the attention's width {width}")
    kind = {"kind": "state", "variant": "rwkv", "channels": config.hidden, "state_heads": width // size,
            "state_head_dim": size}  # fmt: skip
    return Layout({"rwkv": kind}, ["rwkv"])


def _encoder_decoder(config: _Config) -> Layout:
    """T5, BART and Whisper: every decoder layer attends to itself and to the encoder."""
    top: dict[str, Any] = {}
    layers = config.optional("num_decoder_layers", "decoder_layers")
    if layers:
        top["layers"] = layers
    encoder = {"whisper": "max_source_positions", "bart": "max_position_embeddings", "t5": "n_positions"}
    length = config.optional(encoder.get(config.model_type, "max_position_embeddings"))
    if length:
        top["encoder_context"] = length
        if config.model_type != "whisper":
            top["assumed"] = ["encoder_context"]
    if config.model_type == "t5":
        top["max_context"] = None  # relative positions: n_positions is what it was trained on, not a limit
    return Layout({"self": {"kind": "full"}, "cross": {"kind": "cross"}}, [["self", "cross"]], top)


def _mllama(config: _Config) -> Layout:
    """Llama 3.2 Vision: the listed layers attend to the image instead of the text; text alone leaves them empty."""
    listed = set(config.integers("cross_attention_layers") or [])
    names: list[str | list[str]] = ["cross" if index in listed else "self" for index in range(config.layers)]
    return Layout({"self": {"kind": "full"}, "cross": {"kind": "cross"}}, names, {"encoder_context": 0})


def _falcon(config: _Config) -> Layout:
    """Falcon's three layouts: grouped with `new_decoder_architecture`, else one KV head, else one per head."""
    if config.flag("new_decoder_architecture"):
        heads = config.optional("num_kv_heads", "n_head_kv") or config.heads
    elif config.flag("multi_query"):
        heads = 1
    else:
        heads = config.heads
    return Layout(top={"kv_heads": heads})


def _multi_query(config: _Config) -> Layout:
    """GPT-BigCode: one KV head with `multi_query`."""
    return Layout(top={"kv_heads": 1 if config.flag("multi_query") else config.heads})


def _attention_config(config: _Config) -> Layout:
    """MPT and DBRX keep their KV heads in a nested `attn_config`."""
    nested = config.data.get("attn_config")
    heads = nested.get("kv_n_heads") if isinstance(nested, dict) else None
    if isinstance(nested, dict) and nested.get("attn_type") == "multiquery_attention":
        heads = 1
    return Layout(top={"kv_heads": heads if isinstance(heads, int) and heads else config.heads})


def _chatglm(config: _Config) -> Layout:
    """ChatGLM 2, 3 and GLM-4: KV heads count only with `multi_query_attention`."""
    grouped = config.flag("multi_query_attention")
    return Layout(top={"kv_heads": config.integer("multi_query_group_num") if grouped else config.heads})


def _nemotron_nas(config: _Config) -> Layout:
    """Nemotron-NAS (DeciLM): `block_configs` give every layer its own group size, or no attention."""
    blocks = config.data.get("block_configs")
    if not isinstance(blocks, list) or len(blocks) != config.layers:
        config.fail("block_configs", f"must list {config.layers} layers")
    kinds: dict[str, dict[str, Any]] = {}
    pattern: list[str | list[str]] = []
    for block in blocks:
        name, kind = _nas_layer(config, block.get("attention") if isinstance(block, dict) else None)
        if kind is not None:
            kinds[name] = kind
        pattern.append(name)
    return Layout(kinds, pattern)


def _nas_layer(config: _Config, attention: Any) -> tuple[str, dict[str, Any] | None]:
    """Return a layer's kind by name; None for a layer without attention."""
    if not isinstance(attention, dict):
        config.fail("block_configs", "has a layer without an 'attention' entry")
    if attention.get("no_op") or attention.get("replace_with_linear"):
        return NO_KIND, None
    group = attention.get("n_heads_in_group")
    if type(group) is not int or group < 1 or config.heads % group:
        config.fail(
            "block_configs", f"has n_heads_in_group {_shown(group)}, which does not divide {config.heads} heads"
        )
    heads = config.heads // group
    window = attention.get("window_length")
    if type(window) is int:
        return f"kv{heads}_w{window}", {**_sliding(window), "kv_heads": heads}
    return f"kv{heads}", {"kind": "full", "kv_heads": heads}


_FAMILIES: dict[str, _Family] = {
    **dict.fromkeys(
        (
            "llama",
            "gpt2",
            "gptj",
            "gpt_neox",
            "opt",
            "bloom",
            "gemma",
            "cohere",
            "olmo",
            "olmo2",
            "olmoe",
            "phi",
            "granite",
            "granitemoe",
            "glm",
            "glm4",
            "glm4_moe",
            "ernie4_5",
            "ernie4_5_moe",
            "seed_oss",
            "stablelm",
            "internlm2",
            "internlm3",
            "minimax_m2",
            "deepseek",
            "exaone",
            "mimo",
            "nemotron",
            "arcee",
            "qwen3_vl_text",
            "qwen3_vl_moe_text",
            "grok-1",
            "codegen",
            "phi3small",
            "hunyuan_v1_dense",
            "hunyuan_v1_moe",
            "apertus",
        ),
        _full,
    ),
    **dict.fromkeys(
        ("mistral", "mixtral", "ministral", "ministral3", "phi3", "phimoe", "starcoder2"), _window_everywhere
    ),
    **dict.fromkeys(
        (
            "qwen2",
            "qwen2_moe",
            "qwen2_vl",
            "qwen2_vl_text",
            "qwen2_5_vl",
            "qwen2_5_vl_text",
            "qwen3",
            "qwen3_moe",
            "smollm3",
        ),
        _window_if_used,
    ),
    "gemma2": _alternating(2),
    "gpt_oss": _alternating(2),
    "gemma3_text": _alternating(6),
    "cohere2": _alternating(4),
    "olmo3": _alternating(4),
    "exaone4": _alternating(4),
    "gemma3n_text": _gemma3n,
    "gemma4_text": _gemma4,
    "llama4_text": _llama4,
    "mimo_v2_flash": _mimo_v2,
    "step3p5": _step3,
    "step3p7": _step3,
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite", "mistral4", "minicpm3"), _mla),
    "longcat_flash": _mla_twice,
    "deepseek_v32": _mla_indexed,
    "glm_moe_dsa": _mla_indexed,
    "deepseek_v4": _deepseek_v4,
    "minimax_m3": _minimax_m3,
    **dict.fromkeys(
        ("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "olmo_hybrid"), _gated_delta
    ),
    "kimi_linear": _kimi_linear,
    "kimi_k3": _kimi_linear,
    "minimax": _minimax,
    "minimax_text_01": _minimax,
    "minimax_m1": _minimax,
    "mamba": _mamba,
    "falcon_mamba": _mamba,
    "mamba2": _mamba2,
    "jamba": _jamba,
    "bamba": _bamba,
    "granitemoehybrid": _granite_hybrid,
    "falcon_h1": _falcon_h1,
    "nemotron_h": _nemotron_h,
    "zamba": _zamba,
    "zamba2": _zamba2,
    "recurrent_gemma": _recurrent_gemma,
    "lfm2": _lfm2,
    "lfm2_moe": _lfm2,
    "rwkv": _rwkv4,
    "rwkv5": _rwkv5,
    "rwkv6": _rwkv5,
    "t5": _encoder_decoder,
    "bart": _encoder_decoder,
    "whisper": _encoder_decoder,
    "mllama_text_model": _mllama,
    "falcon": _falcon,
    "gpt_bigcode": _multi_query,
    "mpt": _attention_config,
    "dbrx": _attention_config,
    "chatglm": _chatglm,
    "nemotron-nas": _nemotron_nas,
}
