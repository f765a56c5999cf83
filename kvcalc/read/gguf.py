"""GGUF files: the header (metadata and tensor table), read within fixed bounds.

Layout of a header, by the GGUF specification (ggml's docs/gguf.md), versions 2 and 3, in either byte order: the magic
`GGUF`, a u32 version, a u64 number of tensors, a u64 number of metadata pairs; the pairs (key, u32 type, value); the
tensor table (name, u32 number of dimensions, u64 dimensions, u32 type, u64 offset); the data, from the next multiple
of `general.alignment` on. A string is a u64 length and UTF-8 bytes, an array a u32 type, a u64 length and its elements.

Nothing of the data is read. Whatever a file claims, reading it stays within the limits below.
"""

from __future__ import annotations

import math
import os
import re
import stat
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Literal, NoReturn, TypeAlias

from kvcalc.errors import Problem, SpecError
from kvcalc.read._refusal import quoted, refuse

Scalar: TypeAlias = int | float | bool | str
Value: TypeAlias = Scalar | tuple[int | float | bool, ...]

# Limits, each several times what the largest published models need (in brackets); the last five hold for all parts of
# a split file together.
MAX_KEYS = 2**14  # [80]
MAX_KEY_BYTES = 1024  # [60]
MAX_ARRAY_KEPT = 4096  # elements of a numeric array; longer ones are skipped [128: one per layer]
MAX_STRING_KEPT = 2**16  # bytes; longer ones are skipped [20,000: a chat template]
MAX_TENSOR_NAME_BYTES = 256  # [64, by the specification]
MAX_DIMENSIONS = 4
MAX_PARTS = 999  # [50]
MAX_HEADER_BYTES = 2**27  # [20 MiB: a vocabulary of 262,144 with its merges]
MAX_STRINGS = 2**21  # elements of string arrays [800,000]
MAX_KEPT_BYTES = 2**23  # names, texts, and 32 for each element of an array that is kept [200 kB]
MAX_TENSORS = 2**15  # [2,000]

_CHUNK = 2**18
_MAX_INT64 = 2**63 - 1

# Value types of the metadata by id; strings and arrays have no fixed size.
_SCALARS: dict[int, tuple[str, str]] = {
    0: ("uint8", "B"),
    1: ("int8", "b"),
    2: ("uint16", "H"),
    3: ("int16", "h"),
    4: ("uint32", "I"),
    5: ("int32", "i"),
    6: ("float32", "f"),
    7: ("bool", "B"),
    10: ("uint64", "Q"),
    11: ("int64", "q"),
    12: ("float64", "d"),
}
_BOOL, _STRING, _ARRAY = 7, 8, 9

# Tensor types by id: name, elements and bytes of a block (ggml.h's enum ggml_type, ggml-common.h's block structs).
# 31-33 and 36-38 were repacked layouts, since removed from ggml; files of 2024 still hold them.
TENSOR_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("f32", 1, 4),
    1: ("f16", 1, 2),
    2: ("q4_0", 32, 18),
    3: ("q4_1", 32, 20),
    6: ("q5_0", 32, 22),
    7: ("q5_1", 32, 24),
    8: ("q8_0", 32, 34),
    9: ("q8_1", 32, 40),
    10: ("q2_k", 256, 84),
    11: ("q3_k", 256, 110),
    12: ("q4_k", 256, 144),
    13: ("q5_k", 256, 176),
    14: ("q6_k", 256, 210),
    15: ("q8_k", 256, 292),
    16: ("iq2_xxs", 256, 66),
    17: ("iq2_xs", 256, 74),
    18: ("iq3_xxs", 256, 98),
    19: ("iq1_s", 256, 50),
    20: ("iq4_nl", 32, 18),
    21: ("iq3_s", 256, 110),
    22: ("iq2_s", 256, 82),
    23: ("iq4_xs", 256, 136),
    24: ("i8", 1, 1),
    25: ("i16", 1, 2),
    26: ("i32", 1, 4),
    27: ("i64", 1, 8),
    28: ("f64", 1, 8),
    29: ("iq1_m", 256, 56),
    30: ("bf16", 1, 2),
    31: ("q4_0_4_4", 32, 18),
    32: ("q4_0_4_8", 32, 18),
    33: ("q4_0_8_8", 32, 18),
    34: ("tq1_0", 256, 54),
    35: ("tq2_0", 256, 66),
    36: ("iq4_nl_4_4", 32, 18),
    37: ("iq4_nl_4_8", 32, 18),
    38: ("iq4_nl_8_8", 32, 18),
    39: ("mxfp4", 32, 17),
    40: ("nvfp4", 64, 36),
    41: ("q1_0", 128, 18),
}


# --- The header -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One row of the tensor table: dimensions (the row first), bytes without padding, offset from the data's start."""

    name: str
    dims: tuple[int, ...]
    type_id: int
    type_name: str
    bytes: int
    offset: int

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.dims)


@dataclass(frozen=True)
class GgufHeader:
    """What a GGUF file says about itself; of a split file, the first part's metadata and every part's tensors.

    `metadata` holds scalars, strings of at most MAX_STRING_KEPT bytes and numeric arrays of at most MAX_ARRAY_KEPT
    elements; `array_lengths` has the length of every array, kept or skipped (vocabulary, merges).
    """

    file: str
    version: int
    byte_order: Literal["little", "big"]
    metadata: Mapping[str, Value]
    array_lengths: Mapping[str, int]
    tensors: tuple[TensorInfo, ...]
    files: tuple[str, ...] = ()

    @property
    def architecture(self) -> str | None:
        """llama.cpp's name of the architecture (`general.architecture`); None if the file does not say."""
        name = self.metadata.get("general.architecture")
        return name if isinstance(name, str) else None

    @property
    def weights_bytes(self) -> int:
        """Bytes of all tensors, without the padding between them."""
        return sum(tensor.bytes for tensor in self.tensors)

    @property
    def parameters(self) -> int | None:
        """Elements of all tensors; None for a file that has no tensors (vocabulary or metadata only)."""
        return sum(tensor.elements for tensor in self.tensors) if self.tensors else None

    @property
    def bytes_by_type(self) -> dict[str, int]:
        """Bytes of the tensors of each type, in order of first appearance."""
        totals: Counter[str] = Counter()
        for tensor in self.tensors:
            totals[tensor.type_name] += tensor.bytes
        return dict(totals)

    def hyperparameter(self, key: str) -> Value | None:
        """Return the value of a key of the architecture, such as `attention.head_count`; None if it is absent."""
        return self.metadata.get(f"{self.architecture}.{key}")


def read_header(path: Path | str) -> GgufHeader:
    """Return the header of a GGUF file; of a split one (`name-00001-of-00003.gguf`, any part), of all parts together.

    SpecError names the file, the byte offset and what is wrong; also for a missing or unreadable file or part.
    """
    path = Path(path)
    limits = _Limits()
    header = _read_part(path, limits)
    count = header.metadata.get("split.count", 1)
    if not isinstance(count, int) or count <= 1:
        return header
    paths = _part_paths(path, count)
    if path != paths[0]:
        limits = _Limits()
        header = _read_part(paths[0], limits)
    return _with_parts(header, paths[1:], limits)


@dataclass
class _Limits:
    """What may still be read, over all parts of a file."""

    header_bytes: int = MAX_HEADER_BYTES
    strings: int = MAX_STRINGS
    kept_bytes: int = MAX_KEPT_BYTES
    tensors: int = MAX_TENSORS


def _part_paths(path: Path, count: int) -> list[Path]:
    """Return the paths of all parts of a split file, of which `path` is one."""
    match = re.fullmatch(r"(.+)-[0-9]{5}-of-([0-9]{5})\.gguf", path.name, re.DOTALL)
    if count > MAX_PARTS:
        refuse(str(path), "split.count", f"{count:,} parts are more than the {MAX_PARTS} that are read")
    if match is None or int(match[2]) != count:
        message = f"is one of {count} parts, but its name does not end in -00001-of-{count:05}.gguf; restore the names"
        refuse(str(path), "split.count", message)
    return [path.with_name(f"{match[1]}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]


def _with_parts(first: GgufHeader, paths: list[Path], limits: _Limits) -> GgufHeader:
    """Return the first part's header with the tensors of all parts, after checking that they are one model's."""
    _check_place(first, 0, len(paths) + 1)
    tensors = list(first.tensors)
    names = {tensor.name for tensor in tensors}
    for number, path in enumerate(paths, start=1):
        part = _read_part(path, limits)
        _check_place(part, number, len(paths) + 1)
        for tensor in part.tensors:
            if tensor.name in names:
                refuse(part.file, quoted(tensor.name), "the tensor stands in two parts")
            names.add(tensor.name)
        tensors += part.tensors
    expected = first.metadata.get("split.tensors.count")
    if isinstance(expected, int) and expected != len(tensors):
        message = f"the {len(paths) + 1} parts hold {len(tensors):,} tensors instead of {expected:,}"
        refuse(first.file, "split.tensors.count", message)
    return replace(first, tensors=tuple(tensors), files=(first.file, *map(str, paths)))


def _check_place(part: GgufHeader, number: int, count: int) -> None:
    """Refuse a part that does not say that it is part `number`, from 0, of `count`."""
    said = part.metadata.get("split.no"), part.metadata.get("split.count")
    if said != (number, count):
        message = f"says that it is part {said[0]} (from 0) of {said[1]}, where part {number} of {count} is expected"
        refuse(part.file, "split.no", message)


def _read_part(path: Path, limits: _Limits) -> GgufHeader:
    """Return the header of one file."""
    name = str(path)
    try:
        # Asked before opening: opening a pipe would wait for its writer, and a device has no end.
        mode = path.stat().st_mode if "\0" not in name else 0
        if not stat.S_ISREG(mode):
            refuse(quoted(name, 400), "", "is a folder" if stat.S_ISDIR(mode) else "is not a regular file")
        with path.open("rb") as stream:
            return _Part(_Header(stream, os.fstat(stream.fileno()).st_size, name, limits)).read()
    except OSError as error:
        raise SpecError([Problem(name, 1, 1, "", f"cannot be read: {error.strerror or error}")]) from None


class _Header:
    """The bytes of a header, read in chunks; never beyond the end of the file or MAX_HEADER_BYTES."""

    def __init__(self, stream: BinaryIO, size: int, file: str, limits: _Limits) -> None:
        self.size = size
        self.file = file
        self.limits = limits
        self.order = "<"
        self._stream = stream
        self._limit = min(size, limits.header_bytes)
        self._buffer = b""
        self._base = 0  # offset in the file of the buffer's first byte
        self._at = 0  # position in the buffer

    @property
    def position(self) -> int:
        """Offset in the file of the next byte."""
        return self._base + self._at

    @property
    def remaining(self) -> int:
        """Bytes of the file after the position."""
        return self.size - self.position

    def fail(self, field_name: str, message: str, at: int | None = None) -> NoReturn:
        """Raise a SpecError that names the byte offset (the position unless `at` is given)."""
        refuse(self.file, field_name, f"{message}, at byte {self.position if at is None else at:,}")

    def set_order(self, order: Literal["<", ">"]) -> None:
        """Choose the byte order of everything that follows."""
        self.order = order

    def take(self, count: int, field_name: str) -> bytes:
        """Return the next `count` bytes; `count` has been bounded by the caller."""
        self._load(count, field_name)
        taken = self._buffer[self._at : self._at + count]
        self._at += count
        return taken

    def numbers(self, layout: str, field_name: str) -> tuple[Any, ...]:
        """Return the next numbers by a layout of struct, without padding."""
        reader = struct.Struct(self.order + layout)
        return reader.unpack(self.take(reader.size, field_name))

    def number(self, layout: str, field_name: str) -> Any:
        """Return the next number."""
        return self.numbers(layout, field_name)[0]

    def skip(self, count: int, field_name: str) -> None:
        """Pass over `count` bytes, however many, without reading those beyond the buffer."""
        self._check(self.position + count, field_name)
        self._at += count

    def skip_strings(self, count: int, field_name: str) -> None:
        """Pass over `count` strings by their lengths, which are all that is read of a string longer than a chunk."""
        lengths = struct.Struct(self.order + "Q").unpack_from
        while count:
            self._load(8, field_name)
            buffer, at, last = self._buffer, self._at, len(self._buffer) - 8
            # Hundreds of thousands of strings pass here: one call and one comparison for each.
            for done in range(1, count + 1):  # noqa: B007  (used after the loop)
                at += 8 + lengths(buffer, at)[0]
                if at > last:
                    break
            count -= done
            self._check(self._base + at, field_name)
            self._at = at

    def _load(self, count: int, field_name: str) -> None:
        """See to it that the next `count` bytes are in the buffer."""
        if self._at + count <= len(self._buffer):
            return
        start = self.position
        self._check(start + count, field_name)
        self._stream.seek(start)
        self._buffer = self._stream.read(max(count, min(_CHUNK, self._limit - start)))
        self._base, self._at = start, 0
        if len(self._buffer) < count:  # the file became shorter meanwhile
            self.fail(field_name, "the file ends")

    def _check(self, end: int, field_name: str) -> None:
        """Refuse a header that reaches to `end` if there is no such byte, or if no header is that long."""
        if end > self.size:
            self.fail(field_name, f"the file is cut short: it has {self.size:,} bytes and needs {end:,} or more")
        if end > self._limit:
            self.fail(field_name, f"the header is longer than the {MAX_HEADER_BYTES:,} bytes that are read")


class _Part:
    """Reads the header of one file, pair by pair."""

    def __init__(self, source: _Header) -> None:
        self.source = source
        self.metadata: dict[str, Value] = {}
        self.array_lengths: dict[str, int] = {}
        self.seen: set[str] = set()

    def read(self) -> GgufHeader:
        """Return the header."""
        source = self.source
        if source.size == 0:
            refuse(source.file, "", "is empty, not a GGUF file")
        version = self._version()
        # A tensor takes at least 24 bytes of the table, a pair 13: larger counts cannot be true.
        tensors = self._count("number of tensors", 24, source.limits.tensors)
        pairs = self._count("number of metadata keys", 13, MAX_KEYS)
        for _ in range(pairs):
            self._pair()
        table = tuple(self._tensor() for _ in range(tensors))
        self._check_data(table)
        source.limits.tensors -= tensors
        source.limits.header_bytes -= source.position
        order: Literal["little", "big"] = "little" if source.order == "<" else "big"
        return GgufHeader(source.file, version, order, self.metadata, self.array_lengths, table, (source.file,))

    def _version(self) -> int:
        """Return the version after the magic, and find the byte order: versions are small numbers."""
        source = self.source
        magic = source.take(min(4, source.size), "magic")
        if magic != b"GGUF":
            source.fail("magic", f"is not a GGUF file: it starts with {magic!r} instead of b'GGUF'", at=0)
        raw = source.take(4, "version")
        little, big = int.from_bytes(raw, "little"), int.from_bytes(raw, "big")
        source.set_order("<" if little <= big else ">")
        version = min(little, big)
        if version == 1:
            source.fail("version", "GGUF version 1 is not supported; convert the model again", at=4)
        if version not in (2, 3):
            source.fail("version", f"unknown GGUF version {version:,}; known: 2 and 3", at=4)
        return version

    def _count(self, what: str, least_bytes: int, most: int) -> int:
        """Return a u64 count, refused where the file could not hold as many."""
        at = self.source.position
        count: int = self.source.number("Q", what)
        if count * least_bytes > self.source.remaining:
            left = self.source.remaining
            self.source.fail(what, f"{count:,} do not fit into the {left:,} bytes that follow", at)
        if count > most:
            self.source.fail(what, f"{count:,} are more than the {most:,} that are read", at)
        return count

    def _text(self, what: str, most: int) -> str:
        """Return a string of at most `most` bytes."""
        at = self.source.position
        length: int = self.source.number("Q", what)
        if length > most:
            self.source.fail(what, f"a string of {length:,} bytes is longer than the {most:,} allowed here", at)
        raw = self.source.take(length, what)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            self.source.fail(what, f"is not UTF-8 (byte 0x{raw[error.start]:02x})", at + 8 + error.start)

    def _pair(self) -> None:
        """Read one key and its value."""
        at = self.source.position
        key = self._text("metadata key", MAX_KEY_BYTES)
        shown = quoted(key)
        if key in self.seen:
            self.source.fail(shown, "the key stands twice", at)
        self.seen.add(key)
        self._keep(len(key), shown)
        at = self.source.position
        kind: int = self.source.number("I", shown)
        if kind == _STRING:
            self._string(key, shown)
        elif kind == _ARRAY:
            self._array(key, shown)
        elif kind in _SCALARS:
            self.metadata[key] = self._elements(kind, 1, shown)[0]
        else:
            self.source.fail(shown, f"unknown value type {kind:,}", at)

    def _string(self, key: str, shown: str) -> None:
        """Keep a string unless it is long (a whole tokenizer file)."""
        source = self.source
        length = int.from_bytes(source.take(8, shown), "little" if source.order == "<" else "big")
        if length > MAX_STRING_KEPT:
            source.skip(length, shown)
            return
        at = source.position
        raw = source.take(length, shown)
        try:
            self.metadata[key] = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            source.fail(shown, f"is not UTF-8 (byte 0x{raw[error.start]:02x})", at + error.start)
        self._keep(length, shown)

    def _array(self, key: str, shown: str) -> None:
        """Note an array's length; keep its elements if they are few numbers."""
        source, at = self.source, self.source.position
        kind, length = source.numbers("IQ", shown)
        self.array_lengths[key] = length
        if kind == _ARRAY:
            source.fail(shown, "arrays of arrays are not supported", at)
        if kind == _STRING:
            self._strings(length, shown, at)
        elif kind not in _SCALARS:
            source.fail(shown, f"unknown value type {kind:,}", at)
        elif length > MAX_ARRAY_KEPT:
            source.skip(length * struct.calcsize(_SCALARS[kind][1]), shown)
        else:
            self._keep(32 * length, shown)
            self.metadata[key] = self._elements(kind, length, shown)

    def _strings(self, length: int, shown: str, at: int) -> None:
        """Pass over an array of strings."""
        if length * 8 > self.source.remaining:
            left = self.source.remaining
            self.source.fail(shown, f"{length:,} strings do not fit into the {left:,} bytes that follow", at)
        self.source.limits.strings -= length
        if self.source.limits.strings < 0:
            self.source.fail(shown, f"the arrays hold more than {MAX_STRINGS:,} strings", at)
        self.source.skip_strings(length, shown)

    def _elements(self, kind: int, count: int, shown: str) -> tuple[int | float | bool, ...]:
        """Return numbers or booleans of one type."""
        at = self.source.position
        values = self.source.numbers(f"{count}{_SCALARS[kind][1]}", shown)
        if kind != _BOOL:
            return values
        if any(value > 1 for value in values):
            self.source.fail(shown, f"a boolean is neither 0 nor 1 but {max(values)}", at)
        return tuple(value == 1 for value in values)

    def _keep(self, size: int, shown: str) -> None:
        """Count what stays in memory."""
        self.source.limits.kept_bytes -= size
        if self.source.limits.kept_bytes < 0:
            self.source.fail(shown, f"names, texts and short arrays take more than {MAX_KEPT_BYTES:,} bytes")

    def _tensor(self) -> TensorInfo:
        """Return the next row of the tensor table."""
        source, at = self.source, self.source.position
        name = self._text("tensor name", MAX_TENSOR_NAME_BYTES)
        shown = quoted(name)
        self._keep(len(name), shown)
        rank: int = source.number("I", shown)
        if rank > MAX_DIMENSIONS:
            source.fail(shown, f"has {rank:,} dimensions; at most {MAX_DIMENSIONS} are possible", at)
        *dims, type_id, offset = source.numbers(f"{rank}QIQ", shown)
        if type_id not in TENSOR_TYPES:
            source.fail(shown, f"unknown tensor type {type_id:,}", at)
        type_name, block, block_bytes = TENSOR_TYPES[type_id]
        elements = math.prod(dims)
        if elements > _MAX_INT64:
            source.fail(shown, f"{' x '.join(map(str, dims))} elements are more than any file holds", at)
        row = dims[0] if dims else 1
        if row % block:
            source.fail(shown, f"type {type_name} stores blocks of {block}, which do not divide rows of {row:,}", at)
        return TensorInfo(name, tuple(dims), type_id, type_name, elements // block * block_bytes, offset)

    def _check_data(self, tensors: tuple[TensorInfo, ...]) -> None:
        """Refuse tensors that share a name or bytes, are not aligned, or lie beyond the end of the file."""
        source = self.source
        if not tensors:
            return
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= 2**20 or alignment & (alignment - 1):
            refuse(source.file, "general.alignment", f"{alignment!r} is not a power of two of at most 2^20")
        start = -(-source.position // alignment) * alignment
        names: set[str] = set()
        end = 0
        for tensor in sorted(tensors, key=lambda tensor: (tensor.offset, tensor.bytes)):
            shown = quoted(tensor.name)
            if tensor.name in names:
                refuse(source.file, shown, "the tensor stands twice in the table")
            names.add(tensor.name)
            if tensor.offset % alignment:
                message = f"its offset {tensor.offset:,} is not a multiple of the alignment {alignment}"
                refuse(source.file, shown, message)
            if tensor.offset < end:
                message = f"its data, from byte {start + tensor.offset:,} on, overlaps the tensor before it"
                refuse(source.file, shown, message)
            end = tensor.offset + tensor.bytes
            if start + end > source.size:
                message = f"its data ends at byte {start + end:,}, but the file has {source.size:,}; it is cut short"
                refuse(source.file, shown, message)
