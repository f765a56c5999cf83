"""`kvcalc check`: a gate for declared deployments and real command lines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvcalc.cli import _memory
from kvcalc.cli import _options as shared
from kvcalc.output import FORMATS

if TYPE_CHECKING:
    from kvcalc.deployment_file import Hardware, Part

_AFTER_DASHES = "kvcalc.check.command"
_PROGRAMS = ("vllm", "llama-server", "llama-cli", "python", "python3")


class _Check(shared.Command):
    """A command that remembers which words stand after `--`: they are a command line, not files."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words, noting those after `--`."""
        ctx.meta[_AFTER_DASHES] = args[args.index("--") + 1 :] if "--" in args else []
        return super().parse_args(ctx, args)


@click.command(cls=_Check, epilog="Example: kvcalc check --gpu l4 -- vllm serve Qwen/Qwen3-8B --max-model-len 8192")
@click.argument("what", nargs=-1, required=True, metavar="FILE... | -- COMMAND...")
@_memory.memory_options
@_memory.gpus_option("N", "How many GPUs the command has.")
@click.option("--ctx", "context", type=shared.TokenCount(), help="Tokens of one sequence, instead of the command's.")
@click.option("--batch", type=shared.TokenCount(), help="Sequences, instead of the command's.")
@click.option(
    "--format",
    "style",
    type=click.Choice((*FORMATS, "github")),
    help="Form of the answer; table unless given, github: annotations of a workflow.",
)
@click.option("--json", "as_json", is_flag=True, help="Short for --format json.")
def command(what: tuple[str, ...], context: int | None, batch: int | None, **given: Any) -> None:
    """Say whether deployments fit: those of a YAML FILE, of a script, Dockerfile or compose file, or a COMMAND.

    Exit code 3 if one does not, with one line for each that does not. A server's command needs --gpu.
    """
    from kvcalc.deployment_file import Hardware
    from kvcalc.hardware.gpu import find_gpu

    style, _ = shared.chosen_style({**given, "units": "iec"})
    memory = _memory.memory_arguments(given)
    if memory["gpu"] is not None:
        find_gpu(memory["gpu"])  # an unknown name is an error, whatever is judged
    hardware = Hardware(memory.pop("gpu"), _one(memory.pop("gpus")), context, batch, memory)
    parts = _judged(what, hardware)
    shared.warn([text for part in parts for text in part.warnings])
    _print(parts, style)
    if not all(part.fits for part in parts):
        click.get_current_context().exit(_memory.DOES_NOT_FIT)


def _one(gpus: int | tuple[int, int] | None) -> int | None:
    if isinstance(gpus, tuple):
        raise click.UsageError("--gpus takes one number here: a deployment says how many it has")
    return gpus


def _judged(what: tuple[str, ...], hardware: Hardware) -> list[Part]:
    """Return the parts of the files named, and of the one command that was written out."""
    from kvcalc.deployment_file import check_command, check_file
    from kvcalc.read.command_line import parse_command

    words = tuple(click.get_current_context().meta[_AFTER_DASHES])
    if not words and Path(what[0]).name in _PROGRAMS and not Path(what[0]).is_file():
        words = what
    files = what[: len(what) - len(words)]
    parts = [part for name in files for part in check_file(Path(name), hardware)]
    return [*parts, *(check_command(parse_command(words), hardware) if words else ())]


def _print(parts: list[Part], style: str) -> None:
    from kvcalc.output import printable, render, to_json

    if style == "github":
        lines = [line for part in parts if (line := part.annotation())]
        click.echo("\n".join(printable(line) for line in lines) or "all deployments fit")
    elif style == "json":
        fits = all(part.fits for part in parts)
        click.echo(to_json({"schema": "kvcalc.check/1", "fits": fits, "parts": [part.to_json() for part in parts]}))
    elif style == "table":
        for part in parts:
            place = f"{part.place}: " if part.place else ""
            click.echo(printable(f"{place}{part.name}: {part.message}"))
    else:
        rows = [{**part.to_json(), "warnings": " ".join(part.warnings)} for part in parts]
        click.echo(render(rows, style, aligned_right=("line", "column", "context")))
