"""What the transformers library itself holds: its cache objects, and whole models, run on torch's meta device.

The meta device knows shapes and storages and no data, so that a cache of any size is measured on any machine. Only
quantised caches, whose packing happens in kernels, need real memory. What is kept for how long is the library's doing:
shapes and configurations go in, bytes of tensors and storages come out. torch and transformers are imported inside
functions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from kvcalc.engines._base import Deployment
from kvcalc.engines.transformers import Options, as_cached
from kvcalc.errors import BadInput, KvcalcError, MissingExtra, UnsupportedByEngine
from kvcalc.spec.kinds import Compressed, Cross, Heads, Kind, Mla, State
from kvcalc.spec.model import Layer, ModelSpec
from kvcalc.units import format_bytes

PURPOSE = "validate --engine transformers"
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
# A quantised cache is really allocated; beyond this, a shorter context shows the same.
QUANTISED_LIMIT_BYTES = 2**30
# Model types whose output leaves their cache out.
RETURNS_NO_CACHE = frozenset({"recurrent_gemma"})
# Decode steps are run one by one.
STEPS_LIMIT = 10_000


@dataclass(frozen=True)
class LayerShape:
    """What one layer writes into the cache, in elements; None or 0 for what it has not.

    `layer_type` is the library's name (`full_attention`, `sliding_attention`, `linear_attention`, ...). `labels` says
    whose bytes the parts are: keys and values, `index`, `state`, `cross`.
    """

    layer_type: str
    labels: Mapping[str, str]
    keys: tuple[int, int] | None = None
    """Heads and elements of one head."""
    values: tuple[int, int] | None = None
    window: int = 0
    index_head_dim: int = 0
    conv: tuple[int, int] | None = None
    """Channels and kernel of the convolution."""
    recurrent: tuple[int, ...] | None = None
    ratio: int = 0
    """Tokens that become one compressed entry (DeepSeek-V4)."""
    encoder: int = 0
    """Positions of the encoder in this layer's cross-attention, whose shape is that of keys and values."""


@dataclass(frozen=True)
class CacheChoice:
    """Which cache to make, by the names of the library's arguments."""

    cache: str = "dynamic"
    config: bool = True
    max_cache_len: int | None = None
    backend: str | None = None
    nbits: int | None = None
    residual_length: int | None = None


@dataclass(frozen=True)
class Measured:
    """Bytes of the cache's tensors (`total_bytes`, by layer and by label) and of the distinct storages behind them.

    Tensors without elements do not count, and neither does the storage that such a view keeps alive.
    `growth_peak_bytes` is the most that lay there during the step after: None where it was not measured.
    """

    total_bytes: int
    storage_bytes: int
    by_layer: tuple[int, ...]
    by_label: Mapping[str, int]
    after_decode_bytes: int
    after_decode_storage_bytes: int
    growth_peak_bytes: int | None
    tensors: tuple[tuple[int, tuple[int, ...], str], ...] = field(repr=False)
    """Layer, shape and dtype of every tensor."""
    device: str = "meta"
    transformers_version: str = ""
    torch_version: str = ""


def measure_spec(spec: ModelSpec, deployment: Deployment[Options], context: int, batch: int) -> Measured:
    """Return what the library's cache holds for a spec and the options of the engine `transformers`.

    UnsupportedByEngine for several devices or replicas; else as for `layer_shapes` and `measure_layers`.
    """
    for name in ("pp", "dp"):
        if getattr(deployment, name) > 1:
            raise UnsupportedByEngine(f"one cache on one device is compared with the library's; drop --{name}")
    options = deployment.options
    return measure_layers(
        layer_shapes(spec),
        CacheChoice(**options.model_dump(exclude={"prompt_tokens"})),
        dtype=deployment.dtype.name,
        batch=batch,
        prompt=options.prompt_tokens or context,
        context=context,
    )


def layer_shapes(spec: ModelSpec) -> tuple[LayerShape, ...]:
    """Return what every layer of a model writes into the cache, and the library's names of the layers' types.

    UnsupportedByEngine for state that the library keeps in the model's modules or beside the cache's layers.
    """
    return tuple(_layer_shape(layer, spec) for layer in spec.layers)


_LAYER_TYPES = {"full": "full_attention", "sliding": "sliding_attention", "chunked": "chunked_attention"}
_OUTSIDE = {"rg_lru": "recurrent_gemma", "rwkv4": "rwkv", "lightning": "minimax"}


def _layer_shape(layer: Layer, spec: ModelSpec) -> LayerShape:
    """Return one layer's shape, put together from its kinds."""
    parts: dict[str, Any] = {}
    labels: dict[str, str] = {}
    types: list[str] = []
    for name, written in zip(layer.names, layer.kinds, strict=True):
        kind = as_cached(written, spec.architecture)
        parts |= _parts(kind, spec)
        labels[_role(kind)] = name
        types.append(_layer_type(kind))
    return LayerShape(_joint_type(types), labels, **parts)


def _role(kind: Kind) -> str:
    """Return whose bytes a kind's tensors are, as `LayerShape.labels` names them."""
    return {"state": "state", "indexer": "index", "cross": "cross"}.get(kind.name, "keys")


def _layer_type(kind: Kind) -> str:
    """Return the library's name for a layer that has this kind alone."""
    if kind.name == "compressed":
        csa = getattr(kind, "index_head_dim", None) is not None
        return "compressed_sparse_attention" if csa else "heavily_compressed_attention"
    if isinstance(kind, State):
        return "linear_attention"
    return _LAYER_TYPES.get(
        kind.name, {"mla": "full_attention", "indexer": "indexed_attention"}.get(kind.name, "dummy")
    )


def _joint_type(types: Sequence[str]) -> str:
    """Return the library's name for a layer that has kinds of these types."""
    attention = [name for name in types if name not in ("linear_attention", "dummy")]
    if "linear_attention" in types and attention:
        return "hybrid" if attention == ["full_attention"] else "hybrid_sliding"
    if "indexed_attention" in types:
        return "indexed_attention"
    return next(iter([*attention, *types]), "dummy")


def _parts(kind: Kind, spec: ModelSpec) -> dict[str, Any]:
    """Return the fields of LayerShape that a kind decides."""
    if isinstance(kind, State):
        return _state_parts(kind, spec)
    if isinstance(kind, Mla):
        return {"keys": (1, kind.kv_lora_rank), "values": (1, kind.qk_rope_head_dim)}
    if isinstance(kind, Heads):
        shape = {"keys": (kind.kv_heads, kind.head_dim), "values": (kind.kv_heads, kind.value_dim)}
        if isinstance(kind, Cross):
            return {**shape, "encoder": kind.encoder_context} if kind.encoder_context else {}
        return {**shape, "window": getattr(kind, "window", getattr(kind, "chunk", 0))}
    names = ("window", "ratio", "index_head_dim")
    found: dict[str, Any] = {name: getattr(kind, name) for name in names if getattr(kind, name, None) is not None}
    if isinstance(kind, Compressed):
        found["keys"] = found["values"] = (1, kind.head_dim)
    return found


def _state_parts(kind: State, spec: ModelSpec) -> dict[str, Any]:
    variant = str(getattr(kind, "variant"))  # noqa: B009  (each variant declares its own Literal)
    if variant in _OUTSIDE or variant == "rwkv":
        raise UnsupportedByEngine(f"{spec.name}: the library keeps {variant} state outside its cache's layers")
    parts: dict[str, Any] = {}
    convolutions = [dict(entry.axes) for entry in kind.entries() if entry.role == "conv"]
    if convolutions:
        kernel = convolutions[0]["conv_history"] + 1
        channels = sum(math.prod(axes.values()) // axes["conv_history"] for axes in convolutions)
        parts["conv"] = (channels, kernel)
    for entry in kind.entries():
        if entry.role == "ssm":
            parts["recurrent"] = tuple(size for _, size in entry.axes)
    return parts


def measure_layers(
    layers: Sequence[LayerShape], choice: CacheChoice, *, dtype: str, batch: int, prompt: int, context: int
) -> Measured:
    """Return what the library's cache holds after a prefill of `prompt` tokens and steps up to `context`.

    `dtype` is fp32, fp16 or bf16. MissingExtra without torch and transformers; UnsupportedByEngine where the library
    keeps a layer's state outside its cache objects; BadInput for a run that would be too long or too large.
    """
    torch, cache_utils = _library()
    _require_small(layers, choice, batch, context, prompt)
    run = _CacheRun(torch, cache_utils, tuple(layers), choice, getattr(torch, DTYPES[dtype]), batch)
    run.add(prompt)
    for _ in range(context - prompt):
        run.add(1)
    now = _Snapshot.of(run.tensors())
    meter = _meter(torch, run.tensors()) if run.can_be_metered else None
    run.add(1, meter)
    peak = None if meter is None else int(meter.peak)
    return now.measured(_Snapshot.of(run.tensors()), len(layers), peak, run.device)


def measure_model(
    config: Mapping[str, Any], *, dtype: str, batch: int, prompt: int, encoder_context: int = 0
) -> Measured:
    """Return what a whole model of the library, built from a config.json's content, holds after a prefill.

    The model's own code makes the cache and fills it, on the meta device; what it keeps in its modules counts too.
    KvcalcError where the library does not know the model type or its code cannot run without data.
    """
    _library()
    model = _build(config, dtype)
    output = _forward(model, batch=batch, tokens=prompt, encoder_context=encoder_context)
    cache = _cache_of(output)
    now = _Snapshot.of(_model_tensors(model, cache))
    longer = _forward(model, batch=batch, tokens=1, encoder_context=encoder_context, cache=cache, before=output)
    after = _Snapshot.of(_model_tensors(model, _cache_of(longer) or cache))
    layers = 1 + max((layer for layer, *_ in now.tensors), default=-1)
    return now.measured(after, layers)


@dataclass(frozen=True)
class _Held:
    """One tensor of the cache: the layer it belongs to, whose bytes it is."""

    layer: int
    label: str
    tensor: Any


@dataclass(frozen=True)
class _Snapshot:
    """Numbers of a cache at one moment, without a hold on its tensors: a step must be able to let them go."""

    tensors: tuple[tuple[int, str, tuple[int, ...], str, int], ...]
    """Layer, label, shape, dtype and bytes of every tensor."""
    storage_bytes: int

    @classmethod
    def of(cls, held: Sequence[_Held]) -> _Snapshot:
        """Return the numbers of some tensors."""
        storages = {item.tensor.untyped_storage()._cdata: item.tensor.untyped_storage().nbytes() for item in held}
        rows = tuple(
            (item.layer, item.label, tuple(item.tensor.shape), str(item.tensor.dtype), _tensor_bytes(item.tensor))
            for item in held
        )
        return cls(rows, sum(storages.values()))

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors as they are shaped."""
        return sum(size for *_, size in self.tensors)

    def measured(self, after: _Snapshot, layers: int, peak: int | None = None, device: str = "meta") -> Measured:
        """Return the result, given the numbers one step later."""
        by_label: dict[str, int] = {}
        by_layer = [0] * layers
        for layer, label, _, _, size in self.tensors:
            by_label[label] = by_label.get(label, 0) + size
            by_layer[layer] += size
        return Measured(
            total_bytes=self.total_bytes,
            storage_bytes=self.storage_bytes,
            by_layer=tuple(by_layer),
            by_label=by_label,
            after_decode_bytes=after.total_bytes,
            after_decode_storage_bytes=after.storage_bytes,
            growth_peak_bytes=peak,
            tensors=tuple((layer, shape, dtype) for layer, _, shape, dtype, _ in self.tensors),
            device=device,
            **_versions(),
        )


def _tensor_bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


@dataclass
class _CacheRun:
    """A cache of the library that is filled with tensors of the right shapes instead of a model's."""

    torch: Any
    cache_utils: Any
    layers: tuple[LayerShape, ...]
    choice: CacheChoice
    dtype: Any
    batch: int
    filled: int = 0

    def __post_init__(self) -> None:
        """Make one layer object of the library for every layer, and one for its cross-attention."""
        self.device = "cpu" if self.choice.cache == "quantized" else "meta"
        self.self_attention = [self._layer(shape) for shape in self.layers]
        self.cross_attention = [self._cross(shape) if shape.encoder else None for shape in self.layers]

    @property
    def can_be_metered(self) -> bool:
        """Whether what the objects allocate during a step is cache: not the working memory of a quantisation."""
        return self.choice.cache != "quantized" and not any(shape.ratio for shape in self.layers)

    def add(self, tokens: int, meter: Any = None) -> None:
        """Write `tokens` more tokens into every layer, in order."""
        for index, shape in enumerate(self.layers):
            self._add_state(index, shape, tokens)
            if shape.keys is not None and shape.values is not None and shape.layer_type != "cross":
                self._add_attention(index, shape, tokens, meter)
            self._add_compressed(index, shape, tokens)
            self._add_encoder(index, shape)
        self.filled += tokens

    def tensors(self) -> list[_Held]:
        """Return the tensors that the layers hold now."""
        held: list[_Held] = []
        for index, shape in enumerate(self.layers):
            for name, value in vars(self.self_attention[index]).items() if self.self_attention[index] else ():
                label = shape.labels.get(_part_of(name), shape.labels.get("keys", ""))
                held += [_Held(index, label, tensor) for tensor in _tensors(value, self.torch)]
            for tensor in _tensors(vars(self.cross_attention[index] or SimpleNamespace()), self.torch):
                held.append(_Held(index, shape.labels["cross"], tensor))
        return held

    def _layer(self, shape: LayerShape) -> Any:
        """Return the library's object for one layer, None for a layer that only attends to the encoder."""
        if shape.layer_type == "cross":
            return None
        choice, known = self.choice, self.cache_utils
        if choice.cache == "quantized":
            return self._quantized_layer()
        if not choice.config:
            return known.DynamicLayer()
        if shape.ratio:
            return self._compressed_layer(shape)
        static = choice.cache == "static"
        mapping = known.STATIC_LAYER_TYPE_MAPPING if static else known.DYNAMIC_LAYER_TYPE_MAPPING
        arguments: dict[str, Any] = {"sliding_window": shape.window} if shape.window else {}
        return mapping[shape.layer_type](**({"max_cache_len": choice.max_cache_len} if static else {}), **arguments)

    def _quantized_layer(self) -> Any:
        names = {"hqq": "HQQQuantizedLayer", "fp8": "Fp8QuantizedLayer"}
        given = {"nbits": self.choice.nbits, "residual_length": self.choice.residual_length}
        made = getattr(self.cache_utils, names.get(self.choice.backend or "", "QuantoQuantizedLayer"))
        try:
            return made(**{name: value for name, value in given.items() if value is not None})
        except ImportError as error:
            raise KvcalcError(str(error).strip()) from None

    def _compressed_layer(self, shape: LayerShape) -> Any:
        """Return DeepSeek-V4's layer object, which takes its sizes from the model's config."""
        from transformers.models.deepseek_v4 import modeling_deepseek_v4 as module

        made = module.DeepseekV4CSACache if shape.index_head_dim else module.DeepseekV4HCACache
        kinds = ("heavily_compressed_attention", "compressed_sparse_attention")
        rates = dict.fromkeys(kinds, shape.ratio)
        return made(SimpleNamespace(sliding_window=shape.window, compress_rates=rates))

    def _cross(self, shape: LayerShape) -> Any:
        known = self.cache_utils
        return known.StaticLayer(shape.encoder) if self.choice.cache == "static" else known.DynamicLayer()

    def _empty(self, *shape: int, dtype: Any = None) -> Any:
        return self.torch.zeros(shape, dtype=dtype or self.dtype, device=self.device)

    def _keys_and_values(self, shape: LayerShape, tokens: int) -> tuple[Any, Any]:
        assert shape.keys is not None
        assert shape.values is not None
        made = [self._empty(self.batch, heads, tokens, size) for heads, size in (shape.keys, shape.values)]
        return made[0], made[1]

    def _add_state(self, index: int, shape: LayerShape, tokens: int) -> None:
        layer = self.self_attention[index]
        if shape.conv is not None:
            channels, kernel = shape.conv
            layer.update_conv_state(self._empty(self.batch, channels, tokens), conv_kernel_size=kernel)
        if shape.recurrent is not None:
            layer.update_recurrent_state(self._empty(self.batch, *shape.recurrent, dtype=self.torch.float32))

    def _add_attention(self, index: int, shape: LayerShape, tokens: int, meter: Any) -> None:
        layer = self.self_attention[index]
        new = self._keys_and_values(shape, tokens)
        _metered(meter, new, lambda: layer.update(*new))
        if shape.index_head_dim and not shape.ratio:
            key = self._empty(self.batch, tokens, shape.index_head_dim)
            _metered(meter, (key,), lambda: layer.update_indexer(key))

    def _add_compressed(self, index: int, shape: LayerShape, tokens: int) -> None:
        """Do what DeepSeek-V4's compressor does with its layer object, but for the arithmetic."""
        layer = self.self_attention[index]
        if not shape.ratio or shape.keys is None:
            return
        overlaps = bool(shape.index_head_dim)
        parts = {"compressor": shape.keys[1], "indexer": shape.index_head_dim}
        for name, size in parts.items() if overlaps else [("compressor", parts["compressor"])]:
            wide = size * (2 if overlaps else 1)
            new = [self._empty(self.batch, tokens, wide) for _ in range(2)]
            whole, gate, _ = layer.store_compression_weights(name, *new)
            groups = whole.shape[1] // shape.ratio
            layer.update_compressor_states(name, self._empty(self.batch, groups, size))
            if overlaps and groups:
                chunks = [part.reshape(self.batch, groups, shape.ratio, wide) for part in (whole, gate)]
                layer.update_overlap_state(name, chunks[0], chunks[1].to(self.torch.float32), size)

    def _add_encoder(self, index: int, shape: LayerShape) -> None:
        cross = self.cross_attention[index]
        if cross is not None and not self.filled:
            cross.update(*self._keys_and_values(shape, shape.encoder))


def _part_of(attribute: str) -> str:
    """Return whose bytes an attribute of a layer object is."""
    if "state" in attribute:
        return "state"
    return "index" if attribute.startswith("indexer") else "keys"


def _metered(meter: Any, given: Sequence[Any], write: Callable[[], object]) -> None:
    """Run a write under the meter, if there is one; what is given to it is the model's, not the cache's."""
    if meter is None:
        write()
        return
    for tensor in given:
        meter.see(tensor, counted=False)
    with meter:
        write()


def _meter(torch: Any, held: Sequence[_Held]) -> Any:
    """Return a dispatch mode whose `peak` is the most bytes alive at any operation run under it.

    It starts with the storages of `held` and adds every floating-point storage that an operation makes. Storages are
    known by weak references, so that what Python lets go is gone.
    """
    from torch.multiprocessing.reductions import StorageWeakRef
    from torch.utils._python_dispatch import TorchDispatchMode

    class Meter(TorchDispatchMode):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.known: list[tuple[Any, int]] = []
            self.peak = 0

        def see(self, tensor: Any, counted: bool = True) -> None:
            storage = tensor.untyped_storage()
            self.known = [(ref, size) for ref, size in self.known if not ref.expired()]
            if tensor.dtype.is_floating_point and all(ref.cdata != storage._cdata for ref, _ in self.known):
                self.known.append((StorageWeakRef(storage), storage.nbytes() if counted else 0))
            self.peak = max(self.peak, sum(size for _, size in self.known))

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            for tensor in _tensors(made, torch, empty_too=True):
                self.see(tensor)
            return made

    meter = Meter()
    for item in held:
        meter.see(item.tensor)  # not in the class, whose methods would hold on to what they mention
    return meter


def _build(config: Mapping[str, Any], dtype: str) -> Any:
    """Return the model on the meta device, in evaluation mode."""
    import torch
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    values = dict(config.get("text_config") or config)
    model_type = str(values.pop("model_type", ""))
    try:
        settings = AutoConfig.for_model(model_type, **values)
    except ValueError:
        version = _versions()["transformers_version"]
        raise KvcalcError(f"transformers {version} has no model type '{model_type}'") from None
    # A text model that only generates as a part of a larger one has no head of its own.
    made = next(
        (auto for auto in (AutoModelForCausalLM, AutoModelForSeq2SeqLM) if type(settings) in auto._model_mapping),
        AutoModel,
    )
    with torch.device("meta"):
        model = made.from_config(settings, dtype=getattr(torch, DTYPES[dtype]), experts_implementation="batched_mm")
    model.config.pad_token_id = None  # with one, some models look for it in the tokens, which have no data
    return model.eval()


def _forward(
    model: Any, *, batch: int, tokens: int, encoder_context: int, cache: Any = None, before: Any = None
) -> Any:
    """Run `tokens` more tokens through the model and return its output.

    The model makes its cache itself. One that does not return it (RecurrentGemma) is given the one that generation
    would give it; it goes into the output, where others have theirs.
    """
    import torch
    from transformers import DynamicCache

    ids = torch.zeros((batch, tokens), dtype=torch.long, device="meta")
    given: dict[str, Any] = {"use_cache": True, "input_ids": ids}
    if model.config.is_encoder_decoder:
        encoder = torch.zeros((batch, encoder_context), dtype=torch.long, device="meta")
        read = {"input_ids": encoder} if before is None else {"encoder_outputs": (before.encoder_last_hidden_state,)}
        given = {"use_cache": True, "decoder_input_ids": ids, **read}
    if model.config.model_type in RETURNS_NO_CACHE and cache is None:
        cache = DynamicCache(config=model.config)
    if cache is not None:
        given["state" if isinstance(cache, list) else "cache"] = cache
    try:
        with torch.no_grad():
            output = model(**given)
    except (RuntimeError, NotImplementedError) as error:
        raise KvcalcError(f"{type(model).__name__} does not run without data: {str(error).splitlines()[0]}") from None
    if model.config.model_type in RETURNS_NO_CACHE:
        output["cache"] = cache
    return output


def _cache_of(output: Any) -> Any:
    """Return the cache in a model's output: a cache object, or RWKV's list of states."""
    cache = getattr(output, "cache", None)
    return getattr(output, "state", None) if cache is None else cache


def _model_tensors(model: Any, cache: Any) -> list[_Held]:
    """Return the tensors of the cache, layer by layer, and those that it or the modules keep beside the layers."""
    import torch

    parts = [getattr(cache, "self_attention_cache", cache), getattr(cache, "cross_attention_cache", None)]
    held: list[_Held] = []
    for part in parts:
        for index, layer in enumerate(getattr(part, "layers", ())):
            held += [_Held(index, "", tensor) for tensor in _tensors(vars(layer), torch)]
    attributes = {} if isinstance(cache, list) else vars(parts[0])
    beside = cache if isinstance(cache, list) else [value for name, value in attributes.items() if name != "layers"]
    held += [_Held(0, "", tensor) for tensor in _tensors(beside, torch)]
    for module in model.modules():
        # Parameters and buffers are in the private dictionaries; a plain attribute is state.
        state = (value for value in vars(module).values() if isinstance(value, torch.Tensor) and value.dim() > 1)
        held += [_Held(0, "", tensor) for tensor in state]
    return held


def _tensors(value: Any, torch: Any, empty_too: bool = False) -> Iterator[Any]:
    """Yield the tensors of floating-point or packed elements in nested containers; counters and views of nothing not.

    A quantised tensor is yielded as the tensors that it consists of.
    """
    if isinstance(value, torch.Tensor):
        inner = [part for part in vars(value).values() if isinstance(part, torch.Tensor)] if vars(value) else []
        if inner:
            yield from itertools.chain.from_iterable(_tensors(part, torch) for part in inner)
        elif (value.numel() or empty_too) and (value.dtype.is_floating_point or value.dtype == torch.uint8):
            yield value
    elif isinstance(value, Mapping):
        yield from itertools.chain.from_iterable(_tensors(part, torch, empty_too) for part in value.values())
    elif isinstance(value, list | tuple):
        yield from itertools.chain.from_iterable(_tensors(part, torch, empty_too) for part in value)


def _library() -> tuple[Any, Any]:
    """Return torch and the library's module of caches; MissingExtra if they are not installed."""
    try:
        import torch
        from transformers import cache_utils
    except ImportError:
        raise MissingExtra("torch", PURPOSE) from None
    if not hasattr(cache_utils, "DYNAMIC_LAYER_TYPE_MAPPING"):
        raise KvcalcError(f"{PURPOSE} needs transformers 5; {_versions()['transformers_version']} is installed")
    return torch, cache_utils


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {"transformers_version": version("transformers"), "torch_version": version("torch")}


def _require_small(layers: Sequence[LayerShape], choice: CacheChoice, batch: int, context: int, prompt: int) -> None:
    if context - prompt > STEPS_LIMIT:
        raise BadInput(f"{context - prompt:,} decode steps are more than {STEPS_LIMIT:,}; raise prompt_tokens")
    if choice.cache != "quantized":
        return
    elements = sum(math.prod(part) for shape in layers for part in (shape.keys, shape.values) if part is not None)
    needed = 4 * elements * context * batch
    if needed > QUANTISED_LIMIT_BYTES:
        raise BadInput(
            f"a quantised cache is really made, in about {format_bytes(needed)}; lower --ctx or --batch to stay below "
            f"{format_bytes(QUANTISED_LIMIT_BYTES)}"
        )
