"""The engine's own figures for one context and batch: literal arithmetic, independent of the staircases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvcalc.engines._llama_cpp.cells import Context
from kvcalc.engines._llama_cpp.compute import compute_bytes
from kvcalc.engines._llama_cpp.devices import allocated_bytes
from kvcalc.engines._llama_cpp.placement import FP32_BYTES, Memory
from kvcalc.engines._llama_cpp.plan import Cache, Compressor
from kvcalc.spec.model import ModelSpec


@dataclass(frozen=True)
class Tensor:
    """One allocated tensor: the part it belongs to (a cache's name, `recurrent`, `csa state`), its side and device."""

    part: str
    side: str  # k, v, r, s, state
    device: str
    bytes: int
    buffer_bytes: int


@dataclass(frozen=True)
class CacheSize:
    """One cache as the engine reports it: cells of one stream, streams, layers, bytes of K and V."""

    name: str
    cells: int
    streams: int
    layers: int
    k_bytes: int
    v_bytes: int


def tensors(found: Memory, context: Context) -> tuple[Tensor, ...]:
    """Return every tensor of the memory, in the order in which the engine creates them."""
    made: list[Tensor] = []
    for cache in found.plan.caches:
        made += _cache_tensors(found, cache, context)
    rows = max(1, context.n_seq_max) * (1 + found.n_rs_seq)
    for layer in found.plan.states:
        device = found.device(layer.index)
        for side, elements in (("r", layer.r), ("s", layer.s)):
            made.append(_tensor("recurrent", side, device, FP32_BYTES * elements * rows))
    for part in found.plan.compressors:
        each = FP32_BYTES * part.width * part.rows * rows
        name = state_part(part)
        made += [_tensor(name, "state", found.device(index), each) for index, _, _ in part.layers for _ in range(2)]
    return tuple(made)


def state_part(part: Compressor) -> str:
    """Return the `part` of a compressor's tensors, apart from the cache of the same name."""
    return f"{part.name} state"


def _cache_tensors(found: Memory, cache: Cache, context: Context) -> list[Tensor]:
    """Return K and V of every layer: [row, cells, streams]."""
    rule, settings = found.settings.rule, found.settings
    cells = rule.cells(cache.span, context) * rule.streams(cache.span, context)
    made = []
    for layer in cache.layers:
        device = found.device(layer.index)
        rows = (("k", layer.k.elements, settings.type_k), ("v", found.v_elements(layer), settings.type_v))
        for side, elements, stored in rows:
            if elements:
                size = stored.row_bytes(elements) * cells
                made.append(Tensor(cache.name, side, device, size, allocated_bytes(device, size, elements, stored)))
    return made


def _tensor(part: str, side: str, device: str, size: int) -> Tensor:
    return Tensor(part, side, device, size, allocated_bytes(device, size))


def cache_sizes(found: Memory, context: Context, made: tuple[Tensor, ...]) -> tuple[CacheSize, ...]:
    """Return the caches' sizes in the order of their creation."""
    rule = found.settings.rule
    return tuple(
        CacheSize(
            cache.name,
            rule.cells(cache.span, context),
            rule.streams(cache.span, context),
            len(cache.layers),
            total(made, part=cache.name, side="k"),
            total(made, part=cache.name, side="v"),
        )
        for cache in found.plan.caches
    )


def total(made: tuple[Tensor, ...], **wanted: str) -> int:
    """Return the bytes of the tensors whose part, side or device are the wanted ones."""
    return sum(tensor.bytes for tensor in made if all(getattr(tensor, name) == value for name, value in wanted.items()))


def output_buffer_bytes(spec: ModelSpec, found: Memory, context: Context) -> int | None:
    """Return the host buffer of the logits, one row per slot, an encoder's output beside them in encoder-decoders.

    None if the spec gives no vocabulary size.
    """
    if spec.file.vocab_size is None:
        return None
    embedding = spec.file.hidden_size if found.plan.architecture.encoder_decoder else 0
    return FP32_BYTES * (spec.file.vocab_size + embedding) * max(1, context.n_seq_max)


def report(spec: ModelSpec, found: Memory, context: Context, n: int) -> dict[str, Any]:
    """Return the engine report of `kvcalc size --json` for n tokens in each sequence."""
    made = tensors(found, context)
    caches = [dict(vars(size)) for size in cache_sizes(found, context, made)]
    output = output_buffer_bytes(spec, found, context)
    compute, note = compute_bytes(spec, found, context)
    return {
        "memory_kind": found.plan.memory_kind,
        "n_ctx": context.n_ctx,
        "n_ctx_seq": context.n_ctx_seq,
        "n_batch": context.n_batch,
        "n_ubatch": context.n_ubatch,
        "n_seq_max": context.n_seq_max,
        "n_rs_seq": found.n_rs_seq,
        "flash_attn": found.flash_attn,
        "type_k": found.settings.k_name,
        "type_v": found.settings.v_name,
        "cells": context.n_ctx_seq,
        "streams": caches[0]["streams"] if caches else context.streams,
        "context_fits_slot": n <= context.n_ctx_seq,
        **{f"{side}_bytes": total(made, side=side) for side in ("k", "v", "r", "s")},
        "extra_state_bytes": total(made, side="state"),
        "context_bytes": sum(tensor.bytes for tensor in made),
        "caches": caches,
        "recurrent": _recurrent(found, context, made),
        "devices": [_device(found, device, made) for device in found.places()],
        "layer_devices": list(found.layer_devices[: found.plan.layers]),
        "output_buffer_bytes": output,
        "output_buffer_note": None if output is not None else f"the spec of {spec.name} gives no vocab_size",
        "compute_buffer_bytes": compute,
        "compute_buffer_note": note,
        "rotation_bytes": rotation_bytes(found),
    }


def _recurrent(found: Memory, context: Context, made: tuple[Tensor, ...]) -> dict[str, Any] | None:
    """Return the recurrent memory's figures; None if there is none."""
    if not found.plan.recurrent:
        return None
    return {
        "cells": context.n_seq_max,
        "rows": max(1, context.n_seq_max) * (1 + found.n_rs_seq),
        "layers": len(found.plan.states),
        "r_bytes": total(made, side="r"),
        "s_bytes": total(made, side="s"),
    }


def _device(found: Memory, device: str, made: tuple[Tensor, ...]) -> dict[str, Any]:
    """Return what one device holds; `buffer_bytes` with what its allocator adds."""
    here = [tensor for tensor in made if tensor.device == device]
    sides = {
        f"{side}_bytes": sum(tensor.bytes for tensor in here if tensor.side == side) for side in ("k", "v", "r", "s")
    }
    return {
        "name": device,
        "layers": sum(name == device for name in found.layer_devices[: found.plan.layers]),
        **sides,
        "context_bytes": sum(tensor.bytes for tensor in here),
        "buffer_bytes": sum(tensor.buffer_bytes for tensor in here),
    }


def rotation_bytes(found: Memory) -> int:
    """Return the rotation matrices that a quantised cache keeps in host memory, outside the cache (read only, R).

    One fp32 matrix n x n for n = 64, 128, 256, ... up to the largest head, where 64 divides every head.
    """
    sizes = 0
    settings = found.settings
    heads = [
        row.head
        for cache in found.plan.caches
        for layer in cache.layers
        for row, stored in ((layer.k, settings.type_k), (layer.v, settings.type_v))
        if row is not None and stored.block > 1
    ]
    if not heads or any(head % 64 for head in heads):
        return 0
    size = 64
    while size <= max(heads):
        sizes += FP32_BYTES * size * size
        size *= 2
    return sizes
