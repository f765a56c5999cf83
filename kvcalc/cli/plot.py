"""`kvcalc plot`: pictures of a cache as one self-contained page."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from kvcalc.cli import _options as shared
from kvcalc.errors import BadInput, did_you_mean

if TYPE_CHECKING:
    from kvcalc.api import Setup
    from kvcalc.plot.figures import Curve, Subject
    from kvcalc.plot.page import Page, Table

# Drawn up to here where the source of a model states no trained maximum.
UNKNOWN_CONTEXT = 131_072

_ENGINE_OPTION = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*=.*", re.DOTALL)
_OUTPUT_HELP = "The page to write, ending in .html; - is standard output. KEY=VALUE is an option of the engine."


class PlotGroup(click.Group):
    """The plots; a wrong name suggests the nearest."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the plot that the first argument names; BadInput lists the plots there are."""
        unknown = bool(args) and not args[0].startswith("-") and args[0] not in self.commands
        if unknown and not ctx.resilient_parsing:
            hint = did_you_mean(args[0], self.commands) or f"; there are {', '.join(self.commands)}"
            raise BadInput(f"no plot '{args[0]}'{hint}")
        return super().resolve_command(ctx, args)


class PlotCommand(shared.Command):
    """One plot: its `-o` also names the file to write."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        for param in self.params:
            if isinstance(param, shared.Option) and param.name == "pairs":
                param.metavar, param.section, param.help = "FILE", "Output", _OUTPUT_HELP


def _plot_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the models, the contexts drawn, the deployment, and --json."""
    decorators = (
        click.argument("models", type=shared.ModelName(), nargs=-1, required=True),
        click.option(
            "--from", "low", type=shared.TokenCount(), default=1, show_default=True, help="First context drawn."
        ),
        click.option(
            "--to", "high", type=shared.TokenCount(), help="Last context; each model's trained maximum if not given."
        ),
        shared.deployment_options,
        click.option(
            "--json", "as_json", is_flag=True, cls=shared.Option, section="Output", help="The values instead of a page."
        ),
    )
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


@click.group(cls=PlotGroup, epilog="Example: kvcalc plot context llama-3.1-8b gemma-3-27b -o cache.html")
def command() -> None:
    """Draw the cache of one or several models as an interactive page that needs no network."""


@command.command(
    cls=PlotCommand,
    short_help="Bytes of the cache against the context.",
    epilog="Example: kvcalc plot context llama-3.1-8b gemma-3-27b deepseek-v3 -o cache.html",
)
@_plot_options
@shared.batch_option
def context(models: Sequence[str], batch: int, **given: Any) -> None:
    """Bytes of the cache against the context; for one MODEL also the weights, and where the cache passes them."""
    from kvcalc.plot import figures

    target, as_json = _output(given)
    setups, subjects = _prepare(models, given, batch)
    curves = figures.context_curves(subjects, batch)
    if as_json:
        _write_json(target, setups, curves, "context", {"batch": batch})
        return
    page = _page(
        title=f"KV cache against context: {_names(subjects)}",
        lead=f"{_sequences(batch)}, all ranks together. {_deployment(setups[0])}",
        figure=figures.context_figure(curves),
        reading=(*figures.CONTEXT_READING, *_weights_reading(curves)),
        curves=curves,
        setups=setups,
        values="Bytes of the cache at some contexts",
        facts=_context_facts(setups, subjects),
    )
    _write_page(target, page)


@command.command(
    cls=PlotCommand,
    short_help="Largest batch against the context.",
    epilog="Example: kvcalc plot capacity llama-3.1-8b --kv-memory 24GiB -o capacity.html",
)
@_plot_options
@click.option(
    "--kv-memory", "memory", type=shared.ByteSize(), required=True, help="Memory for the cache on each rank: 24GiB."
)
def capacity(models: Sequence[str], memory: int, **given: Any) -> None:
    """Largest batch against the context, for a given memory on every rank; the fullest rank decides."""
    from kvcalc.plot import figures
    from kvcalc.units import format_exact

    target, as_json = _output(given)
    setups, subjects = _prepare(models, given, batch=1)
    curves = figures.capacity_curves(subjects, memory)
    shared.warn([f"{curve.subject.name} does not fit at all" for curve in curves if not curve.values[0]])
    if as_json:
        _write_json(target, setups, curves, "capacity", {"kv_memory_bytes": memory})
        return
    page = _page(
        title=f"Largest batch against context: {_names(subjects)}",
        lead=f"{format_exact(memory)} for the cache on each rank. {_deployment(setups[0])}",
        figure=figures.capacity_figure(curves),
        reading=figures.CAPACITY_READING,
        curves=curves,
        setups=setups,
        values="Largest batch at some contexts",
        facts=_capacity_facts(setups, subjects, memory),
    )
    _write_page(target, page)


def _output(given: dict[str, Any]) -> tuple[str, bool]:
    """Return the path to write (- for standard output) and whether JSON is asked for, taking both out.

    `-o` names the file, or sets an option of the engine where it reads KEY=VALUE.
    """
    from kvcalc.plot.page import STDOUT, SUFFIXES, check_target

    as_json = given.pop("as_json")
    targets = [text for text in given["pairs"] if not _ENGINE_OPTION.fullmatch(text)]
    given["pairs"] = tuple(text for text in given["pairs"] if _ENGINE_OPTION.fullmatch(text))
    if len(targets) > 1:
        raise BadInput(
            f"-o names {len(targets)} files: {' '.join(targets)}; name one, options of the engine are KEY=VALUE"
        )
    if not targets and not as_json:
        raise BadInput("no file to write: add for example -o out.html, or -o - for standard output")
    target = targets[0] if targets else STDOUT
    check_target(target, (".json",) if as_json else SUFFIXES)
    return target, as_json


def _prepare(models: Sequence[str], given: dict[str, Any], batch: int) -> tuple[list[Setup], list[Subject]]:
    """Return the models on their engine, and what to draw of each."""
    from kvcalc import api
    from kvcalc.plot.figures import MAX_CURVES

    low, high = given.pop("low"), given.pop("high")
    arguments = shared.deployment_arguments(given)
    if len(models) > MAX_CURVES:
        raise BadInput(f"{len(models)} models are too many for one picture; name at most {MAX_CURVES}")
    setups = [api.prepare(model, **arguments) for model in models]
    names = [setup.spec.name for setup in setups]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise BadInput(f"{' and '.join(twice)} is named twice")
    subjects = [_subject(setup, low, high, batch) for setup in setups]
    shared.warn([text for setup, subject in zip(setups, subjects, strict=True) for text in _warnings(setup, subject)])
    return setups, subjects


def _subject(setup: Setup, low: int, high: int | None, batch: int) -> Subject:
    """Return what to draw of a model: from `low` to `high`, or to the context that it was trained for."""
    from kvcalc import api
    from kvcalc.plot.figures import Subject

    trained = setup.spec.max_context
    end = high or trained or UNKNOWN_CONTEXT
    if low > end:
        last = f"--to {end:,}" if high else f"{end:,}, the last context drawn of {setup.spec.name} without --to"
        raise BadInput(f"--from {low:,} is beyond {last}")
    try:
        api.check(setup, low, batch)
        size = api.measure(setup, end, batch)
    except BadInput as error:
        raise BadInput(f"{error} (--from and --to say which contexts are drawn: {low:,} to {end:,})") from None
    replicas = setup.placement.dp
    weights = None if size.weights_bytes is None else size.weights_bytes * replicas
    return Subject(setup.spec.name, setup.placement, low, end, trained, weights, size.cache_passes_weights_at)


def _warnings(setup: Setup, subject: Subject) -> tuple[str, ...]:
    """Return what a user must know about the contexts drawn."""
    from kvcalc import api

    return api.warnings(setup.spec, subject.high)


def _notes(setups: Sequence[Setup], subjects: Sequence[Subject]) -> tuple[str, ...]:
    """Return where the numbers come from, warnings, assumptions, and where a range was chosen for the user."""
    sources = [(setup.spec.name, setup.spec.file.source) for setup in setups]
    notes = [f"Dimensions of {name}: {source.url} (checked {source.checked:%Y-%m-%d})" for name, source in sources]
    for setup, subject in zip(setups, subjects, strict=True):
        notes += [f"Warning: {text}" for text in _warnings(setup, subject)]
        notes += [f"Assumed: {text}" for text in setup.assumptions]
        if subject.trained is None:
            notes.append(f"{subject.name}: the source states no trained maximum; drawn to {subject.high:,}")
    return tuple(dict.fromkeys(notes))


def _page(
    *,
    title: str,
    lead: str,
    figure: dict[str, Any],
    reading: tuple[str, ...],
    curves: Sequence[Curve],
    setups: Sequence[Setup],
    values: str,
    facts: Table,
) -> Page:
    """Return the page of a figure with its tables."""
    from kvcalc import __version__
    from kvcalc.plot.figures import landmarks
    from kvcalc.plot.page import Page

    every = sorted({context for curve in curves for context in curve.contexts})
    return Page(
        title=title,
        lead=lead,
        figure=figure,
        reading=reading,
        tables=(_values(values, curves, landmarks(curves)), facts),
        without_scripts=_values("All values of the picture", curves, every),
        notes=_notes(setups, [curve.subject for curve in curves]),
        maker=f"Made with kvcalc {__version__}, which computes every value from the models' dimensions.",
    )


def _values(caption: str, curves: Sequence[Curve], contexts: Sequence[int]) -> Table:
    """Return the exact values at some contexts, one column a model."""
    from kvcalc.plot.page import Table

    columns = [dict(zip(curve.contexts, curve.texts, strict=True)) for curve in curves]
    rows = tuple((f"{context:,}", *(column.get(context, "") for column in columns)) for context in contexts)
    return Table(caption, ("Context", *(curve.subject.name for curve in curves)), rows)


def _context_facts(setups: Sequence[Setup], subjects: Sequence[Subject]) -> Table:
    """Return the models with their formats, weights and sources."""
    from kvcalc.plot.page import Table
    from kvcalc.units import format_exact

    rows = []
    for setup, subject in zip(setups, subjects, strict=True):
        weights = "unknown" if subject.weights_bytes is None else format_exact(subject.weights_bytes)
        passes = "never" if subject.passes_weights_at is None else f"context {subject.passes_weights_at:,}"
        passes = passes if subject.weights_bytes is not None else ""
        rows.append((*_identity(setup), f"{weights}, {setup.weights_format}", passes))
    columns = ("Model", "KV format", "Trained for", "Weights", "Cache passes them at")
    return Table("The models", columns, tuple(rows))


def _capacity_facts(setups: Sequence[Setup], subjects: Sequence[Subject], memory: int) -> Table:
    """Return the models with their formats, the longest sequence that fits, and sources."""
    from kvcalc.plot.figures import largest_context
    from kvcalc.plot.page import Table

    rows = []
    for setup, subject in zip(setups, subjects, strict=True):
        longest = largest_context(subject.placement, memory)
        rows.append((*_identity(setup), "any" if longest is None else f"{longest:,} tokens"))
    return Table("The models", ("Model", "KV format", "Trained for", "One sequence fits up to"), tuple(rows))


def _identity(setup: Setup) -> tuple[str, str, str]:
    trained = setup.spec.max_context
    return setup.spec.name, setup.kv_dtype, "unknown" if trained is None else f"{trained:,}"


def _weights_reading(curves: Sequence[Curve]) -> tuple[str, ...]:
    """Say where the weights are, in a picture of one model."""
    from kvcalc.plot.figures import weights_in_view
    from kvcalc.units import format_bytes

    subject = curves[0].subject
    if len(curves) > 1 or subject.weights_bytes is None:
        return ()
    shown = (
        "The dashed line is the weights" if weights_in_view(curves[0]) else "Above the linear picture are the weights"
    )
    passes = subject.passes_weights_at
    where = "the cache never passes them" if passes is None else f"the cache passes them at context {passes:,}"
    return (f"{shown}, {format_bytes(subject.weights_bytes)}; {where}.",)


def _names(subjects: Sequence[Subject]) -> str:
    names = [subject.name for subject in subjects]
    return ", ".join(names) if len(names) <= 4 else f"{len(names)} models"


def _sequences(batch: int) -> str:
    return "One sequence" if batch == 1 else f"{batch:,} sequences"


def _deployment(setup: Setup) -> str:
    """Say whose rules count and how the model is split."""
    deployment = setup.deployment
    degrees = [
        f"{name} {getattr(deployment, name)}" for name in ("tp", "pp", "dp", "dcp") if getattr(deployment, name) > 1
    ]
    options = [f"{name} {value}" for name, value in deployment.options.model_dump(exclude_defaults=True).items()]
    engine = f"{setup.engine.name} {setup.engine.version}".strip()
    return f"Engine {engine} ({setup.engine.summary}){''.join(f', {text}' for text in degrees + options)}."


def _write_json(
    target: str, setups: Sequence[Setup], curves: Sequence[Curve], kind: str, asked: dict[str, int]
) -> None:
    """Write the values as JSON, with what they were computed for."""
    from kvcalc.output import to_json

    series = [{**curve.to_json(), "kv_dtype": setup.kv_dtype} for curve, setup in zip(curves, setups, strict=True)]
    pairs = zip(curves, setups, strict=True)
    data = {
        "schema": "kvcalc.plot/1",
        "plot": kind,
        "engine": {"name": setups[0].engine.name, "version": setups[0].engine.version},
        **asked,
        "series": series,
        "assumptions": list(dict.fromkeys(text for setup in setups for text in setup.assumptions)),
        "warnings": [text for curve, setup in pairs for text in _warnings(setup, curve.subject)],
    }
    _write(target, to_json(data) + "\n")


def _write_page(target: str, page: Page) -> None:
    from kvcalc.plot.page import render

    _write(target, render(page))


def _write(target: str, text: str) -> None:
    """Write to standard output, or to the file, and say what was written."""
    from kvcalc.plot.page import STDOUT, write
    from kvcalc.units import format_exact

    if target == STDOUT:
        click.echo(text, nl=False)
        return
    click.echo(f"wrote {target}, {format_exact(write(target, text))}", err=True)
