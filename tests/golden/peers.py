"""Ten cases on which the field's calculators were run on 2026-11-29, with the bytes that an ideal allocator keeps.

`right` is worked out here by hand from the published dimensions, so that it owes nothing to the code under test. The
answers are factors of it as each tool gave them; a word where a tool gave no number.
"""

from __future__ import annotations

from dataclasses import dataclass

CHECKED = "2026-11-29"

TOOLS = (
    "kvfit 0.3.0",
    "kvcache-simulator 0.1.3",
    "ridgepoint 0.1.2",
    "aiconfigurator 0.12 (fallback)",
    "vramscout 0.7",
    "hf-mem 0.5.6",
    "llmfit 1.1",
    "modelinfo 1.4",
)


@dataclass(frozen=True)
class Case:
    """One model at one context, batch and cache format; the sum that gives the right bytes; what the tools said."""

    model: str
    what: str
    sum: str
    right: int
    answers: tuple[str, ...]
    context: int = 32_768
    batch: int = 1
    kv_dtype: str = "bf16"


CASES = (
    Case(
        "gpt2",
        "MHA",
        "2 x 12 layers x 12 heads x 64 x 4,096 tokens x 8 sequences x 2 B",
        2 * 12 * 12 * 64 * 4096 * 8 * 2,
        ("refuses", "ok, per sequence", "error", "ok, per sequence", "ok", "none", "-", "0"),
        context=4096,
        batch=8,
        kv_dtype="fp16",
    ),
    Case(
        "llama-3.1-8b",
        "GQA",
        "2 x 32 layers x 8 kv heads x 128 x 32,768 x 2 B",
        2 * 32 * 8 * 128 * 32768 * 2,
        ("ok",) * 8,
    ),
    Case(
        "llama-3.1-70b",
        "GQA, fp8",
        "2 x 80 layers x 8 kv heads x 128 x 131,072 x 4 sequences x 1 B",
        2 * 80 * 8 * 128 * 131072 * 4 * 1,
        ("ok", "ok", "ok", "bf16 only", "ok", "ok", "ok", "2"),
        context=131_072,
        batch=4,
        kv_dtype="fp8",
    ),
    Case(
        "deepseek-v3",
        "MLA",
        "61 layers x (512 + 64) x 32,768 x 2 B",
        61 * (512 + 64) * 32768 * 2,
        ("ok", "ok", "ok", "ok", "85", "24.9", "24.9", "24.9"),
    ),
    Case(
        "gemma-3-27b",
        "10 full layers, 52 with a window",
        "2 x 16 kv heads x 128 x (10 x 32,768 + 52 x 1,024) x 2 B",
        2 * 16 * 128 * (10 * 32768 + 52 * 1024) * 2,
        ("0.17", "ok, typed in", "5.33", "no answer", "5.33", "5.33", "5.33", "0"),
    ),
    Case(
        "gpt-oss-20b",
        "12 full layers, 12 with a window",
        "2 x 8 kv heads x 64 x (12 x 32,768 + 12 x 128) x 2 B",
        2 * 8 * 64 * (12 * 32768 + 12 * 128) * 2,
        ("ok", "ok, typed in", "0.996", "1.99", "1.99", "1.99", "1.99", "1.40"),
    ),
    Case(
        "qwen3-next-80b-a3b",
        "12 full layers, 36 with a recurrent state",
        "2 x 12 x 2 kv heads x 256 x 32,768 x 2 B + 36 x (32 x 128 x 128 x 4 B + 8,192 x 3 x 2 B)",
        2 * 12 * 2 * 256 * 32768 * 2 + 36 * (32 * 128 * 128 * 4 + 8192 * 3 * 2),
        ("ok", "ok, typed in", "0.91", "3.65", "3.65", "3.65", "0.91", "1.82"),
    ),
    Case(
        "mistral-7b-v0.1",
        "every layer with a window",
        "2 x 32 layers x 8 kv heads x 128 x 4,096 x 2 B",
        2 * 32 * 8 * 128 * 4096 * 2,
        ("ok", "ok, typed in", "8", "8", "8", "8", "8", "8"),
    ),
    Case(
        "gemma-3n-e4b",
        "20 of 35 layers own a cache: 4 full, 16 with a window",
        "2 x 2 kv heads x 256 x (4 x 32,768 + 16 x 512) x 2 B",
        2 * 2 * 256 * (4 * 32768 + 16 * 512) * 2,
        ("refuses", "ok, typed in", "1.65", "no answer", "8.2", "8.2", "8.2", "0"),
    ),
    Case(
        "minicpm3-4b",
        "MLA",
        "62 layers x (256 + 32) x 32,768 x 2 B",
        62 * (256 + 32) * 32768 * 2,
        ("refuses", "ok, typed in", "ok", "ok", "26.7", "17.8", "17.8", "17.8"),
    ),
)

# Quantised caches of Llama-3.1-8B at 32,768 tokens: blocks of 32 elements, 34 bytes (q8_0) and 18 bytes (q4_0).
QUANTISED = {
    "q8_0": 2 * 32 * 8 * (128 // 32) * 34 * 32768,
    "q4_0": 2 * 32 * 8 * (128 // 32) * 18 * 32768,
}
