"""`kvcalc compare`: caches side by side."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from kvcalc.cli import _memory
from kvcalc.cli import _options as shared

if TYPE_CHECKING:
    from kvcalc.compare import Case, Comparison

ATTENTION = ("mha", "gqa:", "mqa")

_what = partial(click.option, cls=shared.Option, section="One of these, with one MODEL")


@click.command(cls=shared.Command, epilog="Example: kvcalc compare gpt2-small --attention mha,gqa:4,mqa --ctx 4096")
@shared.models_argument
@_what(
    "--attention",
    metavar="A,B,..",
    type=shared.Choice("attention", lambda: ATTENTION, separators=","),
    help="Other numbers of K and V heads: mha, gqa:N, mqa.",
)
@_what("--kv-dtypes", metavar="F,F/F,..", type=shared.KV_FORMATS, help="Other formats: fp16,fp8,q8_0/q4_0.")
@_what("--engines", metavar="E,E,..", type=shared.ENGINES, help="Several engines' rules.")
@_what("--remedies", is_flag=True, help="MQA, GQA, formats, eviction, sharing, paging; the Ideal options say how much.")
@_what("--gpu", metavar="G,G,..", type=_memory.GPUS, help="Several GPUs: the largest batch and context of each.")
@click.option("--price", "prices", multiple=True, metavar="GPU=PRICE", help="With --gpu: price of one for an hour.")
@shared.context_option
@shared.batch_option
@shared.deployment_options
@shared.output_options
@click.pass_context
def command(ctx: click.Context, /, models: tuple[str, ...], context: int, batch: int, **given: Any) -> None:
    """Put caches side by side, with ratios: several MODELS, or one MODEL in several ways."""
    from kvcalc.compare import Case
    from kvcalc.output import render, terminal_width, to_json

    style, units = shared.chosen_style(given)
    chosen = {name: given.pop(name) for name in ("attention", "kv_dtypes", "engines", "remedies", "gpu")}
    prices = given.pop("prices")
    _check_one(ctx, models, chosen)
    if chosen["gpu"]:
        asked = {"context": context, "batch": batch, "names": _listed("--gpu", chosen["gpu"]), "prices": prices}
        _compare_gpus(models[0], asked, given, style, units)
        return
    if prices:
        raise click.UsageError("--price needs --gpu: it is the price of a GPU")
    case = Case(context, batch, shared.deployment_arguments(given))
    result = _compare(models, chosen, case)
    shared.warn(result.warnings)
    if style == "table":
        click.echo(result.report(units, terminal_width()))
    elif style == "json":
        click.echo(to_json(result.to_json()))
    else:
        rows = [{**row, "engine": _engine_text(row["engine"])} for row in result.json_rows()]
        for row in rows:
            del row["exact_ratio"]  # a spreadsheet would read 9/8 as a date
        click.echo(render(rows, style, aligned_right=[name for name in rows[0] if name.endswith("bytes")]))


def _compare_gpus(model: str, asked: dict[str, Any], given: dict[str, Any], style: str, units: str) -> None:
    """Print one model on several GPUs; `asked` are the context, the batch, the GPUs' names and their prices."""
    from kvcalc.cards import compare_gpus, parse_prices
    from kvcalc.output import render, terminal_width, to_json
    from kvcalc.prepared import load, warnings

    arguments = shared.deployment_arguments(given)
    spec = load(model, download=arguments.pop("download"))
    result = compare_gpus(spec, arguments, **{**asked, "prices": parse_prices(asked["prices"])})
    shared.warn(warnings(spec, asked["context"]))
    if style == "table":
        click.echo(result.report(units, terminal_width()))
    elif style == "json":
        click.echo(to_json(result.to_json()))
    else:
        rows = [row.to_json() for row in result.rows]
        click.echo(render(rows, style, aligned_right=[name for name in rows[0] if name not in ("gpu", "note")]))


def _check_one(ctx: click.Context, models: tuple[str, ...], chosen: dict[str, Any]) -> None:
    """Raise UsageError unless exactly one comparison is asked for and no option contradicts it."""
    flags = [f"--{name.replace('_', '-')}" for name, value in chosen.items() if value]
    if not models:
        raise click.UsageError("name a model, or several to compare")
    if len(models) == 1 and not flags:
        raise click.UsageError("name several models, or one of --attention, --kv-dtypes, --engines, --remedies, --gpu")
    asked = ([f"{len(models)} models"] if len(models) > 1 else []) + flags
    if len(asked) > 1:
        raise click.UsageError(f"one comparison at a time: {' and '.join(asked)} are {len(asked)}")
    for many, one in (("kv_dtypes", "kv_dtype"), ("engines", "engine")):
        if chosen[many] and ctx.get_parameter_source(one) is not click.core.ParameterSource.DEFAULT:
            names = [name.replace("_", "-") for name in (many, one)]
            raise click.UsageError(f"--{names[0]} contradicts --{names[1]}; give one of them")


def _compare(models: tuple[str, ...], chosen: dict[str, Any], case: Case) -> Comparison:
    from kvcalc import compare

    if chosen["attention"]:
        return compare.compare_attention(models[0], _listed("--attention", chosen["attention"]), case)
    if chosen["kv_dtypes"]:
        return compare.compare_kv_dtypes(models[0], _listed("--kv-dtypes", chosen["kv_dtypes"]), case)
    if chosen["engines"]:
        return compare.compare_engines(models[0], _listed("--engines", chosen["engines"]), case)
    if chosen["remedies"]:
        return compare.compare_remedies(models[0], case)
    return compare.compare_models(models, case)


def _listed(option: str, text: str) -> list[str]:
    """Return the items of a comma-separated list; UsageError for an empty one."""
    items = [item.strip() for item in text.split(",")]
    if not all(items):
        raise click.UsageError(f"{option} '{text}': an item is empty; separate items with single commas")
    return items


def _engine_text(engine: dict[str, str] | None) -> str:
    return "" if engine is None else f"{engine['name']} {engine['version']}".strip()
