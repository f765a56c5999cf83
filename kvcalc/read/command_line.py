"""Server command lines as a model and options: `vllm serve ...`, `llama-server ...`.

The same words are found in a shell script, in a Dockerfile's CMD or ENTRYPOINT, and in a compose file's `command:`.
Flags that decide the cache are taken over; flags that are known not to matter are dropped; the rest is listed as
unknown, so that nobody takes an answer for more than it is.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvcalc.errors import BadInput, Problem, SpecError
from kvcalc.units import parse_bytes, parse_tokens
from kvcalc.yaml_tree import parse, read_text


@dataclass(frozen=True)
class ServerCommand:
    """What a server's command line says about its cache.

    `arguments` are those of `kvcalc.prepare` (tp, kv_dtype, ...), `options` the engine's own. `context` and `batch` are
    None where the command leaves them to the server. `line` is where the command stands in its file, 1 for plain words.
    """

    engine: str
    model: str
    context: int | None = None
    batch: int | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    utilization: str | None = None
    kv_memory: int | None = None
    unknown: tuple[str, ...] = ()
    line: int = 1


@dataclass(frozen=True)
class _Flag:
    """What one flag means: the field it sets, and how many words follow it (0 for a switch)."""

    target: str
    words: int = 1
    value: str | None = None  # what a switch sets


def _argument(name: str) -> _Flag:
    return _Flag(f"arguments.{name}")


def _option(name: str) -> _Flag:
    return _Flag(f"options.{name}")


def _switch(name: str, value: str) -> _Flag:
    return _Flag(f"options.{name}", 0, value)


_IGNORED = _Flag("", 1)
_IGNORED_SWITCH = _Flag("", 0)

# vLLM 0.33.0, `vllm serve --help`. Every flag may be written with - or _ and as --flag=value.
_VLLM: dict[str, _Flag] = {
    "--model": _Flag("model"),
    "--tensor-parallel-size": _argument("tp"),
    "-tp": _argument("tp"),
    "--pipeline-parallel-size": _argument("pp"),
    "-pp": _argument("pp"),
    "--data-parallel-size": _argument("dp"),
    "-dp": _argument("dp"),
    "--decode-context-parallel-size": _argument("dcp"),
    "-dcp": _argument("dcp"),
    "--dtype": _argument("dtype"),
    "--kv-cache-dtype": _option("kv_cache_dtype"),
    "--max-model-len": _Flag("context"),
    "--max-num-seqs": _Flag("batch"),
    "--gpu-memory-utilization": _Flag("utilization"),
    "--kv-cache-memory-bytes": _Flag("kv_memory"),
    "--block-size": _option("block_size"),
    "--max-num-batched-tokens": _option("max_num_batched_tokens"),
    "--num-gpu-blocks-override": _option("num_gpu_blocks_override"),
    "--mamba-cache-dtype": _option("mamba_cache_dtype"),
    "--mamba-ssm-cache-dtype": _option("mamba_ssm_cache_dtype"),
    "--attention-backend": _option("attention_backend"),
    "--enable-prefix-caching": _switch("enable_prefix_caching", "true"),
    "--no-enable-prefix-caching": _switch("enable_prefix_caching", "false"),
    "--async-scheduling": _switch("async_scheduling", "true"),
    "--no-async-scheduling": _switch("async_scheduling", "false"),
    "--disable-hybrid-kv-cache-manager": _switch("disable_hybrid_kv_cache_manager", "true"),
    "--no-disable-hybrid-kv-cache-manager": _switch("disable_hybrid_kv_cache_manager", "false"),
    **dict.fromkeys(
        ("--host", "--port", "--api-key", "--served-model-name", "--tokenizer", "--tokenizer-mode", "--revision",
         "--download-dir", "--load-format", "--seed", "--chat-template", "--tool-call-parser", "--reasoning-parser",
         "--uvicorn-log-level", "--root-path", "--ssl-keyfile", "--ssl-certfile", "--distributed-executor-backend",
         "--generation-config", "--max-logprobs", "--allowed-origins"),
        _IGNORED,
    ),
    **dict.fromkeys(
        ("--trust-remote-code", "--enable-auto-tool-choice", "--disable-log-requests", "--enable-log-requests",
         "--disable-log-stats", "--enable-chunked-prefill", "--enable-expert-parallel"),
        _IGNORED_SWITCH,
    ),
}  # fmt: skip

# llama.cpp's common arguments at commit 0c1e5709 (2026-10).
_LLAMA: dict[str, _Flag] = {
    **dict.fromkeys(("-m", "--model", "-hf", "-hfr", "--hf-repo"), _Flag("model")),
    **dict.fromkeys(("-c", "--ctx-size"), _option("n_ctx")),
    **dict.fromkeys(("-np", "--parallel"), _option("n_seq_max")),
    **dict.fromkeys(("-b", "--batch-size"), _option("n_batch")),
    **dict.fromkeys(("-ub", "--ubatch-size"), _option("n_ubatch")),
    **dict.fromkeys(("-ctk", "--cache-type-k"), _option("type_k")),
    **dict.fromkeys(("-ctv", "--cache-type-v"), _option("type_v")),
    **dict.fromkeys(("-ngl", "--gpu-layers", "--n-gpu-layers"), _option("n_gpu_layers")),
    **dict.fromkeys(("-ts", "--tensor-split"), _option("tensor_split")),
    **dict.fromkeys(("-dev", "--device"), _option("device")),
    **dict.fromkeys(("-kvu", "--kv-unified"), _switch("kv_unified", "true")),
    **dict.fromkeys(("-no-kvu", "--no-kv-unified"), _switch("kv_unified", "false")),
    **dict.fromkeys(("-nkvo", "--no-kv-offload"), _switch("no_kv_offload", "true")),
    "--swa-full": _switch("swa_full", "true"),
    **dict.fromkeys(("-fa", "--flash-attn"), _option("flash_attn")),
    **dict.fromkeys(
        ("--host", "--port", "--api-key", "-t", "--threads", "-tb", "--threads-batch", "-a", "--alias", "--temp",
         "--top-k", "--top-p", "--min-p", "-n", "--predict", "--n-predict", "--chat-template", "-s", "--seed",
         "--log-file", "--timeout", "-to", "--slot-save-path", "--n-cpu-moe", "-ncmoe", "-ot", "--override-tensor"),
        _IGNORED,
    ),
    **dict.fromkeys(
        ("--jinja", "--mlock", "--no-mmap", "-cb", "--cont-batching", "--metrics", "--no-webui", "-v", "--verbose",
         "--embedding", "--embeddings", "--slots", "--log-disable"),
        _IGNORED_SWITCH,
    ),
}  # fmt: skip

_FLASH_VALUES = ("on", "off", "auto", "0", "1", "-1", "true", "false")
_SETS_ENVIRONMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*")
_WRAPPERS = ("exec", "sudo", "nohup", "time", "env", "numactl", "uv", "run")


def parse_command(words: Sequence[str], line: int = 1) -> ServerCommand:
    """Return what the words of one command say; BadInput if they start no server that is known.

    Variables (`$MODEL`) are left as they are and reported where a number or a model is needed.
    """
    rest = _strip_wrappers(list(words))
    engine, flags, rest = _server(rest)
    return _Reader(engine, flags, line).read(rest)


def flag_of(engine: str, option: str, value: str) -> tuple[str, ...]:
    """Return the words of a command line that set an engine's own option; none where no flag does."""
    flags = _VLLM if engine == "vllm" else _LLAMA
    for name, flag in flags.items():
        if flag.target == f"options.{option}" and (flag.words or flag.value == value):
            return (name, value) if flag.words else (name,)
    return ()


def read_commands(path: Path) -> tuple[ServerCommand, ...]:
    """Return the server commands in a shell script, Dockerfile or compose file; SpecError if there is none."""
    text = read_text(path)
    is_compose = path.suffix in (".yaml", ".yml")
    lines = _compose_commands(text, str(path)) if is_compose else _script_commands(text)
    found = []
    for number, words in lines:
        try:
            found.append(parse_command(words, number))
        except _NotAServer:
            continue
        except BadInput as error:
            raise SpecError([Problem(str(path), number, 1, "", str(error))]) from None
    if not found:
        message = "has no command that starts vllm serve or llama-server"
        raise SpecError([Problem(str(path), 1, 1, "", message)])
    return tuple(found)


class _NotAServer(BadInput):
    """Words that start something else."""


def _strip_wrappers(words: list[str]) -> list[str]:
    """Return the words without what only prepares the command: variables, exec, sudo."""
    while words and (_SETS_ENVIRONMENT.fullmatch(words[0]) or words[0] in _WRAPPERS):
        words = words[1:]
    return words


def _server(words: list[str]) -> tuple[str, dict[str, _Flag], list[str]]:
    """Return the engine, its flags and the words after the program's name."""
    program = words[0].replace("\\", "/").rsplit("/", 1)[-1].removesuffix(".exe") if words else ""
    if program == "vllm" and words[1:2] == ["serve"]:
        return "vllm", _VLLM, words[2:]
    if program.startswith("python") and words[1:2] == ["-m"] and "vllm.entrypoints" in "".join(words[2:3]):
        return "vllm", _VLLM, words[3:]
    if program in ("llama-server", "llama-cli"):
        return "llama.cpp", _LLAMA, words[1:]
    if program == "vllm":
        raise _NotAServer("only 'vllm serve MODEL ...' starts a server")
    raise _NotAServer(f"'{program or 'nothing'}' is no server that is known; write vllm serve ... or llama-server ...")


class _Reader:
    """Collects what the flags of one command set."""

    def __init__(self, engine: str, flags: dict[str, _Flag], line: int) -> None:
        self.engine = engine
        self.flags = flags
        self.line = line
        self.found: dict[str, str] = {}
        self.unknown: list[str] = []

    def read(self, words: list[str]) -> ServerCommand:
        """Return the command that the words describe."""
        while words:
            words = self._flag(words) if words[0].startswith("-") else self._positional(words)
        return self._command()

    def _positional(self, words: list[str]) -> list[str]:
        if self.engine == "vllm" and "model" not in self.found:
            self.found["model"] = words[0]
        else:
            self.unknown.append(words[0])
        return words[1:]

    def _flag(self, words: list[str]) -> list[str]:
        name, equals, value = words[0].partition("=")
        known = self.flags.get(name) or self.flags.get(name.replace("_", "-"))
        rest = [value, *words[1:]] if equals else words[1:]
        if known is None:
            return self._unknown_flag(words[0], words[1:])
        if known.target == "options.flash_attn" and (not rest or rest[0] not in _FLASH_VALUES):
            known = _switch("flash_attn", "on")  # before 2025-08 the flag was a switch
        if known.words == 0:
            self._set(known.target, "true" if known.value is None else known.value)
            return rest
        if not rest:
            raise BadInput(f"{name} needs a value")
        self._set(known.target, rest[0])
        return rest[1:]

    def _unknown_flag(self, flag: str, rest: list[str]) -> list[str]:
        """List an unknown flag with its values: the words up to the next flag."""
        taken = next((index for index, word in enumerate(rest) if word.startswith("-")), len(rest))
        if self.engine == "vllm" and "model" not in self.found and taken > 1:
            taken = 1  # the model may still follow
        self.unknown.append(" ".join([flag, *rest[:taken]]))
        return rest[taken:]

    def _set(self, target: str, value: str) -> None:
        if target:
            self.found[target] = value

    def _command(self) -> ServerCommand:
        if "model" not in self.found:
            raise BadInput("the command names no model")
        arguments: dict[str, Any] = {}
        for name in ("tp", "pp", "dp", "dcp"):
            if (text := self.found.get(f"arguments.{name}")) is not None:
                arguments[name] = _whole_number(text, name)
        dtype = self.found.get("arguments.dtype")
        if dtype not in (None, "auto"):
            arguments["dtype"] = dtype
        options = {name[8:]: value for name, value in self.found.items() if name.startswith("options.")}
        if options.get("kv_cache_dtype") == "auto":
            del options["kv_cache_dtype"]
        context, batch = self._context_and_batch(options)
        memory = self.found.get("kv_memory")
        return ServerCommand(
            self.engine,
            self.found["model"],
            context,
            batch,
            arguments,
            options,
            self.found.get("utilization"),
            None if memory is None else parse_bytes(memory, "--kv-cache-memory-bytes"),
            tuple(self.unknown),
            self.line,
        )

    def _context_and_batch(self, options: dict[str, str]) -> tuple[int | None, int | None]:
        """Return tokens per sequence and sequences; llama.cpp's -c counts the tokens of all slots together."""
        if self.engine == "vllm":
            length, sequences = self.found.get("context"), self.found.get("batch")
            context = None if length in (None, "-1", "auto") else parse_tokens(str(length), "--max-model-len")
            return context, None if sequences is None else _whole_number(sequences, "--max-num-seqs")
        slots = _whole_number(options["n_seq_max"], "-np") if "n_seq_max" in options else None
        total = _whole_number(options["n_ctx"], "-c", lowest=0) if "n_ctx" in options else 0
        if not total:
            return None, slots
        return max(total // (slots or 1), 1), slots


def _whole_number(text: str, name: str, lowest: int = 1) -> int:
    if not re.fullmatch(r"[0-9]{1,15}", text) or int(text) < lowest:
        raise BadInput(f"{name} {text} is not a whole number from {lowest} on")
    return int(text)


def _script_commands(text: str) -> list[tuple[int, list[str]]]:
    """Return (line, words) of every command in a shell script or Dockerfile, continued lines joined."""
    found = []
    number, pending, start = 0, "", 1
    for number, raw in enumerate(text.splitlines(), 1):
        start = start if pending else number
        if raw.rstrip().endswith("\\"):
            pending += raw.rstrip()[:-1] + " "
            continue
        found += [(start, words) for words in _split_line(pending + raw)]
        pending = ""
    if pending:
        found += [(start, words) for words in _split_line(pending)]
    return found


def _split_line(line: str) -> list[list[str]]:
    """Return the words of each command on one logical line; a Dockerfile's exec form is JSON."""
    instruction = re.match(r"\s*(?:CMD|ENTRYPOINT|RUN)\s+(.*)", line, re.IGNORECASE | re.DOTALL)
    body = instruction[1].strip() if instruction else line
    if instruction and body.startswith("["):
        try:
            words = json.loads(body)
        except ValueError:
            return []
        return [[str(word) for word in words]] if isinstance(words, list) else []
    lexer = shlex.shlex(body, posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    try:
        tokens = list(lexer)
    except ValueError:  # an unbalanced quote: not a command that could be judged
        return []
    commands: list[list[str]] = [[]]
    for token in tokens:
        if token and set(token) <= set(";&|"):
            commands.append([])
        else:
            commands[-1].append(token)
    return [words for words in commands if words]


def _compose_commands(text: str, file: str) -> list[tuple[int, list[str]]]:
    """Return (line, words) of every `command` and `entrypoint` of a compose file's services."""
    tree = parse(text, file)
    services = tree.data.get("services") if isinstance(tree.data, dict) else None
    found = []
    for name, service in services.items() if isinstance(services, dict) else ():
        if not isinstance(service, dict):
            continue
        words = [word for key in ("entrypoint", "command") for word in _compose_words(service.get(key))]
        image = service.get("image")
        if words and words[0].startswith("-") and isinstance(image, str):
            words = _image_program(image) + words
        if words:
            found.append((tree.keys[("services", name)][0], words))
    return found


def _compose_words(value: Any) -> list[str]:
    if isinstance(value, list):
        return [str(word) for word in value]
    try:
        return shlex.split(value) if isinstance(value, str) else []
    except ValueError:
        return []


def _image_program(image: str) -> list[str]:
    """Return the program that a well-known image starts, whose compose command holds only its flags."""
    if "vllm" in image:
        return ["vllm", "serve"]
    return ["llama-server"] if "llama" in image else []
