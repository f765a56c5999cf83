"""The base of every record that users write: frozen, no unknown keys, and a docstring under each field.

pydantic could read those docstrings itself, but it would tokenize the source of every class at every start, and build
every validator; here both happen when they are needed.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue


class Documented(BaseModel):
    """A frozen record whose fields are explained by the string below each of them."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    @classmethod
    def field_docs(cls) -> dict[str, str]:
        """Return field name -> the text below it in the class body, inherited fields included."""
        found: dict[str, str] = {}
        for ancestor in reversed(cls.__mro__):
            if issubclass(ancestor, Documented):
                found.update(_docs_in_body(ancestor))
        return {name: found[name] for name in cls.model_fields if name in found}

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Add the field docs to the JSON schema, as the descriptions that editors show."""
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for name, text in cls.field_docs().items():
            properties[name].setdefault("description", text)
        return schema


def _docs_in_body(model: type[BaseModel]) -> dict[str, str]:
    """Return the strings that directly follow annotated names in a class body."""
    body = ast.parse(textwrap.dedent(inspect.getsource(model))).body[0]
    assert isinstance(body, ast.ClassDef)
    docs: dict[str, str] = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            value = below.value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                docs[field.target.id] = inspect.cleandoc(value.value)
    return docs
