"""The memory plan as footprints: terms for every cache and device, allocated and in use."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from kvcalc.engines._llama_cpp.cells import Factors, Span
from kvcalc.engines._llama_cpp.devices import CPU, layer_devices
from kvcalc.engines._llama_cpp.plan import Axes, Cache, KvLayer, MemoryPlan, memory_plan
from kvcalc.engines._llama_cpp.settings import Settings, require_created, uses_flash_attention
from kvcalc.errors import UnsupportedByEngine
from kvcalc.footprint import Footprint, Placement, Rank, Role, Steps, Term
from kvcalc.formats import Format
from kvcalc.spec.model import ModelSpec

FP32_BYTES = 4

_KV_RULE = "llama.cpp 0c1e5709: rows of K and V for every cell of a cache allocated at start"
_STATE_RULE = "llama.cpp 0c1e5709: fp32 rows of recurrent state for every slot"


@dataclass(frozen=True)
class Memory:
    """A model's memory under some settings: the plan, whether flash attention is on, and where each layer lies."""

    plan: MemoryPlan
    settings: Settings
    flash_attn: bool
    layer_devices: tuple[str, ...]

    @property
    def n_rs_seq(self) -> int:
        """Copies of a recurrent state beside the first; 0 where the architecture has no use for them."""
        return self.settings.n_rs_seq if self.plan.architecture.rollback else 0

    @property
    def padded_v(self) -> int | None:
        """Elements to which every V row is padded: without flash attention, where widths differ between layers."""
        widths = self.plan.v_widths
        return max(widths) if not self.flash_attn and len(widths) > 1 else None

    def v_elements(self, layer: KvLayer) -> int:
        """Return the elements of a layer's V row as stored; 0 if none is."""
        if layer.v is None:
            return 0
        if layer.v.role == "v" and self.padded_v is not None:
            return self.padded_v
        return layer.v.elements

    def device(self, index: int) -> str:
        """Return the device that holds a layer's cache."""
        return self.layer_devices[index] if self.settings.offload_kqv else CPU

    def layer_shares(self) -> tuple[Fraction | None, ...]:
        """Return the share of the layers on every device of `places`; None for the CPU beside GPUs."""
        layers = self.layer_devices
        return tuple(
            None if place == CPU and self.settings.devices else Fraction(layers.count(place), len(layers))
            for place in self.places()
        )

    def places(self) -> tuple[str, ...]:
        """Return the devices in the order of the ranks: the GPUs, then the CPU if it holds any layer."""
        used = {self.device(index) for index in range(self.plan.layers)}
        return (*self.settings.devices, *((CPU,) if CPU in used else ()))


def memory(spec: ModelSpec, settings: Settings) -> Memory:
    """Return a model's memory; UnsupportedByEngine where llama.cpp refuses or a rule is not known."""
    old = settings.version == "2025-08"
    plan = memory_plan(spec, latent=settings.latent, latent_values=old)
    if old and plan.recurrent and plan.caches:
        raise UnsupportedByEngine("hybrids by the rules of August 2025 are not covered; drop -o engine_version")
    require_created(plan, settings)
    blocks = plan.layers + settings.nextn_layers
    devices = layer_devices(blocks, settings.n_gpu_layers, settings.tensor_split, settings.devices)
    return Memory(plan, settings, uses_flash_attention(settings.flash_attn, plan.architecture), devices)


def place(found: Memory, dp: int) -> Placement:
    """Return one rank per device, in the order of `Memory.places`."""
    ranks = [
        Rank(number, 0, Footprint(tuple(_terms(found, device, False))), Footprint(tuple(_terms(found, device, True))))
        for number, device in enumerate(found.places())
    ]
    return Placement(tuple(ranks), dp)


def _terms(found: Memory, device: str, allocated: bool) -> Iterator[Term]:
    for cache in found.plan.caches:
        yield from _cache_terms(found, cache, device, allocated)
    yield from _state_terms(found, device)
    yield from _compressor_terms(found, device)


def _cache_terms(found: Memory, cache: Cache, device: str, allocated: bool) -> Iterator[Term]:
    """Return K and V of one cache on one device, layers with equal rows in one term."""
    steps, cells = _cells(found, cache.span, allocated)
    groups: dict[tuple[str, str, Role, Factors], int] = {}
    for layer in cache.layers:
        if found.device(layer.index) == device:
            for role, row in _rows(found, layer):
                key = (layer.label, layer.kind, role, row)
                groups[key] = groups.get(key, 0) + 1
    for (label, kind, role, row), count in groups.items():
        yield Term(label, kind, role, (("layers", count), *cells, *row), steps, _KV_RULE)


def _cells(found: Memory, span: Span, allocated: bool) -> tuple[Steps, Factors]:
    rule = found.settings.rule
    return rule.allocated(span) if allocated else (rule.used(span), ())


def _rows(found: Memory, layer: KvLayer) -> Iterator[tuple[Role, Factors]]:
    """Return the factors of a layer's K row, and of its V row if one is stored."""
    settings = found.settings
    if layer.k.elements:
        yield layer.k.role, _row_factors(layer.k.axes, settings.type_k)
    width = found.v_elements(layer)
    if layer.v is not None and width:
        axes = layer.v.axes if width == layer.v.elements else (("padded_row", width),)
        yield layer.v.role, _row_factors(axes, settings.type_v)


def _row_factors(axes: Axes, stored: Format) -> Factors:
    """Return the named integers whose product is the bytes of a row; blocks run across heads."""
    if stored.block == 1:
        return (*axes, ("bytes", stored.block_bytes))
    elements = math.prod(size for _, size in axes)
    return ("blocks_per_row", elements // stored.block), ("block_bytes", stored.block_bytes)


def _state_terms(found: Memory, device: str) -> Iterator[Term]:
    """Return the R and S rows of the recurrent layers: allocated whole, whatever the context."""
    groups: dict[tuple[str, str, Role, int], int] = {}
    for layer in found.plan.states:
        if found.device(layer.index) == device:
            parts: tuple[tuple[Role, int], ...] = (("conv", layer.r), ("ssm", layer.s))
            for role, elements in parts:
                if elements:
                    key = (layer.label, layer.kind, role, elements)
                    groups[key] = groups.get(key, 0) + 1
    rows = (("rows", 1 + found.n_rs_seq),)
    for (label, kind, role, elements), count in groups.items():
        factors = (("layers", count), *rows, ("elements", elements), ("bytes", FP32_BYTES))
        yield Term(label, kind, role, factors, found.settings.rule.slots(), _STATE_RULE)


def _compressor_terms(found: Memory, device: str) -> Iterator[Term]:
    """Return DeepSeek-V4's compressor states: a tensor for KV and one for scores in each layer."""
    for part in found.plan.compressors:
        groups: dict[tuple[str, str], int] = {}
        for index, label, kind in part.layers:
            if found.device(index) == device:
                groups[label, kind] = groups.get((label, kind), 0) + 1
        shape = (("rows", part.rows), ("width", part.width), ("bytes", FP32_BYTES))
        for (label, kind), count in groups.items():
            factors = (("layers", count), ("kv_and_score", 2), ("copies", 1 + found.n_rs_seq), *shape)
            yield Term(label, kind, "conv", factors, found.settings.rule.slots(), _STATE_RULE)
