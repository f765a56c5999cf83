"""The memory that is neither weights nor cache: what engines were seen to take, part by part, as intervals.

Where logs support a model the part is derived from the model's dimensions; elsewhere it is an allowance, marked as
assumed. `low` and `high` are the spread that was seen, not confidence limits. docs/hardware.md shows the data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from kvcalc.errors import BadInput, did_you_mean
from kvcalc.hardware.gpu import Gpu

Basis = Literal["derived", "assumed", "given"]

GIB = 1024**3
LARGE_GPU = 70 * GIB  # from here on vLLM schedules 8,192 tokens and 1,024 sequences in a step
LARGEST_GPU = 160 * GIB


def gib(text: str) -> int:
    """Return the bytes of a number of GiB written with decimals, rounded to the nearest byte."""
    return round(Fraction(text) * GIB)


@dataclass(frozen=True)
class OverheadPart:
    """One part of the overhead of a rank, in bytes; `inside` the share of the memory that the engine asks for.

    What is not inside must fit beside that share. `basis` is `derived` (from the model's dimensions, by a fit to
    logs), `assumed` (an allowance: there is no model) or `given` (the user's figure).
    """

    name: str
    low_bytes: int
    typical_bytes: int
    high_bytes: int
    inside: bool
    basis: Basis
    note: str


@dataclass(frozen=True)
class Overhead:
    """The overhead of one rank, part by part."""

    parts: tuple[OverheadPart, ...] = ()

    def total(self, *, inside: bool | None = None) -> tuple[int, int, int]:
        """Return (low, typical, high) bytes of all parts, or of those inside (or outside) the engine's share."""
        chosen = [part for part in self.parts if inside is None or part.inside is inside]
        return (
            sum(part.low_bytes for part in chosen),
            sum(part.typical_bytes for part in chosen),
            sum(part.high_bytes for part in chosen),
        )

    def with_part(self, name: str, size: int) -> Overhead:
        """Return the overhead with one part replaced by a figure that is known; BadInput if there is no such part."""
        names = [part.name for part in self.parts]
        if name not in names:
            raise BadInput(f"no overhead part '{name}'{did_you_mean(name, names) or '; there are ' + ', '.join(names)}")
        return Overhead(
            tuple(
                OverheadPart(name, size, size, size, part.inside, "given", "given") if part.name == name else part
                for part in self.parts
            )
        )

    def without(self, name: str) -> Overhead:
        """Return the overhead without a part, if it has it."""
        return Overhead(tuple(part for part in self.parts if part.name != name))


@dataclass(frozen=True)
class Load:
    """What the overhead depends on: the model's dimensions, how it is split, and the largest step of the engine.

    `moe` is (experts per token, width of one expert) for mixtures of experts. `version` is (major, minor).
    """

    runtime_bytes: int
    hidden_size: int
    vocab_size: int | None
    intermediate_size: int | None
    moe: tuple[int, int] | None
    layers: int
    tp: int
    pp: int
    max_num_batched_tokens: int
    max_num_seqs: int
    version: tuple[int, int] | None
    platform: str
    multimodal: bool
    architecture: str
    mla: bool


def estimate(
    engine: str,
    *,
    runtime_bytes: int,
    hidden_size: int,
    vocab_size: int | None,
    intermediate_size: int | None = None,
    moe: tuple[int, int] | None = None,
    layers: int,
    tp: int = 1,
    pp: int = 1,
    max_num_batched_tokens: int = 2048,
    max_num_seqs: int = 256,
    engine_version: str | None = None,
    platform: str = "cuda",
    multimodal: bool = False,
    architecture: str = "",
    mla: bool = False,
) -> Overhead:
    """Return the overhead of one rank of an engine, by its name; an engine that is a definition has none.

    `engine_version` (`0.19.0`; omitted: the current one) matters for vLLM, `platform` (cuda, rocm, metal) for
    llama.cpp. BadInput for an engine that is not known.
    """
    if engine == "ideal":
        return Overhead()
    if engine in _ALLOWANCES:
        name, low, typical, high, note = _ALLOWANCES[engine]
        return Overhead((_part(name, (low, typical, high), True, "assumed", note),))
    if engine not in _MODELS:
        known = ", ".join(("ideal", *_MODELS, *_ALLOWANCES))
        raise BadInput(f"no overhead is known for engine '{engine}'; known: {known}")
    load = Load(
        runtime_bytes, hidden_size, vocab_size, intermediate_size, moe, layers, tp, pp, max_num_batched_tokens,
        max_num_seqs, parse_version(engine_version), platform, multimodal, architecture, mla,
    )  # fmt: skip
    return Overhead(_MODELS[engine](load))


def parse_version(text: str | None) -> tuple[int, int] | None:
    """Return (major, minor) of a version such as `0.19.0` or `0.6.x`; None for the current one."""
    if not text:
        return None
    match = re.match(r"v?([0-9]+)\.([0-9]+)", text.strip())
    if not match:
        raise BadInput(f"'{text}' is not a version; write for example 0.19.0")
    return int(match[1]), int(match[2])


# What a server's log says of its own memory -------------------------------------------------------------------------

_NUMBER = r"(-?[0-9]+(?:\.[0-9]+)?)"
_LOG_LINES: tuple[tuple[str, str, int], ...] = (
    # part, pattern with one number, bytes of its unit. SGLang prints GB and divides by 2^30.
    ("total", rf"total_gpu_memory \({_NUMBER}GiB\)", GIB),
    ("weights", rf"model weights take {_NUMBER} ?GiB", GIB),
    ("weights", rf"weights memory: {_NUMBER} ?GiB", GIB),
    ("weights", rf"{_NUMBER} GiB for weight", GIB),
    ("weights", rf"Model loading took {_NUMBER} ?Gi?B", GIB),
    ("weights", rf"Load weight end\..*?mem usage={_NUMBER} GB", GIB),
    ("non_torch", rf"non_torch_memory takes {_NUMBER} ?GiB", GIB),
    ("non_torch", rf"non-torch forward increase memory: {_NUMBER} ?GiB", GIB),
    ("non_torch", rf"{_NUMBER} GiB for non-torch memory", GIB),
    ("activations", rf"PyTorch activation peak memory takes {_NUMBER} ?GiB", GIB),
    ("activations", rf"torch peak memory increase: {_NUMBER} ?GiB", GIB),
    ("activations", rf"{_NUMBER} GiB for peak activation", GIB),
    ("cuda_graphs", rf"Graph capturing finished in [0-9]+ secs?, took {_NUMBER} GiB", GIB),
    ("cuda_graphs", rf"{_NUMBER} GiB for CUDAGraph memory", GIB),
    ("cuda_graphs", rf"Capture cuda graph end\..*?mem usage={_NUMBER} GB", GIB),
    ("compute", rf"(?:CUDA|ROCm|Metal|Vulkan|SYCL)[0-9]* +compute buffer size = +{_NUMBER} MiB", 1024**2),
)


def from_log_lines(text: str) -> dict[str, int]:
    """Return overhead parts, and `weights` and `total`, in bytes, from pasted lines of a server's log.

    Lines of vLLM, SGLang and llama.cpp are read; of a part that several ranks or buffers printed, the largest counts.
    Figures have the digits of the log. BadInput where no line says anything.
    """
    found: dict[str, int] = {}
    for part, pattern, unit in _LOG_LINES:
        for number in re.findall(pattern, text):
            size = round(Fraction(number) * unit)
            found[part] = max(found.get(part, size), size)
    if not found:
        raise BadInput(
            "no line of the log says how memory is used; paste those with 'model weights take', 'Graph capturing "
            "finished', 'Model loading took' or 'compute buffer size'"
        )
    return found


# vLLM ---------------------------------------------------------------------------------------------------------------


def vllm_step_defaults(gpu: Gpu) -> tuple[int, int]:
    """Return the API server's defaults of (max_num_batched_tokens, max_num_seqs) on a GPU, from vLLM's source."""
    small = "a100" in gpu.name or gpu.name == "gb10"
    if gpu.total_bytes >= LARGEST_GPU:
        return 16384, 1024
    return (8192, 1024) if gpu.total_bytes >= LARGE_GPU and not small else (2048, 256)


def sampler_bytes(load: Load) -> int:
    """Return the peak while sampling: logits of every sequence in fp32, some at once, and the hidden states.

    `a * S * V * 4 + b * T * h * 2` with a = 3.66, b = 1.45 from vLLM 0.17 on, and a = 9.75, b = 1 before. Neither V
    nor S is divided by tensor parallelism.
    """
    assert load.vocab_size is not None
    many, few = ("3.66", "1.45") if _since(load, 17) else ("9.75", "1")
    logits = Fraction(many) * load.max_num_seqs * load.vocab_size * 4
    return round(logits + Fraction(few) * load.max_num_batched_tokens * load.hidden_size * 2)


def forward_bytes(load: Load) -> int:
    """Return the peak in a layer: `T * 2 * (3 * I / TP + 4 * h)`; without the feed-forward width, its lower part."""
    width = 3 * (load.intermediate_size or 0)
    return round(load.max_num_batched_tokens * 2 * (Fraction(width, load.tp) + 4 * load.hidden_size))


def expert_bytes(load: Load) -> int:
    """Return what a mixture of experts adds: `T * k * (3 * I_moe / TP + h) * 2`; nothing for gpt-oss, by its logs."""
    if load.moe is None or load.architecture == "gpt_oss":
        return 0
    experts, width = load.moe
    return round(load.max_num_batched_tokens * experts * 2 * (Fraction(3 * width, load.tp) + load.hidden_size))


def _since(load: Load, minor: int) -> bool:
    return load.version is None or load.version >= (0, minor)


def _vllm(load: Load) -> tuple[OverheadPart, ...]:
    parts = (_loading(), _activations(load), _non_torch(load), _graphs(load), _context(load), _warm_up())
    return (*parts, _multimodal(load)) if load.multimodal else parts


def _loading() -> OverheadPart:
    note = "what loading takes beyond the weights' own bytes: 0.01-0.08 GiB on 16 cases"
    return _part("loading", ("0.01", "0.03", "0.08"), True, "derived", note)


def _activations(load: Load) -> OverheadPart:
    """Return the peak of the profiling run: the larger of sampling and a layer's forward pass, and the experts."""
    if load.vocab_size is None:
        sizes = ("1.8", "2.4", "5.4") if load.max_num_seqs >= 1024 else ("0.15", "0.6", "2.1")
        return _part("activations", sizes, True, "assumed", "the vocabulary is unknown: an allowance")
    typical = max(sampler_bytes(load), forward_bytes(load)) + expert_bytes(load)
    low, high, basis, note = _activation_spread(load, typical)
    return OverheadPart("activations", max(low, 0), typical, high, True, basis, note)


def _activation_spread(load: Load, typical: int) -> tuple[int, int, Basis, str]:
    """Return (low, high, basis, note) of the profiling peak around its typical value, by what logs cover."""
    formula = "max(a S V 4 + b T h 2, T 2 (3 I/TP + 4 h))" + (" + T k (3 I_moe/TP + h) 2" if load.moe else "")
    if load.pp > 1:
        return typical, typical * 5 // 4, "assumed", f"{formula}; no model with pipeline stages, 5-20 % more was seen"
    if load.intermediate_size is None and load.moe is None:
        high = max(typical, forward_bytes(replace(load, intermediate_size=4 * load.hidden_size)))
        return typical * 9 // 10, high + gib("0.1"), "assumed", f"{formula}, the feed-forward width being unknown"
    if load.moe:
        return typical - gib("0.15"), typical + gib("0.15"), "derived", f"{formula}: a hypothesis, 7 settings"
    if _since(load, 20):
        # The same engine printed 0.15 GiB with a warm compile cache and 0.80-1.09 with a cold one, for 0.54 here.
        warm = max(load.max_num_seqs * (load.vocab_size or 0) * 4, gib("0.1"))
        return min(warm, typical), 2 * typical, "derived", f"{formula}; low with a warm compile cache, high with a cold"
    margin = gib("0.05") if _since(load, 17) else gib("0.1")
    return typical - margin, typical + margin, "derived", formula


def _non_torch(load: Load) -> OverheadPart:
    """Return what is allocated outside torch: by version on one GPU, an allowance on several."""
    if load.tp * load.pp > 1:
        typical = "2.1" if load.runtime_bytes >= LARGE_GPU else "0.75"
        note = "no model for several GPUs (NCCL, all-reduce buffers): 2.06-2.21 on H100 with NVLink, 0.07-3.6 elsewhere"
        return _part("non_torch", ("0.07", typical, "3.6"), True, "assumed", note)
    if _since(load, 18):
        return _part("non_torch", ("0.2", "0.25", "0.46"), True, "derived", "0.24-0.27 on one GPU, Granite 0.46")
    if _since(load, 15):
        return _part("non_torch", ("0.1", "0.13", "0.25"), True, "derived", "0.13 in 0.15 to 0.17")
    return _part("non_torch", ("0", "0.06", "0.12"), True, "derived", "0.00-0.12 before 0.15")


def _graphs(load: Load) -> OverheadPart:
    """Return the CUDA graphs, which vLLM takes off its share before it sizes the cache since 0.21."""
    inside = _since(load, 21)
    where = "vLLM's estimate, taken off before the cache is sized" if inside else "captured after the cache is sized"
    if load.moe or load.mla:
        note = f"{where}; no model for MoE and MLA: 0.9-1.9 GiB seen"
        sizes = ("0.5", "1.4", "5") if inside else ("0.9", "1.4", "1.9")
        return _part("cuda_graphs", sizes, inside, "assumed", note)
    typical = round((Fraction("0.35") + Fraction("0.016") * Fraction(load.layers, load.pp)) * GIB)
    # The fit is at worst 0.23 GiB off; vLLM's own estimate is mostly 0.26 to 2.2 times what is then captured.
    low, high = (typical // 4, typical * 11 // 5) if inside else (typical - gib("0.23"), typical + gib("0.23"))
    note = f"0.35 + 0.016 GiB per layer with 51 + 51 captures; {where}"
    return OverheadPart("cuda_graphs", max(low, 0), typical, high, inside, "derived", note)


def _context(load: Load) -> OverheadPart:
    if load.tp * load.pp > 1:
        return _part("context", ("1.4", "1.5", "2.05"), False, "assumed", "in use before the engine starts: 1.43-2.05")
    return _part("context", ("0.4", "0.51", "0.6"), False, "derived", "in use before the engine starts: 0.51 on H100")


def _warm_up() -> OverheadPart:
    note = "the sampler's warm-up after start; three servers at 0.92-0.95 ran out of memory in it"
    return _part("warm_up", ("0.15", "0.5", "0.8"), False, "assumed", note)


def _multimodal(load: Load) -> OverheadPart:
    if _since(load, 17):
        note = "no model for encoder profiling: the text formula was 0.17-0.24 GiB low on 7 rows, more elsewhere"
        return _part("multimodal", ("0", "0.17", "2.5"), True, "assumed", note)
    note = "no model for encoder profiling: 2.5 GiB per modality unit, 4-6.5 for omni models"
    return _part("multimodal", ("0", "2.5", "6.5"), True, "assumed", note)


# The other engines -------------------------------------------------------------------------------------------------


def _sglang(load: Load) -> tuple[OverheadPart, ...]:
    """What SGLang leaves free is policy (mem_fraction_static), not need; activations are in no log: no model."""
    least, mostly, most = (load.runtime_bytes * percent // 100 for percent in (12, 17, 23))
    reason = "left free by mem_fraction_static's default: 12-23 % on 10 servers"
    sizes = ("1.0", "1.8", "2.0") if load.tp * load.pp > 1 else ("0.3", "0.5", "1.0")
    return (
        OverheadPart("static_reserve", least, mostly, most, True, "assumed", reason),
        _part("context", sizes, True, "assumed", "context and communicators, 1.8-2.0 GiB at TP 8"),
        _part("cuda_graphs", ("0.03", "0.9", "4.2"), False, "assumed", "0.03-0.19 for 3-4 sizes, 0.9-2.0 for 23-36"),
    )


_LLAMA_CPP_CONTEXT = {
    "cuda": ("0.32", "0.45", "0.75", "0.32-0.75 GiB headless; a desktop adds 1.1-2.2"),
    "rocm": ("0.25", "0.3", "0.5", "0.25-0.31 GiB on two machines"),
    "metal": ("0", "0", "0.3", "nothing on one machine"),
    "other": ("0.25", "0.5", "1", "not seen: an allowance"),
}


def _llama_cpp(load: Load) -> tuple[OverheadPart, ...]:
    low, typical, high, note = _LLAMA_CPP_CONTEXT.get(load.platform, _LLAMA_CPP_CONTEXT["other"])
    compute = "compute buffers: 97-4621 MiB, median 495; the engine's own law is exact where it applies"
    return (
        _part("context", (low, typical, high), True, "assumed", note),
        _part("compute", ("0.1", "0.5", "4.5"), True, "assumed", compute),
    )


# Engines of which too little was seen for more than one allowance, in GiB, and why.
_ALLOWANCES = {
    "tensorrt-llm": (
        "runtime", "1.0", "2.5", "8",
        "activations, context, NCCL: 1.0-2.5 GiB in 4 logs, 7.7 on several Blackwell GPUs; too little for a model",
    ),
    "ollama": (
        "runtime", "0.6", "1.2", "4", "context and compute buffers with Ollama's larger batches; judged, one usable log"
    ),
    "transformers": (
        "context", "0.3", "0.8", "2", "context and kernels; what a prompt's activations take is in no log: no model"
    ),
}  # fmt: skip


_MODELS: Mapping[str, Callable[[Load], tuple[OverheadPart, ...]]] = {
    "llama.cpp": _llama_cpp,
    "vllm": _vllm,
    "sglang": _sglang,
}


def _part(name: str, sizes: tuple[str, str, str], inside: bool, basis: Basis, note: str) -> OverheadPart:
    """Return a part from its low, typical and high size in GiB."""
    low, typical, high = map(gib, sizes)
    return OverheadPart(name, low, typical, high, inside, basis, note)
