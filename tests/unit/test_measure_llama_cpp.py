"""Asking llama.cpp's own library: what it is given, and what becomes of its answers."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

import kvcalc
from kvcalc.api import prepare
from kvcalc.engines.llama_cpp import memory_of
from kvcalc.errors import KvcalcError, MissingExtra, UnsupportedByEngine
from kvcalc.measure import llama_cpp
from kvcalc.read.gguf import read_header
from kvcalc.read.gguf_spec import to_spec

MODELS = (
    "llama-3-8b",
    "gemma-3-27b",
    "gemma-4-e4b",
    "gpt-oss-20b",
    "deepseek-v3.2",
    "deepseek-v4-flash",
    "minimax-m3",
    "qwen3-next-80b-a3b",
    "jamba-v0.1",
    "nemotron-h-56b",
    "falcon-h1-0.5b",
    "kimi-linear-48b-a3b",
    "lfm2-1.2b",
    "mamba2-2.7b",
    "t5-small",
)


def memory(model: str) -> Any:
    """Return the memory that the profile plans for a model."""
    spec = kvcalc.load(model)
    return spec, memory_of(spec, prepare(spec, engine="llama.cpp").deployment)


@pytest.mark.parametrize("model", MODELS)
def test_the_metadata_of_a_model_is_a_gguf_file_of_the_same_memory(model: str, tmp_path: Path) -> None:
    """Read back as any other GGUF, what the library is given has the rows, layers and states of the spec."""
    spec, found = memory(model)
    path = tmp_path / "model.gguf"
    path.write_bytes(llama_cpp.gguf_bytes(llama_cpp.metadata(spec, found)))
    read = to_spec(read_header(path))
    again = memory_of(read, prepare(read, engine="llama.cpp").deployment).plan
    rows = [[(layer.index, layer.k, layer.v) for layer in cache.layers] for cache in found.plan.caches]
    assert [[(layer.index, layer.k, layer.v) for layer in cache.layers] for cache in again.caches] == rows
    assert [cache.span for cache in again.caches] == [cache.span for cache in found.plan.caches]
    assert [(layer.index, layer.r, layer.s) for layer in again.states] == [
        (layer.index, layer.r, layer.s) for layer in found.plan.states
    ]
    assert again.architecture == found.plan.architecture


def test_a_model_from_a_gguf_keeps_the_files_own_keys(tmp_path: Path) -> None:
    """Only the vocabulary is left out; what the spec does not hold is still there."""
    spec, found = memory("llama-3-8b")
    keys = {**llama_cpp.metadata(spec, found), "llama.feed_forward_length": 14336}
    path = tmp_path / "model.gguf"
    path.write_bytes(llama_cpp.gguf_bytes(keys))
    read = to_spec(read_header(path))
    own = llama_cpp.metadata(read, memory_of(read, prepare(read, engine="llama.cpp").deployment))
    assert own["llama.feed_forward_length"] == 14336
    assert own["llama.vocab_size"] == 128256


def test_without_the_library_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """llama-cpp-python is an extra."""
    monkeypatch.setattr(llama_cpp, "find_spec", lambda _name: None)
    spec, found = memory("llama-3-8b")
    with pytest.raises(MissingExtra, match=r"pip install 'kvcalc\[llamacpp\]'"):
        llama_cpp.compare(spec, found, found.settings.rule.context(1000, 1))


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (
            {"returncode": 0, "stdout": '{"refusal": "llama_init_from_model: no", "lines": [], "library": "x"}'},
            UnsupportedByEngine,
            "^llama_init_from_model: no$",
        ),
        (
            {"returncode": -6, "stderr": "somewhere/ggml.c:1: GGML_ASSERT(a) failed"},
            KvcalcError,
            r"broke off \(exit code -6\): GGML_ASSERT\(a\) failed",
        ),
        ({"returncode": 1, "stderr": ""}, KvcalcError, "it gave no reason"),
    ],
)
def test_the_librarys_process_may_refuse_or_break_off(
    answer: dict[str, Any], error: type[KvcalcError], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own words where it refuses, its last words where it aborts; never a traceback."""
    made = {"stdout": "", "stderr": "", **answer}
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], **made))
    with pytest.raises(error, match=message):
        llama_cpp.run({})


def test_a_silent_library_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A time limit ends the wait."""

    def late(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("llama.cpp", 1)

    monkeypatch.setattr(subprocess, "run", late)
    with pytest.raises(KvcalcError, match="did not answer within"):
        llama_cpp.run({})
