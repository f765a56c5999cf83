"""What users of llama.cpp, ik_llama.cpp and Ollama saw: figures from public logs and issues, by the survey's names.

A case holds the model and options as far as they are known, the profile's figure for each line that was printed, and
the figures as printed. Where the model is inferred or a number was solved from the log, `note` says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

GITHUB = "public GitHub file; repository not recorded"


@dataclass(frozen=True)
class Report:
    """One report; `expected` maps a figure's name (as `figures` makes them) to the text that was printed."""

    id: str
    spec: str | Mapping[str, Any]
    expected: Mapping[str, str]
    context: int = 1
    batch: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)
    engine: str = "llama.cpp"
    kv_dtype: str | None = None
    source: str = GITHUB
    note: str = ""


def dense(layers: int, kv_heads: int, head_dim: int, heads: int | None = None, **more: Any) -> dict[str, Any]:
    """Return a spec with one kind of layer."""
    heads = heads or kv_heads
    dims = {
        "layers": layers,
        "hidden_size": heads * head_dim,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
    }
    return {**_head("llama"), **dims, **more}


def _head(architecture: str) -> dict[str, Any]:
    return {
        "name": "reported",
        "architecture": architecture,
        "source": {"url": "survey", "checked": "2026-11-29"},
        "dtype": "float16",
        "max_context": None,
        "parameters": None,
    }


def windowed(
    architecture: str, pattern: list[str], window: int, local: dict[str, int], full: dict[str, int]
) -> dict[str, Any]:
    """Return a spec with layers that see a window and layers that see everything."""
    kinds = {"local": {"kind": "sliding", "window": window, **local}, "global": {"kind": "full", **full}}
    return {**_head(architecture), "hidden_size": 1024, "heads": 16, "pattern": pattern, "kinds": kinds}


GEMMA_4_12B = {
    **windowed(
        "gemma4_text",
        ["local"] * 5 + ["global"],
        1024,
        {"kv_heads": 8, "head_dim": 256},
        {"kv_heads": 1, "head_dim": 512},
    ),
    "layers": 48,
}
LAGUNA = {
    **windowed(
        "laguna", ["local"] * 3 + ["global"], 512, {"kv_heads": 8, "head_dim": 128}, {"kv_heads": 8, "head_dim": 128}
    ),
    "layers": 48,
}
QWEN_27B = "qwen3.5-27b"
DEEPSEEK = "deepseek-v3"
Q8 = {"type_k": "q8_0", "type_v": "q8_0"}
SLOTS = {"n_seq_max": 4, "kv_unified": True}

REPRODUCED = (
    Report("lcpp-002", dense(40, 40, 128), {"total": "400.00"}, 512),
    Report(
        "lcpp-003",
        dense(12, 12, 32),
        {"total": "9.00", "k": "4.50", "v": "4.50"},
        512,
        note="bge-small, an encoder: builds of 2024-25 gave it an ordinary cache, today's give it none",
    ),
    Report("lcpp-004", "pythia-2.8b", {"total": "640.00", "k": "320.00", "v": "320.00"}, 2048, note="model inferred"),
    Report("lcpp-005", "llama-3.2-1b", {"total": "32.00", "k": "16.00", "v": "16.00"}, 1024, note="model inferred"),
    Report("lcpp-006", "llama-3.2-3b", {"total": "112.00", "k": "56.00", "v": "56.00"}, 1024),
    Report("lcpp-007", dense(24, 16, 128), {"total": "192.00", "k": "96.00", "v": "96.00"}, 1024, note="width solved"),
    Report(
        "lcpp-008",
        "llama-3.1-70b",
        {"total": "1280.00", "k": "640.00", "RPC0 buffer": "656.00", "RPC1 buffer": "624.00"},
        4096,
        options={"tensor_split": "1,1", "device": "RPC0,RPC1"},
    ),
    Report("lcpp-013", "llama-3-8b", {"total": "1024.00", "k": "512.00", "cells": "8192"}, 8192),
    Report("lcpp-014", "llama-3-8b", {"total": "1024.00", "cells": "2048"}, 2048, 4, {"n_ctx": 8192}),
    Report("lcpp-015", "llama-3-8b", {"total": "544.00", "k": "272.00", "v": "272.00"}, 8192, kv_dtype="q8_0"),
    Report(
        "lcpp-017",
        GEMMA_4_12B,
        {"base": "68.00", "swa": "765.00", "base cells": "8192", "swa cells": "4608"},
        options={"n_ctx": 8192, **SLOTS, **Q8},
    ),
    Report(
        "lcpp-018",
        GEMMA_4_12B,
        {"base": "128.00", "swa": "1920.00", "swa cells": "6144"},
        options={"n_ctx": 8192, "n_ubatch": 2048, **SLOTS},
        note="micro-batch solved from the cells",
    ),
    Report(
        "lcpp-019",
        "gemma-2-2b",
        {"base": "416.00", "swa": "416.00", "swa cells": "8192"},
        2048,
        4,
        SLOTS | {"n_ctx": 8192},
    ),
    Report("lcpp-021", "gpt-oss-20b", {"base": "3072.00", "swa": "18.00", "swa cells": "768"}, 131072),
    Report(
        "lcpp-022",
        "gpt-oss-20b",
        {"base": "3072.00", "swa": "54.00", "swa cells": "2304"},
        131072,
        options={"n_ubatch": 2048},
    ),
    Report(
        "lcpp-025",
        LAGUNA,
        {"base": "13824.00", "swa": "40.50", "base k": "6912.00", "swa cells": "1024"},
        1048576,
        kv_dtype="q4_0",
        note="window assumed",
    ),
    Report(
        "lcpp-026",
        QWEN_27B,
        {"unified": "8192.00", "k": "4096.00", "r": "5.62", "s": "144.00", "recurrent": "149.62"},
        131072,
        options={"n_ubatch": 1024},
        note="model inferred",
    ),
    Report(
        "lcpp-028",
        QWEN_27B,
        {"unified": "3528.00", "k": "1764.00", "r": "28.12", "s": "720.00", "recurrent": "748.12"},
        200704,
        options={"n_rs_seq": 4},
        kv_dtype="q4_0",
    ),
    Report("lcpp-029", "qwen3-next-80b-a3b", {"unified": "3072.00", "recurrent": "301.50"}, 32768, 4),
    Report(
        "lcpp-031",
        QWEN_27B,
        {"unified": "16384.00", "recurrent": "598.50", "cells": "262144"},
        65536,
        4,
        {"n_ctx": 262144, **SLOTS},
    ),
    Report(
        "lcpp-037",
        "phi-4-mini",
        {"total": "104.00", "k": "68.00", "v": "36.00"},
        2048,
        kv_dtype="q8_0/q4_0",
        note="model inferred",
    ),
    Report(
        "lcpp-039",
        DEEPSEEK,
        {"total": "1166.62", "CUDA0 buffer": "612.02", "CUDA1 buffer": "554.64"},
        32768,
        options={**Q8, "tensor_split": "32,30"},
        note="context inferred; the split is that of the 32 and 29 layers seen",
    ),
    Report("ik-002", DEEPSEEK, {"total": "583.31", "CUDA0 buffer": "583.34"}, 16384, options={**Q8, "device": "CUDA0"}),
    Report(
        "ik-003", DEEPSEEK, {"total": "3499.88", "CUDA0 buffer": "3499.9"}, 98304, options={**Q8, "device": "CUDA0"}
    ),
    Report(
        "ik-005",
        "kimi-k2",
        {"total": "4666.50", "CUDA0 buffer": "994.51", "CUDA1 buffer": "3672.02"},
        131072,
        options={**Q8, "tensor_split": "13,49"},
        note="the split is that of the 13 and 48 layers seen",
    ),
    Report("ik-006", DEEPSEEK, {"total": "601.54"}, 16896, options=Q8, note="context solved"),
    Report("ik-007", "qwen3-235b-a22b", {"total": "6392.00", "k": "3196.00", "v": "3196.00"}, 65536, options=Q8),
    Report("ik-008", "qwen3-235b-a22b", {"total": "3196.00", "k": "1598.00", "v": "1598.00"}, 32768, options=Q8),
    Report("ik-010", "glm-4.6", {"total": "6256.00", "k": "3128.00", "v": "3128.00"}, 32768, options=Q8),
    Report(
        "ik-011",
        dense(80, 8, 128),
        {"total": "10880.00", "k": "5440.00", "v": "5440.00"},
        65536,
        options=Q8,
        note="model inferred",
    ),
    Report(
        "ik-013",
        dense(24, 2, 64, heads=14),
        {
            "total": "147.00",
            "k": "51.00",
            "v": "96.00",
            "CUDA0 buffer": "91.88",
            "CUDA1 buffer": "36.75",
            "CUDA2 buffer": "18.38",
        },
        16384,
        options={"type_k": "q8_0", "type_v": "f16", "flash_attn": "off", "tensor_split": "15,6,4"},
        note="the split is that of the 15, 6 and 3 layers seen",
    ),
    Report(
        "ik-014",
        dense(48, 8, 128),
        {"k": "816.00", "v": "432.00", "total": "1248.00"},
        16384,
        kv_dtype="q8_0/q4_0",
        note="model and context unknown: any of 805,306,368 elements a side",
    ),
    Report(
        "ollama-002",
        "llama-3.2-3b",
        {"estimate": "896.0", "total": "896.00"},
        2048,
        4,
        engine="ollama",
        note="slots inferred",
    ),
    Report("ollama-003", "llama-3.1-8b", {"estimate GiB": "1.0"}, 2048, 4, engine="ollama", note="slots inferred"),
    Report(
        "ollama-005",
        "glm-4.7-flash",
        {"CUDA0 buffer": "800.0", "CPU buffer GiB": "6.6"},
        8192,
        options={"mla": False, "n_gpu_layers": 6},
        source="https://github.com/ollama/ollama/issues/13789",
        note="Ollama 0.14.3 kept every head: llama.cpp without MLA's keys; five layers and the output on the GPU",
    ),
)

# What does not add up, and how far it does.
UNEXPLAINED = (
    Report(
        "lcpp-016",
        "qwen3-32b",
        {"total": "8704.00"},
        65536,
        options={**SLOTS, **Q8, "n_ctx": 65536},
        note="the total is one stream's; the log says 4/4 seqs, which are four, and a device has half",
    ),
    Report(
        "lcpp-032",
        QWEN_27B,
        {"recurrent": "299.25", "r": "11.25", "s": "288.00"},
        1024,
        2,
        note="split by tensors: the device's 124.69 is 20 of 48 layers, or a share",
    ),
    Report(
        "lcpp-038",
        dense(32, 8, 128),
        {"total": "1440.00"},
        40960,
        kv_dtype="q4_0",
        note="128 KiB a token in f16 give it; the report says 144 KiB, of which q4_0 would be 1,620 MiB",
    ),
)
