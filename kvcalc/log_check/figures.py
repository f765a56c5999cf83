"""A figure of a log beside its prediction: how the two are compared, in the digits that were printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from kvcalc.measure.log import Fact

Verdict = Literal["equal", "within rounding", "differs", "not compared"]

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40
UNITS = {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB, "KB": 10**3, "MB": 10**6, "GB": 10**9}

# Larger than any count or size that an engine prints.
_LARGEST = 10**18


@dataclass(frozen=True)
class Figure:
    """One number of a log: what it is, its line, the printed text, the prediction in the same digits, the verdict."""

    name: str
    line: int
    printed: str
    predicted: str | None
    verdict: Verdict
    note: str = ""

    @property
    def agrees(self) -> bool:
        """Whether the prediction is what was printed, as far as the printed digits tell."""
        return self.verdict in ("equal", "within rounding")

    def noting(self, note: str) -> Figure:
        """Return the figure with a remark."""
        return replace(self, note="; ".join(text for text in (self.note, note) if text))


def whole(text: str | None) -> int | None:
    """Return the whole number that a log printed, None for anything else."""
    plain = (text or "").replace(",", "")
    return int(plain) if plain.isdecimal() and plain.isascii() and int(plain) < _LARGEST else None


def decimal(text: str | None) -> Fraction | None:
    """Return the decimal number that a log printed, None for anything else."""
    plain = (text or "").replace(",", "")
    before, _, after = plain.partition(".")
    return Fraction(plain) if before.isdecimal() and (after.isdecimal() or not after) and plain.isascii() else None


def ends(text: str, unit: int = 1) -> tuple[Fraction, Fraction]:
    """Return the least and the most that are printed as `text`, in units: half of the last digit either way."""
    value = decimal(text) or Fraction(0)
    half = Fraction(1, 2 * 10 ** len(text.partition(".")[2]))
    return (value - half) * unit, (value + half) * unit


def exact(fact: Fact, key: str, name: str, predicted: int) -> Figure:
    """Compare a whole number."""
    same = whole(fact[key]) == predicted
    return Figure(name, fact.line, fact[key], _count(predicted, fact[key]), "equal" if same else "differs")


def rounded(fact: Fact, key: str, name: str, size: Fraction | int, unit: int) -> Figure:
    """Compare a size with the digits that were printed of it: `8.23` GiB."""
    value = Fraction(size) / unit
    return Figure(name, fact.line, fact[key], _decimals(value, fact[key]), _closeness(fact[key], value))


def enclosed(fact: Fact, key: str, name: str, low: int, high: int) -> Figure:
    """Compare a whole number with the least and the most that rounded figures of the log make of it."""
    value = whole(fact[key])
    predicted = _between([_count(low, fact[key]), _count(high, fact[key])])
    if value is None or not low <= value <= high:
        return Figure(name, fact.line, fact[key], predicted, "differs")
    return Figure(name, fact.line, fact[key], predicted, "equal" if low == high else "within rounding")


def one_of(fact: Fact, key: str, name: str, predicted: Sequence[int | str]) -> Figure:
    """Compare a number with all that rounded figures of the log leave possible: equal if they leave but one."""
    texts = [_count(value, fact[key]) if isinstance(value, int) else value for value in predicted]
    if fact[key] not in texts:
        return Figure(name, fact.line, fact[key], _between(texts), "differs")
    return Figure(name, fact.line, fact[key], _between(texts), "equal" if len(texts) == 1 else "within rounding")


def _count(value: int, like: str) -> str:
    """Return a whole number with commas if the printed one has them."""
    return f"{value:,}" if "," in like else str(value)


def _between(texts: Sequence[str]) -> str:
    return texts[0] if texts[0] == texts[-1] else f"{texts[0]} to {texts[-1]}"


def skipped(fact: Fact, key: str, name: str, why: str) -> Figure:
    """Return a figure that cannot be compared, with the reason."""
    return Figure(name, fact.line, fact[key], None, "not compared", why)


def _decimals(value: Fraction, like: str) -> str:
    """Return a number with as many decimals as a printed one."""
    return f"{float(value):{',' if ',' in like else ''}.{len(like.partition('.')[2])}f}"


def _closeness(text: str, value: Fraction) -> Verdict:
    """Return whether a value is printed as `text`; its very half is within rounding, either way."""
    if _decimals(value, text) == text:
        return "equal"
    low, high = ends(text)
    return "within rounding" if low <= value <= high else "differs"
