"""What a deployment asks of llama.cpp, in llama.cpp's terms, and the requests that it refuses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NoReturn

from kvcalc.engines._llama_cpp.architectures import Architecture
from kvcalc.engines._llama_cpp.cells import CellRule
from kvcalc.engines._llama_cpp.plan import MemoryPlan
from kvcalc.errors import UnsupportedByEngine
from kvcalc.formats import Format

Version = Literal["2026-10", "2025-08"]

# kvcalc's name of a format -> ggml's, for the types that --cache-type-k and --cache-type-v take.
CACHE_TYPES = {
    "fp32": "f32",
    "fp16": "f16",
    "bf16": "bf16",
    "q8_0": "q8_0",
    "q5_1": "q5_1",
    "q5_0": "q5_0",
    "q4_1": "q4_1",
    "q4_0": "q4_0",
    "iq4_nl": "iq4_nl",
}


@dataclass(frozen=True)
class Settings:
    """A context's parameters and the devices under it; `devices` empty: everything lies in the CPU's memory."""

    rule: CellRule
    type_k: Format
    type_v: Format
    flash_attn: Literal["auto", "on", "off"] = "auto"
    n_rs_seq: int = 0
    offload_kqv: bool = True
    n_gpu_layers: int = -1
    tensor_split: tuple[float, ...] = ()
    devices: tuple[str, ...] = ()
    nextn_layers: int = 0
    n_outputs_max: int | None = None
    feed_forward_length: int | None = None
    latent: bool = True
    version: Version = "2026-10"

    @property
    def k_name(self) -> str:
        """Name of the K type in ggml."""
        return CACHE_TYPES[self.type_k.name]

    @property
    def v_name(self) -> str:
        """Name of the V type in ggml."""
        return CACHE_TYPES[self.type_v.name]


def require_cache_type(stored: Format) -> None:
    """Raise UnsupportedByEngine for a format that is none of llama.cpp's cache types."""
    if stored.name not in CACHE_TYPES:
        known = " ".join(CACHE_TYPES.values())
        raise UnsupportedByEngine(f"llama.cpp has no cache type {stored.name}; it takes {known}")


def uses_flash_attention(wanted: str, architecture: Architecture) -> bool:
    """Return whether flash attention is used: `auto` is on, and Grok has none."""
    return wanted != "off" and architecture.flash_attn


def require_created(plan: MemoryPlan, settings: Settings) -> None:
    """Raise UnsupportedByEngine, with the engine's own message, where llama_init_from_model refuses the cache types.

    In the engine's order: different types where one tensor serves as both, V quantised without flash attention, heads
    that blocks do not divide.
    """
    flash = uses_flash_attention(settings.flash_attn, plan.architecture)
    type_k, type_v = settings.type_k, settings.type_v
    one_tensor = plan.architecture.memory == "dsv4" or (plan.architecture.latent and settings.latent)
    if one_tensor and type_k != type_v:
        _refuse(f"model does not support different K ({settings.k_name}) and V ({settings.v_name}) cache types")
    if type_v.block > 1 and not flash:
        _refuse("quantized V cache requires flash_attn to be enabled")
    rows = [
        (side, row)
        for cache in plan.caches
        for layer in cache.layers
        for side, row in (("k", layer.k), ("v", layer.v))
        if row is not None and row.elements
    ]
    for side, stored, name in (("k", type_k, settings.k_name), ("v", type_v, settings.v_name)):
        for row in (row for of, row in rows if of == side):
            if flash and row.head % stored.block:
                block = f"cache type {name} with block size {stored.block}"
                _refuse(f"{side.upper()} {block} does not divide n_embd_head_{side}={row.head}")
            if row.elements % stored.block:
                reason = f"{name} stores blocks of {stored.block}, which do not divide a row of {row.elements}"
                raise UnsupportedByEngine(f"llama.cpp aborts: {reason}")


def _refuse(message: str) -> NoReturn:
    raise UnsupportedByEngine(f"llama_init_from_model: {message}")
