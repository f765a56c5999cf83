"""Foreign files and folders as models: which reader a path needs, and the weights that lie beside a config."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kvcalc.errors import BadInput, SpecError, did_you_mean

if TYPE_CHECKING:
    from kvcalc.spec.model import ModelSpec

CONFIG = "config.json"
SPEC_SUFFIXES = (".yaml", ".yml")
FROM_THE_FILE = "from the file"

_INDEX_SUFFIX = ".safetensors.index.json"
_MAX_ENTRIES = 10_000


def is_foreign(path: Path) -> bool:
    """Return whether an existing path is something else than a YAML spec: by its name, else by its first bytes."""
    if path.is_dir():
        return True
    if path.suffix in SPEC_SUFFIXES:
        return False
    return path.suffix in (".json", ".gguf", ".safetensors") or _first_bytes(path)[:1] in (b"G", b"{")


def read_model(path: Path) -> ModelSpec:
    """Return the model of a config.json, GGUF or safetensors file, or of the folder that holds one of them.

    Where tensors are at hand, `weights_bytes` has their exact bytes. BadInput for a folder that holds no model,
    SpecError for a file that cannot be read.
    """
    if path.is_dir():
        return _read_folder(path)
    if path.suffix == ".gguf" or _first_bytes(path) == b"GGUF":
        return _read_gguf(path)
    if path.suffix == ".safetensors" or path.name.endswith(_INDEX_SUFFIX):
        return _read_safetensors(path)
    from kvcalc.read.hf_config import read_config

    return read_config(path)


def read_hub_model(reference: str, *, download: bool = False) -> ModelSpec:
    """Return the model of `hf:org/name[@revision]` from the local Hugging Face cache; `download` allows the network.

    BadInput for a model that is not cached, HubError for one that the Hub does not give.
    """
    from kvcalc.read import hub
    from kvcalc.read.hf_config import read_config

    path = hub.downloaded_config(reference) if download else hub.cached_config(reference)
    spec = read_config(path, repository=hub.repository(reference), url=hub.address(reference))
    return _with_weights_beside(spec, path.parent)


def _read_folder(folder: Path) -> ModelSpec:
    """Return the model of a folder: its config.json, else its only GGUF (or split set), else its only spec."""
    names = _names(folder)
    if CONFIG in names:
        from kvcalc.read.hf_config import read_config

        return _with_weights_beside(read_config(folder / CONFIG), folder)
    ggufs = [name for name in names if name.endswith(".gguf") and not name.startswith("mmproj")]
    firsts = [name for name in ggufs if _part(name) <= 1]
    if firsts or ggufs:
        return _read_gguf(folder / _only(firsts or ggufs, "GGUF files", folder))
    specs = [name for name in names if name.endswith(SPEC_SUFFIXES)]
    if specs:
        from kvcalc.spec.load import load_file

        return load_file(folder / _only(specs, "specs", folder))
    near = did_you_mean(CONFIG, names, limit=1)
    raise BadInput(f"{folder} is a folder without a model: no {CONFIG}, no .gguf file and no spec in it{near}")


def _only(names: Sequence[str], what: str, folder: Path) -> str:
    if len(names) > 1:
        some = ", ".join(sorted(names)[:4])
        raise BadInput(f"{folder} is a folder with {len(names)} {what}; name one: {some}")
    return names[0]


def _names(folder: Path) -> list[str]:
    """Return the names in a folder; BadInput if there are more than a model has, or if it cannot be read."""
    names: list[str] = []
    try:
        for entry in folder.iterdir():
            names.append(entry.name)
            if len(names) > _MAX_ENTRIES:
                raise BadInput(f"{folder} is a folder with more than {_MAX_ENTRIES:,} entries; name the file")
    except OSError as error:
        raise BadInput(f"{folder}: {error.strerror or error}") from None
    return names


def _part(name: str) -> int:
    """Return which part of a split set a GGUF is, from 1; 0 for a whole file."""
    pieces = name.removesuffix(".gguf").rsplit("-", 3)
    split = len(pieces) == 4 and pieces[2] == "of" and pieces[1].isdecimal() and pieces[3].isdecimal()
    return int(pieces[1]) if split else 0


def _read_gguf(path: Path) -> ModelSpec:
    """Return the model of a GGUF with the bytes of its tensors."""
    from kvcalc.read.gguf import read_header
    from kvcalc.read.gguf_spec import to_spec

    header = read_header(path)
    if not header.tensors:
        return replace(to_spec(header), weights_note="the file has no tensors")
    return replace(to_spec(header), weights_bytes=header.weights_bytes, weights_note=FROM_THE_FILE)


def _read_safetensors(path: Path) -> ModelSpec:
    """Return the model of the config.json beside the weights, with the exact bytes of these."""
    from kvcalc.read.hf_config import read_config
    from kvcalc.read.safetensors import read_weights

    config = path.with_name(CONFIG)
    if not config.is_file():
        raise BadInput(f"{path}: its model is described by a {CONFIG}, and there is none beside it")
    spec = read_config(config)
    return replace(spec, weights_bytes=read_weights(path).total_bytes, weights_note=FROM_THE_FILE)


def _with_weights_beside(spec: ModelSpec, folder: Path) -> ModelSpec:
    """Return the spec with the exact bytes of the safetensors files in its folder, if they are all there."""
    from kvcalc.read.safetensors import read_weights

    if not any(name.endswith((".safetensors", _INDEX_SUFFIX)) for name in _names(folder)):
        return spec
    try:
        weights = read_weights(folder)
    except SpecError as error:
        found = error.problems[0]
        why = f"{Path(found.file).name} {found.message}" if found.message else str(error)
        return replace(spec, weights_note=f"parameters x dtype, because {why}")
    return replace(spec, weights_bytes=weights.total_bytes, weights_note=FROM_THE_FILE)


def _first_bytes(path: Path) -> bytes:
    """Return the first four bytes of a regular file; nothing for what cannot be read, or only once (a pipe)."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return b""
        with path.open("rb") as stream:
            return stream.read(4)
    except OSError:
        return b""
