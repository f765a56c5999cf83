"""`kvcalc size`: the bytes of one cache."""

from __future__ import annotations

from typing import Any

import click

from kvcalc.cli import _options as shared


@click.command(cls=shared.Command, epilog="Example: kvcalc size gpt2-small --ctx 4096 --batch 8")
@shared.model_argument
@shared.context_option
@shared.batch_option
@shared.deployment_options
@shared.output_options
def command(model: str, context: int, batch: int, **given: Any) -> None:
    """Bytes of the KV cache of MODEL: per token, per sequence, per batch and per rank, beside the weights."""
    from kvcalc import api
    from kvcalc.output import render, to_json

    style, units = shared.chosen_style(given)
    result = api.size(model, context=context, batch=batch, **shared.deployment_arguments(given))
    shared.warn(result.warnings)
    if style == "table":
        click.echo(result.report(units))
        return
    data = result.to_json()
    if style == "json":
        click.echo(to_json(data))
        return
    columns = ("model", "context", "batch", "kv_dtype", "per_token_bytes", "per_sequence_bytes", "total_bytes")
    row = {"engine": result.engine, **{name: data[name] for name in (*columns, "weights_bytes")}}
    click.echo(render([row], style, aligned_right=[name for name in row if name.endswith("bytes")]))
