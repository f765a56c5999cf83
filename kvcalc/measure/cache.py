"""A cache allocated for real with torch, so that a prediction can be held against bytes that exist."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvcalc.errors import BadInput, KvcalcError, MissingExtra
from kvcalc.units import format_bytes

DEVICES = ("cpu", "cuda")

# Left to everything else on the machine when a cache is allocated: a full machine is no measurement.
HEADROOM_BYTES = 256 * 2**20

# The first large write starts torch's threads, which take memory of their own.
_WARM_UP_BYTES = 2**20

# CUDA's caching allocator hands out multiples of this (kMinBlockSize in PyTorch's CUDACachingAllocator).
CUDA_ROUNDING_BYTES = 512


@dataclass(frozen=True, slots=True)
class CacheTensor:
    """One tensor of the cache: the kind of layer it belongs to, its shape, and the name of its torch dtype.

    Block formats, which torch does not know, are `uint8`: their last axis counts the bytes of a row.
    """

    label: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def elements(self) -> int:
        """Elements of the tensor."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Allocation:
    """What the tensors took: the bytes of their storages, and what the allocator itself reports beside them.

    `allocator_bytes` is the growth of what `allocator` counts; it includes rounding and the allocator's own needs,
    and is None where the system does not tell.
    """

    storage_bytes: int
    by_label: dict[str, int]
    tensors: int
    allocator: str
    allocator_bytes: int | None
    device_name: str
    torch_version: str


def allocate(tensors: Sequence[CacheTensor], device: str) -> Allocation:
    """Allocate and touch every tensor on `device`, measure them while all are held, and free them again.

    BadInput, before anything is allocated, if they do not fit the free memory of the device; MissingExtra without
    torch; KvcalcError without a GPU for `cuda`, or where torch gives up.
    """
    torch = _torch()
    _require_device(torch, device)
    _require_room(_needed_bytes(torch, tensors), *_free_bytes(torch, device), device)
    _touched(torch, CacheTensor("", (_WARM_UP_BYTES,), "uint8"), device)
    before = _allocator_bytes(torch, device)
    try:
        held = [(tensor.label, _touched(torch, tensor, device)) for tensor in tensors]
    except RuntimeError as error:
        raise KvcalcError(f"torch could not allocate the cache on {device}: {str(error).splitlines()[0]}") from None
    after = _allocator_bytes(torch, device)
    by_label: dict[str, int] = {}
    for label, real in held:
        by_label[label] = by_label.get(label, 0) + int(real.untyped_storage().nbytes())
    return Allocation(
        storage_bytes=sum(by_label.values()),
        by_label=by_label,
        tensors=len(held),
        allocator="torch.cuda.memory_allocated" if device == "cuda" else "resident memory of the process",
        allocator_bytes=None if before is None or after is None else after - before,
        device_name=torch.cuda.get_device_name() if device == "cuda" else "cpu",
        torch_version=str(torch.__version__),
    )


def _torch() -> Any:
    """Return the torch module; MissingExtra if it is not installed."""
    try:
        import torch
    except ImportError:
        raise MissingExtra("torch", "validate") from None
    return torch


def _require_device(torch: Any, device: str) -> None:
    """Raise unless `device` is one that torch can use here."""
    if device not in DEVICES:
        raise BadInput(f"unknown device '{device}'; known: {', '.join(DEVICES)}")
    if device == "cuda" and not torch.cuda.is_available():
        raise KvcalcError(f"--device cuda: torch {torch.__version__} sees no CUDA GPU; use --device cpu")


def _require_room(needed: int, free: int | None, source: str, device: str) -> None:
    """Raise BadInput if `needed` bytes and the headroom are more than is free; an unknown amount is not refused."""
    if free is not None and needed + HEADROOM_BYTES > free:
        raise BadInput(
            f"the cache needs {format_bytes(needed)} ({needed:,} bytes) and {format_bytes(HEADROOM_BYTES)} to spare on "
            f"{device}; available: {format_bytes(free)} ({free:,} bytes, {source}); lower --ctx or --batch"
        )


def _needed_bytes(torch: Any, tensors: Sequence[CacheTensor]) -> int:
    """Return the bytes that the tensors will take, counted from their own shapes and torch's own element sizes."""
    return sum(tensor.elements * int(getattr(torch, tensor.dtype).itemsize) for tensor in tensors)


def _touched(torch: Any, tensor: CacheTensor, device: str) -> Any:
    """Return the tensor with every byte written: memory that is only promised is not measured."""
    real = torch.empty(tensor.shape, dtype=getattr(torch, tensor.dtype), device=device)
    real.view(torch.uint8).fill_(1)
    return real


def _free_bytes(torch: Any, device: str) -> tuple[int | None, str]:
    """Return the bytes that can still be allocated on the device and where that figure comes from."""
    if device == "cuda":
        return int(torch.cuda.mem_get_info()[0]), "torch.cuda.mem_get_info"
    known = [(free, source) for free, source in (_free_ram(), _free_in_cgroup()) if free is not None]
    return min(known) if known else (None, "unknown")


def _free_ram() -> tuple[int | None, str]:
    """Return the memory that the system can still give out: MemAvailable on Linux, else free pages."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024, "MemAvailable in /proc/meminfo"
    except OSError:
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), "free pages by sysconf"
    except (AttributeError, OSError, ValueError):
        return None, "unknown"


def _free_in_cgroup(folder: Path = Path("/sys/fs/cgroup")) -> tuple[int | None, str]:
    """Return what a container's memory limit (cgroup v2) leaves; files that can be dropped count as free."""
    try:
        limit = (folder / "memory.max").read_text(encoding="ascii").strip()
        used = int((folder / "memory.current").read_text(encoding="ascii"))
        statistics = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines())
    except (OSError, ValueError):
        return None, "unknown"
    if not limit.isdigit():
        return None, "unlimited"
    return max(int(limit) - used + int(statistics.get("inactive_file", 0)), 0), "the container's memory limit"


def _allocator_bytes(torch: Any, device: str) -> int | None:
    """Return what is allocated now: by torch on the GPU, or the resident memory of this process; None if unknown."""
    if device == "cuda":
        torch.cuda.synchronize()
        return int(torch.cuda.memory_allocated())
    try:
        resident_pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return None
    return resident_pages * os.sysconf("SC_PAGE_SIZE")
