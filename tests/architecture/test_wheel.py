"""The wheel holds what users need, and answers like the source tree from anywhere else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from zipfile import ZipFile

import pytest

from kvcalc.cli import COMMANDS
from tests.architecture.project import ROOT

# A call of every command that needs no extra. `{folder}` is a folder of the side that runs it, with model/config.json.
CALLS = {
    "size": ["gpt2-small", "--ctx", "4096", "--batch", "8"],
    "explain": ["deepseek-v3", "--ctx", "4096"],
    "fit": ["llama-3.1-8b", "--kv-memory", "16GiB", "--ctx", "8K"],
    "compare": ["gpt2-small", "llama-3.1-8b", "--ctx", "1024"],
    "models": [],
    "show": ["qwen3-next-80b-a3b"],
    "gpus": ["h100"],
    "engines": [],
    "which": ["--gpu", "l4", "--ctx", "8K"],
    "check": ["--gpu", "l4", "--", "vllm", "serve", "Qwen/Qwen3-8B", "--max-model-len", "8192"],
    "import": ["{folder}/model/config.json"],
    "plot": ["context", "gpt2-small", "-o", "{folder}/curve.html"],
    "validate": ["gpt2-small", "--ctx", "64"],
}
CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 24,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 8192,
    "vocab_size": 32000,
    "intermediate_size": 5632,
    "torch_dtype": "bfloat16",
}
# What only the extra `torch` can answer: without it, one line and exit code 1.
NEED_TORCH = {"validate"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    _run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a new virtual environment that holds the wheel and its dependencies, and no extra."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(folder, symlinks=os.name != "nt")
    (site_packages,) = {*folder.glob("lib/*/site-packages"), *folder.glob("Lib/site-packages")}
    for part in _dependencies("kvcalc"):
        if not (site_packages / part.name).exists():
            (site_packages / part.name).symlink_to(part, target_is_directory=part.is_dir())
    _run([sys.executable, "-m", "pip", "--python", str(folder), "install", "-q", "--no-deps", "--no-index", str(wheel)])
    return folder


def _dependencies(name: str, seen: set[str] | None = None) -> Iterator[Path]:
    """Yield the files and folders in site-packages of what a distribution requires, without its extras."""
    seen = set() if seen is None else seen
    for requirement in distribution(name).requires or ():
        required = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]
        conditions = requirement.partition(";")[2]
        if "extra" in conditions or required in seen or not _is_installed(required):
            continue  # not installed: a requirement of other platforms or Python versions
        seen.add(required)
        found = distribution(required)
        tops = {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}
        yield from (Path(str(found.locate_file(top))) for top in tops)
        yield from _dependencies(required, seen)


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except ImportError:
        return False
    return True


def _run(command: list[str], folder: Path | None = None, *, expected: int = 0) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "KVCALC_SPECS")}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == expected, f"{command}\n{result.stdout}{result.stderr}"
    return result


def test_the_wheel_holds_the_specs_and_no_tests(wheel: Path) -> None:
    """Every module, every spec, the index and the schema are inside; tests, docs and caches are not."""
    names = set(ZipFile(wheel).namelist())
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "kvcalc").rglob("*.py")}
    specs = {f"kvcalc/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "model_specs").rglob("*.yaml")}
    assert specs
    data = ("hardware/gpus.yaml", "hardware/weights.yaml", "model_specs/index.json", "model_specs/schema.json")
    expected = modules | specs | {"kvcalc/py.typed", *(f"kvcalc/{name}" for name in data)}
    assert expected <= names
    folders = {name.partition("/")[0] for name in names}
    assert {folder for folder in folders if not folder.endswith(".dist-info")} == {"kvcalc"}
    assert not [name for name in names if "test" in name or "__pycache__" in name]


def test_the_wheel_carries_the_licence(wheel: Path) -> None:
    """The licence text is in the wheel's metadata."""
    archive = ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith("/LICENSE")]
    assert "Apache License" in archive.read(name).decode()


def test_every_command_has_a_call_here() -> None:
    """A new command is compared as well."""
    assert set(CALLS) == set(COMMANDS)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_an_installed_wheel_answers_like_the_source_tree(command: str, installed: Path, tmp_path: Path) -> None:
    """The same call gives the same output, errors and files from the tree and from a wheel in a clean environment."""
    expected = 1 if command in NEED_TORCH else 0
    sides = {}
    for name, program in (
        ("tree", [sys.executable, "-m", "kvcalc"]),
        ("wheel", [str(installed / ("Scripts" if os.name == "nt" else "bin") / "kvcalc")]),
    ):
        folder = tmp_path / name
        (folder / "model").mkdir(parents=True)
        (folder / "model" / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
        if name == "tree" and command in NEED_TORCH:
            continue
        arguments = [argument.format(folder=folder) for argument in CALLS[command]]
        result = _run([*program, command, *arguments], ROOT if name == "tree" else folder, expected=expected)
        written = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        sides[name] = (result.stdout.replace(str(folder), ""), result.stderr.replace(str(folder), ""), written)
    if command in NEED_TORCH:
        assert "pip install 'kvcalc[torch]'" in sides["wheel"][1]
    else:
        assert sides["tree"] == sides["wheel"]


def test_every_extra_that_a_message_names_can_be_installed(wheel: Path) -> None:
    """`pip install 'kvcalc[x]'`, as an error says, finds the extra x in the wheel's metadata."""
    archive = ZipFile(wheel)
    (metadata,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
    provided = set(re.findall(r"^Provides-Extra: (\S+)$", archive.read(metadata).decode(), re.M))
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "kvcalc").rglob("*.py")]
    named = {extra for text in sources for extra in re.findall(r'MissingExtra\(\s*"(\w+)"', text)}
    assert named
    assert named <= provided
