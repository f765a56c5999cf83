"""Parameter counts from configs: equal to models that transformers built, and to the catalogue.

`hf_parameters_5.24.0.json` holds, for every model type that is counted and that transformers has a class for, the
class's default and the configs of random sizes and switches that differ from it most, each with the elements of the
model's parameters; tests/torch/test_hf_defaults.py builds such models anew.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvcalc.errors import SpecError
from kvcalc.read.hf_config import config_spec, read_config
from kvcalc.read.parameters import counted_types
from tests.shared_material import shared

PINNED: dict[str, list[dict[str, Any]]] = json.loads(
    Path(__file__).with_name("hf_parameters_5.24.0.json").read_text(encoding="utf-8")
)["model_types"]

# Counted like another type whose class transformers has; held against the catalogue's published models below.
ONLY_PUBLISHED = {"internlm2", "kimi_k2", "mimo", "minimax_m1", "minimax_text_01"}


def count(config: dict[str, Any]) -> int | None:
    text = json.dumps(config)
    return config_spec(json.loads(text), text, "config.json").parameters


@pytest.mark.parametrize("model_type", PINNED)
def test_counts_are_those_of_the_models_that_transformers_builds(model_type: str) -> None:
    """Of every config, to the last parameter."""
    cases = PINNED[model_type]
    assert [count({**case["config"], "model_type": model_type}) for case in cases] == [
        case["parameters"] for case in cases
    ]


def test_every_counted_model_type_is_pinned() -> None:
    """None is counted on trust."""
    assert set(counted_types()) - set(PINNED) == ONLY_PUBLISHED


def test_published_configs_have_the_parameters_of_the_catalogue() -> None:
    """Wherever both give a number; the text model alone, tied embeddings once."""
    rows = json.loads(shared("models/catalogue.json").read_text(encoding="utf-8"))
    published = {row["hf_repo"]: row["params_total"] for row in rows if row["params_total"]}
    compared, differing = 0, []
    for path in sorted(shared("models/configs").glob("*.json")):
        repository = path.stem.replace("__", "/")
        try:
            found = read_config(path).parameters
        except SpecError:
            continue
        if found is None or repository not in published:
            continue
        compared += 1
        if found != published[repository]:
            differing.append((repository, found, published[repository]))
    assert differing == []
    assert compared >= 55


# Rows of the catalogue whose published config is not at hand: the dimensions of the row, and what its note says.
ROWS: dict[str, dict[str, Any]] = {
    "falcon-40b": {"multi_query": True, "new_decoder_architecture": True, "num_kv_heads": 8, "bias": False},
    "falcon-180b": {"multi_query": True, "new_decoder_architecture": True, "num_kv_heads": 8, "bias": False},
    "mistral-nemo-12b": {},
    "minimax-text-01": {"attn_type_list": [0, 0, 0, 0, 0, 0, 0, 1] * 10, "num_local_experts": 32},
    "pythia-1b": {},
    "gpt2-xl": {"n_positions": 1024},
    "gemma-3-12b": {},
    "qwen2.5-72b": {},
    "olmo-2-13b": {},
    "phi-2": {},
    "command-r-plus": {"use_qk_norm": True},
    "mamba-2.8b": {"state_size": 16, "conv_kernel": 4, "expand": 2, "intermediate_size": 5120, "time_step_rank": 160},
}
_COLUMNS = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim",
            "intermediate_size", "vocab_size", "tie_word_embeddings", "sliding_window",
            "max_position_embeddings")  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_rows_of_the_catalogue_have_their_parameters(name: str) -> None:
    """From the dimensions of the row, through the config's own names for them."""
    rows = json.loads(shared("models/catalogue.json").read_text(encoding="utf-8"))
    row = next(row for row in rows if row["name"] == name)
    config = {column: row[column] for column in _COLUMNS if row[column] is not None}
    assert count({**config, "model_type": row["model_type"], **ROWS[name]}) == row["params_total"]
