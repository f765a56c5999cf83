"""YAML text to plain data with positions, stricter than YAML: what people mistype is an error with a place.

libyaml's events are read directly instead of PyYAML's constructors, because those turn `no` into False, `010` into 8
and `1:30` into 90, and lose the line of every key.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from kvcalc.errors import Problem, SpecError

Path_: TypeAlias = tuple[str | int, ...]

MAX_FILE_BYTES = 2**20
_MAX_DEPTH = 16
_MAX_DIGITS = 30
# libyaml is a compiled extension that some builds of PyYAML lack; its pure Python twin gives the same events.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_NULL = re.compile(r"~|null|Null|NULL|")
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_TRAPS = (
    (re.compile(r"(?i:yes|no|on|off|y|n)"), "is a boolean in YAML 1.1 and text in 1.2; quote it, or write true/false"),
    (re.compile(r"[-+]?0[0-9_]+"), "starts with 0, which YAML 1.1 reads as octal; write it without the leading zero"),
    (re.compile(r"[-+]?0[xob][0-9A-Fa-f_]+"), "is not decimal; write a decimal number"),
    (re.compile(r"[-+]?[0-9]+(?::[0-9]+)+"), "is a base-60 number in YAML 1.1; write a decimal number or quote it"),
    (re.compile(r"[-+]?[0-9][0-9,]*_[0-9_,]*|[0-9]{1,3}(?:,[0-9]{3})+"), "has digit separators; write plain digits"),
    (re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+"),
     "has an exponent; write plain digits, for example 1000000000 instead of 1e9"),
    (re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)|[-+]?\.(?:inf|nan)", re.I),
     "is not a whole number; write plain digits, or quote it if it is text"),
)  # fmt: skip

# What YAML does not allow in a file (YAML 1.2, 5.1); the parser would say so without the place.
_CONTROL = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")

# What the parser's words usually mean in a spec.
_HINTS = {
    "cannot start any token": "indent with spaces, not tabs, and quote text that starts with @ or `",
    "mapping values are not allowed": "quote text that contains ': ', and check the indentation",
    "expected node content": "a value, or a closing ] or }, is missing",
    "did not find expected ','": "a comma or a closing ] or } is missing",
    "did not find expected key": "check the indentation, and that every line reads 'key: value'",
    "could not find expected ':'": "every line reads 'key: value'",
    "unexpected end of stream": "a closing quote is missing",
}


@dataclass
class Tree:
    """Parsed data and where each part of it stands: path -> (line, column), both from 1."""

    file: str
    data: Any = None
    keys: dict[Path_, tuple[int, int]] = field(default_factory=dict)
    values: dict[Path_, tuple[int, int]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def problem(self, path: Path_, message: str, at_key: bool = False) -> Problem:
        """Return a problem at the value (or key) of `path`, or of its nearest ancestor that stands in the file."""
        places = self.keys if at_key else self.values
        for length in range(len(path), -1, -1):
            place = places.get(path[:length]) or self.values.get(path[:length])
            if place:
                return Problem(self.file, *place, dotted(path), message)
        return Problem(self.file, 1, 1, dotted(path), message)


def dotted(path: Path_) -> str:
    """Return `('kinds', 'local', 'window')` as `kinds.local.window`, list items as `pattern[2]`."""
    text = ""
    for part in path:
        key = _shorten(str(part)) or "''"
        text += f"[{part}]" if isinstance(part, int) else f".{key}" if text else key
    return text


def read_text(path: Path, limit: int = MAX_FILE_BYTES) -> str:
    """Return the text of a UTF-8 file of at most `limit` bytes; SpecError says what else it is."""
    name = str(path)
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # reading a pipe could wait for ever
            raise SpecError([Problem(name, 1, 1, "", "cannot be read: not a regular file")])
        with path.open("rb") as stream:
            raw = stream.read(limit + 1)
    except OSError as error:
        raise SpecError([Problem(name, 1, 1, "", f"cannot be read: {error.strerror or error}")]) from None
    if len(raw) > limit:
        raise SpecError([Problem(name, 1, 1, "", f"is larger than {limit:,} bytes, which no such file needs")])
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        column = error.start - raw.rfind(b"\n", 0, error.start)
        message = f"is not UTF-8 text (byte 0x{raw[error.start]:02x}); save it as UTF-8"
        raise SpecError([Problem(name, line, column, "", message)]) from None


def parse(text: str, file: str) -> Tree:
    """Return the data of a YAML document with positions; SpecError with every fault found.

    Refused: aliases and anchors, tags, duplicate keys, several documents, nesting beyond 16, ambiguous scalars,
    control characters.
    """
    tree = Tree(file)
    control = _CONTROL.search(text)
    if control:
        line, column = text.count("\n", 0, control.start()) + 1, control.start() - text.rfind("\n", 0, control.start())
        message = f"contains the control character U+{ord(control[0]):04X}; a spec is plain text"
        raise SpecError([Problem(file, line, column, "", message)])
    try:
        _Builder(tree, yaml.parse(text, Loader=_LOADER)).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        words = error.problem or error.context or "cannot be parsed"
        hint = next((f"; {hint}" for part, hint in _HINTS.items() if part in words), "")
        raise SpecError([*tree.problems, Problem(file, *place, "", f"not valid YAML: {words}{hint}")]) from None
    if tree.problems:
        raise SpecError(tree.problems)
    return tree


class _UnreadableError(Exception):
    """The document cannot be read further."""


class _Builder:
    """Turns libyaml's events into data, collecting problems as it goes."""

    def __init__(self, tree: Tree, events: Iterator[Any]) -> None:
        self.tree = tree
        self.events = events

    def document(self) -> None:
        """Read one document; a file without one leaves None."""
        documents = 0
        try:
            for event in self.events:
                if isinstance(event, yaml.DocumentStartEvent):
                    documents += 1
                    if documents > 1:
                        self._problem(event, (), "holds several YAML documents; write one model per file")
                        return
                    self.tree.data = self._node(next(self.events), ())
        except _UnreadableError:
            pass

    def _node(self, event: Any, path: Path_) -> Any:
        self.tree.values[path] = _place(event)
        if isinstance(event, yaml.AliasEvent):
            self._problem(event, path, f"YAML aliases (*{event.anchor}) are not supported; write the value out")
            return None
        if event.anchor is not None:
            self._problem(event, path, f"YAML anchors (&{event.anchor}) are not supported; remove it")
        if event.tag is not None:
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")
            self._problem(event, path, f"YAML tags ({_shorten(tag)}) are not supported; remove it")
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event, path)
        if len(path) >= _MAX_DEPTH:
            self._problem(event, path, f"nested deeper than {_MAX_DEPTH} levels; a spec needs no more than 4")
            raise _UnreadableError
        return self._sequence(path) if isinstance(event, yaml.SequenceStartEvent) else self._mapping(path)

    def _sequence(self, path: Path_) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            items.append(self._node(event, (*path, len(items))))
        return items

    def _mapping(self, path: Path_) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key = self._key(event, path)
            inner = (*path, key)
            duplicate = key in mapping
            if duplicate:
                line = self.tree.keys[inner][0]
                self._problem(event, inner, f"duplicate key; it already stands on line {line}")
            else:
                self.tree.keys[inner] = _place(event)
            value = self._node(next(self.events), inner)
            if not duplicate:
                mapping[key] = value
        return mapping

    def _key(self, event: Any, path: Path_) -> str:
        if not isinstance(event, yaml.ScalarEvent):
            self._problem(event, path, "a key must be plain text; write 'key: value'")
            raise _UnreadableError
        if event.value == "<<" and not event.style:
            self._problem(event, path, "YAML merge keys (<<) are not supported; write the values out")
        return str(event.value)

    def _scalar(self, event: Any, path: Path_) -> Any:
        text = str(event.value)
        if event.style:  # quoted or a block: text as it stands (libyaml calls plain style '')
            return text
        if _NULL.fullmatch(text):
            return None
        if _BOOL.fullmatch(text):
            return text.lower() == "true"
        if _INT.fullmatch(text):
            return self._integer(event, path, text)
        for pattern, why in _TRAPS:
            if pattern.fullmatch(text):
                self._problem(event, path, f"'{_shorten(text)}' {why}")
                return None
        return text

    def _integer(self, event: Any, path: Path_, text: str) -> int | None:
        if len(text) > _MAX_DIGITS:
            self._problem(event, path, f"'{_shorten(text)}' has {len(text)} digits; nothing is so large, check it")
            return None
        return int(text)

    def _problem(self, event: Any, path: Path_, message: str) -> None:
        self.tree.problems.append(Problem(self.tree.file, *_place(event), dotted(path), message))


def _place(event: Any) -> tuple[int, int]:
    return event.start_mark.line + 1, event.start_mark.column + 1


def _shorten(text: str) -> str:
    return text if len(text) <= 24 else f"{text[:20]}..."
