"""Safetensors files: how many bytes of weights of which type, from the headers alone.

Layout, by the format's specification (huggingface/safetensors, README): a little-endian u64 length; as many bytes of
JSON, `{name: {"dtype": ..., "shape": [...], "data_offsets": [begin, end]}, ..., "__metadata__": {text: text}}`; the
data, which the tensors fill without gaps or overlaps. A header has at most 100,000,000 bytes.

The JSON is read entry by entry from a window of the file, so that no header, however large, is held at once.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from kvcalc.errors import did_you_mean
from kvcalc.read._refusal import quoted, refuse

# Limits; in brackets what the largest published models need. The last two hold for all shards together.
MAX_HEADER_BYTES = 100_000_000  # by the specification [12 MB]
MAX_INDEX_BYTES = 2**26  # [9 MB]
MAX_SHARDS = 4096  # [200]
MAX_NAME_BYTES = 1024  # [120]
MAX_NAMES_BYTES = 2**24  # of all names of one file [11 MB]
MAX_ENTRY_BYTES = 2**14  # of one tensor's description [100]
MAX_MEMBERS = 2**17  # tensors, and keys of the metadata [92,000]
MAX_ALL_HEADERS_BYTES = 2**28  # [20 MB]

# Bits of one element (the specification's Dtype).
DTYPE_BITS: dict[str, int] = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "U16": 16,
    "I16": 16,
    "U32": 32,
    "I32": 32,
    "U64": 64,
    "I64": 64,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "F8_E4M3": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2": 8,
    "F8_E5M2FNUZ": 8,
    "F8_E8M0": 8,
    "F16": 16,
    "BF16": 16,
    "F32": 32,
    "F64": 64,
    "C64": 64,
}

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_SHARD = re.compile(r"(.+)-[0-9]{5}-of-([0-9]{5})\.safetensors", re.DOTALL)
_CHUNK = 2**18
_MAX_INT64 = 2**63 - 1


@dataclass(frozen=True)
class WeightFiles:
    """The weights of one model on disk: bytes of the tensors, without headers.

    `parameters` counts elements as stored: packed formats hold several weights in one. `bytes_by_dtype` goes by the
    format's names (BF16, F8_E4M3), the largest first; `files` are the files that were read, in order.
    """

    total_bytes: int
    parameters: int
    bytes_by_dtype: Mapping[str, int]
    files: tuple[str, ...]


def read_weights(path: Path | str) -> WeightFiles:
    """Return the weights of a safetensors file, of an index with its shards, or of the folder that holds either.

    A shard (`name-00001-of-00003.safetensors`) stands for all of them. SpecError names the file and what is wrong.
    """
    path = Path(path)
    if "\0" in str(path):
        refuse(repr(str(path)), "", "is not a file name")
    expected, shards = _shards(path)
    totals: Counter[str] = Counter()
    parameters = tensors = 0
    limits = _Limits()
    for shard in shards:
        for dtype, elements, size in _tensors(shard, limits):
            totals[dtype] += size
            parameters += elements
            tensors += 1
    if tensors < expected:
        refuse(str(path), "weight_map", f"names {expected:,} tensors, but the shards hold {tensors:,}")
    return WeightFiles(sum(totals.values()), parameters, dict(totals.most_common()), tuple(map(str, shards)))


@dataclass
class _Limits:
    """What may still be read, over all shards."""

    members: int = MAX_MEMBERS
    header_bytes: int = MAX_ALL_HEADERS_BYTES


def _shards(path: Path) -> tuple[int, list[Path]]:
    """Return the number of tensors that an index promises (0 without one) and the files that hold the weights."""
    if stat.S_ISDIR(_mode(path)):
        path = _main_file(path)
    if path.name.endswith(".json"):
        return _indexed(path)
    match = _SHARD.fullmatch(path.name)
    if match is None:
        return 0, [path]
    count = int(match[2])
    if not 1 <= count <= MAX_SHARDS:
        refuse(str(path), "", f"is one of {count:,} shards; from 1 to {MAX_SHARDS:,} are read")
    return 0, [path.with_name(f"{match[1]}-{number:05}-of-{match[2]}.safetensors") for number in range(1, count + 1)]


def _main_file(folder: Path) -> Path:
    """Return the index or the file that stands for a folder's model."""
    names = _weight_files(folder)
    for name in (_INDEX, _SINGLE):
        if name in names:
            return folder / name
    indices = [name for name in names if name.endswith(".json")]
    # Without an index, the shards of one model, or a file under another name, still are one answer.
    candidates = sorted({_SHARD.sub(r"\1-00001-of-\2.safetensors", name) for name in indices or names})
    if not candidates:
        refuse(str(folder), "", "holds no .safetensors file")
    if len(candidates) > 1:
        some = ", ".join(quoted(name) for name in candidates[:4])
        refuse(str(folder), "", f"holds {len(candidates)} sets of weights; name one: {some}")
    return folder / candidates[0]


def _weight_files(folder: Path) -> list[str]:
    """Return the names of a folder's .safetensors files and indices."""
    names = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith((".safetensors", ".safetensors.index.json")):
                    names.append(entry.name)
                if len(names) > 2 * MAX_SHARDS:
                    refuse(str(folder), "", f"holds more than {2 * MAX_SHARDS:,} weight files")
    except OSError as error:
        refuse(str(folder), "", f"cannot be read: {error.strerror or error}")
    return names


def _indexed(path: Path) -> tuple[int, list[Path]]:
    """Return the number of tensors that an index names and its shards, which stand beside it."""
    files: set[str] = set()
    tensors = 0
    with _opened(path) as (stream, size):
        if size > MAX_INDEX_BYTES:
            refuse(str(path), "", f"is larger than {MAX_INDEX_BYTES:,} bytes")
        text = _Json(stream, str(path), 0, size, _Limits())
        for key in text.members("the index"):
            if key != "weight_map":
                text.value(key)
                continue
            if tensors:
                text.fail(key, "stands twice")
            names = _Names(text)
            for tensor in text.members(key):
                names.add(tensor)
                files.add(text.string(tensor))
                if len(files) > MAX_SHARDS:
                    text.fail(key, f"names more than {MAX_SHARDS:,} files")
            tensors = len(names)
        text.end()
    if not files:
        refuse(str(path), "weight_map", "is missing or empty; an index maps every tensor to its file")
    for name in files:
        # A file elsewhere is not the model's, and reading it would tell what is there.
        if not name.endswith(".safetensors") or re.search(r"[/\\\0]", name):
            message = f"'{quoted(name)}' is not the name of a .safetensors file beside the index"
            refuse(str(path), "weight_map", message)
    return tensors, [path.with_name(name) for name in sorted(files)]


class _Names:
    """The names of a file's tensors, all different, of bounded size together."""

    def __init__(self, text: _Json) -> None:
        self._text = text
        # Encoded: as text, one rare character makes every other of a name take four bytes.
        self._names: dict[bytes, None] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int) -> str:
        return list(self._names)[index].decode("utf-8", "replace")

    def add(self, name: str) -> None:
        """Add a name; SpecError if it is there, or if the names become too many."""
        encoded = name.encode("utf-8", "surrogatepass")
        if encoded in self._names:
            self._text.fail(name, "the tensor stands twice")
        self._names[encoded] = None
        self._bytes += len(encoded)
        if self._bytes > MAX_NAMES_BYTES:
            self._text.fail(name, f"the names take more than {MAX_NAMES_BYTES:,} bytes")


def _tensors(path: Path, limits: _Limits) -> Iterator[tuple[str, int, int]]:
    """Yield dtype, elements and bytes of every tensor of one file; the ranges are checked after the last."""
    with _opened(path) as (stream, size):
        length = _header_length(stream, size, str(path))
        limits.header_bytes -= length
        if limits.header_bytes < 0:
            refuse(str(path), "", f"the headers together exceed {MAX_ALL_HEADERS_BYTES:,} bytes")
        text = _Json(stream, str(path), 8, length, limits)
        names, begins, ends = _Names(text), array("q"), array("q")
        for tensor in text.members("the header"):
            if tensor == "__metadata__":
                for key in text.members(tensor):
                    text.skip_string(key)
                continue
            names.add(tensor)
            dtype, elements, begin, end = _tensor(text, tensor)
            begins.append(begin)
            ends.append(end)
            yield dtype, elements, end - begin
        text.end()
    _check_ranges(str(path), names, begins, ends, size - 8 - length)


def _header_length(stream: BinaryIO, size: int, file: str) -> int:
    """Return the bytes of the JSON, after checking that the file can hold them."""
    if size < 8:
        refuse(file, "", f"is not a safetensors file: it has {size} bytes, and the header's length alone takes 8")
    length = int.from_bytes(stream.read(8), "little")
    if length > MAX_HEADER_BYTES:
        refuse(file, "", f"is not a safetensors file: its header would have {length:,} bytes; 100 MB are possible")
    if length > size - 8:
        refuse(file, "", f"is cut short: the header has {length:,} bytes, and {size - 8:,} follow its length")
    return length


def _tensor(text: _Json, name: str) -> tuple[str, int, int, int]:
    """Return dtype, elements, first byte and end of the tensor whose description follows."""
    described = text.value(name)
    if not isinstance(described, dict) or set(described) != {"dtype", "shape", "data_offsets"}:
        text.fail(name, "must have dtype, shape and data_offsets, and nothing else")
    dtype, shape, offsets = described["dtype"], described["shape"], described["data_offsets"]
    if not isinstance(dtype, str):
        text.fail(name, "dtype must be a text")
    if dtype not in DTYPE_BITS:
        text.fail(name, f"unknown dtype '{quoted(dtype)}'{did_you_mean(dtype[:40], DTYPE_BITS)}")
    if not _is_sizes(shape):
        text.fail(name, "shape must be a list of whole numbers from 0 on")
    if not _is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        text.fail(name, "data_offsets must be two whole numbers, the end not before the beginning")
    elements = math.prod(shape)
    bits = elements * DTYPE_BITS[dtype]
    begin, end = offsets
    if elements > _MAX_INT64 or bits % 8 or bits // 8 != end - begin:
        shown = quoted(" x ".join(map(str, shape))) or "one element"
        text.fail(name, f"{shown} of {dtype} do not take the {end - begin:,} bytes between its data_offsets")
    return dtype, elements, begin, end


def _is_sizes(value: Any) -> bool:
    """Return whether a JSON value is a list of sizes that a file could have."""
    return isinstance(value, list) and all(type(item) is int and 0 <= item <= _MAX_INT64 for item in value)


def _check_ranges(file: str, names: _Names, begins: array[int], ends: array[int], data_bytes: int) -> None:
    """Refuse tensors that overlap, leave bytes between them or at the end, or lie beyond the end of the file."""
    at = 0
    for index in sorted(range(len(begins)), key=lambda index: (begins[index], ends[index])):
        begin, end = begins[index], ends[index]
        if begin < at:
            refuse(file, quoted(names[index]), f"its data, from byte {begin:,} on, overlaps the tensor before it")
        if begin > at:
            refuse(file, quoted(names[index]), f"the {begin - at:,} bytes before its data belong to no tensor")
        if end > data_bytes:
            message = f"its data ends at byte {end:,}, but only {data_bytes:,} follow the header; the file is cut short"
            refuse(file, quoted(names[index]), message)
        at = end
    if at < data_bytes:
        refuse(file, "", f"the last {data_bytes - at:,} bytes belong to no tensor")


# --- Files ------------------------------------------------------------------------------------------------------------


@contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """Give a regular file, open for reading, and its size; SpecError if there is none."""
    # Asked before opening: opening a pipe would wait for its writer, and a device has no end.
    if not stat.S_ISREG(_mode(path)):
        refuse(str(path), "", "is not a regular file")
    try:
        with path.open("rb") as stream:
            yield stream, os.fstat(stream.fileno()).st_size
    except OSError as error:
        refuse(str(path), "", f"cannot be read: {error.strerror or error}")


def _mode(path: Path) -> int:
    """Return the mode of what the path leads to; SpecError if it leads nowhere."""
    try:
        return path.stat().st_mode
    except OSError as error:
        refuse(str(path), "", f"cannot be read: {error.strerror or error}")


# --- JSON -------------------------------------------------------------------------------------------------------------


_TWICE = "a key stands twice"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object whose keys are all different."""
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError(_TWICE)
    return members


class _Json:
    """A JSON object of bounded length in a file, walked member by member through a window of text.

    The bytes are taken as Latin-1, one character each: JSON's own characters are ASCII, and a window may then end
    within a character of UTF-8. Texts are decoded when they are whole.
    """

    _SPACE = re.compile(r"[ \t\n\r]*")
    _STRING = re.compile(r'"[^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*"')
    _DECODER = json.JSONDecoder(object_pairs_hook=_unique)

    def __init__(self, stream: BinaryIO, file: str, start: int, length: int, limits: _Limits) -> None:
        self.file = file
        self._limits = limits
        self._stream = stream
        self._left = length  # bytes not yet in the window
        self._window = ""
        self._base = start  # offset in the file of the window's first character
        self._at = 0  # position in the window

    def fail(self, field_name: str, message: str) -> NoReturn:
        """Raise a SpecError that names the byte offset."""
        refuse(self.file, quoted(field_name), f"{message}, at byte {self._base + self._at:,}")

    def members(self, what: str) -> Iterator[str]:
        """Yield the keys of the object that follows; the caller reads each value before it asks for the next key."""
        self._expect("{", what)
        if self._next() == "}":
            self._at += 1
            return
        while True:
            self._limits.members -= 1
            if self._limits.members < 0:
                self.fail(what, f"there are more than {MAX_MEMBERS:,} tensors and keys")
            key = self.string(what)
            self._expect(":", key)
            yield key
            mark = self._next()
            if mark not in (",", "}"):
                self.fail(what, f"expected ',' or '}}' in the JSON, not {mark!r}")
            self._at += 1
            if mark == "}":
                return

    def end(self) -> None:
        """Refuse anything but spaces after the object."""
        if self._next():
            self.fail("", "the JSON goes on after its object")

    def string(self, what: str) -> str:
        """Return the text that follows, of at most MAX_NAME_BYTES as it is written."""
        self._next()
        self._fill(MAX_NAME_BYTES + 2)
        match = self._STRING.match(self._window, self._at, self._at + MAX_NAME_BYTES + 2)
        if match is None:
            self.fail(what, f"expected a JSON text of at most {MAX_NAME_BYTES:,} bytes")
        raw = match[0]
        try:
            # Names are plain ASCII nearly always, and there are a hundred thousand in a large index.
            plain = raw.isascii() and "\\" not in raw
            text = raw[1:-1] if plain else json.loads(raw.encode("latin-1").decode("utf-8"))
        except ValueError:
            self.fail(what, "a text is not valid UTF-8 or has an escape that JSON does not know")
        self._at = match.end()
        return str(text)

    def skip_string(self, what: str) -> None:
        """Pass over the text that follows, however long, by its quotes."""
        self._expect('"', what)
        length = 256  # texts are short, mostly: all of the window is looked at only for those that are not
        while True:
            self._fill(2)
            piece = self._window[self._at : self._at + length]
            plain = piece.replace("\\\\", "__").replace('\\"', "__")
            end = plain.find('"')
            if end >= 0:
                self._at += end + 1
                return
            # A backslash at the end escapes what the next piece begins with.
            read = len(piece) - plain.endswith("\\")
            if read == 0:
                self.fail(what, "a text has no end")
            self._at += read
            length = _CHUNK

    def value(self, what: str) -> Any:
        """Return the value that follows, of at most MAX_ENTRY_BYTES."""
        self._next()
        self._fill(MAX_ENTRY_BYTES)
        # Values are short, too; a short piece first saves copying a long one for each.
        found = self._decoded(what, 512) or self._decoded(what, MAX_ENTRY_BYTES)
        if found is None:
            self.fail(what, f"the value is longer than {MAX_ENTRY_BYTES:,} bytes")
        value, used = found
        self._at += used
        return value

    def _decoded(self, what: str, length: int) -> tuple[Any, int] | None:
        """Return the value in the next `length` characters and how many it takes; None if it may go on after them."""
        piece = self._window[self._at : self._at + length]
        complete = self._left == 0 and self._at + length >= len(self._window)
        try:
            value, used = self._DECODER.raw_decode(piece)
        except (ValueError, RecursionError) as error:
            if not complete and length < MAX_ENTRY_BYTES:
                return None
            self._explain(what, error)
        # A number at the end of the piece may go on.
        return (value, used) if complete or used < len(piece) else None

    def _explain(self, what: str, error: ValueError | RecursionError) -> NoReturn:
        """Raise a SpecError that says why a value cannot be read."""
        if isinstance(error, RecursionError):
            self.fail(what, "the JSON is nested too deeply")
        if not isinstance(error, json.JSONDecodeError):
            self.fail(what, str(error) if str(error) == _TWICE else "a number has too many digits")
        if error.pos >= MAX_ENTRY_BYTES - 8:
            self.fail(what, f"the value is longer than {MAX_ENTRY_BYTES:,} bytes")
        self._at += error.pos
        self.fail(what, f"not valid JSON: {error.msg}")

    def _expect(self, mark: str, what: str) -> None:
        """Pass over one character after spaces; refuse any other."""
        found = self._next()
        if found != mark:
            self.fail(what, f"expected '{mark}' in the JSON, not {found!r}" if found else "the JSON ends too early")
        self._at += 1

    def _next(self) -> str:
        """Return the next character after spaces without passing over it; an empty text at the end."""
        mark = self._window[self._at : self._at + 1]
        if mark > " ":
            return mark
        while True:
            match = self._SPACE.match(self._window, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._window) or self._left == 0:
                return self._window[self._at : self._at + 1]
            self._fill(1)

    def _fill(self, count: int) -> None:
        """See to it that `count` characters are in the window, or all that are left."""
        if len(self._window) - self._at >= count or self._left == 0:
            return
        rest = self._window[self._at :]
        self._base += self._at
        raw = self._stream.read(min(max(count, _CHUNK), self._left))
        if not raw:  # the file became shorter meanwhile
            self.fail("", "the file ends")
        self._left -= len(raw)
        self._window, self._at = rest + raw.decode("latin-1"), 0
