"""Whatever a file holds, reading it gives a model or lines of `file:line:col: field: message`."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kvcalc.errors import SpecError
from kvcalc.spec.kinds import KINDS, STATE_VARIANTS
from kvcalc.spec.load import bundled_folder, load_file
from kvcalc.spec.model import ModelSpec, SpecFile
from tests.property.specs import TOP

HYBRID = (bundled_folder() / "gemma" / "gemma-3-1b.yaml").read_text(encoding="utf-8")

words = st.sampled_from(
    [
        *SpecFile.model_fields, *KINDS, *STATE_VARIANTS, "kind", "variant", "window", "chunk", "of", "none", "local",
        "kv_groups", "true", "no", "1e9", "010", "0", "-1", "4096", "&a", "*a", "!!int", "<<", "'", '"', "|", ">", "\t",
        ": ", "- ", "{", "}", "[", "]", ", ", "#", "---", "...", "%YAML 1.2", "?", "\n", "\r\n", "\n  ", "@", "`",
    ]
)  # fmt: skip
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=12), words, st.dates(), st.binary(max_size=4)
)
trees = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words | st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def path() -> Iterator[Path]:
    """A file that is written again for every example."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "random.yaml"


def check_answer(path: Path, content: bytes) -> None:
    """Write a file, read it, and accept a model or an error of the documented form."""
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    try:
        assert isinstance(load_file(path), ModelSpec)
    except SpecError as error:
        lines = str(error).split("\n")
        assert 1 <= len(lines) <= 51
        places = []
        for line in lines:
            match = re.fullmatch(rf"{re.escape(str(path))}:([1-9][0-9]*):([1-9][0-9]*): (.+)", line)
            assert match, line
            assert line.isprintable()
            places.append((int(match[1]), int(match[2])))
        assert places == sorted(places)
        assert len(set(lines)) == len(lines)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_model_or_an_error(path: Path, content: bytes) -> None:
    """Binary rubbish."""
    check_answer(path, content)


@given(st.text(max_size=200))
def test_any_text_is_a_model_or_an_error(path: Path, text: str) -> None:
    """Text of any script, control characters and lone surrogates included."""
    check_answer(path, text.encode("utf-8", "surrogatepass"))


@given(st.lists(words, max_size=40))
def test_any_mixture_of_yaml_is_a_model_or_an_error(path: Path, parts: list[str]) -> None:
    """The words and signs of specs in any order."""
    check_answer(path, "".join(parts).encode())


@given(st.lists(st.tuples(st.integers(0, len(HYBRID)), st.integers(0, 12), words | st.text(max_size=3)), max_size=4))
def test_a_damaged_spec_is_a_model_or_an_error(path: Path, edits: list[tuple[int, int, str]]) -> None:
    """A good file after a few random edits: parts removed and parts put in."""
    text = HYBRID
    for start, length, put_in in edits:
        text = text[:start] + put_in + text[start + length :]
    check_answer(path, text.encode("utf-8", "surrogatepass"))


@given(trees)
def test_any_tree_is_a_model_or_an_error(path: Path, tree: Any) -> None:
    """Whatever structure YAML can write."""
    check_answer(path, yaml.safe_dump(tree, allow_unicode=True).encode("utf-8", "surrogatepass"))


@given(st.dictionaries(st.sampled_from([*SpecFile.model_fields]), trees, min_size=1, max_size=3))
def test_any_values_of_known_fields_are_a_model_or_an_error(path: Path, changes: dict[str, Any]) -> None:
    """The right keys with values of any shape."""
    check_answer(path, yaml.safe_dump({**TOP, **changes}, allow_unicode=True).encode("utf-8", "surrogatepass"))


kind_fields = sorted(
    {field for kind in [*KINDS.values(), *STATE_VARIANTS.values()] for field in kind.model_fields} - {"kind", "variant"}
)
kinds = st.fixed_dictionaries(
    {"kind": st.sampled_from([*KINDS])},
    optional={
        "variant": st.sampled_from([*STATE_VARIANTS]),
        **{field: st.integers(-1, 300) | scalars for field in kind_fields},
    },
)


@given(
    st.dictionaries(st.sampled_from(["a", "b", "c"]), kinds, min_size=1, max_size=3),
    st.lists(st.sampled_from(["a", "b", "c", "none", "d"]) | st.lists(st.sampled_from(["a", "b", "none"]), max_size=3),
             max_size=5),
)  # fmt: skip
def test_any_kinds_and_pattern_are_a_model_or_an_error(path: Path, chosen: dict[str, Any], pattern: list[Any]) -> None:
    """Kinds with any of their fields, in patterns with any of their names."""
    text = yaml.safe_dump({**TOP, "kinds": chosen, "pattern": pattern}, allow_unicode=True)
    check_answer(path, text.encode("utf-8", "surrogatepass"))
