"""Element formats against the bytes that their owners publish."""

from __future__ import annotations

import json
import re

import pytest

from kvcalc.errors import BadInput, UnsupportedByEngine
from kvcalc.formats import FORMATS, find_format, find_kv_formats
from tests.shared_material import shared

# Bytes of a row of 128 elements, stated independently of the table under test:
# fp32 to bf16 IEEE and Google Brain; fp8 OFP8; int8, int4: one fp32 scale per token and head (vLLM 0.33.0);
# nvfp4: 4 bits and an E4M3 scale per 16 (NVIDIA); mxfp*: an E8M0 scale per 32 (OCP MX v1.0);
# q* and iq4_nl: ggml's blocks of 32 with an fp16 scale (and an fp16 minimum for *_1; 4 more bytes for the fifth bits);
# int*_g64: packed bits with a 16-bit scale and a 16-bit shift per 64 (transformers 5.24.0).
ROW_OF_128 = {
    "fp32": 512,
    "fp16": 256,
    "bf16": 256,
    "fp8": 128,
    "int8": 128 + 4,
    "int4": 64 + 4,
    "nvfp4": 64 + 8,
    "mxfp8": 128 + 4,
    "mxfp4": 64 + 4,
    "q8_0": 4 * (2 + 32),
    "q5_1": 4 * (2 + 2 + 4 + 16),
    "q5_0": 4 * (2 + 4 + 16),
    "q4_1": 4 * (2 + 2 + 16),
    "q4_0": 4 * (2 + 16),
    "iq4_nl": 4 * (2 + 16),
    "int4_g64": 2 * (32 + 2 + 2),
    "int2_g64": 2 * (16 + 2 + 2),
}


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_row_takes_the_published_bytes(name: str) -> None:
    """Every format is listed above; a new one needs its figure and source there."""
    assert FORMATS[name].row_bytes(128) == ROW_OF_128[name]
    assert FORMATS[name].source


def test_llama_cpp_types_agree_with_the_engine_notes() -> None:
    """Block elements and block bytes as measured in llama.cpp."""
    text = shared("engines/llama-cpp.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([a-z0-9_, ]+) \| (\d+) \| (\d+) \| [0-9.]+ \|", text, re.M)
    found = {find_format(name): (int(block), int(size)) for names, block, size in rows for name in names.split(", ")}

    assert len(found) == 9
    for item, (block, size) in found.items():
        assert (item.block, item.block_bytes) == (block, size), item.name


def test_bits_per_weight_agree_with_the_hardware_notes() -> None:
    """Weights in a block format take the published bits per weight."""
    published = json.loads(shared("hardware/weights.json").read_text(encoding="utf-8"))["block_types"]
    checked = 0
    for row in published:
        name = str(row["type"]).lower()
        if name in FORMATS and not FORMATS[name].row_bytes_extra:
            checked += 1
            elements = 32 * 64
            assert FORMATS[name].bulk_bytes(elements) * 8 == row["bits_per_weight"] * elements, name
    assert checked >= 6


@pytest.mark.parametrize(("name", "row"), [("q8_0", 80), ("nvfp4", 24), ("mxfp4", 48), ("int4", 33), ("int4_g64", 96)])
def test_a_row_that_blocks_do_not_divide_is_refused(name: str, row: int) -> None:
    """The message names the format, its block and the row."""
    block = FORMATS[name].block

    with pytest.raises(UnsupportedByEngine) as caught:
        FORMATS[name].row_bytes(row)
    assert str(caught.value) == f"format {name} stores blocks of {block} elements, which do not divide a row of {row}"


def test_bulk_storage_rounds_the_last_block_up() -> None:
    """Weights lie in one run; scales per row do not apply to them."""
    assert FORMATS["q8_0"].bulk_bytes(33) == 68
    assert FORMATS["int4"].bulk_bytes(3) == 2
    assert FORMATS["int8"].bulk_bytes(7) == 7
    assert FORMATS["bf16"].bulk_bytes(124_439_808) == 248_879_616


def test_formats_describe_their_storage_in_words() -> None:
    """Per element, per block, and with the bytes of a row."""
    assert FORMATS["fp16"].describe == "2 bytes per element"
    assert FORMATS["fp8"].describe == "1 byte per element"
    assert FORMATS["q8_0"].describe == "34 bytes per 32 elements"
    assert FORMATS["int8"].describe == "1 byte per element + 4 bytes per row"


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("float16", "fp16"),
        ("bfloat16", "bf16"),
        ("float32", "fp32"),
        ("FP8", "fp8"),
        ("fp8_e4m3", "fp8"),
        (" q8_0 ", "q8_0"),
    ],
)
def test_long_names_are_accepted(alias: str, name: str) -> None:
    """The names that config files use, in any case."""
    assert find_format(alias).name == name


def test_no_name_means_two_formats() -> None:
    """Names and aliases are unique."""
    names = [name for item in FORMATS.values() for name in (item.name, *item.aliases)]

    assert len(names) == len(set(names))


def test_an_unknown_format_is_refused_with_the_nearest() -> None:
    """Never a guess such as 16 bits."""
    with pytest.raises(BadInput, match=r"^unknown kv dtype 'q8_1'; did you mean q8_0 or q5_1 or q4_1\?$"):
        find_kv_formats("q8_1")
    with pytest.raises(BadInput, match=r"^unknown format 'zzz'; known: fp32 fp16 bf16 fp8 "):
        find_format("zzz")


def test_keys_and_values_may_differ() -> None:
    """F for both, K/V for each."""
    assert [item.name for item in find_kv_formats("fp8")] == ["fp8", "fp8"]
    assert [item.name for item in find_kv_formats("q8_0/q4_0")] == ["q8_0", "q4_0"]
    with pytest.raises(
        BadInput, match=r"^kv dtype 'a/b/c' has 3 parts; write F for both or K/V, for example q8_0/q4_0$"
    ):
        find_kv_formats("a/b/c")
    with pytest.raises(BadInput, match=r"^kv dtype 'fp8/' lacks V; write F for both or K/V$"):
        find_kv_formats("fp8/")
