"""Lines that llama.cpp's library printed for bundled models whose families the reference material leaves out.

`llama_cpp_library.json` was made by `python -m tests.golden.llama_cpp_library`, which needs llama-cpp-python 0.3.36;
models are given by their metadata (`kvcalc.measure.llama_cpp`), nothing is allocated but recurrent states.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kvcalc
from kvcalc.api import prepare
from kvcalc.engines.llama_cpp import memory_of
from kvcalc.measure.llama_cpp import compare

DATA = Path(__file__).with_name("llama_cpp_library.json")

CONTEXT, BATCH = 5000, 4
OPTIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "unified, quantised": {"kv_unified": True, "type_k": "q8_0", "type_v": "q8_0", "n_ubatch": 1024},
    "no flash attention": {"flash_attn": "off"},
}
MODELS = (
    "bamba-9b",
    "bloom-7b1",
    "command-r7b",
    "dbrx-132b",
    "deepseek-v4-flash",
    "exaone-3-7.8b",
    "falcon-h1-0.5b",
    "falcon-mamba-7b",
    "gemma-3-1b",
    "gemma-4-26b-a4b",
    "gemma-4-e2b",
    "glm-4.5",
    "glm-4.7-flash",
    "glm-5.2",
    "granite-4.0-h-tiny",
    "grok-1",
    "internlm2-20b",
    "jamba-1.5-large",
    "kimi-linear-48b-a3b",
    "lfm2-1.2b",
    "llama-4-maverick",
    "mamba-codestral-7b",
    "mimo-v2-flash",
    "minicpm3-4b",
    "minimax-m3",
    "minimax-text-01",
    "ministral-3-8b",
    "mistral-small-4-119b",
    "mpt-7b",
    "nemotron-3-nano-30b-a3b",
    "nemotron-super-49b",
    "olmo-3-7b",
    "phi-3-mini-4k",
    "phi-3.5-moe",
    "qwen2.5-vl-7b",
    "qwen3-vl-30b-a3b",
    "qwen3.5-27b",
    "santacoder",
    "stablelm-2-1.6b",
    "starcoder2-7b",
    "step-3.7-flash",
)


def cases() -> list[dict[str, Any]]:
    """Return the committed lines: model, options and what was printed."""
    loaded: list[dict[str, Any]] = json.loads(DATA.read_text(encoding="utf-8"))["cases"]
    return loaded


def measure() -> dict[str, Any]:
    """Return what the library prints for every model and every set of options that it takes."""
    found: list[dict[str, Any]] = []
    library = ""
    for name in MODELS:
        for title, options in OPTIONS.items():
            if name == "grok-1" and "quantised" in title:
                continue  # Grok has no flash attention, which a quantised V needs
            spec = kvcalc.load(name)
            found_memory = memory_of(spec, prepare(spec, engine="llama.cpp", options=options).deployment)
            context = found_memory.settings.rule.context(CONTEXT, BATCH)
            compared = compare(spec, found_memory, context)
            library = compared.library
            found.append({"model": name, "options": title, "lines": list(compared.printed)})
    return {"library": library, "context": CONTEXT, "batch": BATCH, "cases": found}


if __name__ == "__main__":
    made = measure()
    rows = ",\n".join(f"  {json.dumps(case)}" for case in made.pop("cases"))
    head = json.dumps(made)[:-1]
    DATA.write_text(f'{head}, "cases": [\n{rows}\n]}}\n', encoding="utf-8")
