"""No file, however damaged, does more to the readers of headers than a SpecError: no other exception, no hang.

Headers of real shape are built and read back; then bytes are changed, cut, inserted and swapped in them. Time and
memory follow from the limits of the readers, which the unit tests check one by one; here the memory is watched, too.
"""

from __future__ import annotations

import json
import random
import struct
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcalc.errors import SpecError
from kvcalc.read.gguf import TENSOR_TYPES, read_header
from kvcalc.read.gguf_spec import to_spec
from kvcalc.read.safetensors import DTYPE_BITS, read_weights
from kvcalc.spec.model import ModelSpec

# By value type: how one element is encoded, and values of every kind that it can have.
SCALARS: dict[int, tuple[str, st.SearchStrategy[Any]]] = {
    0: ("B", st.integers(0, 2**8 - 1)),
    1: ("b", st.integers(-(2**7), 2**7 - 1)),
    2: ("H", st.integers(0, 2**16 - 1)),
    3: ("h", st.integers(-(2**15), 2**15 - 1)),
    4: ("I", st.integers(0, 2**32 - 1)),
    5: ("i", st.integers(-(2**31), 2**31 - 1)),
    6: ("f", st.floats(width=32, allow_nan=False)),
    7: ("?", st.booleans()),
    10: ("Q", st.integers(0, 2**64 - 1)),
    11: ("q", st.integers(-(2**63), 2**63 - 1)),
    12: ("d", st.floats(allow_nan=False)),
}
SCALAR = st.sampled_from(sorted(SCALARS)).flatmap(lambda kind: st.tuples(st.just(kind), SCALARS[kind][1]))
STRING = st.tuples(st.just(8), st.text(max_size=20))
NUMBERS = st.sampled_from(sorted(SCALARS)).flatmap(
    lambda kind: st.tuples(st.just(9), st.just(kind), st.lists(SCALARS[kind][1], max_size=9))
)
STRINGS = st.tuples(st.just(9), st.just(8), st.lists(st.text(max_size=9), max_size=9))
PAIRS = st.dictionaries(
    st.text(max_size=20).filter(lambda key: key != "general.alignment" and not key.startswith("split.")),
    SCALAR | STRING | NUMBERS | STRINGS,
    max_size=6,
)


def encoded_text(text: str, order: str) -> bytes:
    raw = text.encode()
    return struct.pack(f"{order}Q", len(raw)) + raw


def encoded(pair: Any, order: str) -> bytes:
    """Return a type and a value as they stand in a file."""
    if pair[0] == 8:
        return struct.pack(f"{order}I", 8) + encoded_text(pair[1], order)
    if pair[0] != 9:
        return struct.pack(f"{order}I{SCALARS[pair[0]][0]}", *pair)
    _, kind, items = pair
    head = struct.pack(f"{order}IIQ", 9, kind, len(items))
    if kind == 8:
        return head + b"".join(encoded_text(item, order) for item in items)
    return head + struct.pack(f"{order}{len(items)}{SCALARS[kind][0]}", *items)


def gguf_file(pairs: dict[str, Any], tensors: list[tuple[str, list[int], int]], order: str, version: int) -> bytes:
    """Return a whole file: header, padding and data, the tensors one after the other."""
    content = b"GGUF" + struct.pack(f"{order}IQQ", version, len(tensors), len(pairs))
    content += b"".join(encoded_text(key, order) + encoded(pair, order) for key, pair in pairs.items())
    offset = 0
    for name, dims, kind in tensors:
        rank = len(dims)
        content += encoded_text(name, order) + struct.pack(f"{order}I{rank}QIQ", rank, *dims, kind, offset)
        offset += -(-bytes_of(dims, kind) // 32) * 32
    return content + bytes(-len(content) % 32 + offset)


def bytes_of(dims: list[int], kind: int) -> int:
    elements = 1
    for length in dims:
        elements *= length
    _, block, size = TENSOR_TYPES[kind]
    return elements // block * size


def a_model(arch: str, order: str = "<") -> bytes:
    """Return a small model's file with the keys of every sort that a spec is made from."""
    numbers = {
        "block_count": 8, "context_length": 4096, "embedding_length": 512, "attention.head_count": 8,
        "attention.sliding_window": 128, "attention.key_length": 128, "attention.value_length": 64,
        "ssm.conv_kernel": 4, "ssm.inner_size": 1024, "ssm.state_size": 16, "ssm.time_step_rank": 16,
        "ssm.group_count": 2, "wkv.head_size": 64, "attention.indexer.key_length": 64,
    }  # fmt: skip
    pairs: dict[str, Any] = {"general.architecture": (8, arch), "general.name": (8, "A model")}
    pairs.update({f"{arch}.{key}": (4, value) for key, value in numbers.items()})
    pairs[f"{arch}.attention.head_count_kv"] = (9, 5, [2, 0, 4, 2, 2, 0, 2, 2])
    pairs[f"{arch}.feed_forward_length"] = (9, 5, [0, 0, 99, 0, 0, 99, 0, 0])
    pairs[f"{arch}.attention.compress_ratios"] = (9, 5, [0, 4, 128, 0, 4, 128, 0, 0])
    pairs[f"{arch}.attention.sliding_window_pattern"] = (9, 7, [True, False] * 4)
    pairs["tokenizer.ggml.tokens"] = (9, 8, ["a", "bc", "", "ü"])
    return gguf_file(pairs, [("token_embd.weight", [64, 4], 1), ("blk.0.attn_q.weight", [256, 2], 12)], order, 3)


ARCHITECTURES = ("llama", "gemma4", "jamba", "nemotron_h", "qwen3next", "minimax-m3", "deepseek4", "rwkv7", "t5", "x")
SEEDS = [a_model(arch, order) for arch in ARCHITECTURES for order in "<>"]
SAFETENSORS = {
    "__metadata__": {"format": "pt", "note": 'a "quoted" \\ note'},
    "a": {"dtype": "F16", "shape": [2, 3], "data_offsets": [0, 12]},
    "b": {"dtype": "F4", "shape": [8], "data_offsets": [12, 16]},
}


def safetensors_file(header: bytes, data: int) -> bytes:
    return struct.pack("<Q", len(header)) + header + bytes(data)


def changed(content: bytes, rng: random.Random) -> bytes:
    """Return the content with one to four changes: of a bit, a byte, a number, a cut, an insertion, a repetition."""
    raw = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(raw) or 1)
        match rng.randrange(7):
            case 0 if raw:
                raw[at] ^= 1 << rng.randrange(8)
            case 1 if raw:
                raw[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            case 2:
                raw[at : at + 8] = struct.pack("<Q", rng.choice((0, 1, 2**31, 2**32 - 1, 2**60, 2**63, 2**64 - 1)))
            case 3:
                raw[at : at + 4] = struct.pack("<I", rng.choice((0, 4, 8, 9, 12, 2**16, 2**31, 2**32 - 1)))
            case 4:
                del raw[at : at + rng.randint(1, 24)]
            case 5:
                raw[at:at] = rng.randbytes(rng.randint(1, 16))
            case _:
                raw[at:at] = raw[at : at + rng.randint(1, 64)]
    return bytes(raw)


def read_or_refuse(path: Path, content: bytes) -> ModelSpec | None:
    """Return the model, or None if it, or the header that describes it, is refused."""
    path.write_bytes(content)
    with suppress(SpecError):
        return to_spec(read_header(path))
    return None


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "model.gguf"


@given(pairs=PAIRS, order=st.sampled_from("<>"), version=st.sampled_from((2, 3)), data=st.data())
def test_a_header_is_read_as_it_was_written(
    path: Path, pairs: dict[str, Any], order: str, version: int, data: st.DataObject
) -> None:
    kinds = st.sampled_from(sorted(TENSOR_TYPES))
    dims = st.lists(st.integers(1, 3), min_size=1, max_size=4)
    names = data.draw(st.lists(st.text(max_size=20), max_size=4, unique=True))
    tensors = []
    for name in names:
        kind, (first, *rest) = data.draw(kinds), data.draw(dims)
        tensors.append((name, [first * TENSOR_TYPES[kind][1], *rest], kind))
    path.write_bytes(gguf_file(pairs, tensors, order, version))
    header = read_header(path)
    assert (header.version, header.byte_order) == (version, "little" if order == "<" else "big")
    arrays = {key: pair for key, pair in pairs.items() if pair[0] == 9}
    kept = {key: tuple(pair[2]) for key, pair in arrays.items() if pair[1] != 8}
    kept.update({key: pair[1] for key, pair in pairs.items() if pair[0] != 9})
    assert header.metadata == kept
    assert header.array_lengths == {key: len(pair[2]) for key, pair in arrays.items()}
    assert [(tensor.name, list(tensor.dims), tensor.type_id) for tensor in header.tensors] == tensors
    assert header.weights_bytes == sum(bytes_of(dims, kind) for _, dims, kind in tensors)


@given(seed=st.sampled_from(SEEDS), number=st.integers(0, 2**32))
@settings(max_examples=300)
def test_a_damaged_file_is_read_or_refused(path: Path, seed: bytes, number: int) -> None:
    read_or_refuse(path, changed(seed, random.Random(number)))


@given(content=st.binary(max_size=200))
def test_any_bytes_after_the_magic_are_read_or_refused(path: Path, content: bytes) -> None:
    read_or_refuse(path, b"GGUF\x03\x00\x00\x00" + content)


@pytest.mark.parametrize("arch", ["gemma4", "nemotron_h"])
def test_any_byte_of_a_header_may_be_wrong(path: Path, arch: str) -> None:
    whole = a_model(arch)
    assert read_or_refuse(path, whole) is not None
    for at in range(0, whole.rindex(b"blk.0") + 60, 3):
        for value in (0x00, 0xFF, whole[at] ^ 0x01):
            read_or_refuse(path, whole[:at] + bytes([value]) + whole[at + 1 :])


def test_damaged_files_take_little_memory(path: Path) -> None:
    rng = random.Random(0)
    tracemalloc.start()
    for seed in SEEDS * 5:
        read_or_refuse(path, changed(seed, rng))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * 2**20


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)
ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(sorted(DTYPE_BITS)) | JSON_VALUES,
        "shape": st.lists(st.integers(-1, 9), max_size=3) | JSON_VALUES,
        "data_offsets": st.lists(st.integers(-1, 99), min_size=2, max_size=2) | JSON_VALUES,
    }
)


@given(header=st.dictionaries(st.text(max_size=9), ENTRIES | JSON_VALUES, max_size=4), data=st.integers(0, 99))
def test_any_json_is_read_or_refused(path: Path, header: dict[str, Any], data: int) -> None:
    file = path.with_suffix(".safetensors")
    file.write_bytes(safetensors_file(json.dumps(header).encode(), data))
    with suppress(SpecError):
        assert read_weights(file).total_bytes == data


@given(number=st.integers(0, 2**32))
@settings(max_examples=300)
def test_a_damaged_safetensors_file_is_read_or_refused(path: Path, number: int) -> None:
    file = path.with_suffix(".safetensors")
    file.write_bytes(changed(safetensors_file(json.dumps(SAFETENSORS).encode(), 16), random.Random(number)))
    with suppress(SpecError):
        assert read_weights(file).total_bytes <= file.stat().st_size
