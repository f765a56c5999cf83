"""A deployment as the command line that serves it: the other way round from `read.command_line`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from kvcalc.errors import UnsupportedByEngine
from kvcalc.fitting import Standing
from kvcalc.memory import Card, KvMemory
from kvcalc.read.command_line import flag_of

ENGINES = ("vllm", "llama.cpp")


def command_line(standing: Standing) -> str:
    """Return the command that serves what a question asks, in one line; UnsupportedByEngine where there is none."""
    name = standing.setup.engine.name
    if name not in ENGINES:
        raise UnsupportedByEngine(f"--emit writes vllm serve and llama-server; engine {name} has no command line")
    return shlex.join(_vllm(standing) if name == "vllm" else _llama(standing))


def _vllm(standing: Standing) -> Iterator[str]:
    question, deployment = standing.question, standing.setup.deployment
    yield from ("vllm", "serve", _published_name(standing))
    yield from ("--max-model-len", str(standing.context))
    yield from ("--max-num-seqs", str(standing.setup.placement.local_batch(question.batch)))
    for flag, degree in (
        ("--tensor-parallel-size", deployment.tp),
        ("--pipeline-parallel-size", deployment.pp),
        ("--data-parallel-size", deployment.dp),
        ("--decode-context-parallel-size", deployment.dcp),
    ):
        if degree > 1:
            yield from (flag, str(degree))
    if question.arguments.get("dtype"):
        yield from ("--dtype", {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}[deployment.dtype.name])
    if deployment.kv_given:
        yield from ("--kv-cache-dtype", deployment.kv[0].name)
    yield from _options(standing)
    memory = question.memory
    if isinstance(memory, KvMemory):
        yield from ("--kv-cache-memory-bytes", str(memory.size))
    elif memory.utilization is not None:
        yield from ("--gpu-memory-utilization", f"{float(memory.utilization):g}")


def _llama(standing: Standing) -> Iterator[str]:
    question, deployment = standing.question, standing.setup.deployment
    slots = standing.setup.placement.local_batch(question.batch)
    yield from ("llama-server", "-m", f"{standing.setup.spec.name}.gguf")
    given = question.options
    if "n_ctx" not in given:
        yield from ("-c", str(standing.context * slots))
    if "n_seq_max" not in given:
        yield from ("-np", str(slots))
    if deployment.kv_given:
        for flag, stored in zip(("-ctk", "-ctv"), deployment.kv, strict=True):
            yield from (flag, {"fp16": "f16", "fp32": "f32"}.get(stored.name, stored.name))
    if deployment.pp > 1 and "tensor_split" not in given:
        yield from ("-ts", ",".join(["1"] * deployment.pp))
    yield from _options(standing)
    if isinstance(question.memory, Card) and not {"ngl", "n_gpu_layers"} & set(given):
        yield from ("-ngl", str(len(standing.setup.spec.layers) + 1))


def _options(standing: Standing) -> Iterator[str]:
    """Yield the flags of the engine's own options; those that the GPU's size decides are written out too."""
    setup, question = standing.setup, standing.question
    given = question.memory.adjusted(setup.engine.name, question.options, setup.deployment.pp)
    for name, value in given.items():
        if name in question.options or name == "max_num_batched_tokens":
            yield from flag_of(setup.engine.name, name, str(value))


def _published_name(standing: Standing) -> str:
    """Return the Hugging Face id among the model's names, or its own name."""
    file = standing.setup.spec.file
    return next((alias for alias in file.aliases if "/" in alias), file.name)
