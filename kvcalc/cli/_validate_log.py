"""`kvcalc validate --log FILE`: the prediction against what a server's log printed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from kvcalc.cli import _options as shared

if TYPE_CHECKING:
    from kvcalc.log_check import Given, LogCheck

# Nothing of what a log printed depends on them.
_WITHOUT_EFFECT = ("device", "weights")


def validate(log: str, model: str | None, context: int | None, batch: int, arguments: dict[str, Any]) -> LogCheck:
    """Return the comparison with a log; what stands on the command line goes before what the log says."""
    from kvcalc.log_check import check_file

    return check_file(log, _given(model, context, batch, arguments))


def show(result: LogCheck, style: str) -> None:
    """Print a comparison; where nothing could be compared, end with 2 and a line that says what is missing."""
    from kvcalc.output import printable, render, to_json

    shared.warn(result.warnings)
    if style == "table":
        click.echo(result.report())
    elif style == "json":
        click.echo(to_json(result.to_json()))
    else:
        click.echo(render(result.rows(), style, aligned_right=("line", "printed", "predicted")))
    if result.equal is None:
        click.echo(f"nothing could be compared: {printable(result.missing)}", err=True)
        click.get_current_context().exit(click.UsageError.exit_code)


def _given(model: str | None, context: int | None, batch: int, arguments: dict[str, Any]) -> Given:
    """Return what the user wrote, without the defaults of options; UsageError for options that mean nothing here."""
    from kvcalc.log_check import Given

    typed = {name for name in arguments if _is_typed(name)}
    for name in _WITHOUT_EFFECT:
        if _is_typed(name):
            raise click.UsageError(f"--{name} has no effect on a log's figures; drop it")
    options = arguments["options"]
    wanted = typed - {"engine", "options", "download", "weights"}
    return Given(
        model=model,
        engine=arguments["engine"] if "engine" in typed else None,
        context=context,
        batch=batch if _is_typed("batch") else None,
        arguments={name: arguments[name] for name in wanted},
        options=options,
        download=arguments["download"],
    )


def _is_typed(name: str) -> bool:
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE
