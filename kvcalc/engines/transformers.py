"""Hugging Face transformers 5.24.0: the tensors that its cache objects hold, and the storage behind them.

A cache is one object per layer, and what a layer holds depends on the cache's class: a `DynamicCache` grows by
concatenation, a `StaticCache` is allocated whole, a `QuantizedCache` packs all but a short tail. `total` is the bytes
of the tensors as they are shaped. Memory is taken by the storages behind them, which differ where a tensor is a view
of a longer one; the report has both, and the peak while a step replaces old tensors by new ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from kvcalc.engines._base import Deployment, EngineOptions, EngineProfile, group_layers, stages
from kvcalc.errors import BadInput, UnsupportedByEngine
from kvcalc.footprint import Footprint, Placement, Rank, Retention, Role, Steps, Term
from kvcalc.formats import Format
from kvcalc.spec.kinds import CacheEntry, Full, Heads, Kind, Mla, Sliding, State
from kvcalc.spec.model import Layer, LayerGroup, ModelSpec

_Tokens = Annotated[int, Field(ge=1, le=2**40)]
_SOURCE = "transformers 5.24.0"

# Model types that the library does not have (CONFIG_MAPPING); what their own code caches is not the library's rule.
NOT_IN_LIBRARY = frozenset({"deepseek", "grok-1", "kimi_k3", "minimax_m3", "nemotron-nas", "phi3small", "rwkv5"})
# FalconAttention with new_decoder_architecture repeats K and V for every query head before it caches them.
REPEATS_KV_HEADS = frozenset({"falcon"})
# MiMoV2FlashConfig counts the query beside the published window of previous tokens.
WINDOW_WITHOUT_QUERY = frozenset({"mimo_v2_flash"})
# RecurrentGemmaRecurrentBlock keeps kernel - 1 inputs of its convolution; every other layer keeps kernel.
SHORT_CONV_STATE = frozenset({"recurrent_gemma"})
# State variants whose recurrent part has the model's dtype, and those kept outside the cache's layers.
MODEL_DTYPE_STATES = frozenset({"lightning"})
BESIDE_THE_LAYERS = frozenset({"lightning", "rwkv4"})

GROUP = 64  # elements that share a scale and a shift in a quantised cache (q_group_size)


class Options(EngineOptions):
    """Options of the cache, by the names of transformers' own arguments."""

    cache: Literal["dynamic", "static", "quantized"] = "dynamic"
    """Class of the cache: DynamicCache, StaticCache or QuantizedCache (generate's cache_implementation)."""
    config: bool = True
    """Whether the DynamicCache is given the model's config; without it, it knows no windows."""
    max_cache_len: Annotated[_Tokens | None, Field(validate_default=True)] = None
    """Tokens for which a static cache is allocated."""
    backend: Literal["quanto", "hqq", "fp8"] | None = None
    """Backend of a quantized cache (default quanto)."""
    nbits: Literal[2, 4] | None = None
    """Bits of one element in a quantized cache of quanto or hqq (default 4)."""
    residual_length: _Tokens | None = None
    """Tokens at which the unquantised tail of a quantized cache is folded in (quanto and hqq; default 128)."""
    prompt_tokens: _Tokens | None = None
    """Tokens of the context that came in one prefill; the others were decoded one by one (default: all)."""

    @field_validator("config", mode="after")
    @classmethod
    def _only_dynamic_knows_no_config(cls, value: bool, info: ValidationInfo) -> bool:
        if not value and info.data.get("cache") != "dynamic":
            raise ValueError("only a dynamic cache can be made without the config; drop it")
        return value

    @field_validator("max_cache_len", mode="after")
    @classmethod
    def _static_has_a_length(cls, value: int | None, info: ValidationInfo) -> int | None:
        cache = info.data.get("cache")
        if value is not None and cache != "static":
            raise ValueError("a dynamic or quantized cache has no length; add -o cache=static or drop it")
        if value is None and cache == "static":
            raise ValueError("a static cache needs its length, for example -o max_cache_len=4096")
        return value

    @field_validator("backend", mode="after")
    @classmethod
    def _backend_quantizes(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("cache") != "quantized":
            raise ValueError("only a quantized cache has a backend; add -o cache=quantized or drop it")
        return value

    @field_validator("nbits", mode="before")
    @classmethod
    def _read_number(cls, value: Any) -> Any:
        """Literals compare without conversion; `-o nbits=4` arrives as text."""
        return int(value) if isinstance(value, str) and value.isdigit() else value

    @field_validator("nbits", "residual_length", mode="after")
    @classmethod
    def _groups_quantize(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is None:
            return value
        if info.data.get("cache") != "quantized":
            raise ValueError("only a quantized cache takes it; add -o cache=quantized or drop it")
        if info.data.get("backend") == "fp8":
            raise ValueError("the fp8 backend quantises whole tensors and does not take it; use quanto or hqq")
        return value


# Named integers that multiply, and the count they multiply: one summand of a tensor's bytes.
_Part = tuple[tuple[tuple[str, int], ...], Steps]


@dataclass(frozen=True)
class _Tensor:
    """One cache tensor of one layer: the sum of `parts`, for the whole batch.

    `storage` says what lies behind it. `own` and `ring`: exactly the tensor; a ring is written in place, but rolled
    through a copy once its `width` rows are full. `shared`: nothing beyond the storage of another tensor. `window`,
    `buffer`, `conv`: a longer tensor of which it is a view, see `_storage_rows`; `width` is its length after a step.
    """

    role: Role
    parts: tuple[_Part, ...]
    rule: str
    storage: Literal["own", "ring", "shared", "window", "buffer", "conv"] = "own"
    width: int = 0

    def held_bytes(self, n: int, b: int) -> int:
        """Return the bytes of the tensor as it is shaped."""
        return sum(_product(factors) * int(steps.count(n, b)) for factors, steps in self.parts)

    def storage_bytes(self, n: int, b: int, prompt: int) -> int:
        """Return the bytes of the storage that the tensor keeps alive, after a prefill of `prompt` of the n tokens."""
        if self.storage in ("own", "ring"):
            return self.held_bytes(n, b)
        if self.storage == "shared":
            return 0
        ((factors, steps),) = self.parts
        return _product(factors) * b * self._storage_rows(n, prompt, int(steps.count(n, 1)))

    def _storage_rows(self, n: int, prompt: int, held: int) -> int:
        """Return the rows behind a view of `held` rows.

        A prefill's tensor is cut to what is kept without a copy, so that all its rows stay alive until the next step
        replaces them; one token later only the row that the step has just pushed out is held beyond the view.
        """
        prefilled = n == prompt
        if self.storage == "window":
            return n if prefilled else min(n, self.width)
        if self.storage == "buffer":
            return n if prefilled and held else held
        return held if prefilled and n > 1 else self.width  # conv: a prefill pads or crops, which copies

    def made_bytes(self, n: int, b: int) -> int:
        """Return the bytes of the new tensor that the step after n tokens makes before it lets the old one go.

        0 for what is written in place. A buffer that the step fills is made whole before it is drained.
        """
        if self.storage == "ring":
            return self.held_bytes(n, b) if n >= self.width else 0
        if self.storage == "buffer":
            ((factors, steps),) = self.parts
            return _product(factors) * (int(steps.count(n, b)) + b)
        after = self.storage_bytes(n + 1, b, prompt=1)
        return after if self.storage != "own" or after != self.held_bytes(n, b) else 0


# The tensors that one statement of the library replaces together, in the order of the statements.
_Moves = tuple[tuple[_Tensor, ...], ...]


@dataclass(frozen=True)
class _Settings:
    """What decides the tensors of a layer: the model's type, its format, the options and the prompt's length."""

    architecture: str
    dtype: Format
    options: Options
    prompt: int | None

    @property
    def nbits(self) -> int:
        """Bits of one element in a quantised cache."""
        return self.options.nbits or 4

    @property
    def residual_length(self) -> int:
        """Tokens at which the unquantised tail is folded in."""
        return self.options.residual_length or 128


class Transformers(EngineProfile[Options]):
    """What the cache objects of Hugging Face transformers hold."""

    name: ClassVar[str] = "transformers"
    version: ClassVar[str] = "5.24.0"
    summary: ClassVar[str] = "Hugging Face transformers: what its dynamic, static and quantized caches hold"
    options_class = Options

    def place(self, spec: ModelSpec, deployment: Deployment[Options]) -> Placement:
        """Return one rank per group of layers (`device_map`); nothing is reserved beyond what is held."""
        _require_supported(spec, deployment)
        settings = _settings(spec, deployment, deployment.options.prompt_tokens)
        ranks = []
        for stage, layers in enumerate(stages(spec, deployment.pp)):
            held = _footprint(layers, settings)
            ranks.append(Rank(stage, 0, held, held))
        return Placement(tuple(ranks), deployment.dp)

    def check(self, spec: ModelSpec, deployment: Deployment[Options], context: int, batch: int) -> None:
        """Raise BadInput for a prompt longer than the context, or a context that a static cache cannot hold."""
        options = deployment.options
        if options.prompt_tokens is not None and options.prompt_tokens > context:
            raise BadInput(f"prompt_tokens {options.prompt_tokens:,} exceeds the context {context:,}")
        if options.max_cache_len is None or context <= options.max_cache_len:
            return
        if any(entry.retention.rule == "all" for group in spec.groups() for entry in group.kind.entries()):
            raise BadInput(
                f"context {context:,} exceeds max_cache_len {options.max_cache_len:,}: a static cache's full-attention "
                f"layers hold no more; use -o max_cache_len={context} or more"
            )

    def report(
        self, spec: ModelSpec, deployment: Deployment[Options], context: int, batch: int, placement: Placement
    ) -> dict[str, Any]:
        """Return the bytes of the tensors and of the storages behind them, now and after one more token.

        All devices and sequences are counted. `growth_peak_bytes` is the most that lies there while that token is
        added; devices take turns in a step, and each must provide for its own peak.
        """
        prompt = deployment.options.prompt_tokens or context
        settings = _settings(spec, deployment, prompt)
        devices = [_devices_moves(layers, settings) for layers in stages(spec, deployment.pp)]
        tensors = [tensor for moves in devices for move in moves for tensor in move]
        local, dp = placement.local_batch(batch), placement.dp
        stored = [sum(tensor.storage_bytes(n, local, prompt) for tensor in tensors) for n in (context, context + 1)]
        return {
            "logical_bytes": placement.total_bytes(context, batch),
            "storage_bytes": dp * stored[0],
            "after_decode_bytes": dp * sum(tensor.held_bytes(context + 1, local) for tensor in tensors),
            "after_decode_storage_bytes": dp * stored[1],
            "growth_peak_bytes": dp * sum(_growth_peak(moves, context, local, prompt) for moves in devices),
        }

    def assumptions(self, spec: ModelSpec, deployment: Deployment[Options]) -> tuple[str, ...]:
        """Return what the figures take for granted about the prompt, the quantisation and the devices."""
        options, found = deployment.options, []
        if options.prompt_tokens is None and options.cache != "static":
            found.append("the whole context came as one prompt (-o prompt_tokens changes it)")
        if options.cache == "quantized" and options.backend is None:
            found.append("backend quanto (-o backend changes it)")
        if deployment.pp > 1:
            found.append(f"device_map gives each of {deployment.pp} devices an equal run of layers")
        return tuple(found)


def _settings(spec: ModelSpec, deployment: Deployment[Options], prompt: int | None) -> _Settings:
    return _Settings(spec.architecture, deployment.dtype, deployment.options, prompt)


def _require_supported(spec: ModelSpec, deployment: Deployment[Options]) -> None:
    """Raise UnsupportedByEngine for what the library, or the profile, does not do."""
    if spec.architecture in NOT_IN_LIBRARY:
        raise UnsupportedByEngine(
            f"{_SOURCE} has no model type '{spec.architecture}': what {spec.name} caches is up to its own code"
        )
    if deployment.tp > 1:
        raise UnsupportedByEngine("engine transformers: tensor parallelism (tp_plan) is not covered; use --tp 1")
    if deployment.dcp > 1:
        raise UnsupportedByEngine("engine transformers has no decode context parallelism; drop --dcp")
    if deployment.dtype.name not in ("fp32", "fp16", "bf16"):
        raise UnsupportedByEngine(
            f"engine transformers computes and caches in fp32, fp16 or bf16, not {deployment.dtype.name}; "
            "use --dtype bf16"
        )
    if any(stored != deployment.dtype for stored in deployment.kv):
        given = "/".join(dict.fromkeys(stored.name for stored in deployment.kv))
        raise UnsupportedByEngine(
            f"engine transformers caches in the model's dtype {deployment.dtype.name}, not in {given}; --dtype changes "
            "it, and -o cache=quantized with -o backend=quanto|hqq|fp8 quantises"
        )
    for layer in spec.layers:
        _require_cache_holds(spec, layer, deployment.options)


def _require_cache_holds(spec: ModelSpec, layer: Layer, options: Options) -> None:
    """Raise UnsupportedByEngine where the chosen class of cache has no layer for the kinds."""
    for kind in layer.kinds:
        variant = str(getattr(kind, "variant", ""))
        what = f"{spec.name} has {f'{kind.name} ({variant})' if variant else kind.name} layers"
        if variant == "rwkv":
            raise UnsupportedByEngine(f"{_SOURCE} has RWKV 4 and no later one; {what}")
        if options.cache == "quantized" and not isinstance(kind, Full | Mla):
            raise UnsupportedByEngine(f"a quantized cache holds full-attention layers only; {what}; use cache=dynamic")
        if options.cache == "static" and (kind.name == "compressed" or variant in BESIDE_THE_LAYERS):
            raise UnsupportedByEngine(f"{what}, for which a static cache has no layer; use cache=dynamic")
        if options.cache == "static" and kind.entries() and {each.name for each in layer.kinds} == {"cross"}:
            _require_no_image(spec, kind)
        if not options.config and (isinstance(kind, State) or kind.name in ("indexer", "compressed")):
            raise UnsupportedByEngine(f"{what}, which a cache made without the config cannot hold; drop config=false")
    if options.cache == "quantized" and not layer.kinds:
        raise UnsupportedByEngine(
            f"a quantized cache holds full-attention layers only; {spec.name} has layers without attention; "
            "use cache=dynamic"
        )


def _require_no_image(spec: ModelSpec, kind: Kind) -> None:
    if getattr(kind, "encoder_context", 0):
        raise UnsupportedByEngine(f"{spec.name}'s image layers in a static cache are not covered; use --encoder-ctx 0")


def _footprint(layers: tuple[Layer, ...], settings: _Settings) -> Footprint:
    """Return the terms of one device: the tensors' bytes as they are shaped."""
    return Footprint(
        tuple(
            _term(group, tensor, factors, steps)
            for group in group_layers(layers)
            for move in _layer_moves(group.kind, settings)
            for tensor in move
            for factors, steps in tensor.parts
        )
    )


def _term(group: LayerGroup, tensor: _Tensor, factors: tuple[tuple[str, int], ...], steps: Steps) -> Term:
    in_all_layers = (("layers", len(group.indices)), *factors)
    return Term(group.name, group.kind.name, tensor.role, in_all_layers, steps, tensor.rule)


def _devices_moves(layers: tuple[Layer, ...], settings: _Settings) -> _Moves:
    """Return the moves of one device's layers, in the order of the layers."""
    return tuple(move for layer in layers for kind in layer.kinds for move in _layer_moves(kind, settings))


def _growth_peak(moves: _Moves, n: int, b: int, prompt: int) -> int:
    """Return the most bytes alive while one token is added after n: earlier layers new, later ones old, both in one.

    A statement such as `keys = torch.cat([keys, new])` makes the new tensor before the old one is let go.
    """
    alive = peak = sum(tensor.storage_bytes(n, b, prompt) for move in moves for tensor in move)
    for move in moves:
        peak = max(peak, alive + sum(tensor.made_bytes(n, b) for tensor in move))
        alive += sum(tensor.storage_bytes(n + 1, b, prompt) - tensor.storage_bytes(n, b, prompt) for tensor in move)
    return peak


def _layer_moves(kind: Kind, settings: _Settings) -> _Moves:
    """Return the tensors that the library's cache holds for one layer's kind, those replaced together in one tuple."""
    cached = as_cached(kind, settings.architecture)
    entries = cached.entries()
    if settings.options.cache == "quantized":
        return tuple(move for entry in entries for move in _quantized(entry, settings))
    if cached.name == "compressed":
        return _compressed(entries, settings)
    make = _static if settings.options.cache == "static" else _dynamic
    tensors = tuple(make(entry, settings, cached) for entry in entries)
    if any(tensor.storage in ("window", "ring") for tensor in tensors):
        return (tensors,)  # a sliding layer makes both new tensors before it lets the old ones go
    return tuple((tensor,) for tensor in tensors)


def as_cached(kind: Kind, architecture: str) -> Kind:
    """Return the kind with the dimensions that the library caches.

    Falcon's new decoder architecture caches all query heads. Values are always a tensor of their own, also where a
    model's values are its keys. MiMo-V2's window gets the query that its published figure leaves out.
    """
    if not isinstance(kind, Heads):
        return kind
    changes: dict[str, int] = {}
    if kind.value_dim == 0:
        changes["v_head_dim"] = kind.head_dim
    if architecture in REPEATS_KV_HEADS and kind.kv_heads > 1:
        changes["kv_heads"] = kind.heads
    if architecture in WINDOW_WITHOUT_QUERY and isinstance(kind, Sliding):
        changes["window"] = kind.window + 1
    return kind.model_copy(update=changes)


def _dynamic(entry: CacheEntry, settings: _Settings, kind: Kind) -> _Tensor:
    """DynamicCache: full layers keep every token, sliding and chunked ones one less than the window.

    The token that arrives makes up the window, so the layer cuts its tensors to window - 1 rows, as views.
    """
    retention = entry.retention
    if retention.rule in ("window", "chunk"):
        return _sliding(entry, settings)
    if retention.rule == "all":
        return _Tensor(entry.role, (_part(entry, settings, Steps.per_token()),), f"{_SOURCE} DynamicLayer")
    return _constant(entry, settings, kind)


def _sliding(entry: CacheEntry, settings: _Settings) -> _Tensor:
    """DynamicSlidingWindowLayer. A window of 1 would be cut to the last -0 rows, which are all of them."""
    size = entry.retention.size
    if not settings.options.config or size == 1:
        return _Tensor(entry.role, (_part(entry, settings, Steps.per_token()),), f"{_SOURCE} DynamicLayer")
    part = _part(entry, settings, Steps.window(size - 1))
    return _Tensor(entry.role, (part,), f"{_SOURCE} DynamicSlidingWindowLayer", "window", size)


def _constant(entry: CacheEntry, settings: _Settings, kind: Kind) -> _Tensor:
    """What does not grow: recurrent state, whatever the class of the cache, and the encoder's keys and values."""
    if entry.retention.rule == "encoder":
        part = _part(entry, settings, Steps.constant(entry.retention.size))
        return _Tensor(entry.role, (part,), f"{_SOURCE} EncoderDecoderCache")
    if entry.role == "conv" and settings.architecture in SHORT_CONV_STATE:
        *channels, (_, kept) = entry.axes
        factors = (*channels, ("bytes", settings.dtype.block_bytes))
        rule = f"{_SOURCE} RecurrentGemmaRecurrentBlock"
        return _Tensor("conv", ((factors, Steps.constant(kept)),), rule, "conv", kept + 1)
    return _Tensor(entry.role, (_state(entry, settings, kind),), f"{_SOURCE} LinearAttentionLayer")


def _state(entry: CacheEntry, settings: _Settings, kind: Kind) -> _Part:
    """Recurrent state: fp32 whatever the model's dtype, but for lightning; the convolution's inputs, kernel wide."""
    if entry.role == "ssm" and getattr(kind, "variant", "") not in MODEL_DTYPE_STATES:
        return (*entry.axes, ("bytes", 4)), Steps.constant()
    axes = [("conv_kernel", size + 1) if name == "conv_history" else (name, size) for name, size in entry.axes]
    return (*axes, ("bytes", settings.dtype.block_bytes)), Steps.constant()


def _static(entry: CacheEntry, settings: _Settings, kind: Kind) -> _Tensor:
    """StaticCache: max_cache_len rows from the start, or the window if that is shorter, written in place."""
    retention, length = entry.retention, settings.options.max_cache_len
    if retention.rule in ("state", "encoder") or length is None:
        return _constant(entry, settings, kind)
    if retention.rule == "all":
        return _Tensor(entry.role, (_part(entry, settings, Steps.constant(length)),), f"{_SOURCE} StaticLayer")
    rows = min(length, retention.size)
    part = _part(entry, settings, Steps.constant(rows))
    return _Tensor(entry.role, (part,), f"{_SOURCE} StaticSlidingWindowLayer", "ring", rows)


def _quantized(entry: CacheEntry, settings: _Settings) -> Iterator[tuple[_Tensor, ...]]:
    """QuantizedCache: the prompt is quantised at once; later tokens wait in a tail that is folded in when full."""
    if settings.options.backend == "fp8":
        name = "Fp8QuantizedLayer"
        elements = ((*entry.axes, ("bytes", 1)), Steps.per_token())
        scale = ((("scale_bytes", 4),), Steps.constant().once())
        yield (_Tensor(entry.role, (elements, scale), f"{_SOURCE} {name}, one fp32 scale per tensor"),)
        return
    rule = f"{_SOURCE} QuantizedLayer, groups of {GROUP}"
    yield (_Tensor(entry.role, (*_packed(entry, settings), *_scales(entry, settings)), rule),)
    if settings.prompt is not None:
        waiting = Steps.remainder(settings.residual_length, start=settings.prompt)
        yield (_Tensor(entry.role, (_part(entry, settings, waiting),), f"{rule}: the tail not yet quantised"),)


def _packed(entry: CacheEntry, settings: _Settings) -> tuple[_Part, ...]:
    """Return the packed bits of the quantised tokens.

    quanto packs several groups into one run of 64 bytes and fills up the last run of the batch; hqq packs within a
    group. The prompt fills runs of its own, and every fold adds a whole number of them.
    """
    groups, per_run = _groups(entry), 8 // settings.nbits
    if settings.options.backend == "hqq" or groups % per_run == 0:
        factors = (("groups", groups), ("packed_bytes", GROUP // per_run))
        return tuple(((*factors, *times), steps) for times, steps in _quantized_tokens(settings))
    if groups * settings.residual_length % per_run:
        raise UnsupportedByEngine(
            f"{settings.nbits}-bit quanto with residual_length {settings.residual_length} and rows of {entry.elements} "
            f"elements ends within a packed byte; use a residual_length that {per_run} divides"
        )
    per_sequence = 0 if settings.prompt is None else groups * settings.prompt
    cap = None if settings.prompt is None else 0
    runs = Steps(rate=groups, cap=cap, cap_per_sequence=per_sequence, shift=per_run - 1, width=per_run, scope="pooled")
    parts: tuple[_Part, ...] = (((("run_bytes", GROUP),), runs),)
    if settings.prompt is not None:
        per_fold = groups * settings.residual_length // per_run
        folds = Steps.compressed(settings.residual_length, start=settings.prompt)
        parts += (((("runs_per_fold", per_fold), ("run_bytes", GROUP)), folds),)
    return parts


def _scales(entry: CacheEntry, settings: _Settings) -> tuple[_Part, ...]:
    """Return the scale and the shift of every group, in the model's dtype."""
    factors = (("groups", _groups(entry)), ("scale_and_shift", 2), ("bytes", settings.dtype.block_bytes))
    return tuple(((*factors, *times), steps) for times, steps in _quantized_tokens(settings))


def _quantized_tokens(settings: _Settings) -> tuple[_Part, ...]:
    """Return the quantised tokens: those of the prompt, and whole folds of the tail after it."""
    if settings.prompt is None:
        return (((), Steps.per_token()),)
    fold = settings.residual_length
    return (
        ((), Steps.window(settings.prompt)),
        ((("tokens_per_fold", fold),), Steps.compressed(fold, start=settings.prompt)),
    )


def _groups(entry: CacheEntry) -> int:
    """Return the groups of one token's row; UnsupportedByEngine where the library could not form them."""
    if entry.elements % GROUP:
        raise UnsupportedByEngine(
            f"a quantized cache needs groups of {GROUP} elements, which do not divide a token's {entry.elements} "
            f"({' x '.join(str(size) for _, size in entry.axes)})"
        )
    return entry.elements // GROUP


def _compressed(entries: tuple[CacheEntry, ...], settings: _Settings) -> _Moves:
    """DeepSeek-V4's CSA and HCA layers: the window's values are its keys, counted but not stored again."""
    window, *others = entries
    keys = _sliding(window, settings)
    values = _Tensor("v", keys.parts, keys.rule, "shared")
    rule = f"{_SOURCE} DeepseekV4CSACache and DeepseekV4HCACache"
    moves: list[tuple[_Tensor, ...]] = [(keys, values)]
    for entry in others:
        steps = _compressed_steps(entry.retention)
        storage: Literal["own", "buffer"] = "buffer" if entry.retention.rule == "remainder" else "own"
        moves.append((_Tensor(entry.role, (_part(entry, settings, steps),), rule, storage),))
    return tuple(moves)


def _compressed_steps(retention: Retention) -> Steps:
    """One entry per whole group of tokens, the tokens that wait for the next, and the overlap with the last."""
    if retention.rule == "compressed":
        return Steps.compressed(retention.size)
    if retention.rule == "remainder":
        return Steps.remainder(retention.size)
    return Steps.onset(retention.size - 1)


def _part(entry: CacheEntry, settings: _Settings, steps: Steps) -> _Part:
    """Return the bytes of the rows of an entry, in the model's dtype (or fp32 where the kind says so)."""
    each = 4 if entry.element == "fp32" else settings.dtype.block_bytes
    return (*entry.axes, ("bytes", each)), steps


def _product(factors: tuple[tuple[str, int], ...]) -> int:
    return math.prod(value for _, value in factors)


ENGINE = Transformers()
