"""`kvcalc gpus`: the accelerators that are known, and what engines see of their memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from kvcalc.cli import _options as shared

if TYPE_CHECKING:
    from kvcalc.hardware.gpu import Gpu


def _names() -> Sequence[str]:
    from kvcalc.hardware.gpu import gpu_names

    return gpu_names()


@click.command(cls=shared.Command, epilog="Example: kvcalc gpus h100")
@click.argument("query", required=False, type=shared.Choice("query", _names))
@shared.output_options
def command(query: str | None, **given: Any) -> None:
    """List the GPUs whose name contains QUERY, or all: the memory that drivers report and that engines see."""
    from kvcalc.output import fold, render, terminal_width, to_json

    style, units = shared.chosen_style(given)
    found = _matching(query or "")
    if style == "json":
        click.echo(to_json({"schema": "kvcalc.gpus/1", "query": query, "gpus": [_row(gpu) for gpu in found]}))
    elif style == "table":
        right = ["driver reports", "engines see", "bandwidth", "fp16"]
        cells = [_cells(gpu, units) for gpu in found]
        click.echo(render(cells, style, aligned_right=right, optional=["sold as", "aliases"], width=terminal_width()))
        remarks = _remarks(found)
        if remarks:
            click.echo("\n" + "\n".join(fold(text, hanging="  ") for text in remarks))
    else:
        flat = [{key: _flat(value) for key, value in _row(gpu).items()} for gpu in found]
        right = ["driver_bytes", "runtime_bytes", "bandwidth_bytes_per_second"]
        click.echo(render(flat, style, aligned_right=right))


def _matching(query: str) -> list[Gpu]:
    """Return the accelerators whose name, alias or label contains the query, in the order of the table."""
    from kvcalc.errors import BadInput, did_you_mean
    from kvcalc.hardware.gpu import gpus

    lowered = query.strip().lower()
    found = [gpu for gpu in gpus() if any(lowered in text.lower() for text in (gpu.name, *gpu.aliases, gpu.label))]
    if not found:
        names = [name for gpu in gpus() for name in (gpu.name, *gpu.aliases)]
        hint = did_you_mean(query, names) or "; 'kvcalc gpus' lists all"
        raise BadInput(f"no GPU matches '{query}'{hint}")
    return found


def _row(gpu: Gpu) -> dict[str, Any]:
    """Return an accelerator as data."""
    return {
        "name": gpu.name,
        "aliases": list(gpu.aliases),
        "label": gpu.label,
        "vendor": gpu.vendor,
        "sold_as": gpu.sold_as,
        "driver_bytes": gpu.driver_bytes,
        "driver_tool": gpu.driver_tool or None,
        "runtime_bytes": gpu.runtime_bytes,
        "memory_basis": gpu.memory_basis,
        "runtime_rule": gpu.runtime_rule or None,
        "unified": gpu.unified,
        "bandwidth_bytes_per_second": gpu.bandwidth,
        "flops": dict(gpu.flops),
        "assumed": list(gpu.assumed),
        "also_seen": list(gpu.also_seen),
        "sources": dict(gpu.sources),
        "checked": gpu.checked,
        "notes": gpu.notes,
    }


def _cells(gpu: Gpu, units: str) -> dict[str, str]:
    """Return an accelerator's line of the table."""
    from kvcalc.units import format_bytes

    def size(value: int | None) -> str:
        return "-" if value is None else format_bytes(value, units)

    fp16 = gpu.flops.get("fp16")
    return {
        "gpu": gpu.name,
        "driver reports": size(gpu.driver_bytes) + _mark(gpu, "driver"),
        "engines see": size(gpu.runtime_bytes),
        "basis": gpu.memory_basis,
        "bandwidth": ("-" if gpu.bandwidth is None else f"{format_bytes(gpu.bandwidth, 'si')}/s")
        + _mark(gpu, "bandwidth"),
        "fp16": ("-" if fp16 is None else _tera(fp16)) + _mark(gpu, "flops"),
        "sold as": gpu.sold_as,
        "aliases": ", ".join(gpu.aliases),
    }


def _mark(gpu: Gpu, figure: str) -> str:
    """Return the mark of a figure that rests on memory alone, or the room it takes."""
    return "*" if figure in gpu.assumed else " "


def _tera(flops: int) -> str:
    """Return dense FLOP/s in units of 10^12, with three significant digits."""
    return f"{flops / 10**12:.3g} T" if flops < 10**15 else f"{flops // 10**12:,} T"


def _remarks(found: Sequence[Gpu]) -> list[str]:
    """Return what a reader must know beside the figures: all of one accelerator, of several what the star means."""
    if len(found) > 1:
        return ["* from memory: no source was read"] if any(gpu.assumed for gpu in found) else []
    (gpu,) = found
    total = {
        "measured": f"engines see what was printed: {gpu.runtime_rule}",
        "derived": f"engines see, derived: {gpu.runtime_rule}",
        "vendor": f"no driver figure is known; sold as {gpu.sold_as}",
    }[gpu.memory_basis]
    texts = [f"{gpu.label}; checked {gpu.checked}", total]
    if gpu.assumed:
        texts.append(f"* from memory: no source was read for {', '.join(gpu.assumed)}")
    if gpu.also_seen:
        texts.append(f"also seen: {'; '.join(gpu.also_seen)}")
    texts += [f"{figure}: {source}" for figure, source in gpu.sources.items()]
    return [*texts, f"note: {gpu.notes}"] if gpu.notes else texts


def _flat(value: Any) -> Any:
    """Return a value as a cell of CSV or Markdown."""
    if isinstance(value, list):
        return " ".join(value)
    if isinstance(value, dict):
        return " ".join(f"{key}={item}" for key, item in value.items())
    return str(value).lower() if isinstance(value, bool) else value
