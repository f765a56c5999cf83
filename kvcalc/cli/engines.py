"""`kvcalc engines`: whose rules are known, and the options that each takes."""

from __future__ import annotations

from typing import Any

import click

from kvcalc.cli import _options as shared


@click.command(cls=shared.Command, epilog="Example: kvcalc engines ideal")
@click.argument("engine", required=False, type=shared.ENGINE)
@shared.output_options
def command(engine: str | None, **given: Any) -> None:
    """List the engines, or one ENGINE: the version modelled, what it models, and its options (-o KEY=VALUE)."""
    from kvcalc.engines import ENGINES, find_engine
    from kvcalc.output import render, to_json

    style, _ = shared.chosen_style(given)
    data = [_data(find_engine(name)) for name in ([engine] if engine else ENGINES)]
    if style == "json":
        click.echo(to_json({"schema": "kvcalc.engines/1", "engines": data}))
    elif style == "table":
        click.echo("\n\n".join(_report(one) for one in data))
    else:
        rows = [
            {"engine": one["name"], "version": one["version"], "option": option["name"], **_without_name(option)}
            for one in data
            for option in one["options"] or [{"name": None, "type": None, "default": None, "meaning": one["summary"]}]
        ]
        click.echo(render(rows, style))


def _without_name(option: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in option.items() if key != "name"}


def _data(profile: Any) -> dict[str, Any]:
    """Return an engine as JSON data, its options with type, default and meaning."""
    meanings = profile.options_class.field_docs()
    options = [
        {
            "name": name,
            "type": type_in_words(field.annotation),
            "default": field.default,
            "meaning": " ".join(meanings.get(name, "").replace("`", "").split()),
        }
        for name, field in profile.options_class.model_fields.items()
    ]
    return {"name": profile.name, "version": profile.version, "summary": profile.summary, "options": options}


def type_in_words(annotation: Any) -> str:
    """Return an option's type in plain words: `integer`, `text`, `true or false`, or the values it may have."""
    from types import NoneType
    from typing import get_args

    members = [member for member in get_args(annotation) if member is not NoneType]
    if members and all(isinstance(member, (str, int)) for member in members):
        return " | ".join(str(member) for member in members)
    if members:
        return type_in_words(members[0])
    names = {int: "integer", str: "text", bool: "true or false"}
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _as_typed(value: Any) -> str:
    """Return a value as it is written after `-o KEY=`."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _report(one: dict[str, Any]) -> str:
    """Return an engine for people."""
    from kvcalc.output import fold

    lines = [fold(f"{one['name']} {one['version']}".strip() + f": {one['summary']}", hanging="  ")]
    for option in one["options"]:
        default = "" if option["default"] is None else f"={_as_typed(option['default'])}"
        lines += [f"  -o {option['name']}{default}  ({option['type']})", fold(option["meaning"], "       ")]
    return "\n".join(lines)
