"""The reader of configs against the configuration and modelling classes of the installed transformers.

For every model type that transformers knows: the defaults that kvcalc carries are those of the class, a config that the
class writes is read to the class's own layers, and a model built from it (on the meta device) has as many parameters.
"""

from __future__ import annotations

import json
import random
from importlib.metadata import version
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed (pip install 'kvcalc[torch]')")
pytest.importorskip("transformers", reason="transformers is not installed (pip install 'kvcalc[torch]')")

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

from kvcalc.errors import SpecError
from kvcalc.read.hf_config import config_spec, model_types
from kvcalc.read.parameters import counted_types
from kvcalc.spec.model import Layer, ModelSpec
from tests.golden import hf_defaults

transformers.logging.set_verbosity_error()

# The version whose classes the reader's defaults were made from; another one may have others.
CURRENT = version("transformers") == "5.24.0"
pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(not CURRENT, reason=f"made for transformers 5.24.0, not {version('transformers')}"),
]

KNOWN = [name for name in model_types() if name in CONFIG_MAPPING_NAMES]

# Classes whose defaults describe no model that could exist, and what is said of them.
NO_DEFAULT = {
    "glm4_moe": "head_dim",  # 4,096 elements for 96 heads: published configs give head_dim
    "lfm2_moe": "layer_types",  # the class has none and cannot be built without
}
# Model types without a list of layers that are not full attention throughout.
WITHOUT_LIST = {
    "mistral": "sliding_attention",
    "rwkv": "linear_attention",
}
# Built by a class that AutoModelForCausalLM does not know, or not from the class's defaults.
CANNOT_BE_BUILT = {
    "dbrx": "its class asks for a rope_theta that it does not have",
    "hunyuan_v1_dense": "its class asks for a rope_theta that it does not have",
    "lfm2_moe": "its class has no layer_types",
    "ministral": "its class asks for a rope_theta that it does not have",
    "mistral4": "only its vision model is registered",
    "mllama_text_model": "only its vision model is registered",
}


def written(config: Any) -> dict[str, Any]:
    """Return a config as its class writes it to config.json, defaults included."""
    data: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    return data


def read(data: dict[str, Any]) -> ModelSpec:
    text = json.dumps(data)
    return config_spec(json.loads(text), text, "config.json")


def named(layer: Layer) -> str:
    """Return what transformers calls a layer with these kinds."""
    kinds = [kind.name for kind in layer.kinds]
    variants = [getattr(kind, "variant", "") for kind in layer.kinds]
    match kinds:
        case []:
            return "mlp"
        case ["mla", "indexer"]:
            return "indexed_attention"
        case ["full", "indexer"]:
            return "minimax_m3_sparse"
        case ["state", "full"] | ["full", "state"]:
            return "hybrid"
        case ["full", "cross"] | ["mla"] | ["full"]:
            return "full_attention"
        case ["compressed"]:
            csa = getattr(layer.kinds[0], "index_head_dim") is not None  # noqa: B009
            return "compressed_sparse_attention" if csa else "heavily_compressed_attention"
        case ["state"]:
            return "conv" if variants == ["short_conv"] else "linear_attention"
    return {"sliding": "sliding_attention", "chunked": "chunked_attention", "cross": "cross_attention"}[kinds[0]]


def layout(spec: ModelSpec) -> list[str]:
    """Return the layers by transformers' names; one that reads another's KV is called as that one."""
    first: dict[str, Layer] = {}
    for layer in spec.layers:
        for name in layer.names:
            first.setdefault(name, layer)
    return [
        named(first[getattr(layer.kinds[0], "of")] if layer.kinds and layer.kinds[0].name == "shared" else layer)  # noqa: B009
        for layer in spec.layers
    ]


def expected_layout(config: Any, count: int) -> list[str]:
    """Return the class's own list of layers, or what it does without one."""
    text = config.get_text_config(decoder=True)
    listed = getattr(text, "layer_types", None) or getattr(text, "layers_block_type", None)
    if listed:
        return ["mlp" if name == "moe" else name for name in listed]
    if text.model_type == "mllama_text_model":
        crossing = set(text.cross_attention_layers)
        return ["cross_attention" if index in crossing else "full_attention" for index in range(count)]
    return [WITHOUT_LIST.get(text.model_type, "full_attention")] * count


def test_the_defaults_that_kvcalc_carries_are_those_of_the_classes() -> None:
    """`python tests/golden/hf_defaults.py` writes them anew."""
    assert hf_defaults.TARGET.read_text(encoding="utf-8") == hf_defaults.document()


@pytest.mark.parametrize("model_type", KNOWN)
def test_a_class_of_defaults_is_read_to_its_own_layers(model_type: str) -> None:
    """Layer by layer, with its heads and head sizes."""
    config = CONFIG_MAPPING[model_type]()
    if model_type in NO_DEFAULT:
        with pytest.raises(SpecError, match=NO_DEFAULT[model_type]):
            read(written(config))
        return
    spec = read(written(config))
    assert layout(spec) == expected_layout(config, len(spec.layers))
    text = config.get_text_config(decoder=True)
    for layer in spec.layers:
        for kind in layer.kinds:
            if kind.name == "full" and model_type not in ("gemma4_text", "gemma4"):
                assert getattr(kind, "heads") == text.num_attention_heads  # noqa: B009
                kv_heads = getattr(text, "num_key_value_heads", None)
                if kv_heads is not None:
                    assert getattr(kind, "kv_heads") == kv_heads  # noqa: B009


def variations(model_type: str, count: int = 6) -> list[dict[str, Any]]:
    """Return changes of sizes and switches of a class, the same at every run."""
    fields = written(CONFIG_MAPPING[model_type]())
    chosen = random.Random(model_type)
    # Nemotron's class cannot be built without KV heads.
    always = {"num_key_value_heads": 8} if model_type == "nemotron" else {}
    changes: list[dict[str, Any]] = [always]
    sizes = {"num_hidden_layers": [2, 5, 8], "n_layer": [2, 5], "n_layers": [2, 5], "num_layers": [2, 5],
             "intermediate_size": [96, 352], "vocab_size": [1000, 1536], "moe_intermediate_size": [48, 64],
             "num_experts": [8], "num_local_experts": [8], "n_routed_experts": [8], "n_shared_experts": [1, 2],
             "first_k_dense_replace": [0, 1], "num_key_value_heads": [1, 2], "decoder_layers": [2, 3],
             "max_position_embeddings": [128, 512], "state_size": [8, 32], "q_lora_rank": [64]}  # fmt: skip
    switches = [name for name in fields if isinstance(fields[name], bool) and ("bias" in name or "tie_" in name)]
    for _ in range(count):
        change: dict[str, Any] = {name: chosen.random() < 0.5 for name in switches if chosen.random() < 0.4}
        for name, values in sizes.items():
            if isinstance(fields.get(name), int) and chosen.random() < 0.4:
                change[name] = chosen.choice(values)
        changes.append({**always, **change})
    return changes


def built(config: Any) -> int | None:
    """Return the parameters of a model of a config, tied ones once; None where the class does not allow the config."""
    seq2seq = {"t5": "AutoModelForSeq2SeqLM", "bart": "AutoModelForSeq2SeqLM", "whisper": "AutoModelForSpeechSeq2Seq"}
    auto = getattr(transformers, seq2seq.get(config.model_type, "AutoModelForCausalLM"))
    try:
        with torch.device("meta"):
            model = auto.from_config(config)
            model.tie_weights()
    except Exception:  # each class has errors of its own for sizes that do not go together
        return None
    return sum(int(parameter.numel()) for parameter in model.parameters())


@pytest.mark.parametrize("model_type", [name for name in KNOWN if name in counted_types()])
def test_parameters_are_counted_as_the_models_have_them(model_type: str) -> None:
    """Of the class's default and of random sizes and switches: the same number, or none with a reason."""
    if model_type in CANNOT_BE_BUILT:
        pytest.skip(CANNOT_BE_BUILT[model_type])
    compared = 0
    for change in variations(model_type):
        try:
            config = CONFIG_MAPPING[model_type](**change)
            spec = read(written(config))
        except Exception:  # the class, by an error of its own, or the reader refuses the combination
            continue
        number = built(config)
        if number is None:
            continue
        if spec.parameters is None:
            assert spec.weights_note
            continue
        assert spec.parameters == number, change
        compared += 1
    assert compared or model_type in NO_DEFAULT
