"""`python -m tests.docs.regenerate [PAGE...]`: run every example again and write the new outputs into the pages."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.docs.render import pages, rendered


def main(names: list[str]) -> None:
    """Rewrite the named pages, or all of them, and say which have changed."""
    for page in [Path(name).resolve() for name in names] or pages():
        before, after = page.read_text(encoding="utf-8"), rendered(page)
        if before != after:
            page.write_text(after, encoding="utf-8")
        print(f"{'changed' if before != after else 'current'}  {page.name}")


if __name__ == "__main__":
    main(sys.argv[1:])
