"""`kvcalc fit`: what a memory holds, and what one change would make it fit."""

from __future__ import annotations

from typing import Any

import click

from kvcalc.cli import _memory
from kvcalc.cli import _options as shared

COLUMNS = (
    "model",
    "context",
    "batch",
    "kv_dtype",
    "tp",
    "pp",
    "dp",
    "fits",
    "max_batch",
    "max_context",
    "budget_bytes",
)


@click.command(cls=shared.Command, epilog="Example: kvcalc fit llama-3.1-8b --gpu h100-80gb --ctx 8K --engine vllm")
@shared.model_argument
@_memory.memory_options
@_memory.gpus_option("N|A..B", "How many GPUs; of a range, the smallest layout that fits.")
@click.option(
    "--kv-memory",
    cls=shared.Option,
    section="Memory",
    type=shared.ByteSize(),
    help="Memory for the cache on every rank, instead of a GPU: 16GiB; the weights are not taken from it.",
)
@click.option(
    "--ctx",
    "context",
    type=shared.TokenCount(),
    help="Tokens of one sequence: 4096, 4k (4,000), 4K (4,096), 1Mi (2^20); the trained maximum unless given.",
)
@shared.batch_option
@click.option("--lengths", metavar="LENGTHS", help="Real lengths: p50=800,p95=6000, or a CSV file of token counts.")
@click.option("--draft", type=shared.ModelName(), metavar="MODEL", help="A draft model that is served beside it.")
@click.option("--emit", is_flag=True, help="Print the server's command line alone: vllm serve, llama-server.")
@shared.deployment_options
@shared.output_options
@click.pass_context
def command(ctx: click.Context, /, model: str, kv_memory: int | None, emit: bool, **given: Any) -> None:
    """Largest batch and context of MODEL on GPUs or in a budget, what binds, what would help: exit 3 if it does not."""
    from kvcalc import api

    style, units = shared.chosen_style(given)
    degrees = _memory.given_degrees(ctx, given)
    memory = _memory.memory_arguments(given)
    arguments = shared.deployment_arguments({**given, "tp": 1, "pp": 1, "dp": 1})
    for name in ("context", "batch", "lengths", "draft"):
        arguments[name] = given[name]
    result = api.fit(model, kv_memory=kv_memory, emit=emit, **{**arguments, **memory, **degrees})
    shared.warn(result.warnings)
    _print(result, "command" if emit and style == "table" else style, units)
    if not result.fits:
        ctx.exit(_memory.DOES_NOT_FIT)


def _print(result: Any, style: str, units: str) -> None:
    """Print the answer in a form; `command` is the server's command line alone."""
    from kvcalc.output import render, to_json

    if style == "command":
        click.echo(result.command or f"nothing fits: {result.report(units)}", err=not result.command)
    elif style == "table":
        click.echo(result.report(units))
    elif style == "json":
        click.echo(to_json(result.to_json()))
    else:
        data = result.to_json()
        row = {"engine": result.engine, **{name: data[name] for name in COLUMNS}}
        numbers = ("context", "batch", "tp", "pp", "dp", "max_batch", "max_context", "budget_bytes")
        click.echo(render([row], style, aligned_right=numbers))
