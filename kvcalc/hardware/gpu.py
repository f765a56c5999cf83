"""Accelerators: the memory that the driver reports, the total that engines are given, bandwidth and arithmetic.

`gpus.yaml` holds the table; it is read when it is first asked for. An engine never sees the size on the box: on native
Linux the CUDA runtime hands out less than nvidia-smi prints, and that total is what engines take their shares of.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from kvcalc.errors import BadInput, MissingExtra, did_you_mean

MemoryBasis = Literal["measured", "derived", "vendor"]

TABLE = Path(__file__).with_name("gpus.yaml")
_MIB = 1024**2


@dataclass(frozen=True)
class Gpu:
    """One accelerator. Memory in bytes, bandwidth in bytes per second, FLOP/s dense by dtype; None where unknown.

    `memory_basis` says where `runtime_bytes` comes from: `measured` (an engine or runtime printed it), `derived` (by
    the rule in `runtime_rule`), or `vendor`: no figure but the vendor's is known, and `runtime_bytes` is None.
    `assumed` names the figures that rest on memory alone.
    """

    name: str
    label: str
    aliases: tuple[str, ...]
    vendor: str
    driver_bytes: int | None
    runtime_bytes: int | None
    memory_basis: MemoryBasis
    bandwidth: int | None
    flops: Mapping[str, int]
    unified: bool
    assumed: tuple[str, ...]
    sources: Mapping[str, str]
    checked: str
    notes: str
    sold_as: str = ""
    driver_tool: str = ""
    runtime_rule: str = ""
    also_seen: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int:
        """The total that engines are given; BadInput where only the vendor's figure is known."""
        if self.runtime_bytes is None:
            raise BadInput(
                f"no driver was seen to report the memory of {self.label}; sold as {self.sold_as}, which is no figure "
                "to compute with: give the bytes that its driver reports"
            )
        return self.runtime_bytes

    @property
    def platform(self) -> str:
        """Whose runtime it has: `cuda`, `rocm`, `metal` or `other`."""
        return {"NVIDIA": "cuda", "AMD": "rocm", "Apple": "metal"}.get(self.vendor, "other")


def cuda_linux_runtime(driver_bytes: int) -> int:
    """Return the total that CUDA hands out on native Linux, from what nvidia-smi prints: less 430 MiB and 2 per GiB.

    A fit to 26 pairs on 15 boards: median error 31 MiB, worst 280. Windows and WSL deduct nothing.
    """
    return max(driver_bytes - 430 * _MIB - driver_bytes // 512, 0)


# The rules that derive the runtime's total from the driver's, as `runtime: {rule: ...}` names them.
_RULES = {
    "cuda-linux": (cuda_linux_runtime, "nvidia-smi's figure less 430 MiB and 2 MiB per GiB (native Linux)"),
    "as-driver": (lambda driver: driver, "the driver's figure"),
}


@lru_cache(maxsize=1)
def gpus() -> tuple[Gpu, ...]:
    """Return every accelerator of the table, in its order; machines of one chip that differ in memory are apart."""
    from kvcalc.yaml_tree import parse, read_text

    return read_table(parse(read_text(TABLE), TABLE.name))


def gpu_names() -> tuple[str, ...]:
    """Return the names in the table's order, without parsing it, so that shell completion is quick."""
    chips = re.split(r"^- name: ", TABLE.read_text(encoding="utf-8"), flags=re.M)[1:]
    return tuple(
        name for chip in chips for name in re.findall(r"\{name: ([a-z0-9-]+)", chip) or [chip.partition("\n")[0]]
    )


def find_gpu(name: str) -> Gpu:
    """Return the accelerator called `name`: a name, an alias, or what a driver prints; BadInput names the nearest."""
    known = _names()
    found = known.get(_normal(name))
    if found is None:
        hint = _near(name, known) or "; 'kvcalc gpus' lists all"
        raise BadInput(f"no GPU '{name}' is known{hint}")
    return found


@lru_cache(maxsize=1)
def _names() -> Mapping[str, Gpu]:
    found: dict[str, Gpu] = {}
    for gpu in gpus():
        for name in (gpu.name, *gpu.aliases, gpu.label):
            found.setdefault(_normal(name), gpu)
    return MappingProxyType(found)


def _near(name: str, known: Mapping[str, Gpu]) -> str:
    """Return what was probably meant: names that go on from what was typed, else those that look alike."""
    start = [gpu.name for gpu in gpus() if gpu.name.startswith(f"{_normal(name)}-")]
    return f"; did you mean {' or '.join(start)}?" if start else did_you_mean(_normal(name), known)


def _normal(name: str) -> str:
    """Return a name as it is looked up: `NVIDIA H100 80GB HBM3` as `h100-80gb-hbm3`."""
    text = re.sub(r"[\s_/]+", "-", name.strip().lower())
    for prefix in ("nvidia-", "amd-", "intel-", "google-", "apple-", "geforce-", "instinct-", "radeon-", "tesla-"):
        text = text.removeprefix(prefix)
    return text


# The table --------------------------------------------------------------------------------------------------------

_GPU_KEYS = {
    "name": str, "label": str, "aliases": list, "vendor": str, "sold_as": str, "unified": bool, "driver": dict,
    "runtime": dict, "also_seen": list, "bandwidth": dict, "flops": dict, "assumed": list, "notes": str,
    "checked": str, "sizes": list,
}  # fmt: skip
_SIZE_KEYS = {"name": str, "sold_as": str, "runtime": dict}
_INNER_KEYS = {
    "driver": {"size", "tool", "source", "note"},
    "runtime": {"size", "tool", "source", "note", "rule"},
    "bandwidth": {"rate", "source"},
    "flops": {"fp16", "fp8", "int8", "fp4", "source"},
}
_FACTORS = {"bytes": 1, "MiB": _MIB, "GiB": 1024**3, "GB": 10**9, "GB/s": 10**9, "T": 10**12}
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?) (\S+)")
_VENDORS = ("NVIDIA", "AMD", "Apple", "Intel", "Google")


@dataclass
class _Reader:
    """Reads the parsed table, collecting what is wrong with it."""

    tree: Any
    problems: list[Any] = field(default_factory=list)

    def wrong(self, path: tuple[str | int, ...], message: str) -> None:
        self.problems.append(self.tree.problem(path, message))

    def keys(self, entry: Any, path: tuple[str | int, ...], known: Mapping[str, type], needed: Iterable[str]) -> bool:
        """Check an entry's keys and the types of their values; return whether it can be read on."""
        if not isinstance(entry, dict):
            self.wrong(path, "must be a mapping of keys to values")
            return False
        before = len(self.problems)
        for key in needed:
            if key not in entry:
                self.wrong(path, f"lacks '{key}'")
        for key, value in entry.items():
            if key not in known:
                self.wrong((*path, key), f"unknown key{did_you_mean(key, known) or '; known: ' + ', '.join(known)}")
            elif not isinstance(value, known[key]):
                self.wrong((*path, key), f"must be {_in_words(known[key])}")
            elif isinstance(value, list) and key not in ("sizes", "gpus"):
                if not all(isinstance(item, str) for item in value):
                    self.wrong((*path, key), "must be a list of texts")
            elif key in _INNER_KEYS:
                self._inner(value, (*path, key), _INNER_KEYS[key])
        return len(self.problems) == before

    def _inner(self, entry: Any, path: tuple[str | int, ...], known: set[str]) -> None:
        for key, value in entry.items():
            if key not in known:
                self.wrong((*path, key), f"unknown key; known: {', '.join(sorted(known))}")
            elif not isinstance(value, str):
                self.wrong((*path, key), "must be text, for example 81559 MiB, 3350 GB/s or 989 T")

    def amount(
        self, entry: Mapping[str, str], key: str, path: tuple[str | int, ...], units: tuple[str, ...]
    ) -> int | None:
        """Return the whole number that a text such as `79.19 GiB` means (rounded down); None if it is not there."""
        text = entry.get(key)
        if text is None:
            return None
        match = _QUANTITY.fullmatch(text)
        if not match or match[2] not in units:
            self.wrong((*path, key), f"'{text}' must be a number and one of {', '.join(units)}")
            return None
        return int(Fraction(match[1]) * _FACTORS[match[2]])


def read_table(tree: Any) -> tuple[Gpu, ...]:
    """Return the accelerators of a parsed table; SpecError lists everything that is wrong with it."""
    from kvcalc.errors import SpecError

    reader, found = _Reader(tree), list[Gpu]()
    if reader.keys(tree.data, (), {"checked": str, "gpus": list}, ("checked", "gpus")):
        for index, entry in enumerate(tree.data["gpus"]):
            found += _machines(entry, ("gpus", index), tree.data["checked"], reader)
    _check_unique(found, reader)
    if reader.problems:
        raise SpecError(reader.problems)
    return tuple(found)


def _machines(entry: Any, path: tuple[str | int, ...], checked: str, reader: _Reader) -> list[Gpu]:
    """Return the accelerators of one entry: itself, or one for each of its `sizes`."""
    if not reader.keys(entry, path, _GPU_KEYS, ("name", "label", "vendor", "bandwidth")):
        return []
    if entry["vendor"] not in _VENDORS:
        reader.wrong((*path, "vendor"), f"must be one of {', '.join(_VENDORS)}")
    found = []
    for index, size in enumerate(entry.get("sizes", ({},))):
        inner = (*path, "sizes", index) if "sizes" in entry else path
        if "sizes" not in entry or reader.keys(size, inner, _SIZE_KEYS, ("name", "sold_as", "runtime")):
            found.append(_gpu({"checked": checked, **entry, **size}, inner, reader))
    return found


def _gpu(entry: Mapping[str, Any], path: tuple[str | int, ...], reader: _Reader) -> Gpu:
    """Return one accelerator from an entry whose keys and types are right."""
    driver, runtime = entry.get("driver", {}), entry.get("runtime", {})
    driver_bytes = reader.amount(driver, "size", (*path, "driver"), ("bytes", "MiB", "GiB"))
    runtime_bytes = reader.amount(runtime, "size", (*path, "runtime"), ("bytes", "MiB", "GiB", "GB"))
    rule = runtime.get("rule", "")
    if runtime and runtime_bytes is None:
        if rule not in _RULES or driver_bytes is None:
            reader.wrong((*path, "runtime"), f"needs a size, or a driver and a rule: {', '.join(_RULES)}")
        else:
            apply, rule = _RULES[rule]
            runtime_bytes = apply(driver_bytes)
    basis: MemoryBasis = "vendor" if runtime_bytes is None else "derived" if rule else "measured"
    flops = {
        dtype: value
        for dtype in _INNER_KEYS["flops"] - {"source"}
        if (value := reader.amount(entry.get("flops", {}), dtype, (*path, "flops"), ("T",))) is not None
    }
    label = entry["label"] + (f" {entry['sold_as']}" if "sizes" in entry else "")
    parts = {part: entry[part]["source"] for part in _INNER_KEYS if entry.get(part, {}).get("source")}
    return Gpu(
        name=entry["name"],
        label=label,
        aliases=tuple(entry.get("aliases", ())),
        vendor=entry["vendor"],
        driver_bytes=driver_bytes,
        runtime_bytes=runtime_bytes,
        memory_basis=basis,
        bandwidth=reader.amount(entry["bandwidth"], "rate", (*path, "bandwidth"), ("GB/s",)),
        flops=MappingProxyType(dict(sorted(flops.items()))),
        unified=entry.get("unified", False),
        assumed=tuple(entry.get("assumed", ())),
        sources=MappingProxyType(parts),
        checked=entry["checked"],
        notes="; ".join(text for text in (*_memory_notes(driver, runtime), entry.get("notes", "")) if text),
        sold_as=entry.get("sold_as", ""),
        driver_tool=driver.get("tool", ""),
        runtime_rule=rule or runtime.get("tool", ""),
        also_seen=tuple(entry.get("also_seen", ())),
    )


def _memory_notes(driver: Mapping[str, str], runtime: Mapping[str, str]) -> tuple[str, str]:
    return driver.get("note", ""), runtime.get("note", "")


def _check_unique(found: Iterable[Gpu], reader: _Reader) -> None:
    owners: dict[str, str] = {}
    for gpu in found:
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", gpu.name):
            reader.wrong(("gpus",), f"the name '{gpu.name}' must be lower case letters, digits and -")
        for name in {_normal(each) for each in (gpu.name, *gpu.aliases)}:
            other = owners.setdefault(name, gpu.name)
            if other != gpu.name:
                reader.wrong(("gpus",), f"'{name}' names both {other} and {gpu.name}")


def _in_words(kind: type) -> str:
    return {str: "text", list: "a list", dict: "a mapping", bool: "true or false"}[kind]


# This machine -------------------------------------------------------------------------------------------------------


def local_gpus() -> tuple[Gpu, ...]:
    """Return the accelerators of this machine, with the totals that its driver (or torch) reports.

    Bandwidth and arithmetic come from the table where the board is in it. MissingExtra where neither nvidia-ml-py nor
    torch is installed, BadInput where there is no GPU.
    """
    found = _from_nvml()
    if not found:
        through_torch = _from_torch()
        if found is None and through_torch is None:
            raise MissingExtra("gpu", "asking this machine for its GPU")
        found = through_torch
    if not found:
        raise BadInput("no GPU was found on this machine; name one that 'kvcalc gpus' lists")
    return found


def _from_nvml() -> tuple[Gpu, ...] | None:
    """Return NVIDIA's boards as its driver reports them; None where nvidia-ml-py is not installed."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return tuple(
            with_driver_total(_text(pynvml.nvmlDeviceGetName(each)), int(pynvml.nvmlDeviceGetMemoryInfo(each).total))
            for each in handles
        )
    except pynvml.NVMLError as error:
        raise BadInput(f"the NVIDIA driver does not say how much memory this GPU has ({error})") from None
    finally:
        pynvml.nvmlShutdown()


def _from_torch() -> tuple[Gpu, ...] | None:
    """Return the boards that torch sees, with the runtime's total; None where torch is not installed."""
    try:
        import torch
    except ImportError:
        return None
    vendor = "AMD" if torch.version.hip else "NVIDIA"
    boards = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return tuple(with_runtime_total(board.name, int(board.total_memory), vendor) for board in boards)


def with_driver_total(label: str, driver_bytes: int) -> Gpu:
    """Return the board that a driver calls `label`, with the total it reports: measured here, the rest as tabled.

    The runtime's total is the table's where its driver figure agrees, else derived.
    """
    known = _tabled(label, "NVIDIA")
    if known.driver_bytes == driver_bytes and known.runtime_bytes is not None:
        return known
    rule = _RULES["cuda-linux"][1]
    return replace(
        known,
        driver_bytes=driver_bytes,
        driver_tool="NVML",
        runtime_bytes=cuda_linux_runtime(driver_bytes),
        memory_basis="derived",
        runtime_rule=rule,
    )


def with_runtime_total(label: str, runtime_bytes: int, vendor: str) -> Gpu:
    """Return the board that torch calls `label`, with the runtime's total measured here and the rest as tabled."""
    known = _tabled(label, vendor)
    return replace(known, runtime_bytes=runtime_bytes, memory_basis="measured", runtime_rule="torch on this machine")


def _tabled(label: str, vendor: str) -> Gpu:
    """Return the table's entry for a board, or one that only has the label."""
    found = _names().get(_normal(label))
    if found is not None:
        return found
    return Gpu(
        _normal(label), label, (), vendor, None, None, "vendor", None, MappingProxyType({}), False, (),
        MappingProxyType({}), "", "not in the table",
    )  # fmt: skip


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name
