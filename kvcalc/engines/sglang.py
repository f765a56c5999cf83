"""SGLang 0.5.23: token pools cut out of the memory that is left, in pages; `_sglang_rules` has the rules.

`admitted` is what a sequence takes of each pool, in whole pages or slots, `held` the pages of the tokens that are
still needed and one state. Which memory is left for the pools is the caller's to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from kvcalc.engines import _sglang_rules as rules
from kvcalc.engines._base import (
    Deployment,
    EngineOptions,
    EngineProfile,
    group_layers,
    require_tp_divides_heads,
    stages,
)
from kvcalc.errors import BadInput, UnsupportedByEngine
from kvcalc.footprint import BlockGroup, Footprint, Placement, Pool, Rank, Retention, Steps, Term
from kvcalc.formats import Format, find_format
from kvcalc.hardware.budget import Budget, share_of_total
from kvcalc.hardware.overhead import Overhead
from kvcalc.spec.kinds import Heads, Kind, Sliding, State
from kvcalc.spec.model import Layer, ModelSpec

_COVERED = frozenset({"full", "sliding", "mla", "indexer", "state"})
# torch's names of the cache's dtypes, as the log has them; other dtypes were never seen in one.
_TORCH_NAMES: Mapping[str, str] = {
    "fp32": "torch.float32",
    "fp16": "torch.float16",
    "bf16": "torch.bfloat16",
    "fp8": "torch.float8_e4m3fn",
    "fp8/nvfp4": "torch.float4_e2m1fn_x2",
}


class Options(EngineOptions):
    """Options of the server that the cache depends on, by SGLang's own names."""

    page_size: Annotated[int, Field(ge=1, le=2**16)] = 1
    """Tokens of a page; some attention backends force 16, 32, 64 or 128."""
    kv_cache_dtype: str | None = None
    """The cache's dtype by SGLang's name: auto, bf16, fp8_e4m3, fp8_e5m2, mxfp8, fp4_e2m1; or use --kv-dtype."""
    max_total_tokens: Annotated[int, Field(ge=1, le=2**40)] | None = None
    """Tokens of the pool at most, however much memory there is."""
    swa_full_tokens_ratio: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 0.8
    """Tokens of the windowed layers' pool for each token of the others'; some models have their own."""
    mamba_full_memory_ratio: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)] = 0.9
    """Memory of the recurrent states' pool for each byte of the tokens' pool."""
    max_mamba_cache_size: Annotated[int, Field(ge=1, le=2**31)] | None = None
    """Slots of the recurrent states' pool, instead of by mamba_full_memory_ratio."""
    mamba_ssm_dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    """Dtype of the recurrent state; auto: the model's own, fp32 in most."""
    disable_radix_cache: bool = False
    """Whether prefixes are not kept for later requests; a request then takes one state slot instead of three."""
    enable_dp_attention: bool = False
    """Whether the --dp replicas share the --tp ranks; each replica's attention is then split over tp / dp of them."""
    dsa_prefill_backend: str | None = None
    """Kernel of sparse attention for prompts; with trtllm or tilelang for both, fp8 rows are stored without scales."""
    dsa_decode_backend: str | None = None
    """The same for decoding."""

    @field_validator("kv_cache_dtype")
    @classmethod
    def _known_dtype(cls, name: str | None) -> str | None:
        if name not in (None, "auto", *rules.CACHE_DTYPES):
            raise ValueError(f"the profile knows no such dtype; known: auto, {', '.join(rules.CACHE_DTYPES)}")
        return name


@dataclass(frozen=True)
class PooledKind:
    """All layers of one named kind on a rank, and what a token (or a state) takes in one of them."""

    label: str
    kind: Kind
    layers: int
    parts: tuple[rules.Part, ...]

    @property
    def pool(self) -> rules.PoolName:
        """The pool that the kind's layers belong to."""
        if isinstance(self.kind, State):
            return "state"
        return "swa" if isinstance(self.kind, Sliding) else "full"

    @property
    def bytes(self) -> int:
        """Bytes of a token (or a state) in all layers of the kind."""
        return self.layers * sum(part.bytes for part in self.parts)

    def role_bytes(self, role: str) -> int:
        """Bytes of a token (or a state) in the tensors of one role, all layers together."""
        return self.layers * sum(part.bytes for part in self.parts if part.role == role)


@dataclass(frozen=True)
class Plan:
    """A model's pools on a deployment: for every pipeline stage the kinds of layer, and how its memory is cut."""

    stages: tuple[tuple[PooledKind, ...], ...]
    splits: tuple[rules.Split, ...]
    kv: tuple[Format, Format]
    page_size: int
    attention_tp: int
    dcp: int
    slots_per_request: int
    packed: bool

    def has(self, pool: rules.PoolName) -> bool:
        """Return whether the model has layers of a pool."""
        return any(kind.pool == pool for stage in self.stages for kind in stage)

    @property
    def per_rank(self) -> tuple[rules.Split, ...]:
        """How the memory of every rank of a replica is cut (pp, then tp)."""
        return tuple(split for split in self.splits for _ in range(self.attention_tp))


class Sglang(EngineProfile[Options]):
    """What SGLang's server sets up at start, with its default memory pools."""

    name: ClassVar[str] = "sglang"
    version: ClassVar[str] = "0.5.23"
    summary: ClassVar[str] = "SGLang: pools of tokens and recurrent states, and what the server's log prints"
    options_class = Options

    def weight_shares(self, spec: ModelSpec, deployment: Deployment[Options]) -> tuple[Fraction | None, ...]:
        """Return the share of the weights on every rank of a replica: all `tp` ranks split them, whoever attends."""
        shares, tp = super().weight_shares(spec, deployment), deployment.tp
        return tuple(share for place, share in enumerate(shares) if place % tp < _attention_tp(deployment))

    def budget(self, total: int, weights: int, overhead: Overhead, share: Fraction | None = None) -> Budget:
        """Return mem_fraction_static's share, less the weights; without one, what was seen to be left free is."""
        if share is None:
            return share_of_total(total, Fraction(1), weights, overhead)
        return share_of_total(total, share, weights, overhead.without("static_reserve"))

    def place(self, spec: ModelSpec, deployment: Deployment[Options]) -> Placement:
        """Return a rank per pipeline stage and slice of attention, each with its pools."""
        plan = make_plan(spec, deployment)
        ranks: list[Rank] = []
        for stage, (kinds, split) in enumerate(zip(plan.stages, plan.splits, strict=True)):
            held, admitted = _footprint(plan, kinds, admitted=False), _footprint(plan, kinds, admitted=True)
            pools = _pools(plan, kinds, split)
            ranks.extend(Rank(stage, slice_, held, admitted, pools) for slice_ in range(plan.attention_tp))
        return Placement(tuple(ranks), deployment.dp)

    def check(self, spec: ModelSpec, deployment: Deployment[Options], context: int, batch: int) -> None:
        """Raise BadInput for more sequences than `max_mamba_cache_size` has slots for."""
        slots, plan = deployment.options.max_mamba_cache_size, make_plan(spec, deployment)
        needed = -(-batch // deployment.dp) * plan.slots_per_request
        if plan.has("state") and slots is not None and needed > slots:
            raise BadInput(f"batch {batch:,} needs {needed:,} state slots, more than max_mamba_cache_size={slots:,}")

    def kv_dtype(self, deployment: Deployment[Options]) -> str:
        """Return the cache's format in kvcalc's names."""
        return _format_name(_formats(deployment))

    def report(
        self, spec: ModelSpec, deployment: Deployment[Options], context: int, batch: int, placement: Placement
    ) -> dict[str, Any]:
        """Return the bytes of a token and of a state slot on every rank, and what one sequence takes of the pools."""
        plan = make_plan(spec, deployment)
        return {"held_bytes": placement.held_bytes(context, batch), **_pool_report(plan, context)}

    def cache_budgets(
        self, spec: ModelSpec, deployment: Deployment[Options], kv_bytes_per_rank: Sequence[int]
    ) -> tuple[int, ...]:
        """Return the bytes of every rank's pools: those available, or those of `max_total_tokens` tokens."""
        capped = deployment.options.max_total_tokens
        if capped is None:
            return tuple(kv_bytes_per_rank)
        pages = capped // deployment.options.page_size
        most = [max(-(-pages * split.page // 1), 1) for split in make_plan(spec, deployment).per_rank]
        return tuple(min(available, limit) for available, limit in zip(kv_bytes_per_rank, most, strict=True))

    def budget_report(
        self, spec: ModelSpec, deployment: Deployment[Options], kv_bytes_per_rank: Sequence[int], context: int
    ) -> dict[str, Any]:
        """Return the pools that the server would make of this memory on every rank of a replica, or why it stops."""
        plan = make_plan(spec, deployment)
        budgets = self.cache_budgets(spec, deployment, kv_bytes_per_rank)
        pools = [split.divide(memory) for split, memory in zip(plan.per_rank, budgets, strict=True)]
        found = PoolSizes(
            plan,
            min(each.full_tokens for each in pools),
            min(each.swa_tokens for each in pools),
            min(each.state_slots for each in pools),
        )
        return {**_pool_report(plan, context), **found.to_json(context)}

    def assumptions(self, spec: ModelSpec, deployment: Deployment[Options]) -> tuple[str, ...]:
        """Return the defaults that decide the figures, and where SGLang's sizes are not the model's."""
        plan = make_plan(spec, deployment)
        return (*_assumed_pools(plan, deployment.options), *_assumed_layers(spec, plan, deployment))


@dataclass(frozen=True)
class PoolSizes:
    """The pools of a server, the least of all its ranks: tokens and state slots."""

    plan: Plan
    full_tokens: int
    swa_tokens: int
    state_slots: int

    @property
    def max_total_num_tokens(self) -> int:
        """The tokens that the server reports: those of the windowed pool only where there is no other."""
        return self.full_tokens if self.plan.has("full") else self.swa_tokens

    def allocated(self, kinds: Sequence[PooledKind]) -> int:
        """Return the bytes of a rank's tensors: a page and a slot more than are handed out, to take what is padding."""
        return sum(kind.bytes * self.rows(kind.pool) for kind in kinds)

    def rows(self, pool: rules.PoolName) -> int:
        """Return the tokens (or states) that the tensors of a pool have room for."""
        if pool == "state":
            return self.state_slots + 1
        return (self.full_tokens if pool == "full" else self.swa_tokens) + self.plan.page_size

    @property
    def refusal(self) -> str | None:
        """Why the server does not start, in our words; None if it does."""
        if self.max_total_num_tokens:
            return None
        floor = max(split.swa_floor for split in self.plan.splits)
        if floor:
            return (
                f"not enough memory: the windowed layers' pool must have more than the {floor:,} tokens of a window "
                "and a page"
            )
        return "not enough memory for a page of tokens" + (" and a state" if self.plan.has("state") else "")

    @property
    def log_lines(self) -> tuple[str, ...]:
        """The lines of the first rank's pools whose form is known; none if the server does not start."""
        name = _TORCH_NAMES.get(_format_name(self.plan.kv))
        kinds = self.plan.stages[0]
        if self.refusal is not None or name is None or not all(_has_kv(kind) for kind in kinds):
            return ()
        return tuple(_state_line(self, kinds)) + tuple(_kv_lines(self, kinds, name))

    def to_json(self, context: int) -> dict[str, Any]:
        """Return the pools as JSON data; per-rank lists are those of one replica."""
        plan, refusal = self.plan, self.refusal
        state = self.state_slots if plan.has("state") else None
        running = None
        if refusal is None:
            running = rules.max_running_requests(self.max_total_num_tokens, context, state, plan.slots_per_request)
        allocated = [self.allocated(kinds) if refusal is None else 0 for kinds in plan.stages]
        return {
            "max_total_num_tokens": self.max_total_num_tokens,
            "full_tokens": self.full_tokens if plan.has("full") else None,
            "swa_tokens": self.swa_tokens if plan.has("swa") else None,
            "state_slots": state,
            "max_running_requests": running,
            "allocated_bytes_per_rank": [size for size in allocated for _ in range(plan.attention_tp)],
            "admitted": refusal is None,
            "admission_error": refusal,
            **({"max_context_that_fits": 0} if refusal else {}),
            "log_lines": list(self.log_lines),
        }


# The log --------------------------------------------------------------------------------------------------------------


def _has_kv(kind: PooledKind) -> bool:
    return isinstance(kind.kind, Heads | State)


def _state_line(sizes: PoolSizes, kinds: Sequence[PooledKind]) -> Iterator[str]:
    states = [kind for kind in kinds if kind.pool == "state"]
    if states:
        conv, ssm = (_gigabytes(sizes, states, role) for role in ("conv", "ssm"))
        yield (
            f"Mamba Cache is allocated. max_mamba_cache_size: {sizes.state_slots}, "
            f"conv_state size: {conv}GB, ssm_state size: {ssm}GB"
        )


def _kv_lines(sizes: PoolSizes, kinds: Sequence[PooledKind], dtype: str) -> Iterator[str]:
    """A line for each pool of tokens, the windowed one first, and one for both together where there are two."""
    swa, full = ([kind for kind in kinds if kind.pool == pool] for pool in ("swa", "full"))
    for pool, tokens in ((swa, sizes.swa_tokens), (full, sizes.full_tokens)):
        if pool:
            key, value = (_gigabytes(sizes, pool, role) for role in ("k", "v"))
            yield (f"KV Cache is allocated. dtype: {dtype}, #tokens: {tokens}, K size: {key} GB, V size: {value} GB")
    if swa and full:
        total = sizes.allocated([*swa, *full]) / rules.GIB
        yield f"SWAKVPool mem usage: {total:.2f} GB, swa size: {sizes.swa_tokens}, full size: {sizes.full_tokens}"


def _gigabytes(sizes: PoolSizes, kinds: Sequence[PooledKind], role: str) -> str:
    """Return the tensors of a role as the log prints them: "GB" of 2^30 bytes."""
    return f"{sum(kind.role_bytes(role) * sizes.rows(kind.pool) for kind in kinds) / rules.GIB:.2f}"


# From a model to a plan -----------------------------------------------------------------------------------------------


def make_plan(spec: ModelSpec, deployment: Deployment[Options]) -> Plan:
    """Return the pools of a model; UnsupportedByEngine for what SGLang 0.5.23 or this profile does not do."""
    _require_covered(spec)
    _require_deployment(spec, deployment)
    options, dcp, attention_tp = deployment.options, deployment.dcp, _attention_tp(deployment)
    sparse = any(group.kind.name == "indexer" for group in spec.groups())
    packed = sparse and rules.packs_sparse_rows(options.dsa_prefill_backend, options.dsa_decode_backend)
    made = tuple(_pooled(layers, deployment, attention_tp, packed) for layers in stages(spec, deployment.pp))
    _require_like_stages(spec, made)
    return Plan(
        stages=made,
        splits=tuple(_split(kinds, options) for kinds in made),
        kv=_formats(deployment),
        page_size=options.page_size,
        attention_tp=attention_tp,
        dcp=dcp,
        slots_per_request=rules.slots_per_request(not options.disable_radix_cache),
        packed=packed,
    )


def _attention_tp(deployment: Deployment[Options]) -> int:
    """Return the ranks that split the attention of one replica."""
    return deployment.tp // (deployment.dp if deployment.options.enable_dp_attention else 1)


def _pooled(
    layers: Sequence[Layer], deployment: Deployment[Options], attention_tp: int, packed: bool
) -> tuple[PooledKind, ...]:
    """Return the kinds of layer of one stage with what they take on one rank."""
    kv, options = _formats(deployment), deployment.options
    ssm = None if options.mamba_ssm_dtype == "auto" else find_format(options.mamba_ssm_dtype)
    found = []
    for group in group_layers(layers):
        kind = group.kind
        if isinstance(kind, State):
            parts = rules.state_parts(kind, deployment.dtype, ssm, attention_tp)
        else:
            parts = rules.token_parts(kind, kv, attention_tp, deployment.dcp, packed)
        found.append(PooledKind(group.name, kind, len(group.indices), parts))
    return tuple(found)


def _split(kinds: Sequence[PooledKind], options: Options) -> rules.Split:
    """Return how the memory of a rank with these layers is cut."""
    size = {pool: sum(kind.bytes for kind in kinds if kind.pool == pool) for pool in ("full", "swa", "state")}
    windows = [kind.kind.window for kind in kinds if isinstance(kind.kind, Sliding)]
    return rules.Split(
        page_size=options.page_size,
        full_bytes=size["full"],
        swa_bytes=size["swa"],
        swa_ratio=Fraction(str(options.swa_full_tokens_ratio)),
        swa_floor=max(windows) + options.page_size if windows and size["full"] else 0,
        state_bytes=size["state"],
        state_ratio=Fraction(str(options.mamba_full_memory_ratio)),
        slots=options.max_mamba_cache_size,
    )


def _require_covered(spec: ModelSpec) -> None:
    """Raise UnsupportedByEngine for models whose layers the rules do not cover."""
    kinds = [group.kind for group in spec.groups()]
    names = {kind.name for kind in kinds}
    strange = sorted(names - _COVERED)
    if strange:
        raise UnsupportedByEngine(
            f"{spec.name} is not covered for {rules.SOURCE}: it has {' and '.join(strange)} layers"
        )
    if not names & {"full", "sliding", "mla"}:
        raise UnsupportedByEngine(f"{spec.name} is not covered for {rules.SOURCE}: it has no layer of attention")
    if "indexer" in names and "mla" not in names:
        raise UnsupportedByEngine(f"{spec.name} is not covered: an indexer beside attention that is not MLA")
    if "sliding" in names and names & {"mla", "state"}:
        other = "recurrent" if "state" in names else "MLA"
        raise UnsupportedByEngine(f"{spec.name} is not covered for {rules.SOURCE}: windowed beside {other} layers")
    if len({kind.window for kind in kinds if isinstance(kind, Sliding)}) > 1:
        raise UnsupportedByEngine(f"{spec.name} is not covered for {rules.SOURCE}: windows of several sizes")


def _require_deployment(spec: ModelSpec, deployment: Deployment[Options]) -> None:
    """Raise UnsupportedByEngine for deployments that the rules do not cover."""
    options, names = deployment.options, {group.kind.name for group in spec.groups()}
    if deployment.dtype.name not in ("fp32", "fp16", "bf16"):
        raise UnsupportedByEngine(f"SGLang runs models in fp32, fp16 or bf16, not {deployment.dtype.name}")
    if options.enable_dp_attention and deployment.tp % deployment.dp:
        raise UnsupportedByEngine(f"enable_dp_attention: dp {deployment.dp} must divide tp {deployment.tp}")
    attention_tp = _attention_tp(deployment)
    require_tp_divides_heads(spec.groups(), attention_tp)
    if attention_tp % deployment.dcp:
        raise UnsupportedByEngine(f"dcp {deployment.dcp} must divide the {attention_tp} ranks of attention")
    if deployment.dcp > 1 and names & {"sliding", "state"}:
        raise UnsupportedByEngine(f"dcp {deployment.dcp} is not covered for windowed and recurrent layers")
    if len(spec.layers) % deployment.pp:
        raise UnsupportedByEngine(
            f"pp {deployment.pp} does not divide the {len(spec.layers)} layers: where {rules.SOURCE} puts the rest "
            "is not covered"
        )
    if "state" in names and (deployment.pp > 1 or options.max_total_tokens is not None):
        what = f"pp {deployment.pp}" if deployment.pp > 1 else "max_total_tokens"
        raise UnsupportedByEngine(f"{what} is not covered for {rules.SOURCE} with recurrent layers")


def _require_like_stages(spec: ModelSpec, made: Sequence[Sequence[PooledKind]]) -> None:
    """Raise UnsupportedByEngine where a pipeline stage lacks a pool that others have."""
    if len({frozenset(kind.pool for kind in kinds) for kinds in made}) > 1:
        raise UnsupportedByEngine(f"{spec.name} on pp {len(made)} is not covered: some stages lack a sort of layer")


def _formats(deployment: Deployment[Options]) -> tuple[Format, Format]:
    """Return the formats of K and V from `--kv-dtype` and `-o kv_cache_dtype`; BadInput if they contradict."""
    named = deployment.options.kv_cache_dtype
    if named is None:
        return deployment.kv
    stored = deployment.dtype if named == "auto" else find_format(rules.CACHE_DTYPES[named])
    if deployment.kv_given and deployment.kv != (stored, stored):
        given = _format_name(deployment.kv)
        raise BadInput(f"--kv-dtype {given} and -o kv_cache_dtype={named} contradict each other; give one of them")
    return stored, stored


def _format_name(kv: tuple[Format, Format]) -> str:
    return kv[0].name if kv[0] == kv[1] else f"{kv[0].name}/{kv[1].name}"


# From a plan to footprints and pools ----------------------------------------------------------------------------------


def _footprint(plan: Plan, kinds: Sequence[PooledKind], admitted: bool) -> Footprint:
    """Return the bytes of one rank: pages or slots times their bytes, a term for each tensor of a kind."""
    terms: list[Term] = []
    for kind in kinds:
        block = () if kind.pool == "state" else (("block_tokens", plan.page_size),)
        for steps, sign in _units(plan, kind, admitted):
            released = () if sign > 0 else (("released", -1),)
            for part in kind.parts:
                factors = (("layers", kind.layers), *block, *part.factors, *released)
                terms.append(Term(kind.label, kind.kind.name, part.role, factors, steps, _SOURCES[kind.pool]))
    return Footprint(tuple(terms))


_SOURCES: Mapping[rules.PoolName, str] = {
    "full": rules.CELL_SOURCE,
    "swa": rules.WINDOW_SOURCE,
    "state": rules.STATE_SOURCE,
}


def _units(plan: Plan, kind: PooledKind, admitted: bool) -> tuple[tuple[Steps, int], ...]:
    """Return the pages (or slots) of one sequence as staircases with their signs."""
    page = plan.page_size
    if kind.pool == "state":
        return ((Steps.constant(plan.slots_per_request if admitted else 1), 1),)
    if isinstance(kind.kind, Sliding):
        window = kind.kind.window
        if admitted:
            return ((Steps.window(window + page, page), 1),)
        return ((Steps.per_token(page), 1), (Steps.released(window - 1, page), -1))
    return ((Steps.per_token(page * plan.dcp), 1),)


def _pools(plan: Plan, kinds: Sequence[PooledKind], split: rules.Split) -> tuple[Pool, ...]:
    """Return the pools of one rank: one where all layers hold the same tokens, else one for each kind of layer."""
    if len({kind.pool for kind in kinds}) == 1:
        groups = tuple(_block_group(plan, kind) for kind in kinds)
        unit = plan.page_size * (split.full_bytes or split.swa_bytes)
        return (Pool("tokens", unit, 0, Fraction(1), groups),)
    return tuple(_shared_pool(plan, kind, split) for kind in kinds)


def _shared_pool(plan: Plan, kind: PooledKind, split: rules.Split) -> Pool:
    states = split.state_share if split.state_bytes else Fraction(0)
    if kind.pool == "state":
        unit, share = kind.bytes, states * kind.bytes / split.state_bytes
    else:
        ratio = split.swa_ratio if kind.pool == "swa" else Fraction(1)
        unit, share = plan.page_size * kind.bytes, (1 - states) * ratio * kind.bytes / split.cell
    group = (_block_group(plan, kind),)
    return rules.SharedPool(kind.label, unit, int(kind.pool == "state"), share, group, split, kind.pool)


def _block_group(plan: Plan, kind: PooledKind) -> BlockGroup:
    if kind.pool == "state":
        return BlockGroup(kind.layers, 1, Retention.state())
    retention = Retention.window(kind.kind.window) if isinstance(kind.kind, Sliding) else Retention.all()
    return BlockGroup(kind.layers, plan.page_size * plan.dcp, retention)


# Reports --------------------------------------------------------------------------------------------------------------


def _pool_report(plan: Plan, context: int) -> dict[str, Any]:
    """Return what a token and a state slot take on every rank of a replica, and what a sequence takes of the pools."""
    kinds = {kind.pool: kind for kind in plan.stages[0]}
    taken = {pool: sum(sign * int(steps.count(context, 1)) for steps, sign in _units(plan, kind, admitted=True))
             for pool, kind in kinds.items()}  # fmt: skip
    return {
        "page_size": plan.page_size,
        "attention_tp": plan.attention_tp,
        "kv_cache_dtype": _format_name(plan.kv),
        "full_bytes_per_token_per_rank": [split.full_bytes for split in plan.per_rank],
        "swa_bytes_per_token_per_rank": [split.swa_bytes for split in plan.per_rank],
        "state_bytes_per_slot_per_rank": [split.state_bytes for split in plan.per_rank],
        "cell_bytes_per_rank": [str(split.cell) for split in plan.per_rank],
        "full_pages_per_sequence": taken.get("full"),
        "swa_pages_per_sequence": taken.get("swa"),
        "state_slots_per_sequence": taken.get("state"),
    }


# What is taken for granted --------------------------------------------------------------------------------------------


def _assumed_pools(plan: Plan, options: Options) -> Iterator[str]:
    given = options.model_fields_set
    if "page_size" not in given:
        yield "page_size 1: some attention backends force 16, 32, 64 or 128 (-o page_size changes it)"
    if plan.has("swa"):
        if plan.has("full") and "swa_full_tokens_ratio" not in given:
            yield (
                f"swa_full_tokens_ratio {options.swa_full_tokens_ratio}: some models have their own "
                "(-o swa_full_tokens_ratio changes it)"
            )
        yield "a sequence takes its window and a page of the windowed layers' pool, the measure of the start-up check"
    if plan.has("state"):
        if "disable_radix_cache" not in given:
            yield (
                f"radix cache: {plan.slots_per_request} state slots per sequence "
                "(-o disable_radix_cache=true changes it to 1)"
            )
        yield "no slots beside those for speculation or overlapped scheduling"


def _assumed_layers(spec: ModelSpec, plan: Plan, deployment: Deployment[Options]) -> Iterator[str]:
    options = deployment.options
    if plan.packed and plan.kv[0].name == "fp8" and options.dsa_decode_backend is None:
        yield "sparse attention in fp8: packed rows of 656 bytes (-o dsa_prefill_backend, dsa_decode_backend)"
    if plan.has("state") and options.mamba_ssm_dtype == "auto":
        yield "mamba_ssm_dtype as in the model's spec (-o mamba_ssm_dtype changes it)"
    if options.enable_dp_attention:
        yield "weights are split over all tp ranks; copies of the attention's in every replica are not counted"
    if plan.dcp > 1:
        yield f"dcp {plan.dcp}: every rank has its part of a sequence's tokens"
    for kv_heads in sorted({group.kind.kv_heads for group in spec.groups() if isinstance(group.kind, Heads)}):
        ranks = plan.attention_tp // plan.dcp
        each = rules.kv_heads_on_rank(kv_heads, ranks)
        if each * ranks < kv_heads:
            yield f"{kv_heads} kv_heads on {ranks} ranks: sized as {each} on each, which are not all of them"


ENGINE = Sglang()
