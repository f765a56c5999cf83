"""Section 5, the log lines that llama.cpp prints about its memory, character by character."""

from __future__ import annotations

from collections.abc import Iterable

from kvcalc.engines._llama_cpp.cells import Context
from kvcalc.engines._llama_cpp.devices import CPU, float32
from kvcalc.engines._llama_cpp.placement import Memory
from kvcalc.engines._llama_cpp.plan import Cache, Compressor
from kvcalc.engines._llama_cpp.report import (
    CacheSize,
    Tensor,
    cache_sizes,
    output_buffer_bytes,
    state_part,
    tensors,
    total,
)
from kvcalc.spec.model import ModelSpec

_MIB = 1024 * 1024
_PADDED = (
    "llama_kv_cache: the V embeddings have different sizes across layers and FA is not enabled - padding V cache to {}"
)


def log_lines(spec: ModelSpec, found: Memory, context: Context) -> tuple[str, ...]:
    """Return the lines about the output buffer, the caches and the recurrent memory, in the engine's order."""
    made = tensors(found, context)
    lines = _output_line(spec, found, context)
    for cache, size in zip(found.plan.caches, cache_sizes(found, context, made), strict=True):
        lines += _cache_lines(found, cache, size, context, made)
    if found.plan.recurrent:
        lines += _recurrent_lines(found, context, made)
    for part in found.plan.compressors:
        lines += _compressor_lines(found, part, context, made)
    prefix = {"2026-10": "llama_kv_cache:", "2025-08": "llama_kv_cache_unified:"}[found.settings.version]
    return tuple(line.replace("llama_kv_cache:", prefix, 1) for line in lines)


def _output_line(spec: ModelSpec, found: Memory, context: Context) -> list[str]:
    size = output_buffer_bytes(spec, found, context)
    if size is None:
        return []
    return [f"llama_context: {_host(found):>10}  output buffer size = {size / _MIB:8.2f} MiB"]


def _host(found: Memory) -> str:
    """Return the name of the host buffer: pinned memory in a CUDA build."""
    return "CUDA_Host" if any(name.startswith("CUDA") for name in found.settings.devices) else CPU


def _cache_lines(found: Memory, cache: Cache, size: CacheSize, context: Context, made: tuple[Tensor, ...]) -> list[str]:
    """What announces a cache, the padding of V if there is any, a line per buffer, and the sizes."""
    lines = [line.format(_announced_cells(cache, size, context)) for line in cache.announced]
    if found.padded_v is not None:
        lines.append(_PADDED.format(found.padded_v))
    lines += _buffer_lines("llama_kv_cache: {:>10} KV buffer size = {:8.2f} MiB", made, cache.name)
    settings = found.settings
    lines.append(
        f"llama_kv_cache: size = {_mib(size.k_bytes + size.v_bytes)} MiB "
        f"({size.cells:6d} cells, {size.layers:3d} layers, {context.n_seq_max:2d}/{size.streams} seqs), "
        f"K ({settings.k_name}): {_mib(size.k_bytes)} MiB, V ({settings.v_name}): {_mib(size.v_bytes)} MiB"
    )
    return lines


def _announced_cells(cache: Cache, size: CacheSize, context: Context) -> int:
    """Return the cells that the announcement names: those of compressed caches before they are padded."""
    if cache.span.rule == "compressed":
        return max(1, -(-context.n_ctx_seq // cache.span.size))
    return size.cells


def _recurrent_lines(found: Memory, context: Context, made: tuple[Tensor, ...]) -> list[str]:
    """A line per buffer, then the sizes; the layers counted are all of the model's."""
    lines = _buffer_lines("llama_memory_recurrent: {:>10} RS buffer size = {:8.2f} MiB", made, "recurrent")
    r, s = total(made, side="r"), total(made, side="s")
    seqs, states = f"{context.n_seq_max:2d} seqs", f"R (f32): {_mib(r)} MiB, S (f32): {_mib(s)} MiB"
    if found.settings.version == "2026-10":
        seqs, states = f"{seqs} {found.n_rs_seq:2d} rs_seq", f"{states}, P (f32): {_mib(0)} MiB"
    lines.append(
        f"llama_memory_recurrent: size = {_mib(r + s)} MiB "
        f"({context.n_seq_max:6d} cells, {found.plan.layers:3d} layers, {seqs}), {states}"
    )
    return lines


def _compressor_lines(found: Memory, part: Compressor, context: Context, made: tuple[Tensor, ...]) -> list[str]:
    """What announces DeepSeek-V4's compressor states, a line per buffer, and the sizes."""
    lines = [f"llama_kv_cache_dsv4: creating DSV4 {part.title} compressor state"]
    name = f"DSV4 {part.name} state buffer size"
    lines += _buffer_lines("llama_dsv4_comp_state: {:>10} " + name + " = {:8.2f} MiB", made, state_part(part))
    size = total(made, side="state", part=state_part(part))
    shape = f"ratio = {part.ratio}, state = {part.rows} x {part.width}"
    counts = f"streams = {context.n_seq_max}, rs_seq = {found.n_rs_seq}, layers = {len(part.layers)}"
    return [*lines, f"llama_dsv4_comp_state: {part.name} {shape}, {counts}, size = {_mib(size)} MiB"]


def _buffer_lines(line: str, made: Iterable[Tensor], part: str) -> list[str]:
    """One line for every device that holds some of a part, in double precision."""
    sizes: dict[str, int] = {}
    for tensor in made:
        if tensor.part == part:
            sizes[tensor.device] = sizes.get(tensor.device, 0) + tensor.buffer_bytes
    return [line.format(device, size / _MIB) for device, size in sizes.items()]


def _mib(size: int) -> str:
    """Return bytes in MiB as the engine prints them: a single-precision quotient."""
    return f"{float32(float32(size) / _MIB):7.2f}"
