"""Published config.json files against the bundled specs, which were written from their own sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvcalc import api
from kvcalc.errors import BadInput, SpecError
from kvcalc.read.hf_config import read_config
from kvcalc.read.spec_text import spec_text
from kvcalc.spec.load import load
from kvcalc.spec.model import ModelSpec
from kvcalc.spec.resolve import resolve
from kvcalc.yaml_tree import parse
from tests.shared_material import shared

# Repositories whose config is refused, and why; docs/reading.md says the same.
REFUSED: dict[str, str] = {}


def figures(spec: ModelSpec) -> tuple[int, ...]:
    """Return bytes of the second token, of 4,096 tokens and of 100,000."""
    setup = api.prepare(spec)
    return api.per_token_bytes(setup, 1), *(setup.placement.total_bytes(context, 1) for context in (4096, 100_000))


def configs() -> list[Path]:
    return sorted(shared("models/configs").glob("*.json"))


def test_every_published_config_sizes_as_the_bundled_spec_or_is_refused() -> None:
    """Per token and at two contexts, in bytes; dtype and trained context are the same, too."""
    compared = 0
    for path in configs():
        repository = path.stem.replace("__", "/")
        if repository in REFUSED:
            with pytest.raises(SpecError, match=REFUSED[repository]):
                read_config(path)
            continue
        found = read_config(path)
        try:
            bundled = load(repository)
        except BadInput:
            continue
        assert figures(found) == figures(bundled), repository
        assert (found.dtype, found.max_context) == (bundled.dtype, bundled.max_context), repository
        compared += 1
    assert compared >= 67


def test_every_published_config_is_the_same_after_an_import() -> None:
    """Written as a spec and read again: the same fields and the same layers."""
    for path in configs():
        if path.stem.replace("__", "/") in REFUSED:
            continue
        found = read_config(path)
        again = resolve(parse(spec_text(found), "spec.yaml"))
        assert again.layers == found.layers, path.name
        assert again.file == found.file, path.name
