"""The engine profiles, one file each; `find_engine` loads only the one that is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kvcalc.errors import BadInput, did_you_mean

if TYPE_CHECKING:  # profiles need pydantic; their names, which shell completion lists, do not
    from kvcalc.engines._base import EngineProfile

# Engine name -> module in this package; each module calls its profile ENGINE.
ENGINES = {
    "ideal": "ideal",
    "transformers": "transformers",
    "llama.cpp": "llama_cpp",
    "ollama": "ollama",
    "vllm": "vllm",
    "sglang": "sglang",
    "tensorrt-llm": "tensorrt_llm",
}


def find_engine(name: str) -> EngineProfile[Any]:
    """Return the profile called `name`; BadInput names the nearest known ones."""
    if name not in ENGINES:
        hint = did_you_mean(str(name), ENGINES) or f"; known: {', '.join(ENGINES)}"
        raise BadInput(f"unknown engine '{name}'{hint}")
    profile: EngineProfile[Any] = import_module(f"kvcalc.engines.{ENGINES[name]}").ENGINE
    return profile
