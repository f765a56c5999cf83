"""Every test of the command line sees a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def eighty_columns() -> Iterator[None]:
    """Fix the width that help pages and tables are laid out for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        yield
