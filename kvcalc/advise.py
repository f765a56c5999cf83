"""The least change of each kind that makes a deployment fit, and the smallest layout: searched, never canned."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from kvcalc.errors import BadInput, UnsupportedByEngine
from kvcalc.fit_result import Layout, Suggestion
from kvcalc.fitting import Question, Standing, stand, stand_at
from kvcalc.formats import FORMATS
from kvcalc.hardware.gpu import gpus
from kvcalc.hardware.weights import weights_bytes
from kvcalc.memory import Card, KvMemory
from kvcalc.prepared import Setup, check
from kvcalc.units import format_bytes

MOST_TP = 64
SINKS = 4  # what StreamingLLM keeps of a sequence's start
HIGHEST_UTILIZATION = Fraction("0.98")

# Formats of weights that are served with each engine, from the most bits to the fewest.
_GGUF = ("gguf-Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q3_K_M", "Q2_K")
WEIGHT_FORMATS: Mapping[str, tuple[str, ...]] = {
    "ideal": ("vllm-fp8", "w4a16"),
    "transformers": ("vllm-fp8", "nf4"),
    "vllm": ("vllm-fp8", "w4a16"),
    "sglang": ("vllm-fp8", "w4a16"),
    "tensorrt-llm": ("vllm-fp8", "w4a16"),
    "llama.cpp": _GGUF,
    "ollama": _GGUF,
}
# The engines' own options for what --kv-dtype says too.
_KV_OPTIONS = ("kv_cache_dtype", "kv_cache_type", "type_k", "type_v")
_LAYER_ENGINES = ("llama.cpp", "ollama")  # give whole layers to devices, instead of splitting heads


def suggestions(standing: Standing) -> tuple[Suggestion, ...]:
    """Return the least change of each kind that makes it fit, and the kinds of which none does; none if it fits."""
    if standing.fits:
        return ()
    kinds = (_context, _batch, _kv_dtype, _weights, _split, _gpu_layers, _utilization, _evict, _memory)
    return tuple(found for kind in kinds if (found := kind(standing)) is not None)


# What is asked for


def _context(standing: Standing) -> Suggestion | None:
    longest, batch = standing.admitted_context, standing.question.batch
    if longest is None or longest >= standing.context:
        return None
    if longest < 1:
        return Suggestion("context", "", False, f"no context helps: not one token fits at batch {batch:,}")
    text = f"--ctx {longest} is the largest context that fits at batch {batch:,}"
    return Suggestion("context", f"--ctx {longest}", True, text, batch, longest)


def _batch(standing: Standing) -> Suggestion | None:
    most, context = standing.max_batch, standing.context
    if standing.question.batch == 1 or most is None or most >= standing.question.batch:
        return None
    if most < 1:
        return Suggestion("batch", "", False, f"no batch helps: not one sequence fits at context {context:,}")
    text = f"--batch {most} is the largest batch that fits at context {context:,}"
    return Suggestion("batch", f"--batch {most}", True, text, most, context)


# Formats


def _kv_dtype(standing: Standing) -> Suggestion | None:
    """Return the format of the cache with the most bytes that fits."""
    tried = _smaller_caches(standing)
    found = next(((name, other) for name, other in tried if other.fits), None)
    if found:
        return _helps("kv_dtype", f"--kv-dtype {found[0]}", found[1])
    if not tried:
        return Suggestion("kv_dtype", "", False, "no format of the cache helps: none takes less memory here")
    name, smallest = tried[-1]
    return Suggestion("kv_dtype", "", False, f"no format of the cache helps: {name} {_lack(smallest)}")


def _smaller_caches(standing: Standing) -> list[tuple[str, Standing]]:
    """Return the formats that the engine takes and that take less memory, with where they stand, largest first."""
    question, found = standing.question, dict[int, tuple[str, Standing]]()
    now = _cache_bytes(standing)
    options = {name: value for name, value in question.options.items() if name not in _KV_OPTIONS}
    for name in FORMATS:
        other = attempt(question.changed(kv_dtype=name, options=options))
        if isinstance(other, Standing) and _cache_bytes(other) < now:
            found.setdefault(_cache_bytes(other), (name, other))
    return [found[size] for size in sorted(found, reverse=True)]


def _cache_bytes(standing: Standing) -> int:
    return standing.setup.placement.total_bytes(standing.question.asked_context, standing.question.batch)


def _weights(standing: Standing) -> Suggestion | None:
    """Return the format of the weights with the most bits that fits."""
    if isinstance(standing.question.memory, KvMemory):
        return None
    tried = list(smaller_weights(standing.setup))
    last: Standing | None = None
    for name in tried:
        other = attempt(standing.question.changed(weights=name))
        if isinstance(other, Standing):
            if other.fits:
                return _helps("weights", f"--weights {name}", other)
            last = other
    if last is None:
        return Suggestion("weights", "", False, "no format of the weights helps: none takes less memory here")
    return Suggestion("weights", "", False, f"no format of the weights helps: {tried[-1]} {_lack(last)}")


def smaller_weights(setup: Setup) -> Iterator[str]:
    """Yield the formats of the weights that take fewer bytes than the present one, from the most bits on."""
    now, parameters = setup.weights_bytes(), setup.spec.parameters
    for name in WEIGHT_FORMATS[setup.engine.name]:
        if now is not None and parameters is not None and weights_bytes(parameters, name).typical < now:
            yield name


# Devices


def _split(standing: Standing) -> Suggestion | None:
    """Return the least tensor parallelism that fits; whole layers on more devices where the engine has no other."""
    name = "pp" if standing.setup.engine.name in _LAYER_ENGINES else "tp"
    now = getattr(standing.setup.deployment, name)
    last: Standing | None = None
    for degree in range(2 * now, MOST_TP + 1, now):
        other = attempt(standing.question.changed(**{name: degree}))
        if isinstance(other, Standing):
            if other.fits:
                return _helps(name, f"--{name} {degree}", other)
            last = other
    if last is None:
        return Suggestion(name, "", False, f"no larger {name} helps: the engine takes none for this model")
    degree = getattr(last.setup.deployment, name)
    return Suggestion(name, "", False, f"no larger {name} up to {MOST_TP} helps: {name} {degree} {_lack(last)}")


def _gpu_layers(standing: Standing) -> Suggestion | None:
    """Return how many layers llama.cpp can keep on its GPUs: the most that fit."""
    if standing.setup.engine.name != "llama.cpp" or not isinstance(standing.question.memory, Card):
        return None
    layers = most_gpu_layers(standing.question, standing.setup)
    if not layers:
        return Suggestion("n_gpu_layers", "", False, "no -ngl helps: not even one layer fits on the GPU")
    change = f"-o n_gpu_layers={layers}"
    text = f"{change} is the most that fits, with the other layers in the host's memory"
    return Suggestion("n_gpu_layers", change, True, text)


def most_gpu_layers(question: Question, setup: Setup) -> int:
    """Return the most layers on the GPUs (the output counts as one) with which it fits; 0 if not even one does."""
    options = {name: value for name, value in question.options.items() if name not in ("ngl", "n_gpu_layers")}

    def on_gpu(layers: int) -> bool:
        return layers == 0 or holds(question.changed(options={**options, "n_gpu_layers": layers}))

    return _largest(on_gpu, len(setup.spec.layers) + 1)


def _utilization(standing: Standing) -> Suggestion | None:
    """Return the smallest share of the memory, in hundredths, with which it fits."""
    question, memory = standing.question, standing.question.memory
    now = next((rank.budget.share for rank in standing.ranks if rank.budget), None)
    if not isinstance(memory, Card) or now is None or standing.setup.engine.name not in ("vllm", "tensorrt-llm"):
        return None
    for hundredths in range(math.floor(now * 100) + 1, int(HIGHEST_UTILIZATION * 100) + 1):
        share = Fraction(hundredths, 100)
        other = attempt(replace(question, memory=replace(memory, utilization=share)))
        if isinstance(other, Standing) and other.fits:
            return _helps("utilization", f"--utilization {hundredths / 100:g}", other)
    text = f"no utilization up to {float(HIGHEST_UTILIZATION):g} helps"
    return Suggestion("utilization", "", False, text)


def _evict(standing: Standing) -> Suggestion | None:
    """Return the widest window with which the ideal engine's cache fits."""
    question, context = standing.question, standing.context
    if standing.setup.engine.name != "ideal" or "evict" in question.options:
        return None

    def rule(window: int) -> Question:
        return question.changed(options={**question.options, "evict": f"window:{window},sinks:{SINKS}"})

    window = _largest(lambda each: each == 0 or holds(rule(each)), max(context - SINKS, 1))
    if not window:
        return Suggestion("evict", "", False, f"no window of recent tokens helps, not even one and {SINKS} sinks")
    change = f"--evict window:{window},sinks:{SINKS}"
    return _helps("evict", change, stand(rule(window)))


def _memory(standing: Standing) -> Suggestion | None:
    """Return the least memory for the cache that fits, or the smallest GPU of the same kind."""
    memory = standing.question.memory
    return _kv_memory(standing, memory) if isinstance(memory, KvMemory) else _larger_gpu(standing, memory)


def _kv_memory(standing: Standing, memory: KvMemory) -> Suggestion | None:
    set_by_options = max(standing.budgets) != memory.size
    if set_by_options and not standing.found.fits:
        return None  # the engine's options, not the memory, are too small
    least = max(standing.found.needed_memory, max(standing.budgets) if set_by_options else 0)
    text = f"--kv-memory {least} is the least that fits ({format_bytes(least)})"
    return Suggestion("memory", f"--kv-memory {least}", True, text)


def _larger_gpu(standing: Standing, card: Card) -> Suggestion:
    """Return the GPU with the least memory on which it fits, of the same vendor's runtime and with its own memory."""
    lack = standing.missing
    known = sorted(
        (gpu for gpu in gpus() if gpu.runtime_bytes and gpu.platform == card.gpu.platform and not gpu.unified),
        key=lambda gpu: (gpu.total_bytes, gpu.name),
    )
    larger = [gpu for gpu in known if gpu.total_bytes >= card.gpu.total_bytes + lack]
    for gpu in larger:
        other = attempt(replace(standing.question, memory=replace(card, gpu=gpu)))
        if isinstance(other, Standing) and other.fits:
            return _helps("gpu", f"--gpu {gpu.name}", other)
    text = f"no larger GPU helps: {known[-1].name} has {format_bytes(known[-1].total_bytes)}" if known else "no GPU"
    return Suggestion("gpu", "", False, text)


# Layouts


@dataclass(frozen=True)
class Search:
    """The layouts that were tried, and where the question stands with the chosen one."""

    tried: tuple[Layout, ...]
    standing: Standing


@dataclass(frozen=True)
class _Try:
    """One layout, what it lacks in bytes, and where it stands; its question alone where it was not placed."""

    layout: Layout
    missing: int
    found: Standing | Question | None

    @property
    def order(self) -> tuple[Any, ...]:
        """What layouts are ordered by, the best first."""
        layout = self.layout
        batch = math.inf if layout.max_batch is None else layout.max_batch
        return (not layout.fits, -batch, self.missing, layout.pp, layout.dp)


def smallest_layout(question: Question, counts: range, fixed: Mapping[str, int]) -> Search:
    """Return the layout with the fewest GPUs that fits, of equals the one with the largest batch, then the least pp.

    `fixed` are the degrees (tp, pp, dp) that are given. Where none fits, the chosen one is the one that lacks least.
    BadInput where no layout of `counts` GPUs has the fixed degrees.
    """
    placed: dict[tuple[int, int], Setup | str] = {}
    tried: list[_Try] = []
    for count in counts:
        here = [_tried(question, degrees, placed) for degrees in _layouts(count, fixed)]
        tried += here
        if any(each.layout.fits for each in here):
            break
    if not tried:
        degrees = ", ".join(f"{name} {value}" for name, value in fixed.items())
        number = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        raise BadInput(f"no layout of {number} GPUs has {degrees}; tp * pp * dp is the number of GPUs")
    for each in sorted(tried, key=lambda one: one.order):
        # What weighs too much was not placed: whether the engine takes such a layout at all shows only here.
        best = attempt(each.found) if isinstance(each.found, Question) else each.found
        if isinstance(best, Standing):
            return Search(tuple(one.layout for one in tried), best)
    raise UnsupportedByEngine(tried[0].layout.why)


def _layouts(count: int, fixed: Mapping[str, int]) -> Iterator[tuple[int, int, int]]:
    """Yield (tp, pp, dp) whose product is `count`, the most tensor parallelism first."""
    for tp in range(count, 0, -1):
        for pp in range(1, count + 1):
            if count % (tp * pp) == 0:
                found = {"tp": tp, "pp": pp, "dp": count // (tp * pp)}
                if all(found[name] == value for name, value in fixed.items()):
                    yield tp, pp, found["dp"]


def _tried(question: Question, degrees: tuple[int, int, int], placed: dict[tuple[int, int], Setup | str]) -> _Try:
    """Return a layout and whether it fits; replicas are equal, so that a model is placed once for each (tp, pp)."""
    tp, pp, dp = degrees
    here = question.changed(tp=tp, pp=pp, dp=dp)
    heavy = _overweight(here, tp * pp)
    if heavy is not None:
        return heavy
    if (tp, pp) not in placed:
        placed[tp, pp] = _placed(question.changed(tp=tp, pp=pp, dp=1))
    setup = placed[tp, pp]
    if isinstance(setup, str):
        return _Try(Layout(tp, pp, dp, False, None, setup), 0, None)
    setup = replace(setup, deployment=replace(setup.deployment, dp=dp), placement=replace(setup.placement, dp=dp))
    try:
        check(setup, here.asked_context, here.batch)
    except (BadInput, UnsupportedByEngine) as error:
        return _Try(Layout(tp, pp, dp, False, None, str(error)), 0, None)
    standing = stand_at(here, setup, here.memory.ranks(setup, here.drafted()), "typical")
    why = "" if standing.fits else _lack(standing)
    return _Try(Layout(tp, pp, dp, standing.fits, standing.max_batch, why), standing.missing, standing)


def _overweight(question: Question, ranks: int) -> _Try | None:
    """Return a layout whose weights alone exceed the GPUs, told without placing the model; None if they do not."""
    memory, spec = question.memory, question.spec
    partly = {"ngl", "n_gpu_layers", "num_gpu", "tensor_split"} & set(question.options)
    if not isinstance(memory, Card) or memory.logged or partly or spec.weights_bytes or not spec.parameters:
        return None
    name = question.arguments.get("weights") or question.arguments.get("dtype") or spec.dtype
    each = weights_bytes(spec.parameters, str(name)).low // ranks
    if each <= memory.total_bytes:
        return None
    tp, pp, dp = (int(question.arguments[name]) for name in ("tp", "pp", "dp"))
    why = f"weights take {format_bytes(each)} of each GPU's {format_bytes(memory.total_bytes)}"
    return _Try(Layout(tp, pp, dp, False, 0, why), each, question)


def _placed(question: Question) -> Setup | str:
    try:
        return question.setup()
    except UnsupportedByEngine as error:
        return str(error)


# llama.cpp: cache types, layers on the GPU and context together


def offloads(question: Question) -> tuple[dict[str, Any], ...]:
    """Return, for llama.cpp's f16, q8_0 and q4_0 caches, the longest context with all layers, and the most layers.

    The largest context is the one at the batch asked for with every layer on the GPU; the layers are the most that fit
    at the context asked for, None if no layer does.
    """
    options = {name: value for name, value in question.options.items() if name not in ("ngl", "n_gpu_layers")}
    plain = {name: value for name, value in options.items() if name not in _KV_OPTIONS}
    rows = []
    for kv_dtype in ("fp16", "q8_0", "q4_0"):
        here = attempt(question.changed(kv_dtype=kv_dtype, options=plain))
        if isinstance(here, Standing):
            rows.append(
                {
                    "kv_dtype": kv_dtype,
                    "max_context_all_layers": here.max_context,
                    "n_gpu_layers": most_gpu_layers(here.question, here.setup) or None,
                }
            )
    return tuple(rows)


# Shared


def attempt(question: Question) -> Standing | str:
    """Return where a question stands, or why the engine or the model does not allow it."""
    try:
        return stand(question)
    except (BadInput, UnsupportedByEngine) as error:
        return str(error)


def holds(question: Question) -> bool:
    """Return whether a question is allowed and fits."""
    found = attempt(question)
    return isinstance(found, Standing) and found.fits


def _helps(kind: str, change: str, standing: Standing) -> Suggestion:
    """Return a change that makes it fit, with the largest batch and context that it gives."""
    batch, context = standing.max_batch, standing.max_context
    shown = ["any" if value is None else f"{value:,}" for value in (batch, context)]
    text = (
        f"{change} fits: batch {shown[0]} at context {standing.context:,}, "
        f"context {shown[1]} at batch {standing.question.batch:,}"
    )
    return Suggestion(kind, change, True, text, batch, context)


def _lack(standing: Standing) -> str:
    """Return what is missing, in words."""
    if standing.missing_weights:
        return f"lacks {format_bytes(standing.missing_weights)} for weights and overhead alone"
    return f"lacks {format_bytes(standing.missing)}" if standing.missing else "does not fit"


def _largest(works: Callable[[int], bool], most: int) -> int:
    """Return the largest number from 0 to `most` that works, given that 0 does and that working is monotone."""
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if works(middle) else (low, middle)
    return low


def fewest(suggested: Sequence[Suggestion]) -> Suggestion | None:
    """Return the first change that helps."""
    return next((each for each in suggested if each.helps), None)
