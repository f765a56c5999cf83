"""vLLM 0.33.0: blocks of a paged cache, as planned at start-up; `_vllm_plan` makes the plan from `_vllm_rules`.

`admitted` is what one request must be able to get before the server accepts it, `held` the blocks that it occupies
now. Both count whole blocks, whose bytes are those of the widest group of layers; what shorter groups leave unused is
labelled `padding`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar

from kvcalc.engines import _vllm_rules as rules
from kvcalc.engines._base import Deployment, EngineProfile, shares_of_stages
from kvcalc.engines._vllm_plan import FP32_STATES, Options, Plan, make_plan
from kvcalc.errors import BadInput
from kvcalc.footprint import BlockGroup, Footprint, Placement, Pool, Rank, Retention, Steps, Term
from kvcalc.hardware.budget import Budget, share_of_total
from kvcalc.hardware.overhead import Overhead
from kvcalc.spec.kinds import Heads, State
from kvcalc.spec.model import ModelSpec

PADDING = "padding"
DEFAULT_UTILIZATION = Fraction("0.92")


class Vllm(EngineProfile[Options]):
    """What vLLM's V1 engine plans at start-up, with its default block layout."""

    name: ClassVar[str] = "vllm"
    version: ClassVar[str] = "0.33.0"
    summary: ClassVar[str] = "vLLM: blocks of the widest layer group, admission, and what the server's log prints"
    options_class = Options

    def place(self, spec: ModelSpec, deployment: Deployment[Options]) -> Placement:
        """Return a rank per pipeline stage and tensor-parallel slice, each with one pool of blocks."""
        plan = make_plan(spec, deployment)
        ranks: list[Rank] = []
        for stage, size in enumerate(plan.bytes_per_block):
            held = _footprint(plan, stage, admitted=False)
            admitted = _footprint(plan, stage, admitted=True)
            pools = (_pool(plan, stage),) if size else ()
            ranks.extend(Rank(stage, slice_, held, admitted, pools) for slice_ in range(deployment.tp))
        return Placement(tuple(ranks), deployment.dp)

    def kv_dtype(self, deployment: Deployment[Options]) -> str:
        """Return the cache's dtype as the user named it."""
        name = deployment.options.kv_cache_dtype
        return super().kv_dtype(deployment) if name in (None, "auto") else str(name)

    def report(
        self, spec: ModelSpec, deployment: Deployment[Options], context: int, batch: int, placement: Placement
    ) -> dict[str, Any]:
        """Return the blocks of one sequence, what a block is, and the sizes that the server derives from it."""
        plan = make_plan(spec, deployment)
        held = {"held_bytes": placement.held_bytes(context, batch)}
        return {**held, **_blocks_report(plan, deployment, context)}

    def cache_budgets(
        self, spec: ModelSpec, deployment: Deployment[Options], kv_bytes_per_rank: Sequence[int]
    ) -> tuple[int, ...]:
        """Return the bytes of every rank's pool: those available, or those of `num_gpu_blocks_override` blocks."""
        override = deployment.options.num_gpu_blocks_override
        if override is None:
            return tuple(kv_bytes_per_rank)
        sizes = [size for size in make_plan(spec, deployment).bytes_per_block for _ in range(deployment.tp)]
        pairs = zip(sizes, kv_bytes_per_rank, strict=True)
        return tuple(override * size if size else available for size, available in pairs)

    def budget_report(
        self, spec: ModelSpec, deployment: Deployment[Options], kv_bytes_per_rank: Sequence[int], context: int
    ) -> dict[str, Any] | None:
        """Return what the server would print, or refuse, with this memory on every rank of a replica."""
        found = capacity_report(spec, deployment, kv_bytes_per_rank, context)
        return {**_blocks_report(make_plan(spec, deployment), deployment, found.max_model_len), **found.to_json()}

    def weight_shares(self, spec: ModelSpec, deployment: Deployment[Options]) -> tuple[Fraction | None, ...]:
        """Return the share of the layers of vLLM's stages, which give the remainder to others than the ideal ones."""
        layers = [len(stage) for stage in rules.layer_split(len(spec.layers), deployment.pp)]
        return shares_of_stages(layers, deployment.tp)

    def budget(self, total: int, weights: int, overhead: Overhead, share: Fraction | None = None) -> Budget:
        """Return gpu_memory_utilization's share of the total (0.92 by default), less weights and overhead inside."""
        return share_of_total(total, share or DEFAULT_UTILIZATION, weights, overhead)

    def assumptions(self, spec: ModelSpec, deployment: Deployment[Options]) -> tuple[str, ...]:
        """Return the defaults that decide the figures, and where vLLM's sizes are not the model's."""
        plan = make_plan(spec, deployment)
        return (
            *_assumed_backend(plan, deployment.options),
            *_assumed_steps(plan, deployment.options),
            *_assumed_manager(plan, deployment.options),
            *_assumed_states(plan, spec, deployment.options),
            *_uneven_heads(spec, deployment),
        )


def _blocks_report(plan: Plan, deployment: Deployment[Options], context: int) -> dict[str, Any]:
    """Return the blocks of one sequence of `context` tokens, and the sizes that the server derives from them.

    Without prefix caching, the block of a recurrent layer is the whole context.
    """
    state_block = plan.block_size if plan.prefix_caching else context
    states = [group.page.kind == "mamba" for group in plan.groups]
    pairs = list(zip(plan.groups, states, strict=True))
    blocks = [state_block if state else group.page.block_size for group, state in pairs]
    covered = [state_block if state else plan.block_tokens(group) for group, state in pairs]
    scheduler = math.lcm(*covered)
    per_rank = [size for size in plan.bytes_per_block for _ in range(deployment.tp)]
    return {
        "block_size": min(blocks),
        "bytes_per_block_per_rank": per_rank * deployment.dp,
        "blocks_per_sequence": plan.blocks(context),
        "groups": [_group_report(plan, group, size, context) for group, size in zip(plan.groups, blocks, strict=True)],
        "resolved_block_size": plan.block_size,
        "mamba_block_size": state_block if any(states) else None,
        "mamba_cache_mode": ("align" if plan.prefix_caching else "none") if any(states) else None,
        "scheduler_block_size": scheduler,
        "hash_block_size": math.gcd(*covered) if plan.prefix_caching else scheduler,
        "max_in_flight_tokens": plan.in_flight,
        "kv_cache_dtype": plan.kv_cache_dtype,
        "attention_backend": plan.backend.name if plan.backend else None,
        "hybrid_kv_cache_manager": plan.hybrid,
    }


def _group_report(plan: Plan, group: rules.Group, block_size: int, context: int) -> dict[str, Any]:
    return {
        "kind": group.page.kind,
        "layers": len(group.layers),
        "block_size": block_size,
        "blocks_per_sequence": int(plan.admitted(group).count(context, 1)),
        "page_bytes": sorted({layer.page.bytes for layer in group.layers}),
        "used_page_bytes": sorted({layer.page.used_bytes for layer in group.layers}),
    }


@dataclass(frozen=True)
class CapacityReport:
    """What the server prints and allocates for a budget. Per-rank lists are those of one replica: pp, then tp."""

    max_model_len: int
    num_blocks: int
    usable_blocks: int
    blocks_per_sequence: int
    bytes_per_block_per_rank: tuple[int, ...]
    request_bytes_per_rank: tuple[int, ...]
    allocated_bytes_per_rank: tuple[int, ...]
    max_concurrency: Fraction
    kv_cache_size_tokens: int
    admitted: bool
    max_context_that_fits: int
    admission_error: str | None

    @property
    def max_concurrency_printed(self) -> str:
        """The concurrency with the digits that the log has."""
        return rules.printed_concurrency(self.max_concurrency)

    @property
    def log_lines(self) -> tuple[str, ...]:
        """The lines that the server prints, character by character; none if it refuses to start."""
        if not self.admitted:
            return ()
        concurrency = self.max_concurrency_printed
        return (
            f"GPU KV cache size: {self.kv_cache_size_tokens:,} tokens",
            f"Maximum concurrency for {self.max_model_len:,} tokens per request: {concurrency}",
        )

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON data."""
        plain = {item.name: getattr(self, item.name) for item in fields(self)}
        lists = {name: list(value) for name, value in plain.items() if isinstance(value, tuple)}
        concurrency = {
            "max_concurrency": self.max_concurrency.numerator / self.max_concurrency.denominator,
            "max_concurrency_exact": str(self.max_concurrency),
            "max_concurrency_printed": self.max_concurrency_printed,
        }
        return {**plain, **lists, **concurrency, "log_lines": list(self.log_lines)}


def capacity_report(
    spec: ModelSpec, deployment: Deployment[Options], available_bytes_per_rank: Sequence[int], max_model_len: int
) -> CapacityReport:
    """Return what the server would report for the memory left for the cache on every rank of a replica (pp, then tp).

    With `auto_fit`, `max_model_len` is lowered to the largest that fits. BadInput if the number of ranks is wrong.
    """
    plan = make_plan(spec, deployment)
    per_rank = [(stage, size) for stage, size in enumerate(plan.bytes_per_block) for _ in range(deployment.tp)]
    if len(available_bytes_per_rank) != len(per_rank):
        raise BadInput(f"{len(available_bytes_per_rank)} budgets for {len(per_rank)} ranks")
    budgets = list(zip(available_bytes_per_rank, per_rank, strict=True))
    # Slices of a stage with the same memory hold the same.
    keys = {(stage, available) for available, (stage, _) in budgets}
    found = {key: _longest(plan, *key, max_model_len) for key in keys}
    longest = [found[stage, available] for available, (stage, _) in budgets]
    fits = min(longest)
    length = fits if deployment.options.auto_fit and fits else max_model_len
    refused = [index for index, each in enumerate(longest) if each < length]
    needed = plan.blocks(length)
    blocks = min(available // size for available, (_, size) in budgets if size)
    if deployment.options.num_gpu_blocks_override is not None:
        blocks = deployment.options.num_gpu_blocks_override
    sizes = tuple(size for _, size in per_rank)
    return CapacityReport(
        max_model_len=length,
        num_blocks=blocks,
        usable_blocks=max(blocks - 1, 0),
        blocks_per_sequence=needed,
        bytes_per_block_per_rank=sizes,
        request_bytes_per_rank=tuple(needed * size for size in sizes),
        allocated_bytes_per_rank=tuple(blocks * size for size in sizes),
        max_concurrency=Fraction(blocks, needed),
        kv_cache_size_tokens=rules.reported_tokens(blocks, needed, length),
        admitted=not refused,
        max_context_that_fits=fits,
        admission_error=_refusal(length, needed, *budgets[refused[0]], longest[refused[0]]) if refused else None,
    )


def _longest(plan: Plan, stage: int, available: int, limit: int) -> int:
    """Return the largest context up to `limit` that a stage admits beside the null block; 0 if none."""
    size = plan.bytes_per_block[stage]
    if size == 0:
        return limit
    room = available - size
    found = _footprint(plan, stage, admitted=True).max_tokens(room) if room > 0 else 0
    return limit if found is None else min(found, limit)


def _refusal(length: int, needed: int, available: int, rank: tuple[int, int], longest: int) -> str:
    """Return the text of the error with which the server refuses to start, as vLLM words it."""
    size = rank[1]
    estimate = f" Based on the available memory, the estimated maximum model length is {longest}." if longest else ""
    return (
        f"To serve at least one request with the model's max seq len ({length}), "
        f"({rules.gibibytes(needed * size)} GiB KV cache is needed, which is larger than the available KV cache memory "
        f"({rules.gibibytes(available - size)} GiB).{estimate} Try increasing `gpu_memory_utilization` (which also "
        "controls CPU memory on the CPU backend) or decreasing `max_model_len` when initializing the engine."
    )


# From a plan to footprints and pools ----------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _footprint(plan: Plan, stage: int, admitted: bool) -> Footprint:
    """Return the bytes of one rank of a stage: blocks times the bytes of a block, told apart by kind of layer.

    Groups whose blocks are counted alike are added, so that a kind of layer is one term for each of its tensors.
    """
    layers: dict[tuple[rules.CacheLayer, rules.Part, Steps, int], int] = {}
    unused: dict[tuple[Steps, int], int] = {}
    for group in plan.groups:
        alike = _alike(group.on(plan.stages[stage]))
        idle = plan.bytes_per_block[stage] - sum(count * layer.page.used_bytes for layer, count in alike)
        counts = ((plan.admitted(group), 1),) if admitted else rules.held_blocks(group.page, plan.dcp)
        for steps, sign in counts:
            unused[steps, sign] = unused.get((steps, sign), 0) + idle
            for layer, count in alike:
                for part in layer.page.parts:
                    key = (replace(layer, index=0), part, steps, sign)
                    layers[key] = layers.get(key, 0) + count
    return Footprint((*_layer_terms(layers), *_padding_terms(unused)))


def _alike(layers: Sequence[rules.CacheLayer]) -> list[tuple[rules.CacheLayer, int]]:
    """Return one layer of each label in a group, with how many there are: their pages are equal."""
    first = {layer.label: layer for layer in reversed(layers)}
    counts = Counter(layer.label for layer in layers)
    return [(first[label], count) for label, count in counts.items()]


def _layer_terms(layers: Mapping[tuple[rules.CacheLayer, rules.Part, Steps, int], int]) -> Iterator[Term]:
    for (layer, part, steps, sign), count in layers.items():
        mamba = layer.page.kind == "mamba"
        block = () if mamba else (("block_tokens", layer.page.block_size),)
        factors = (("layers", count), *block, *part.factors, *_taken_back(sign))
        reason = rules.STATE_SOURCE if mamba else rules.PAGE_SOURCE
        yield Term(layer.label, layer.kind, part.role, factors, steps, reason)


def _padding_terms(unused: Mapping[tuple[Steps, int], int]) -> Iterator[Term]:
    for (steps, sign), size in unused.items():
        if size:
            factors = (("unused_bytes", size), *_taken_back(sign))
            yield Term(PADDING, PADDING, "k", factors, steps, rules.PADDING_SOURCE)


def _taken_back(sign: int) -> tuple[tuple[str, int], ...]:
    return () if sign > 0 else (("released", -1),)


def _pool(plan: Plan, stage: int) -> Pool:
    """Return the blocks of one rank; the first block is the null block, which no request gets."""
    groups = tuple(
        BlockGroup(len(group.on(plan.stages[stage])), plan.block_tokens(group), _retention(group.page))
        for group in plan.groups
    )
    return Pool("blocks", plan.bytes_per_block[stage], 1, Fraction(1), groups)


def _retention(page: rules.Page) -> Retention:
    match page.kind:
        case "sliding_window":
            return Retention.window(page.size)
        case "chunked_local_attention":
            return Retention.chunk(page.size)
        case "cross_attention":
            return Retention.encoder(page.size)
        case "mamba":
            return Retention.state()
    return Retention.all()


# What is taken for granted --------------------------------------------------------------------------------------------


def _assumed_backend(plan: Plan, options: Options) -> Iterator[str]:
    if plan.backend is None or options.attention_backend is not None:
        return
    size = "" if options.block_size else f" with blocks of {plan.backend.resolve(None)} tokens"
    yield (
        f"attention_backend {plan.backend.name}{size}: the server's choice depends on the GPU "
        "(-o attention_backend changes it)"
    )


def _assumed_steps(plan: Plan, options: Options) -> Iterator[str]:
    """The tokens of a step, where layers provide for the tokens of the steps under way."""
    kinds = {group.page.kind for group in plan.groups}
    in_flight = kinds & {"sliding_window", "chunked_local_attention"}
    given = options.model_fields_set
    if "max_num_batched_tokens" not in given and (in_flight or "cross_attention" in kinds):
        yield (
            f"max_num_batched_tokens {options.max_num_batched_tokens:,}: the server's default depends on the GPU "
            "(-o max_num_batched_tokens changes it)"
        )
    if in_flight and not {"async_scheduling", "use_v2_model_runner"} & given:
        batches = plan.in_flight // options.max_num_batched_tokens
        yield f"async_scheduling and model runner V2: {batches} steps in flight (-o async_scheduling changes it)"


def _assumed_manager(plan: Plan, options: Options) -> Iterator[str]:
    if options.disable_hybrid_kv_cache_manager is None and not plan.hybrid:
        yield (
            "no hybrid KV cache manager, vLLM's default for chunked layers: they keep every token "
            "(-o disable_hybrid_kv_cache_manager=false changes it)"
        )


def _assumed_states(plan: Plan, spec: ModelSpec, options: Options) -> Iterator[str]:
    states = [group for group in plan.groups if group.page.kind == "mamba"]
    if not states:
        return
    if "enable_prefix_caching" not in options.model_fields_set:
        count = states[0].page.size
        yield f"enable_prefix_caching: {count} states per sequence (-o enable_prefix_caching=false changes it to 1)"
    if options.mamba_ssm_cache_dtype == "auto":
        kda = any(
            isinstance(group.kind, State) and getattr(group.kind, "variant", "") == "kda" for group in spec.groups()
        )
        dtype = "float32" if kda or spec.architecture in FP32_STATES else "the convolution's dtype"
        yield f"mamba_ssm_cache_dtype {dtype} (-o mamba_ssm_cache_dtype changes it)"


def _uneven_heads(spec: ModelSpec, deployment: Deployment[Options]) -> Iterator[str]:
    """Where vLLM's sizes are fewer heads or tokens than the model has: it sizes such caches, and may not run them."""
    heads = {group.kind.kv_heads for group in spec.groups() if isinstance(group.kind, Heads)}
    for kv_heads in sorted(heads):
        each = rules.kv_heads_on_rank(kv_heads, deployment.tp)
        if each * deployment.tp < kv_heads:
            yield f"{kv_heads} kv_heads on tp {deployment.tp}: sized as {each} on each rank, which are not all of them"
        elif 1 < deployment.dcp > deployment.tp // kv_heads:
            yield (
                f"dcp {deployment.dcp} with {kv_heads} kv_heads on tp {deployment.tp}: heads have fewer copies "
                "than their tokens have parts, so that some are on no rank: a size, not a sound deployment"
            )


ENGINE = Vllm()
