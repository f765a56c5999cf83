"""What a log says of its server: the model, how it was served, and what the user says instead."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kvcalc import api
from kvcalc.api import Setup
from kvcalc.errors import BadInput
from kvcalc.log_check.figures import whole
from kvcalc.measure.log import Log
from kvcalc.read.command_line import parse_command
from kvcalc.spec.load import names
from kvcalc.spec.model import ModelSpec
from kvcalc.units import MAX_TOKENS

# The engines' own options for what --kv-dtype says, too.
_CACHE_DTYPES = ("kv_cache_dtype", "type_k", "type_v")


@dataclass(frozen=True)
class Settings:
    """A model as a log shows it served: arguments and options of `api.prepare`, the context, the sequences."""

    model: ModelSpec
    engine: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    context: int | None = None
    batch: int = 1

    def setup(self) -> Setup:
        """Return the model placed on its engine; UnsupportedByEngine or BadInput where it cannot be."""
        return api.prepare(self.model, engine=self.engine, options=self.options, **self.arguments)

    def having(self, **options: Any) -> Settings:
        """Return the same with other options of the engine; None takes one away."""
        return replace(self, options={**self.options, **options})

    def served(self, **arguments: Any) -> Settings:
        """Return the same with other arguments: tp, kv_dtype."""
        return replace(self, arguments={**self.arguments, **arguments})

    def other_ranks(self) -> Iterator[tuple[str, Settings]]:
        """Yield the same on twice and on half as many ranks, with the words that say so."""
        tp = self.arguments.get("tp", 1)
        for other in (tp * 2, tp // 2):
            if other:
                yield f"--tp {other}", self.served(tp=other)

    def to_json(self) -> dict[str, Any]:
        """Return what is not as by default."""
        kept = {key: value for key, value in self.options.items() if value is not None}
        given = {key: value for key, value in self.arguments.items() if value not in (None, 1)}
        return {**given, "context": self.context, "batch": self.batch, "options": kept}


@dataclass(frozen=True)
class Given:
    """What the user says, which goes before what the log says; None and empty: nothing."""

    model: str | None = None
    engine: str | None = None
    context: int | None = None
    batch: int | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    download: bool = False

    def over(self, settings: Settings) -> Settings:
        """Return settings with the user's in place of the log's."""
        told = settings.options
        if "kv_dtype" in self.arguments:
            told = {key: value for key, value in told.items() if key not in _CACHE_DTYPES}
        return replace(
            settings,
            arguments={**settings.arguments, **self.arguments},
            options={**told, **self.options},
            context=self.context or settings.context,
            batch=self.batch or settings.batch,
        )


def arguments_of(log: Log, *sorts: str) -> dict[str, str]:
    """Return the arguments that a log printed, the sorts that are named first before the others; `None` left out."""
    found: dict[str, str] = {}
    for sort in sorts:
        for fact in log.all(sort):
            for key, value in fact.values.items():
                if value not in ("None", ""):
                    found.setdefault(key, value)
    return found


def ranks(text: str | None) -> int | None:
    """Return a degree of parallelism, None unless it is a number above 0."""
    value = whole(text)
    return value or None


def tokens(text: str | None) -> int | None:
    """Return a count of tokens, None unless it is one."""
    value = whole(text)
    return value if value and value <= MAX_TOKENS else None


def switch(text: str | None) -> str | None:
    """Return true or false as options take them."""
    return {"True": "true", "False": "false", "true": "true", "false": "false"}.get(text or "")


def element(text: str | None) -> str | None:
    """Return the name of an element format: `torch.bfloat16` is bfloat16, `auto` is none."""
    name = (text or "auto").removeprefix("torch.")
    return None if name == "auto" else name


def known(**values: Any) -> dict[str, Any]:
    """Return the values that the log has."""
    return {key: value for key, value in values.items() if value is not None}


@dataclass(frozen=True)
class Started:
    """What the command that started a server says."""

    model: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    context: int | None = None


def started_with(log: Log, engine: str) -> Started:
    """Return what the first command that started an engine's server says; nothing if there is none that is read."""
    for fact in log.all("command"):
        if fact.engine != engine:
            continue
        try:
            command = parse_command(fact["command"].split())
        except BadInput:
            continue
        # What the weights take, and that the context was lowered to what fits, leave the cache's figures as they are.
        arguments = {key: value for key, value in command.arguments.items() if key != "weights"}
        options = {key: value for key, value in command.options.items() if key != "auto_fit"}
        return Started(command.model, arguments, options, command.context)
    return Started()


def flags_of(log: Log, engine: str) -> dict[str, str]:
    """Return the `--name value` and `--name=value` words of the first command that started an engine's server.

    Names without dashes at the start, and with `_` for `-`; a switch is `true`; words without a name count from 0.
    """
    commands = [fact["command"].split() for fact in log.all("command") if fact.engine == engine]
    found: dict[str, str] = {}
    words, name = (commands[0] if commands else []), ""
    for word in words:
        if word.startswith("--"):
            name, _, value = word[2:].replace("-", "_", word[2:].partition("=")[0].count("-")).partition("=")
            found.setdefault(name, value or "true")
            name = "" if value else name
        elif name:
            found[name], name = word, ""
        else:
            found[str(sum(key.isdecimal() for key in found))] = word
    return found


# Which model ----------------------------------------------------------------------------------------------------------

# What names say of the weights' format or of tuning, neither of which changes a cache.
_DECORATION = re.compile(
    r"[-_.](?:fp8|fp4|bf16|fp16|int4|int8|nvfp4|mxfp4|awq|gptq|w4a16|w8a8|w8a16|4bit|8bit|bnb|gguf|dynamic|quantized|"
    r"i?q[2-8](?:_[0-9a-z]+)*|instruct|chat|it|hf|base)$"
)


def find_model(printed: list[str | None], given: Given) -> tuple[ModelSpec, str | None]:
    """Return the model of a log and, where it was told from a name that is none of ours, the words that say so.

    BadInput asks for it where no name is known.
    """
    if given.model is not None:
        return api.load(given.model, download=given.download), None
    said = [text for text in printed if text]
    for text in said:
        name = known_name(text)
        if name is not None:
            spec = api.load(name)
            return spec, None if text == spec.name or text in spec.file.aliases else f"model: '{text}' is {spec.name}"
    which = f"its '{said[0][:80]}' is no model that is known" if said else "it does not say which"
    raise BadInput(f"the log's model cannot be told ({which}): name it, kvcalc validate --log FILE MODEL")


def known_name(text: str) -> str | None:
    """Return the catalogue's name of a model as a log names it: an id, a path in a cache, a file, a title."""
    listed = {name.lower(): target for name, target in names().items()}
    short = {name.rpartition("/")[2]: target for name, target in listed.items()}
    for candidate in _readings(text):
        found = listed.get(candidate) or short.get(candidate.rpartition("/")[2])
        if found is not None:
            return found
    return None


def _readings(text: str) -> list[str]:
    """Return the names that a text may mean, the text itself first, then without decoration."""
    lowered = text.strip().lower()
    cached = re.search(r"models--([\w.-]{1,80})--([\w.-]{1,100})", lowered)
    plain = f"{cached[1]}/{cached[2]}" if cached else lowered.rstrip("/").removesuffix(".gguf").replace(" ", "-")
    found = [lowered, plain]
    while (shorter := _DECORATION.sub("", found[-1])) != found[-1]:
        found.append(shorter)
    return found
