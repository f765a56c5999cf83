"""Pages of `kvcalc plot` as a browser shows them: opened from disk, silent, offline, and with the library's numbers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from kvcalc import api
from tests.browser.chromium import Tab
from tests.cli.running import run

pytestmark = pytest.mark.browser

WIDE, NARROW = (1400, 900), (420, 800)
HYBRIDS = ("llama-3.1-8b", "gemma-3-27b", "deepseek-v3")
READY = "document.getElementById('plot').dataset.ready"
TICKS = "[...document.querySelectorAll('#plot .{0}tick text')].map((tick) => tick.textContent)"
TRACES = "document.getElementById('plot').data.map(({name, x, y, text}) => ({name, x, y, text}))"
HOVER = "[...document.querySelectorAll('#plot .hoverlayer text')].map((text) => text.textContent)"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the pages that the tests open."""
    made = tmp_path_factory.mktemp("pages")
    for name, call in {
        "hybrids": ("context", *HYBRIDS),
        "one": ("context", "llama-3.1-8b"),
        "beyond": ("context", "gpt2-small", "--to", "4096", "--batch", "8"),
        "capacity": ("capacity", *HYBRIDS, "--kv-memory", "24GiB"),
    }.items():
        result = run("plot", *call, "-o", str(made / f"{name}.html"))
        assert result.code == 0, result.err
    return made


def opened(tab: Tab, path: Path, size: tuple[int, int] = WIDE, dark: bool = False) -> Tab:
    """Return the tab with the page drawn in it."""
    tab.view(*size, dark=dark)
    tab.open(path)
    tab.wait_for(READY)
    return tab


def hover(tab: Tab, across: float) -> str:
    """Move the mouse over the picture, so far from its left, and return what is shown."""
    x, y, width, height = tab.box("#plot .nsewdrag")
    tab.move_mouse(x + width * across + 3, y + height / 3)
    tab.move_mouse(x + width * across, y + height / 2)
    return " ".join(tab.wait_for(f"(() => {{ const texts = {HOVER}; return texts.length ? texts : null; }})()"))


@pytest.mark.parametrize("name", ["hybrids", "one", "beyond", "capacity"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_page_is_drawn_without_complaint_and_without_the_network(
    name: str, size: tuple[int, int], dark: bool, folder: Path, tab: Tab
) -> None:
    """No console message, no request but for the file itself, no sideways scrolling, after every control was used."""
    opened(tab, folder / f"{name}.html", size, dark)
    for selector in ("input[value=log]", "input[value=linear]", "#whole"):
        tab.click(selector)
    hover(tab, 0.5)
    assert tab.complaints() == []
    assert tab.requests() == [(folder / f"{name}.html").as_uri()]
    assert tab.evaluate("document.documentElement.scrollWidth") == size[0]


def test_complaints_and_requests_of_a_faulty_page_are_seen(tmp_path: Path, tab: Tab) -> None:
    """The test above can fail: a page that logs, throws and loads is caught at all three."""
    page = tmp_path / "faulty.html"
    page.write_text("<img src=missing.png><script>console.error('logged'); throw Error('thrown')</script>")
    tab.open(page)
    assert [address.rsplit("/", 1)[-1] for address in tab.requests()] == ["faulty.html", "missing.png"]
    complaints = "\n".join(tab.complaints())
    assert all(word in complaints for word in ("logged", "thrown", "ERR_FILE_NOT_FOUND"))


@pytest.mark.parametrize(("name", "batch"), [("hybrids", 1), ("one", 1), ("beyond", 8)])
def test_the_bytes_drawn_are_the_librarys(name: str, batch: int, folder: Path, tab: Tab) -> None:
    """Every point of every curve, as the browser holds it, and the text that it shows."""
    drawn: list[dict[str, Any]] = opened(tab, folder / f"{name}.html").evaluate(TRACES)
    curves = [trace for trace in drawn if trace["name"] in (*HYBRIDS, "gpt2-small")]
    assert len(curves) == (3 if name == "hybrids" else 1 if name == "one" else 2)
    for trace in curves:
        placement = api.prepare(trace["name"]).placement
        expected = [placement.total_bytes(context, batch) for context in trace["x"]]
        assert trace["y"] == expected
        assert all(f"{size:,} bytes" in text for size, text in zip(expected, trace["text"], strict=True))
        assert len(trace["x"]) > 100


def test_the_batches_drawn_are_the_librarys(folder: Path, tab: Tab) -> None:
    """The batch fits and one more does not, at every point."""
    drawn: list[dict[str, Any]] = opened(tab, folder / "capacity.html").evaluate(TRACES)
    for trace in drawn[:3]:
        placement = api.prepare(trace["name"]).placement
        for context, batch in zip(trace["x"], trace["y"], strict=True):
            assert placement.total_bytes(context, batch) <= 24 * 2**30 < placement.total_bytes(context, batch + 1)


def test_hovering_shows_exact_bytes_of_all_models(folder: Path, tab: Tab) -> None:
    """At the context under the mouse, which is named."""
    shown = hover(opened(tab, folder / "hybrids.html"), 0.5)
    found = re.search(r"context ([0-9,]+)", shown)
    assert found
    context = int(found[1].replace(",", ""))
    for model in HYBRIDS:
        assert f"({api.prepare(model).placement.total_bytes(context, 1):,} bytes)" in shown


def test_the_switch_changes_both_axes_and_their_ticks(folder: Path, tab: Tab) -> None:
    """Linear: multiples of a power of two. Logarithmic: powers of two. Both in IEC units."""
    opened(tab, folder / "one.html")
    assert tab.evaluate(TICKS.format("y")) == ["0", *(f"{size} GiB" for size in range(2, 18, 2))]
    assert tab.evaluate(TICKS.format("x")) == [f"{size}K" for size in range(16, 129, 16)]
    tab.click("input[value=log]")
    assert tab.wait_for("document.getElementById('plot')._fullLayout.xaxis.type === 'log'")
    assert tab.evaluate("document.getElementById('plot')._fullLayout.yaxis.type") == "log"
    assert tab.evaluate(TICKS.format("y")) == [
        *("256 KiB", "1 MiB", "4 MiB", "16 MiB", "64 MiB", "256 MiB", "1 GiB", "4 GiB", "16 GiB")
    ]
    tab.click("input[value=linear]")
    assert tab.wait_for("document.getElementById('plot')._fullLayout.xaxis.type === 'linear'")


def test_zooming_in_brings_finer_ticks_and_show_all_the_first_ones(folder: Path, tab: Tab) -> None:
    """Dragging over a small part keeps the ticks at powers of two and their multiples."""
    opened(tab, folder / "one.html")
    before = tab.evaluate(TICKS.format("x"))
    x, y, width, height = tab.box("#plot .nsewdrag")
    tab.drag((x + width * 0.50, y + height * 0.45), (x + width * 0.55, y + height * 0.55))
    inside = tab.wait_for(
        f"(() => {{ const t = {TICKS.format('x')}; return t[0] !== '16K' && t.length ? t : null; }})()"
    )
    assert len(inside) >= 4
    assert all(re.fullmatch(r"[0-9.]+K", tick) and (float(tick[:-1]) * 4).is_integer() for tick in inside)
    assert all(tick.endswith(" GiB") for tick in tab.evaluate(TICKS.format("y")))
    tab.click("#whole")
    tab.wait_for(f"{TICKS.format('x')}[0] === '16K'")
    assert tab.evaluate(TICKS.format("x")) == before


def test_dark_and_light_are_readable(folder: Path, tab: Tab) -> None:
    """The picture takes the page's colours, and follows when the reader's choice changes."""
    opened(tab, folder / "one.html")
    paper = "document.getElementById('plot')._fullLayout.paper_bgcolor"
    ink = "document.getElementById('plot')._fullLayout.font.color"
    assert (tab.evaluate(paper), tab.evaluate(ink)) == ("#ffffff", "#1b1f24")
    tab.view(*WIDE, dark=True)
    tab.wait_for(f"{paper} === '#14181d'")
    assert tab.evaluate(ink) == "#e6e9ed"


def test_the_picture_follows_the_windows_width(folder: Path, tab: Tab) -> None:
    """From wide to narrow without loading anew."""
    opened(tab, folder / "one.html")
    width = "document.querySelector('#plot .main-svg').getBoundingClientRect().width"
    wide = tab.evaluate(width)
    tab.view(*NARROW)
    tab.wait_for(f"{width} < 420")
    assert wide > 1200


def test_without_scripts_every_value_is_in_a_table(folder: Path, tab: Tab) -> None:
    """A reader who allows no scripts sees the words and the values, not an empty frame."""
    tab.view(*WIDE, scripts=False)
    tab.open(folder / "beyond.html")
    document = tab.send("DOM.getDocument")["root"]["nodeId"]

    def texts(selector: str) -> list[str]:
        found = tab.send("DOM.querySelectorAll", nodeId=document, selector=selector)["nodeIds"]
        return [re.sub(r"<[^>]+>", "|", tab.send("DOM.getOuterHTML", nodeId=node)["outerHTML"]) for node in found]

    rows = [row.strip("|").split("||") for row in texts("noscript tbody tr")]
    assert rows[0] == ["1", "288 KiB  (294,912 bytes)"]
    assert len(rows) > 1000
    for context, text in rows:
        assert f"{8 * 36_864 * int(context.replace(',', '')):,} bytes" in text
    plot = tab.send("DOM.querySelector", nodeId=document, selector="#plot")["nodeId"]
    tab.send("CSS.enable")
    style = tab.send("CSS.getComputedStyleForNode", nodeId=plot)["computedStyle"]
    assert {"name": "display", "value": "none"} in style
