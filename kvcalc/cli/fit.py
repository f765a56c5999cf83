"""`kvcalc fit`: what a memory budget holds."""

from __future__ import annotations

from typing import Any

import click

from kvcalc.cli import _options as shared
from kvcalc.errors import BadInput

DOES_NOT_FIT = 3


@click.command(cls=shared.Command, epilog="Example: kvcalc fit llama-3.1-8b --kv-memory 16GiB --ctx 8K --engine vllm")
@shared.model_argument
@click.option(
    "--kv-memory",
    type=shared.ByteSize(),
    help="Memory for the cache on every rank: 16GiB, 16GB or bytes; the weights are not taken from it.",
)
@click.option(
    "--ctx",
    "context",
    type=shared.TokenCount(),
    help="Tokens of one sequence: 4096, 4k (4,000), 4K (4,096), 1Mi (2^20); the trained maximum unless given.",
)
@shared.batch_option
@shared.deployment_options
@shared.output_options
def command(model: str, kv_memory: int | None, context: int | None, batch: int, **given: Any) -> None:
    """Largest batch and context of MODEL's KV cache in a budget, and what binds: exit 0 if it fits, 3 if not."""
    from kvcalc import api
    from kvcalc.output import render, to_json

    if kv_memory is None:
        raise BadInput("fit needs --kv-memory SIZE, the memory for the cache on every rank; it cannot take a --gpu yet")
    style, units = shared.chosen_style(given)
    result = api.fit(model, kv_memory=kv_memory, context=context, batch=batch, **shared.deployment_arguments(given))
    shared.warn(result.warnings)
    data = result.to_json()
    if style == "table":
        click.echo(result.report(units))
    elif style == "json":
        click.echo(to_json(data))
    else:
        columns = ("model", "context", "batch", "kv_dtype", "fits", "max_batch", "max_context", "budget_bytes")
        row = {"engine": result.engine, **{name: data[name] for name in columns}}
        numbers = ("context", "batch", "max_batch", "max_context", "budget_bytes")
        click.echo(render([row], style, aligned_right=numbers))
    if not result.fits:
        click.get_current_context().exit(DOES_NOT_FIT)
