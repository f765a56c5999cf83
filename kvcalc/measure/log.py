"""Engine logs as plain facts: what vLLM, SGLang, TensorRT-LLM, llama.cpp and Ollama print about their caches.

A log is read as a stream in bounded memory, whatever it contains: lines are cut, numbers of absurd length are none, and
of every sort of fact only the first values are kept. Nothing here knows a model or an engine's rules.
"""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from kvcalc.errors import BadInput

VLLM, SGLANG, TENSORRT_LLM, LLAMA_CPP, OLLAMA = "vllm", "sglang", "tensorrt-llm", "llama.cpp", "ollama"

# Characters of a line that are looked at; the longest lines that say something, vLLM's and SGLang's arguments, have
# about 8,000.
LONGEST_LINE = 32_768
# Facts of one sort that are kept: more ranks, models or restarts than a log that anyone reads.
MOST_FACTS = 64
_CHUNK = 65_536
_SHOWN = 200

_NUMBER = r"(?:[0-9]{1,3}(?:,[0-9]{3}){1,6}|[0-9]{1,19})(?:\.[0-9]{1,6})?(?![0-9])"
_WORD = r"[\w.+-]{1,60}"
_ANSI = re.compile(r"\x1b(?:\[[0-9;?]{0,30}[ -/]{0,5}[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)?|[@-Z\\-_])")


@dataclass(frozen=True)
class Fact:
    """What one line says: the engine whose words they are, the sort of fact, and its values as printed."""

    engine: str
    name: str
    line: int
    values: Mapping[str, str]
    text: str

    def __getitem__(self, key: str) -> str:
        """Return a value's text."""
        return self.values[key]

    def get(self, key: str) -> str | None:
        """Return a value's text, None where the line does not have it."""
        return self.values.get(key)


@dataclass(frozen=True)
class Log:
    """The facts of a log in the order of its lines; `dropped` counts facts beyond the first of their sort."""

    facts: tuple[Fact, ...]
    lines: int
    dropped: int = 0

    def all(self, name: str) -> tuple[Fact, ...]:
        """Return the facts of one sort."""
        return tuple(fact for fact in self.facts if fact.name == name)

    def values(self, name: str, key: str) -> tuple[str, ...]:
        """Return what the facts of one sort have for a key, in order."""
        return tuple(fact.values[key] for fact in self.all(name) if key in fact.values)

    def last(self, name: str, key: str) -> str | None:
        """Return the last of these, None if there is none."""
        found = self.values(name, key)
        return found[-1] if found else None

    @property
    def engines(self) -> tuple[str, ...]:
        """The engines whose figures of a cache the log has, the one with most first; Ollama speaks for its runner."""
        counts: dict[str, int] = {}
        for fact in self.facts:
            if fact.name in _FIGURES:
                counts[fact.engine] = counts.get(fact.engine, 0) + 1
        if LLAMA_CPP in counts and any(fact.engine == OLLAMA for fact in self.facts):
            counts[OLLAMA] = counts.get(OLLAMA, 0) + counts.pop(LLAMA_CPP)
        return tuple(sorted(counts, key=lambda engine: -counts[engine]))


# Lines ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Line:
    """One form of line: a word that it must contain, and the expressions whose named groups are its values.

    `several`: equal lines are told apart (llama.cpp prints one for each cache), else they are one worker's echo of
    another. `pairs` takes all `key=value` of the line.
    """

    engine: str
    name: str
    word: str
    expressions: tuple[re.Pattern[str], ...] = ()
    figure: bool = True
    several: bool = False
    pairs: re.Pattern[str] | None = None


def _line(engine: str, name: str, word: str, *expressions: str, figure: bool = True, several: bool = False) -> _Line:
    made = tuple(re.compile(text.replace("<N>", _NUMBER).replace("<W>", _WORD)) for text in expressions)
    return _Line(engine, name, word, made, figure, several)


def _pairs(engine: str, name: str, word: str, expression: re.Pattern[str]) -> _Line:
    return _Line(engine, name, word, figure=False, pairs=expression)


_VALUE = r"""(?P<value>'[^']{0,400}'|"[^"]{0,400}"|[^,'"{}()\[\]]{1,80})"""
_ASSIGNED = re.compile(r"(?P<key>\b[a-z][a-z_0-9]{1,40})=" + _VALUE)
_ENVIRONMENT = re.compile(r"OLLAMA_(?P<key>KV_CACHE_TYPE|NUM_PARALLEL|CONTEXT_LENGTH):(?P<value>\w{1,12})")
_QUOTED = re.compile(r"'(?P<key>[a-z][a-z_0-9]{1,40})': ?" + _VALUE)

_CONTEXT = (
    r": (?P<key>n_ctx(?:_seq|_per_seq)?|n_seq_max|n_batch|n_ubatch|kv_unified|flash_attn) +=[ ]*(?P<value>[\w.]{1,20})"
)
_SHAPE = r" \( *(?P<cells><N>) cells, *(?P<layers><N>) layers, *(?P<sequences><N>)"
_SIZES = r"K \((?P<k_type>\w{1,12})\): *(?P<k>-?<N>) MiB, V \((?P<v_type>\w{1,12})\): *(?P<v><N>) MiB"

_LINES: tuple[_Line, ...] = (
    # vLLM
    _pairs(VLLM, "vllm config", "engine (v", _ASSIGNED),
    _pairs(VLLM, "vllm arguments", "non-default args", _QUOTED),
    _pairs(VLLM, "vllm scheduler", "max_num_batched_tokens=", _ASSIGNED),
    _line(VLLM, "vllm version", "engine (v", r"engine \(v(?P<version><W>)\)", figure=False),
    _line(
        VLLM,
        "vllm backend",
        " backend",
        r"Using (?:\w{1,40}\.)?(?P<backend>[A-Z][A-Z0-9_]{2,40}) (?:attention )?backend",
        figure=False,
    ),
    _line(VLLM, "vllm memory", "KV cache memory: ", r"Available KV cache memory: (?P<gib><N>) GiB"),
    _line(VLLM, "vllm memory", "reserved for KV Cache is", r"reserved for KV Cache is (?P<gib><N>) ?GiB"),
    _line(VLLM, "vllm tokens", "GPU KV cache size", r"GPU KV cache size: (?P<tokens><N>) tokens"),
    _line(
        VLLM,
        "vllm concurrency",
        "Maximum concurrency",
        r"Maximum concurrency for (?P<context><N>) tokens per request: (?P<times><N>)x",
    ),
    _line(
        VLLM, "vllm blocks", " blocks: ", r"# (?:GPU|cuda|CUDA) blocks: (?P<gpu><N>)(?:, # CPU blocks: (?P<cpu><N>))?"
    ),
    _line(VLLM, "vllm stored", "stored in KV cache", r"stored in KV cache \((?P<tokens><N>)\)"),
    _line(
        VLLM,
        "vllm refusal",
        "KV cache is needed",
        r"\(?(?P<needed><N>) GiB KV cache is needed",
        r"max seq len \((?P<context><N>)\)",
        r"available KV cache memory \((?P<available><N>) GiB\)",
        r"estimated maximum model length is (?P<estimate><N>)",
    ),
    _line(VLLM, "vllm block size", "attention block size to", r"attention block size to (?P<tokens><N>) tokens"),
    _line(VLLM, "vllm padding", "mamba page size by", r"mamba page size by (?P<percent><N>)%"),
    # SGLang
    _pairs(SGLANG, "sglang arguments", "ServerArgs(", _ASSIGNED),
    _line(SGLANG, "sglang before", "Load weight begin", r"avail mem=(?P<gb><N>) GB", figure=False),
    _line(
        SGLANG,
        "sglang after",
        "Load weight end",
        r"avail mem=(?P<gb><N>) GB",
        r"dtype=torch\.(?P<dtype><W>)",
        figure=False,
    ),
    _line(
        SGLANG,
        "sglang cache",
        "KV Cache is allocated",
        r"#tokens: (?P<tokens><N>), (?:K size: (?P<k><N>) GB, V size: (?P<v><N>) GB|KV size: (?P<kv><N>) GB)",
        r"dtype: torch\.(?P<dtype><W>),",
    ),
    _line(
        SGLANG,
        "sglang states",
        "Mamba Cache",
        r"max_mamba_cache_size: (?P<slots><N>), conv_state(?: size:)? (?P<conv><N>) ?GB",
        r"[ ]ssm_state(?: size:)? (?P<ssm><N>) ?GB",
        r"intermediate_ssm_state_cache(?: size:)? (?P<intermediate><N>) ?GB",
    ),
    _line(
        SGLANG,
        "sglang windowed",
        "SWAKVPool",
        r"SWAKVPool mem usage: (?P<gb><N>) GB, swa size: (?P<swa><N>), full size: (?P<full><N>)",
    ),
    _line(
        SGLANG,
        "sglang pools",
        "full_layer_tokens=",
        r"full_layer_tokens=(?P<full><N>)(?: \([^)]{0,40}\))?, swa_layer_tokens=(?P<swa><N>)",
    ),
    _line(
        SGLANG,
        "sglang total",
        "max_total_num_tokens=",
        r"max_total_num_tokens=(?P<tokens><N>)",
        r"max_running_requests=(?P<running><N>)",
        r"context_len=(?P<context><N>)",
    ),
    # TensorRT-LLM
    _pairs(TENSORRT_LLM, "tensorrt-llm arguments", "LlmArgs(", _ASSIGNED),
    _line(
        TENSORRT_LLM,
        "tensorrt-llm memory",
        "max tokens in paged kv cache",
        r"total: (?P<total><N>) GiB, available: (?P<available><N>) GiB",
        figure=False,
    ),
    _line(TENSORRT_LLM, "tensorrt-llm blocks", "primary pool", r"blocks in KV cache primary pool: (?P<blocks><N>)"),
    _line(
        TENSORRT_LLM,
        "tensorrt-llm block",
        "tokens per block",
        r"Number of tokens per block: (?P<tokens><N>)",
        figure=False,
    ),
    _line(
        TENSORRT_LLM,
        "tensorrt-llm sequence",
        "per sequence",
        r"Max KV cache (?:pages|blocks) per sequence: (?P<blocks><N>)",
        r"\[window size=(?P<window><N>)\]",
        r"tokens per block=(?P<block><N>)",
        r"primary blocks=(?P<primary><N>)",
    ),
    _line(
        TENSORRT_LLM,
        "tensorrt-llm cache",
        "max tokens in paged KV cache",
        r"Allocated (?P<gib><N>) GiB for max tokens in paged KV cache \((?P<tokens><N>)\)",
    ),
    _line(TENSORRT_LLM, "tensorrt-llm bytes", "bytes for k/v cache", r"Allocate (?P<bytes><N>) bytes for k/v cache"),
    _line(TENSORRT_LLM, "tensorrt-llm tokens", "tokens in paged KV", r"Using (?P<tokens><N>) tokens in paged KV cache"),
    _line(TENSORRT_LLM, "tensorrt-llm cut", "reduced to", r"maxAttentionWindow .{0,120}reduced to (?P<tokens><N>)"),
    _line(
        TENSORRT_LLM,
        "tensorrt-llm window",
        "exceeds upper bound",
        r"window size (?P<window><N>) exceeds upper bound (?P<tokens><N>) for available blocks",
    ),
    _line(TENSORRT_LLM, "tensorrt-llm length", "max_num_requests=", r"max_seq_len=(?P<tokens><N>)", figure=False),
    _line(TENSORRT_LLM, "tensorrt-llm fake", "fake cache manager", r"(?P<fake>fake cache manager)", figure=False),
    # llama.cpp
    *(
        _line(LLAMA_CPP, "llama context", f"{speaker}: ", speaker + _CONTEXT, figure=False, several=True)
        for speaker in ("llama_context", "llama_new_context_with_model", "llama_init_from_model")
    ),
    _line(
        LLAMA_CPP,
        "llama model",
        "general.name",
        r"general\.name[ \w]{0,30}= ?(?P<model>[^\x00-\x1f]{1,200})",
        figure=False,
    ),
    _line(
        LLAMA_CPP, "llama offload", "offloaded", r"offloaded (?P<layers><N>)/(?P<of><N>) layers to GPU", figure=False
    ),
    _line(
        LLAMA_CPP,
        "llama cells",
        "creating",
        r"creating +(?P<which>non-SWA|SWA) KV cache, size = *(?P<cells><N>) cells",
        several=True,
    ),
    _line(
        LLAMA_CPP,
        "llama cache",
        " cells,",
        r"(?P<source>llama_kv_cache\w{0,20}): size = *(?P<size><N>) MiB" + _SHAPE + r"/ *(?P<streams><N>) seqs\)",
        _SIZES,
        several=True,
    ),
    _line(
        LLAMA_CPP,
        "llama states",
        "llama_memory_recurrent: size",
        r"size = *(?P<size><N>) MiB" + _SHAPE + r" seqs(?: +(?P<copies><N>) rs_seq)?\)",
        r"R \(\w{1,12}\): *(?P<r><N>) MiB, S \(\w{1,12}\): *(?P<s><N>) MiB",
        several=True,
    ),
    _line(
        LLAMA_CPP,
        "llama whole cache",
        "self size",
        r"(?i:kv) self size +=[ ]*(?P<size><N>) M(?:i?B)",
        _SIZES,
        r"c\^KV \((?P<k_type>\w{1,12})\)",
        several=True,
    ),
    _line(
        LLAMA_CPP,
        "llama buffer",
        "KV buffer size",
        r"(?P<device>\S{1,60}) KV buffer size = *(?P<size><N>) MiB",
        several=True,
    ),
    # Ollama
    _line(
        OLLAMA,
        "ollama runner",
        "--ctx-size",
        r"--ctx-size (?P<ctx_size><N>)",
        r"--parallel (?P<parallel><N>)",
        r"--batch-size (?P<batch_size><N>)",
        r"--(?:kv-cache-type|cache-type-k) (?P<type>\w{1,12})",
        figure=False,
    ),
    _pairs(OLLAMA, "ollama settings", "OLLAMA_", _ENVIRONMENT),
    _line(
        OLLAMA, "ollama estimate", "memory.required.kv", r'memory\.required\.kv="(?P<size><N>) (?P<unit>[KMGT]?i?B)"'
    ),
    _line(
        OLLAMA,
        "ollama device",
        "kv cache",
        r'kv cache"? device=(?P<device>[\w:.-]{1,60}) size="(?P<size><N>) (?P<unit>[KMGT]?i?B)"',
        several=True,
    ),
)
# The arguments that decide a cache, by their names in any engine.
_WANTED = frozenset(
    {
        "model", "model_path", "dtype", "max_seq_len", "max_model_len", "context_length", "tensor_parallel_size",
        "pipeline_parallel_size", "data_parallel_size", "decode_context_parallel_size", "tp_size", "pp_size", "dp_size",
        "dcp_size", "kv_cache_dtype", "block_size", "page_size", "max_num_batched_tokens", "enable_prefix_caching",
        "async_scheduling", "disable_hybrid_kv_cache_manager", "num_gpu_blocks_override", "swap_space",
        "mamba_cache_dtype", "mamba_ssm_cache_dtype", "speculative_config", "enable_dp_attention",
        "mem_fraction_static", "max_total_tokens", "swa_full_tokens_ratio", "mamba_full_memory_ratio",
        "max_mamba_cache_size", "mamba_ssm_dtype", "disable_radix_cache", "dsa_prefill_backend", "dsa_decode_backend",
        "speculative_algorithm", "tokens_per_block", "free_gpu_memory_fraction", "max_tokens", "enable_attention_dp",
        "KV_CACHE_TYPE", "NUM_PARALLEL", "CONTEXT_LENGTH",
    }
)  # fmt: skip
_FIGURES = {line.name for line in _LINES if line.figure}

# Words that start a server; what follows them is kept as it is.
_SERVERS = re.compile(
    r"(?:vllm serve|sglang\.launch_server|sglang serve|trtllm-serve|llama-server) [^\x00-\x1f]{1,4000}"
)
_SERVER_ENGINES = {"vllm": VLLM, "sgla": SGLANG, "trtl": TENSORRT_LLM, "llam": LLAMA_CPP}

# A part of a log that contains none of these says nothing.
_SERVER_WORDS = {"vllm serve", "launch_server", "sglang serve", "trtllm-serve", "llama-server"}
_WORDS = tuple(sorted({line.word for line in _LINES} | _SERVER_WORDS))


# Reading --------------------------------------------------------------------------------------------------------------


def read_log(path: Path) -> Log:
    """Return the facts of a log file; BadInput if it cannot be opened, or is a folder."""
    try:
        with path.open("rb") as stream:
            return read_stream(stream)
    except OSError as error:
        raise BadInput(f"{path}: {(error.strerror or str(error)).lower()}") from None


def read_stream(stream: BinaryIO) -> Log:
    """Return the facts of a log from its bytes: UTF-8, or UTF-16 with a byte order mark; other bytes are replaced."""
    return _read_blocks(_blocks(stream))


def read_lines(lines: Iterable[str]) -> Log:
    """Return the facts of a log from its lines."""
    return _read_blocks(f"{line}\n" for line in lines)


def _read_blocks(blocks: Iterable[str]) -> Log:
    """Return the facts of a log from pieces of its text, of which a line may be cut anywhere.

    Lines are told apart only in pieces that contain a word of a form of line: most of a log is not.
    """
    collector, number, rest = _Collector(), 0, ""
    for block in blocks:
        text = rest + block.replace("\x00", "")
        rest = text[text.rfind("\n") + 1 :][:LONGEST_LINE]  # what is beyond is cut off again until the line ends
        words = [word for word in _WORDS if word in text]
        if not words:
            number += text.count("\n")
            continue
        for line in text.split("\n")[:-1]:
            number += 1
            if any(word in line for word in words):
                collector.add(number, _clean(line[:LONGEST_LINE]))
    if rest:
        number += 1
        collector.add(number, _clean(rest))
    return Log(tuple(collector.facts), number, collector.dropped)


def _blocks(stream: BinaryIO) -> Iterator[str]:
    """Yield the text of a stream in pieces; a lone carriage return ends a line too."""
    chunk = stream.read(_CHUNK)
    decoder = io.IncrementalNewlineDecoder(_decoder(chunk), translate=True)
    while chunk:
        yield decoder.decode(chunk)
        chunk = stream.read(_CHUNK)
    yield decoder.decode(b"", final=True)


def _decoder(start: bytes) -> codecs.IncrementalDecoder:
    """Return a decoder by the byte order mark at the start, UTF-8 without one; what cannot be decoded is replaced."""
    name = "utf-16" if start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"
    return codecs.getincrementaldecoder(name)(errors="replace")


def _clean(line: str) -> str:
    """Return a line without colours, other control characters as spaces."""
    plain = _ANSI.sub("", line)
    return plain if plain.isprintable() else "".join(char if char.isprintable() else " " for char in plain)


@dataclass
class _Collector:
    """Facts so far; of each sort the first, equal ones once unless they are told apart."""

    facts: list[Fact] = field(default_factory=list)
    dropped: int = 0
    _counts: dict[str, int] = field(default_factory=dict)
    _seen: set[tuple[str, tuple[tuple[str, str], ...]]] = field(default_factory=set)

    def add(self, number: int, text: str) -> None:
        """Add what a line says."""
        for form in _LINES:
            if form.word in text:
                values = _pair_values(form.pairs, text) if form.pairs else _group_values(form.expressions, text)
                if values:
                    self._keep(Fact(form.engine, form.name, number, values, text.strip()[:_SHOWN]), form.several)
        started = _SERVERS.search(text)
        if started:
            engine = _SERVER_ENGINES[started[0][:4]]
            self._keep(Fact(engine, "command", number, {"command": started[0]}, started[0][:_SHOWN]), False)

    def _keep(self, fact: Fact, several: bool) -> None:
        key = (fact.name, tuple(sorted(fact.values.items())))
        if not several and key in self._seen:
            return
        count = self._counts.get(fact.name, 0)
        if count >= MOST_FACTS:
            self.dropped += 1
            return
        self._counts[fact.name] = count + 1
        self._seen.add(key)
        self.facts.append(fact)


def _group_values(expressions: Sequence[re.Pattern[str]], text: str) -> dict[str, str]:
    """Return the named groups of the expressions; nothing unless the first one matches."""
    found: dict[str, str] = {}
    for place, expression in enumerate(expressions):
        match = expression.search(text)
        if match is not None:
            found.update({key: value for key, value in match.groupdict().items() if value is not None})
        elif place == 0:
            return {}
    return found


def _pair_values(expression: re.Pattern[str], text: str) -> dict[str, str]:
    """Return the wanted keys of a line of arguments, quotes taken off; the first of equal keys."""
    found: dict[str, str] = {}
    for match in expression.finditer(text):
        if match["key"] in _WANTED:
            found.setdefault(match["key"], match["value"].strip(" '\"."))
    return found
