"""What llama.cpp itself allocates: its sizes for hyper-parameters and options, in a compact form.

`llama_cpp.json` holds what matters of the reference material `golden/llamacpp.json`: sizes and log lines that llama.cpp
0c1e57098bba43ac29e6e3b677cdceebdd22334f printed on a CPU, inside llama-cpp-python 0.3.36. To make it anew:
`python -m tests.golden.llama_cpp_cases path/to/golden/llamacpp.json`.
"""

from __future__ import annotations

import json
import re
import sys
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from kvcalc.read.gguf import GgufHeader
from kvcalc.read.gguf_spec import to_spec
from kvcalc.spec.model import ModelSpec

DATA = Path(__file__).with_name("llama_cpp.json")

# Options that a case leaves out have these values.
DEFAULTS = {
    "n_batch": 2048,
    "n_ubatch": 512,
    "n_seq_max": 1,
    "n_rs_seq": 0,
    "kv_unified": 0,
    "swa_full": 0,
    "flash_attn": -1,
    "type_k": "f16",
    "type_v": "f16",
}
_OUTSIDE_OPTIONS = ("n_gpu_layers", "tensor_split")
_SIZES = ("memory_kind", "n_ctx", "n_ctx_seq", "n_batch", "n_ubatch", "flash_attn")
_BYTES = ("k_bytes", "v_bytes", "r_bytes", "s_bytes", "extra_state_bytes", "output_buffer_bytes")
_CACHE = ("name", "cells", "streams", "layers", "k_bytes", "v_bytes")
_RECURRENT = ("cells", "rows", "layers", "r_bytes", "s_bytes")


def compact(golden: dict[str, Any]) -> dict[str, Any]:
    """Return what the tests need of the reference material."""
    return {
        "engine": golden["engine"],
        "commit": golden["commit"],
        "source": golden["source"],
        "backend": golden["backend"],
        "models": {
            name: {"arch": model["arch"], "hparams": model["hparams"]} for name, model in golden["models"].items()
        },
        "cases": [_compact_case(case) for case in golden["cases"]],
    }


def _compact_case(case: dict[str, Any]) -> dict[str, Any]:
    options = {key: value for key, value in case["options"].items() if DEFAULTS.get(key) != value}
    options |= {key: case[key] for key in _OUTSIDE_OPTIONS if key in case}
    made = {"id": case["id"], "model": case["model"], "options": options}
    if "expected" not in case:
        return {**made, "error": case["error"].removesuffix(" | ")}
    expected = case["expected"]
    return {
        **made,
        "real": case["mode"] == "real_alloc",
        "sizes": [expected[key] for key in _SIZES],
        "bytes": [expected[key] for key in _BYTES],
        "caches": [[cache[key] for key in _CACHE] for cache in expected["kv_caches"]],
        "recurrent": [[part[key] for key in _RECURRENT] for part in expected["recurrent"]],
        "devices": {name: buffer["context"] for name, buffer in expected["per_buffer_type"].items()},
        "log": [line for line in expected["log"] if "compute buffer" not in line],
    }


@lru_cache(maxsize=1)
def data() -> dict[str, Any]:
    """Return the committed data."""
    loaded: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8"))
    return loaded


@cache
def model(name: str) -> ModelSpec:
    """Return the spec that the GGUF reader makes of a model's hyper-parameters."""
    arch, hparams = data()["models"][name]["arch"], data()["models"][name]["hparams"]
    metadata: dict[str, Any] = {"general.architecture": arch, "general.name": name}
    metadata |= {f"{arch}.{key}": tuple(value) if isinstance(value, list) else value for key, value in hparams.items()}
    lengths = {key: len(value) for key, value in metadata.items() if isinstance(value, tuple)}
    return to_spec(GgufHeader("model.gguf", 3, "little", metadata, lengths, ()))


def engine_options(case: dict[str, Any]) -> dict[str, Any]:
    """Return a case's options as `-o` takes them."""
    options = {**DEFAULTS, **case["options"]}
    names = [name for name in case.get("devices", {}) if name != "CPU"]
    return {**options, "device": ",".join(names)} if names else options


def named(case: dict[str, Any]) -> dict[str, Any]:
    """Return a case's expectations under the names of the engine report."""
    return {
        **dict(zip((*_SIZES, *_BYTES), (*case["sizes"], *case["bytes"]), strict=True)),
        "n_seq_max": engine_options(case)["n_seq_max"],
        "caches": [dict(zip(_CACHE, cache, strict=True)) for cache in case["caches"]],
        "recurrent": next((dict(zip(_RECURRENT, part, strict=True)) for part in case["recurrent"]), None),
    }


def comparable(lines: list[str], real: bool) -> list[str]:
    """Return log lines as two sides can be compared: without the sizes of buffers that were only simulated."""
    if real:
        return lines
    return [re.sub(r"(KV buffer size = ).*", r"\1", line) for line in lines]


def write(golden: Path) -> None:
    """Write the data, one case a line."""
    made = compact(json.loads(golden.read_text(encoding="utf-8")))
    head = [f"{json.dumps(key)}: {json.dumps(made[key])}" for key in ("engine", "commit", "source", "backend")]
    models = ",\n".join(f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in made["models"].items())
    cases = ",\n".join(f"  {json.dumps(case)}" for case in made["cases"])
    text = ",\n".join([*head, f'"models": {{\n{models}\n}}', f'"cases": [\n{cases}\n]'])
    DATA.write_text(f"{{\n{text}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
