"""`kvcalc models`: what the catalogue knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from kvcalc.cli import _options as shared

if TYPE_CHECKING:
    from kvcalc.spec.model import ModelSpec

SAMPLE_CONTEXT = 4096


def _names() -> Sequence[str]:
    from kvcalc.spec.load import names

    return list(names())


@click.command(cls=shared.Command, epilog="Example: kvcalc models llama-3")
@click.argument("query", required=False, type=shared.Choice("query", _names))
@shared.output_options
def command(query: str | None, **given: Any) -> None:
    """List the models whose name or alias contains QUERY, or all, with what their caches take (ideal engine)."""
    from kvcalc.output import render, terminal_width, to_json

    style, units = shared.chosen_style(given)
    rows = [_row(spec) for spec in _matching(query or "")]
    if style == "json":
        click.echo(to_json({"schema": "kvcalc.models/1", "query": query, "models": rows}))
    elif style == "table":
        cells = [_cells(row, units) for row in rows]
        right = ["layers", "per token", "at 4,096", "trained", "params"]
        optional = ["family", "aliases"]
        click.echo(render(cells, style, aligned_right=right, optional=optional, width=terminal_width()))
    else:
        right = [name for name in rows[0] if name.endswith("bytes")] + ["layers", "max_context", "parameters"]
        flat = [{**row, "aliases": " ".join(row["aliases"]), "kinds": " ".join(row["kinds"])} for row in rows]
        click.echo(render(flat, style, aligned_right=right))


def _matching(query: str) -> list[ModelSpec]:
    """Return the specs whose name or alias contains the query, sorted by name; faulty user specs are warned about."""
    from kvcalc.errors import BadInput, SpecError, did_you_mean
    from kvcalc.spec.load import load, names

    specs, known = dict[str, "ModelSpec"](), names()
    for name in sorted(set(known.values())):
        try:
            spec = load(name)
        except SpecError as error:
            shared.warn(str(error).splitlines())
            continue
        specs.setdefault(spec.name, spec)
    lowered = query.lower()
    found = [
        spec for spec in specs.values() if any(lowered in name.lower() for name in (spec.name, *spec.file.aliases))
    ]
    if not found:
        hint = did_you_mean(query, known) or "; 'kvcalc models' lists all"
        raise BadInput(f"no model matches '{query}'{hint}")
    return sorted(found, key=lambda spec: spec.name)


def _row(spec: ModelSpec) -> dict[str, Any]:
    """Return what is listed of a model; None for bytes that the ideal engine cannot give."""
    from kvcalc import api
    from kvcalc.errors import UnsupportedByEngine

    per_token: int | None = None
    sample: int | None = None
    try:
        setup = api.prepare(spec)
        per_token, sample = api.per_token_bytes(setup, 1), setup.placement.total_bytes(SAMPLE_CONTEXT, 1)
    except UnsupportedByEngine:
        pass  # a user's spec may name a dtype whose blocks do not divide its rows
    return {
        "name": spec.name,
        "aliases": list(spec.file.aliases),
        "architecture": spec.architecture,
        "layers": len(spec.layers),
        "kinds": list(dict.fromkeys(group.kind.name for group in spec.groups())),
        "per_token_bytes": per_token,
        f"context_{SAMPLE_CONTEXT}_bytes": sample,
        "max_context": spec.max_context,
        "parameters": spec.parameters,
        "file": spec.origin,
    }


def _cells(row: dict[str, Any], units: str) -> dict[str, str]:
    """Return a model's line of the table."""
    from kvcalc.units import format_bytes

    def size(value: int | None) -> str:
        return "-" if value is None else format_bytes(value, units)

    trained, parameters = row["max_context"], row["parameters"]
    return {
        "model": row["name"],
        "layers": f"{row['layers']:,}",
        "per token": size(row["per_token_bytes"]),
        "at 4,096": size(row[f"context_{SAMPLE_CONTEXT}_bytes"]),
        "trained": "-" if trained is None else f"{trained:,}",
        "params": "-" if parameters is None else _count(parameters),
        "family": row["architecture"],
        "aliases": ", ".join(row["aliases"]),
    }


def _count(number: int) -> str:
    """Return a number of parameters as people say it: `124M`, `8.03B`."""
    from kvcalc.units import format_bytes

    figure, unit = format_bytes(number, "si").split()
    return figure + {"bytes": "", "kB": "k", "MB": "M", "GB": "B", "TB": "T"}[unit]
