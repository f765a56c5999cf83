"""The `kvcalc` command: a group that loads one module per command, and turns errors into one line and an exit code."""

from __future__ import annotations

import atexit
import gc
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

import click

from kvcalc import __version__
from kvcalc.errors import BadInput, KvcalcError, SpecError, did_you_mean
from kvcalc.output import printable

# Command -> its line in `kvcalc --help`, so that the page imports none of them. Each is the click command `command` of
# the module of its name in this package.
COMMANDS = {
    "size": "Bytes of one model's KV cache.",
    "explain": "The same number as a derivation, step by step.",
    "fit": "The largest batch and context on GPUs, and what would help.",
    "which": "The models that fit on a GPU, and in which formats.",
    "check": "Whether declared deployments and server commands fit: exit 3 if not.",
    "compare": "Caches side by side: models, attention, formats, remedies.",
    "models": "The models that are known.",
    "show": "One model's dimensions, and where they come from.",
    "gpus": "The GPUs that are known, and what engines see of their memory.",
    "engines": "The engines that are known, and their options.",
    "import": "A foreign file as a spec: config.json, GGUF, safetensors.",
    "plot": "Pictures of a cache, as a page to explore.",
    "validate": "The predicted bytes against allocated memory.",
}

# A module cannot be called `import`.
_MODULES = {"import": "importer"}

INTERRUPTED = 130
# Longer than any path or number that means something; it keeps messages and conversions short.
LONGEST_ARGUMENT = 4000


class LazyGroup(click.Group):
    """A group whose commands are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the command names in the order of the help page."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by its exact name, None if there is none."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"kvcalc.cli.{_MODULES.get(cmd_name, cmd_name)}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first argument names; BadInput suggests the nearest one."""
        unknown = bool(args) and not args[0].startswith("-") and args[0] not in COMMANDS
        if unknown and not ctx.resilient_parsing:  # while a shell completes, nothing is wrong yet
            raise BadInput(f"no command '{args[0]}'{did_you_mean(args[0], COMMANDS) or '; see kvcalc --help'}")
        return super().resolve_command(ctx, args)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example: kvcalc size gpt2-small --ctx 4096 --batch 8",
)
@click.version_option(__version__, prog_name="kvcalc")
def cli() -> None:
    """Exact memory of a transformer's KV cache: how much, why, and what fits."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 done, 1 file or engine, 2 usage, 3 does not fit, 130 interrupted."""
    _spare_a_short_life()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names from user files may hold characters that the terminal's encoding lacks.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        sys.exit(_run(arguments))
    except BrokenPipeError:
        _drop_output()
        sys.exit(0)  # the reader (head, less) has seen enough
    except OSError as error:
        if error.filename is None:  # standard output itself: a full disk
            _drop_output()
        where = f": {error.filename}" if error.filename else ""
        sys.exit(_fail(f"error: {error.strerror or error}{where}", 1))


def _run(arguments: Sequence[str] | None) -> int:
    """Return the exit code of a run, with every error that kvcalc or click raises on purpose told in one line."""
    output = sys.stdout
    try:
        _check_lengths(sys.argv[1:] if arguments is None else arguments)
        code: Any = cli.main(arguments, prog_name="kvcalc", standalone_mode=False)
        if sys.stdout is not None:  # it is None where the caller closed it
            sys.stdout.flush()
    except SystemExit as stop:
        if sys.stdout is output:
            raise
        sys.stdout = output  # click puts a silent one in its place where the pipe is broken, and exits with 1
        raise BrokenPipeError from stop
    except SpecError as error:
        return _fail(str(error), error.exit_code)
    except KvcalcError as error:
        return _fail(f"error: {' '.join(str(error).splitlines())}", error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        return _fail(error.format_message(), error.exit_code)
    except click.ClickException as error:
        return _fail(f"error: {' '.join(error.format_message().split())}", error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted", INTERRUPTED)
    return code if isinstance(code, int) else 0


def _check_lengths(arguments: Sequence[str]) -> None:
    for place, text in enumerate(arguments, 1):
        if len(text) > LONGEST_ARGUMENT:
            raise BadInput(
                f"argument {place} ({text[:12]}...) has {len(text):,} characters; at most {LONGEST_ARGUMENT:,} are read"
            )


def _spare_a_short_life() -> None:
    """Drop work that only pays in long-lived programs; it would be a third of the time of `kvcalc size`.

    Collecting garbage while modules load and once more at exit, and a search of every installed package for plugins
    of pydantic.
    """
    gc.set_threshold(100_000)
    atexit.register(gc.freeze)
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")


def _drop_output() -> None:
    """Send what is still buffered for standard output nowhere: Python would complain once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, code: int) -> int:
    click.echo("\n".join(printable(line) for line in message.split("\n")), err=True)
    return code
