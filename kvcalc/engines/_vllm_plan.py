"""From a model and a deployment to vLLM's blocks: the options, the defaults they leave open, and the plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Annotated, Literal

from pydantic import Field, field_validator

from kvcalc.engines import _vllm_rules as rules
from kvcalc.engines._base import Deployment, EngineOptions, require_tp_divides_heads
from kvcalc.errors import BadInput, UnsupportedByEngine, did_you_mean
from kvcalc.footprint import Steps
from kvcalc.formats import Format, find_format
from kvcalc.spec.kinds import Chunked, Cross, Full, Indexer, Kind, Mla, Sliding, State
from kvcalc.spec.model import LayerGroup, ModelSpec

_Tokens = Annotated[int, Field(ge=1, le=2**40)]
_StateDtype = Literal["auto", "float32", "float16", "bfloat16"]

DEFAULT_BATCHED_TOKENS = 8192
DEFAULT_BLOCK_SIZE = 16

# --kv-dtype F -> vLLM's name of the cache dtype.
_VLLM_NAMES = {
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp8": "fp8",
    "int8": "int8_per_token_head",
    "int4": "int4_per_token_head",
    "nvfp4": "nvfp4",
}
# Model types whose recurrent state is fp32 unless the user says otherwise. vLLM's default for Nemotron-H; Qwen3.5's
# published config.json asks for it (mamba_ssm_dtype), and servers' logs agree.
FP32_STATES = frozenset({"nemotron_h", "qwen3_5_text", "qwen3_5_moe_text"})
# Model types whose pages lie block-outermost and are grouped by rules that the profile does not have.
BLOCK_OUTERMOST = frozenset({"deepseek_v4", "glm_moe_dsa"})


class Options(EngineOptions):
    """Options of the server that the cache depends on, by vLLM's own names."""

    block_size: Annotated[int, Field(ge=1, le=2**20)] | None = None
    """Tokens of a block; omitted: what the attention backend prefers."""
    max_num_batched_tokens: _Tokens = DEFAULT_BATCHED_TOKENS
    """Tokens of one step. The server's default is 8192 on most large GPUs, 2048 on small ones, 16384 on the largest."""
    async_scheduling: bool = True
    """Whether the next step is scheduled while one runs; the server turns it off for some features."""
    use_v2_model_runner: bool = True
    """Whether the model runs on runner V2, which keeps one more batch in flight than there are pipeline stages."""
    enable_prefix_caching: bool = True
    """Whether blocks are kept for later requests; recurrent layers then need more states per request."""
    attention_backend: str | None = None
    """FLASH_ATTN, TRITON_ATTN, FLASHINFER, FLASHMLA, FLASHMLA_SPARSE, TRITON_MLA, ...; omitted: by model and dtype."""
    disable_hybrid_kv_cache_manager: bool | None = None
    """Whether windowed and chunked layers keep every token; omitted: only in models with chunked layers."""
    num_gpu_blocks_override: Annotated[int, Field(ge=1, le=2**40)] | None = None
    """Blocks of the pool instead of as many as fit."""
    kv_cache_dtype: str | None = None
    """The cache's dtype by vLLM's name: auto, fp8_e5m2, fp8_per_token_head, fp8_ds_mla, ...; or use --kv-dtype."""
    mamba_cache_dtype: _StateDtype = "auto"
    """Dtype of the convolution's inputs in recurrent layers; auto: the model's."""
    mamba_ssm_cache_dtype: _StateDtype = "auto"
    """Dtype of the recurrent state; auto: the convolution's, fp32 for Nemotron-H, Qwen3.5 and KDA."""
    auto_fit: bool = False
    """Whether the context is only an upper bound that the server lowers to what fits (`--max-model-len -1`)."""

    @field_validator("kv_cache_dtype")
    @classmethod
    def _known_dtype(cls, name: str | None) -> str | None:
        if name not in (None, "auto"):
            try:
                rules.refuse_unknown_dtype(name)
            except BadInput as error:
                raise ValueError(str(error)) from None
        return name

    @field_validator("attention_backend")
    @classmethod
    def _known_backend(cls, name: str | None) -> str | None:
        if name is not None and name not in rules.BACKENDS:
            hint = did_you_mean(name, rules.BACKENDS) or f"; known: {', '.join(rules.BACKENDS)}"
            raise ValueError(f"the profile knows no such backend{hint}")
        return name


@dataclass(frozen=True, eq=False)
class Plan:
    """A model's blocks on a deployment: groups of the whole model, layers and bytes of a block on every stage.

    A plan equals itself alone, so that what follows from it can be kept without comparing its layers.
    """

    groups: tuple[rules.Group, ...]
    stages: tuple[range, ...]
    bytes_per_block: tuple[int, ...]
    block_size: int
    kv_cache_dtype: str
    backend: rules.Backend | None
    hybrid: bool
    in_flight: int
    batched: int
    dcp: int
    prefix_caching: bool

    def admitted(self, group: rules.Group) -> Steps:
        """Return the blocks of a group that one request must be able to get."""
        return rules.admitted_blocks(group.page, self.in_flight, self.batched, self.dcp)

    def blocks(self, n: int) -> int:
        """Return R(n), the blocks of all groups that one request of n tokens must be able to get."""
        return sum(int(self.admitted(group).count(n, 1)) for group in self.groups)

    def block_tokens(self, group: rules.Group) -> int:
        """Return the tokens of a sequence that one block of a group covers, over the ranks that split it."""
        sharded = group.page.kind in ("full_attention", "mla_attention")
        return group.page.block_size * (self.dcp if sharded else 1)


def make_plan(spec: ModelSpec, deployment: Deployment[Options]) -> Plan:
    """Return the blocks of a model; UnsupportedByEngine for what vLLM 0.33.0 or this profile does not do.

    Replicas have equal plans, and one question asks for the same plan several times: the last ones are kept.
    """
    return _made_plan(_Same(spec), replace(deployment, dp=1))


@dataclass(frozen=True, eq=False)
class _Same:
    """A spec that equals itself alone: comparing every layer would cost as much as a plan."""

    spec: ModelSpec

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.spec is other.spec

    def __hash__(self) -> int:
        return id(self.spec)


@lru_cache(maxsize=64)
def _made_plan(same: _Same, deployment: Deployment[Options]) -> Plan:
    spec = same.spec
    named = spec.groups()
    _require_supported(spec, named, deployment)
    options = deployment.options
    kinds = [group.kind for group in named if group.kind.entries()]
    dtype = _cache_dtype(deployment)
    backend = _backend(kinds, dtype, options)
    dtype = rules.served_dtype(dtype, backend)
    hybrid = _hybrid(kinds, options)
    layers, block_size = _draft(spec, deployment, dtype, backend, hybrid)
    groups = rules.group_layers_by_page(layers)
    _require_groups_covered(spec, groups, hybrid, deployment.dcp)
    stages = rules.layer_split(len(spec.layers), deployment.pp)
    batches = rules.batches_in_flight(deployment.pp, options.async_scheduling, options.use_v2_model_runner)
    return Plan(
        groups=groups,
        stages=stages,
        bytes_per_block=tuple(rules.bytes_per_block(groups, stage) for stage in stages),
        block_size=block_size,
        kv_cache_dtype=dtype,
        backend=backend,
        hybrid=hybrid,
        in_flight=batches * options.max_num_batched_tokens,
        batched=options.max_num_batched_tokens,
        dcp=deployment.dcp,
        prefix_caching=options.enable_prefix_caching,
    )


def _require_supported(spec: ModelSpec, named: Sequence[LayerGroup], deployment: Deployment[Options]) -> None:
    """Raise UnsupportedByEngine for models and deployments that the rules do not cover."""
    names = {group.kind.name for group in named}
    if spec.architecture in BLOCK_OUTERMOST or "compressed" in names:
        raise UnsupportedByEngine(
            f"{spec.name} ({spec.architecture}) is not covered: vLLM packs its layers in block-outermost groups"
        )
    if "indexer" in names and "mla" not in names:
        raise UnsupportedByEngine(f"{spec.name} is not covered: an indexer beside attention that is not MLA")
    if not names - {"shared"}:
        raise UnsupportedByEngine(f"{spec.name} has no layer that keeps anything")
    if deployment.dtype.name not in ("fp32", "fp16", "bf16"):
        raise UnsupportedByEngine(
            f"vLLM runs models in fp32, fp16 or bf16, not {deployment.dtype.name}; use --dtype bf16"
        )
    require_tp_divides_heads(named, deployment.tp)
    if deployment.tp % deployment.dcp:
        raise UnsupportedByEngine(f"dcp {deployment.dcp} must divide tp {deployment.tp}")


def _require_groups_covered(spec: ModelSpec, groups: Sequence[rules.Group], hybrid: bool, dcp: int) -> None:
    """Raise UnsupportedByEngine where layers need groups that the deployment cannot have."""
    kinds = dict.fromkeys(group.page.kind for group in groups)
    if not hybrid and len(groups) > 1:
        raise UnsupportedByEngine(
            f"without the hybrid KV cache manager, all layers share one group; {spec.name} has {', '.join(kinds)}"
        )
    split = [kind for kind in kinds if kind not in ("full_attention", "mla_attention", "mamba")]
    if dcp > 1 and split:
        raise UnsupportedByEngine(f"dcp {dcp} is not covered for {' and '.join(split)} layers")


def _cache_dtype(deployment: Deployment[Options]) -> str:
    """Return vLLM's name of the cache's dtype from `--kv-dtype` and `-o kv_cache_dtype`."""
    key, value = deployment.kv
    named = deployment.options.kv_cache_dtype
    if key != value:
        raise UnsupportedByEngine(f"vLLM stores K and V alike, not {key.name}/{value.name}; give one --kv-dtype")
    if not deployment.kv_given or key == deployment.dtype:
        given = None if not deployment.kv_given else "auto"
    elif key.name in _VLLM_NAMES:
        given = _VLLM_NAMES[key.name]
    else:
        raise UnsupportedByEngine(
            f"vLLM does not store the cache as {key.name}; use --kv-dtype {' '.join(_VLLM_NAMES)}, "
            f"or -o kv_cache_dtype={', '.join(rules.PACKED_MLA)}"
        )
    if given is not None and named is not None and _stored(named, deployment) != _stored(given, deployment):
        raise BadInput(f"--kv-dtype {key.name} and -o kv_cache_dtype={named} contradict each other; give one of them")
    return named or given or "auto"


def _stored(kv_cache_dtype: str, deployment: Deployment[Options]) -> Format | None:
    """Return the format of a row; None where a whole row is packed."""
    return deployment.dtype if kv_cache_dtype == "auto" else rules.ROW_FORMATS.get(kv_cache_dtype)


def _backend(kinds: Sequence[Kind], dtype: str, options: Options) -> rules.Backend | None:
    """Return the attention backend: the user's, else the one that serves this dtype; None without attention."""
    attention = [kind for kind in kinds if not isinstance(kind, State)]
    if not attention:
        return None
    mla = any(kind.name == "mla" for kind in attention)
    name = options.attention_backend or _default_backend(mla, {kind.name for kind in attention}, dtype)
    backend = rules.BACKENDS[name]
    if backend.mla != mla:
        fitting = ", ".join(each.name for each in rules.BACKENDS.values() if each.mla == mla)
        raise UnsupportedByEngine(
            f"attention_backend {name} does not serve {'MLA' if mla else 'a model without MLA'}; use {fitting}"
        )
    if name == "FLASHINFER" and any(getattr(kind, "variant", "") == "gated_deltanet" for kind in kinds):
        raise UnsupportedByEngine(
            "attention_backend FLASHINFER with Gated DeltaNet is not covered: its blocks are aligned to checkpoints"
        )
    return backend


def _default_backend(mla: bool, names: set[str], dtype: str) -> str:
    if not mla:
        if dtype.startswith("nvfp4"):
            return "FLASHINFER"
        return "TRITON_ATTN" if dtype.endswith("_per_token_head") else "FLASH_ATTN"
    if dtype.endswith("_per_token_head"):
        raise UnsupportedByEngine(
            f"kv_cache_dtype {dtype} with MLA: say which backend serves it with -o attention_backend"
        )
    return "FLASHMLA_SPARSE" if "indexer" in names or dtype in rules.PACKED_MLA else "FLASHMLA"


def _hybrid(kinds: Sequence[Kind], options: Options) -> bool:
    """Return whether layers may keep different tokens: by default in every model but those with chunked layers."""
    disabled = options.disable_hybrid_kv_cache_manager
    if disabled is None:
        disabled = any(kind.name == "chunked" for kind in kinds)
    return not disabled


def _draft(
    spec: ModelSpec, deployment: Deployment[Options], dtype: str, backend: rules.Backend | None, hybrid: bool
) -> tuple[tuple[rules.CacheLayer, ...], int]:
    """Return every tensor that vLLM allocates, in layer order, and the block size that the model resolves to."""
    drafter = _Drafter(spec, deployment, dtype, backend, hybrid)
    pages = {group.name: drafter.page(group.kind) for group in drafter.named}
    layers = tuple(
        rules.CacheLayer(index, name, kind.name, pages[name])
        for index, layer in enumerate(spec.layers)
        for name, kind in zip(layer.names, layer.kinds, strict=True)
        if name in pages
    )
    return layers, drafter.block_size


@dataclass(frozen=True)
class _Drafter:
    """Makes the pages of a model's layers, before they are unified."""

    spec: ModelSpec
    deployment: Deployment[Options]
    dtype: str
    backend: rules.Backend | None
    hybrid: bool

    def page(self, kind: Kind) -> rules.Page:
        """Return what a block holds of a layer of this kind."""
        if isinstance(kind, State):
            states = rules.states_per_request(kind, self.deployment.options.enable_prefix_caching)
            return rules.Page("mamba", self.block_size, self._state(kind), states)
        parts = self._parts(kind)
        if isinstance(kind, Mla | Indexer):
            return rules.Page("mla_attention", self.block_size, parts)
        if isinstance(kind, Cross):
            return rules.Page("cross_attention", self.block_size, parts, kind.encoder_context)
        if self.hybrid and isinstance(kind, Chunked):
            return rules.Page("chunked_local_attention", self.block_size, parts, kind.chunk)
        if self.hybrid and isinstance(kind, Sliding):
            return rules.Page("sliding_window", self._sliding_block_size(kind), parts, kind.window)
        return rules.Page("full_attention", self.block_size, parts)

    @cached_property
    def block_size(self) -> int:
        """The tokens of a block: the user's or the backend's, enlarged until a page holds a state."""
        given = self.deployment.options.block_size
        if self.backend is None:
            return given or DEFAULT_BLOCK_SIZE
        resolved = self.backend.resolve(given)
        states = [sum(part.bytes for part in self._state(kind)) for kind in self._kinds if isinstance(kind, State)]
        if not states:
            return resolved
        token_bytes = self._full_token_bytes or max(map(self._token_bytes, self._attention))
        return rules.aligned_block_size(resolved, max(states), token_bytes, self.backend)

    @cached_property
    def named(self) -> tuple[LayerGroup, ...]:
        """The kinds that keep anything, with their names and layers."""
        return tuple(group for group in self.spec.groups() if group.kind.entries())

    @property
    def _kinds(self) -> tuple[Kind, ...]:
        return tuple(group.kind for group in self.named)

    @property
    def _attention(self) -> list[Kind]:
        return [kind for kind in self._kinds if not isinstance(kind, State)]

    @cached_property
    def _full_token_bytes(self) -> int | None:
        """Bytes of one token in the widest layer that keeps every token; None if there is none."""
        full = [kind for kind in self._attention if isinstance(kind, Full | Mla)]
        return max(map(self._token_bytes, full), default=None)

    def _sliding_block_size(self, kind: Sliding) -> int:
        assert self.backend is not None
        full = self._full_token_bytes
        return rules.sliding_block_size(self.block_size, self._token_bytes(kind), full, self.backend)

    def _token_bytes(self, kind: Kind) -> int:
        return sum(part.bytes for part in self._parts(kind))

    def _parts(self, kind: Kind) -> tuple[rules.Part, ...]:
        return rules.token_parts(kind, self.dtype, _stored(self.dtype, self.deployment), self.deployment.tp)

    def _state(self, kind: State) -> tuple[rules.Part, ...]:
        options, dtype = self.deployment.options, self.deployment.dtype
        conv = dtype if options.mamba_cache_dtype == "auto" else find_format(options.mamba_cache_dtype)
        ssm = conv
        if options.mamba_ssm_cache_dtype != "auto":
            ssm = find_format(options.mamba_ssm_cache_dtype)
        elif _fp32_by_default(self.spec, kind):
            ssm = find_format("fp32")
        return rules.state_parts(kind, conv, ssm, self.deployment.tp)


def _fp32_by_default(spec: ModelSpec, kind: State) -> bool:
    return spec.architecture in FP32_STATES or getattr(kind, "variant", "") == "kda"
