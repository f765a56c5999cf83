"""Sections 1 to 3, a model's layers as llama.cpp's memory: which cache holds which layer, and rows of what size."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from kvcalc.engines._llama_cpp.architectures import Architecture, find_architecture
from kvcalc.engines._llama_cpp.cells import Span
from kvcalc.errors import UnsupportedByEngine
from kvcalc.footprint import Role
from kvcalc.spec.kinds import Chunked, Compressed, Cross, Heads, Indexer, Kind, Shared, Sliding, State
from kvcalc.spec.kinds.mla import Mla
from kvcalc.spec.kinds.state import GatedDeltaNet, Kda, Lightning, Mamba1, Mamba2, Rwkv, ShortConv
from kvcalc.spec.model import ModelSpec

Axes = tuple[tuple[str, int], ...]

WHOLE_CONTEXT = Span()

# What a memory is called once some layers are recurrent.
_WITH_STATES = {"kv": "hybrid", "iswa": "hybrid_iswa", "none": "recurrent"}

# DeepSeek-V4's two ratios; the compressors' buffers are known for these alone.
CSA_RATIO, HCA_RATIO = 4, 128


@dataclass(frozen=True)
class Row:
    """What one cell of one layer holds on the K or the V side; a head is what a block format has to divide."""

    axes: Axes
    role: Role

    @property
    def elements(self) -> int:
        """Elements of the row, all heads together."""
        return math.prod(size for _, size in self.axes)

    @property
    def head(self) -> int:
        """Elements of one head."""
        return self.axes[-1][1]


@dataclass(frozen=True)
class KvLayer:
    """One layer in a cache: its index, the spec's name for it, its K row, and its V row if V is stored."""

    index: int
    label: str
    kind: str
    k: Row
    v: Row | None


@dataclass(frozen=True)
class Cache:
    """One of llama.cpp's caches; `announced` is the line that its log prints first, with the cells to fill in."""

    name: str
    layers: tuple[KvLayer, ...]
    span: Span = WHOLE_CONTEXT
    announced: tuple[str, ...] = ()


@dataclass(frozen=True)
class StateLayer:
    """One recurrent layer: fp32 elements of its R (convolution) and S (state) rows."""

    index: int
    label: str
    kind: str
    r: int
    s: int


@dataclass(frozen=True)
class Compressor:
    """DeepSeek-V4's compressor states of one sort: two fp32 tensors (kv, score) of `rows` x `width` in each layer."""

    name: str
    title: str
    ratio: int
    rows: int
    width: int
    layers: tuple[tuple[int, str, str], ...]  # index, label, kind


@dataclass(frozen=True)
class MemoryPlan:
    """Everything that llama.cpp allocates for a model's memory, without sizes in cells.

    `v_widths` are the distinct widths that n_head_kv * head_v has over all layers, layers without a cache included.
    """

    architecture: Architecture
    memory_kind: str
    layers: int
    caches: tuple[Cache, ...]
    states: tuple[StateLayer, ...]
    compressors: tuple[Compressor, ...]
    v_widths: frozenset[int]

    @property
    def recurrent(self) -> bool:
        """Whether there is a recurrent memory (even one of no layers, in a hybrid)."""
        return self.memory_kind in ("recurrent", "hybrid", "hybrid_iswa")


def memory_plan(spec: ModelSpec, *, latent: bool, latent_values: bool) -> MemoryPlan:
    """Return the memory of a model.

    `latent` says whether the file has MLA's keys (else keys and values are expanded), `latent_values` whether the
    latent is stored on the V side too (August 2025). UnsupportedByEngine names what llama.cpp does not run or what
    is not covered.
    """
    architecture = find_architecture(spec.architecture)
    layers = _Layers(spec, architecture, latent, latent_values)
    for index, layer in enumerate(spec.layers):
        for name, kind in zip(layer.names, layer.kinds, strict=True):
            layers.add(index, name, kind)
    return layers.plan()


class _Layers:
    """Collects the layers of a spec, sorted into llama.cpp's caches."""

    def __init__(self, spec: ModelSpec, architecture: Architecture, latent: bool, latent_values: bool) -> None:
        self.spec = spec
        self.architecture = architecture
        self.latent = latent and architecture.latent
        self.latent_values = latent_values
        self.by_name = {group.name: group.kind for group in spec.groups()}
        self.full: list[KvLayer] = []
        self.windowed: list[KvLayer] = []
        self.indexers: list[KvLayer] = []
        self.compressed: list[tuple[KvLayer, Compressed]] = []
        self.states: list[StateLayer] = []
        self.windows: set[int] = set()
        self.widths: dict[int, int] = {}

    def add(self, index: int, name: str, kind: Kind) -> None:
        """Put one kind of one layer where llama.cpp keeps it."""
        if isinstance(kind, State):
            self.states.append(StateLayer(index, name, kind.name, *recurrent_elements(kind)))
        elif isinstance(kind, Indexer):
            self._require_indexer()
            self.indexers.append(
                KvLayer(index, name, kind.name, Row((("index_head_dim", kind.index_head_dim),), "index"), None)
            )
        elif isinstance(kind, Compressed):
            self._require_memory("dsv4", kind)
            layer = KvLayer(index, name, kind.name, Row((("head_dim", kind.head_dim),), "k"), None)
            self.windowed.append(layer)
            self.windows.add(kind.window)
            self.compressed.append((layer, kind))
            self.widths[index] = kind.head_dim
        elif isinstance(kind, Cross):
            if not self.architecture.encoder_decoder:
                raise UnsupportedByEngine(f"cross-attention of {self.spec.architecture} in llama.cpp is not covered")
        else:
            self._attention(index, name, kind)

    def _attention(self, index: int, name: str, kind: Kind) -> None:
        """Put a layer with keys and values, its own or another's, into the cache with or without a window."""
        own = self.by_name[kind.of] if isinstance(kind, Shared) else kind
        k, v, width = self._rows(own)
        self.widths[index] = width
        limit = self.architecture.layers_with_kv
        reads_another = isinstance(kind, Shared) if limit is None else index >= limit
        if reads_another:
            return
        layer = KvLayer(index, name, kind.name, k, v)
        window = self._window(own)
        if window is None:
            self.full.append(layer)
        else:
            self.windows.add(window)
            self.windowed.append(layer)

    def _rows(self, kind: Kind) -> tuple[Row, Row | None, int]:
        """Return the K row, the V row if one is stored, and n_head_kv * head_v as the file would give it."""
        if isinstance(kind, Mla):
            return self._latent_rows(kind) if self.latent else self._expanded_rows(kind)
        if not isinstance(kind, Heads):
            raise UnsupportedByEngine(f"{kind.name} layers in llama.cpp are not covered")
        k = Row((("kv_heads", kind.kv_heads), ("head_dim", kind.head_dim)), "k")
        if kind.value_dim == 0:
            self._require_memory("dsv4", kind)
            return k, None, kind.head_dim
        v = Row((("kv_heads", kind.kv_heads), ("head_dim", kind.value_dim)), "v")
        return k, v, v.elements

    def _latent_rows(self, kind: Mla) -> tuple[Row, Row | None, int]:
        k = Row((("latent_and_rope", kind.kv_lora_rank + kind.qk_rope_head_dim),), "latent")
        v = Row((("kv_lora_rank", kind.kv_lora_rank),), "latent") if self.latent_values else None
        return k, v, kind.kv_lora_rank

    def _expanded_rows(self, kind: Mla) -> tuple[Row, Row, int]:
        """MLA without its keys in the file: ordinary keys and values for every head."""
        if kind.qk_nope_head_dim is None or kind.v_head_dim is None:
            raise UnsupportedByEngine("expanded MLA needs qk_nope_head_dim and v_head_dim in the spec")
        k = Row((("heads", kind.heads), ("head_dim", kind.qk_nope_head_dim + kind.qk_rope_head_dim)), "k")
        v = Row((("heads", kind.heads), ("head_dim", kind.v_head_dim)), "v")
        return k, v, v.elements

    def _window(self, kind: Kind) -> int | None:
        """Return the window by which llama.cpp sizes this layer's cache; None where it ignores or has none."""
        architecture = self.architecture
        needed = architecture.windows_need_layers
        if architecture.memory == "dsv4" and isinstance(kind, Sliding):
            return kind.window
        if not architecture.windows or (needed is not None and needed != len(self.spec.layers)):
            return None
        if isinstance(kind, Chunked):
            return architecture.fixed_window or kind.chunk
        return (architecture.fixed_window or kind.window) if isinstance(kind, Sliding) else None

    def _require_memory(self, memory: str, kind: Kind) -> None:
        if self.architecture.memory != memory:
            raise UnsupportedByEngine(
                f"llama.cpp keeps no {kind.describe} for the architecture {self.spec.architecture}"
            )

    def _require_indexer(self) -> None:
        if self.architecture.memory not in ("dsa", "msa"):
            raise UnsupportedByEngine(f"llama.cpp keeps no indexer keys for the architecture {self.spec.architecture}")

    def plan(self) -> MemoryPlan:
        """Return the plan once all layers are in."""
        if len(self.windows) > 1:
            sizes = ", ".join(f"{size:,}" for size in sorted(self.windows))
            raise UnsupportedByEngine(f"llama.cpp has one window for all layers; {self.spec.name} has {sizes}")
        self._add_empty_layers()
        kind, caches = self._caches()
        if self.states or self.architecture.hybrid:
            if kind not in _WITH_STATES:
                raise UnsupportedByEngine(f"recurrent layers of {self.spec.architecture} in llama.cpp are not covered")
            kind = _WITH_STATES[kind]
        return MemoryPlan(
            self.architecture,
            kind,
            len(self.spec.layers),
            caches,
            tuple(self.states),
            self._compressors(),
            frozenset(self._all_widths()),
        )

    def _add_empty_layers(self) -> None:
        """Count layers without attention: an ordinary cache holds them too, with rows of no elements."""
        architecture = self.architecture
        if architecture.hybrid or architecture.memory != "attention" or not (self.full or self.windowed):
            return
        nothing = (("kv_heads", 0), ("head_dim", 0))
        for index, layer in enumerate(self.spec.layers):
            if not layer.kinds:
                self.full.append(KvLayer(index, "padding", "none", Row(nothing, "k"), Row(nothing, "v")))
        self.full.sort(key=lambda layer: layer.index)

    def _caches(self) -> tuple[str, tuple[Cache, ...]]:
        """Return the memory's kind, and its caches in the order in which they are created."""
        full, windowed = tuple(self.full), tuple(self.windowed)
        match self.architecture.memory:
            case "dsv4":
                return "dsv4", self._compressed_caches(windowed)
            case "dsa":
                announced = "llama_kv_cache_dsa: creating {} KV cache, size = {{}} cells"
                return "dsa", self._indexed(full, ("mla", "main"), announced, self.indexers)
            case "msa":
                announced = "llama_kv_cache_msa: creating {} KV cache, size = {{}} cells"
                return "msa", self._indexed(full, ("base", "main"), announced, self._valued_indexers())
        if windowed:
            return "iswa", _windowed_caches(full, windowed, Span("window", next(iter(self.windows))))
        return ("kv", (Cache("unified", full),)) if full or self.architecture.hybrid else ("none", ())

    def _indexed(
        self, full: tuple[KvLayer, ...], names: tuple[str, str], announced: str, indexers: Iterable[KvLayer]
    ) -> tuple[Cache, ...]:
        """The attention's cache and the indexer's, of as many cells."""
        name, title = names
        return (
            Cache(name, full, announced=(announced.format(title),)),
            Cache("indexer", tuple(indexers), announced=(announced.format("indexer"),)),
        )

    def _valued_indexers(self) -> list[KvLayer]:
        """MiniMax-M3's indexer layers: one head, with a V row of the attention's head_v that nothing ever reads."""
        values = {layer.index: layer.v for layer in self.full}
        found = []
        for layer in self.indexers:
            v = values.get(layer.index)
            if v is None:
                raise UnsupportedByEngine(f"layer {layer.index} of {self.spec.name} has an indexer but no attention")
            found.append(KvLayer(layer.index, layer.label, layer.kind, layer.k, Row((v.axes[-1],), "index")))
        return found

    def _compressed_caches(self, windowed: tuple[KvLayer, ...]) -> tuple[Cache, ...]:
        """DeepSeek-V4: a window in every layer, compressed entries beside it, and CSA's indexer keys."""
        if self.full:
            raise UnsupportedByEngine("full attention layers of DeepSeek-V4 in llama.cpp are not covered")
        csa = [(layer, kind) for layer, kind in self.compressed if kind.ratio == CSA_RATIO]
        hca = [layer for layer, kind in self.compressed if kind.ratio == HCA_RATIO]
        if len(csa) + len(hca) < len(self.compressed):
            raise UnsupportedByEngine(f"llama.cpp compresses by {CSA_RATIO} and {HCA_RATIO} only")
        index = [
            KvLayer(
                layer.index, layer.label, layer.kind, Row((("index_head_dim", kind.index_head_dim),), "index"), None
            )
            for layer, kind in csa
            if kind.index_head_dim is not None
        ]
        line = "llama_kv_cache_dsv4: creating DSV4 {} KV cache, size = {{}} cells"
        window = Span("window", next(iter(self.windows), 0), per_slot=True)
        base, raw = _windowed_caches((), windowed, window, "raw_")
        entries = [Span("compressed", ratio, per_slot=True) for ratio in (CSA_RATIO, HCA_RATIO)]
        return (
            Cache(
                base.name, (), Span(per_slot=True), ("llama_kv_cache_dsv4: creating DSV4 raw KV cache", *base.announced)
            ),
            raw,
            Cache("csa", tuple(layer for layer, _ in csa), entries[0], (line.format("CSA compressed"),)),
            Cache("hca", tuple(hca), entries[1], (line.format("HCA compressed"),)),
            Cache("indexer", tuple(index), entries[0], (line.format("lightning-indexer"),)),
        )

    def _compressors(self) -> tuple[Compressor, ...]:
        """The compressors' states: CSA's groups overlap, so that it keeps two of them, twice as wide."""
        if self.architecture.memory != "dsv4":
            return ()
        found = []
        for name, title, ratio in (
            ("csa", "CSA", CSA_RATIO),
            ("hca", "HCA", HCA_RATIO),
            ("lid", "lightning-indexer", CSA_RATIO),
        ):
            members = [(layer, kind) for layer, kind in self.compressed if kind.ratio == ratio]
            widths = {kind.index_head_dim if name == "lid" else kind.head_dim for _, kind in members} - {None}
            layers = tuple((layer.index, layer.label, layer.kind) for layer, _ in members)
            factor = 2 if ratio == CSA_RATIO else 1
            for width in widths:
                found.append(Compressor(name, title, ratio, factor * ratio, factor * (width or 0), layers))
        return tuple(found)

    def _all_widths(self) -> set[int]:
        """Return every layer's n_head_kv * head_v: 0 in layers without attention, unless the file has one number."""
        widths = set(self.widths.values())
        if len(self.widths) < len(self.spec.layers) and not self.architecture.kv_heads_in_every_layer:
            widths.add(0)
        return widths


def _windowed_caches(
    full: tuple[KvLayer, ...], windowed: tuple[KvLayer, ...], span: Span, prefix: str = ""
) -> tuple[Cache, Cache]:
    """Return the cache of the layers that see everything and that of the layers with a window."""
    return (
        Cache(f"{prefix}base", full, announced=("llama_kv_cache_iswa: creating non-SWA KV cache, size = {} cells",)),
        Cache(f"{prefix}swa", windowed, span, ("llama_kv_cache_iswa: creating     SWA KV cache, size = {} cells",)),
    )


def recurrent_elements(kind: State) -> tuple[int, int]:
    """Return llama.cpp's n_embd_r and n_embd_s of a recurrent layer, in fp32 elements.

    UnsupportedByEngine for the variants that it does not run (RWKV 4, RG-LRU).
    """
    match kind:
        case Mamba1():
            return (kind.conv_kernel - 1) * kind.channels, kind.state_size * kind.channels
        case Mamba2():
            inner = kind.state_heads * kind.state_head_dim
            return (kind.conv_kernel - 1) * (inner + 2 * kind.groups * kind.state_size), kind.state_size * inner
        case GatedDeltaNet():
            inner, keys = kind.value_heads * kind.value_head_dim, kind.key_heads * kind.key_head_dim
            return (kind.conv_kernel - 1) * (inner + 2 * keys), kind.key_head_dim * inner
        case Kda():
            inner = kind.state_heads * kind.state_head_dim
            return 3 * (kind.conv_kernel - 1) * inner, kind.state_head_dim * inner
        case Rwkv():
            return 2 * kind.channels, kind.channels * kind.state_head_dim
        case ShortConv():
            return (kind.conv_kernel - 1) * kind.channels, 0
        case Lightning():
            return 0, kind.state_head_dim * kind.state_head_dim * kind.state_heads
    raise UnsupportedByEngine(f"llama.cpp has no recurrent state of the variant {getattr(kind, 'variant')}")  # noqa: B009


def is_plain_llama(plan: MemoryPlan) -> bool:
    """Return whether all layers are alike and attend in full, as the closed form of the compute buffer needs."""
    if plan.memory_kind != "kv" or plan.architecture.name != "llama":
        return False
    rows = {(layer.k, layer.v) for layer in plan.caches[0].layers}
    return len(rows) == 1 and len(plan.caches[0].layers) == plan.layers
