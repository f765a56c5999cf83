"""Server command lines as a model and options: `vllm serve ...`, `llama-server ...`.

The words come from a user, or from a script, Dockerfile or compose file (`command_files`). Flags that decide the cache
are taken over; flags that are known not to matter are dropped; the rest is listed as unknown, so that nobody takes an
answer for more than it is.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from kvcalc.errors import BadInput


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
    eager: bool = False  # without CUDA graphs
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
    **dict.fromkeys(("--quantization", "-q"), _Flag("quantization")),
    "--enforce-eager": _Flag("eager", 0, "true"),
    "--no-enforce-eager": _Flag("eager", 0, ""),
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

# Values of -fa; before 2025-08 the flag was a switch.
_FLASH_VALUES = {"on": "on", "off": "off", "auto": "auto", "1": "on", "0": "off", "-1": "auto", "true": "on",
                 "false": "off"}  # fmt: skip
_SWITCH_VALUES = {"true": True, "1": True, "on": True, "false": False, "0": False, "off": False}
# vLLM's numbers: k, m and g are powers of 1000, K, M and G of 1024.
_VLLM_NUMBER = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)([kmgtKMGT]?)")
# Lengths with which vLLM takes the longest that fits.
_LOWERED = ("auto", "-1")
_VLLM_COUNTS = ("block_size", "max_num_batched_tokens", "num_gpu_blocks_override")

# What vLLM calls a way to load weights -> the format of them. Those that stand for several formats
# (compressed-tensors, gguf) are left out; of gptq checkpoints most have 4 bits.
_QUANTIZATIONS = {
    **dict.fromkeys(("awq", "awq_marlin"), "awq"),
    **dict.fromkeys(("gptq", "gptq_marlin"), "w4a16"),
    **dict.fromkeys(("fp8", "fbgemm_fp8", "ptpc_fp8", "modelopt"), "vllm-fp8"),
    **dict.fromkeys(("modelopt_fp4", "nvfp4"), "vllm-nvfp4"),
    "mxfp4": "vllm-mxfp4",
    "bitsandbytes": "nf4",
}

_SETS_ENVIRONMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
# Programs that start the program that follows them, perhaps after options of their own.
_WRAPPERS = ("exec", "sudo", "nohup", "time", "timeout", "env", "numactl", "nice", "stdbuf", "taskset", "uv", "uvx",
             "srun", "tini", "dumb-init")  # fmt: skip
_LONGEST_WRAPPING = 16
_CONTAINERS = ("docker", "podman", "nerdctl")
# llama-server takes its options from the environment as well.
_SETTING = "LLAMA_ARG_"


class NotAServer(BadInput):
    """Words that start something else than a server that is known."""


def parse_command(words: Sequence[str], line: int = 1) -> ServerCommand:
    """Return what the words of one command say; NotAServer (a BadInput) if they start no server that is known.

    What a flag needs and a variable (`$TP`) leaves open is a BadInput, as is a command without a model.
    """
    settings, rest = _unwrapped(words)
    engine, flags, rest = _server(rest)
    reader = _Reader(engine, flags, line)
    if engine == "llama.cpp":
        reader.unknown += settings
    return reader.read(rest)


def flag_of(engine: str, option: str, value: str) -> tuple[str, ...]:
    """Return the words of a command line that set an engine's own option; none where no flag does."""
    flags = _VLLM if engine == "vllm" else _LLAMA
    for name, flag in flags.items():
        if flag.target == f"options.{option}" and (flag.words or flag.value == value):
            return (name, value) if flag.words else (name,)
    return ()


def image_program(image: str) -> list[str]:
    """Return the words that a well-known container image starts with; none for any other image."""
    name = image.rsplit("/", 1)[-1]
    if name.split(":", 1)[0].split("@", 1)[0] == "vllm-openai":
        return ["vllm", "serve"]
    server = name.startswith("llama.cpp:") and "server" in name
    return ["llama-server"] if server else []


def _unwrapped(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the settings of llama-server in front, and the words without what only prepares the command."""
    at, settings = 0, []
    while at < len(words) and _SETS_ENVIRONMENT.fullmatch(words[at]):
        if words[at].startswith(_SETTING):
            settings.append(words[at])
        at += 1
    if at < len(words) and _base_name(words[at]) in _WRAPPERS:
        last = min(at + _LONGEST_WRAPPING, len(words))
        settings += [word for word in words[at:last] if word.startswith(_SETTING)]
        at = next((place for place in range(at, last) if _is_server(words[place : place + 2])), at)
    elif at < len(words) and _base_name(words[at]) in _CONTAINERS:
        for place in range(at, min(at + 1_000, len(words))):
            started = image_program(words[place])
            if started:
                return settings, [*started, *words[place + 1 :]]
    return settings, list(words[at:])


def _base_name(word: str) -> str:
    return word.replace("\\", "/").rsplit("/", 1)[-1].removesuffix(".exe")


def _is_server(words: Sequence[str]) -> bool:
    program, after = _base_name(words[0]), list(words[1:2])
    return program == "llama-server" or (program, after) == ("vllm", ["serve"]) or program.startswith("python")


def _server(words: list[str]) -> tuple[str, dict[str, _Flag], list[str]]:
    """Return the engine, its flags and the words after the program's name."""
    program = _base_name(words[0]) if words else ""
    if program == "vllm" and words[1:2] == ["serve"]:
        return "vllm", _VLLM, words[2:]
    if program.startswith("python") and words[1:2] == ["-m"] and "vllm.entrypoints" in "".join(words[2:3]):
        return "vllm", _VLLM, words[3:]
    if program in ("llama-server", "llama-cli"):
        return "llama.cpp", _LLAMA, words[1:]
    if program == "vllm":
        raise NotAServer("only 'vllm serve MODEL ...' starts a server")
    named = program if len(program) <= 40 else f"{program[:37]}..."
    raise NotAServer(f"'{named or 'nothing'}' is no server that is known; write vllm serve ... or llama-server ...")


class _Reader:
    """Collects what the flags of one command set."""

    def __init__(self, engine: str, flags: dict[str, _Flag], line: int) -> None:
        self.engine = engine
        self.flags = flags
        self.line = line
        self.found: dict[str, str] = {}
        self.unknown: list[str] = []

    def read(self, words: Sequence[str]) -> ServerCommand:
        """Return the command that the words describe."""
        left = deque(words)
        while left:
            word = left.popleft()
            if word.startswith("-") and len(word) > 1:
                self._flag(word, left)
            elif self.engine == "vllm" and "model" not in self.found:
                self.found["model"] = word
            else:
                self.unknown.append(word)
        return self._command()

    def _flag(self, word: str, left: deque[str]) -> None:
        """Take one flag, and its value from what is left."""
        name, equals, value = word.partition("=")
        known = self.flags.get(name) or self.flags.get(name.replace("_", "-"))
        if known is None:
            self._unknown_flag(word, left)
        elif known.target == "options.flash_attn":
            value = value if equals else left[0] if left else ""
            if not equals and value in _FLASH_VALUES:
                left.popleft()
            self.found[known.target] = _FLASH_VALUES.get(value, "on")
        elif known.words == 0:
            self._switch(word, known, value if equals else "true")
        elif equals or left:
            self._set(known, name, value if equals else left.popleft())
        else:
            raise BadInput(f"{name} needs a value")

    def _switch(self, word: str, known: _Flag, value: str) -> None:
        """Take a switch; `--switch=false` leaves the default."""
        if value.lower() not in _SWITCH_VALUES:
            self.unknown.append(word)
        elif _SWITCH_VALUES[value.lower()] and known.target:
            self.found[known.target] = "true" if known.value is None else known.value

    def _set(self, known: _Flag, name: str, value: str) -> None:
        if "$" in value and known.target:
            raise BadInput(f"{name} {_shortened(value)}: the value of the variable is not known; write it out")
        if known.target:
            self.found[known.target] = value

    def _unknown_flag(self, word: str, left: deque[str]) -> None:
        """List an unknown flag with its values: the words up to the next flag."""
        taken = [word]
        while left and not (left[0].startswith("-") and len(left[0]) > 1):
            taken.append(left.popleft())
            if self.engine == "vllm" and "model" not in self.found and left and not left[0].startswith("-"):
                break  # the model may still follow
        self.unknown.append(_shortened(" ".join(taken), 200))

    def _command(self) -> ServerCommand:
        model = self.found.get("model", "")
        if not model:
            seen = f" (not understood: {_shortened(', '.join(self.unknown))})" if self.unknown else ""
            raise BadInput(f"the command names no model{seen}")
        if "$" in model:
            raise BadInput(f"the model is {_shortened(model)}, a variable whose value is not known; write it out")
        dtype = self.found.get("arguments.dtype")
        arguments: dict[str, Any] = {} if dtype in (None, "auto") else {"dtype": dtype}
        for name in ("tp", "pp", "dp", "dcp"):
            if (text := self.found.get(f"arguments.{name}")) is not None:
                arguments[name] = _whole_number(text, name)
        arguments |= self._weights()
        options = {name[8:]: value for name, value in self.found.items() if name.startswith("options.")}
        if options.get("kv_cache_dtype") == "auto":
            del options["kv_cache_dtype"]
        for name in _VLLM_COUNTS:
            if self.engine == "vllm" and name in options:
                options[name] = str(_vllm_number(options[name], f"--{name.replace('_', '-')}"))
        if self.engine == "vllm" and self.found.get("context") in _LOWERED:
            options["auto_fit"] = "true"
        context, batch = self._context_and_batch(options)
        memory = self.found.get("kv_memory")
        return ServerCommand(
            self.engine,
            model,
            context,
            batch,
            arguments,
            options,
            self.found.get("utilization"),
            None if memory is None else _vllm_number(memory, "--kv-cache-memory-bytes"),
            bool(self.found.get("eager")),
            tuple(self.unknown),
            self.line,
        )

    def _weights(self) -> dict[str, str]:
        """Return the format of the weights that vLLM is told to load; a name that says none is listed as unknown."""
        name = self.found.get("quantization")
        if name is None:
            return {}
        known = _QUANTIZATIONS.get(name.lower().replace("-", "_"))
        if known is None:
            self.unknown.append(f"--quantization {_shortened(name)}")
        return {} if known is None else {"weights": known}

    def _context_and_batch(self, options: dict[str, str]) -> tuple[int | None, int | None]:
        """Return tokens per sequence and sequences.

        llama.cpp's -c counts the tokens of all slots together, which share them out evenly unless the cache is unified.
        """
        if self.engine == "vllm":
            length, sequences = self.found.get("context"), self.found.get("batch")
            context = None if length in (None, *_LOWERED) else _vllm_number(str(length), "--max-model-len")
            return context, None if sequences is None else _vllm_number(sequences, "--max-num-seqs")
        slots = _whole_number(options["n_seq_max"], "-np") if "n_seq_max" in options else None
        total = _whole_number(options["n_ctx"], "-c", lowest=0) if "n_ctx" in options else 0
        if not total:
            return None, slots
        each = total if options.get("kv_unified") == "true" else total // (slots or 1)
        return max(each, 1), slots


def _whole_number(text: str, name: str, lowest: int = 1) -> int:
    if not re.fullmatch(r"[0-9]{1,15}", text) or int(text) < lowest:
        raise BadInput(f"{name} {_shortened(text)} is not a whole number from {lowest} on")
    return int(text)


def _vllm_number(text: str, name: str) -> int:
    """Return a number as vLLM reads it: 8192, 8k (8,000), 8K (8,192), 1.5k."""
    match = _VLLM_NUMBER.fullmatch(text)
    if not match:
        raise BadInput(f"{name} {_shortened(text)} is not a whole number")
    power = "kmgt".find(match[2].lower()) + 1 if match[2] else 0
    number = Fraction(match[1]) * (1000 if match[2].islower() else 1024) ** power
    if number.denominator != 1 or number < 1:
        raise BadInput(f"{name} {text} is not a whole number from 1 on")
    return int(number)


def _shortened(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
