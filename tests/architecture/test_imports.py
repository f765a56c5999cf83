"""Who may import whom."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest
from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

from tests.architecture.project import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    tomllib = pytest.importorskip("tomli", reason="Python 3.10 reads no TOML by itself")


def test_every_import_goes_down_the_house(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The contracts of pyproject.toml are kept; a new module fails until it is placed in a layer."""
    monkeypatch.chdir(ROOT)
    status = lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True)
    assert status == EXIT_STATUS_SUCCESS, capsys.readouterr().out


def contract(kind: str) -> dict[str, Any]:
    """Return the contract of a type from pyproject.toml."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    found: dict[str, Any] = next(item for item in settings["contracts"] if item["type"] == kind)
    return found


def test_the_design_page_has_every_layer() -> None:
    """Whoever reads docs/design.md sees the layers that are kept, in their order."""
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8").partition("## Layers of the code")[2]
    rows = [line.split("|")[1] for line in page.partition("\n## ")[0].splitlines() if line.startswith("| `")]
    shown = re.findall(r"\w+", " ".join(rows))
    depth = {
        name: depth for depth, layer in enumerate(contract("layers")["layers"]) for name in re.findall(r"\w+", layer)
    }
    assert set(shown) == set(depth)
    assert shown == sorted(shown, key=lambda name: depth[name])


def test_the_contract_of_the_kinds_names_every_kind() -> None:
    """A new kind's file is among those that must not import each other."""
    named = contract("independence")["modules"]
    files = {path.stem for path in (ROOT / "kvcalc" / "spec" / "kinds").glob("*.py")} - {"__init__", "_base", "union"}
    assert {name.rpartition(".")[2] for name in named} == files
