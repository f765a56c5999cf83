"""A user's own folder of specs: listed beside the bundled ones, in front of them, and never in their way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.running import answer, run

SPEC = """\
name: {name}
aliases: [{name}-alias]
architecture: llama
source: {{url: https://example.org/config.json, checked: 2026-01-01}}
layers: 2
hidden_size: 64
heads: 2
dtype: float16
max_context: null
parameters: null
"""


@pytest.fixture
def specs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that $KVCALC_SPECS names."""
    monkeypatch.setenv("KVCALC_SPECS", str(tmp_path))
    return tmp_path


def test_a_users_spec_is_listed_and_sized(specs: Path) -> None:
    """2 layers x (K and V) x 64 elements x 2 bytes a token, found by name and by alias."""
    (specs / "mine.yaml").write_text(SPEC.format(name="mine"))
    (row,) = json.loads(answer("models", "mine-ali", "--json"))["models"]
    assert row["per_token_bytes"] == 2 * 2 * 64 * 2
    assert row["file"] == str(specs / "mine.yaml")
    assert json.loads(answer("size", "mine-alias", "--ctx", "10", "--json"))["total_bytes"] == 512 * 10


def test_a_users_spec_takes_the_place_of_a_bundled_one(specs: Path) -> None:
    """Their gpt2-small is theirs, in the list as well, whatever its file is called."""
    (specs / "zzz.yaml").write_text(SPEC.format(name="gpt2-small"))
    rows = json.loads(answer("models", "gpt2-small", "--json"))["models"]
    assert [(row["name"], row["layers"]) for row in rows] == [("gpt2-small", 2)]


def test_a_faulty_spec_is_a_warning_in_the_list(specs: Path) -> None:
    """One bad file does not hide the others; asked for by name, it is an error."""
    (specs / "bad.yaml").write_text(SPEC.format(name="bad") + "layer: 3\n")
    result = run("models", "gpt2-small")
    assert result.code == 0
    assert result.err.startswith(f"warning: {specs / 'bad.yaml'}:")
    assert result.err.count("\n") == 1
    assert run("size", "bad", "--ctx", "5").code == 1


def test_a_dtype_whose_blocks_divide_no_row_is_listed_without_sizes(specs: Path) -> None:
    """q8_0 stores blocks of 32; a head of 20 has no whole number of them."""
    text = SPEC.format(name="odd").replace("hidden_size: 64", "hidden_size: 40").replace("float16", "q8_0")
    (specs / "odd.yaml").write_text(text)
    (row,) = json.loads(answer("models", "odd", "--json"))["models"]
    assert (row["per_token_bytes"], row["context_4096_bytes"]) == (None, None)
    assert "-" in answer("models", "odd").splitlines()[2]
