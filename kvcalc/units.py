"""Bytes and token counts in and out: the only module that parses or formats them."""

from __future__ import annotations

import re
from decimal import Decimal

from kvcalc.errors import BadInput

IEC_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
SI_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB")

# Beyond this, a context or batch is a typing error; it also keeps every product printable.
MAX_TOKENS = 10**12
MAX_BYTES = 2**63 - 1

_BYTE_FACTORS = {
    "b": 1,
    **{unit.lower(): 1024**power for power, unit in enumerate(IEC_UNITS) if power},
    **{unit.lower(): 1000**power for power, unit in enumerate(SI_UNITS) if power},
}
_TOKEN_FACTORS = {"": 1, "k": 1000, "K": 1024, "Ki": 1024, "Mi": 1024**2}
_SIZE = re.compile(r"\s*([0-9][0-9_,]*(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(text: str, name: str = "size") -> int:
    """Return the bytes that `text` means: `24GiB`, `24GB` (10^9), `24564MiB` or plain bytes.

    A bare `24G` is refused, because it is read both as GiB and as GB; so is a fraction of a byte.
    Raises BadInput naming `name`.
    """
    match = _SIZE.fullmatch(text)
    if not match:
        raise BadInput(f"{name}: '{text}' is not a size; write for example 24GiB, 24GB or plain bytes")
    number, unit = Decimal(re.sub("[_,]", "", match[1])), match[2]
    factor = _BYTE_FACTORS.get(unit.lower() or "b")
    if unit.lower() in ("k", "m", "g", "t", "p"):
        raise BadInput(_both_readings(text, number, unit, name))
    if factor is None:
        raise BadInput(f"{name}: unknown unit '{unit}' in '{text}'; use KiB MiB GiB TiB, kB MB GB TB or plain bytes")
    size = number * factor
    if size != int(size):
        raise BadInput(f"{name}: '{text}' is not a whole number of bytes")
    if not 0 < size <= MAX_BYTES:
        raise BadInput(f"{name}: '{text}' is out of range; it must be between 1 byte and 8 EiB")
    return int(size)


def _both_readings(text: str, number: Decimal, unit: str, name: str) -> str:
    """Return the refusal of a unit such as `G` that two conventions read differently."""
    prefix = unit.upper()
    power = "KMGTP".index(prefix) + 1
    iec, si = f"{number}{prefix}iB", f"{number}{'k' if prefix == 'K' else prefix}B"
    return (
        f"{name}: '{text}' is ambiguous: write {iec} ({int(number * 1024**power):,} bytes) "
        f"or {si} ({int(number * 1000**power):,} bytes)"
    )


def parse_tokens(text: str, name: str = "tokens") -> int:
    """Return a positive count of tokens: `4096`, `4k` (4,000), `4K` or `4Ki` (4,096), `1Mi` (2^20).

    `m` and `M` are refused. Raises BadInput naming `name` for anything else, zero, a negative or an absurd number.
    """
    match = _SIZE.fullmatch(text)
    if not match:
        hint = "must be at least 1" if re.fullmatch(r"\s*-[0-9]+\s*", text) else "write for example 4096, 4K or 1Mi"
        raise BadInput(f"{name}: '{text}' is not a token count; {hint}")
    number, unit = Decimal(re.sub("[_,]", "", match[1])), match[2]
    if unit in ("m", "M"):
        raise BadInput(f"{name}: '{text}' is ambiguous: write {number}Mi ({int(number * 1024**2):,}) or plain digits")
    if unit not in _TOKEN_FACTORS:
        raise BadInput(f"{name}: unknown suffix '{unit}' in '{text}'; use k (1000), K or Ki (1024) or Mi (2^20)")
    count = number * _TOKEN_FACTORS[unit]
    if count != int(count):
        raise BadInput(f"{name}: '{text}' is not a whole number")
    if not 1 <= count <= MAX_TOKENS:
        raise BadInput(f"{name}: {text} is out of range; it must be between 1 and {MAX_TOKENS:,}")
    return int(count)


def format_bytes(size: int, units: str = "iec") -> str:
    """Return `size` for people: three significant digits in IEC (`1.12 GiB`) or SI units, or exact bytes."""
    if units == "bytes":
        return f"{size:,} bytes"
    base, names = (1024, IEC_UNITS) if units == "iec" else (1000, SI_UNITS)
    sign, rest = ("-", -size) if size < 0 else ("", size)
    power = 0
    while power < len(names) - 1 and _rounds_past(rest, base, power):
        power += 1
    if power == 0:
        return f"{sign}{rest:,} {names[0]}"
    return f"{sign}{_three_digits(rest, base**power)} {names[power]}"


def format_exact(size: int, units: str = "iec") -> str:
    """Return `1.12 GiB  (1,207,959,552 bytes)`: the readable figure with the exact one beside it."""
    short = format_bytes(size, units)
    return short if short.endswith("bytes") else f"{short}  ({size:,} bytes)"


def format_ratio(part: int, whole: int) -> str:
    """Return `part / whole` as a factor with three significant digits: `0.333x`."""
    return "-" if whole == 0 else f"{_three_digits(part, whole)}x"


def format_percent(part: int, whole: int) -> str:
    """Return `part / whole` in percent with one decimal, `-` for an empty whole."""
    return "-" if whole == 0 else f"{Decimal(100) * part / whole:.1f} %"


def _rounds_past(size: int, base: int, power: int) -> bool:
    """Return whether `size` needs a larger unit than base**power (1,023.9 KiB is printed as 1.00 MiB)."""
    unit = base**power
    return size >= base * unit if power == 0 else 2 * size >= (2 * base - 1) * unit


def _three_digits(part: int, whole: int) -> str:
    """Return part / whole rounded to three significant digits, without an exponent."""
    value = Decimal(part) / Decimal(whole)
    if value >= 100:
        return f"{value:.0f}"
    if value >= 10:
        return f"{value:.1f}"
    if value >= 1 or value == 0:
        return f"{value:.2f}"
    return f"{value:.3g}" if value >= Decimal("0.001") else f"{value:.2e}"
