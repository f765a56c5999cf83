"""Options that several commands share, so that they read and behave the same everywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kvcalc.output import FORMATS

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])

UNITS = ("iec", "si", "bytes")

if TYPE_CHECKING:
    _IntType = click.ParamType[int]
    _TextType = click.ParamType[str]
else:  # click made its types generic after 8.2
    _IntType = _TextType = click.ParamType


class Option(click.Option):
    """An option that knows under which heading of the help page it stands."""

    def __init__(self, *names: Any, section: str = "Options", **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.section = section


class Command(click.Command):
    """A command whose help page lists its arguments, then its options under headings, in order of appearance."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the arguments that need words, and the options, heading by heading."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            explained = getattr(param.type, "explained", "")
            if isinstance(param, click.Option):
                record = param.get_help_record(ctx)
                if record is not None:
                    sections.setdefault(getattr(param, "section", "Options"), []).append(record)
            elif explained:
                sections.setdefault("Arguments", []).append((param.human_readable_name, explained))
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


class TokenCount(_IntType):
    """A count of tokens or sequences: 4096, 4K, 128k, 1Mi."""

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the count; BadInput names the option."""
        from kvcalc.units import parse_tokens

        return value if isinstance(value, int) else parse_tokens(value, _option_name(param))


class ByteSize(_IntType):
    """A size in bytes: 24GiB, 24GB, 24564MiB or plain bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes; BadInput names the option."""
        from kvcalc.units import parse_bytes

        return value if isinstance(value, int) else parse_bytes(value, _option_name(param))


class ModelName(_TextType):
    """A model: a catalogue name or alias, the path of a file that describes one, or `hf:org/name`."""

    name = "model"
    explained = (
        "A name that 'kvcalc models' lists; a spec, config.json, GGUF or safetensors file, or a folder with one; "
        "hf:ORG/NAME."
    )

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the names and aliases that start with what was typed, then files."""
        from click.shell_completion import CompletionItem

        from kvcalc.spec.load import names

        found = sorted(name for name in names() if name.lower().startswith(incomplete.lower()))
        return [CompletionItem(name) for name in found] or [CompletionItem(incomplete, type="file")]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text as it is, unless it is empty; it is looked up when the command runs."""
        return _not_empty(value, param)


class Choice(_TextType):
    """One of the names that a function lists when they are needed; `separators` divide a text of several."""

    def __init__(self, name: str, list_names: Callable[[], Sequence[str]], separators: str = "") -> None:
        self.name = name
        self.list_names = list_names
        self.separators = separators

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the names that go on from what was typed after the last separator."""
        from click.shell_completion import CompletionItem

        start = max((incomplete.rfind(separator) for separator in self.separators), default=-1) + 1
        before, last = incomplete[:start], incomplete[start:]
        return [CompletionItem(before + name) for name in self.list_names() if name.startswith(last)]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text as it is, unless it is empty; it is looked up when the command runs."""
        return _not_empty(value, param)


def _not_empty(value: Any, param: click.Parameter | None) -> str:
    from kvcalc.errors import BadInput

    text = str(value)
    if not text.strip():
        raise BadInput(f"{_option_name(param)} is empty")
    return text


def _option_name(param: click.Parameter | None) -> str:
    if param is None or isinstance(param, click.Argument):
        return param.human_readable_name if param else "value"
    return param.opts[0]


def _engines() -> Sequence[str]:
    from kvcalc.engines import ENGINES

    return list(ENGINES)


def _formats() -> Sequence[str]:
    from kvcalc.formats import FORMATS as ELEMENT_FORMATS

    return list(ELEMENT_FORMATS)


FORMAT = Choice("format", _formats)
KV_FORMATS = Choice("format", _formats, separators="/,")
ENGINE = Choice("engine", _engines)
ENGINES = Choice("engine", _engines, separators=",")

model_argument = click.argument("model", type=ModelName())
models_argument = click.argument("models", type=ModelName(), nargs=-1)
download_option = click.option("--download", is_flag=True, help="Let hf:ORG/NAME fetch a config that is not cached.")
context_option = click.option(
    "--ctx",
    "context",
    type=TokenCount(),
    required=True,
    help="Tokens of one sequence: 4096, 4K, 1Mi (k is 1000).",
)
batch_option = click.option(
    "--batch", type=TokenCount(), default=1, show_default=True, help="Sequences, over all data-parallel replicas."
)


def output_options(function: AnyFunction) -> AnyFunction:
    """Add --format, --json and --units; `chosen_style` reads them."""
    add = partial(click.option, cls=Option, section="Output")
    decorators = (
        add("--format", "style", type=click.Choice(FORMATS), help="Form of the answer; table unless given."),
        add("--json", "as_json", is_flag=True, help="Short for --format json."),
        add(
            "--units",
            type=click.Choice(UNITS),
            default="iec",
            show_default=True,
            help="Sizes in tables: KiB MiB.., kB MB.., bytes.",
        ),
    )
    return _apply(decorators, function)


def deployment_options(function: AnyFunction) -> AnyFunction:
    """Add what decides where and how the cache is stored; `deployment_arguments` turns it into API arguments."""
    stored = partial(click.option, cls=Option, section="Stored as")
    split = partial(click.option, cls=Option, section="Split over devices", type=int, default=1, metavar="N")
    engine = partial(click.option, cls=Option, section="Engine")
    decorators = (
        download_option,
        stored("--kv-dtype", metavar="F[/F]", type=KV_FORMATS, help="Format of the cache, or of K and V: q8_0/q4_0."),
        stored("--dtype", type=FORMAT, help="Format of the model instead of the published one."),
        stored("--weights", type=FORMAT, help="Format of the weights, where it is not the model's."),
        stored("--encoder-ctx", "encoder_context", type=TokenCount(), help="Encoder positions (cross-attention)."),
        split("--tp", help="Tensor parallelism: ranks that split the heads."),
        split("--pp", help="Pipeline parallelism: stages that split the layers."),
        split("--dp", help="Data parallelism: replicas that split the batch."),
        split("--dcp", help="Decode context parallelism: ranks that split a sequence."),
        engine("--engine", type=ENGINE, default="ideal", show_default=True, help="Whose rules: 'kvcalc engines'."),
        engine("-o", "pairs", multiple=True, metavar="KEY=VALUE", help="The engine's own option, by its own name."),
        engine("--reserve-ctx", type=TokenCount(), help="Ideal: every sequence reserves this many tokens."),
        engine("--evict", metavar="RULE", help="Ideal: keep window:W[,sinks:S] or budget:N tokens."),
        engine("--shared-prefix", type=TokenCount(), help="Ideal: first tokens stored once for the batch."),
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
        if given["engine"] != "ideal":
            flag = f"--{name.replace('_', '-')}"
            raise BadInput(f"{flag} is for engine ideal; engine {given['engine']} keeps what its own rules say")
        if name in options:
            raise BadInput(f"{name} is given twice, with -o and with --{name.replace('_', '-')}")
        options[name] = value
    keys = ("engine", "dtype", "kv_dtype", "weights", "tp", "pp", "dp", "dcp", "encoder_context", "download")
    return {**{key: given.pop(key) for key in keys}, "options": options}


def chosen_style(given: dict[str, Any]) -> tuple[str, str]:
    """Return (style, units) from the parameters that `output_options` added, taking them out."""
    as_json, style, units = given.pop("as_json"), given.pop("style"), given.pop("units")
    if as_json and style not in (None, "json"):
        raise click.UsageError(f"--json contradicts --format {style}; give one of them")
    return ("json" if as_json else style or "table"), units


def warn(texts: Sequence[str]) -> None:
    """Print warnings on standard error, one line each, each once."""
    for text in dict.fromkeys(texts):
        click.echo(f"warning: {text}", err=True)


def _apply(decorators: Sequence[Callable[[AnyFunction], AnyFunction]], function: AnyFunction) -> AnyFunction:
    for decorator in reversed(decorators):
        function = decorator(function)
    return function
