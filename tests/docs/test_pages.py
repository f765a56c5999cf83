"""The documentation is what the program does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.render import pages, rendered


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_every_example_prints_what_the_page_shows(page: Path) -> None:
    """Running a page's blocks again gives the page; `python -m tests.docs.regenerate` writes new outputs."""
    assert rendered(page) == page.read_text(encoding="utf-8")


@pytest.mark.torch
@pytest.mark.parametrize(
    "page", [page for page in pages() if "needs=torch" in page.read_text()], ids=lambda page: page.name
)
def test_examples_that_need_torch_print_what_the_page_shows(page: Path) -> None:
    """The same, where blocks that need torch are run as well."""
    assert rendered(page) == page.read_text(encoding="utf-8")
