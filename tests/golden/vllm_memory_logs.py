"""What servers' logs say of their memory, and the same from nothing: GPU, model, version and flags alone.

The rows are `hardware/overheads.jsonl` of the shared material. `predicted` sees neither the logged parts nor the total.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from statistics import median
from typing import Any

from kvcalc import prepared
from kvcalc.engines._base import reads_images
from kvcalc.hardware.budget import Budget, parse_share, share_of_total
from kvcalc.hardware.gpu import Gpu, find_gpu
from kvcalc.hardware.overhead import GIB, Overhead, estimate, vllm_step_defaults
from tests.shared_material import shared

# The log's model -> the catalogue's model of the same shape, and how its weights are stored.
MODELS = {
    "deepseek-ai/DeepSeek-V2-Lite-Chat": ("deepseek-v2-lite", "bf16"),
    "RedHatAI/Llama-3.3-70B-Instruct-fp8-dynamic": ("llama-3.3-70b", "vllm-fp8"),
    "RedHatAI/Qwen2.5-7B-Instruct-fp8-dynamic": ("qwen2.5-7b", "vllm-fp8"),
    "google/gemma-2-2b-it": ("gemma-2-2b", "bf16"),
    "google/gemma-3-12b-it": ("gemma-3-12b", "bf16"),
    "google/gemma-3-27b-it": ("gemma-3-27b", "bf16"),
    "google/gemma-7b": ("gemma-7b", "bf16"),
    "ibm-granite/granite-3.1-2b-instruct": ("granite-3.1-2b", "bf16"),
    "ibm-granite/granite-3.3-8b-instruct": ("granite-3.1-8b", "bf16"),
    "meta-llama/Llama-3.1-8B-Instruct": ("llama-3.1-8b", "bf16"),
    "microsoft/phi-4": ("phi-4", "bf16"),
    "mistralai/Mistral-Small-3.1-24B-Instruct-2503": ("mistral-small-24b", "bf16"),
    "mistralai/Mixtral-8x7B-Instruct-v0.1": ("mixtral-8x7b", "bf16"),
    "moonshotai/Kimi-Dev-72B": ("qwen2.5-72b", "bf16"),
    "openai/gpt-oss-20b": ("gpt-oss-20b", "vllm-mxfp4"),
    "Qwen/Qwen1.5-MoE-A2.7B": ("qwen1.5-moe-a2.7b", "bf16"),
    "Qwen/Qwen2.5-7B-Instruct": ("qwen2.5-7b", "bf16"),
    "Qwen/Qwen2.5-72B-Instruct": ("qwen2.5-72b", "bf16"),
    "redhatai/Llama-3.3-70B-Instruct-quantized.w8a8": ("llama-3.3-70b", "vllm-fp8"),
    "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16": ("llama-3.1-8b", "w4a16"),
    "RedHatAI/Mistral-Small-3.1-24B-Instruct-2503-quantized.w8a8": ("mistral-small-24b", "vllm-fp8"),
    "RedHatAI/Qwen2.5-7B-Instruct-quantized.w8a8": ("qwen2.5-7b", "vllm-fp8"),
    "Qwen/Qwen3-14B": ("qwen3-14b", "bf16"),
    "meta-llama/Meta-Llama-3-8B": ("llama-3-8b", "bf16"),
    "DeepSeek-R1-Distill-Qwen-7B": ("qwen2.5-7b", "fp16"),
    "Qwen/Qwen2.5-0.5B": ("qwen2.5-0.5b", "fp16"),
    "Qwen2.5-Math-1.5B": ("qwen2.5-1.5b", "bf16"),
    "DeepSeek-R1-Distill-Qwen-32B": ("qwen2.5-32b", "bf16"),
    "deepseek 32B class, fp16": ("qwen2.5-32b", "fp16"),
    "Qwen2.5-7B-Instruct": ("qwen2.5-7b", "fp16"),
    "Qwen3-4B": ("qwen3-4b", "fp16"),
    "Phi-4 bnb": ("phi-4", "nf4"),
    "Llama-3.1-8B class (14.9888 GiB)": ("llama-3.1-8b", "bf16"),
    "Llama-3.2-3B class": ("llama-3.2-3b", "fp16"),
    "Qwen3-Next-80B-A3B-Instruct": ("qwen3-next-80b-a3b", "bf16"),
    "Qwen3-4B-AWQ (shape inferred)": ("qwen3-4b", "awq"),
}
QUANTISED = {"fp8": "vllm-fp8", "float32": "fp32", "float16": "fp16"}
ENCODERS = ("mistralai/Mistral-Small-3.1", "RedHatAI/Mistral-Small-3.1")

# What the log says of the GPU -> its name in the table. Boards that the table does not have are left out.
GPUS = (
    ("H100-80GB", "h100-80gb"),
    ("A100/H100 80GB", "h100-80gb"),
    ("V100 32GB", "v100-32gb"),
    ("T4", "t4"),
    ("A10G", "a10g"),
    ("A100 80GB", "a100-80gb"),
    ("RTX 3060", "rtx-3060"),
    ("H200", "h200"),
)


@dataclass(frozen=True)
class Row:
    """One server: what its log says, and the answer from nothing."""

    logged: dict[str, Any]
    gpu: Gpu
    model: str
    weights: str

    @property
    def id(self) -> str:
        """The row's name in the shared material."""
        return str(self.logged["id"])

    @property
    def kind(self) -> str:
        """One of dense, MoE, multi-GPU and multimodal, in the order in which they decide."""
        kind = str(self.logged["kind"])
        if kind.startswith("vlm"):
            return "multimodal"
        return "multi-GPU" if self.logged["tp"] > 1 else "MoE" if kind.startswith("moe") else "dense"

    @property
    def from_laboratory(self) -> bool:
        """Whether the log is of the one laboratory that most are of (llm-d-planner, H100)."""
        return str(self.logged["source"]).startswith("llm-d-incubation")

    @property
    def printed(self) -> int:
        """The bytes for the cache that the log printed."""
        return round(Fraction(str(self.logged["parts"]["kv"])) * GIB)

    @property
    def version(self) -> str:
        """The version as (0, minor); before it was written down, the last of the old engine."""
        match = re.match(r"0\.[0-9]+", self.logged["engine_version"])
        if match and match[0] == "0.2":  # written as 0.2x: one of the current ones
            return "0.28"
        return match[0] if match else "0.8"

    @property
    def step(self) -> tuple[int, int]:
        """Tokens and sequences of the largest step: as logged, else the server's defaults."""
        old = int(self.version.removeprefix("0.")) < 11
        tokens, sequences = (max(2048, self.logged["max_model_len"] or 0), 256) if old else vllm_step_defaults(self.gpu)
        return self.logged["max_num_batched_tokens"] or tokens, self.logged["max_num_seqs"] or sequences

    @property
    def setting(self) -> tuple[str, ...]:
        """What tells servers apart; rows with one setting are repetitions."""
        named = (self.model, self.weights, self.gpu.name, self.version)
        return (*named, str(self.logged["tp"]), str(self.logged["util"]), str(self.step))

    def overhead(self) -> Overhead:
        """Return the overhead of a rank as it is predicted."""
        spec = prepared.load(self.model)
        file, (tokens, sequences) = spec.file, self.step
        width = file.moe_intermediate_size or file.intermediate_size
        return estimate(
            "vllm",
            runtime_bytes=self.gpu.total_bytes,
            hidden_size=file.hidden_size,
            vocab_size=file.vocab_size,
            intermediate_size=file.intermediate_size,
            moe=(file.experts_per_token, width) if file.experts_per_token and width else None,
            layers=file.layers,
            tp=self.logged["tp"],
            pp=self.logged["pp"],
            max_num_batched_tokens=tokens,
            max_num_seqs=sequences,
            engine_version=self.version,
            platform=self.gpu.platform,
            multimodal=reads_images(spec) or self.logged["model"].startswith(ENCODERS),
            architecture=spec.architecture,
            mla=any(group.kind.name == "mla" for group in spec.groups()),
        )

    def weight_bytes(self) -> tuple[int, int, int]:
        """Return low, typical and high bytes of the weights on one rank."""
        sizes = prepared.prepare(self.model, weights=self.weights).weights_range()
        assert sizes is not None
        low, typical, high = (-(-size // (self.logged["tp"] * self.logged["pp"])) for size in sizes)
        return low, typical, high

    def predicted(self) -> tuple[int, int, int]:
        """Return the bytes for the cache as predicted: least, typical, most."""
        share, overhead = parse_share(str(self.logged["util"])), self.overhead()
        budgets: list[Budget] = [
            share_of_total(self.gpu.total_bytes, share, size, overhead) for size in self.weight_bytes()
        ]
        return budgets[2].cache_low_bytes, budgets[1].cache_typical_bytes, budgets[0].cache_high_bytes

    @property
    def error(self) -> float:
        """The relative error of the typical prediction."""
        return self.predicted()[1] / self.printed - 1

    @property
    def holds(self) -> bool:
        """Whether the printed figure, which has two decimals, lies inside the interval."""
        low, _, high = self.predicted()
        rounding = GIB // 200
        return low - rounding <= self.printed <= high + rounding


def logs() -> Iterator[dict[str, Any]]:
    """Yield every log of a vLLM server."""
    text = shared("hardware/overheads.jsonl").read_text(encoding="utf-8")
    yield from (row for row in map(json.loads, text.splitlines()) if row["engine"] == "vllm")


@lru_cache(maxsize=1)
def rows() -> tuple[Row, ...]:
    """Return every server that printed its cache, and whose GPU, model and share are known."""
    return tuple(row for log in logs() if (row := _row(log)) is not None)


def left_out() -> dict[str, str]:
    """Return the logs without a prediction, and why."""
    known = {row.id for row in rows()}
    return {log["id"]: _why(log) for log in logs() if log["id"] not in known}


def _why(log: dict[str, Any]) -> str:
    if "kv" not in log["parts"]:
        return "prints no memory for the cache"
    if log.get("util") is None:
        return "the share is not known"
    if _flags_unknown(log):
        return "the flags that set the largest step are not known"
    return "the model is not in the catalogue" if log["model"] not in MODELS else "the GPU is not in the table"


def _flags_unknown(log: dict[str, Any]) -> bool:
    """Return whether the server's flags were not recorded, and were not its defaults."""
    return any(word in log["batch_args"] for word in ("not stated", "Unsloth", "not read"))


def _row(log: dict[str, Any]) -> Row | None:
    gpu = next((name for text, name in GPUS if log["gpu"].startswith(text)), None)
    if gpu is None or log["model"] not in MODELS or "kv" not in log["parts"] or log.get("util") is None:
        return None
    if _flags_unknown(log):
        return None
    model, weights = MODELS[log["model"]]
    return Row(log, find_gpu(gpu), model, QUANTISED.get(log["quant"], weights))


def summary() -> dict[str, dict[str, str]]:
    """Return, by kind, how many servers there are and how far the prediction from nothing is off."""
    kinds = {kind: [row for row in rows() if row.kind == kind] for kind in ("dense", "MoE", "multi-GPU", "multimodal")}
    return {
        **{kind: _figures(chosen) for kind, chosen in kinds.items()},
        "all": _figures(list(rows())),
        "all but the H100 laboratory": _figures([row for row in rows() if not row.from_laboratory]),
    }


def _figures(chosen: list[Row]) -> dict[str, str]:
    errors = sorted(abs(row.error) for row in chosen)
    held = {row.setting: row.holds for row in chosen}
    return {
        "logs": str(len(chosen)),
        "settings": str(len(held)),
        "median error": f"{median(errors):.2%}",
        "worst": f"{errors[-1]:.1%}",
        "inside the interval": f"{sum(held.values())} of {len(held)}",
    }
