"""Published Hugging Face `config.json` files as model specs.

What a class derives from its fields is one small function per family, in `hf_families`. A model type that is not listed
there is refused by name: its layers could keep anything.
"""

from __future__ import annotations

import datetime
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from kvcalc.errors import Problem, SpecError, did_you_mean
from kvcalc.read._pattern import shortest_pattern
from kvcalc.read.hf_families import FAMILIES, Layout
from kvcalc.read.hf_fields import (
    CONTEXT,
    EXPERTS,
    EXPERTS_PER_TOKEN,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    INNER,
    KV_HEADS,
    LAYER_LISTS,
    LAYERS,
    Fields,
    shown,
)
from kvcalc.spec.model import ModelSpec
from kvcalc.spec.resolve import resolve
from kvcalc.yaml_tree import Tree, read_text

MAX_CONFIG_BYTES = 8 * 2**20  # [3 MB: a quantisation that lists every expert]
_MAX_DIGITS = 40

# Kinds whose sizes are their own: what a config says of KV heads beside them has no meaning.
_WITHOUT_KV_HEADS = ("mla", "indexer", "state")

# Where multimodal configs keep the language model.
_TEXT_CONFIGS = ("text_config", "llm_config", "language_config", "thinker_config")
# A text config without a model type has the one that its container implies.
_TEXT_TYPE_OF = {
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "llama4": "llama4_text",
    "mllama": "mllama_text_model",
    "kimi_k25": "kimi_k2",
    "minimax_m3_vl": "minimax_m3",
    "qwen2_vl": "qwen2_vl_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "mistral3": "mistral",
    "llava": "llama",
}


def read_config(path: Path, *, repository: str = "", url: str = "") -> ModelSpec:
    """Return the spec of a published `config.json`, whatever the file is called.

    `repository` (org/name) and `url` say where it comes from, if that is known. SpecError for a file that is not such a
    config, an unknown model type, or fields that contradict each other.
    """
    text = read_text(path, MAX_CONFIG_BYTES)
    return config_spec(_parse(text, str(path)), text, str(path), repository=repository, url=url)


def config_spec(data: dict[str, Any], text: str, file: str, *, repository: str = "", url: str = "") -> ModelSpec:
    """Return the spec of a parsed config; `text` is the file's, for the places of errors."""
    config = _language_model(data, text, file)
    layout = _layout(config)
    top = _top_level(data, config)
    written = {**top, **layout.top, "assumed": [*top.get("assumed", []), *layout.top.get("assumed", [])]}
    written["name"] = _name(data, file, repository)
    written["source"] = {"url": url or f"file:{Path(file).name[:400]}", "checked": datetime.date.today().isoformat()}
    if repository:
        written["aliases"] = [repository]
    if layout.kinds and all(kind["kind"] in _WITHOUT_KV_HEADS for kind in layout.kinds.values()):
        written.update(kv_heads=None, head_dim=None)
    if layout.kinds:
        written["kinds"] = layout.kinds
        written["pattern"] = shortest_pattern(layout.pattern)
    return _with_parameters(resolve(Tree(file, written), origin=file), config)


def _with_parameters(spec: ModelSpec, config: Fields) -> ModelSpec:
    """Return the spec with its number of parameters, or with the reason why it is unknown."""
    from kvcalc.read.parameters import Unknown, count_parameters

    counted = count_parameters(config, spec)
    if isinstance(counted, Unknown):
        return replace(spec, weights_note=counted.why)
    return replace(spec, file=spec.file.model_copy(update={"parameters": counted}))


def model_types() -> tuple[str, ...]:
    """Return the model types that can be read, sorted."""
    return tuple(sorted(FAMILIES))


def _parse(text: str, file: str) -> dict[str, Any]:
    """Return a JSON object; SpecError for anything else."""
    try:
        data = json.loads(text, parse_int=_integer)
    except json.JSONDecodeError as error:
        raise SpecError([Problem(file, error.lineno, error.colno, "", f"not valid JSON: {error.msg}")]) from None
    except RecursionError:
        raise SpecError([Problem(file, 1, 1, "", "not a config: nested too deeply")]) from None
    except ValueError as error:
        raise SpecError([Problem(file, 1, 1, "", f"not a config: {error}")]) from None
    if not isinstance(data, dict):
        raise SpecError([Problem(file, 1, 1, "", "not a config: the top level must be a JSON object")])
    return data


def _integer(digits: str) -> int:
    """Return a number of JSON; ValueError where no quantity has so many digits (to convert them takes long)."""
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"a number has {len(digits):,} digits")
    return int(digits)


def _language_model(data: dict[str, Any], text: str, file: str) -> Fields:
    """Return the part of a config that describes the language model."""
    outer = data.get("model_type")
    inner = next((data[name] for name in _TEXT_CONFIGS if isinstance(data.get(name), dict)), None)
    if inner is not None and isinstance(inner.get("text_config"), dict):
        inner = inner["text_config"]
    if inner is None:
        config = Fields(data, outer if isinstance(outer, str) else "", file, text)
        if not config.model_type:
            seen = _seen(config, (*LAYERS, *HIDDEN, *HEADS, "ssm_cfg", "weight_map", "architectures"))
            config.fail("model_type", f"is missing; a Hugging Face config names its model type{seen}")
        if config.model_type in FAMILIES:
            _require_size(config)
        return config
    # A nested config leaves out what equals its class's default; a file of its own always gives its size.
    model_type = inner.get("model_type") or _TEXT_TYPE_OF.get(str(outer), str(outer))
    return Fields(inner, str(model_type), file, text)


def _require_size(config: Fields) -> None:
    """Refuse a file that names a model type and nothing else: the class's defaults would describe another model."""
    for names in ((*LAYERS, *LAYER_LISTS), HIDDEN):
        if all(config.data.get(name) is None for name in names):
            config.fail(names[0], "is missing; a published config gives it")


def _layout(config: Fields) -> Layout:
    """Return the layers that the model type's family finds; SpecError for an unknown type."""
    family = FAMILIES.get(config.model_type)
    if family is None:
        _refuse(config)
    if config.data.get("per_layer_config") and config.model_type != "gemma4_text":
        config.fail("per_layer_config", f"is not understood for model type {config.model_type}")
    return family(config)


def _refuse(config: Fields) -> NoReturn:
    hint = did_you_mean(config.model_type, FAMILIES)
    seen = _seen(config, (*LAYERS, *HEADS, *KV_HEADS, *HEAD_DIM, *LAYER_LISTS))
    message = f"unknown model type {shown(config.model_type)}{hint}; what its layers keep is not known{seen}"
    config.fail("model_type", f"{message}; write a spec instead: docs/specs.md shows how")


def _seen(config: Fields, names: tuple[str, ...]) -> str:
    """Return which of the names a config has, in brackets."""
    found = [name for name in names if config.data.get(name) is not None]
    return f" (looked at: {', '.join(found)})" if found else ""


def _top_level(data: dict[str, Any], config: Fields) -> dict[str, Any]:
    """Return the dimensions that every model type names in the usual way."""
    dtype = _dtype(data, config)
    written: dict[str, Any] = {
        "architecture": config.model_type,
        "layers": config.layers,
        "hidden_size": config.hidden,
        "dtype": dtype or ("float16" if config.model_type == "gpt2" else "bfloat16"),
        "max_context": _trained_context(config),
        "parameters": None,
        "vocab_size": config.positive("vocab_size", "padded_vocab_size"),
    }
    written.update(_feed_forward(config))
    tied = config.get("tie_word_embeddings")
    if isinstance(tied, bool):
        written["tie_word_embeddings"] = tied
    if dtype is None:
        written["assumed"] = ["dtype"]
    if config.positive(*HEADS):
        written["heads"] = config.heads
        written["kv_heads"] = config.kv_heads
        head_dim = config.positive(*HEAD_DIM)
        if head_dim:
            written["head_dim"] = head_dim
    return written


def _feed_forward(config: Fields) -> dict[str, Any]:
    """Return the widths of the feed-forward layers, where one number says them for all."""
    found: dict[str, Any] = {}
    if isinstance(config.get(*INNER), int):
        found["intermediate_size"] = config.positive(*INNER)
    if config.positive(*EXPERTS):
        found["experts_per_token"] = config.positive(*EXPERTS_PER_TOKEN)
        found["moe_intermediate_size"] = config.positive("moe_intermediate_size", "expert_ffn_hidden_size")
    return {name: value for name, value in found.items() if value}


def _dtype(data: dict[str, Any], config: Fields) -> str | None:
    """Return the format of weights and cache, quantised or not; None where no part of the config says it."""
    for where in (config.data, data):
        for key in ("dtype", "torch_dtype"):
            value = where.get(key)
            if isinstance(value, str) and value not in ("auto", "None", ""):
                return value.removeprefix("torch.")
    return None


def _trained_context(config: Fields) -> int | None:
    """Return the trained maximum; YaRN multiplies the length before it, which some configs leave standing."""
    given = config.positive(*CONTEXT)
    scaling = config.data.get("rope_scaling") or config.data.get("rope_parameters")
    if given is None or not isinstance(scaling, dict) or scaling.get("rope_type", scaling.get("type")) != "yarn":
        return given
    before, factor = scaling.get("original_max_position_embeddings"), scaling.get("factor")
    if type(before) is not int or not isinstance(factor, (int, float)) or not 1 <= factor <= 10_000:
        return given
    return max(given, int(before * factor)) if 1 <= before < 2**40 else given


def _name(data: dict[str, Any], file: str, repository: str) -> str:
    """Return a name: the repository's, the folder's, or the file's where that says more."""
    path = Path(file)
    # .../models--org--name/snapshots/COMMIT/config.json is how the Hugging Face cache lays a model out.
    cached = next((part for part in path.parts if part.startswith("models--")), "")
    given = data.get("_name_or_path")
    own = path.resolve().parent.name if path.name == "config.json" else path.stem
    for candidate in (repository, cached.replace("--", "/"), own, given if isinstance(given, str) else ""):
        name = re.sub(r"[^A-Za-z0-9._+-]+", "-", candidate.rsplit("/", 1)[-1]).strip("-._+").lower()[:120]
        if name:
            return name.rstrip("-._+")
    return "config"
