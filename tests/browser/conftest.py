"""One Chromium for all browser tests; they are skipped, with the reason, where there is none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser import chromium


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Browser]:
    """Return a running headless Chromium."""
    program = chromium.chromium()
    if program is None:
        pytest.skip("Chromium is not installed (Debian: apt-get install chromium)")
    with chromium.run(program, tmp_path_factory.mktemp("chromium")) as running:
        yield running


@pytest.fixture
def tab(browser: chromium.Browser) -> Iterator[chromium.Tab]:
    """Return a fresh tab, which is closed again."""
    fresh = chromium.Tab(browser)
    yield fresh
    fresh.close()
