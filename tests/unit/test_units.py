"""Sizes and token counts, in and out."""

from __future__ import annotations

from contextlib import suppress
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcalc.errors import BadInput
from kvcalc.units import (
    IEC_UNITS,
    MAX_BYTES,
    MAX_TOKENS,
    SI_UNITS,
    format_bytes,
    format_exact,
    format_percent,
    format_ratio,
    parse_bytes,
    parse_tokens,
)

GIB, GB = 2**30, 10**9


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24GiB", 24 * GIB),
        ("24 GiB", 24 * GIB),
        ("24gib", 24 * GIB),
        ("24GB", 24 * GB),
        ("24564MiB", 24564 * 2**20),
        ("1.5KiB", 1536),
        ("0.5kB", 500),
        ("2TiB", 2**41),
        ("1PB", 10**15),
        ("1024", 1024),
        ("1,207,959,552", 1207959552),
        ("1_207_959_552", 1207959552),
        ("1,207,959,552 bytes", 1207959552),
        ("7B", 7),
        ("1 byte", 1),
        (str(MAX_BYTES), MAX_BYTES),
    ],
)
def test_sizes_are_read_exactly(text: str, size: int) -> None:
    """Powers of 1024 with the i, powers of 1000 without, plain bytes; thousands may be separated."""
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("24G", "--kv-memory: '24G' is ambiguous: write 24GiB (25,769,803,776 bytes) or 24GB (24,000,000,000 bytes)"),
        ("1.5k", "--kv-memory: '1.5k' is ambiguous: write 1.5KiB (1,536 bytes) or 1.5kB (1,500 bytes)"),
        ("2E", "--kv-memory: '2E' is ambiguous: write 2EiB (2,305,843,009,213,693,952 bytes) "
               "or 2EB (2,000,000,000,000,000,000 bytes)"),
        ("", "--kv-memory: '' is not a size; write for example 24GiB, 24GB or plain bytes"),
        ("-1", "--kv-memory: '-1' is not a size; write for example 24GiB, 24GB or plain bytes"),
        ("1e9", "--kv-memory: '1e9' is not a size; write for example 24GiB, 24GB or plain bytes"),
        ("1,5GiB", "--kv-memory: '1,5GiB' is not a size; write for example 24GiB, 24GB or plain bytes"),
        ("٢٤GiB", "--kv-memory: '٢٤GiB' is not a size; write for example 24GiB, 24GB or plain bytes"),
        ("24XiB", "--kv-memory: unknown unit 'XiB' in '24XiB'; use KiB MiB GiB TiB, kB MB GB TB or plain bytes"),
        ("0.3B", "--kv-memory: '0.3B' is not a whole number of bytes"),
        ("1.00000000000000000000000000000001", "--kv-memory: '1.00000000000000000000000000000001' "
                                               "is not a whole number of bytes"),
        ("0", "--kv-memory: '0' is out of range; it must be between 1 byte and 8 EiB"),
        (str(MAX_BYTES + 1), f"--kv-memory: '{MAX_BYTES + 1}' is out of range; it must be between 1 byte and 8 EiB"),
    ],
)  # fmt: skip
def test_what_is_no_size_is_refused_with_what_to_write(text: str, message: str) -> None:
    """The option, the text and the way out are in the message."""
    with pytest.raises(BadInput) as caught:
        parse_bytes(text, "--kv-memory")
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1", 1), ("4096", 4096), ("4k", 4000), ("4K", 4096), ("4Ki", 4096), ("1Mi", 2**20), ("1.5K", 1536),
        ("0.5K", 512), ("128k", 128_000), (" 32K ", 32768), ("131,072", 131072), ("1_000", 1000), (str(10**12), 10**12),
    ],
)  # fmt: skip
def test_token_counts_are_read_exactly(text: str, count: int) -> None:
    """The suffix k is 1000; K and Ki are 1024; Mi is 2^20."""
    assert parse_tokens(text) == count


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1m", "--ctx: '1m' is ambiguous: write 1Mi (1,048,576) or 1000k (1,000,000)"),
        ("1.5M", "--ctx: '1.5M' is ambiguous: write 1.5Mi (1,572,864) or 1500k (1,500,000)"),
        ("-1", "--ctx: '-1' is not a token count; must be at least 1"),
        ("", "--ctx: '' is not a token count; write for example 4096, 4K or 1Mi"),
        ("all", "--ctx: 'all' is not a token count; write for example 4096, 4K or 1Mi"),
        ("４０９６", "--ctx: '４０９６' is not a token count; write for example 4096, 4K or 1Mi"),
        ("0x10", "--ctx: '0x10' is not a token count; write for example 4096, 4K or 1Mi"),
        ("2,5K", "--ctx: '2,5K' is not a token count; write for example 4096, 4K or 1Mi"),
        ("4G", "--ctx: unknown suffix 'G' in '4G'; use k (1000), K or Ki (1024) or Mi (2^20)"),
        ("1.5", "--ctx: '1.5' is not a whole number"),
        ("0", "--ctx: 0 is out of range; it must be between 1 and 1,000,000,000,000"),
        ("1" + "0" * 30, f"--ctx: 1{'0' * 30} is out of range; it must be between 1 and 1,000,000,000,000"),
        ("9" * 5000, f"--ctx: '{'9' * 37}...' is not a token count; write for example 4096, 4K or 1Mi"),
    ],
)  # fmt: skip
def test_what_is_no_token_count_is_refused_with_what_to_write(text: str, message: str) -> None:
    """The suffixes m and M are refused; so are fractions, zero, negatives and numbers no machine will see."""
    with pytest.raises(BadInput) as caught:
        parse_tokens(text, "--ctx")
    assert str(caught.value) == message


@given(st.text(max_size=30))
def test_any_text_is_a_number_in_range_or_one_line(text: str) -> None:
    """Nothing that is typed ends in another error."""
    for parse, most in ((parse_bytes, MAX_BYTES), (parse_tokens, MAX_TOKENS)):
        with suppress(BadInput):
            assert 1 <= parse(text) <= most


@pytest.mark.parametrize(
    ("size", "iec", "si"),
    [
        (0, "0 bytes", "0 bytes"),
        (1, "1 byte", "1 byte"),
        (1023, "1,023 bytes", "1.02 kB"),
        (1024, "1.00 KiB", "1.02 kB"),
        (10_239, "10.0 KiB", "10.2 kB"),
        (1023 * 1024, "1023 KiB", "1.05 MB"),
        (1_048_473, "1.00 MiB", "1.05 MB"),  # 1,023.9 KiB
        (999_500, "976 KiB", "1.00 MB"),
        (999_499, "976 KiB", "999 kB"),
        (1_207_959_552, "1.12 GiB", "1.21 GB"),
        (10_733_123_272, "10.0 GiB", "10.7 GB"),  # 9.996 GiB
        (107_331_232_727, "100 GiB", "107 GB"),  # 99.96 GiB
        (-1536, "-1.50 KiB", "-1.54 kB"),
        (2**63, "8.00 EiB", "9.22 EB"),
    ],
)
def test_sizes_are_shown_with_three_significant_digits(size: int, iec: str, si: str) -> None:
    """The unit is the largest in which the rounded figure is at least 1."""
    assert format_bytes(size) == iec
    assert format_bytes(size, "si") == si


def test_the_exact_bytes_stand_beside_the_figure() -> None:
    """Once, where the figure is not already exact."""
    assert format_exact(1_207_959_552) == "1.12 GiB  (1,207,959,552 bytes)"
    assert format_exact(1_207_959_552, "bytes") == "1,207,959,552 bytes"
    assert format_exact(512) == "512 bytes"


@given(st.integers(1, MAX_BYTES), st.sampled_from(("iec", "si")))
def test_a_shown_size_is_within_half_of_its_last_digit(size: int, units: str) -> None:
    """Reading the figure back gives the size to three significant digits."""
    number, unit = format_bytes(size, units).replace(",", "").split()
    power = 0 if unit == "byte" else (IEC_UNITS if units == "iec" else SI_UNITS).index(unit)
    shown = Fraction(number) * (1024 if units == "iec" else 1000) ** power

    assert abs(shown - size) <= Fraction(size, 199)
    assert power == 0 or len(number.replace(".", "")) == 3 or 1000 <= int(number) < 1024


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [(1, 2, "0.500x"), (1, 3, "0.333x"), (4, 1, "4.00x"), (9996, 1000, "10.0x"), (9996, 10_000, "1.00x"),
     (575, 10, "57.5x"), (12_345, 1, "12345x"), (1, 2000, "5.00e-4x"), (0, 5, "0.00x"), (5, 0, "-")],
)  # fmt: skip
def test_ratios_have_three_significant_digits(part: int, whole: int, text: str) -> None:
    """Small and large; a ratio to nothing is a dash."""
    assert format_ratio(part, whole) == text


def test_percentages_have_one_decimal() -> None:
    """Of nothing they are a dash."""
    assert format_percent(1, 3) == "33.3 %"
    assert format_percent(3, 3) == "100.0 %"
    assert format_percent(0, 0) == "-"
