"""kvcalc as a program: what it imports, how it ends, and how it behaves in a pipe and on a plain terminal."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvcalc import __version__
from kvcalc.cli import COMMANDS
from tests.cli.running import ROOT, program, run

EVERY_COMMAND = {
    "size": "gpt2-small --ctx 4096",
    "explain": "gpt2-small --ctx 4096",
    "compare": "gpt2-small --attention mha,mqa --ctx 4096",
    "models": "",
    "show": "gpt2-small",
    "engines": "ideal",
}
HEAVY = {"numpy", "plotly", "torch", "rich", "transformers", "numba"}
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def imported(*arguments: str, **environment: str) -> set[str]:
    """Return the top-level packages that a run imports, after checking that it succeeded."""
    result = program(*arguments, PYTHONPROFILEIMPORTTIME="1", **environment)
    assert result.code == 0, result.err
    names = re.findall(r"^import time:\s+\d+ \|\s+\d+ \|\s*(\S+)$", result.err, re.MULTILINE)
    assert "kvcalc" in names
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("command", EVERY_COMMAND)
def test_commands_import_nothing_heavy(command: str) -> None:
    """Tables need neither numpy, plotly, torch nor rich."""
    assert not imported(command, *EVERY_COMMAND[command].split()) & HEAVY


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_imports_neither_pydantic_nor_yaml(command: str) -> None:
    """A help page is there at once, for the program and for each command."""
    assert not imported(*command.split(), "--help") & {"pydantic", "yaml", *HEAVY}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_page_has_an_example_and_fits(command: str) -> None:
    """A sentence, an example, and no line wider than the terminal, for each command and each of its own commands."""
    pages = [run(command, "--help").out]
    own = re.search(r"^Commands:\n((?:  .*\n)+)", pages[0], re.MULTILINE)
    for line in own[1].splitlines() if own else []:
        if line[2] != " ":
            pages.append(run(command, line.split()[0], "--help").out)
    for page in pages:
        assert "Example: kvcalc " in page
        assert max(map(len, page.splitlines())) <= 80


@pytest.mark.parametrize(
    "words", ["kvcalc ", "kvcalc size gpt2", "kvcalc size gpt2-small --engine ", "kvcalc size gpt2-small --kv-dtype q"]
)
def test_completion_imports_neither_pydantic_nor_yaml(words: str) -> None:
    """Pressing TAB starts no machinery."""
    place = str(len(words.split(" ")) - 1)
    found = imported(_KVCALC_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=place)
    assert not found & {"pydantic", "yaml", *HEAVY}


def test_python_m_kvcalc_is_the_command() -> None:
    """`python -m kvcalc` has the command's name, version and answers."""
    assert program("--version").out == f"kvcalc, version {__version__}\n"
    assert program("--help").out.startswith("Usage: kvcalc [OPTIONS] COMMAND")
    assert program("size", "gpt2-small", "--ctx", "100") == run("size", "gpt2-small", "--ctx", "100")


def test_without_arguments_the_help_page_is_a_usage_error() -> None:
    """`kvcalc` alone shows how it is used, on standard error."""
    result = run()
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("Usage: kvcalc")


@pytest.mark.skipif(os.name == "nt", reason="pipes break differently on Windows")
def test_a_reader_that_leaves_early_is_no_error() -> None:
    """`kvcalc models | head -1` ends quietly."""
    command = f"'{sys.executable}' -m kvcalc models --format csv | head -1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False, env=ENVIRONMENT
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("name,")


@pytest.mark.skipif(os.name == "nt", reason="pipes break differently on Windows")
@pytest.mark.parametrize("arguments", ["models", "--help", "size --help", "size gpt2-small --ctx 100"])
def test_a_reader_that_has_already_left_is_no_error(arguments: str) -> None:
    """Writing to a pipe that nobody reads ends with 0 and without a word."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "kvcalc", *arguments.split()],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env=ENVIRONMENT,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_a_full_disk_is_one_line() -> None:
    """An answer that cannot be written is an error, not a silent loss."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "kvcalc", "models"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env=ENVIRONMENT,
        )
    assert done.returncode == 1
    assert done.stderr == "error: No space left on device\n"


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGINT to send on Windows")
def test_ctrl_c_ends_with_130() -> None:
    """Ctrl-C is one word, no traceback."""
    script = (
        "import sys, time; from kvcalc import api; from kvcalc.cli import main;"
        "api.size = lambda *given, **named: (print('ready', file=sys.stderr, flush=True), time.sleep(60));"
        "main(['size', 'gpt2-small', '--ctx', '5'])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "ready\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (out, err.split()) == ("", ["interrupted"])


@pytest.mark.parametrize("environment", [{}, {"NO_COLOR": "1"}, {"FORCE_COLOR": "1"}, {"TERM": "xterm-256color"}])
def test_output_has_no_escape_codes(environment: dict[str, str]) -> None:
    """There is no colour at all, so that files and pipes hold plain text."""
    for command, arguments in EVERY_COMMAND.items():
        result = program(command, *arguments.split(), **environment)
        assert "\x1b" not in result.out + result.err
    assert "\x1b" not in program("size", "gpt2", "--ctx", "0", **environment).err


def test_a_terminal_without_unicode_shows_every_answer() -> None:
    """Names from user files are escaped where the encoding lacks their letters."""
    result = program("show", "gpt2-small", PYTHONIOENCODING="ascii", PYTHONUTF8="0", LC_ALL="C")
    assert result.code == 0
    assert result.out.isascii()


def test_control_characters_in_a_spec_are_shown_not_obeyed(tmp_path: Path) -> None:
    """A note that tries to clear the screen is printed as text."""
    path = tmp_path / "spec.yaml"
    path.write_text(
        "name: small\narchitecture: llama\nlayers: 2\nhidden_size: 64\nheads: 2\ndtype: fp16\nmax_context: 10\n"
        'parameters: 10\nsource: {url: "https://example.org", checked: 2026-01-01, note: "\\e[2J caf\\u00e9"}\n'
    )
    result = run("show", str(path))
    assert result.code == 0
    assert "\x1b" not in result.out
    assert "\\x1b[2J café" in result.out


def test_a_table_is_shortened_to_the_terminal_and_whole_in_a_pipe() -> None:
    """On 60 columns the long name loses its middle; in a pipe nothing is lost."""
    call = ("models", "nemotron-3-super")
    narrow = program(*call, COLUMNS="60").out
    assert max(map(len, narrow.splitlines())) <= 60
    assert "..." in narrow
    piped = program(*call, COLUMNS="").out
    assert "nemotron-3-super-120b-a12b-fp8" in piped
    assert "nvidia/" in piped
    assert max(map(len, program("models", COLUMNS="80").out.splitlines())) <= 80
