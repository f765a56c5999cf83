"""Allocation without torch: what is laid out, when it is refused, and what the machine says is free."""

from __future__ import annotations

import math
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvcalc import api
from kvcalc.errors import BadInput, KvcalcError, UnsupportedByEngine
from kvcalc.measure import cache
from kvcalc.measure.cache import CacheTensor
from kvcalc.spec.load import index

# IEEE 754 and OFP8; a byte is a byte.
ELEMENT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "uint8": 1}


def laid_out(tensors: tuple[CacheTensor, ...]) -> int:
    """Return the bytes of tensors by their shapes."""
    return sum(math.prod(tensor.shape) * ELEMENT_BYTES[tensor.dtype] for tensor in tensors)


@pytest.mark.parametrize("model", sorted(index()))
@pytest.mark.parametrize("kv_dtype", [None, "q8_0/q4_0"])
def test_the_tensors_of_every_model_take_what_its_placement_says(model: str, kv_dtype: str | None) -> None:
    """Two ways to one number: shapes worked out context by context, and the staircases of the footprint."""
    try:
        setup = api.prepare(model, kv_dtype=kv_dtype)
    except UnsupportedByEngine:
        pytest.skip("blocks of this format do not divide this model's rows")
    for context in (1, 127, 128, 129, 1024, 4099, 8193, 100_001):
        for batch in (1, 3):
            tensors = api.cache_tensors(setup, context, batch)
            assert laid_out(tensors) == setup.placement.total_bytes(context, batch)


def test_tensors_are_laid_out_as_a_decoder_would() -> None:
    """Batch first, then what is kept: tokens, the window's tokens, encoder positions, or nothing for a state."""
    gemma = api.cache_tensors(api.prepare("gemma-3-27b"), 5000, 2)
    assert {(tensor.label, tensor.shape) for tensor in gemma} == {
        ("local", (2, 1024, 16, 128)),
        ("global", (2, 5000, 16, 128)),
    }
    assert len(gemma) == 2 * 62
    mla = api.cache_tensors(api.prepare("deepseek-v3"), 100, 1)
    assert {tensor.shape for tensor in mla} == {(1, 100, 512), (1, 100, 64)}
    mamba = api.cache_tensors(api.prepare("falcon-mamba-7b"), 100, 3)
    assert {(tensor.shape, tensor.dtype) for tensor in mamba} == {
        ((3, 8192, 3), "bfloat16"),
        ((3, 8192, 16), "float32"),
    }
    blocks = api.cache_tensors(api.prepare("gpt2-small", kv_dtype="q8_0/q4_0"), 100, 1)
    assert [(tensor.shape, tensor.dtype) for tensor in blocks[:2]] == [
        ((1, 100, 12, 68), "uint8"),
        ((1, 100, 12, 36), "uint8"),
    ]


class FakeStorage:
    """A storage of so many bytes."""

    def __init__(self, size: int) -> None:
        self._size = size

    def nbytes(self) -> int:
        """Return its bytes."""
        return self._size


class FakeTorch:
    """As much of torch as allocating takes, on a GPU with 1 GiB free; `extra` bytes are added to every storage."""

    __version__ = "9.9"
    uint8 = SimpleNamespace(itemsize=1)
    float16 = SimpleNamespace(itemsize=2)

    def __init__(self, gpu: bool = True, extra: int = 0, fails: bool = False) -> None:
        self.allocated, self.touched, self.fails, self.extra = 0, 0, fails, extra
        self.cuda = SimpleNamespace(
            is_available=lambda: gpu,
            mem_get_info=lambda: (2**30, 2**31),
            memory_allocated=lambda: self.allocated,
            synchronize=lambda: None,
            get_device_name=lambda: "a GPU",
        )

    def empty(self, shape: tuple[int, ...], dtype: Any, device: str) -> Any:
        """Return a tensor, its allocation rounded up to 512 bytes as on a GPU."""
        if self.fails:
            raise RuntimeError("CUDA out of memory.\nTried to allocate everything")
        size = math.prod(shape) * dtype.itemsize + self.extra
        self.allocated += -(-size // 512) * 512

        def touch(_: int) -> None:
            self.touched += 1

        return SimpleNamespace(
            view=lambda _: SimpleNamespace(fill_=touch), untyped_storage=lambda: FakeStorage(size), device=device
        )


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeTorch:
    """Put the fake in torch's place."""
    torch = FakeTorch()
    monkeypatch.setattr(cache, "_torch", lambda: torch)
    return torch


TENSORS = (CacheTensor("a", (2, 100), "float16"), CacheTensor("a", (7,), "uint8"), CacheTensor("b", (3, 5), "float16"))


def test_bytes_are_those_of_the_storages_and_the_allocator_is_told_beside_them(fake: FakeTorch) -> None:
    """Rounding to 512 bytes per tensor shows in the allocator's figure alone."""
    found = cache.allocate(TENSORS, "cuda")
    assert found.by_label == {"a": 407, "b": 30}
    assert (found.storage_bytes, found.tensors) == (437, 3)
    assert (found.allocator, found.allocator_bytes) == ("torch.cuda.memory_allocated", 3 * 512)
    assert (found.device_name, found.torch_version) == ("a GPU", "9.9")
    assert fake.touched == 4  # the warm-up, too


def test_what_does_not_fit_is_refused_before_it_is_allocated(fake: FakeTorch) -> None:
    """With what is needed and what there is, and 256 MiB are left to others."""
    with pytest.raises(BadInput) as refused:
        cache.allocate((CacheTensor("a", (2**28, 3), "uint8"), CacheTensor("a", (1,), "uint8")), "cuda")
    assert str(refused.value) == (
        "the cache needs 768 MiB (805,306,369 bytes) and 256 MiB to spare on cuda; "
        "available: 1.00 GiB (1,073,741,824 bytes, torch.cuda.mem_get_info); lower --ctx or --batch"
    )
    assert fake.allocated == 0
    cache.allocate((CacheTensor("a", (2**28, 3), "uint8"),), "cuda")


def test_a_missing_gpu_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the version, because builds without CUDA are the usual reason."""
    monkeypatch.setattr(cache, "_torch", lambda: FakeTorch(gpu=False))
    with pytest.raises(KvcalcError, match=r"--device cuda: torch 9\.9 sees no CUDA GPU; use --device cpu"):
        cache.allocate(TENSORS, "cuda")
    with pytest.raises(BadInput, match="unknown device 'tpu'; known: cpu, cuda"):
        cache.allocate(TENSORS, "tpu")


def test_an_allocation_that_fails_all_the_same_is_one_line(fake: FakeTorch) -> None:
    """The first line of what torch says."""

    def empty(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA out of memory.\nTried to allocate everything")

    warmed = [FakeTorch.empty(fake, (1,), FakeTorch.uint8, "cuda")]
    fake.empty = lambda *a, **k: warmed.pop() if warmed else empty()  # type: ignore[method-assign]
    with pytest.raises(KvcalcError, match=r"^torch could not allocate the cache on cuda: CUDA out of memory\.$"):
        cache.allocate(TENSORS, "cuda")


@pytest.mark.parametrize(
    ("limit", "used", "files", "free"),
    [("1000", "300", "50", 750), ("1000", "1500", "0", 0), ("max", "300", "50", None)],
)
def test_a_containers_limit_counts(tmp_path: Path, limit: str, used: str, files: str, free: int | None) -> None:
    """What is used is taken off, files that can be dropped are not."""
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text(f"{used}\n")
    (tmp_path / "memory.stat").write_text(f"anon 1\ninactive_file {files}\n")
    assert cache._free_in_cgroup(tmp_path)[0] == free
    assert cache._free_in_cgroup(tmp_path / "missing")[0] is None


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="this system has no /proc/meminfo")
def test_free_memory_is_what_the_system_says() -> None:
    """Less than all of it, and more than nothing."""
    free, source = cache._free_ram()
    assert free is not None
    assert 0 < free < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert source == "MemAvailable in /proc/meminfo"
