"""Find, read and validate model specs; list names and aliases without parsing any."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcalc.errors import BadInput, SpecError, did_you_mean

if TYPE_CHECKING:
    from kvcalc.spec.model import ModelSpec

INDEX = "index.json"
_SUFFIXES = (".yaml", ".yml")
_FOREIGN = (".json", ".gguf", ".safetensors")


def bundled_folder() -> Path:
    """Return the folder of the bundled specs: inside an installed package, or beside it in a source tree."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "model_specs"
    return inside if inside.is_dir() else package.parent / "model_specs"


def user_folders() -> tuple[Path, ...]:
    """Return the user's spec folders that exist: `$KVCALC_SPECS` (a search path), then the configuration folder's."""
    entries = os.environ.get("KVCALC_SPECS", "").split(os.pathsep)
    listed = [Path(os.path.expanduser(entry)) for entry in entries if entry]
    return tuple(folder for folder in (*listed, _config_folder() / "specs") if os.path.isdir(folder))


def names() -> dict[str, str]:
    """Return every known name and alias with the name it stands for; user specs by their file names only.

    Reads the generated index and lists folders: no YAML is parsed, so that shell completion is quick.
    """
    known = {path.stem: path.stem for folder in user_folders() for path in _spec_files(folder)}
    for name, entry in index().items():
        known.setdefault(name, name)
        for alias in entry["aliases"]:
            known.setdefault(alias, name)
    return known


@lru_cache(maxsize=1)
def index() -> dict[str, Any]:
    """Return the generated index of the bundled specs: name -> {file, aliases}."""
    models: dict[str, Any] = json.loads((bundled_folder() / INDEX).read_text(encoding="utf-8"))["models"]
    return models


def build_index(folder: Path) -> str:
    """Return the text of `index.json` for the specs in `folder`; BadInput if two claim one name, SpecError as usual."""
    models: dict[str, Any] = {}
    owners: dict[str, str] = {}
    for path in _spec_files(folder):
        spec = load_file(path)
        if spec.name in models:
            raise BadInput(f"{path}: the name '{spec.name}' already belongs to {models[spec.name]['file']}")
        for name in (spec.name, *spec.file.aliases):
            other = owners.setdefault(name.lower(), spec.name)
            if other != spec.name:
                raise BadInput(f"{path}: the name '{name}' already belongs to {other}")
        aliases = list(spec.file.aliases)
        models[spec.name] = {"file": path.relative_to(folder).as_posix(), "aliases": aliases}
    return json.dumps({"models": dict(sorted(models.items()))}, indent=1) + "\n"


def load(model: str) -> ModelSpec:
    """Return the spec that a name, an alias or the path of a YAML spec means.

    BadInput for an unknown name (with the nearest ones) or a missing path, SpecError for a faulty file. Other files are
    read by `kvcalc.api.load`.
    """
    path = find(model)
    return load_file(path)


def find(model: str) -> Path:
    """Return the file (or folder) of a MODEL argument: what the name stands for, or the path, which exists."""
    named = _find_named(model)
    if named is not None:
        return named
    if is_path(model):
        return _checked_path(model)
    hint = did_you_mean(model, names()) or "; 'kvcalc models' lists them, a path must start with ./ or end in .yaml"
    raise BadInput(f"no model '{model}'{hint}")


def is_path(model: str) -> bool:
    """Return whether a MODEL argument that is no known name means a file or folder."""
    return model.endswith((*_SUFFIXES, *_FOREIGN)) or model[:1] in (".", "/", "~") or os.path.isdir(model)


def load_file(path: Path) -> ModelSpec:
    """Return the spec of one YAML file; SpecError lists every problem as `file:line:col: field: message`.

    A file is parsed once, and again when it has changed.
    """
    try:
        status = path.stat()
    except (OSError, ValueError):  # reading says what is wrong with it
        return _load_version(path, (0, 0))
    return _load_version(path, (status.st_mtime_ns, status.st_size))


@lru_cache(maxsize=512)
def _load_version(path: Path, _version: tuple[int, int]) -> ModelSpec:
    """Return the spec in `path`; the version, its time of change and size, only tells cached ones apart."""
    from kvcalc.spec.resolve import resolve
    from kvcalc.yaml_tree import parse, read_text

    shown = _shown(path)
    return resolve(parse(read_text(path), shown), origin=shown)


def _find_named(model: str) -> Path | None:
    """Return the file of a name or alias: user folders first, then the bundled specs."""
    for folder in user_folders():
        for path in _spec_files(folder):
            if path.stem == model or model in _declared_names(path):
                return path
    lowered = model.lower()
    for name, entry in index().items():
        if name.lower() == lowered or any(alias.lower() == lowered for alias in entry["aliases"]):
            return bundled_folder() / str(entry["file"])
    return None


def _declared_names(path: Path) -> tuple[str, ...]:
    """Return the names that a user's spec claims; nothing for a file that cannot be read."""
    try:
        spec = load_file(path)
    except SpecError:
        return ()  # it is reported when it is asked for by its file name
    return (spec.name, *spec.file.aliases)


def _checked_path(model: str) -> Path:
    """Return the path, or a BadInput that says what is wrong with it."""
    # os.path, unlike pathlib, takes a user or a name that the system refuses for a path that does not exist.
    path = Path(os.path.expanduser(model))
    if not os.path.exists(path):
        raise BadInput(f"{model}: no such file")
    return path


def _spec_files(folder: Path) -> Iterator[Path]:
    """Yield the YAML files under `folder`, sorted, without following links to folders."""
    for root, folders, files in os.walk(folder):
        folders.sort()
        yield from (Path(root) / name for name in sorted(files) if name.endswith(_SUFFIXES))


def _shown(path: Path) -> str:
    """Return the path as messages show it: bundled specs without the folder they are installed in."""
    bundled = bundled_folder()
    return f"model_specs/{path.relative_to(bundled).as_posix()}" if path.is_relative_to(bundled) else str(path)


def _config_folder() -> Path:
    """Return the user's configuration folder for kvcalc by the platform's convention."""
    if sys.platform == "win32":
        folder = os.environ.get("APPDATA", "~")
    elif sys.platform == "darwin":
        folder = "~/Library/Application Support"
    else:
        folder = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(os.path.expanduser(folder)) / "kvcalc"
