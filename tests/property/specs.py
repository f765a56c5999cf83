"""Small specs from plain dictionaries, through the same reader as files."""

from __future__ import annotations

from typing import Any

import yaml

from kvcalc.spec.model import ModelSpec
from kvcalc.spec.resolve import resolve
from kvcalc.yaml_tree import parse

TOP: dict[str, Any] = {
    "name": "small",
    "architecture": "small",
    "source": {"url": "https://example.org/config.json", "checked": "2026-11-29"},
    "layers": 4,
    "hidden_size": 512,
    "heads": 8,
    "kv_heads": 4,
    "head_dim": 64,
    "dtype": "bfloat16",
    "max_context": None,
    "parameters": None,
}


def small_spec(**changes: Any) -> ModelSpec:
    """Return the spec of a four-layer model of 8 heads, 4 kv heads of 64, with `changes` at its top level."""
    text = yaml.safe_dump({**TOP, **changes}, sort_keys=False)
    return resolve(parse(text, "small.yaml"), "small.yaml")
