"""Rewrites `kvcalc/read/hf_defaults.json` from the configuration classes of an installed transformers.

Run `python tests/golden/hf_defaults.py` with transformers installed; a marked test checks that the file is current.
Only plain class-level defaults are taken: what a class derives from other fields is worked out in `hf_config.py`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "kvcalc" / "read" / "hf_defaults.json"
_IGNORED = {"model_type", "dtype", "torch_dtype", "layer_types", "layers_block_type"}


def names_read(source: str) -> set[str]:
    """Return every quoted name in the readers' source: the fields whose defaults matter."""
    return set(re.findall(r'"([A-Za-z_][A-Za-z0-9_]*)"', source)) - _IGNORED


def class_defaults() -> dict[str, dict[str, Any]]:
    """Return model type -> field -> default for the model types that kvcalc reads and transformers knows."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    from kvcalc.read.hf_config import model_types

    readers = [ROOT / "kvcalc" / "read" / name for name in ("hf_config.py", "hf_fields.py", "hf_families.py", "parameters.py")]
    names = names_read("".join(path.read_text(encoding="utf-8") for path in readers if path.exists()))
    found: dict[str, dict[str, Any]] = {}
    for model_type in model_types():
        try:
            config_class = CONFIG_MAPPING[model_type]
        except KeyError:
            continue  # published with its own code: transformers has no class for it
        fields = {name: getattr(config_class, name, None) for name in sorted(names)}
        found[model_type] = {name: value for name, value in fields.items() if _is_plain(value)}
    return found


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
