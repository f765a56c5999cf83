"""`kvcalc which`: the models that fit."""

from __future__ import annotations

from typing import Any

import click

from kvcalc.cli import _memory
from kvcalc.cli import _options as shared


@click.command(cls=shared.Command, epilog="Example: kvcalc which --gpu rtx-4090 --ctx 32K --engine llama.cpp")
@_memory.memory_options
@shared.context_option
@shared.batch_option
@shared.deployment_options
@shared.output_options
def command(context: int, batch: int, **given: Any) -> None:
    """Models of the catalogue that fit on a GPU, largest first, with the cheapest formats that make each fit."""
    from kvcalc.answer import memory_of
    from kvcalc.memory import Card
    from kvcalc.output import render, terminal_width, to_json
    from kvcalc.which import which

    style, _ = shared.chosen_style(given)
    memory = _memory.memory_arguments(given)
    if memory["gpu"] is None:
        raise click.UsageError("which needs --gpu NAME ('kvcalc gpus' lists them)")
    memory.pop("gpus")  # how a model is split is said with --tp and --pp
    reserve = memory.pop("memory_reserve")
    card = memory_of(None, memory.pop("gpu"), reserve=reserve, **memory)
    assert isinstance(card, Card)
    arguments = shared.deployment_arguments(given)
    arguments.pop("download")
    _check(arguments, context, batch)
    result = which(arguments, context, batch, card)
    if style == "table":
        click.echo(result.report(terminal_width()))
    elif style == "json":
        click.echo(to_json(result.to_json()))
    else:
        rows = [{**each.to_json(), "changes": " ".join(each.changes)} for each in result.fitting]
        click.echo(render(rows, style, aligned_right=("parameters", "weights_bytes", "max_batch", "max_context")))
    if not result.fitting:
        click.get_current_context().exit(_memory.DOES_NOT_FIT)


def _check(arguments: dict[str, Any], context: int, batch: int) -> None:
    """Raise BadInput for names and values that no model could be asked with."""
    from kvcalc.engines import find_engine
    from kvcalc.formats import find_format, find_kv_formats
    from kvcalc.hardware.weights import weights_format_name
    from kvcalc.prepared import MAX_RANKS, require_range
    from kvcalc.units import MAX_TOKENS

    require_range("context", context, MAX_TOKENS)
    require_range("batch", batch, MAX_TOKENS)
    for name in ("tp", "pp", "dp", "dcp"):
        require_range(name, arguments[name], MAX_RANKS)
    engine = find_engine(arguments["engine"])
    engine.parse_options({key: str(value) for key, value in arguments["options"].items()})
    for name, find in (("dtype", find_format), ("kv_dtype", find_kv_formats), ("weights", weights_format_name)):
        if arguments[name]:
            find(arguments[name])
