"""Bytes and token counts in and out: the only module that parses or formats them."""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction

from kvcalc.errors import BadInput

IEC_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
SI_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB")

# Beyond this, a context or batch is a typing error; it also keeps every product printable.
MAX_TOKENS = 10**12
MAX_BYTES = 2**63 - 1

_BYTE_FACTORS = {
    **dict.fromkeys(("", "b", "byte", "bytes"), 1),
    **{unit.lower(): 1024**power for power, unit in enumerate(IEC_UNITS) if power},
    **{unit.lower(): 1000**power for power, unit in enumerate(SI_UNITS) if power},
}
_TOKEN_FACTORS = {"": 1, "k": 1000, "K": 1024, "Ki": 1024, "Mi": 1024**2}
# Commas separate thousands and nothing else: 1,5 is neither 15 nor 1.5.
_DIGITS = r"[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+(?:_[0-9]+)*"
_QUANTITY = re.compile(rf"\s*((?:{_DIGITS})(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")
_MAX_DIGITS = 40


def parse_bytes(text: str, name: str = "size") -> int:
    """Return the bytes that `text` means: `24GiB`, `24GB` (10^9), `24564MiB` or plain bytes.

    A bare `24G` is refused, because it is read both as GiB and as GB; so is a fraction of a byte.
    Raises BadInput naming `name`.
    """
    found = _quantity(text)
    if not found:
        raise BadInput(f"{name}: '{_shown(text)}' is not a size; write for example 24GiB, 24GB or plain bytes")
    number, unit = found
    if unit.lower() in ("k", "m", "g", "t", "p", "e"):
        raise BadInput(_both_readings(text, number, unit, name))
    factor = _BYTE_FACTORS.get(unit.lower())
    if factor is None:
        raise BadInput(f"{name}: unknown unit '{unit}' in '{text}'; use KiB MiB GiB TiB, kB MB GB TB or plain bytes")
    size = number * factor
    if size.denominator != 1:
        raise BadInput(f"{name}: '{text}' is not a whole number of bytes")
    if not 1 <= size <= MAX_BYTES:
        raise BadInput(f"{name}: '{text}' is out of range; it must be between 1 byte and 8 EiB")
    return int(size)


def parse_tokens(text: str, name: str = "tokens") -> int:
    """Return a positive count of tokens: `4096`, `4k` (4,000), `4K` or `4Ki` (4,096), `1Mi` (2^20).

    `m` and `M` are refused. Raises BadInput naming `name` for anything else, zero, a negative or an absurd number.
    """
    found = _quantity(text)
    if not found:
        hint = "must be at least 1" if re.fullmatch(r"\s*-[0-9]+\s*", text) else "write for example 4096, 4K or 1Mi"
        raise BadInput(f"{name}: '{_shown(text)}' is not a token count; {hint}")
    number, unit = found
    if unit in ("m", "M"):
        raise BadInput(
            f"{name}: '{text}' is ambiguous: write {_plain(number)}Mi ({int(number * 1024**2):,}) "
            f"or {_plain(number * 1000)}k ({int(number * 1000**2):,})"
        )
    if unit not in _TOKEN_FACTORS:
        raise BadInput(f"{name}: unknown suffix '{unit}' in '{text}'; use k (1000), K or Ki (1024) or Mi (2^20)")
    count = number * _TOKEN_FACTORS[unit]
    if count.denominator != 1:
        raise BadInput(f"{name}: '{text}' is not a whole number")
    if not 1 <= count <= MAX_TOKENS:
        raise BadInput(f"{name}: {text} is out of range; it must be between 1 and {MAX_TOKENS:,}")
    return int(count)


def _quantity(text: str) -> tuple[Fraction, str] | None:
    """Return the exact number and the unit of `24.5GiB`; None if the text is something else, or absurdly long."""
    match = _QUANTITY.fullmatch(text)
    if not match or len(match[1]) > _MAX_DIGITS:
        return None
    return Fraction(re.sub("[_,]", "", match[1])), match[2]


def _both_readings(text: str, number: Fraction, unit: str, name: str) -> str:
    """Return the refusal of a unit such as `G` that two conventions read differently."""
    prefix = unit.upper()
    power = "KMGTPE".index(prefix) + 1
    iec, si = f"{_plain(number)}{prefix}iB", f"{_plain(number)}{'k' if prefix == 'K' else prefix}B"
    return (
        f"{name}: '{text}' is ambiguous: write {iec} ({int(number * 1024**power):,} bytes) "
        f"or {si} ({int(number * 1000**power):,} bytes)"
    )


def _plain(number: Fraction) -> str:
    """Return a number that was written with decimals as it was written, without separators."""
    return f"{Decimal(number.numerator) / Decimal(number.denominator):f}"


def _shown(text: str) -> str:
    return text if len(text) <= _MAX_DIGITS else f"{text[: _MAX_DIGITS - 3]}..."


def format_bytes(size: int, units: str = "iec") -> str:
    """Return `size` for people: three significant digits in IEC (`1.12 GiB`) or SI units, or exact bytes."""
    if units == "bytes":
        return _plain_bytes(size)
    base, names = (1024, IEC_UNITS) if units == "iec" else (1000, SI_UNITS)
    sign, rest = ("-", -size) if size < 0 else ("", size)
    power = 0
    while power < len(names) - 1 and _rounds_past(rest, base, power):
        power += 1
    if power == 0:
        return _plain_bytes(size)
    return f"{sign}{_three_digits(rest, base**power)} {names[power]}"


def format_exact(size: int, units: str = "iec") -> str:
    """Return `1.12 GiB  (1,207,959,552 bytes)`: the readable figure with the exact one beside it."""
    short = format_bytes(size, units)
    return short if short == _plain_bytes(size) else f"{short}  ({_plain_bytes(size)})"


def _plain_bytes(size: int) -> str:
    return f"{size:,} byte{'' if abs(size) == 1 else 's'}"


def format_ratio(part: int, whole: int) -> str:
    """Return `part / whole` as a factor with three significant digits: `0.333x`."""
    return "-" if whole == 0 else f"{_three_digits(part, whole)}x"


def format_change(size: int, reference: int) -> str:
    """Return how far `size` lies above or below `reference` (above 0) in percent: `+2.4 %`, `-0.024 %`."""
    change = Decimal(100) * (size - reference) / reference
    return f"{change:+.1f} %" if abs(change) >= Decimal("0.1") else f"{change:+.2g} %"


def format_percent(part: int, whole: int) -> str:
    """Return `part / whole` in percent with one decimal, `-` for an empty whole."""
    return "-" if whole == 0 else f"{Decimal(100) * part / whole:.1f} %"


def _rounds_past(size: int, base: int, power: int) -> bool:
    """Return whether `size` needs a larger unit than base**power (1,023.9 KiB is printed as 1.00 MiB)."""
    unit: int = base**power
    return size >= base * unit if power == 0 else 2 * size >= (2 * base - 1) * unit


def _three_digits(part: int, whole: int) -> str:
    """Return part / whole rounded to three significant digits, without an exponent."""
    if part == 0:
        return "0.00"
    value = Decimal(part) / Decimal(whole)
    if value >= 100:
        return f"{value:.0f}"
    rounded = value.quantize(Decimal(1).scaleb(value.adjusted() - 2))
    decimals = 2 - rounded.adjusted()  # 9.996 is rounded to 10.00, which has a digit too many
    return f"{rounded:.{decimals}f}" if decimals <= 5 else f"{rounded:.2e}"
