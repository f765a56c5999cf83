"""The `kvcalc` command: a group that loads one module per command, and turns errors into one line and an exit code."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any, NoReturn

import click

from kvcalc import __version__
from kvcalc.errors import BadInput, KvcalcError, SpecError, did_you_mean

# Command -> module in this package; each module calls its click command `command`.
COMMANDS = {
    "size": "size",
    "explain": "explain",
    "compare": "compare",
    "models": "models",
    "show": "show",
    "engines": "engines",
    "plot": "plot",
    "validate": "validate",
}

INTERRUPTED = 130


class LazyGroup(click.Group):
    """A group whose commands are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the command names in the order of the help page."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by its exact name, None if there is none."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"kvcalc.cli.{COMMANDS[cmd_name]}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first argument names; BadInput suggests the nearest one."""
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
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


def main() -> NoReturn:
    """Run the command line and exit: 0 done, 1 file or engine, 2 usage, 3 does not fit, 130 interrupted."""
    try:
        code: Any = cli.main(standalone_mode=False)
        sys.stdout.flush()
    except SpecError as error:
        code = _fail(str(error), error.exit_code)
    except KvcalcError as error:
        code = _fail(f"error: {error}", error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        code = error.exit_code
    except click.ClickException as error:
        code = _fail(f"error: {' '.join(error.format_message().split())}", error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        code = _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # The reader (head, less) has gone. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int) -> int:
    click.echo(message, err=True)
    return code
