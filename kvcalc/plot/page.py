"""A figure and its words as one self-contained HTML page: plotly.js inside, no network, readable without scripts."""

from __future__ import annotations

import json
import os
import re
import stat
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from kvcalc.errors import BadInput

STDOUT = "-"
SUFFIXES = (".html", ".htm")
_IMAGES = (".png", ".svg", ".pdf", ".jpg", ".jpeg", ".webp")


@dataclass(frozen=True)
class Table:
    """A table of a page: texts, the first of each row its head."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Page:
    """What a page says: the figure with its words, tables and notes below it, and a table for readers without scripts.

    Web addresses in the notes become links.
    """

    title: str
    lead: str
    figure: dict[str, Any]
    reading: tuple[str, ...]
    tables: tuple[Table, ...] = ()
    without_scripts: Table | None = None
    notes: tuple[str, ...] = ()
    maker: str = "kvcalc"


def render(page: Page) -> str:
    """Return the page as one HTML document that loads nothing: plotly.js is in it once."""
    from plotly.offline import get_plotlyjs

    template = Template((files("kvcalc.plot") / "page.html").read_text(encoding="utf-8"))
    plain = "" if page.without_scripts is None else _table(page.without_scripts)
    return template.substitute(
        title=escape(page.title),
        lead=escape(page.lead),
        reading="\n".join(f"<p>{escape(text)}</p>" for text in page.reading),
        tables="\n".join(_table(table) for table in page.tables),
        plain=plain,
        notes=_notes(page.notes),
        maker=escape(page.maker),
        figure=_json_in_html(page.figure),
        plotly=get_plotlyjs(),
    )


def check_target(target: str, suffixes: Sequence[str] = SUFFIXES) -> None:
    """Raise BadInput, before any work is done, if `target` is not a path that a page can be written to."""
    if target == STDOUT:
        return
    path = Path(target).expanduser()
    suffix = path.suffix.lower()
    if not target.strip():
        raise BadInput("-o names no file; write for example -o out.html")
    if path.is_dir():
        raise BadInput(f"-o {target} is a folder; name a file in it, for example {path / 'out.html'}")
    if suffix in _IMAGES:
        raise BadInput(
            f"-o {target}: {suffix} needs an extra that is not available yet; write {path.stem}.html instead"
        )
    if suffix == ".json" and suffix not in suffixes:
        raise BadInput(f"-o {target}: a page ends in {suffixes[0]}; add --json for the values instead")
    if suffix not in suffixes:
        raise BadInput(f"-o {target}: the file's name must end in {' or '.join(suffixes)}")
    if not path.parent.is_dir():
        raise BadInput(f"-o {target}: no folder {path.parent}")
    if path.exists() and not path.is_file():
        raise BadInput(f"-o {target} is not a regular file; -o - writes to standard output")
    if path.exists() and not os.access(path, os.W_OK):
        raise BadInput(f"-o {target} is write-protected")


def write(target: str, text: str) -> int:
    """Write the whole text to the path or nothing at all, and return its bytes; BadInput if that cannot be done.

    The text goes to a temporary file in the same folder, which then takes the path's place.
    """
    path = Path(os.path.realpath(Path(target).expanduser()))  # a link stays a link
    data = text.encode("utf-8")
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.chmod(temporary, _mode(path))
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise BadInput(f"-o {target} cannot be written: {error.strerror or error}") from None
    return len(data)


def _mode(path: Path) -> int:
    """Return the permissions of the file that is replaced, or those that a new file gets."""
    if path.exists():
        return stat.S_IMODE(path.stat().st_mode)
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in table.columns)
    rows = "\n".join(f"<tr>{''.join(_cells(row))}</tr>" for row in table.rows)
    caption = escape(table.caption)
    return (
        f'<div class="table" role="region" aria-label="{caption}" tabindex="0"><table><caption>{caption}</caption>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table></div>"
    )


def _cells(row: Sequence[str]) -> list[str]:
    head, *rest = row
    return [f'<th scope="row">{escape(head)}</th>', *(f"<td>{escape(cell)}</td>" for cell in rest)]


def _notes(notes: Sequence[str]) -> str:
    if not notes:
        return ""
    return f'<ul class="notes">{"".join(f"<li>{_linked(note)}</li>" for note in notes)}</ul>'


def _linked(text: str) -> str:
    """Return the text with its web addresses as links; a link loads nothing until a reader follows it."""
    return re.sub(r"https?://[^\s<>]+", r'<a href="\g<0>">\g<0></a>', escape(text))


def _json_in_html(data: Any) -> str:
    """Return JSON that can stand in a script element: nothing in it can end the element."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
