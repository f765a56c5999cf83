"""Safetensors headers: bytes, parameters and dtypes without reading a tensor, and what is refused."""

from __future__ import annotations

import json
import os
import struct
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from kvcalc.errors import SpecError
from kvcalc.read import safetensors as reader
from kvcalc.read.safetensors import WeightFiles, read_weights

ReadBytes: TypeAlias = Callable[[bytes], WeightFiles]


# --- Helpers ----------------------------------------------------------------------------------------------------------


def file_of(header: bytes, data: int = 0) -> bytes:
    """Return a file with the JSON as it is and so many bytes of data."""
    return struct.pack("<Q", len(header)) + header + bytes(data)


def tensors(*shapes: tuple[str, str, list[int]], **metadata: str) -> bytes:
    """Return a file of tensors (name, dtype, shape), one after the other."""
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    at = 0
    for name, dtype, shape in shapes:
        size = reader.DTYPE_BITS[dtype]
        for length in shape:
            size *= length
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size // 8]}
        at += size // 8
    text = json.dumps(header).encode()
    return file_of(text + b" " * (-len(text) % 8), at)


@pytest.fixture
def read_bytes(tmp_path: Path) -> ReadBytes:
    """Return a function that reads a file of the given bytes."""

    def read(content: bytes) -> WeightFiles:
        path = tmp_path / "model.safetensors"
        path.write_bytes(content)
        return read_weights(path)

    return read


def sharded(folder: Path, index: bool = True) -> dict[str, str]:
    """Write a model in two shards of two tensors; return the weight map."""
    weight_map = {}
    for number in (1, 2):
        name = f"model-0000{number}-of-00002.safetensors"
        names = [f"layers.{number}.{part}" for part in ("q", "k")]
        (folder / name).write_bytes(tensors((names[0], "BF16", [4, 8]), (names[1], "F8_E4M3", [8]), format="pt"))
        weight_map.update(dict.fromkeys(names, name))
    if index:
        content = {"metadata": {"total_size": 144}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(content), encoding="utf-8")
    return weight_map


# --- What is read -----------------------------------------------------------------------------------------------------


def test_one_file_is_summed_by_dtype(read_bytes: ReadBytes, tmp_path: Path) -> None:
    weights = read_bytes(
        tensors(
            ("embed", "F16", [100, 64]), ("norm", "F32", [64]), ("packed", "F4", [3, 2]), ("mask", "BOOL", []),
            ("none", "I64", [0, 5]), note="quotes \" and \\ and ü",
        )
    )  # fmt: skip
    assert weights == WeightFiles(
        total_bytes=12_800 + 256 + 3 + 1,
        parameters=6400 + 64 + 6 + 1,
        bytes_by_dtype={"F16": 12_800, "F32": 256, "F4": 3, "BOOL": 1, "I64": 0},
        files=(str(tmp_path / "model.safetensors"),),
    )
    assert list(weights.bytes_by_dtype) == ["F16", "F32", "F4", "BOOL", "I64"]


def test_an_index_a_folder_and_any_shard_stand_for_all_shards(tmp_path: Path) -> None:
    shards = sorted(set(sharded(tmp_path).values()))
    expected = WeightFiles(144, 80, {"BF16": 128, "F8_E4M3": 16}, tuple(str(tmp_path / name) for name in shards))
    for path in (tmp_path, tmp_path / "model.safetensors.index.json", *(tmp_path / name for name in shards)):
        assert read_weights(path) == expected


def test_a_folder_of_shards_needs_no_index(tmp_path: Path) -> None:
    sharded(tmp_path, index=False)
    assert read_weights(tmp_path).total_bytes == 144
    (tmp_path / "model-00001-of-00002.safetensors").unlink()
    with pytest.raises(SpecError, match=r"model-00001-of-00002\.safetensors:1:1: cannot be read: No such file"):
        read_weights(tmp_path)


def test_a_folder_prefers_the_whole_model_to_other_files(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(tensors(("a", "F16", [8])))
    (tmp_path / "consolidated.safetensors").write_bytes(tensors(("a", "F32", [8])))
    assert read_weights(tmp_path).total_bytes == 16
    (tmp_path / "model.safetensors").rename(tmp_path / "other.safetensors")
    with pytest.raises(SpecError, match=r"2 sets of weights; name one: consolidated\.safetensors, other\.safetensors"):
        read_weights(tmp_path)
    (tmp_path / "other.safetensors").unlink()
    assert read_weights(tmp_path).total_bytes == 32


def test_an_index_of_a_variant_is_found(tmp_path: Path) -> None:
    sharded(tmp_path)
    (tmp_path / "model.safetensors.index.json").rename(tmp_path / "model.fp16.safetensors.index.json")
    assert read_weights(tmp_path).total_bytes == 144


def test_links_are_followed_as_in_the_hugging_face_cache(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(tensors(("a", "F16", [8])))
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "blob")
    assert read_weights(tmp_path).total_bytes == 16


def test_spaces_and_any_order_of_keys_are_json_too(read_bytes: ReadBytes) -> None:
    header = b' \n{ "a\\u0062" : {"data_offsets":[ 0,4 ],\t"shape" : [2], "dtype":"F16"} , "\xc3\xbc": {"dtype":"U8",'
    header += b'"shape":[1],"data_offsets":[4,5]}, "__metadata__" : { } }  '
    assert read_bytes(file_of(header, 5)).total_bytes == 5


def test_headers_longer_than_the_window_are_read_to_the_end(read_bytes: ReadBytes) -> None:
    shapes = [(f"model.layers.{number}.self_attn.q_proj.weight", "BF16", [2]) for number in range(10_000)]
    assert read_bytes(tensors(*shapes, tokens='\\"' * 200_001, long="x" * 600_000)).parameters == 20_000


def test_a_large_header_is_never_held_at_once(read_bytes: ReadBytes) -> None:
    content = tensors(("a", "F16", [8]), notes="x" * 20_000_000)
    tracemalloc.start()
    assert read_bytes(content).total_bytes == 16
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * 2**20


# --- What is refused --------------------------------------------------------------------------------------------------


def entry(name: str, **changes: Any) -> bytes:
    described = {"dtype": "F16", "shape": [4], "data_offsets": [0, 8], **changes}
    return json.dumps({name: {key: value for key, value in described.items() if value is not None}}).encode()


def two(first: list[int], second: list[int]) -> bytes:
    return entry("a", data_offsets=first)[:-1] + b"," + entry("b", data_offsets=second)[1:]


# Python 3.13 may look as deep as an entry is long.
DEEP = "a: the JSON is nested too deeply|a: the value is longer than 16,384 bytes"
# Python 3.10 may read such a number; then it is out of range.
NINES = b"9" * 10_000
HOSTILE = {
    "empty": (b"", "is not a safetensors file: it has 0 bytes"),
    "seven bytes": (bytes(7), "it has 7 bytes, and the header's length alone takes 8"),
    "length 2^60": (struct.pack("<Q", 2**60) + b"{}", "its header would have 1,152,921,504,606,846,976 bytes"),
    "length beyond": (struct.pack("<Q", 9) + b"{}", "is cut short: the header has 9 bytes, and 2 follow its length"),
    "no JSON": (file_of(b""), "the JSON ends too early"),
    "a list": (file_of(b"[]"), r"expected '{' in the JSON, not '\['"),
    "open": (file_of(b'{"a"'), "a: the JSON ends too early"),
    "open text": (file_of(b'{"a'), "expected a JSON text of at most 1,024 bytes, at byte 9"),
    "open metadata": (file_of(b'{"__metadata__":{"a":"b\\'), "a: a text has no end"),
    "more": (file_of(entry("a") + b"{", 8), "the JSON goes on after its object"),
    "no comma": (file_of(entry("a")[:-1] + entry("b")[1:], 8), "the header: expected ',' or '}' in the JSON, not '\"'"),
    "comma at the end": (file_of(entry("a")[:-1] + b",}", 8), "the header: expected a JSON text"),
    "long name": (file_of(entry("n" * 1025), 8), "expected a JSON text of at most 1,024 bytes"),
    "name not UTF-8": (file_of(b'{"\xff":1}'), "the header: a text is not valid UTF-8"),
    "wrong escape": (file_of(b'{"\\x":1}'), "the header: a text is not valid UTF-8 or has an escape"),
    "name twice": (file_of(two([0, 8], [8, 16]).replace(b'"b"', b'"a"'), 16), "a: the tensor stands twice"),
    "written another way": (file_of(two([0, 8], [8, 16]).replace(b'"b"', b'"\\u0061"'), 16), "a: the tensor stands tw"),
    "a number": (file_of(b'{"a":1}'), "a: must have dtype, shape and data_offsets, and nothing else"),
    "no shape": (file_of(entry("a", shape=None), 8), "a: must have dtype, shape and data_offsets"),
    "another key": (file_of(entry("a", x=1), 8), "a: must have dtype, shape and data_offsets"),
    "key twice": (file_of(b'{"a":{"dtype":"F16","dtype":"F16"}}'), "a: a key stands twice"),
    "dtype": (file_of(entry("a", dtype="F8_E4M"), 8), "a: unknown dtype 'F8_E4M'; did you mean F8_E4M3"),
    "dtype no text": (file_of(entry("a", dtype=[]), 8), "a: dtype must be a text"),
    "negative shape": (file_of(entry("a", shape=[-4]), 8), "a: shape must be a list of whole numbers from 0 on"),
    "true in a shape": (file_of(entry("a", shape=[True]), 8), "a: shape must be a list"),
    "fraction": (file_of(entry("a", shape=[4.0]), 8), "a: shape must be a list of whole numbers"),
    "infinite": (file_of(b'{"a":{"dtype":"F16","shape":[Infinity],"data_offsets":[0,8]}}'), "a: shape must be a list"),
    "huge shape": (file_of(entry("a", shape=[2**62, 2**62]), 8), "4611686018427387904 x 4611686018427387904 of F16 do"),
    "offsets": (file_of(entry("a", data_offsets=[8]), 8), "a: data_offsets must be two whole numbers"),
    "backwards": (file_of(entry("a", data_offsets=[8, 0]), 8), "the end not before the beginning"),
    "size": (file_of(entry("a", shape=[5]), 8), "a: 5 of F16 do not take the 8 bytes between its data_offsets"),
    "half a byte": (file_of(entry("a", dtype="F4", shape=[3], data_offsets=[0, 1]), 1), "a: 3 of F4 do not take the 1"),
    "overlap": (file_of(two([0, 8], [4, 12]), 12), "b: its data, from byte 4 on, overlaps the tensor before it"),
    "gap": (file_of(two([0, 8], [9, 17]), 17), "b: the 1 bytes before its data belong to no tensor"),
    "late start": (file_of(entry("a", data_offsets=[8, 16]), 16), "a: the 8 bytes before its data belong to no tensor"),
    "cut data": (file_of(entry("a"), 7), "a: its data ends at byte 8, but only 7 follow the header; the file is cut"),
    "trailing data": (file_of(entry("a"), 9), "the last 1 bytes belong to no tensor"),
    "deep list": (file_of(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), DEEP),
    "deep object": (file_of(b'{"a":' * 100_000 + b"1" + b"}" * 100_000), DEEP),
    "metadata in metadata": (file_of(b'{"__metadata__":{"a":{}}}'), "a: expected '\"' in the JSON, not '{'"),
    "long number": (file_of(b'{"a":{"dtype":"F16","shape":[' + NINES + b'],"data_offsets":[0,8]}}'), "a: "),
    "long entry": (file_of(b'{"a":[' + b"1," * 10_000 + b"1]}"), "a: the value is longer than 16,384 bytes"),
    "control characters": (file_of(b'{"\\u001b[31m":1}'), r"\\x1b\[31m: must have dtype"),
}  # fmt: skip


@pytest.mark.parametrize(("content", "message"), HOSTILE.values(), ids=HOSTILE)
def test_a_faulty_file_is_refused_with_the_reason(
    content: bytes, message: str, tmp_path: Path, read_bytes: ReadBytes
) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        read_bytes(content)
    assert str(caught.value).startswith(f"{tmp_path / 'model.safetensors'}:1:1: ")
    assert "\x1b" not in str(caught.value)


def test_every_cut_is_refused(read_bytes: ReadBytes) -> None:
    whole = tensors(("a", "F16", [4]), ("b", "BF16", [2, 2]), format="pt")
    assert read_bytes(whole).total_bytes == 16
    for length in range(len(whole)):
        with pytest.raises(SpecError, match=r"cut short|is not a safetensors file"):
            read_bytes(whole[:length])


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({}, "weight_map: is missing or empty"),
        ({"weight_map": {}}, "weight_map: is missing or empty"),
        ({"weight_map": {"a": 1}}, "a: expected a JSON text"),
        ({"weight_map": {"a": "../secret.safetensors"}}, r"'\.\./secret\.safetensors' is not the name of a \.safetens"),
        ({"weight_map": {"a": "/etc/passwd"}}, "'/etc/passwd' is not the name"),
        ({"weight_map": {"a": "a\0.safetensors"}}, r"'a\\x00\.safetensors' is not the name"),
        ({"weight_map": {"a": "missing.safetensors"}}, r"missing\.safetensors:1:1: cannot be read: No such file"),
        ({"weight_map": ["a"]}, r"weight_map: expected '{' in the JSON, not '\['"),
    ],
)
def test_a_faulty_index_is_refused(index: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(SpecError, match=message):
        read_weights(path)


def test_an_index_names_every_tensor_once_and_the_shards_hold_them(tmp_path: Path) -> None:
    weight_map = sharded(tmp_path)
    path = tmp_path / "model.safetensors.index.json"
    first = next(iter(weight_map.values()))
    path.write_text(json.dumps({"weight_map": {**weight_map, "lm_head": first}}), encoding="utf-8")
    with pytest.raises(SpecError, match="weight_map: names 5 tensors, but the shards hold 4"):
        read_weights(path)
    path.write_text(f'{{"weight_map":{{"a":"{first}","a":"{first}"}}}}', encoding="utf-8")
    with pytest.raises(SpecError, match="a: the tensor stands twice"):
        read_weights(path)
    path.write_text(f'{{"weight_map":{{"a":"{first}"}},"weight_map":{{"b":"{first}"}}}}', encoding="utf-8")
    with pytest.raises(SpecError, match="weight_map: stands twice"):
        read_weights(path)


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("members", "there are more than 131,072 tensors and keys"),
        ("header_bytes", "the headers together exceed 268,435,456 bytes"),
    ],
)
def test_no_model_may_take_more_than_the_limits(
    limit: str, message: str, read_bytes: ReadBytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_Limits", partial(reader._Limits, **{limit: 1}))
    with pytest.raises(SpecError, match=message):
        read_bytes(file_of(two([0, 8], [8, 16]), 16))


def test_names_and_shards_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sharded(tmp_path)
    monkeypatch.setattr(reader, "MAX_NAMES_BYTES", 8)
    with pytest.raises(SpecError, match=r"layers\.1\.q: the names take more than 8 bytes"):
        read_weights(tmp_path)
    monkeypatch.setattr(reader, "MAX_SHARDS", 1)
    with pytest.raises(SpecError, match="is one of 2 shards; from 1 to 1 are read"):
        read_weights(tmp_path / "model-00001-of-00002.safetensors")


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    loop, pipe, empty = tmp_path / "loop.safetensors", tmp_path / "pipe.safetensors", tmp_path / "empty"
    loop.symlink_to(loop)
    os.mkfifo(pipe)
    empty.mkdir()
    for path, message in (
        (empty, "holds no .safetensors file"),
        (tmp_path / "missing.safetensors", "cannot be read: No such file or directory"),
        (loop, "cannot be read: Too many levels of symbolic links"),
        (pipe, "is not a regular file"),
        (Path("a\0b"), "is not a file name"),
    ):
        with pytest.raises(SpecError, match=message):
            read_weights(path)
