"""Engine logs as facts: what a line says, and that no log, however hostile, costs more than bounded time and memory."""

from __future__ import annotations

import io
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcalc.errors import BadInput
from kvcalc.measure.log import LONGEST_LINE, MOST_FACTS, Log, read_lines, read_log, read_stream

MIB = 2**20
KV_LINE = "KV Cache is allocated. #tokens: 46611, K size: 1.42 GB, V size: 1.42 GB"
LOGS = Path(__file__).resolve().parents[1] / "golden" / "logs"


def facts(*lines: str) -> list[tuple[str, dict[str, str]]]:
    """Return the facts of some lines as names and values."""
    return [(fact.name, dict(fact.values)) for fact in read_lines(lines).facts]


def read(data: bytes) -> Log:
    """Return the facts of a log's bytes."""
    return read_stream(io.BytesIO(data))


# What lines say -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "name", "values"),
    [
        ("INFO Available KV cache memory: 8.11 GiB", "vllm memory", {"gib": "8.11"}),
        ("the rest of the memory reserved for KV Cache is 6.22GiB", "vllm memory", {"gib": "6.22"}),
        ("GPU KV cache size: 178,880 tokens", "vllm tokens", {"tokens": "178,880"}),
        (
            "Maximum concurrency for 32,768 tokens per request: 17.27x",
            "vllm concurrency",
            {"context": "32,768", "times": "17.27"},
        ),
        ("# GPU blocks: 1952, # CPU blocks: 2048", "vllm blocks", {"gpu": "1952", "cpu": "2048"}),
        ("# cuda blocks: 3637, # CPU blocks: 1170", "vllm blocks", {"gpu": "3637", "cpu": "1170"}),
        ("number of tokens that can be stored in KV cache (23648).", "vllm stored", {"tokens": "23648"}),
        (
            "max seq len (40960), (5.62 GiB KV cache is needed, which is larger than the available KV cache memory "
            "(2.40 GiB). Based on the available memory, the estimated maximum model length is 17472.",
            "vllm refusal",
            {"needed": "5.62", "context": "40960", "available": "2.40", "estimate": "17472"},
        ),
        ("16.0 GiB KV cache is needed", "vllm refusal", {"needed": "16.0"}),
        ("Setting attention block size to 480 tokens", "vllm block size", {"tokens": "480"}),
        ("Padding mamba page size by 1.27%", "vllm padding", {"percent": "1.27"}),
        ("TP0] Load weight begin. avail mem=22.76 GB", "sglang before", {"gb": "22.76"}),
        (
            "Load weight end. type=Qwen2ForCausalLM, dtype=torch.bfloat16, avail mem=8.37 GB, mem usage=14.39 GB.",
            "sglang after",
            {"gb": "8.37", "dtype": "bfloat16"},
        ),
        (KV_LINE, "sglang cache", {"tokens": "46611", "k": "1.42", "v": "1.42"}),
        (
            "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 430067, K size: 29.53 GB, V size: 29.53 GB",
            "sglang cache",
            {"dtype": "bfloat16", "tokens": "430067", "k": "29.53", "v": "29.53"},
        ),
        ("KV Cache is allocated. #tokens: 900, KV size: 3.10 GB", "sglang cache", {"tokens": "900", "kv": "3.10"}),
        (
            "Mamba Cache is allocated. max_mamba_cache_size: 48, conv_state size: 0.09GB, ssm_state size: 6.46GB",
            "sglang states",
            {"slots": "48", "conv": "0.09", "ssm": "6.46"},
        ),
        (
            "SWAKVPool mem usage: 77.63 GB, swa size: 1496958, full size: 1496958",
            "sglang windowed",
            {"gb": "77.63", "swa": "1496958", "full": "1496958"},
        ),
        ("full_layer_tokens=375360, swa_layer_tokens=300288", "sglang pools", {"full": "375360", "swa": "300288"}),
        (
            "max_total_num_tokens=105531, chunked_prefill_size=2048, max_running_requests=2049, context_len=32768",
            "sglang total",
            {"tokens": "105531", "running": "2049", "context": "32768"},
        ),
        ("Number of blocks in KV cache primary pool: 631", "tensorrt-llm blocks", {"blocks": "631"}),
        ("Number of tokens per block: 64.", "tensorrt-llm block", {"tokens": "64"}),
        ("Max KV cache pages per sequence: 2048", "tensorrt-llm sequence", {"blocks": "2048"}),
        (
            "Max KV cache blocks per sequence: 65 [window size=2051], tokens per block=32, primary blocks=116617",
            "tensorrt-llm sequence",
            {"blocks": "65", "window": "2051", "block": "32", "primary": "116617"},
        ),
        (
            "[MemUsageChange] Allocated 78.30 GiB for max tokens in paged KV cache (3731744).",
            "tensorrt-llm cache",
            {"gib": "78.30", "tokens": "3731744"},
        ),
        ("Allocate 69524783104 bytes for k/v cache.", "tensorrt-llm bytes", {"bytes": "69524783104"}),
        ("Using 132608 tokens in paged KV cache.", "tensorrt-llm tokens", {"tokens": "132608"}),
        (
            "maxAttentionWindow and maxSequenceLen are too large for at least one sequence. they are reduced to 5185",
            "tensorrt-llm cut",
            {"tokens": "5185"},
        ),
        ("llama_context: n_ctx_seq     = 8192", "llama context", {"key": "n_ctx_seq", "value": "8192"}),
        ("creating     SWA KV cache, size = 768 cells", "llama cells", {"which": "SWA", "cells": "768"}),
        (
            "llama_kv_cache: size =  544.00 MiB (  8192 cells,  32 layers,  1/1 seqs), K (q8_0):  272.00 MiB, "
            "V (q4_0):  272.00 MiB",
            "llama cache",
            {
                "source": "llama_kv_cache", "size": "544.00", "cells": "8192", "layers": "32", "sequences": "1",
                "streams": "1", "k_type": "q8_0", "k": "272.00", "v_type": "q4_0", "v": "272.00",
            },
        ),
        (
            "llama_memory_recurrent: size =  748.12 MiB (     1 cells,  64 layers,  1 seqs  4 rs_seq), "
            "R (f32):   28.12 MiB, S (f32):  720.00 MiB",
            "llama states",
            {
                "size": "748.12", "cells": "1", "layers": "64", "sequences": "1", "copies": "4", "r": "28.12",
                "s": "720.00",
            },
        ),
        ("llama_init_from_file: kv self size  =  400.00 MB", "llama whole cache", {"size": "400.00"}),
        ("CUDA0 KV buffer size =   656.00 MiB", "llama buffer", {"device": "CUDA0", "size": "656.00"}),
        ('memory.required.kv="896.0 MiB"', "ollama estimate", {"size": "896.0", "unit": "MiB"}),
        (
            'msg="kv cache" device=CUDA0 size="800.0 MiB"',
            "ollama device",
            {"device": "CUDA0", "size": "800.0", "unit": "MiB"},
        ),
    ],
)  # fmt: skip
def test_a_line_says(line: str, name: str, values: dict[str, str]) -> None:
    """Every form of line is one fact with its values as printed, wherever it stands in the line."""
    assert facts(f"[2026-01-29 03:14:10] {line} and so on") == [(name, values)]


def test_arguments_are_taken_by_name() -> None:
    """Of vLLM's and SGLang's own lists of arguments only what decides a cache is kept."""
    config = (
        "engine (v0.19.0) with config: model='a/b', dtype=torch.bfloat16, max_seq_len=8, seed=0, kv_cache_dtype=auto"
    )
    assert dict(facts(config)) == {
        "vllm config": {"model": "a/b", "dtype": "torch.bfloat16", "max_seq_len": "8", "kv_cache_dtype": "auto"},
        "vllm version": {"version": "0.19.0"},
    }
    arguments = "non-default args: {'model': 'a/b', 'max_model_len': 4096, 'api_key': ['x'], 'block_size': 32}"
    assert facts(arguments) == [("vllm arguments", {"model": "a/b", "max_model_len": "4096", "block_size": "32"})]
    server = "server_args=ServerArgs(model_path='a/b', tp_size=4, page_size=64, mem_fraction_static=0.88, port=30000)"
    assert facts(server) == [
        ("sglang arguments", {"model_path": "a/b", "tp_size": "4", "page_size": "64", "mem_fraction_static": "0.88"})
    ]


def test_echoes_of_workers_are_one_fact() -> None:
    """Four ranks print the same line; another figure is another fact."""
    lines = [f"[03:14:10 TP{rank}] {KV_LINE}" for rank in range(4)]
    found = read_lines([*lines, KV_LINE.replace("46611", "46612")])
    assert [(fact["tokens"], fact.line) for fact in found.facts] == [("46611", 1), ("46612", 5)]


def test_equal_lines_of_two_caches_are_two_facts() -> None:
    """llama.cpp prints one line for each cache, even where they are alike."""
    line = "llama_kv_cache: size =  416.00 MiB (  8192 cells,  13 layers,  4/1 seqs)"
    assert [name for name, _ in facts(line, line)] == ["llama cache", "llama cache"]


@pytest.mark.parametrize(
    ("lines", "engines"),
    [
        (["GPU KV cache size: 178,880 tokens"], ("vllm",)),
        ([KV_LINE], ("sglang",)),
        (["kv self size  =  400.00 MB"], ("llama.cpp",)),
        (["kv self size  =  400.00 MB", "runner --ctx-size 8192 --parallel 1"], ("ollama",)),
        ([KV_LINE, "KV self size = 1.00 MB", KV_LINE.replace("4", "5")], ("sglang", "llama.cpp")),
        (["model='a/b', dtype=auto", "GPU KV cache usage: 3.2%"], ()),
    ],
)
def test_the_engine_is_told_by_its_words(lines: list[str], engines: tuple[str, ...]) -> None:
    """The one that says most about its cache comes first."""
    assert read_lines(lines).engines == engines


# Bytes of any sort ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        KV_LINE.encode(),
        b"\xef\xbb\xbf" + KV_LINE.encode(),
        KV_LINE.encode("utf-16"),
        b"\xfe\xff" + KV_LINE.encode("utf-16-be"),
        KV_LINE.encode("utf-16-le"),
        b"\xff\xfe\x00\xd8" + KV_LINE.encode("utf-16-le"),
        b"caf\xe9 \xff\x80 " + KV_LINE.encode() + b" \xc3",
        KV_LINE.replace(" ", "\x00 ").encode(),
        f"\x1b[32mINFO\x1b[0m {KV_LINE.replace('46611', chr(27) + '[1m46611' + chr(27) + '[0m')}".encode(),
        f"\x1b]0;title\x07{KV_LINE}".encode(),
        f"Capturing:  10%|#         |\rCapturing: 100%|##########|\r{KV_LINE}\r\n".encode(),
        f"\x0c{KV_LINE}\x85".encode(),
    ],
    ids=lambda data: repr(data[:12]),
)
def test_a_line_is_read_in_any_encoding_and_colour(data: bytes) -> None:
    """UTF-8 with and without faults, UTF-16 with and without a mark, NULs, colours, progress bars, line ends."""
    (fact,) = read(data).facts
    assert (fact["tokens"], fact["k"]) == ("46611", "1.42")


def test_lines_are_numbered_as_an_editor_does() -> None:
    """A carriage return and a line feed are one end, and so is each alone; the last line needs none."""
    log = read(f"one\r\ntwo\n\nfour\rfive\n{KV_LINE}".encode())
    assert (log.facts[0].line, log.lines) == (6, 6)
    assert read(f"{KV_LINE}\n".encode()).lines == 1
    assert read(b"").lines == 0


@pytest.mark.parametrize("size", [65_534, 65_535, 65_536, 65_537, 131_071])
def test_a_line_may_lie_across_the_pieces_that_are_read(size: int) -> None:
    """Wherever a piece ends: in a word, in a character, in a line's end of two."""
    for filler in ("x" * (size - 20) + "\r\n", "é" * (size // 2) + "\n"):
        log = read(filler.encode() + f"{KV_LINE}\r\n{KV_LINE.replace('46611', '7')}".encode())
        assert [(fact["tokens"], fact.line) for fact in log.facts] == [("46611", 2), ("7", 3)]


@pytest.mark.parametrize(
    "number", ["9" * 10_000, "1," * 5_000, "9" * 25, "-5", "1e9", "0x10", "½", "٣", "1.", "NaN", ""]
)
def test_a_number_that_is_none_is_no_fact(number: str) -> None:
    """No figure of 10,000 digits, no other alphabet's digits, nothing half read."""
    assert facts(f"GPU KV cache size: {number} tokens") == []


def test_a_line_beyond_any_length_is_cut() -> None:
    """What begins beyond the limit is not seen, what stands before it is, and the next line is whole."""
    long = "x" * LONGEST_LINE
    log = read(f"{KV_LINE}{long * 5}{KV_LINE.replace('4', '5')}\n{KV_LINE.replace('4', '6')}\n".encode())
    assert [(fact["tokens"], fact.line) for fact in log.facts] == [("46611", 1), ("66611", 2)]


def test_of_many_facts_the_first_are_kept() -> None:
    """And the others counted."""
    log = read_lines(KV_LINE.replace("46611", str(number)) for number in range(1000))
    assert len(log.facts) == MOST_FACTS
    assert log.dropped == 1000 - MOST_FACTS


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """One line that names it."""
    with pytest.raises(BadInput, match="missing: no such file"):
        read_log(tmp_path / "missing")
    with pytest.raises(BadInput, match="is a directory"):
        read_log(tmp_path)


# Size and malice ------------------------------------------------------------------------------------------------------


class Endless(io.RawIOBase):
    """A stream of a pattern, so many bytes long, that is never in memory as a whole."""

    def __init__(self, pattern: bytes, size: int) -> None:
        self.pattern = pattern * (65_536 // len(pattern) + 2)
        self.left = size
        self.period = len(pattern)
        self.place = 0

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        size = min(size, self.left)
        piece = self.pattern[self.place : self.place + size]
        self.place, self.left = (self.place + size) % self.period, self.left - size
        return piece


@pytest.mark.parametrize(
    "pattern",
    [
        b"(EngineCore pid=1) INFO loggers.py:127] Engine 000: Running: 5 reqs, GPU KV cache usage: 3.2%, hits: 0.1%\n",
        b"x",
        b"\x00\r",
        b"KV Cache is allocated. #tokens: 46611, K size: 1.42 GB, V size: 1.42 GB\n",
        b"ServerArgs(" + b"aa='" * 200,
        b"\x1b[" * 50 + b"KV Cache is allocated",
    ],
    ids=["ordinary", "one line", "no text", "one fact", "half open", "escapes"],
)
def test_64_mib_are_read_in_little_memory(pattern: bytes) -> None:
    """Whatever they consist of, less than 4 MiB are held."""
    tracemalloc.start()
    try:
        log = read_stream(Endless(pattern, 64 * MIB if b"EngineCore" in pattern else 8 * MIB))  # type: ignore[arg-type]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * MIB
    assert len(log.facts) <= MOST_FACTS


HOSTILE = [
    "server_args=ServerArgs(" + "aa='" * 8000,
    "server_args=ServerArgs(" + "model_path='" + "x" * 30_000,
    "non-default args: {" + "'a': " * 6000,
    "LLM engine (v" + "a_a_a=" * 5000,
    "maxAttentionWindow " * 1600 + "reduced to",
    "general.name" + " " * 32_000,
    "llama_kv_cache: size = " + " " * 32_000 + "cells,",
    "vllm serve " + "-" * 32_000,
    "KV buffer size" + "y" * 32_000 + " KV buffer size = ",
    "\x1b]" * 16_000 + "KV Cache is allocated",
    "KV Cache is allocated. dtype: " * 1000,
]


@pytest.mark.parametrize("line", HOSTILE, ids=lambda line: line[:24])
def test_no_line_takes_long(line: str) -> None:
    """Nothing that repeats itself makes an expression search for ever: well under a second even on a busy machine."""
    before = time.perf_counter()
    read_lines([line] * 3)
    assert time.perf_counter() - before < 3


def _real_lines() -> Iterator[str]:
    for path in sorted(LOGS.glob("*.txt")):
        yield from path.read_text(encoding="utf-8").splitlines()


@given(
    st.lists(
        st.one_of(
            st.sampled_from(sorted(set(_real_lines()))).map(str.encode),
            st.binary(max_size=200),
            st.text(max_size=80).map(lambda text: text.encode("utf-8", "surrogatepass")),
            st.sampled_from(sorted(set(_real_lines()))).flatmap(
                lambda line: st.tuples(st.integers(0, len(line)), st.integers(0, 40)).map(
                    lambda cut: (line[: cut[0]] + line[cut[0] + cut[1] :]).encode()
                )
            ),
        ),
        max_size=12,
    ),
    st.sampled_from([b"\n", b"\r\n", b"\r", b"\x00\n", b"\n\x00"]),
)
def test_any_bytes_are_a_log(lines: list[bytes], end: bytes) -> None:
    """Truncated, interleaved, random: facts are found or not, with values that stand in the text."""
    log = read(end.join(lines))
    for fact in log.facts:
        assert 1 <= fact.line <= log.lines
        assert all(len(value) <= 4_100 for value in fact.values.values())
