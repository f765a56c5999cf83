"""The table of accelerators, and the accelerators of this machine."""

from __future__ import annotations

import json
import sys
import time
import types
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from kvcalc.errors import BadInput, MissingExtra, SpecError
from kvcalc.hardware import gpu as hardware
from kvcalc.hardware.gpu import TABLE, Gpu, cuda_linux_runtime, find_gpu, gpu_names, gpus, local_gpus, read_table
from kvcalc.yaml_tree import parse
from tests.shared_material import shared

MIB = 1024**2


def _surveyed() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(shared("hardware/gpus.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize(
    ("name", "mib"),
    [("h100-80gb", 81559), ("a100-80gb", 81920), ("l4", 23034), ("t4", 15360), ("rtx-4090", 24564), ("h200", 143771)],
)
def test_memory_is_what_the_driver_reports(name: str, mib: int) -> None:
    """Not the size on the box: an "80GB" H100 has 81,559 MiB."""
    assert find_gpu(name).driver_bytes == mib * MIB


def test_engines_see_less_than_the_driver_reports() -> None:
    """What CUDA hands out was measured on an H100: 79.19 GiB, as printed."""
    h100 = find_gpu("h100")
    assert h100.runtime_bytes == 7919 * 1024**3 // 100
    assert h100.memory_basis == "measured"


def test_the_rule_for_linux_is_near_what_was_measured() -> None:
    """On the boards with both figures the rule misses by 280 MiB at most, 31 in the middle."""
    off = sorted(
        abs(cuda_linux_runtime(each.driver_bytes) - each.runtime_bytes) / MIB
        for each in gpus()
        if each.vendor == "NVIDIA" and each.memory_basis == "measured" and each.driver_bytes and each.runtime_bytes
    )
    assert len(off) >= 15
    assert off[-1] <= 285
    assert off[len(off) // 2] <= 60


def test_a_derived_total_names_its_rule() -> None:
    """An A10G has no measured total."""
    a10g = find_gpu("a10g")
    assert a10g.runtime_bytes == 23028 * MIB - 430 * MIB - 23028 * MIB // 512
    assert a10g.memory_basis == "derived"
    assert "430 MiB" in a10g.runtime_rule


def test_a_total_that_nobody_saw_is_not_invented() -> None:
    """Where only the vendor's figure is known, asking for the total says so, with its unit."""
    unknown = [each for each in gpus() if each.memory_basis == "vendor"]
    assert {"tpu-v4", "mi325x", "b100"} <= {each.name for each in unknown}
    for each in unknown:
        assert each.runtime_bytes is None
        with pytest.raises(BadInput, match=rf"sold as {each.sold_as}"):
            _ = each.total_bytes


def test_every_surveyed_accelerator_is_in_the_table() -> None:
    """All 101, a Mac once for each size of memory, with the figures of the survey."""
    labels = {each.label.removeprefix("NVIDIA ") for each in gpus()}
    surveyed = _surveyed()
    assert len(surveyed) == 101
    for record in surveyed:
        label = record["name"].removeprefix("NVIDIA ")
        assert any(each.startswith(label) for each in labels), record["name"]


def test_driver_figures_are_those_of_the_survey() -> None:
    """Every driver figure that is not marked as assumed was read there, to the byte."""
    read = {each["bytes"] for record in _surveyed() for each in record["driver_total"] or ()}
    assert [
        each.name for each in gpus() if each.driver_bytes not in (None, *read) and "driver" not in each.assumed
    ] == []


def test_measured_totals_are_those_of_the_survey() -> None:
    """Every measured total was read there; the survey's bytes are rounded, ours rounded down."""
    read = [each["bytes"] for record in _surveyed() for each in record["driver_total"] or ()]
    strange = [
        each.name
        for each in gpus()
        if each.memory_basis == "measured" and not any(abs((each.runtime_bytes or 0) - size) <= 1 for size in read)
    ]
    assert strange == []


def test_rates_are_whole_numbers() -> None:
    """Bytes per second and FLOP/s are ints, also where the vendor writes decimals."""
    m5 = find_gpu("m5-16gb")
    assert m5.bandwidth == 153_600_000_000
    assert find_gpu("p40").flops["fp16"] == 180_000_000_000
    assert all(isinstance(value, int) for each in gpus() for value in (each.bandwidth or 0, *each.flops.values()))


def test_what_rests_on_memory_alone_is_marked() -> None:
    """A T4's arithmetic is from a remembered datasheet, an H100's is not."""
    assert find_gpu("t4").assumed == ("flops",)
    assert find_gpu("h100").assumed == ()
    assert "driver" in find_gpu("l40").assumed


def test_macs_go_by_the_size_of_their_memory() -> None:
    """A 64 GB M3 Max hands out three quarters, as derived; its memory is the processor's too."""
    mac = find_gpu("m3-max-64gb")
    assert (mac.runtime_bytes, mac.memory_basis, mac.unified) == (48 * 1024**3, "derived", True)
    with pytest.raises(BadInput, match="did you mean m3-max-36gb"):
        find_gpu("m3-max")


@pytest.mark.parametrize("name", ["H100", "NVIDIA H100 80GB HBM3", "h100-sxm", "nvidia_h100-80gb", " h100-80gb "])
def test_names_are_forgiving(name: str) -> None:
    """Aliases, any case, and what nvidia-smi prints."""
    assert find_gpu(name).name == "h100-80gb"


def test_an_unknown_name_suggests_the_nearest() -> None:
    """And says where to look if there is none."""
    with pytest.raises(BadInput, match="no GPU 'rtx-4091' is known; did you mean rtx-4090"):
        find_gpu("rtx-4091")
    with pytest.raises(BadInput, match="'kvcalc gpus' lists all"):
        find_gpu("zzz")


def test_names_for_completion_are_the_tables() -> None:
    """They are read without parsing."""
    assert list(gpu_names()) == [each.name for each in gpus()]


def test_reading_the_table_is_quick() -> None:
    """Less than a tenth of a second of processor time."""
    hardware.gpus.cache_clear()
    start = time.process_time()
    gpus()
    assert time.process_time() - start < 0.1


def test_a_record_cannot_be_changed() -> None:
    """It is shared by all who ask for it."""
    with pytest.raises(FrozenInstanceError):
        find_gpu("l4").name = "l5"  # type: ignore[misc]
    with pytest.raises(TypeError):
        find_gpu("l4").flops["fp16"] = 1  # type: ignore[index]


GOOD = """checked: 2026-11-29
gpus:
- name: one
  label: One
  vendor: NVIDIA
  driver: {size: 1000 MiB, tool: nvidia-smi, source: a log}
  runtime: {rule: cuda-linux}
  bandwidth: {rate: 1.5 GB/s, source: a page}
"""


def test_a_good_table_is_read() -> None:
    """The smallest one."""
    (one,) = read_table(parse(GOOD, "gpus.yaml"))
    assert (one.driver_bytes, one.bandwidth, one.checked) == (1000 * MIB, 1_500_000_000, "2026-11-29")


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("label: One", "labels: One", "unknown key; did you mean label?"),
        ("  label: One\n", "", "lacks 'label'"),
        ("1000 MiB", "1000 MB", "'1000 MB' must be a number and one of bytes, MiB, GiB"),
        ("1.5 GB/s", "fast", "'fast' must be a number"),
        ("rule: cuda-linux", "rule: magic", "needs a size, or a driver and a rule"),
        ("vendor: NVIDIA", "vendor: Nvidia", "must be one of NVIDIA"),
        ("tool: nvidia-smi", "tol: nvidia-smi", "unknown key"),
        ("size: 1000 MiB", "size: 1000", "must be text"),
        ("vendor: NVIDIA", "vendor: NVIDIA\n  aliases: one-b", "must be a list"),
        ("name: one", "name: One", "must be lower case"),
    ],
)
def test_a_fault_in_the_table_has_its_place(before: str, after: str, message: str) -> None:
    """Whoever adds a GPU is told the line and what to write."""
    with pytest.raises(SpecError) as caught:
        read_table(parse(GOOD.replace(before, after), "gpus.yaml"))
    assert message in str(caught.value)
    assert str(caught.value).startswith("gpus.yaml:")


def test_a_name_belongs_to_one() -> None:
    """Two entries with one name are refused."""
    with pytest.raises(SpecError, match="names both one and two"):
        read_table(parse(GOOD + GOOD[GOOD.index("- name") :].replace("name: one", "name: two\n  aliases: [one]"), "x"))


# This machine


def _nvml(boards: list[tuple[str, int]]) -> Any:
    """Return a stand-in for nvidia-ml-py that has these boards."""
    module: Any = types.ModuleType("pynvml")
    module.NVMLError = type("NVMLError", (Exception,), {})
    module.nvmlInit = module.nvmlShutdown = lambda: None
    module.nvmlDeviceGetCount = lambda: len(boards)
    module.nvmlDeviceGetHandleByIndex = lambda index: index
    module.nvmlDeviceGetName = lambda index: boards[index][0].encode()
    module.nvmlDeviceGetMemoryInfo = lambda index: types.SimpleNamespace(total=boards[index][1])
    return module


def _torch(boards: list[tuple[str, int]], hip: str | None = None) -> Any:
    """Return a stand-in for torch that sees these boards."""
    module: Any = types.ModuleType("torch")
    module.version = types.SimpleNamespace(hip=hip)
    module.cuda = types.SimpleNamespace(
        device_count=lambda: len(boards),
        get_device_properties=lambda index: types.SimpleNamespace(name=boards[index][0], total_memory=boards[index][1]),
    )
    return module


def _local(monkeypatch: pytest.MonkeyPatch, nvml: Any, torch: Any) -> tuple[Gpu, ...]:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setitem(sys.modules, "torch", torch)
    return local_gpus()


def test_this_machines_gpu_is_the_tables_where_the_driver_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the measured total and the bandwidth are known."""
    (found,) = _local(monkeypatch, _nvml([("NVIDIA H100 80GB HBM3", 81559 * MIB)]), None)
    assert found is find_gpu("h100-80gb")


def test_another_total_than_the_tables_is_this_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """A modified board keeps its bandwidth, and its runtime total is derived from what the driver says."""
    (found,) = _local(monkeypatch, _nvml([("NVIDIA GeForce RTX 4090", 49140 * MIB)]), None)
    assert (found.driver_bytes, found.memory_basis) == (49140 * MIB, "derived")
    assert found.runtime_bytes == cuda_linux_runtime(49140 * MIB)
    assert found.bandwidth == find_gpu("rtx-4090").bandwidth


def test_a_board_that_the_table_lacks_has_its_driver_total(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else is known of it."""
    (found,) = _local(monkeypatch, _nvml([("NVIDIA Quadro Nine", 1000 * MIB)]), None)
    assert (found.name, found.driver_bytes, found.bandwidth) == ("quadro-nine", 1000 * MIB, None)


def test_torch_is_asked_where_nvml_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch reports is the runtime's total."""
    (found,) = _local(monkeypatch, None, _torch([("AMD Instinct MI300X", 200 * 1024**3)], hip="6"))
    assert (found.name, found.runtime_bytes, found.memory_basis) == ("mi300x", 200 * 1024**3, "measured")


def test_a_machine_without_a_gpu_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line, and what to do."""
    with pytest.raises(BadInput, match="no GPU was found on this machine"):
        _local(monkeypatch, _nvml([]), None)
    with pytest.raises(BadInput, match="no GPU was found on this machine"):
        _local(monkeypatch, None, _torch([]))


def test_what_to_install_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without nvidia-ml-py and without torch."""
    with pytest.raises(MissingExtra, match=r"pip install 'kvcalc\[gpu\]'"):
        _local(monkeypatch, None, None)


def test_the_table_is_beside_the_module() -> None:
    """It ships with the package."""
    assert TABLE.is_file()
