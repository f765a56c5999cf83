"""Section 4, buffers and devices: which device holds a layer, and what its allocator adds to a tensor."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from kvcalc.engines._llama_cpp.cells import pad_to
from kvcalc.formats import Format

CPU = "CPU"

# Multiples to which a backend rounds a tensor. Vulkan's depends on the device; K and V are whole multiples of 256
# bytes, so that only recurrent states could be rounded there.
_ALIGNMENT = {"CUDA": 128}
_DEFAULT_ALIGNMENT = 32

# CUDA reads quantised rows in steps of so many elements and keeps room for the last.
_CUDA_ROW = 512


def float32(x: float) -> float:
    """Return x rounded to an IEEE 754 single."""
    single: float = struct.unpack("<f", struct.pack("<f", x))[0]
    return single


def layer_devices(
    blocks: int, n_gpu_layers: int, tensor_split: Sequence[float], devices: Sequence[str]
) -> tuple[str, ...]:
    """Return the device of each of a model's `blocks` layers.

    The last `n_gpu_layers` of the layers and the output, which counts as one more, go to the GPUs, in proportion to
    `tensor_split` (equal parts if it is empty, as between GPUs with the same free memory). All in single precision.
    """
    wanted = blocks + 1 if n_gpu_layers < 0 else n_gpu_layers
    first, active = max(blocks + 1 - wanted, 0), min(wanted, blocks + 1)
    if not devices or active == 0:
        return (CPU,) * blocks
    bounds = _cumulative(tensor_split or (1.0,) * len(devices), len(devices))
    return tuple(
        CPU if layer < first else _device(float32(float32(layer - first) / float32(active)), bounds, devices)
        for layer in range(blocks)
    )


def _cumulative(split: Sequence[float], count: int) -> list[float]:
    """Return the running sums of the first `count` parts (0 where there are fewer), divided by the whole."""
    sums, total = [], 0.0
    for part in [*split, *(0.0,) * count][:count]:
        total = float32(total + float32(part))
        sums.append(total)
    return [float32(part / total) for part in sums]


def _device(share: float, bounds: list[float], devices: Sequence[str]) -> str:
    """Return the first device whose bound lies above the share."""
    return next((name for name, bound in zip(devices, bounds, strict=True) if share < bound), devices[-1])


def allocated_bytes(device: str, size: int, row: int = 0, stored: Format | None = None) -> int:
    """Return what a tensor of `size` bytes takes in a device's buffer.

    On CUDA a quantised tensor whose rows of `row` elements are no multiple of 512 has room for the rest of the last.
    """
    backend = device.rstrip("0123456789")
    if backend == "CUDA" and stored is not None and stored.block > 1 and row % _CUDA_ROW:
        size += stored.row_bytes(_CUDA_ROW - row % _CUDA_ROW)
    return pad_to(size, _ALIGNMENT.get(backend, _DEFAULT_ALIGNMENT))
