"""Bytes of a model's weights in formats that store its tensors in several ways: GGUF mixes and vLLM's formats.

A plain format (`fp8`, `q4_0`) stores every weight alike and is exact. A mix (`Q4_K_M`, `w4a16`) does not: its figure is
what models of that size typically take, with the spread that was seen. `weights.yaml` holds the mixes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from kvcalc.errors import BadInput, SpecError, did_you_mean
from kvcalc.formats import FORMATS, find_format

TABLE = Path(__file__).with_name("weights.yaml")
ROW_BLOCK = 256  # elements of a row that GGUF's k-quants need as a multiple
_THOUSAND_BYTES = 8 * 1000  # bits of a thousand weights -> bytes of one
# Where it is not known how many weights are embeddings: percent of all for low, typical and high.
_UNKNOWN_PERCENT = (0, 8, 25)


class WeightsBytes(NamedTuple):
    """Bytes of one copy of the weights; `basis` is `exact` (a plain format), or `typical` (a mix)."""

    low: int
    typical: int
    high: int
    basis: Literal["exact", "typical"]


@dataclass(frozen=True)
class Mix:
    """A format that stores tensors in several ways, in bits of a thousand weights.

    `linear` is (low, typical, high) for all but embedding and output head; `head` also for an embedding that is the
    head too. `odd` is for all weights where rows are no multiple of 256 elements; None where that does not matter.
    """

    name: str
    aliases: tuple[str, ...]
    linear: tuple[int, int, int]
    embedding: int
    head: int
    odd: int | None
    note: str

    @property
    def remark(self) -> str:
        """What a reader must know of a figure made with the mix."""
        apart = f", embedding {self.embedding / 1000:g}, head {self.head / 1000:g}"
        return f"{self.name} is a mix: typically {self.linear[1] / 1000:g} bits for each weight{apart}"


@lru_cache(maxsize=1)
def mixes() -> tuple[Mix, ...]:
    """Return every mix of the table, in its order."""
    from kvcalc.yaml_tree import parse, read_text

    return read_table(parse(read_text(TABLE), TABLE.name))


def find_mix(name: str) -> Mix | None:
    """Return the mix called `name` (any case); None for a plain format. BadInput names the nearest of both."""
    lowered = name.strip().lower()
    if any(lowered in (item.name, *item.aliases) for item in FORMATS.values()):
        return None
    known = {each.lower(): mix for mix in mixes() for each in (mix.name, *mix.aliases)}
    if lowered not in known:
        names = (*FORMATS, *(mix.name for mix in mixes()))
        hint = did_you_mean(name, (*known, *FORMATS)) or f"; known: {' '.join(names)}"
        raise BadInput(f"unknown weights format '{name}'{hint}")
    return known[lowered]


def weights_format_name(name: str) -> str:
    """Return the name by which a weights format is listed; BadInput names the nearest known ones."""
    mix = find_mix(name)
    return find_format(name).name if mix is None else mix.name


def weights_bytes(
    parameters: int,
    format: str,
    embedding_parameters: int | None = None,
    *,
    tied: bool | None = None,
    hidden_size: int | None = None,
) -> WeightsBytes:
    """Return the bytes of `parameters` weights in a plain format or a mix.

    `embedding_parameters` counts the token embedding, and the output head unless they are one (`tied`; unknown: half
    of them each). Without it, 0, 8 and 25 % of the weights are taken for embeddings. `hidden_size` tells rows that
    some blocks do not divide. BadInput for an unknown format.
    """
    mix = find_mix(format)
    if mix is None:
        exact = find_format(format).bulk_bytes(parameters)
        return WeightsBytes(exact, exact, exact, "exact")
    given = embedding_parameters
    apart = [parameters * percent // 100 if given is None else given for percent in _UNKNOWN_PERCENT]
    twice = 2 * mix.head if tied else mix.embedding + mix.head
    low, typical, high = (
        -(-((parameters - kept) * 2 * bits + kept * twice) // (2 * _THOUSAND_BYTES))
        for bits, kept in zip(mix.linear, apart, strict=True)
    )
    if mix.odd is not None and hidden_size is not None and hidden_size % ROW_BLOCK:
        typical = high = -(-parameters * mix.odd // _THOUSAND_BYTES)
    return WeightsBytes(low, typical, high, "typical")


_KEYS: Mapping[str, type] = {
    "name": str, "aliases": list, "linear": list, "embedding": int, "head": int, "odd": int, "note": str,
}  # fmt: skip


def read_table(tree: Any) -> tuple[Mix, ...]:
    """Return the mixes of a parsed table; SpecError lists everything that is wrong with it."""
    data = tree.data if isinstance(tree.data, dict) else {}
    entries = data.get("mixes")
    if set(data) != {"checked", "mixes"} or not isinstance(entries, list):
        raise SpecError([tree.problem((), "must have the keys checked and mixes, a list")])
    faults = [(index, _wrong(entry)) for index, entry in enumerate(entries)]
    if any(message for _, message in faults):
        raise SpecError([tree.problem(("mixes", index), message) for index, message in faults if message])
    return tuple(_mix(entry) for entry in entries)


def _wrong(entry: Any) -> str:
    """Return what is wrong with an entry of the table; an empty string if nothing is."""
    if not isinstance(entry, dict):
        return "must be a mapping of keys to values"
    for key, value in entry.items():
        if key not in _KEYS:
            return f"unknown key '{key}'{did_you_mean(key, _KEYS)}"
        if not isinstance(value, _KEYS[key]):
            return f"{key} has the wrong type"
    missing = {"name", "linear", "embedding", "head"} - set(entry)
    if missing:
        return f"lacks {', '.join(sorted(missing))}"
    return "" if _ordered(entry["linear"]) else "linear must be three whole numbers from low to high"


def _ordered(value: list[Any]) -> bool:
    return len(value) == 3 and all(isinstance(each, int) for each in value) and 0 < value[0] <= value[1] <= value[2]


def _mix(entry: dict[str, Any]) -> Mix:
    low, typical, high = entry["linear"]
    return Mix(
        name=entry["name"],
        aliases=tuple(entry.get("aliases", ())),
        linear=(low, typical, high),
        embedding=entry["embedding"],
        head=entry["head"],
        odd=entry.get("odd"),
        note=entry.get("note", ""),
    )
