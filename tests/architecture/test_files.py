"""What must not be in the project's files, and what must."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.architecture.project import ROOT, files, modules

# Put together here, so that this file does not hold what it looks for.
_FOLDERS = "|".join(("work", "root", "tmp", "Users", "home/[a-z]"))
_MACHINE_PATH = re.compile(rf"(?<![A-Za-z0-9_.~$}}-])/(?:{_FOLDERS})\b/?")
_REGISTRIES = tuple(
    ".".join(parts) for parts in (("pypi", "org"), ("pythonhosted", "org"), ("debian", "org"), ("npmjs", "org"))
)
_LOCK_FILES = {"uv.lock", "poetry.lock", "Pipfile.lock", "pdm.lock", "package-lock.json", "yarn.lock", "pixi.lock"}


def _offenders(found: dict[Path, list[str]]) -> dict[str, list[str]]:
    """Return path -> what was found in it, for the files in which anything was."""
    return {path.relative_to(ROOT).as_posix(): hits for path, hits in found.items() if hits}


def _text(path: Path) -> str:
    """Return a file's text; nothing for a picture or an archive, which hold no readable paths."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def test_no_file_names_a_machine() -> None:
    """No path of somebody's machine stands in a tracked file."""
    assert _offenders({path: _MACHINE_PATH.findall(_text(path)) for path in files()}) == {}


def test_no_file_names_a_registry() -> None:
    """No address of a package registry stands in a tracked file: installers know their own."""
    assert _offenders({path: [host for host in _REGISTRIES if host in _text(path)] for path in files()}) == {}


def test_there_is_no_lock_file() -> None:
    """The library is tested against what its users get, not against pinned versions."""
    assert not {path.name for path in files()} & _LOCK_FILES


def test_every_module_says_what_it_is_for() -> None:
    """Every Python file starts with a docstring."""
    silent = [path for path in modules() if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))]
    assert [path.relative_to(ROOT).as_posix() for path in silent] == []
