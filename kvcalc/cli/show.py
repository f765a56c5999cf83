"""`kvcalc show`: one model's spec, every number with its source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from kvcalc.cli import _options as shared

if TYPE_CHECKING:
    from kvcalc.spec.model import LayerGroup, ModelSpec

# Top-level dimensions of a spec, by the names that the YAML uses.
DIMENSIONS = ("hidden_size", "heads", "kv_heads", "head_dim", "v_head_dim", "encoder_context", "vocab_size")

# Layers that repeat as a group are searched up to this length.
_LONGEST_GROUP = 16


@click.command(cls=shared.Command, epilog="Example: kvcalc show gemma-3-27b")
@shared.model_argument
@shared.download_option
@shared.output_options
def command(model: str, download: bool, **given: Any) -> None:
    """Show MODEL's spec: its dimensions, its layers in order, what each keeps, and where the numbers come from."""
    from kvcalc import api
    from kvcalc.output import render, to_json

    style, units = shared.chosen_style(given)
    spec = api.load(model, download=download)
    if style == "json":
        click.echo(to_json(_data(spec)))
    elif style == "table":
        click.echo(_report(spec, units))
    else:
        kinds = [(name, "; ".join(texts)) for name, texts in _kind_texts(spec)]
        rows = [{"field": name, "value": text} for name, text in _fields(spec, units) + kinds]
        click.echo(render(rows, style))


def _data(spec: ModelSpec) -> dict[str, Any]:
    """Return the spec as JSON data."""
    file = spec.file
    return {
        "schema": "kvcalc.show/1",
        "name": spec.name,
        "aliases": list(file.aliases),
        "architecture": spec.architecture,
        "layers": len(spec.layers),
        **{name: getattr(file, name) for name in DIMENSIONS},
        "dtype": file.dtype,
        "max_context": file.max_context,
        "parameters": file.parameters,
        "weights_bytes": spec.weights_bytes,
        "weights_note": spec.weights_note or None,
        "layout": [{"times": times, "layers": list(names)} for names, times in layout(_layer_names(spec))],
        "kinds": [_kind_data(group) for group in spec.groups()],
        "empty_layers": spec.empty_layers(),
        "source": {"url": file.source.url, "checked": str(file.source.checked), "note": file.source.note},
        "assumed": list(file.assumed),
        "file": spec.origin,
    }


def _kind_data(group: LayerGroup) -> dict[str, Any]:
    """Return one named kind of layer as JSON data."""
    kind = group.kind
    return {
        "name": group.name,
        "kind": kind.name,
        "layers": list(group.indices),
        "dimensions": kind.model_dump(exclude={"kind"}, exclude_none=True),
        "describe": kind.describe,
        "keeps": kind.keeps,
        "source": kind.rule_source,
    }


def _report(spec: ModelSpec, units: str) -> str:
    """Return the spec for people: fields, then the kinds of layer."""
    from kvcalc.output import fold

    fields = _fields(spec, units)
    width = max(len(name) for name, _ in fields) + 2
    lines = [fold(text, name.ljust(width), " " * width) for name, text in fields]
    lines.append("\nkinds of layer")
    for name, texts in _kind_texts(spec):
        lines += [f"  {name}", *(fold(text, "    ", "      ") for text in texts)]
    return "\n".join(lines)


def _fields(spec: ModelSpec, units: str) -> list[tuple[str, str]]:
    """Return the spec's fields in words, by the names that the YAML uses; what it leaves out is left out."""
    file = spec.file
    found: dict[str, Any] = {
        "name": spec.name,
        "aliases": ", ".join(file.aliases) or None,
        "architecture": spec.architecture,
        "layers": _layout_text(spec),
        **{name: getattr(file, name) for name in DIMENSIONS},
        "dtype": file.dtype,
        "max_context": "unknown or unbounded" if file.max_context is None else file.max_context,
        "parameters": _unknown(spec) if file.parameters is None else _parameters(spec, units),
        "weights": _weights(spec, units),
        "source": f"{file.source.url} (checked {file.source.checked})",
        "note": file.source.note,
        "assumed": ", ".join(file.assumed) and f"{', '.join(file.assumed)} (the source does not give it)",
        "file": spec.origin,
    }
    return [
        (name, f"{value:,}" if isinstance(value, int) else str(value))
        for name, value in found.items()
        if value is not None and value != ""
    ]


def _parameters(spec: ModelSpec, units: str) -> str:
    """Return the number of weights and what they take in the published dtype."""
    from kvcalc.formats import find_format
    from kvcalc.units import format_bytes

    count = spec.parameters or 0
    return f"{count:,} ({format_bytes(find_format(spec.dtype).bulk_bytes(count), units)} in {spec.dtype})"


def _unknown(spec: ModelSpec) -> str:
    return "unknown" if spec.weights_bytes is not None or not spec.weights_note else f"unknown ({spec.weights_note})"


def _weights(spec: ModelSpec, units: str) -> str | None:
    """Return the exact bytes of a read file's weights; None where there are only parameters to count."""
    from kvcalc.units import format_exact

    return None if spec.weights_bytes is None else f"{format_exact(spec.weights_bytes, units)}, {spec.weights_note}"


def _kind_texts(spec: ModelSpec) -> list[tuple[str, list[str]]]:
    """Return every named kind of layer: its name and number, what it keeps, its dimensions, its source."""
    from kvcalc.explain.words import keeps, plural

    found = []
    for group in spec.groups():
        dimensions = group.kind.model_dump(exclude={"kind"}, exclude_none=True)
        sizes = ", ".join(
            f"{name} {value:,}" if isinstance(value, int) else f"{name} {value}" for name, value in dimensions.items()
        )
        texts = [group.kind.describe, f"keeps {keeps(group.kind)}", sizes, f"source: {group.kind.rule_source}"]
        found.append((f"{group.name}: {group.kind.name}, {plural(len(group.indices), 'layer')}", texts))
    if spec.empty_layers():
        found.append((f"none: {plural(spec.empty_layers(), 'layer')}", ["keeps nothing (MLP only)"]))
    return found


def _layer_names(spec: ModelSpec) -> list[str]:
    return ["+".join(layer.names) or "none" for layer in spec.layers]


def _layout_text(spec: ModelSpec) -> str:
    """Return the layers in order, repeated groups as `62: 10 x (5 local, global), 2 local`."""
    parts, runs = [], layout(_layer_names(spec))
    for names, times in runs:
        if len(names) == 1:
            parts.append(_times(times, names[0]))
        else:
            inner = ", ".join(_times(count, name) for (name,), count in layout(names, longest=1))
            parts.append(f"{times} x ({inner})")
    text = ", ".join(parts)
    return text if len(runs) == 1 and len(runs[0][0]) == 1 else f"{len(spec.layers):,}: {text}"


def _times(count: int, name: str) -> str:
    return name if count == 1 else f"{count:,} {name}"


def layout(names: Sequence[str], longest: int = _LONGEST_GROUP) -> list[tuple[tuple[str, ...], int]]:
    """Return names as runs of groups: at each place the group whose repetitions cover most, the shortest of these."""
    runs: list[tuple[tuple[str, ...], int]] = []
    start = 0
    while start < len(names):
        best, covered = 1, 0
        for size in range(1, longest + 1):
            times = _repetitions(names, start, size)
            if (times > 1 or size == 1) and times * size > covered:
                best, covered = size, times * size
        runs.append((tuple(names[start : start + best]), covered // best))
        start += covered
    return runs


def _repetitions(names: Sequence[str], start: int, size: int) -> int:
    """Return how often the `size` names at `start` follow one another."""
    times = 1
    while names[start + times * size : start + (times + 1) * size] == names[start : start + size]:
        times += 1
    return times
