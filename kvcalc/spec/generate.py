"""Writes the files that are made from the specs and their classes: `model_specs/index.json` and `schema.json`.

Run `python -m kvcalc.spec.generate` after adding a model, or changing a field; a test says when it is due.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from kvcalc.formats import FORMATS
from kvcalc.spec.kinds.union import AnyKind
from kvcalc.spec.load import INDEX, build_index, bundled_folder
from kvcalc.spec.model import SpecFile
from kvcalc.spec.resolve import INHERITED

SCHEMA = "schema.json"


def write(folder: Path) -> None:
    """Write the index of the specs in `folder`, and the schema that editors check them against, beside them."""
    (folder / INDEX).write_text(build_index(folder), encoding="utf-8", newline="\n")
    (folder / SCHEMA).write_text(build_schema(), encoding="utf-8", newline="\n")


def build_schema() -> str:
    """Return the text of a JSON Schema (draft 2020-12) of a model spec, with the field docs as descriptions."""
    schema = SpecFile.model_json_schema()
    kinds, definitions = _kinds()
    schema["$defs"].update(definitions)
    schema["$defs"]["Source"]["properties"]["checked"]["pattern"] = "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
    properties = schema["properties"]
    properties["dtype"]["enum"] = [name for item in FORMATS.values() for name in (item.name, *item.aliases)]
    properties["assumed"]["items"] = {"enum": list(properties)}
    named = properties["kinds"]["anyOf"][0]
    named.update(patternProperties=dict.fromkeys(named["patternProperties"], kinds), additionalProperties=False)
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "kvcalc model spec"}
    return json.dumps({**head, **_without_titles(schema)}, indent=1) + "\n"


def _kinds() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the schema of one kind, a choice by `kind` and `variant`, and the definitions that it refers to."""
    schema = TypeAdapter(AnyKind).json_schema()
    definitions: dict[str, Any] = schema.pop("$defs")
    for kind in definitions.values():
        tags = [name for name in ("kind", "variant") if name in kind["properties"]]
        kind["required"] = tags + [name for name in kind.get("required", []) if name not in (*INHERITED, *tags)]
    return {"oneOf": [{"$ref": f"#/$defs/{name}"} for name in definitions]}, definitions


def _without_titles(schema: Any) -> Any:
    """Return a schema without pydantic's titles, which only repeat the names of fields."""
    if isinstance(schema, list):
        return [_without_titles(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: _without_titles(part) for name, part in schema.items() if name != "title"}


if __name__ == "__main__":
    write(bundled_folder())
