"""The parts of the pages that are made from the program itself: `PARTS[NAME]()` is what stands between the markers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import click

import kvcalc
from kvcalc.cli import COMMANDS, cli
from kvcalc.engines import ENGINES, find_engine
from kvcalc.formats import FORMATS
from kvcalc.output import render
from kvcalc.spec.documented import Documented
from kvcalc.spec.kinds import KINDS, STATE_VARIANTS, Kind
from kvcalc.spec.load import index, load
from kvcalc.spec.model import ModelSpec, Source, SpecFile
from kvcalc.units import format_bytes
from tests.golden.peers import CASES, CHECKED, QUANTISED, TOOLS

# Models that people know, to show for each kind and variant; they are looked up, so that a wrong one is an error.
_KNOWN = {
    "full": ("llama-3.1-8b", "gpt2-small"),
    "sliding": ("gemma-3-27b", "gpt-oss-20b", "mistral-7b-v0.1"),
    "chunked": ("llama-4-scout", "llama-4-maverick"),
    "mla": ("deepseek-v3", "kimi-k2"),
    "indexer": ("deepseek-v3.2", "glm-5"),
    "cross": ("whisper-large-v3", "t5-small"),
    "shared": ("gemma-3n-e4b", "gemma-4-e2b"),
    "compressed": ("deepseek-v4-flash", "deepseek-v4-pro"),
    "state": ("qwen3-next-80b-a3b", "mamba-2.8b", "jamba-v0.1"),
}


def table(rows: Iterable[Mapping[str, Any]], right: Iterable[str] = ()) -> str:
    """Return rows as a Markdown table with a blank line around it."""
    return f"\n{render(list(rows), 'md', aligned_right=list(right))}\n\n"


def formats() -> str:
    """Every element format, with what it stores 1,048,576 elements in, rows of 128."""
    rows = [
        {
            "format": f"`{item.name}`",
            "also": ", ".join(f"`{alias}`" for alias in item.aliases) or None,
            "stored as": item.describe,
            "bytes of 128 elements": item.row_bytes(128),
            "source": item.source,
        }
        for item in FORMATS.values()
    ]
    return table(rows, ["bytes of 128 elements"])


def kinds() -> str:
    """Every kind in one line, for the README."""
    rows = [
        {
            "kind": f"[`{name}`](docs/kinds.md#{name})",
            "a layer keeps": KINDS[name].keeps,
            "for example": ", ".join(_known(name)[:2]),
        }
        for name in KINDS
    ]
    return table(rows)


def kind(name: str) -> str:
    """What a kind keeps, where the rule comes from, its fields, and the bundled models that have it."""
    found = KINDS[name]
    known, models = _known(name), _models_with(name)
    more = f" and {len(models) - len(known)} more" if len(models) > len(known) else ""
    source = "the variant's own, below" if name == "state" else found.rule_source
    return (
        f"\nA layer keeps {found.keeps}.\n\nSource of the rule: {source}.\n{_field_table(found)}"
        f"Bundled models: {', '.join(f'`{model}`' for model in known)}{more}.\n\n"
    )


def variants() -> str:
    """Every variant of the state kind: its dimensions, its source, its bundled models."""
    rows = [
        {
            "variant": f"`{name}`",
            "dimensions": ", ".join(f"`{field}`" for field in _own_fields(variant)),
            "source": variant.rule_source,
            "bundled models": ", ".join(f"`{model}`" for model in sorted(_models_with("state", name))),
        }
        for name, variant in STATE_VARIANTS.items()
    ]
    return table(rows)


def spec_fields() -> str:
    """The keys of a spec."""
    return _field_table(SpecFile) + "`source` has these keys:\n" + _field_table(Source)


def models() -> str:
    """Every bundled model with what it keeps."""
    return table(
        (_model_row(load(name)) for name in index()), ["trained context", "one token", "4,096 tokens", "bytes"]
    )


def engines() -> str:
    """Every engine profile."""
    rows = [
        {"engine": f"`{name}`", "version": find_engine(name).version or None, "rules": find_engine(name).summary}
        for name in ENGINES
    ]
    return table(rows)


def engine_options(name: str) -> str:
    """The options that an engine takes with `-o`."""
    return _field_table(find_engine(name).options_class)


def peers() -> str:
    """The survey's cases: the sum, what kvcalc gives, what the other tools gave."""
    sums = [
        {
            "case": _case(case.model, case.context, case.batch, case.kv_dtype),
            "layers": case.what,
            "what an ideal allocator keeps": case.sum,
            "bytes": f"{case.right:,}",
            "kvcalc": f"{_ours(case.model, case.context, case.batch, case.kv_dtype):,}",
        }
        for case in CASES
    ]
    answers = [{"model": case.model, **dict(zip(TOOLS, case.answers, strict=True))} for case in CASES]
    return f"{table(sums, ['bytes', 'kvcalc'])}Answers of {CHECKED}, as factors of the right bytes:\n{table(answers)}"


def peers_quantised() -> str:
    """Quantised caches of one model."""
    rows = [
        {
            "K and V": f"`{name}`",
            "right": f"{right:,}",
            "kvcalc": f"{_ours('llama-3.1-8b', 32_768, 1, name):,}",
            "in words": format_bytes(right),
        }
        for name, right in QUANTISED.items()
    ]
    return table(rows, ["right", "kvcalc"])


def command_help(name: str) -> str:
    """The help page of a command, and those of its own commands, at 80 columns."""
    top = click.Context(cli, info_name="kvcalc", **{**cli.context_settings, "terminal_width": 80})
    if name == "kvcalc":
        return _help_page(cli, top)
    command = cli.get_command(top, name)
    assert command is not None
    context = click.Context(command, parent=top, info_name=name)
    text = _help_page(command, context)
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            inner = command.get_command(context, below)
            assert inner is not None
            text += _help_page(inner, click.Context(inner, parent=context, info_name=below))
    return text


def _help_page(command: click.Command, context: click.Context) -> str:
    return f"\n```text\n{command.get_help(context)}\n```\n\n"


def _models_with(kind_name: str, variant: str | None = None) -> list[str]:
    """Return the bundled models that have a kind (and variant), those in which it has the most layers first."""
    found: list[tuple[int, str]] = []
    for name in index():
        layers = sum(
            len(group.indices)
            for group in load(name).groups()
            if group.kind.name == kind_name and variant in (None, getattr(group.kind, "variant", None))
        )
        if layers:
            found.append((-layers, name))
    return [name for _, name in sorted(found)]


def _known(kind_name: str) -> list[str]:
    """Return the well-known models of a kind; ValueError if one does not have it."""
    models = _models_with(kind_name)
    return [models[models.index(name)] for name in _KNOWN[kind_name]]


def _own_fields(variant: type[Kind]) -> list[str]:
    return [field for field in variant.model_fields if field not in ("kind", "variant", "conv_dtype", "state_dtype")]


def _field_table(record: type[Documented]) -> str:
    docs = record.field_docs()
    rows = [
        {
            "key": f"`{name}`",
            "must be given": "yes" if info.is_required() else "no",
            "meaning": docs[name].replace("\n", " "),
        }
        for name, info in record.model_fields.items()
        if name in docs
    ]
    return table(rows)


def _model_row(spec: ModelSpec) -> dict[str, Any]:
    """Return a model's line of the table; sizes at batch 1, in the published dtype."""
    setup = kvcalc.prepare(spec)
    held = setup.placement.held_bytes(4096, 1)
    layers = [f"{len(group.indices)} {group.kind.name}" for group in spec.groups()]
    layers += [f"{spec.empty_layers()} without"] if spec.empty_layers() else []
    note = "; assumed: " + ", ".join(spec.file.assumed) if spec.file.assumed else ""
    return {
        "model": f"`{spec.name}`",
        "layers": ", ".join(layers),
        "dtype": setup.kv_dtype,
        "trained context": f"{spec.max_context:,}" if spec.max_context else None,
        "one token": format_bytes(kvcalc.size(spec, context=1).per_token_bytes),
        "4,096 tokens": format_bytes(held),
        "bytes": f"{held:,}",
        "source": f"[{spec.file.source.checked}]({spec.file.source.url}){note}",
    }


def _case(model: str, context: int, batch: int, kv_dtype: str) -> str:
    return f"{model}, {context:,} x {batch}, {kv_dtype}"


def _ours(model: str, context: int, batch: int, kv_dtype: str) -> int:
    return kvcalc.size(model, context=context, batch=batch, kv_dtype=kv_dtype).total_bytes


PARTS: dict[str, Callable[[], str]] = {
    "formats": formats,
    "kinds": kinds,
    "variants": variants,
    "spec-fields": spec_fields,
    "models": models,
    "engines": engines,
    "peers": peers,
    "peers-quantised": peers_quantised,
    **{f"kind-{name}": partial(kind, name) for name in KINDS},
    **{f"options-{name}": partial(engine_options, name) for name in ENGINES},
    **{f"help-{name}": partial(command_help, name) for name in ("kvcalc", *COMMANDS)},
}
