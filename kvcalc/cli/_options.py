"""Option groups that several commands share, so that they read and behave the same everywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from kvcalc.output import FORMATS

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])

UNITS = ("iec", "si", "bytes")


class TokenCount(click.ParamType):
    """A count of tokens or sequences: 4096, 4K, 128k, 1Mi."""

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the count; BadInput names the option."""
        from kvcalc.units import parse_tokens

        return value if isinstance(value, int) else parse_tokens(value, _option_name(param))


class ByteSize(click.ParamType):
    """A size in bytes: 24GiB, 24GB, 24564MiB or plain bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes; BadInput names the option."""
        from kvcalc.units import parse_bytes

        return value if isinstance(value, int) else parse_bytes(value, _option_name(param))


class ModelName(click.ParamType):
    """A model: a catalogue name or alias, or a YAML spec's path."""

    name = "model"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the names and aliases that start with what was typed, then files."""
        from kvcalc.spec.load import names

        found = sorted(name for name in names() if name.lower().startswith(incomplete.lower()))
        return [CompletionItem(name) for name in found] or [CompletionItem(incomplete, type="file")]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text as it is; it is looked up when the command runs."""
        return str(value)


class Choice(click.ParamType):
    """One of the names that a function lists when they are needed."""

    def __init__(self, name: str, list_names: Callable[[], Sequence[str]]) -> None:
        self.name = name
        self.list_names = list_names

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the names that start with what was typed."""
        return [CompletionItem(name) for name in self.list_names() if name.startswith(incomplete)]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text as it is; it is looked up when the command runs."""
        return str(value)


def _option_name(param: click.Parameter | None) -> str:
    return param.opts[0] if param is not None and param.opts else "value"


def _engines() -> Sequence[str]:
    from kvcalc.engines import ENGINES

    return list(ENGINES)


def _formats() -> Sequence[str]:
    from kvcalc.formats import FORMATS as ELEMENT_FORMATS

    return list(ELEMENT_FORMATS)


model_argument = click.argument("model", type=ModelName())
models_argument = click.argument("models", type=ModelName(), nargs=-1)
context_option = click.option(
    "--ctx", "context", type=TokenCount(), required=True, help="Tokens of one sequence: 4096, 4K, 128k, 1Mi."
)
batch_option = click.option(
    "--batch", type=TokenCount(), default=1, show_default=True, help="Sequences, over all data-parallel replicas."
)


def output_options(function: AnyFunction) -> AnyFunction:
    """Add --format, --json and --units."""
    decorators = (
        click.option("--format", "style", type=click.Choice(FORMATS), default="table", help="Form of the answer."),
        click.option("--json", "as_json", is_flag=True, help="Short for --format json."),
        click.option("--units", type=click.Choice(UNITS), default="iec", help="Units of sizes for people: KiB, kB, bytes."),
    )
    return _apply(decorators, function)


def deployment_options(function: AnyFunction) -> AnyFunction:
    """Add what decides where and how the cache is stored; `deployment_arguments` turns it into API arguments."""
    formats, degrees = Choice("format", _formats), {"type": int, "default": 1, "metavar": "N"}
    decorators = (
        click.option("--engine", type=Choice("engine", _engines), default="ideal", help="Whose rules: see 'kvcalc engines'."),
        click.option("--dtype", type=formats, help="Element format of the model instead of the published one."),
        click.option("--kv-dtype", metavar="F[/F]", type=formats, help="Format of the cache, or of K and V: q8_0/q4_0."),
        click.option("--weights", type=formats, help="Format of the weights."),
        click.option("--tp", **degrees, help="Tensor parallelism: ranks that split the heads."),
        click.option("--pp", **degrees, help="Pipeline parallelism: stages that hold their layers."),
        click.option("--dp", **degrees, help="Data parallelism: replicas that share the batch."),
        click.option("--dcp", **degrees, help="Decode context parallelism: ranks that split a sequence's tokens."),
        click.option("--encoder-ctx", "encoder_context", type=TokenCount(), help="Encoder positions (cross-attention)."),
        click.option("--reserve-ctx", type=TokenCount(), help="Ideal engine: reserve every sequence for N tokens."),
        click.option("--evict", metavar="RULE", help="Ideal engine: window:W[,sinks:S] or budget:N."),
        click.option("--shared-prefix", type=TokenCount(), help="Ideal engine: first N tokens stored once."),
        click.option("-o", "pairs", multiple=True, metavar="KEY=VALUE", help="The engine's own option, by its own name."),
    )
    return _apply(decorators, function)


def deployment_arguments(given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `api.prepare` from the parameters that `deployment_options` added, taking them out."""
    from kvcalc.errors import BadInput

    options: dict[str, Any] = {}
    for pair in given.pop("pairs"):
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise BadInput(f"-o {pair}: write KEY=VALUE, for example -o block_size=16")
        if key in options:
            raise BadInput(f"-o {key} is given twice")
        options[key] = value
    for name in ("reserve_ctx", "evict", "shared_prefix"):
        value = given.pop(name)
        if value is None:
            continue
        if name in options:
            raise BadInput(f"{name} is given twice, with -o and with --{name.replace('_', '-')}")
        options[name] = value
    keys = ("engine", "dtype", "kv_dtype", "weights", "tp", "pp", "dp", "dcp", "encoder_context")
    return {**{key: given.pop(key) for key in keys}, "options": options}


def chosen_style(given: dict[str, Any]) -> tuple[str, str]:
    """Return (style, units) from the parameters that `output_options` added, taking them out."""
    as_json, style, units = given.pop("as_json"), given.pop("style"), given.pop("units")
    return ("json" if as_json else style), units


def warn(texts: Sequence[str]) -> None:
    """Print warnings on standard error, one line each, each once."""
    for text in dict.fromkeys(texts):
        click.echo(f"warning: {text}", err=True)


def _apply(decorators: Sequence[Callable[[AnyFunction], AnyFunction]], function: AnyFunction) -> AnyFunction:
    for decorator in reversed(decorators):
        function = decorator(function)
    return function
