"""Links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.render import ROOT, pages

_FENCE = re.compile(r"^```.*?^```\n", re.M | re.S)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#+ (?P<text>.+)$", re.M)

PAGES = [*pages(), ROOT / "CHANGELOG.md"]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = _HEADING.findall(_FENCE.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-") for text in headings}


def links(page: Path) -> list[str]:
    """Return the targets of a page's links, outside code."""
    return _LINK.findall(_FENCE.sub("", page.read_text(encoding="utf-8")))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_to_a_file_and_a_heading(page: Path) -> None:
    """Every relative link names a file of the repository and, after #, a heading in it."""
    broken = []
    for link in links(page):
        if link.startswith(("http://", "https://")):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.is_file() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("start", [ROOT / "README.md", ROOT / "docs" / "index.md"], ids=lambda page: page.name)
def test_every_page_is_reached(start: Path) -> None:
    """Following links from the README, or from the index, leads to every page of the documentation."""
    reached, ahead = set(), [start]
    while ahead:
        page = ahead.pop()
        reached.add(page)
        targets = {(page.parent / link.partition("#")[0]).resolve() for link in links(page) if "://" not in link}
        ahead += [target for target in targets if target.suffix == ".md" and target.exists() and target not in reached]
    assert set((ROOT / "docs").rglob("*.md")) - {ROOT / "docs" / "index.md"} <= reached
