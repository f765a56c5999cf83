"""Declared deployments: a YAML file that says what is served on what, judged entry by entry.

    deployments:
      - name: chat
        model: llama-3.1-8b
        engine: vllm
        gpu: h100-80gb
        contexts: [8K, 32K]
        batch: 16
        reserve: 1GiB

A file with one deployment may leave the list out. Server commands (`vllm serve ...`, `llama-server ...`, in scripts,
Dockerfiles and compose files) are judged with the GPU that is named beside them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvcalc.answer import answer, helping, memory_of
from kvcalc.errors import BadInput, KvcalcError, Problem, SpecError, did_you_mean
from kvcalc.fit_result import FitResult
from kvcalc.fitting import Question
from kvcalc.formats import find_format
from kvcalc.hardware.weights import weights_format_name
from kvcalc.prepared import load
from kvcalc.read.command_files import read_commands
from kvcalc.read.command_line import ServerCommand
from kvcalc.spec.load import names
from kvcalc.spec.model import ModelSpec
from kvcalc.units import format_bytes, parse_bytes, parse_tokens
from kvcalc.yaml_tree import Tree, parse, read_text

_IS_COMPOSE = re.compile(r"^services\s*:", re.M)


@dataclass(frozen=True)
class Part:
    """One deployment at one context: where it is declared, whether it fits, and in words why not or how well."""

    file: str
    line: int
    column: int
    name: str
    context: int
    fits: bool
    message: str
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the part as JSON data."""
        return {**vars(self), "warnings": list(self.warnings)}

    @property
    def place(self) -> str:
        """`file:line:col`, or nothing for a command that was typed."""
        return f"{self.file}:{self.line}:{self.column}" if self.file else ""

    def annotation(self) -> str:
        """Return the line with which GitHub marks the place in a file; empty where it fits."""
        if self.fits:
            return ""
        where = f" file={_property(self.file)},line={self.line},col={self.column}" if self.file else ""
        return f"::error{where}::{_escaped(f'{self.name}: {self.message}')}"


@dataclass(frozen=True)
class Hardware:
    """The GPUs that a server command is judged on: what `memory_of` takes, and how many there are."""

    gpu: str | None = None
    gpus: int | None = None
    context: int | None = None
    batch: int | None = None
    memory: Mapping[str, Any] | None = None

    @property
    def given(self) -> tuple[str, ...]:
        """The options that say something here, by their names on the command line."""
        options = {"--gpu": self.gpu, "--gpus": self.gpus, "--ctx": self.context, "--batch": self.batch}
        named = {"log": "--from-log", "overhead_parts": "--overhead"}
        for name, value in (self.memory or {}).items():
            option = named.get(name, f"--{name.replace('_', '-')}")
            is_said = value not in (None, {}, 0) or (name == "overhead" and value == 0)
            options[option] = options.get(option) or (is_said or None)
        return tuple(option for option, value in options.items() if value is not None)


def check_file(path: Path, hardware: Hardware) -> tuple[Part, ...]:
    """Return every deployment of a file, or every server command in a script, Dockerfile or compose file, judged.

    SpecError with `file:line:col` for a faulty file, BadInput for a missing one, where a command's GPU is not said, and
    where hardware is given for declared deployments, which name their own.
    """
    if path.is_dir():
        raise BadInput(f"{path} is a folder; name the files in it")
    if not path.is_file():
        raise BadInput(f"{path}: no such file")
    if path.suffix in (".yaml", ".yml"):
        text = read_text(path)
        if not _IS_COMPOSE.search(text):
            for option in hardware.given[:1]:
                raise BadInput(f"{option} is for a command line; {path} names its own")
            return check_tree(parse(text, str(path)))
    commands = read_commands(path)
    return tuple(part for command in commands for part in check_command(command, hardware, str(path)))


# Declared deployments


def check_tree(tree: Tree) -> tuple[Part, ...]:
    """Return every deployment of a parsed file, judged; SpecError lists everything that is wrong with it."""
    found, problems = list[Part](), list[Problem]()
    for path, entry in _entries(tree):
        reader = _Reader(tree, path, entry)
        declared = reader.deployment()
        problems += reader.problems
        if declared is None:
            continue
        try:
            found += _judged(declared, tree.file, tree.values[path])
        except _WrongKeyError as error:
            problems.append(tree.problem((*path, error.key), str(error)))
        except KvcalcError as error:
            problems.append(tree.problem(path, str(error)))
    if problems:
        raise SpecError(problems)
    return tuple(found)


def _entries(tree: Tree) -> list[tuple[tuple[str | int, ...], Any]]:
    """Return the deployments of a file with their paths."""
    data = tree.data
    if not isinstance(data, dict) or not data:
        message = "must hold a deployment: model, engine, gpu, context, batch; or a list of them under 'deployments'"
        raise SpecError([tree.problem((), message)])
    if "deployments" not in data:
        return [((), data)]
    listed = data["deployments"]
    others = [key for key in data if key != "deployments"]
    if others:
        raise SpecError([tree.problem((others[0],), "stands beside 'deployments'; move it into one of them", True)])
    if not isinstance(listed, list) or not listed:
        raise SpecError([tree.problem(("deployments",), "must be a list of deployments")])
    return [(("deployments", index), entry) for index, entry in enumerate(listed)]


@dataclass(frozen=True)
class Declared:
    """One deployment as declared: the arguments of `prepare`, those of `memory_of`, contexts, batch, GPUs."""

    name: str
    model: str
    arguments: Mapping[str, Any]
    memory: Mapping[str, Any]
    contexts: tuple[int | None, ...]
    batch: int
    gpus: int | None


_TEXTS = ("name", "model", "engine", "gpu", "dtype", "kv_dtype", "weights", "utilization")
_DEGREES = ("tp", "pp", "dp", "dcp", "gpus")
_KNOWN = (
    *_TEXTS, *_DEGREES, "options", "context", "contexts", "batch", "encoder_context", "reserve", "overhead",
    "kv_memory",
)  # fmt: skip


class _Reader:
    """Reads one deployment of a file, collecting what is wrong with it."""

    def __init__(self, tree: Tree, path: tuple[str | int, ...], entry: Any) -> None:
        self.tree = tree
        self.path = path
        self.entry = entry
        self.problems: list[Problem] = []

    def deployment(self) -> Declared | None:
        """Return the deployment; None if anything is wrong with it."""
        if not isinstance(self.entry, dict):
            self._wrong((), "must be a mapping: model, engine, gpu, context, batch")
            return None
        for key in self.entry:
            if key not in _KNOWN:
                hint = did_you_mean(key, _KNOWN) or f"; known: {', '.join(_KNOWN)}"
                self._wrong((key,), f"unknown key{hint}", at_key=True)
        for key in ("model",):
            if key not in self.entry:
                self._wrong((), f"lacks '{key}'")
        if "gpu" not in self.entry and "kv_memory" not in self.entry:
            self._wrong((), "lacks 'gpu' (or 'kv_memory', the memory for the cache on every rank)")
        texts = {key: self._text(key) for key in _TEXTS if key in self.entry}
        degrees = {key: self._number(key) for key in _DEGREES if key in self.entry}
        contexts, batch = self._contexts(), self._tokens(("batch",), 1)
        encoder = self._tokens(("encoder_context",), None)
        options, overhead = self._options(), self._overhead()
        sizes = {key: self._size((key,)) for key in ("reserve", "kv_memory") if key in self.entry}
        if self.problems:
            return None
        name = texts.pop("name", None) or str(texts["model"])
        memory = {"kv_memory": sizes.get("kv_memory"), "gpu": texts.pop("gpu", None), **overhead}
        memory |= {"utilization": texts.pop("utilization", None), "reserve": sizes.get("reserve") or 0}
        gpus = degrees.pop("gpus", None)
        arguments = {**texts, **degrees, "options": options, "encoder_context": encoder}
        return Declared(name, str(arguments.pop("model")), arguments, memory, contexts, batch or 1, gpus)

    def _wrong(self, inner: tuple[str | int, ...], message: str, at_key: bool = False) -> None:
        self.problems.append(self.tree.problem((*self.path, *inner), message, at_key))

    def _text(self, key: str) -> str | None:
        value = self.entry[key]
        if not isinstance(value, str) or not value.strip():
            example = ', for example "0.9", in quotes' if key == "utilization" else ""
            self._wrong((key,), f"must be text{example}")
            return None
        return value

    def _number(self, key: str) -> int | None:
        value = self.entry[key]
        if type(value) is not int or value < 1:
            self._wrong((key,), "must be a whole number from 1 on")
            return None
        return value

    def _tokens(self, inner: tuple[str | int, ...], default: int | None) -> int | None:
        """Return a count such as 8192 or 32K; the default where it is left out."""
        value = self.entry
        for key in inner:
            if isinstance(key, str) and key not in value:
                return default
            value = value[key]
        return self._parsed(inner, value, parse_tokens)

    def _contexts(self) -> tuple[int | None, ...]:
        if "contexts" not in self.entry:
            return (self._tokens(("context",), None),)
        listed = self.entry["contexts"]
        if "context" in self.entry or not isinstance(listed, list) or not listed:
            self._wrong(("contexts",), "must be a list of contexts, and stand without 'context'")
            return ()
        return tuple(self._tokens(("contexts", index), None) for index in range(len(listed)))

    def _size(self, inner: tuple[str | int, ...]) -> int | None:
        value = self.entry
        for key in inner:
            value = value[key]
        return 0 if value == 0 and type(value) is int else self._parsed(inner, value, parse_bytes)

    def _parsed(self, inner: tuple[str | int, ...], value: Any, read: Callable[[str, str], int]) -> int | None:
        if type(value) is not int and not isinstance(value, str):
            self._wrong(inner, "must be a number or text such as 32K or 2GiB")
            return None
        try:
            return read(str(value), str(inner[0]))
        except BadInput as error:
            self._wrong(inner, str(error).removeprefix(f"{inner[0]}: "))
            return None

    def _options(self) -> dict[str, object]:
        """Return the engine's own options, whose values are texts, numbers, true or false."""
        options = self.entry.get("options") or {}
        if not isinstance(options, dict):
            self._wrong(("options",), "must be a mapping of the engine's own options")
            return {}
        found: dict[str, object] = {}
        for key, value in options.items():
            if isinstance(value, bool):
                found[key] = "true" if value else "false"
            elif isinstance(value, (str, int)):
                found[key] = value
            else:
                self._wrong(("options", key), "must be text, a whole number, true or false")
        return found

    def _overhead(self) -> dict[str, Any]:
        """Return the overhead as one size, or as sizes of its parts."""
        given = self.entry.get("overhead")
        if given is None:
            return {}
        if not isinstance(given, dict):
            return {"overhead": self._size(("overhead",))}
        return {"overhead_parts": {key: self._size(("overhead", key)) for key in given}}


class _WrongKeyError(Exception):
    """What is wrong with the value of one key."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


@contextmanager
def _blamed_on(key: str) -> Iterator[None]:
    """Say of which key's value an error speaks."""
    try:
        yield
    except KvcalcError as error:
        raise _WrongKeyError(key, str(error)) from None


def _judged(declared: Declared, file: str, place: tuple[int, int]) -> Iterator[Part]:
    """Yield the deployment at each of its contexts."""
    with _blamed_on("model"):
        spec = load(declared.model)
    with _blamed_on("gpu"):
        memory = memory_of(**declared.memory)
    degrees = {name: declared.arguments.get(name) for name in ("tp", "pp", "dp")}
    fixed = {name: int(value) for name, value in degrees.items() if value is not None}
    counts = None if declared.gpus is None else range(declared.gpus, declared.gpus + 1)
    for context in declared.contexts:
        question = Question(spec, declared.arguments, context, declared.batch, memory)
        yield _part(answer(question, counts=counts, fixed=fixed), declared.name, file, place)


def _part(result: FitResult, name: str, file: str, place: tuple[int, int], unknown: Sequence[str] = ()) -> Part:
    """Return an answer as one line: what it needs, what is missing, and the first change that helps."""
    asked = f"batch {result.batch:,} at context {result.context:,}"
    binding = result.binding
    if result.fits:
        spare = "" if binding is None else f", {format_bytes(binding.spare_bytes)} to spare on rank {binding.rank}"
        message = f"{asked} fits{spare}"
    else:
        lack = f"{asked} does not fit"
        if binding is not None and binding.spare_bytes < 0:
            lack += f": rank {binding.rank} lacks {format_bytes(-binding.spare_bytes)}"
        elif refusal := result.engine_report.get("admission_error"):
            lack += f": {result.engine} refuses ({str(refusal).split('.', maxsplit=1)[0]})"
        help_ = helping(result)
        message = f"{lack}; {help_}" if help_ else f"{lack}; no single change helps"
    return Part(file, *place, name, result.context, result.fits, message, (*result.warnings, *unknown))


# Server commands


def check_command(command: ServerCommand, hardware: Hardware, file: str = "") -> tuple[Part, ...]:
    """Return a server's command line, judged on the GPUs given; BadInput where they are missing or contradict it.

    What the command leaves to the server is the model's trained context; a vLLM that is told to lower it (`auto`) fits
    if any does. vLLM starts if one sequence fits, whatever
    --max-num-seqs says, and a warning says how many fit at full length; llama-server sets all its slots aside.
    """
    if command.kv_memory is None and hardware.gpu is None:
        raise BadInput(f"{file or 'the command'}: say on which GPU it runs: --gpu NAME ('kvcalc gpus' lists them)")
    memory = _command_memory(command, hardware)
    degrees = {name: int(command.arguments.get(name, 1)) for name in ("tp", "pp", "dp")}
    needed = degrees["tp"] * degrees["pp"] * degrees["dp"]
    spec, arguments, warnings = _served(command)
    options = {key: value for key, value in command.options.items() if key != "auto_fit" or not hardware.context}
    arguments |= {"engine": command.engine, "options": options}
    if hardware.gpus is not None and hardware.gpus != needed:
        if command.engine != "llama.cpp" or needed > 1:
            raise BadInput(f"--gpus {hardware.gpus} contradicts the command, which runs on {needed}")
        arguments["pp"] = hardware.gpus
    slots = command.batch if command.engine == "llama.cpp" else None
    question = Question(
        spec=spec,
        arguments=arguments,
        context=hardware.context or command.context,
        batch=hardware.batch or slots or 1,
        memory=memory,
    )
    result = answer(question)
    warnings += _unused(command, hardware)
    warnings += [f"not understood, and not counted: {flag}" for flag in command.unknown]
    warnings += _fewer_than_allowed(result, None if slots else command.batch)
    part = _part(result, command.model, file, (command.line, 1), warnings)
    return (_lowered(part) if "auto_fit" in options and result.batch == 1 else part,)


def _unused(command: ServerCommand, hardware: Hardware) -> list[str]:
    """Return that a GPU has no effect where the command sets the memory for the cache itself."""
    unused = [option for option in hardware.given if option not in ("--gpus", "--ctx", "--batch")]
    if command.kv_memory is None or not unused:
        return []
    return [f"{', '.join(unused)} not counted: the command gives the cache its memory (--kv-cache-memory-bytes)"]


def _lowered(part: Part) -> Part:
    """Return the judgement of a server that takes the longest context that fits: there is one, or none."""
    if part.fits:
        return replace(part, message=f"fits, at context {part.context:,}")
    return replace(part, message=part.message.replace(f"at context {part.context:,}", "at any context", 1))


def _fewer_than_allowed(result: FitResult, sequences: int | None) -> list[str]:
    """Return that fewer sequences fit at full length than a server takes at once."""
    if sequences is None or result.max_batch is None or not 0 < result.max_batch < sequences:
        return []
    return [
        f"{result.max_batch:,} of --max-num-seqs {sequences:,} fit at {result.context:,} tokens each; "
        "longer queues wait or are preempted"
    ]


def _command_memory(command: ServerCommand, hardware: Hardware) -> Any:
    """Return the memory that a command line describes, on the GPU that is named beside it."""
    if command.kv_memory is not None:
        return memory_of(command.kv_memory, None)
    given = {**(hardware.memory or {})}
    if command.utilization is not None:
        if given.get("utilization") not in (None, command.utilization):
            raise BadInput(f"--utilization contradicts the command's --gpu-memory-utilization {command.utilization}")
        given["utilization"] = command.utilization
    if command.eager and given.get("overhead") is None:
        given["overhead_parts"] = {"cuda_graphs": 0, **(given.get("overhead_parts") or {})}
    reserve = given.pop("memory_reserve", 0)
    sequences = command.batch if command.engine == "vllm" else None
    return memory_of(None, hardware.gpu, reserve=reserve, max_num_seqs=sequences, **given)


# org/name:Q4_K_M
_REPOSITORY = re.compile(r"((?:[^/:\\]+/)?[^/:\\]+):([\w.-]+)")
# Weights in these formats are quantized before they are published: a checkpoint's own size counts for them.
_PUBLISHED = ("awq", "w4a16", "vllm-nvfp4", "vllm-mxfp4")


def _served(command: ServerCommand) -> tuple[ModelSpec, dict[str, Any], list[str]]:
    """Return the model that a command serves, its arguments of `prepare`, and what must be said of them.

    Of llama-server, the catalogue's model where the file is not there or is named by its repository
    (`-hf org/name-GGUF:Q4_K_M`), with the weights' format that the name has.
    """
    arguments = dict(command.arguments)
    if command.engine == "vllm":
        spec = load(command.model)
        if spec.weights_bytes is not None and arguments.get("weights") in _PUBLISHED:
            del arguments["weights"]
        few_bits = ["gptq weights are counted in 4 bits, as w4a16"] if arguments.get("weights") == "w4a16" else []
        return spec, arguments, few_bits
    repository = None if Path(command.model).exists() else _REPOSITORY.fullmatch(command.model)
    model, quant = (repository[1], repository[2]) if repository else (command.model, None)
    spec, warnings = _catalogue_model(model)
    if quant is not None:
        arguments["weights"] = _gguf_format(quant)
    if arguments.get("weights") is None and (quant or warnings):
        counted = find_format(spec.dtype).name
        warnings.append(f"the weights are counted in {counted}: the format {quant or 'of the file'} is not known")
    return spec, arguments, warnings


def _catalogue_model(model: str) -> tuple[ModelSpec, list[str]]:
    """Return a model by name or file; else the catalogue's of the file's or repository's name, saying so."""
    try:
        return load(model), []
    except BadInput:
        if Path(model).exists():
            raise
        known = {name.lower(): target for name, target in names().items()}
        repository = model.lower().removesuffix("-gguf")
        stem = model.replace("\\", "/").rsplit("/", 1)[-1].lower().removesuffix(".gguf").removesuffix("-gguf")
        same_end = {target for name, target in known.items() if name.rpartition("/")[2] == stem}
        target = known.get(repository) or known.get(stem) or (same_end.pop() if len(same_end) == 1 else None)
        if target is None:
            raise
        return load(target), [f"{model}: no such file or model; {target} of the catalogue is judged in its place"]


def _gguf_format(quant: str) -> str | None:
    """Return the weights' format that a GGUF file's name has; None if it is none that is known."""
    for name in (f"gguf-{quant}", quant):
        try:
            return weights_format_name(name)
        except BadInput:
            continue
    return None


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")
