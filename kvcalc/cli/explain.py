"""`kvcalc explain`: the bytes of one cache as a derivation."""

from __future__ import annotations

from typing import Any

import click

from kvcalc.cli import _options as shared


@click.command(cls=shared.Command, epilog="Example: kvcalc explain gpt2-small --ctx 4096 --batch 8")
@shared.model_argument
@shared.context_option
@shared.batch_option
@shared.deployment_options
@shared.output_options
def command(model: str, context: int, batch: int, **given: Any) -> None:
    """Derive the size of MODEL's cache step by step, each with its numbers, exact bytes and source."""
    from kvcalc import api
    from kvcalc.explain import explain
    from kvcalc.output import render, to_json

    style, units = shared.chosen_style(given)
    result = explain(api.prepare(model, **shared.deployment_arguments(given)), context, batch)
    shared.warn(result.size.warnings)
    if style == "table":
        click.echo(result.report(units))
    elif style == "json":
        click.echo(to_json(result.to_json()))
    else:
        click.echo(render([vars(step) for step in result.steps], style, aligned_right=["bytes"]))
