"""Rewrites `kvcalc/read/hf_defaults.json` from the configuration classes of an installed transformers.

Run `python tests/golden/hf_defaults.py` with transformers installed; a marked test checks that the file is current.
Only plain class-level defaults are taken: what a class derives from other fields is worked out in `hf_families.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "kvcalc" / "read" / "hf_defaults.json"

# What every class has and no cache or count depends on.
_IGNORED = (
    "base_config_key",
    "base_model_tp_plan",
    "chunk_size_feed_forward",
    "dtype",
    "has_no_defaults_at_init",
    "initializer_range",
    "is_encoder_decoder",
    "model_type",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "pretraining_tp",
    "return_dict",
    "topk_method",
    "torch_dtype",
    "transformers_version",
    "use_cache",
)
_ENDINGS = ("_token_id", "act", "activation", "_function", "_func", "_labels", "_device", "_type", "_scheme")


def class_defaults() -> dict[str, dict[str, Any]]:
    """Return model type -> field -> default for the model types that kvcalc reads and transformers knows."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    from kvcalc.read.hf_config import model_types

    found: dict[str, dict[str, Any]] = {}
    for model_type in model_types():
        try:
            config_class = CONFIG_MAPPING[model_type]
        except KeyError:
            continue  # published with its own code: transformers has no class for it
        found[model_type] = _fields(config_class)
    return found


def _fields(config_class: Any) -> dict[str, Any]:
    fields = {name: getattr(config_class, name, None) for name in sorted(dir(config_class))}
    return {name: value for name, value in fields.items() if _is_of_interest(name) and _is_plain(value)}


def _is_of_interest(name: str) -> bool:
    return not (name.startswith("__") or name in _IGNORED or name.endswith(_ENDINGS) or "_tp_" in name)


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return bool(value) and all(isinstance(item, (int, str)) for item in value)
    return isinstance(value, (bool, int, str))


def document() -> str:
    """Return the text of the data file."""
    import transformers

    source = f"defaults of the configuration classes of transformers {transformers.__version__}"
    return json.dumps({"source": source, "checked": "2026-11-29", "model_types": class_defaults()}, indent=1) + "\n"


if __name__ == "__main__":
    TARGET.write_text(document(), encoding="utf-8")
