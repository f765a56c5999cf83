"""What every rank has for its cache: bytes that the user gives, or those of a GPU less weights and overhead."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal, TypeAlias

from kvcalc.engines._base import reads_images
from kvcalc.errors import BadInput
from kvcalc.formats import find_format
from kvcalc.hardware.budget import Budget
from kvcalc.hardware.gpu import Gpu
from kvcalc.hardware.overhead import Overhead, OverheadPart, estimate, vllm_step_defaults
from kvcalc.prepared import Setup
from kvcalc.units import MAX_BYTES, format_bytes

# `low` is the least that is left for the cache, `high` the most; answers are those of `typical`.
Level = Literal["low", "typical", "high"]


@dataclass(frozen=True)
class KvMemory:
    """Memory for the cache on every rank; the weights are not taken from it."""

    size: int

    def adjusted(self, engine: str, options: Mapping[str, object], pp: int) -> Mapping[str, object]:
        """Return an engine's options as they are."""
        return options

    def ranks(self, setup: Setup, drafted: Setup | None = None) -> tuple[RankMemory, ...]:
        """Return the same bytes for every rank."""
        return tuple(RankMemory(self.size, self.size, self.size, None) for _ in setup.placement.ranks)


@dataclass(frozen=True)
class Card:
    """A GPU for every rank, and what the user says about its memory.

    `reserve` is what others use of every GPU; `overhead` replaces all parts of the overhead, `parts` some. `logged`
    is what a server's log says: parts, and the `weights` and the `total` of one GPU.
    """

    gpu: Gpu
    utilization: Fraction | None = None
    reserve: int = 0
    overhead: int | None = None
    parts: tuple[tuple[str, int], ...] = ()
    logged: tuple[tuple[str, int], ...] = ()
    max_num_seqs: int | None = None

    @property
    def total_bytes(self) -> int:
        """What the runtime hands out, less what others use; BadInput if nothing is left."""
        total = (self._logged("total") or self.gpu.total_bytes) - self.reserve
        if total < 1:
            have = format_bytes(self.gpu.total_bytes)
            raise BadInput(f"--memory-reserve {format_bytes(self.reserve)} leaves nothing of the {have} of a GPU")
        return total

    def adjusted(self, engine: str, options: Mapping[str, object], pp: int) -> Mapping[str, object]:
        """Return an engine's options with the defaults that depend on the GPU."""
        if engine == "vllm" and "max_num_batched_tokens" not in options:
            return {**options, "max_num_batched_tokens": vllm_step_defaults(self.gpu)[0]}
        # Where nothing speaks of a GPU, llama.cpp's profile has one memory and calls it the CPU's.
        if engine in ("llama.cpp", "ollama") and not {"device", "tensor_split"} & set(options):
            prefix = {"cuda": "CUDA", "rocm": "ROCm", "metal": "Metal"}.get(self.gpu.platform, "Vulkan")
            return {**options, "device": ",".join(f"{prefix}{number}" for number in range(pp))}
        return options

    def ranks(self, setup: Setup, drafted: Setup | None = None) -> tuple[RankMemory, ...]:
        """Return what is left on every rank of a replica; BadInput where the weights' bytes are unknown."""
        weights = rank_weights(setup)
        if drafted is not None:
            weights = tuple(_sum(*pair) for pair in zip(weights, rank_weights(drafted), strict=True))
        logged = self._logged("weights")
        if logged is not None:
            weights = tuple(each and RankWeights(logged, logged, logged) for each in weights)
        overhead = self.overhead_of(setup)
        found = {each: HOST if each is None else self._rank(setup, each, overhead) for each in set(weights)}
        return tuple(found[each] for each in weights)

    def _rank(self, setup: Setup, weights: RankWeights, overhead: Overhead) -> RankMemory:
        """Return one rank's memory: with the most weights and overhead, the typical ones, and the least."""
        most, typical, least = (
            self._budget(setup, size, overhead) for size in (weights.high, weights.typical, weights.low)
        )
        return RankMemory(
            min(most.cache_low_bytes, most.cache_typical_bytes),
            typical.cache_typical_bytes,
            max(least.cache_high_bytes, least.cache_typical_bytes),
            typical,
        )

    def _budget(self, setup: Setup, weights: int, overhead: Overhead) -> Budget:
        return setup.engine.budget(self.total_bytes, weights, overhead, self.utilization)

    def overhead_of(self, setup: Setup) -> Overhead:
        """Return the overhead of a rank, with what the user and the log say in place of the estimates."""
        if self.overhead is not None:
            size = self.overhead
            return Overhead((OverheadPart("overhead", size, size, size, True, "given", "given, for all parts"),))
        found = _with_compute_buffer(_estimated(setup, self.gpu, self.sequences), setup, self.total_bytes)
        if self._logged("weights") is not None:
            found = found.without("loading")  # the log's weights are those that were loaded
        names = {part.name for part in found.parts}
        for name, size in self.logged:
            found = found.with_part(name, size) if name in names else found
        for name, size in self.parts:
            found = found.with_part(name, size)
        return found

    def _logged(self, name: str) -> int | None:
        """Return what the log says of `weights` or `total`."""
        return dict(self.logged).get(name)

    @property
    def sequences(self) -> int:
        """The sequences that vLLM runs at once (max_num_seqs): as given, else its default on this GPU."""
        return self.max_num_seqs or vllm_step_defaults(self.gpu)[1]


Memory: TypeAlias = KvMemory | Card


@dataclass(frozen=True)
class RankMemory:
    """The bytes that one rank has for its cache, from the least to the most; `budget` says how they come about."""

    low: int
    typical: int
    high: int
    budget: Budget | None

    def at(self, level: Level) -> int:
        """Return the bytes of one level."""
        return {"low": self.low, "typical": self.typical, "high": self.high}[level]


# What does not lie on a GPU takes nothing from it; how much memory the host has is not asked.
HOST = RankMemory(MAX_BYTES, MAX_BYTES, MAX_BYTES, None)


@dataclass(frozen=True)
class RankWeights:
    """The bytes of the weights on one rank; they differ where a format is a mix."""

    low: int
    typical: int
    high: int


def rank_weights(setup: Setup) -> tuple[RankWeights | None, ...]:
    """Return the weights on every rank of a replica, None for the host; BadInput where their bytes are unknown.

    A tensor-parallel slice has its part of everything. With pipeline stages, the first has the embedding and the last
    the output head, where the spec gives their size and a plain format says what they take; else a stage has the share
    of its layers.
    """
    whole = setup.weights_range()
    if whole is None:
        raise BadInput(
            f"{setup.spec.name}: the bytes of its weights are unknown; give a spec with 'parameters', or "
            "--kv-memory SIZE, the memory that is left for the cache"
        )
    shares = setup.engine.weight_shares(setup.spec, setup.deployment)
    edge = _edge_bytes(setup)
    if edge is None or setup.engine.name in ("llama.cpp", "ollama"):
        return tuple(None if share is None else _shared(whole, share) for share in shares)
    return _with_edges(whole, shares, edge, setup)


def _sum(first: RankWeights | None, second: RankWeights | None) -> RankWeights | None:
    """Return the weights of two models on one rank."""
    if first is None or second is None:
        return first or second
    return RankWeights(first.low + second.low, first.typical + second.typical, first.high + second.high)


def _shared(whole: Sequence[int], share: Fraction) -> RankWeights:
    low, typical, high = (math.ceil(size * share) for size in whole)
    return RankWeights(low, typical, high)


def _edge_bytes(setup: Setup) -> int | None:
    """Return the bytes of the token embedding, which the output head equals; None where stages do not matter."""
    file, deployment = setup.spec.file, setup.deployment
    plain = not setup.weights_from_file and setup.weights_exact
    if deployment.pp == 1 or not plain or file.vocab_size is None or file.tie_word_embeddings is None:
        return None
    return find_format(setup.weights_format).bulk_bytes(file.vocab_size * file.hidden_size)


def _with_edges(
    whole: Sequence[int], shares: Sequence[Fraction | None], edge: int, setup: Setup
) -> tuple[RankWeights, ...]:
    """Return the weights of stages, of which the first has the embedding and the last its own copy of the head."""
    tp, last = setup.deployment.tp, setup.deployment.pp - 1
    layers = whole[1] - edge * (1 if setup.spec.file.tie_word_embeddings else 2)
    found = []
    for number, share in enumerate(shares):
        edges = (number // tp == 0) + (number // tp == last)
        size = math.ceil(layers * (share or 0) + Fraction(edges * edge, tp))
        found.append(RankWeights(size, size, size))
    return tuple(found)


def _estimated(setup: Setup, gpu: Gpu, max_num_seqs: int) -> Overhead:
    """Return the engine's overhead for this model, GPU and step, from what the spec gives."""
    spec, deployment = setup.spec, setup.deployment
    file = spec.file
    experts = file.experts_per_token
    width = file.moe_intermediate_size or file.intermediate_size
    step = getattr(deployment.options, "max_num_batched_tokens", None) or vllm_step_defaults(gpu)[0]
    return estimate(
        setup.engine.name,
        runtime_bytes=gpu.total_bytes,
        hidden_size=file.hidden_size,
        vocab_size=file.vocab_size,
        intermediate_size=file.intermediate_size,
        moe=(experts, width) if experts and width else None,
        layers=len(spec.layers),
        tp=deployment.tp,
        pp=deployment.pp,
        max_num_batched_tokens=step,
        max_num_seqs=max_num_seqs,
        platform=gpu.platform,
        multimodal=reads_images(spec),
        architecture=spec.architecture,
        mla=any(group.kind.name == "mla" for group in spec.groups()),
    )


_SMALLEST_CONTEXT = 256  # llama.cpp's cells come in groups of so many
_COMPUTE_NOTE = (
    "closed form of the CPU backend at the trained context, from 256 tokens to all that the GPU could hold; a log of a "
    "GPU has 12 MiB less"
)


def _with_compute_buffer(found: Overhead, setup: Setup, total: int) -> Overhead:
    """Return the overhead with llama.cpp's compute buffer where its closed form holds, in place of the allowance."""
    sizes = _compute_buffer(setup, total) if setup.engine.name == "llama.cpp" else None
    if sizes is None:
        return found
    part = OverheadPart("compute", *sizes, True, "derived", _COMPUTE_NOTE)
    return Overhead(tuple(part if each.name == part.name else each for each in found.parts))


def _compute_buffer(setup: Setup, total: int) -> tuple[int, int, int] | None:
    """Return (low, typical, high) bytes of llama.cpp's compute buffer on one GPU; None where no form is known.

    The form is known for flash attention and plain caches: for others CUDA has scratch memory that grows with the
    context. With all layers on one GPU, it holds the whole graph. The buffer grows with the context, which a budget
    does not know; it is taken as large as at the context that the model was trained for.
    """
    from kvcalc.engines._llama_cpp.cells import MAX_SLOTS
    from kvcalc.engines._llama_cpp.compute import compute_bytes
    from kvcalc.engines.llama_cpp import memory_of

    spec, deployment, trained = setup.spec, setup.deployment, setup.spec.max_context
    found = memory_of(spec, deployment)
    settings = found.settings
    plain = found.flash_attn and settings.type_k.block == settings.type_v.block == 1
    if trained is None or not plain or found.layer_shares() != (Fraction(1),):
        return None
    on_cpu = replace(found, settings=replace(settings, devices=()))

    def size(context: int, slots: int = 1) -> int | None:
        return compute_bytes(spec, on_cpu, settings.rule.context(context, slots))[0]

    low, typical = size(_SMALLEST_CONTEXT), size(trained)
    if low is None or typical is None:
        return None
    held = setup.placement.ranks[0].admitted.max_tokens(total) or trained
    # Every slot has logits of its own: with the most slots they can be the largest phase.
    most = (size(held) or typical, size(_SMALLEST_CONTEXT, MAX_SLOTS) or typical)
    return low, typical, max(typical, *most)


@dataclass(frozen=True)
class MemoryReport:
    """How the memory of a GPU divides, on the rank that has the least for its cache."""

    gpu: str
    gpus: int
    rank: int
    runtime_bytes: int
    runtime_basis: str
    reserve_bytes: int
    budget: Budget
    cache: RankMemory

    def to_json(self) -> dict[str, Any]:
        """Return the division as JSON data."""
        budget = self.budget
        return {
            "gpu": self.gpu,
            "gpus": self.gpus,
            "rank": self.rank,
            "runtime_bytes": self.runtime_bytes,
            "runtime_basis": self.runtime_basis,
            "reserve_bytes": self.reserve_bytes,
            "total_bytes": budget.total_bytes,
            "share": float(budget.share),
            "rule": budget.rule,
            "weights_bytes": budget.weights_bytes,
            "overhead": [dict(vars(part)) for part in budget.overhead.parts],
            "cache_low_bytes": self.cache.low,
            "cache_typical_bytes": self.cache.typical,
            "cache_high_bytes": self.cache.high,
        }


def memory_report(card: Card, setup: Setup, ranks: Sequence[RankMemory]) -> MemoryReport | None:
    """Return how the memory divides on the rank with the least for its cache; None where no rank is on a GPU."""
    on_gpu = [(each.typical, number, each) for number, each in enumerate(ranks) if each.budget is not None]
    if not on_gpu:
        return None
    _, number, cache = min(on_gpu, key=lambda entry: entry[:2])
    assert cache.budget is not None
    return MemoryReport(
        gpu=card.gpu.name,
        gpus=len(on_gpu) * setup.placement.dp,
        rank=number,
        runtime_bytes=card.gpu.total_bytes,
        runtime_basis=card.gpu.memory_basis,
        reserve_bytes=card.reserve,
        budget=cache.budget,
        cache=cache,
    )
