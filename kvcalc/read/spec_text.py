"""A model that was read, as the text of a spec: what a person would have written, with where it comes from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvcalc.spec.model import ModelSpec

_WIDTH = 110
# Text that YAML reads as text without quotes, whichever version of YAML.
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./+-]*")
_RESERVED = frozenset(("null", "true", "false", "yes", "no", "on", "off", "y", "n"))

# The fields that have forms of their own; the others are written one a line, in the order of the spec's definition.
_OWN_FORM = ("name", "aliases", "architecture", "source", "assumed", "kinds", "pattern")
_MAY_BE_NULL = ("max_context", "parameters")


def spec_text(spec: ModelSpec) -> str:
    """Return YAML that is read as the same model; comments say what was assumed, what is unknown and why."""
    return "\n".join(_lines(spec)) + "\n"


def _lines(spec: ModelSpec) -> Iterator[str]:
    file = spec.file
    yield from _heading(spec)
    yield f"name: {_text(file.name)}"
    if file.aliases:
        yield from _wrapped("aliases: ", [_text(alias) for alias in file.aliases])
    yield f"architecture: {_text(file.architecture)}"
    yield "source:"
    yield f"  url: {_text(file.source.url)}"
    yield f"  checked: {file.source.checked}"
    if file.source.note:
        yield f"  note: {_text(file.source.note)}"
    for name in type(file).model_fields:
        if name in _OWN_FORM:
            continue
        value = getattr(file, name)
        if value is not None or name in _MAY_BE_NULL:
            yield f"{name}: {_scalar(value)}{_remark(name, spec)}"
    if file.assumed:
        yield f"assumed: [{', '.join(file.assumed)}]"
    if file.kinds is not None:
        yield "kinds:"
        yield from (f"  {name}: {_mapping(kind)}" for name, kind in file.kinds.items())
    if file.pattern is not None:
        entries = [entry if isinstance(entry, str) else f"[{', '.join(entry)}]" for entry in file.pattern]
        yield from _wrapped("pattern: ", entries)


def _heading(spec: ModelSpec) -> Iterator[str]:
    """Say what the file was made from; what a spec cannot hold is said here."""
    from kvcalc import __version__

    yield f"# Made by kvcalc {__version__} from {_comment(spec.origin)}."
    if spec.weights_bytes is not None:
        yield f"# Its tensors take {spec.weights_bytes:,} bytes; a spec has parameters and a dtype instead."


def _remark(name: str, spec: ModelSpec) -> str:
    """Return what a reader must know of a value, as a comment behind it."""
    value = getattr(spec.file, name)
    if name in spec.file.assumed:
        return "  # assumed: the source does not give it"
    if name == "max_context" and value is None:
        return "  # unknown or unbounded"
    if name == "parameters" and value is None:
        return f"  # unknown: {_comment(spec.weights_note)}" if _explains(spec) else "  # unknown"
    return ""


def _explains(spec: ModelSpec) -> bool:
    return spec.weights_bytes is None and bool(spec.weights_note)


def _mapping(fields: Mapping[str, Any]) -> str:
    return "{" + ", ".join(f"{name}: {_scalar(value)}" for name, value in fields.items()) + "}"


def _wrapped(head: str, items: Sequence[str]) -> Iterator[str]:
    """Yield a list on one line, or on several where one would be too long."""
    line = f"{head}[{', '.join(items)}]"
    if len(line) <= _WIDTH:
        yield line
        return
    yield f"{head.rstrip()}"
    row = "  ["
    for index, item in enumerate(items):
        piece = item + ("]" if index == len(items) - 1 else ",")
        if len(row) + len(piece) + 1 > _WIDTH:
            yield row.rstrip()
            row = "   "
        row += piece + " "
    yield row.rstrip()


def _scalar(value: Any) -> str:
    """Return a value of a spec: null, true, a whole number or text."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else _text(str(value))


def _text(text: str) -> str:
    """Return text, in quotes where YAML could read it as something else."""
    if _PLAIN.fullmatch(text) and text.lower() not in _RESERVED:
        return text
    return '"' + "".join(_escaped(character) for character in text) + '"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if character.isprintable():
        return character
    # Half a surrogate pair, from a file name that is not UTF-8, cannot stand in a UTF-8 file.
    return "?" if "\ud800" <= character <= "\udfff" else f"\\U{ord(character):08x}"


def _comment(text: str) -> str:
    """Return text as a comment can hold it: on one line, printable."""
    return "".join(character if character.isprintable() else "?" for character in text)
