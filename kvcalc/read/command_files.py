"""Server commands in the files that start servers: shell scripts, Dockerfiles, compose files.

Variables that the file itself sets are filled in, `${NAME:-default}` with its default; others are left standing, and
refused by `command_line` where they matter. Nothing is run.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvcalc.errors import BadInput, Problem, SpecError
from kvcalc.read.command_line import NotAServer, ServerCommand, image_program, parse_command
from kvcalc.yaml_tree import read_text

_SHELLS = ("sh", "bash", "dash", "zsh")
_KEYWORDS = ("if", "then", "else", "while", "do", "!", "{")
_MAX_DEPTH = 32  # of YAML; compose files need six
# Words that a command line of a server has: a line without them is none, whatever else is wrong with it.
_SERVERS = re.compile(r"vllm|llama-server|llama-cli|llama\.cpp")
_ASSIGNMENT = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(\S.*|)")
_VARIABLE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)(?::?-([^${}]*))?\})")
_COMMENT = re.compile(r"""("(?:\\.|[^"\\])*"|'[^']*'|\\.)|(?:(?<=\s)|^)\#""", re.DOTALL)
_REDIRECTION = re.compile(r"(?<=\s)(?:[0-9]|&)?>>?\s*(?:&[0-9]|[^\s;|&<>]+)")
_INSTRUCTION = re.compile(r"\s*(FROM|CMD|ENTRYPOINT|ENV|ARG)\s+(.*)", re.IGNORECASE | re.DOTALL)

# The line of a command and its words.
_Found = tuple[int, list[str]]


def read_commands(path: Path) -> tuple[ServerCommand, ...]:
    """Return the server commands in a shell script, Dockerfile or compose file; SpecError if there is none."""
    text = read_text(path)
    found = []
    for line, words in _words(path, text):
        try:
            found.append(parse_command(words, line))
        except NotAServer:
            continue
        except BadInput as error:
            raise SpecError([Problem(str(path), line, 1, "", str(error))]) from None
    if not found:
        message = "has no command that starts vllm serve or llama-server"
        raise SpecError([Problem(str(path), 1, 1, "", message)])
    return tuple(found)


def _words(path: Path, text: str) -> Iterator[_Found]:
    """Yield the commands of a file by what it is."""
    if path.suffix in (".yaml", ".yml"):
        return _compose(text, str(path))
    name = path.name.lower()
    first = next((line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")), "")
    is_dockerfile = name.startswith(("dockerfile", "containerfile")) or name.endswith(".dockerfile")
    if is_dockerfile or re.match(r"\s*(?:FROM|ARG)\s", first):
        return _dockerfile(text, str(path))
    return _script(text, str(path))


# --- Shell ------------------------------------------------------------------------------------------------------------


def _script(text: str, file: str) -> Iterator[_Found]:
    """Yield the commands of a shell script; assignments before them fill in their variables."""
    variables: dict[str, str] = {}
    for number, line in _logical_lines(text):
        assigned = _ASSIGNMENT.fullmatch(line)
        if assigned and _assign(assigned[1], assigned[2], variables):
            continue
        yield from ((number, words) for words in _shell_words(line, variables, file, number))


def _logical_lines(text: str, skipped: str = "") -> Iterator[tuple[int, str]]:
    """Yield (number of the first line, text) with continued lines joined; lines that start with `skipped` left out."""
    pieces: list[str] = []
    start = 1
    for number, raw in enumerate(text.split("\n"), 1):
        if skipped and raw.lstrip().startswith(skipped):
            continue
        start = start if pieces else number
        line = raw.rstrip()
        if line.endswith("\\"):
            pieces.append(line[:-1])
            continue
        yield start, " ".join([*pieces, line])
        pieces = []
    if pieces:
        yield start, " ".join(pieces)


def _assign(name: str, value: str, variables: dict[str, str]) -> bool:
    """Note a literal value; return whether the whole line was the assignment."""
    try:
        words = shlex.split(_without_comment(value))
    except ValueError:
        return False
    if len(words) > 1:  # it holds for the command behind it alone
        return False
    variables[name] = _filled(words[0], variables) if words else ""
    return True


def _shell_words(line: str, variables: Mapping[str, str], file: str, number: int) -> Iterator[list[str]]:
    """Yield the words of each command on one line, those that a shell is handed included."""
    if not _SERVERS.search(line):
        return
    lexer = shlex.shlex(_REDIRECTION.sub(" ", _without_comment(line)), posix=True, punctuation_chars=";&|()")
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        tokens = list(lexer)
    except ValueError:
        raise SpecError([Problem(file, number, 1, "", "a quotation mark is not closed on this line")]) from None
    words: list[str] = []
    for token in [*tokens, ";"]:
        if token and set(token) <= set(";&|()"):
            if words:
                yield from _unshelled([_filled(word, variables) for word in words], file, number)
            words = []
        else:
            words.append(token)


def _unshelled(words: list[str], file: str, number: int) -> Iterator[list[str]]:
    """Yield the words, or those of the text that `bash -c` is to run."""
    while words and words[0] in _KEYWORDS:
        words = words[1:]
    if words and words[0].rsplit("/", 1)[-1] in _SHELLS:
        for at, word in enumerate(words[1:4], 1):
            if re.fullmatch(r"-[a-z]*c", word) and at + 1 < len(words):
                for _, line in _logical_lines(words[at + 1]):
                    yield from _plain_words(line, file, number)
                return
    yield words


def _plain_words(line: str, file: str, number: int) -> Iterator[list[str]]:
    """Yield the commands of a text within quotes; a shell within is not looked into again."""
    for words in _shell_words(line, {}, file, number):
        if words[0].rsplit("/", 1)[-1] not in _SHELLS:
            yield words


def _without_comment(line: str) -> str:
    """Return a line without its comment: from a # that starts a word, outside quotation marks."""
    for match in _COMMENT.finditer(line):
        if match[1] is None:
            return line[: match.start()]
    return line


def _filled(word: str, variables: Mapping[str, str]) -> str:
    """Return a word with the variables whose values are known, and defaults, filled in."""
    if "$" not in word:
        return word

    def value(match: re.Match[str]) -> str:
        known = variables.get(match[1] or match[2])
        return known if known is not None else match[0] if match[3] is None else match[3]

    return _VARIABLE.sub(value, word)[:100_000]


# --- Dockerfile -------------------------------------------------------------------------------------------------------


@dataclass
class _Stage:
    """What the last stage of a Dockerfile starts."""

    image: str = ""
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    line: int = 1


def _dockerfile(text: str, file: str) -> Iterator[_Found]:
    """Yield what the last stage starts: ENTRYPOINT (or its image's program) and CMD, as one command."""
    stage, variables = _Stage(), dict[str, str]()
    for number, line in _logical_lines(text, skipped="#"):
        match = _INSTRUCTION.fullmatch(line)
        if not match:
            continue
        instruction, rest = match[1].upper(), match[2].strip()
        if instruction in ("ENV", "ARG"):
            _set_all(rest, variables)
        elif instruction == "FROM":
            images = [word for word in rest.split() if not word.startswith("--")]
            stage = _Stage(_filled(images[0], variables) if images else "")
        else:
            words = _docker_words(rest, variables, file, number)
            stage.line = number
            if instruction == "CMD":
                stage.command = words
            else:
                stage.entrypoint, stage.command = words, []
    entrypoint = stage.entrypoint or (image_program(stage.image) if stage.command[:1] != ["vllm"] else [])
    if entrypoint or stage.command:
        yield from ((stage.line, words) for words in _unshelled([*entrypoint, *stage.command], file, stage.line))


def _set_all(text: str, variables: dict[str, str]) -> None:
    """Note the values of ENV NAME=VALUE ..., ENV NAME VALUE, or ARG NAME=VALUE."""
    try:
        words = shlex.split(text)
    except ValueError:
        return
    if len(words) == 2 and "=" not in words[0]:
        words = [f"{words[0]}={words[1]}"]
    for word in words:
        name, equals, value = word.partition("=")
        if equals:
            variables[name] = _filled(value, variables)


def _docker_words(rest: str, variables: Mapping[str, str], file: str, number: int) -> list[str]:
    """Return the words of an exec form (JSON) or of the first server in a shell form."""
    if rest.startswith("["):
        try:
            words = json.loads(rest)
        except (ValueError, RecursionError):
            words = None
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise SpecError([Problem(file, number, 1, "", "is not a JSON list of words, as it starts out to be")])
        return [_filled(word, variables) for word in words]
    return next(_shell_words(rest, variables, file, number), [])


# --- Compose ----------------------------------------------------------------------------------------------------------


def _compose(text: str, file: str) -> Iterator[_Found]:
    """Yield the command of every service of a compose file."""
    services = _value(_lenient_yaml(text, file), "services")
    for service, line in services.values() if isinstance(services, dict) else ():
        if not isinstance(service, dict):
            continue
        parts = [_compose_words(_value(service, key), file, line) for key in ("entrypoint", "command")]
        words = [word for part in parts for word in part]
        image = _value(service, "image")
        if not parts[0] and isinstance(image, str) and (not words or words[0].startswith("-")):
            words = image_program(_filled(image, {})) + words if words else []
        if words:
            settings = [word for word in _environment(service) if word.startswith("LLAMA_ARG_")]
            yield from ((line, [*settings, *each]) for each in _unshelled(words, file, line))


def _value(service: Mapping[str, Any], key: str) -> Any:
    return service[key][0] if key in service else None


def _compose_words(value: Any, file: str, line: int) -> list[str]:
    """Return the words of a command: a list, or a text that is split as a shell would."""
    if isinstance(value, list):
        words = [item for item, _ in value if isinstance(item, str)]
    elif isinstance(value, str):
        try:
            words = shlex.split(value)
        except ValueError:
            raise SpecError([Problem(file, line, 1, "command", "a quotation mark is not closed")]) from None
    else:
        return []
    return [_filled(word.replace("$$", "$"), {}) for word in words]


def _environment(service: Mapping[str, Any]) -> list[str]:
    """Return a service's environment as NAME=VALUE."""
    value = _value(service, "environment")
    if isinstance(value, dict):
        return [f"{name}={item}" for name, (item, _) in value.items()]
    return [item for item, _ in value if isinstance(item, str)] if isinstance(value, list) else []


def _lenient_yaml(text: str, file: str) -> dict[str, Any]:
    """Return a YAML mapping as plain data: name -> (value, line), lists of (value, line), every scalar as text.

    Unlike a spec, a compose file may use anchors, and its numbers, switches and ports are of no interest here.
    """
    import yaml

    events = iter(yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    try:
        for event in events:
            if isinstance(event, yaml.MappingStartEvent):
                mapping: dict[str, Any] = _Yaml(lambda: next(events)).mapping(1)
                return mapping
            if isinstance(event, (yaml.ScalarEvent, yaml.SequenceStartEvent)):
                break
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise SpecError([Problem(file, *place, "", f"not valid YAML: {error.problem or error.context}")]) from None
    except (yaml.YAMLError, _TooDeepError):
        message = f"not a compose file: control characters, or nested deeper than {_MAX_DEPTH} levels"
        raise SpecError([Problem(file, 1, 1, "", message)]) from None
    raise SpecError([Problem(file, 1, 1, "", "not a compose file: the top level must be a mapping")])


class _TooDeepError(Exception):
    """Deeper than any compose file."""


class _Yaml:
    """Builds data from libyaml's events; aliases stand for what was anchored, `<<` for the keys of a mapping."""

    def __init__(self, following: Callable[[], Any]) -> None:
        self._next = following
        self._anchors: dict[str, Any] = {}

    def mapping(self, depth: int) -> dict[str, Any]:
        """Return the mapping that has just started."""
        import yaml

        merged: dict[str, Any] = {}
        own: dict[str, Any] = {}
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            line = event.start_mark.line + 1
            key = self._node(event, depth)
            value = self._node(self._next(), depth)
            if key == "<<":
                for each in [value] if isinstance(value, dict) else [item for item, _ in value or [] if item]:
                    merged.update(each if isinstance(each, dict) else {})
            elif isinstance(key, str):
                own[key] = (value, line)
        return {**merged, **own}

    def _node(self, event: Any, depth: int) -> Any:
        import yaml

        if isinstance(event, yaml.AliasEvent):
            return self._anchors.get(str(event.anchor))
        if isinstance(event, yaml.ScalarEvent):
            value: Any = str(event.value)
        elif depth >= _MAX_DEPTH:
            raise _TooDeepError
        elif isinstance(event, yaml.MappingStartEvent):
            value = self.mapping(depth + 1)
        else:
            value = []
            while not isinstance(item := self._next(), yaml.SequenceEndEvent):
                value.append((self._node(item, depth + 1), item.start_mark.line + 1))
        if event.anchor is not None:
            self._anchors[event.anchor] = value
        return value
