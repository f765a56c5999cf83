"""Who may import whom."""

from __future__ import annotations

import sys

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


def test_the_contract_of_the_kinds_names_every_kind() -> None:
    """A new kind's file is among those that must not import each other."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    named = next(contract for contract in settings["contracts"] if contract["type"] == "independence")["modules"]
    files = {path.stem for path in (ROOT / "kvcalc" / "spec" / "kinds").glob("*.py")} - {"__init__", "_base", "union"}
    assert {name.rpartition(".")[2] for name in named} == files
