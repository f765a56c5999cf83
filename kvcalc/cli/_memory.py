"""The options that say what memory there is, shared by the commands that ask whether something fits."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import click

from kvcalc.cli import _options as shared

DOES_NOT_FIT = 3


def _gpu_names() -> list[str]:
    from kvcalc.hardware.gpu import gpus

    return [gpu.name for gpu in gpus()]


GPU = shared.Choice("gpu", _gpu_names)
GPUS = shared.Choice("gpu", _gpu_names, separators=",")


def memory_options(function: shared.AnyFunction) -> shared.AnyFunction:
    """Add what a GPU's memory is and who takes of it; `memory_arguments` turns it into API arguments."""
    add = partial(click.option, cls=shared.Option, section="Memory")
    decorators: tuple[Callable[[Any], Any], ...] = (
        add("--gpu", type=GPU, help="GPU of every rank: 'kvcalc gpus' lists them."),
        add(
            "--utilization", metavar="SHARE", help="Share of a GPU that the engine takes, such as 0.9; vLLM's is 0.92."
        ),
        add("--memory-reserve", metavar="SIZE", help="What others use of every GPU."),
        add("--overhead", "overheads", multiple=True, metavar="[PART=]SIZE", help="All of the overhead, or one part."),
        add("--from-log", type=click.Path(), help="A server's log, whose figures replace the estimates."),
    )
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


def gpus_option(metavar: str, help: str) -> Callable[[Any], Any]:
    """Return the option --gpus, which `memory_arguments` reads where a command has it."""
    return click.option("--gpus", "gpu_count", cls=shared.Option, section="Memory", metavar=metavar, help=help)


def memory_arguments(given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `api.fit` from the parameters that `memory_options` added, taking them out."""
    whole, parts = _overheads(given.pop("overheads"))
    reserve = given.pop("memory_reserve")
    return {
        "gpu": given.pop("gpu"),
        "gpus": _counts(given.pop("gpu_count", None)),
        "utilization": given.pop("utilization"),
        "memory_reserve": 0 if reserve is None else _size("--memory-reserve", reserve),
        "overhead": whole,
        "overhead_parts": parts,
        "log": _log(given.pop("from_log")),
    }


def _overheads(texts: tuple[str, ...]) -> tuple[int | None, dict[str, int]]:
    """Return the overhead as a whole, and part by part."""
    from kvcalc.errors import BadInput

    whole, parts = None, dict[str, int]()
    for text in texts:
        name, equals, size = text.partition("=")
        if not equals:
            if whole is not None:
                raise BadInput("--overhead SIZE is given twice")
            whole = _size("--overhead", text)
        elif name in parts:
            raise BadInput(f"--overhead {name} is given twice")
        else:
            parts[name] = _size(f"--overhead {name}", size)
    return whole, parts


def _size(option: str, text: str) -> int:
    """Return the bytes of a size, for which nothing is a size too."""
    from kvcalc.errors import BadInput
    from kvcalc.units import parse_bytes

    if text.strip().startswith("-"):
        raise BadInput(f"{option} must not be negative, as {text[:40]} is")
    return 0 if re.fullmatch(r"\s*0\s*([A-Za-z]*)\s*", text) else parse_bytes(text, option)


def _counts(text: str | None) -> int | tuple[int, int] | None:
    """Return a number of GPUs, or a range of numbers."""
    from kvcalc.errors import BadInput

    if text is None:
        return None
    match = re.fullmatch(r"\s*([0-9]{1,9})\s*(?:\.\.\s*([0-9]{1,9})\s*)?", text)
    if not match:
        raise BadInput(f"--gpus '{text[:40]}': write a number of GPUs, or a range such as 1..8")
    first = int(match[1])
    return (first, int(match[2])) if match[2] else first


def _log(path: str | None) -> str | None:
    from pathlib import Path

    from kvcalc.errors import BadInput
    from kvcalc.yaml_tree import read_text

    if path is None:
        return None
    if not Path(path).is_file():
        raise BadInput(f"--from-log {path[:200]}: no such file")
    return read_text(Path(path), limit=2**26)


def given_degrees(ctx: click.Context, given: dict[str, Any]) -> dict[str, int | None]:
    """Return tp, pp and dp, None where they were left out; takes them out of `given`."""
    default = click.core.ParameterSource.DEFAULT
    return {
        name: None if ctx.get_parameter_source(name) is default and value == 1 else value
        for name in ("tp", "pp", "dp")
        for value in (given.pop(name),)
    }
