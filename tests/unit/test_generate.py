"""The generated files: current, and the schema accepts what the reader accepts."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from kvcalc.spec.generate import SCHEMA, build_schema, write
from kvcalc.spec.kinds import KINDS, STATE_VARIANTS
from kvcalc.spec.load import INDEX, build_index, bundled_folder, load_file
from kvcalc.spec.resolve import INHERITED
from kvcalc.yaml_tree import parse, read_text
from tests.property.specs import TOP
from tests.unit.test_kinds import EXAMPLES

FOLDER = bundled_folder()
FILES = sorted(FOLDER.rglob("*.yaml"))
HOW = "run: python -m kvcalc.spec.generate"


@pytest.fixture(scope="module")
def validator() -> Any:
    """Return a validator of the schema that the classes give now."""
    schema = json.loads(build_schema())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)


def test_the_index_is_current() -> None:
    """Every bundled spec, and nothing else, is in the index with all its aliases."""
    assert (FOLDER / INDEX).read_text(encoding="utf-8") == build_index(FOLDER), HOW


def test_the_schema_is_current() -> None:
    """The file beside the specs is what the classes describe."""
    assert (FOLDER / SCHEMA).read_text(encoding="utf-8") == build_schema(), HOW


def test_both_files_are_written_into_a_folder(tmp_path: Any) -> None:
    """The index of the specs in it, and the schema."""
    (tmp_path / "gpt2.yaml").write_bytes((FOLDER / "gpt2" / "gpt2-small.yaml").read_bytes())

    write(tmp_path)

    assert list(json.loads((tmp_path / INDEX).read_text(encoding="utf-8"))["models"]) == ["gpt2-small"]
    assert (tmp_path / SCHEMA).read_text(encoding="utf-8") == build_schema()


def test_every_bundled_spec_is_valid(validator: Any) -> None:
    """What ships passes its own schema, and the reader."""
    assert len(FILES) > 100
    for path in FILES:
        validator.validate(parse(read_text(path), str(path)).data)
        assert load_file(path).name == path.stem


def test_every_bundled_spec_points_editors_at_the_schema() -> None:
    """The first line is the one that editors look for."""
    for path in FILES:
        first = path.read_text(encoding="utf-8").splitlines()[0]
        target = first.removeprefix("# yaml-language-server: $schema=")
        assert target != first, path
        assert (path.parent / target).resolve() == (FOLDER / SCHEMA).resolve(), path


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_every_kind_is_valid_with_its_inherited_dimensions_left_out(validator: Any, name: str) -> None:
    """A kind says what it is; heads, kv_heads and the like may stand at the top level."""
    written = {key: value for key, value in EXAMPLES[name].model_dump().items() if key not in INHERITED}

    validator.validate({**TOP, "kinds": {"x": written}})


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_every_field_of_a_kind_is_described(name: str) -> None:
    """Editors show the docs of the field under the cursor."""
    definitions = json.loads(build_schema())["$defs"]
    kind = definitions[type(EXAMPLES[name]).__name__]

    assert kind["description"]
    for field, schema in kind["properties"].items():
        assert field in ("kind", "variant") or schema["description"], field


def test_every_field_of_a_spec_is_described() -> None:
    """The top level and the source."""
    schema = json.loads(build_schema())

    for properties in (schema["properties"], schema["$defs"]["Source"]["properties"]):
        assert all(field["description"] for field in properties.values())
    assert {name for name in schema["$defs"] if name != "Source"} == {
        kind.__name__ for kind in (*KINDS.values(), *STATE_VARIANTS.values()) if kind.__name__ != "State"
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"colour": "red"},
        {"kv_groups": 4},
        {"layers": 0},
        {"layers": "4"},
        {"layers": 1.5},
        {"name": "a b"},
        {"dtype": "bfloat17"},
        {"assumed": ["dtyp"]},
        {"source": {"url": "https://example.org"}},
        {"source": {"url": "https://example.org", "checked": "today"}},
        {"kinds": {"a b": {"kind": "full"}}},
        {"kinds": {"x": {"kind": "slidng", "window": 8}}},
        {"kinds": {"x": {"kind": "sliding"}}},
        {"kinds": {"x": {"kind": "sliding", "window": 8, "chunk": 3}}},
        {"kinds": {"x": {"window": 8}}},
        {"kinds": {"x": {"kind": "state"}}},
        {"kinds": {"x": {"kind": "state", "variant": "mamba", "channels": 8}}},
        {"kinds": {"x": {"kind": "state", "variant": "rwkv4", "channels": 8, "state_dtype": "fp64"}}},
        {"pattern": "local"},
        {"pattern": [3]},
        {"pattern": [["a", ["b"]]]},
    ],
    ids=str,
)
def test_what_the_reader_refuses_the_schema_refuses(validator: Any, changes: dict[str, Any]) -> None:
    """An editor underlines it before the command does."""
    validator.validate(TOP)
    with pytest.raises(jsonschema.ValidationError):
        validator.validate({**TOP, **changes})


@pytest.mark.parametrize(
    "name", ["name", "architecture", "source", "layers", "hidden_size", "dtype", "max_context", "parameters"]
)
def test_what_must_be_there_is_required(validator: Any, name: str) -> None:
    """The fields that every spec has."""
    with pytest.raises(jsonschema.ValidationError):
        validator.validate({key: value for key, value in TOP.items() if key != name})
