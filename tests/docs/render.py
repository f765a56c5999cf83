"""Pages that cannot rot: every example is run again, every generated table made again, and the page compared.

A page is Markdown in which

- a `sh` block is run by bash, a `python` block by Python, all of one page in one empty folder; what they print stands
  in the `text` block right below them (no such block: they print nothing);
- `exit=2` after `sh` is the exit code that the block must end with, `not-run` says that it is for the reader alone,
  `needs=torch` that it is run where torch is installed, `installs` that its `pip install ... &&` is left out,
  `quiet` that what it says on standard error is not shown;
- a `yaml` or `json` block with `file=NAME` is written to that file, for the blocks below it;
- what stands between `<!-- begin NAME -->` and `<!-- end NAME -->` is made by `generated.PARTS[NAME]`.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.docs.generated import PARTS

ROOT = Path(__file__).resolve().parents[2]

# A fenced block: its language, the rest of the info string, its text.
_BLOCK = re.compile(r"^```(?P<language>\w+)(?P<info>[^\n]*)\n(?P<text>.*?)^```\n", re.M | re.S)
_OUTPUT = re.compile(r"\n```text\n(?P<text>.*?)^```\n", re.M | re.S)
_PART = re.compile(r"^<!-- begin (?P<name>[\w.-]+) -->\n.*?^<!-- end (?P=name) -->\n", re.M | re.S)

# What would make an example print something else on another machine.
_HIDDEN = ("KVCALC_SPECS", "NO_COLOR", "FORCE_COLOR", "PYTHONWARNINGS")


def pages() -> list[Path]:
    """Return every page of the documentation, the README first."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("**/*.md"))]


def rendered(page: Path) -> str:
    """Return the page's text with every output and every generated part made anew; RuntimeError where a block fails."""
    text = _PART.sub(_made, page.read_text(encoding="utf-8"))
    with TemporaryDirectory() as folder:
        runner = Runner(Path(folder), page.name)
        return "".join(_pieces(text, runner))


def _made(match: re.Match[str]) -> str:
    name = match["name"]
    return f"<!-- begin {name} -->\n{PARTS[name]()}<!-- end {name} -->\n"


def _pieces(text: str, runner: Runner) -> Iterator[str]:
    """Yield the page piece by piece, with fresh outputs."""
    at = 0
    while block := _BLOCK.search(text, at):
        yield text[at : block.end()]
        at = block.end()
        printed = runner.run(block["language"], block["info"].split(), block["text"])
        if printed is None:
            continue
        old = _OUTPUT.match(text, at)
        at = old.end() if old else at
        yield f"\n```text\n{printed.rstrip()}\n```\n" if printed.strip() else ""
    yield text[at:]


@dataclass
class Runner:
    """Runs the blocks of one page, in one folder; Python blocks also share their variables."""

    folder: Path
    page: str
    variables: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})

    def run(self, language: str, info: list[str], text: str) -> str | None:
        """Return what a block prints, None for a block that is not run."""
        settings = dict(word.partition("=")[::2] for word in info)
        if "not-run" in settings or ("needs" in settings and find_spec(settings["needs"]) is None):
            return None
        if language == "sh":
            if "installs" in settings:
                text = re.sub(r"pip install [^&]+ && ", "", text)
            return self._shell(text, int(settings.get("exit", "0")), quiet="quiet" in settings)
        if language == "python":
            return self._python(text)
        if "file" in settings:
            file = self.folder / settings["file"]
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, encoding="utf-8")
        return None

    def _shell(self, script: str, expected: int, *, quiet: bool) -> str:
        result = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.folder,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if quiet else subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            timeout=120,
            check=False,
        )
        if result.returncode != expected:
            raise RuntimeError(f"{self.page}: exit {result.returncode}, not {expected}, of\n{script}{result.stdout}")
        return result.stdout

    def _environment(self) -> Mapping[str, str]:
        """Return an environment of 80 columns, without user specs, in which `kvcalc` is the package under test."""
        tools = self.folder / ".bin"
        if not tools.exists():
            tools.mkdir()
            for name, arguments in (("kvcalc", "-m kvcalc"), ("python", "")):
                tool = tools / name
                tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n', encoding="utf-8")
                tool.chmod(0o755)
        kept = {name: value for name, value in os.environ.items() if name not in _HIDDEN}
        return {
            **kept,
            "PATH": f"{tools}{os.pathsep}{os.environ.get('PATH', '')}",
            "PYTHONPATH": str(ROOT),
            "XDG_CONFIG_HOME": str(self.folder / ".config"),
            "COLUMNS": "80",
            "LC_ALL": "C.UTF-8",
        }

    def _python(self, code: str) -> str:
        printed, before = io.StringIO(), Path.cwd()
        os.chdir(self.folder)
        try:
            with contextlib.redirect_stdout(printed):
                exec(compile(code, f"<{self.page}>", "exec"), self.variables)
        finally:
            os.chdir(before)
        return printed.getvalue()
