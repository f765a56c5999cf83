"""GGUF files: the header (metadata and tensor table) within fixed bounds, and the model that it describes.

Layout of a header, by the GGUF specification (ggml's docs/gguf.md), versions 2 and 3, in either byte order: the magic
`GGUF`, a u32 version, a u64 number of tensors, a u64 number of metadata pairs; the pairs (key, u32 type, value); the
tensor table (name, u32 number of dimensions, u64 dimensions, u32 type, u64 offset); the data, from the next multiple
of `general.alignment` on. A string is a u64 length and UTF-8 bytes, an array a u32 type, a u64 length and its elements.

Nothing of the data is read. Whatever a file claims, reading it stays within the limits below.
"""

from __future__ import annotations

import datetime
import math
import os
import re
import stat
import struct
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NoReturn, TypeAlias

from kvcalc.errors import Problem, SpecError, did_you_mean

if TYPE_CHECKING:
    from kvcalc.spec.model import ModelSpec

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
        _refuse(str(path), "split.count", f"{count:,} parts are more than the {MAX_PARTS} that are read")
    if match is None or int(match[2]) != count:
        message = f"is one of {count} parts, but its name does not end in -00001-of-{count:05}.gguf; restore the names"
        _refuse(str(path), "split.count", message)
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
                _refuse(part.file, _quoted(tensor.name), "the tensor stands in two parts")
            names.add(tensor.name)
        tensors += part.tensors
    expected = first.metadata.get("split.tensors.count")
    if isinstance(expected, int) and expected != len(tensors):
        message = f"the {len(paths) + 1} parts hold {len(tensors):,} tensors instead of {expected:,}"
        _refuse(first.file, "split.tensors.count", message)
    return replace(first, tensors=tuple(tensors), files=(first.file, *map(str, paths)))


def _check_place(part: GgufHeader, number: int, count: int) -> None:
    """Refuse a part that does not say that it is part `number`, from 0, of `count`."""
    said = part.metadata.get("split.no"), part.metadata.get("split.count")
    if said != (number, count):
        message = f"says that it is part {said[0]} (from 0) of {said[1]}, where part {number} of {count} is expected"
        _refuse(part.file, "split.no", message)


def _read_part(path: Path, limits: _Limits) -> GgufHeader:
    """Return the header of one file."""
    name = str(path)
    try:
        # Asked before opening: opening a pipe would wait for its writer, and a device has no end.
        mode = path.stat().st_mode if "\0" not in name else 0
        if not stat.S_ISREG(mode):
            _refuse(_quoted(name, 400), "", "is a folder" if stat.S_ISDIR(mode) else "is not a regular file")
        with path.open("rb") as stream:
            return _Part(_Header(stream, os.fstat(stream.fileno()).st_size, name, limits)).read()
    except OSError as error:
        raise SpecError([Problem(name, 1, 1, "", f"cannot be read: {error.strerror or error}")]) from None


def _refuse(file: str, field_name: str, message: str) -> NoReturn:
    raise SpecError([Problem(file, 1, 1, field_name, message)])


def _quoted(text: str, limit: int = 64) -> str:
    """Return text from a file as it may be printed: control characters escaped, long text cut."""
    shown = text if text.isprintable() else repr(text)[1:-1]
    return shown if len(shown) <= limit else f"{shown[: limit - 3]}..."


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
        _refuse(self.file, field_name, f"{message}, at byte {self.position if at is None else at:,}")

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
            _refuse(source.file, "", "is empty, not a GGUF file")
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
        shown = _quoted(key)
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
        shown = _quoted(name)
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
            _refuse(source.file, "general.alignment", f"{alignment!r} is not a power of two of at most 2^20")
        start = -(-source.position // alignment) * alignment
        names: set[str] = set()
        end = 0
        for tensor in sorted(tensors, key=lambda tensor: (tensor.offset, tensor.bytes)):
            shown = _quoted(tensor.name)
            if tensor.name in names:
                _refuse(source.file, shown, "the tensor stands twice in the table")
            names.add(tensor.name)
            if tensor.offset % alignment:
                message = f"its offset {tensor.offset:,} is not a multiple of the alignment {alignment}"
                _refuse(source.file, shown, message)
            if tensor.offset < end:
                message = f"its data, from byte {start + tensor.offset:,} on, overlaps the tensor before it"
                _refuse(source.file, shown, message)
            end = tensor.offset + tensor.bytes
            if start + end > source.size:
                message = f"its data ends at byte {start + end:,}, but the file has {source.size:,}; it is cut short"
                _refuse(source.file, shown, message)


# --- Architectures ----------------------------------------------------------------------------------------------------

# A kind of a layer as the YAML would have it, in a form that can be compared and counted.
_Kind: TypeAlias = tuple[tuple[str, Any], ...]
_Layer: TypeAlias = tuple[_Kind, ...]

# Which layers of a hybrid keep a recurrent state instead of, or beside, keys and values:
#   none: no layer does; all: every layer, and none attends; both: every layer does both;
#   no_kv: layers without kv heads; no_kv_no_ff: those that have no feed-forward part either (the rest of the layers
#   without kv heads are MLPs); interval: all but every n-th.
_Recurrent = Literal["none", "all", "both", "no_kv", "no_kv_no_ff", "interval"]


@dataclass(frozen=True)
class _Architecture:
    """What the header leaves to the architecture.

    `window` says which layers slide where the file gives a window and no pattern: `every` layer; all but every n-th;
    none, because the published models turn the window off (`off`); None: no rule is known, the file must say.
    """

    model_type: str
    window: int | Literal["every", "off"] | None = None
    window_default: int | None = None
    needs_window: bool = False
    chunk: int | None = None
    recurrent: _Recurrent = "none"
    state: Callable[[_Hparams, int], _Kind] | None = None
    interval: int = 0
    own_kv: int | None = None
    indexer: Literal["every", "typed", "sparse"] | None = None
    layout: Literal["decoder", "encoder_decoder", "compressed"] = "decoder"


class _Hparams:
    """The keys of one architecture, checked as they are read."""

    def __init__(self, header: GgufHeader, architecture: str) -> None:
        self.header = header
        self.architecture = architecture
        self._per_layer: dict[str, list[int]] = {}
        self.blocks = self.positive("decoder_block_count" if self.has("decoder_block_count") else "block_count")
        if self.blocks > 10_000:
            self.fail("block_count", f"{self.blocks:,} layers are out of range; at most 10,000 are possible")
        # The layers that predict further tokens keep nothing while decoding one token at a time.
        self.layers = self.blocks - self.integer("nextn_predict_layers", 0)
        if self.layers < 1:
            self.fail("nextn_predict_layers", f"leaves {self.layers} of {self.blocks} layers")

    def has(self, key: str) -> bool:
        """Return whether the file has the key (also as an array too long to be kept)."""
        full = f"{self.architecture}.{key}"
        return full in self.header.metadata or full in self.header.array_lengths

    def value(self, key: str) -> Value | None:
        """Return a value as it stands, None if it is absent."""
        full = f"{self.architecture}.{key}"
        if full not in self.header.metadata and full in self.header.array_lengths:
            length = self.header.array_lengths[full]
            self.fail(key, f"is an array of {length:,} elements; numbers, at most {MAX_ARRAY_KEPT:,}, are expected")
        return self.header.metadata.get(full)

    def fail(self, key: str, message: str) -> NoReturn:
        """Raise a SpecError that names the key."""
        _refuse(self.header.file, f"{self.architecture}.{key}", message)

    def integer(self, key: str, default: int | None = None) -> int:
        """Return a whole number from 0 on; an array counts if all its elements are equal."""
        value = self.value(key)
        if isinstance(value, tuple) and len(set(value)) == 1:
            value = value[0]
        if value is None:
            value = default
        if value is None:
            self.fail(key, "is missing")
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            self.fail(key, f"must be a whole number, not {_described(value)}")
        return value

    def positive(self, key: str) -> int:
        """Return a whole number from 1 on; there is no default."""
        value = self.integer(key)
        if value == 0:
            self.fail(key, "must be at least 1, not 0")
        return value

    def optional(self, key: str) -> int | None:
        """Return a whole number from 1 on; None if it is absent or 0."""
        return self.integer(key, 0) or None

    def per_layer(self, key: str, default: int | list[int] | None = None) -> list[int]:
        """Return one whole number from 0 on per layer, from an array or from one number for all."""
        if key not in self._per_layer:
            self._per_layer[key] = self._read_per_layer(key, default)
        return self._per_layer[key]

    def _read_per_layer(self, key: str, default: int | list[int] | None) -> list[int]:
        value = self.value(key)
        if isinstance(default, list) and value is None:
            return default
        if not isinstance(value, tuple):
            return [self.integer(key, default if isinstance(default, int) else None)] * self.layers
        if len(value) < self.layers:
            self.fail(key, f"has {len(value)} values for {self.layers} layers")
        numbers = []
        for number in value[: self.layers]:
            if isinstance(number, float) or number < 0:
                self.fail(key, f"must hold whole numbers, not {_described(number)}")
            numbers.append(int(number))
        return numbers

    def flags(self, key: str) -> list[bool] | None:
        """Return one yes or no per layer; None if the key is absent."""
        return [bool(number) for number in self.per_layer(key)] if self.has(key) else None


def _described(value: object) -> str:
    """Return a value for a message."""
    return f"an array of {len(value)}" if isinstance(value, tuple) else _quoted(repr(value), 40)


def _kind(kind: str, **fields: Any) -> _Kind:
    """Return a kind with the fields that are given."""
    return (("kind", kind), *((name, value) for name, value in fields.items() if value is not None))


# Recurrent states; the keys and their meaning as in llama.cpp's converters.


def _mamba(hparams: _Hparams, _: int) -> _Kind:
    """Mamba 1 has no groups (B and C bypass the convolution), Mamba 2 at least one."""
    channels, groups = hparams.positive("ssm.inner_size"), hparams.optional("ssm.group_count")
    common = {"state_size": hparams.positive("ssm.state_size"), "conv_kernel": hparams.positive("ssm.conv_kernel")}
    if groups is None:
        return _kind("state", variant="mamba1", channels=channels, **common)
    heads = hparams.positive("ssm.time_step_rank")
    if channels % heads:
        hparams.fail("ssm.inner_size", f"{channels:,} is not divisible by the {heads:,} heads (ssm.time_step_rank)")
    return _kind(
        "state", variant="mamba2", state_heads=heads, state_head_dim=channels // heads, groups=groups, **common
    )


def _gated_deltanet(hparams: _Hparams, _: int) -> _Kind:
    """Groups are the key heads, the time step's rank the value heads, the state's size the key head's."""
    channels, heads = hparams.positive("ssm.inner_size"), hparams.positive("ssm.time_step_rank")
    if channels % heads:
        hparams.fail("ssm.inner_size", f"{channels:,} is not divisible by the {heads:,} heads (ssm.time_step_rank)")
    return _kind(
        "state",
        variant="gated_deltanet",
        key_heads=hparams.positive("ssm.group_count"),
        value_heads=heads,
        key_head_dim=hparams.positive("ssm.state_size"),
        value_head_dim=channels // heads,
        conv_kernel=hparams.positive("ssm.conv_kernel"),
    )


def _kda(hparams: _Hparams, _: int) -> _Kind:
    """Kimi Delta Attention has as many heads as the model's first layer."""
    return _kind(
        "state",
        variant="kda",
        state_heads=hparams.per_layer("attention.head_count")[0],
        state_head_dim=hparams.positive("kda.head_dim"),
        conv_kernel=hparams.positive("ssm.conv_kernel"),
    )


def _rwkv(hparams: _Hparams, _: int) -> _Kind:
    """The state's heads fill the hidden size."""
    hidden, head_dim = hparams.positive("embedding_length"), hparams.positive("wkv.head_size")
    shifts = hparams.integer("token_shift_count", 2)
    if shifts != 2:
        hparams.fail("token_shift_count", f"{shifts} shifted tokens cannot be described; only 2")
    if hidden % head_dim:
        hparams.fail("wkv.head_size", f"{head_dim:,} does not divide the hidden size {hidden:,}")
    return _kind("state", variant="rwkv", channels=hidden, state_heads=hidden // head_dim, state_head_dim=head_dim)


def _short_conv(hparams: _Hparams, _: int) -> _Kind:
    """LFM2's convolution over the hidden size."""
    channels, kernel = hparams.positive("embedding_length"), hparams.positive("shortconv.l_cache")
    return _kind("state", variant="short_conv", channels=channels, conv_kernel=kernel)


def _lightning(hparams: _Hparams, layer: int) -> _Kind:
    """Lightning attention has the heads of the full attention layers."""
    heads = hparams.per_layer("attention.head_count")[layer]
    head_dim = hparams.optional("attention.key_length")
    if head_dim is None:
        head_dim = hparams.positive("embedding_length") // max(heads, 1)
    return _kind("state", variant="lightning", state_heads=heads, state_head_dim=head_dim)


# llama.cpp's names whose models have attention of one kind in every layer, unless the file gives a window with a
# pattern. Names: general.architecture as llama.cpp's gguf package lists them (MODEL_ARCH_NAMES). Values: model_type of
# the published config.json (of its text_config) of the models that convert to the name; where several do, the oldest.
_PLAIN: dict[str, str] = {
    "apertus": "apertus",
    "arcee": "arcee",
    "arctic": "arctic",
    "baichuan": "baichuan",
    "bailingmoe": "bailing_moe",
    "bailingmoe2": "bailing_moe_v2",
    "bitnet": "bitnet",
    "bloom": "bloom",
    "chameleon": "chameleon",
    "chatglm": "chatglm",
    "codeshell": "codeshell",
    "command-r": "cohere",
    "dbrx": "dbrx",
    "deci": "nemotron-nas",
    "deepseek": "deepseek",
    "dots1": "dots1",
    "ernie4_5": "ernie4_5",
    "ernie4_5-moe": "ernie4_5_moe",
    "exaone": "exaone",
    "exaone-moe": "exaone_moe",
    "falcon": "falcon",
    "gemma": "gemma",
    "glm4": "glm4",
    "glm4moe": "glm4_moe",
    "gpt2": "gpt2",
    "gptj": "gptj",
    "gptneox": "gpt_neox",
    "granite": "granite",
    "granitemoe": "granitemoe",
    "grok": "grok-1",
    "grovemoe": "grove_moe",
    "hunyuan-dense": "hunyuan_v1_dense",
    "hunyuan-moe": "hunyuan_v1_moe",
    "internlm2": "internlm2",
    "jais": "jais",
    "jais2": "jais2",
    "maincoder": "maincoder",
    "mimo2": "mimo_v2_flash",
    "minicpm": "minicpm",
    "minicpm3": "minicpm3",
    "minimax-m2": "minimax_m2",
    "mistral3": "ministral3",
    "mistral4": "mistral4",
    "mpt": "mpt",
    "nemotron": "nemotron",
    "olmo": "olmo",
    "olmoe": "olmoe",
    "openelm": "openelm",
    "orion": "orion",
    "pangu-embedded": "PanguEmbedded",
    "phi2": "phi",
    "phimoe": "phimoe",
    "plamo": "plamo",
    "plamo3": "plamo3",
    "plm": "plm",
    "refact": "gpt_refact",
    "seed_oss": "seed_oss",
    "smallthinker": "smallthinker",
    "smollm3": "smollm3",
    "stablelm": "stablelm",
    "starcoder": "gpt_bigcode",
    "step35": "step3p5",
    "xverse": "xverse",
}

# Qwen 2, 2.5 and 3 publish a window with use_sliding_window false: that a file has one does not mean that layers slide.
_QWEN: dict[str, str] = {
    "qwen": "qwen",
    "qwen2": "qwen2",
    "qwen2moe": "qwen2_moe",
    "qwen2vl": "qwen2_vl_text",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
    "qwen3vl": "qwen3_vl_text",
    "qwen3vlmoe": "qwen3_vl_moe_text",
}

# Architectures with rules of their own. Windows: the layer_types (or sliding_window_pattern) of the published configs
# and of the model_type's defaults; layer splits and states: llama.cpp 0c1e5709, docs and converters.
_ARCHITECTURES: dict[str, _Architecture] = {
    **{name: _Architecture(model_type) for name, model_type in _PLAIN.items()},
    **{name: _Architecture(model_type, window="off") for name, model_type in _QWEN.items()},
    # Mistral 7B v0.1 converts to llama: a window there is every layer's. So it is in Phi-3 and StarCoder2.
    "llama": _Architecture("llama", window="every"),
    "phi3": _Architecture("phi3", window="every"),
    "starcoder2": _Architecture("starcoder2", window="every"),
    "llama4": _Architecture("llama4_text", window=4, chunk=8192),
    "gemma2": _Architecture("gemma2", window=2, window_default=4096),
    "gemma3": _Architecture("gemma3_text", window=6),
    # Gemma 3n: layers 20 and up read the keys and values of the layers before (35 - 15, 30 - 10 in the two sizes).
    "gemma3n": _Architecture("gemma3n_text", window=5, needs_window=True, own_kv=20),
    "gemma4": _Architecture("gemma4_text", needs_window=True),
    "gpt-oss": _Architecture("gpt_oss", window=2, needs_window=True),
    "cohere2": _Architecture("cohere2", window=4, needs_window=True),
    "olmo2": _Architecture("olmo2", window=4),
    "exaone4": _Architecture("exaone4", window=4),
    "afmoe": _Architecture("afmoe", window=4),
    "deepseek2": _Architecture("deepseek_v2"),
    "deepseek32": _Architecture("deepseek_v32", indexer="every"),
    "glm-dsa": _Architecture("glm_moe_dsa", indexer="typed"),
    "hy_v4": _Architecture("hy_v4", indexer="typed"),
    "minimax-m3": _Architecture("minimax_m3", indexer="sparse"),
    "deepseek4": _Architecture("deepseek_v4", layout="compressed"),
    "t5": _Architecture("t5", layout="encoder_decoder"),
    "mamba": _Architecture("mamba", recurrent="all", state=_mamba),
    "mamba2": _Architecture("mamba2", recurrent="all", state=_mamba),
    "rwkv6": _Architecture("rwkv6", recurrent="all", state=_rwkv),
    "rwkv7": _Architecture("rwkv7", recurrent="all", state=_rwkv),
    "falcon-h1": _Architecture("falcon_h1", recurrent="both", state=_mamba),
    "jamba": _Architecture("jamba", recurrent="no_kv", state=_mamba),
    "granitehybrid": _Architecture("granitemoehybrid", recurrent="no_kv", state=_mamba),
    "plamo2": _Architecture("plamo2", recurrent="no_kv", state=_mamba),
    "lfm2": _Architecture("lfm2", recurrent="no_kv", state=_short_conv),
    "lfm2moe": _Architecture("lfm2_moe", recurrent="no_kv", state=_short_conv),
    "kimi-linear": _Architecture("kimi_linear", recurrent="no_kv", state=_kda),
    "kimi-k3": _Architecture("kimi_linear", recurrent="no_kv", state=_kda),
    "nemotron_h": _Architecture("nemotron_h", recurrent="no_kv_no_ff", state=_mamba),
    "nemotron_h_moe": _Architecture("nemotron_h", recurrent="no_kv_no_ff", state=_mamba),
    "qwen3next": _Architecture("qwen3_next", recurrent="interval", interval=4, state=_gated_deltanet),
    "qwen35": _Architecture("qwen3_5_text", recurrent="interval", interval=4, state=_gated_deltanet),
    "qwen35moe": _Architecture("qwen3_5_moe_text", recurrent="interval", interval=4, state=_gated_deltanet),
    "minimax-01": _Architecture("minimax", recurrent="interval", interval=8, state=_lightning),
}

# Architectures that keep nothing between tokens, and why.
_NO_CACHE: dict[str, str] = {
    **dict.fromkeys(
        (
            "bert",
            "modern-bert",
            "nomic-bert",
            "nomic-bert-moe",
            "neo-bert",
            "jina-bert-v2",
            "jina-bert-v3",
            "eurobert",
            "gemma-embedding",
            "llama-embed",
            "t5encoder",
            "wavtokenizer-dec",
        ),
        "is an encoder: it keeps no KV cache",
    ),
    **dict.fromkeys(("dream", "llada", "llada-moe", "rnd1"), "is a diffusion model: it keeps no KV cache"),
    "clip": "is a projector of images or sound, not a language model",
}

# DeepSeek-V4's ratios (compress_ratios of its published config.json): 4 is sparse attention with an indexer (CSA), 128
# heavily compressed attention (HCA), 0 a window alone.
_CSA_RATIO, _HCA_RATIO = 4, 128

# The gating function of DeepSeek's experts: V3 (and Kimi K2) scores by sigmoid, V2 by softmax; else the two are alike.
_SIGMOID = 2


# --- From the header to a spec ----------------------------------------------------------------------------------------


def to_spec(header: GgufHeader, origin: str = "") -> ModelSpec:
    """Return the model that the header describes, validated as a spec file is.

    The cache's dtype is assumed to be float16, llama.cpp's default, because quantised weights do not say. SpecError
    for an architecture that is not known, for keys that are missing or contradict each other, and for every value
    that a spec file would be refused for.
    """
    from kvcalc.spec.resolve import resolve
    from kvcalc.spec.yaml_tree import Tree

    return resolve(Tree(header.file, data=to_data(header)), origin or header.file)


def to_data(header: GgufHeader) -> dict[str, Any]:
    """Return the model as the data of a spec file (plain ints, texts, lists and dicts); errors as in `to_spec`."""
    name, known = _known_architecture(header)
    hparams = _Hparams(header, name)
    layers = _layers(hparams, known)
    if not any(layers):
        hparams.fail("attention.head_count_kv", "no layer keeps anything: every one has 0 kv heads and no state")
    # T5's positions are relative: the trained length limits neither side.
    encoder_decoder = known.layout == "encoder_decoder"
    context = 0 if encoder_decoder else hparams.integer("context_length", 0)
    vocabulary = header.array_lengths.get("tokenizer.ggml.tokens") or hparams.integer("vocab_size", 0)
    data = {
        "name": _model_name(header),
        "architecture": _model_type(hparams, known),
        "source": {"url": _source(header), "checked": datetime.date.today().isoformat()},
        "layers": hparams.layers,
        "hidden_size": hparams.positive("embedding_length"),
        **_attention(layers, hparams),
        "dtype": "float16",
        "max_context": context or None,
        "parameters": header.parameters or None,
        "vocab_size": vocabulary or None,
        "assumed": ["dtype", "encoder_context"] if encoder_decoder else ["dtype"],
    }
    if data["vocab_size"] is None:
        del data["vocab_size"]
    return data


def _known_architecture(header: GgufHeader) -> tuple[str, _Architecture]:
    """Return the architecture's name and rules; SpecError says what the file is instead."""
    key = "general.architecture"
    purpose = header.metadata.get("general.type", "model")
    if purpose != "model":
        _refuse(header.file, "general.type", f"is {_described(purpose)}, not a model")
    name = header.architecture
    if name is None:
        _refuse(header.file, key, f"is missing; {_keys_seen(header, '')}")
    if name in _NO_CACHE:
        _refuse(header.file, key, f"{name} {_NO_CACHE[name]}")
    if name not in _ARCHITECTURES:
        hint = did_you_mean(name, _ARCHITECTURES)
        message = f"unknown architecture '{_quoted(name)}'{hint}; {_keys_seen(header, f'{name}.')}"
        _refuse(header.file, key, message)
    return name, _ARCHITECTURES[name]


def _keys_seen(header: GgufHeader, prefix: str, limit: int = 40) -> str:
    """Return the keys that start with `prefix`, without it, as a sentence."""
    seen = {*header.metadata, *header.array_lengths}
    keys = sorted(key[len(prefix) :] for key in seen if key.startswith(prefix))
    more = f" and {len(keys) - limit} more" if len(keys) > limit else ""
    listed = ", ".join(_quoted(key) for key in keys[:limit])
    return f"keys in the file: {listed or 'none'}{more}"


def _model_type(hparams: _Hparams, known: _Architecture) -> str:
    """Return the Hugging Face model_type; several may convert to one architecture, told apart by their keys."""
    match hparams.architecture:
        case "llama" if hparams.integer("expert_count", 0):
            return "mixtral"
        case "llama" if hparams.integer("attention.sliding_window", 0):
            return "mistral"
        case "olmo2" if hparams.integer("attention.sliding_window", 0):
            return "olmo3"
        case "deepseek2" if hparams.integer("expert_gating_func", 0) == _SIGMOID:
            return "deepseek_v3"
        case "mamba" if hparams.value("ssm.dt_b_c_rms") is True:
            return "falcon_mamba"
    return known.model_type


def _model_name(header: GgufHeader) -> str:
    """Return the model's own name, or the file's, in the characters and the length that a name may have."""
    stem = re.sub(r"(-[0-9]{5}-of-[0-9]{5})?\.gguf$", "", Path(header.file).name)
    for candidate in (header.metadata.get("general.name"), header.metadata.get("general.basename"), stem):
        if isinstance(candidate, str):
            name = re.sub(r"[^a-z0-9._+]+", "-", candidate.lower()).strip("-._+")[:200].rstrip("-._+")
            if name:
                return name
    return "model"


def _source(header: GgufHeader) -> str:
    """Return the file's name as the source of the numbers."""
    return f"file:{_quoted(Path(header.file).name, 400) or 'model.gguf'}"


def _layers(hparams: _Hparams, known: _Architecture) -> list[_Layer]:
    """Return the kinds of every layer."""
    if known.layout == "compressed":
        return _compressed_layers(hparams)
    heads = hparams.per_layer("attention.head_count", 0 if known.recurrent == "all" else None)
    kv_heads = hparams.per_layer("attention.head_count_kv", heads)
    recurrent = _recurrent_layers(hparams, known, kv_heads)
    attending = [
        known.recurrent in ("none", "both") or (known.recurrent != "all" and not recurrent[layer])
        for layer in range(hparams.layers)
    ]
    attention = _Attention(hparams, known, heads, kv_heads)
    layers = []
    for layer in range(hparams.layers):
        kinds = attention.kinds(layer) if attending[layer] else ()
        if recurrent[layer] and known.state is not None:
            kinds = (*kinds, known.state(hparams, layer))
        layers.append(kinds)
    return _shared(hparams, known, layers)


def _recurrent_layers(hparams: _Hparams, known: _Architecture, kv_heads: list[int]) -> list[bool]:
    """Return which layers keep a recurrent state."""
    written = hparams.flags("attention.recurrent_layers") if known.recurrent == "interval" else None
    if written is not None:
        return written
    match known.recurrent:
        case "all" | "both":
            return [True] * hparams.layers
        case "no_kv":
            return [count == 0 for count in kv_heads]
        case "no_kv_no_ff":
            feed_forward = hparams.per_layer("feed_forward_length")
            return [kv == 0 and ff == 0 for kv, ff in zip(kv_heads, feed_forward, strict=True)]
        case "interval":
            interval = hparams.integer("full_attention_interval", known.interval)
            if interval == 0:
                hparams.fail("full_attention_interval", "must be at least 1, not 0")
            return [(layer + 1) % interval != 0 for layer in range(hparams.layers)]
    return [False] * hparams.layers


@dataclass
class _Attention:
    """The attention of a decoder's layers, one kind for each (and an indexer beside it)."""

    hparams: _Hparams
    known: _Architecture
    heads: list[int]
    kv_heads: list[int]
    window: int | None = field(init=False)
    slides: list[bool] = field(init=False)
    head_dim: int | None = field(init=False)

    def __post_init__(self) -> None:
        self.window = self._window()
        self.slides = self._sliding_layers()
        self.head_dim = self._head_dim()

    def kinds(self, layer: int) -> _Layer:
        """Return what the layer's attention keeps; nothing for a layer without heads."""
        heads, kv_heads = self.heads[layer], self.kv_heads[layer]
        if heads == 0 or kv_heads == 0:
            return ()
        if self.hparams.integer("attention.kv_lora_rank", 0):
            own = self._latent(heads)
        else:
            own = self._keys_and_values(layer, heads, kv_heads)
        if self.known.layout == "encoder_decoder":
            return (own, self._cross(own))
        return (own, *self._indexer(layer))

    def _keys_and_values(self, layer: int, heads: int, kv_heads: int) -> _Kind:
        """Return a full, sliding or chunked kind."""
        sliding = self.slides[layer]
        key, value = self._head_dims(sliding)
        dims = {"heads": heads, "kv_heads": kv_heads, "head_dim": key, "v_head_dim": None if value == key else value}
        if not sliding:
            return _kind("full", **dims)
        if self.known.chunk is not None:
            return _kind("chunked", **dims, chunk=self.known.chunk)
        return _kind("sliding", **dims, window=self.window)

    def _head_dims(self, sliding: bool) -> tuple[int, int]:
        """Return the elements of one key and one value head; sliding layers may have their own."""
        hparams = self.hparams
        key = hparams.optional("attention.key_length") or self.head_dim
        value = hparams.optional("attention.value_length") or self.head_dim
        if sliding:
            key = hparams.optional("attention.key_length_swa") or key
            value = hparams.optional("attention.value_length_swa") or value
        if key is None or value is None:
            hparams.fail("attention.key_length", "is missing, and the hidden size does not say how large a head is")
        return key, value

    def _head_dim(self) -> int | None:
        """Return the head size that the hidden size implies, by the first layer that has heads."""
        heads = next((count for count in self.heads if count), 0)
        return self.hparams.positive("embedding_length") // heads or None if heads else None

    def _latent(self, heads: int) -> _Kind:
        """Return an MLA kind.

        Newer files describe the cache (key_length is latent + rope) and give the expanded heads as *_mla; older ones
        describe the expanded heads.
        """
        hparams = self.hparams
        rank, key = hparams.positive("attention.kv_lora_rank"), hparams.positive("attention.key_length")
        expanded_key = hparams.optional("attention.key_length_mla")
        if expanded_key is None:
            rope, expanded_key = hparams.positive("rope.dimension_count"), key
            expanded_value = hparams.optional("attention.value_length")
        else:
            rope = key - rank
            expanded_value = hparams.optional("attention.value_length_mla")
        if not 0 < rope < expanded_key:
            message = f"{key:,} does not fit a latent of {rank:,} and expanded heads of {expanded_key:,}"
            hparams.fail("attention.key_length", message)
        return _kind(
            "mla",
            heads=heads,
            kv_lora_rank=rank,
            qk_rope_head_dim=rope,
            qk_nope_head_dim=expanded_key - rope,
            v_head_dim=expanded_value,
        )

    def _cross(self, own: _Kind) -> _Kind:
        """Return the attention to the encoder, whose longest input is assumed to be the trained context."""
        return _kind("cross", **dict(own[1:]), encoder_context=self.hparams.integer("context_length", 0))

    def _indexer(self, layer: int) -> _Layer:
        """Return the indexer beside the layer's attention, if it has one of its own."""
        hparams = self.hparams
        size = hparams.optional("attention.indexer.key_length")
        if size is None or self.known.indexer is None:
            return ()
        if self.known.indexer == "sparse" and layer < hparams.integer("leading_dense_block_count", 0):
            return ()
        if self.known.indexer == "typed":
            own = hparams.flags("attention.indexer.types")
            if own is not None and not own[layer]:
                return ()
        return (_kind("indexer", index_head_dim=size),)

    def _window(self) -> int | None:
        """Return the sliding window in tokens; None if there is none."""
        hparams, known = self.hparams, self.known
        if known.chunk is not None or known.window == "off":
            return None
        window = hparams.integer("attention.sliding_window", known.window_default or 0)
        if window == 0 and known.needs_window:
            hparams.fail("attention.sliding_window", "is missing; this architecture has layers with a window")
        return window or None

    def _sliding_layers(self) -> list[bool]:
        """Return which layers see a window (or chunk) only."""
        hparams, key = self.hparams, "attention.sliding_window_pattern"
        if self.window is None and self.known.chunk is None:
            return [False] * hparams.layers
        if isinstance(hparams.value(key), tuple):
            return [number != 0 for number in hparams.per_layer(key)]
        period = hparams.integer(key) if hparams.has(key) else self.known.window
        if period in ("every", 0):
            return [True] * hparams.layers
        if not isinstance(period, int):
            message = "is missing; the file gives a window, but neither it nor the architecture says to which layers"
            hparams.fail(key, message)
        return [layer % period < period - 1 for layer in range(hparams.layers)]


def _shared(hparams: _Hparams, known: _Architecture, layers: list[_Layer]) -> list[_Layer]:
    """Return the layers with the last ones reading, each, the nearest earlier layer of its kind that keeps its own."""
    key = "attention.shared_kv_layers"
    count = hparams.integer(key, 0)
    if count == 0 and known.own_kv is not None:
        count = max(hparams.layers - known.own_kv, 0)
    own = hparams.layers - count
    if own < 1:
        hparams.fail(key, f"{count:,} of {hparams.layers} layers leave none with keys and values of its own")
    kept = {_sorts(layer): layer for layer in layers[:own]}
    result = layers[:own]
    for index, layer in enumerate(layers[own:], start=own):
        if _sorts(layer) not in kept:
            hparams.fail(key, f"layer {index} shares keys and values, but no layer of its kind keeps any before it")
        result.append(tuple(_kind("shared", of=kind) for kind in kept[_sorts(layer)]))
    return result


def _sorts(layer: _Layer) -> frozenset[str]:
    """Return what sorts of kinds a layer has, whatever their dimensions."""
    return frozenset(str(dict(kind)["kind"]) for kind in layer)


def _compressed_layers(hparams: _Hparams) -> list[_Layer]:
    """Return DeepSeek-V4's layers: a window, and beside it compressed entries in most."""
    key = "attention.compress_ratios"
    ratios = hparams.per_layer(key)
    heads = hparams.per_layer("attention.head_count")
    head_dim, window = hparams.positive("attention.key_length"), hparams.positive("attention.sliding_window")
    index_head_dim = hparams.optional("attention.indexer.key_length")
    layers: list[_Layer] = []
    for layer, ratio in enumerate(ratios):
        dims = {"heads": heads[layer], "head_dim": head_dim, "window": window}
        if ratio == 0:
            layers.append((_kind("sliding", **dims, kv_heads=1, v_head_dim=0),))
        elif ratio == _CSA_RATIO:
            if index_head_dim is None:
                hparams.fail("attention.indexer.key_length", f"is missing; ratio {_CSA_RATIO} comes with an indexer")
            layers.append((_kind("compressed", **dims, ratio=ratio, index_head_dim=index_head_dim),))
        elif ratio == _HCA_RATIO:
            layers.append((_kind("compressed", **dims, ratio=ratio),))
        else:
            hparams.fail(key, f"unknown ratio {ratio:,}; known: 0, {_CSA_RATIO} and {_HCA_RATIO}")
    return layers


# --- Layers as a spec writes them -------------------------------------------------------------------------------------

_SHARED_FIELDS = ("heads", "kv_heads", "head_dim")
_STATE_NAMES = {
    "mamba1": "mamba",
    "mamba2": "mamba",
    "gated_deltanet": "linear",
    "kda": "linear",
    "lightning": "linear",
    "short_conv": "conv",
}


def _attention(layers: list[_Layer], hparams: _Hparams) -> dict[str, Any]:
    """Return the spec's heads, kv_heads, head_dim, pattern and kinds: the simplest that say the same."""
    common = _common_dims(layers)
    named = _named(list(dict.fromkeys(kind for layer in layers for kind in layer)))
    if list(named.values()) == ["full"] and all(layers) and "v_head_dim" not in dict(next(iter(named))):
        return _without_defaults(common, hparams.positive("embedding_length"))
    kinds = {}
    for layer in layers:
        for kind in layer:
            fields = {name: value for name, value in kind if common.get(name) != value}
            kinds[named[kind]] = {**fields, **({"of": named[fields["of"]]} if "of" in fields else {})}
    entries = [[named[kind] for kind in layer] for layer in layers]
    pattern = [entry[0] if len(entry) == 1 else entry or "none" for entry in _period(entries)]
    return {**common, "pattern": pattern, "kinds": kinds}


def _common_dims(layers: list[_Layer]) -> dict[str, int]:
    """Return the dimensions that most layers have, written once at the top of a spec."""
    common = {}
    for name in _SHARED_FIELDS:
        counts = Counter(value for layer in layers for kind in layer for field_, value in kind if field_ == name)
        if counts:
            common[name] = counts.most_common(1)[0][0]
    return common


def _without_defaults(dims: dict[str, int], hidden: int) -> dict[str, int]:
    """Return the dimensions of a model with one kind of layer, without those that a spec works out itself."""
    heads, kv_heads, head_dim = (dims[name] for name in _SHARED_FIELDS)
    written = {"heads": heads}
    if kv_heads != heads:
        written["kv_heads"] = kv_heads
    if head_dim * heads != hidden:
        written["head_dim"] = head_dim
    return written


def _named(kinds: list[_Kind]) -> dict[_Kind, str]:
    """Return a name for every kind: `full`, or `full_kv8` and `full_kv4` where several differ in their kv heads."""
    beside = {str(dict(kind)["kind"]) for kind in kinds}
    readers = [kind for kind in kinds if dict(kind)["kind"] == "shared"]
    groups: dict[str, list[dict[str, Any]]] = {}
    named: dict[_Kind, str] = {}
    for kind in kinds:
        if kind not in readers:
            groups.setdefault(_base_name(dict(kind), beside), []).append(dict(kind))
    for base, group in groups.items():
        heads = {fields.get("kv_heads") for fields in group}
        apart = len(heads) == len(group) and None not in heads
        for number, fields in enumerate(group, start=1):
            suffix = "" if len(group) == 1 else f"_kv{fields['kv_heads']}" if apart else f"_{number}"
            named[tuple(fields.items())] = f"{base}{suffix}"
    named.update({kind: f"shared_{named[dict(kind)['of']]}" for kind in readers})
    return named


def _base_name(fields: dict[str, Any], beside: set[str]) -> str:
    """Return the name of a kind that is the only one of its sort, in a model with the kinds `beside` it."""
    match fields["kind"]:
        case "state":
            return _STATE_NAMES.get(fields["variant"], str(fields["variant"]))
        case "compressed":
            return "csa" if "index_head_dim" in fields else "hca"
        case "sliding":
            return "local"
        case "full" if beside & {"sliding", "chunked"}:
            return "global"
        case "full" if "state" in beside:
            return "attention"
        case "full" if "cross" in beside:
            return "self"
    return str(fields["kind"])


def _period(entries: list[list[str]]) -> list[list[str]]:
    """Return the shortest run of layers that, repeated and cut, gives all of them.

    It is as long as what remains outside the longest border, the beginning that is also the end (Knuth, Morris, Pratt).
    """
    borders = [0]
    for entry in entries[1:]:
        border = borders[-1]
        while border and entries[border] != entry:
            border = borders[border - 1]
        borders.append(border + (entries[border] == entry))
    return entries[: len(entries) - borders[-1]]
