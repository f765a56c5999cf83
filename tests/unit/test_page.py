"""One self-contained page: what is in it, what it may load, and how it reaches the disk."""

from __future__ import annotations

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from kvcalc.errors import BadInput
from kvcalc.plot.page import Page, Table, check_target, render, write


class Document(HTMLParser):
    """The elements of a page, the texts of its scripts, and the words that a reader sees."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words = ""
        self._inside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        while self._inside and self._inside.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if "script" in self._inside:
            self.scripts[-1] += data
        elif "style" not in self._inside:
            self.words += data


def page(**changes: Any) -> Page:
    """Return a small page."""
    plain: dict[str, Any] = {
        "title": "A title",
        "lead": "A lead",
        "figure": {"data": [], "layout": {"meta": {}}},
        "reading": ("How to read it.",),
    }
    return Page(**{**plain, **changes})


def test_the_page_brings_all_that_it_needs_and_loads_nothing() -> None:
    """plotly.js is in it once; no element loads anything, and the policy in its head forbids what would."""
    from plotly.offline import get_plotlyjs

    text = render(page())
    assert text.count(get_plotlyjs()) == 1
    document = Document(text)
    loading = {"src", "href", "srcset", "data", "poster", "action"}
    assert [attrs for tag, attrs in document.elements if tag == "link" or loading & set(attrs)] == []
    policies = [attrs["content"] for tag, attrs in document.elements if attrs.get("http-equiv")]
    assert policies == [
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
    ]


def test_the_figure_in_the_page_is_the_figure_that_was_given() -> None:
    """Exact integers too, though a browser will read those above 2^53 as the nearest double."""
    figure = {"data": [{"y": [2**60 + 1], "name": "</script><b>&"}], "layout": {"meta": {}}}
    document = Document(render(page(figure=figure)))
    assert json.loads(document.scripts[0]) == figure


@pytest.mark.parametrize(
    "text", ['</title><script>alert("1")</script>', "a & b < c > d \"e\" 'f'", "$figure ${plotly}"]
)
def test_words_stay_words(text: str) -> None:
    """Whatever a name or a path holds, it is shown and never becomes part of the page."""
    table = Table(text, (text,), ((text,),))
    document = Document(
        render(page(title=text, lead=text, reading=(text,), tables=(table,), notes=(text,), maker=text))
    )
    assert document.words.count(text) >= 8
    assert len(document.scripts) == 3


def test_tables_are_tables() -> None:
    """Captions, heads and cells, with scopes for screen readers."""
    document = Document(render(page(tables=(Table("Values", ("Context", "m"), (("1", "36 KiB"), ("2", "72 KiB"))),))))
    scopes = [attrs.get("scope") for tag, attrs in document.elements if tag == "th"]
    assert scopes == ["col", "col", "row", "row"]
    assert re.search(r"Values\s*Context\s*m\s*1\s*36 KiB\s*2\s*72 KiB", document.words)


def test_readers_without_scripts_get_the_values() -> None:
    """Their table stands in a noscript element."""
    text = render(page(without_scripts=Table("All values", ("Context", "m"), (("1", "36 KiB"),))))
    [noscript] = re.findall(r"<noscript>\s*<p>.*?</noscript>", text, flags=re.DOTALL)
    assert "All values" in noscript
    assert "36 KiB" in noscript


def test_addresses_in_notes_become_links() -> None:
    """Only web addresses, and nothing of the text around them."""
    text = render(page(notes=('Dimensions: https://example.org/a?b=1&c="2" (checked)', "javascript:alert(1)")))
    links = [attrs["href"] for tag, attrs in Document(text).elements if tag == "a"]
    assert links == ['https://example.org/a?b=1&c="2"']


def test_a_page_is_written_whole(tmp_path: Path) -> None:
    """The file holds the text, the bytes are counted, and nothing else is left in the folder."""
    path = tmp_path / "out.html"
    assert write(str(path), "größer") == 8
    assert path.read_text(encoding="utf-8") == "größer"
    assert os.listdir(tmp_path) == ["out.html"]


def test_a_new_file_has_the_usual_permissions_and_an_old_one_keeps_its_own(tmp_path: Path) -> None:
    """As if it had been written in place."""
    new, old, usual = tmp_path / "new.html", tmp_path / "old.html", tmp_path / "usual"
    usual.touch()
    old.touch()
    old.chmod(0o640)
    write(str(new), "text")
    write(str(old), "text")
    assert new.stat().st_mode == usual.stat().st_mode
    assert old.stat().st_mode & 0o777 == 0o640


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    """The file that it points to is replaced."""
    link, real = tmp_path / "link.html", tmp_path / "real.html"
    real.write_text("before")
    link.symlink_to(real)
    write(str(link), "after")
    assert link.is_symlink()
    assert real.read_text() == "after"


def test_a_failed_write_leaves_the_old_file_and_no_half_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk, told in one line."""
    path = tmp_path / "out.html"
    path.write_text("before")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(BadInput, match=r"out\.html cannot be written: No space left on device"):
        write(str(path), "after")
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["out.html"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "names no file"),
        (".", "is a folder"),
        ("out.png", r"\.png needs an extra that is not available yet; write out\.html instead"),
        ("out.SVG", r"\.svg needs an extra"),
        ("out.txt", r"must end in \.html or \.htm"),
        ("out", r"must end in \.html or \.htm"),
        ("out.json", "add --json"),
        ("missing/out.html", "no folder"),
        ("pipe.html", "not a regular file"),
    ],
)
def test_a_target_that_cannot_be_is_refused_before_any_work(tmp_path: Path, name: str, message: str) -> None:
    """Each with what would do instead."""
    os.mkfifo(tmp_path / "pipe.html")
    with pytest.raises(BadInput, match=message):
        check_target(str(tmp_path / name) if name else "")


def test_what_can_be_written_passes(tmp_path: Path) -> None:
    """Standard output, a new file, a file that is there."""
    (tmp_path / "old.html").touch()
    for target in ("-", str(tmp_path / "new.html"), str(tmp_path / "old.html"), str(tmp_path / "UPPER.HTML")):
        check_target(target)
