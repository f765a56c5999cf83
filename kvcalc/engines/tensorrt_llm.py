"""TensorRT-LLM, main branch, PyTorch backend: blocks of its first KV cache manager (V1).

Every layer of a rank has the same blocks; with windows of several sizes the memory is cut into equal parts, one for
each size, whatever the layers. No block is kept back. Which models the second manager (V2) takes is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from kvcalc.engines._base import (
    Deployment,
    EngineOptions,
    EngineProfile,
    require_tp_divides_heads,
    row_factors,
    stages,
)
from kvcalc.errors import BadInput, UnsupportedByEngine
from kvcalc.footprint import BlockGroup, Footprint, Placement, Pool, Rank, Retention, Role, Steps, Term
from kvcalc.formats import Format, find_format
from kvcalc.hardware.budget import Budget, share_of_free
from kvcalc.hardware.overhead import Overhead
from kvcalc.spec.kinds import Heads, Kind, Mla, Sliding
from kvcalc.spec.model import Layer, ModelSpec

SOURCE = "TensorRT-LLM (main, PyTorch backend)"
BLOCK_SOURCE = f"{SOURCE}, pyexecutor/resource_manager.py: a block holds whole tokens of every layer of its window"

GIB = 2**30
DEFAULT_FREE_FRACTION = Fraction("0.9")
_COVERED = frozenset({"full", "sliding", "mla"})
_FORMATS = ("fp16", "bf16", "fp8", "nvfp4")
_ESTIMATED = ("bf16", "fp8")


class Options(EngineOptions):
    """Options of the server that the cache depends on, by TensorRT-LLM's own names (KvCacheConfig, LlmArgs)."""

    tokens_per_block: Annotated[int, Field(ge=1, le=2**16)] = 32
    """Tokens of a block."""
    dtype: Literal["auto", "fp8", "nvfp4"] = "auto"
    """The cache's dtype; auto: the model's. Or use --kv-dtype."""
    max_tokens: Annotated[int, Field(ge=1, le=2**40)] | None = None
    """Tokens of the cache at most; ignored where windows have several sizes."""
    max_attention_window: str | None = None
    """Windows of the layers in order, repeated: `1024,1024,131072`; omitted: the model's own."""
    max_seq_len: Annotated[int, Field(ge=1, le=2**40)] | None = None
    """Tokens of a sequence at most, the window of layers that have none; omitted: the trained context."""
    enable_attention_dp: bool = False
    """Whether every rank of --tp keeps whole heads for requests of its own."""

    @field_validator("max_attention_window")
    @classmethod
    def _check_windows(cls, text: str | None) -> str | None:
        if text is not None and not all(part.strip().isdecimal() and int(part) for part in text.split(",")):
            raise ValueError("must be whole numbers of tokens, for example 1024,1024,131072")
        return text

    @property
    def windows(self) -> tuple[int, ...]:
        """The windows of `max_attention_window`; empty where the model's own are meant."""
        return tuple(int(part) for part in (self.max_attention_window or "").split(",") if part)


@dataclass(frozen=True)
class Part:
    """One tensor of a layer: the named integers whose product is its bytes for one token."""

    role: Role
    factors: tuple[tuple[str, int], ...]

    @property
    def bytes(self) -> int:
        """Bytes of one token."""
        return math.prod(value for _, value in self.factors)


@dataclass(frozen=True)
class CachedKind:
    """The layers of one named kind on a rank, and what a token takes in one; `window` None: every token is kept.

    `data_bytes` are those of a token in one layer without scales.
    """

    label: str
    kind: Kind
    window: int | None
    layers: int
    parts: tuple[Part, ...]
    data_bytes: int

    @property
    def bytes(self) -> int:
        """Bytes of a token in all layers of the kind."""
        return self.layers * sum(part.bytes for part in self.parts)


@dataclass(frozen=True)
class Plan:
    """A model's blocks on a deployment: the kinds of layer of every pipeline stage."""

    stages: tuple[tuple[CachedKind, ...], ...]
    stored: Format
    tokens_per_block: int
    attention_tp: int
    replicas: int
    max_seq_len: int | None

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The distinct windows, the smallest first; None: every token."""
        found = {kind.window for stage in self.stages for kind in stage}
        return tuple(sorted(found, key=lambda window: (window is None, window or 0)))

    @property
    def per_rank(self) -> tuple[tuple[CachedKind, ...], ...]:
        """The kinds of layer of every rank of a replica (pp, then tp)."""
        return tuple(kinds for kinds in self.stages for _ in range(self.attention_tp))

    def block_bytes(self, kinds: Sequence[CachedKind], window: int | None) -> int:
        """Return the bytes of one block in the layers of a window."""
        return self.tokens_per_block * sum(kind.bytes for kind in kinds if kind.window == window)

    def blocks(self, kinds: Sequence[CachedKind], memory: int, window: int | None) -> int:
        """Return the blocks that the layers of a window have in a rank of `memory` bytes.

        Where there are several windows, the scales of packed formats are left out of the division.
        """
        several = len(self.windows) > 1
        here = [kind for kind in kinds if kind.window == window]
        size = sum(kind.layers * kind.data_bytes if several else kind.bytes for kind in here)
        return memory // (len(self.windows) * self.tokens_per_block * size)


class TensorrtLlm(EngineProfile[Options]):
    """What the PyTorch backend's V1 manager allocates."""

    name: ClassVar[str] = "tensorrt-llm"
    version: ClassVar[str] = "main, PyTorch backend"
    summary: ClassVar[str] = "TensorRT-LLM: blocks of the V1 cache manager, memory shared equally between windows"
    options_class = Options

    def weight_shares(self, spec: ModelSpec, deployment: Deployment[Options]) -> tuple[Fraction | None, ...]:
        """Return the share of the weights on every rank of a replica: all `tp` ranks split them, whoever attends."""
        shares = super().weight_shares(spec, deployment)
        return shares[:: deployment.tp] if deployment.options.enable_attention_dp else shares

    def budget(self, total: int, weights: int, overhead: Overhead, share: Fraction | None = None) -> Budget:
        """Return free_gpu_memory_fraction's share (0.9 by default) of what weights and overhead leave free."""
        return share_of_free(total, share or DEFAULT_FREE_FRACTION, weights, overhead)

    def place(self, spec: ModelSpec, deployment: Deployment[Options]) -> Placement:
        """Return a rank per pipeline stage and tensor-parallel slice, with a pool for each window."""
        plan = make_plan(spec, deployment)
        ranks: list[Rank] = []
        for stage, kinds in enumerate(plan.stages):
            footprint, pools = _footprint(plan, kinds), _pools(plan, kinds)
            ranks.extend(Rank(stage, slice_, footprint, footprint, pools) for slice_ in range(plan.attention_tp))
        return Placement(tuple(ranks), plan.replicas)

    def check(self, spec: ModelSpec, deployment: Deployment[Options], context: int, batch: int) -> None:
        """Raise BadInput for a context beyond `max_seq_len`."""
        longest = deployment.options.max_seq_len
        if longest is not None and context > longest:
            raise BadInput(f"context {context:,} exceeds max_seq_len={longest:,}; raise max_seq_len or drop it")

    def kv_dtype(self, deployment: Deployment[Options]) -> str:
        """Return the cache's format in kvcalc's names."""
        return _stored(deployment).name

    def report(
        self, spec: ModelSpec, deployment: Deployment[Options], context: int, batch: int, placement: Placement
    ) -> dict[str, Any]:
        """Return the bytes of a token on every rank, the estimator's too, and the blocks of a sequence."""
        plan = make_plan(spec, deployment)
        return {"held_bytes": placement.held_bytes(context, batch), **_block_report(plan, context)}

    def cache_budgets(
        self, spec: ModelSpec, deployment: Deployment[Options], kv_bytes_per_rank: Sequence[int]
    ) -> tuple[int, ...]:
        """Return the bytes of every rank's blocks: those available, those of `max_tokens` at most."""
        plan, options = make_plan(spec, deployment), deployment.options
        if options.max_tokens is None or len(plan.windows) > 1:
            return tuple(kv_bytes_per_rank)
        blocks = options.max_tokens // options.tokens_per_block
        most = [max(blocks * plan.block_bytes(kinds, plan.windows[0]), 1) for kinds in plan.per_rank]
        return tuple(min(available, limit) for available, limit in zip(kv_bytes_per_rank, most, strict=True))

    def budget_report(
        self, spec: ModelSpec, deployment: Deployment[Options], kv_bytes_per_rank: Sequence[int], context: int
    ) -> dict[str, Any]:
        """Return the blocks that the server would have with this memory on every rank of a replica."""
        plan = make_plan(spec, deployment)
        budgets = self.cache_budgets(spec, deployment, kv_bytes_per_rank)
        blocks = {
            window: min(
                plan.blocks(kinds, memory, window) for kinds, memory in zip(plan.per_rank, budgets, strict=True)
            )
            for window in plan.windows
        }
        found = BlockCounts(plan, blocks, context)
        return {**_block_report(plan, context), **found.to_json()}

    def assumptions(self, spec: ModelSpec, deployment: Deployment[Options]) -> tuple[str, ...]:
        """Return the defaults that decide the figures."""
        return tuple(_assumptions(make_plan(spec, deployment), deployment.options))


@dataclass(frozen=True)
class BlockCounts:
    """The blocks of every window, the least of all ranks, for sequences of `context` tokens."""

    plan: Plan
    blocks: dict[int | None, int]
    context: int

    @property
    def tokens(self) -> dict[int | None, int]:
        """The tokens that the layers of every window have room for."""
        return {window: count * self.plan.tokens_per_block for window, count in self.blocks.items()}

    @property
    def max_seq_len(self) -> int:
        """The tokens of a sequence that the server settles on: no more than the layers without a window hold."""
        return min(self.context, self.tokens.get(None, self.context))

    @property
    def refusal(self) -> str | None:
        """Why the server's blocks are not known, in our words; None if they are."""
        if not all(self.blocks.values()):
            return "not enough memory for a block"
        short = [w for w, tokens in self.tokens.items() if tokens < min(self.context, w or self.context)]
        if short and len(self.blocks) > 1:
            return (
                f"one sequence of {self.context:,} tokens does not fit; TensorRT-LLM then shrinks the largest windows, "
                "by a rule that is not covered"
            )
        return None

    @property
    def log_lines(self) -> tuple[str, ...]:
        """The lines of the first rank's blocks whose form is known: of a single window."""
        if len(self.blocks) > 1 or self.refusal is not None:
            return ()
        ((window, count),) = self.blocks.items()
        per_block = self.plan.tokens_per_block
        length = min(self.max_seq_len, window or self.max_seq_len)
        size = count * self.plan.block_bytes(self.plan.stages[0], window)
        return (
            f"Max KV cache blocks per sequence: {-(-length // per_block)} [window size={length}], "
            f"tokens per block={per_block}, primary blocks={count}",
            f"Allocated {size / GIB:.2f} GiB for max tokens in paged KV cache ({count * per_block})",
        )

    def to_json(self) -> dict[str, Any]:
        """Return the blocks as JSON data; per-rank lists are those of one replica."""
        plan, refusal = self.plan, self.refusal
        single = len(self.blocks) == 1
        allocated = [
            sum(count * plan.block_bytes(kinds, window) for window, count in self.blocks.items())
            for kinds in plan.per_rank
        ]
        return {
            "num_blocks": sum(self.blocks.values()) if single else None,
            "max_tokens": sum(self.tokens.values()) if single else None,
            "windows": [
                {"window": window, "num_blocks": count, "tokens": self.tokens[window]}
                for window, count in self.blocks.items()
            ],
            "max_seq_len": self.max_seq_len,
            "allocated_bytes_per_rank": allocated,
            "admitted": refusal is None,
            "admission_error": refusal,
            **({"max_context_that_fits": 0} if not all(self.blocks.values()) else {}),
            "log_lines": list(self.log_lines),
        }


# Rules ----------------------------------------------------------------------------------------------------------------


def kv_heads_on_rank(kv_heads: int, tp: int) -> int:
    """Return the KV heads of one rank: the share rounded up, so that ranks beyond the heads have copies."""
    return -(-kv_heads // tp)


def estimated_bytes_per_token(kinds: Sequence[CachedKind], tp: int, stored: Format) -> int | None:
    """Return what the estimator (`get_cache_size_per_token`) takes a token for: heads x head_dim floored over ranks.

    None where its figure is not covered: MLA, and formats other than bf16 and fp8.
    """
    if stored.name not in _ESTIMATED:
        return None
    elements = 0
    for kind in kinds:
        if not isinstance(kind.kind, Heads):
            return None
        elements += kind.layers * 2 * (kind.kind.head_dim * kind.kind.kv_heads // tp)
    return elements * stored.block_bytes


def token_parts(kind: Kind, stored: Format, tp: int) -> tuple[Part, ...]:
    """Return the tensors of one token in a layer on one rank; MLA keeps one row for all heads and no values."""
    if isinstance(kind, Mla):
        return (Part("latent", row_factors((("latent_and_rope", _latent(kind)),), 1, stored)),)
    assert isinstance(kind, Heads)
    if kind.value_dim != kind.head_dim:
        raise UnsupportedByEngine(f"{SOURCE} has one head size for keys and values; this is {kind.describe}")
    factors = row_factors((("kv_heads", kv_heads_on_rank(kind.kv_heads, tp)), ("head_dim", kind.head_dim)), 1, stored)
    return Part("k", factors), Part("v", factors)


def data_bytes(kind: Kind, stored: Format, tp: int) -> int:
    """Return the bytes of one token in a layer without the scales of nvfp4, which leave half a byte for an element."""
    elements = _latent(kind) if isinstance(kind, Mla) else 0
    if isinstance(kind, Heads):
        elements = 2 * kv_heads_on_rank(kind.kv_heads, tp) * kind.head_dim
    return elements // 2 if stored.name == "nvfp4" else elements * stored.block_bytes


def _latent(kind: Mla) -> int:
    return kind.kv_lora_rank + kind.qk_rope_head_dim


# From a model to a plan -----------------------------------------------------------------------------------------------


def make_plan(spec: ModelSpec, deployment: Deployment[Options]) -> Plan:
    """Return the blocks of a model; UnsupportedByEngine for what the V1 manager or this profile does not do."""
    options = deployment.options
    attention_dp = options.enable_attention_dp
    _require_covered(spec)
    _require_deployment(spec, deployment)
    longest = options.max_seq_len or spec.max_context
    made = tuple(_cached(spec, layers, deployment, longest) for layers in _numbered_stages(spec, deployment.pp))
    if len({frozenset(kind.window for kind in kinds) for kinds in made}) > 1:
        raise UnsupportedByEngine(f"{spec.name} on pp {len(made)} is not covered: some stages lack a sort of window")
    return Plan(
        stages=made,
        stored=_stored(deployment),
        tokens_per_block=options.tokens_per_block,
        attention_tp=1 if attention_dp else deployment.tp,
        replicas=deployment.dp * (deployment.tp if attention_dp else 1),
        max_seq_len=longest,
    )


def _numbered_stages(spec: ModelSpec, pp: int) -> Iterator[tuple[tuple[int, Layer], ...]]:
    """Yield the layers of every stage with their place in the model."""
    first = 0
    for layers in stages(spec, pp):
        yield tuple(enumerate(layers, first))
        first += len(layers)


def _cached(
    spec: ModelSpec, layers: Sequence[tuple[int, Layer]], deployment: Deployment[Options], longest: int | None
) -> tuple[CachedKind, ...]:
    """Return the kinds of layer of one stage, with their windows and what they take on one rank."""
    tp, stored = 1 if deployment.options.enable_attention_dp else deployment.tp, _stored(deployment)
    found: dict[str, CachedKind] = {}
    for index, layer in layers:
        for name, kind in zip(layer.names, layer.kinds, strict=True):
            window = _window(kind, index, deployment.options, longest)
            before = found.get(name)
            if before is not None and before.window != window:
                raise UnsupportedByEngine(
                    f"max_attention_window gives the '{name}' layers of {spec.name} several windows"
                )
            count = 1 if before is None else before.layers + 1
            parts, plain = token_parts(kind, stored, tp), data_bytes(kind, stored, tp)
            found[name] = CachedKind(name, kind, window, count, parts, plain)
    return tuple(found.values())


def _window(kind: Kind, layer: int, options: Options, longest: int | None) -> int | None:
    """Return the window of a layer, None where it is not shorter than the longest sequence."""
    given = options.windows
    window = given[layer % len(given)] if given else kind.window if isinstance(kind, Sliding) else None
    return None if window is None or (longest is not None and window >= longest) else window


def _require_covered(spec: ModelSpec) -> None:
    """Raise UnsupportedByEngine for models whose layers the rules do not cover."""
    names = {group.kind.name for group in spec.groups()}
    if spec.architecture.startswith("gemma4") or ("state" in names and names & _COVERED):
        raise UnsupportedByEngine(
            f"{spec.name} ({spec.architecture}) is not covered: TensorRT-LLM chooses its V2 cache manager for it"
        )
    strange = " and ".join(sorted(names - _COVERED))
    if strange:
        raise UnsupportedByEngine(f"{spec.name} is not covered for {SOURCE}: it has {strange} layers")
    if not names:
        raise UnsupportedByEngine(f"{spec.name} has no layer that keeps anything")
    if {"sliding", "mla"} <= names:
        raise UnsupportedByEngine(f"{spec.name} is not covered for {SOURCE}: windowed beside MLA layers")


def _require_deployment(spec: ModelSpec, deployment: Deployment[Options]) -> None:
    """Raise UnsupportedByEngine for deployments that the rules do not cover."""
    if deployment.dtype.name not in ("fp16", "bf16"):
        raise UnsupportedByEngine(f"TensorRT-LLM runs models in fp16 or bf16, not {deployment.dtype.name}")
    if deployment.dcp > 1:
        raise UnsupportedByEngine(f"dcp {deployment.dcp} is not covered for {SOURCE}")
    if not deployment.options.enable_attention_dp:
        require_tp_divides_heads(spec.groups(), deployment.tp)
    if len(spec.layers) % deployment.pp:
        raise UnsupportedByEngine(
            f"pp {deployment.pp} does not divide the {len(spec.layers)} layers: where {SOURCE} puts the rest is not "
            "covered"
        )


def _stored(deployment: Deployment[Options]) -> Format:
    """Return the format of the cache from `--kv-dtype` and `-o dtype`; BadInput if they contradict."""
    key, value = deployment.kv
    named = deployment.options.dtype
    if key != value:
        raise UnsupportedByEngine(
            f"TensorRT-LLM stores K and V alike, not {key.name}/{value.name}; give one --kv-dtype"
        )
    stored = key if named == "auto" else find_format(named)
    if deployment.kv_given and stored != key:
        raise BadInput(f"--kv-dtype {key.name} and -o dtype={named} contradict each other; give one of them")
    if stored.name not in _FORMATS:
        raise UnsupportedByEngine(f"TensorRT-LLM does not store the cache as {stored.name}; use bf16, fp8 or nvfp4")
    return stored


# From a plan to footprints and pools ----------------------------------------------------------------------------------


def _footprint(plan: Plan, kinds: Sequence[CachedKind]) -> Footprint:
    """Return the bytes of one rank: blocks times their bytes, a term for each tensor of a kind."""
    terms = [
        Term(
            kind.label,
            kind.kind.name,
            part.role,
            (("layers", kind.layers), ("block_tokens", plan.tokens_per_block), *part.factors),
            _steps(plan, kind.window),
            BLOCK_SOURCE,
        )
        for kind in kinds
        for part in kind.parts
    ]
    return Footprint(tuple(terms))


def _steps(plan: Plan, window: int | None) -> Steps:
    """Return the blocks of one sequence: those of its last tokens where there is a window."""
    block = plan.tokens_per_block
    return Steps.per_token(block) if window is None else Steps.window(window, block)


def _pools(plan: Plan, kinds: Sequence[CachedKind]) -> tuple[Pool, ...]:
    """Return the pools of one rank: one for all layers, or one for each kind of layer where windows differ.

    Kinds of one window have equally many blocks. Shares add up to more than 1 where scales are left out of them.
    """
    block = plan.tokens_per_block
    groups = tuple(BlockGroup(kind.layers, block, _retention(kind.window)) for kind in kinds)
    if len(plan.windows) == 1:
        return (Pool("blocks", plan.block_bytes(kinds, plan.windows[0]), 0, Fraction(1), groups),)
    pools = []
    for kind, group in zip(kinds, groups, strict=True):
        plain = sum(each.layers * each.data_bytes for each in kinds if each.window == kind.window)
        share = Fraction(kind.bytes, len(plan.windows) * plain)
        pools.append(Pool(kind.label, block * kind.bytes, 0, share, (group,)))
    return tuple(pools)


def _retention(window: int | None) -> Retention:
    return Retention.all() if window is None else Retention.window(window)


# Reports --------------------------------------------------------------------------------------------------------------


def _block_report(plan: Plan, context: int) -> dict[str, Any]:
    """Return the bytes of a token on every rank of a replica, allocated and estimated, and a sequence's blocks."""
    estimates = [estimated_bytes_per_token(kinds, plan.attention_tp, plan.stored) for kinds in plan.per_rank]
    return {
        "tokens_per_block": plan.tokens_per_block,
        "attention_tp": plan.attention_tp,
        "dtype": plan.stored.name,
        "bytes_per_token_per_rank": [sum(kind.bytes for kind in kinds) for kinds in plan.per_rank],
        "estimated_bytes_per_token_per_rank": estimates,
        "blocks_per_sequence": {
            "all" if window is None else str(window): int(_steps(plan, window).count(context, 1))
            for window in plan.windows
        },
    }


def _assumptions(plan: Plan, options: Options) -> Iterator[str]:
    if options.enable_attention_dp:
        yield "weights are split over all tp ranks; copies of the attention's on every rank are not counted"
    if any(window is not None for window in plan.windows):
        if options.max_attention_window is None:
            yield "max_attention_window as in the model (-o max_attention_window changes it)"
        yield "a windowed layer keeps the blocks of its last tokens, without a spare one"
    if len(plan.windows) > 1:
        shares = f"1/{len(plan.windows)} of the memory for each size of window"
        yield f"{shares}, as without TRTLLM_WINDOW_SIZE_SHARES"
        if options.max_tokens is not None:
            yield f"max_tokens {options.max_tokens:,} has no effect: windows have several sizes"


ENGINE = TensorrtLlm()
