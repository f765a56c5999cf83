"""Bytes of quantised weights, against the sizes of published files and of loaded models."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvcalc.errors import BadInput, SpecError
from kvcalc.hardware.weights import find_mix, mixes, read_table, weights_bytes, weights_format_name
from kvcalc.prepared import load, prepare
from kvcalc.yaml_tree import parse
from tests.shared_material import shared

GIB = 2**30

# The survey's model -> the catalogue's.
NAMES = {
    "Llama-3.1-8B": "llama-3.1-8b",
    "Qwen3-8B": "qwen3-8b",
    "Qwen2.5-32B": "qwen2.5-32b",
    "TinyLlama-1.1B": "tinyllama-1.1b",
    "Mistral-7B-v0.3": "mistral-7b-v0.3",
    "Qwen3-1.7B": "qwen3-1.7b",
    "Llama-3.2-3B": "llama-3.2-3b",
    "Qwen2.5-14B": "qwen2.5-14b",
    "Mixtral-8x7B": "mixtral-8x7b",
    "Qwen2.5-7B": "qwen2.5-7b",
    "Phi-4": "phi-4",
    "gemma-2-27b": "gemma-2-27b",
    "Qwen3-30B-A3B": "qwen3-30b-a3b",
}
# Files that are off by more than 1 %, and why.
EXPLAINED = {
    ("Mixtral-8x7B", "Q4_K_M"): "a file of January 2024: the mix for experts has changed since",
    ("Qwen3-1.7B", "Q6_K"): "the log's model was probably Qwen2.5-1.5B",
}
PLAIN = {"Q8_0": "gguf-Q8_0", "F16": "gguf-F16", "bf16": "bf16", "fp8/w8a8": "w8a8", "fp8 (online) or w8a8": "w8a8"}


def _survey() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shared("hardware/weights.json").read_text(encoding="utf-8"))
    return found


def _typical(model: str, format: str) -> float:
    sizes = prepare(NAMES[model], weights=PLAIN.get(format, format)).weights_range()
    assert sizes is not None
    return sizes[1] / GIB


def test_published_files_have_the_predicted_size() -> None:
    """Ten models and more within 1 %, or explained; a mix is what typical models take."""
    off = {
        (each["model"], each["format"]): _typical(each["model"], each["format"]) / each["printed_gib"] - 1
        for each in _survey()["gguf_checks"]
        if each["model"] in NAMES
    }
    assert len({model for model, _ in off}) >= 9
    assert {key for key, error in off.items() if abs(error) > 0.01} == set(EXPLAINED)


def test_loaded_models_have_the_predicted_size() -> None:
    """What vLLM reports after loading, embeddings in 16 bits, within 1.5 %."""
    checked = 0
    for each in _survey()["engine_loaded"]:
        stored = "w4a16" if each["format"].startswith("w4a16") else each["format"]
        if each["model"] in NAMES:
            checked += 1
            assert _typical(each["model"], stored) == pytest.approx(each["loaded_gib"], rel=0.015)
    assert checked >= 9


def test_computed_mixes_lie_in_the_interval() -> None:
    """All sixteen models of the survey, the small ones too."""
    shapes = {
        "Llama-3.1-8B": "llama-3.1-8b", "Llama-3.1-70B": "llama-3.1-70b", "Llama-3.2-1B": "llama-3.2-1b",
        "Qwen2.5-0.5B": "qwen2.5-0.5b", "Qwen3-0.6B": "qwen3-0.6b", **NAMES,
    }  # fmt: skip
    checked = 0
    for each in _survey()["gguf_computed"]:
        spec = load(shapes.get(each["model"], "llama-3.1-8b"))
        file, stored = spec.file, {"Q4_0": "gguf-Q4_0", **PLAIN}.get(each["format"], each["format"])
        if each["model"] not in shapes or file.parameters is None or abs(file.parameters / each["params"] - 1) > 0.001:
            continue
        assert file.vocab_size is not None
        copies = 1 if file.tie_word_embeddings else 2
        low, _, high, _ = weights_bytes(
            each["params"],
            stored,
            file.vocab_size * file.hidden_size * copies,
            tied=file.tie_word_embeddings,
            hidden_size=file.hidden_size,
        )
        checked += 1
        assert low * 0.998 <= each["bytes"] <= high * 1.002, (each["model"], each["format"])
    assert checked >= 120


def test_a_plain_format_is_exact() -> None:
    """Every weight alike: 4.5 bits for q4_0."""
    assert weights_bytes(6400, "q4_0") == (3600, 3600, 3600, "exact")
    assert weights_bytes(6400, "fp8", 1000) == (6400, 6400, 6400, "exact")


def test_a_mix_by_hand() -> None:
    """w4a16: 4.125 bits, 16 for embedding and head."""
    assert weights_bytes(10_000, "w4a16", 2_000).typical == (8_000 * 4125 + 2_000 * 16_000) // 8000
    assert weights_bytes(10_000, "w4a16", 2_000).basis == "typical"


def test_a_tied_embedding_is_stored_as_the_head_is() -> None:
    """Q4_K_M: 6.56 bits where they are one tensor, 4.5 and 6.56 where they are two."""
    apart = weights_bytes(10**9, "Q4_K_M", 10**8, tied=False).typical
    assert weights_bytes(10**9, "Q4_K_M", 10**8, tied=True).typical - apart == 10**8 * (6562 - 4500) // 2 // 8000


def test_rows_that_blocks_do_not_divide_take_more() -> None:
    """Qwen2.5-0.5B is 896 wide: 6.3 bits in Q4_K_M."""
    assert weights_bytes(10**9, "Q4_K_M", 0, hidden_size=896).typical == 10**9 * 6345 // 8000
    assert weights_bytes(10**9, "Q4_K_M", 0, hidden_size=1024).typical == -(-(10**9) * 4799 // 8000)


def test_unknown_embeddings_widen_the_interval() -> None:
    """The answer is given, with more between low and high."""
    known, unknown = weights_bytes(10**10, "w4a16", 10**9), weights_bytes(10**10, "w4a16")
    assert unknown.low < known.low <= known.high < unknown.high


@pytest.mark.parametrize("name", ["Q4_K_M", "q4_k_m", " Q4_k_m "])
def test_case_does_not_matter(name: str) -> None:
    """People write both."""
    mix = find_mix(name)
    assert mix is not None
    assert mix.name == "Q4_K_M"


def test_plain_names_stay_plain() -> None:
    """q4_0 is every weight in q4_0, as always; the file that llama.cpp makes is gguf-Q4_0."""
    assert find_mix("q4_0") is None
    assert weights_format_name("float16") == "fp16"
    assert find_mix("gguf-q4_0") is not None


def test_no_mix_has_the_name_of_a_plain_format() -> None:
    """It could not be asked for."""
    assert all(find_mix(mix.name) is mix for mix in mixes())


def test_an_unknown_format_names_the_nearest() -> None:
    """Of mixes and plain formats."""
    with pytest.raises(BadInput, match="unknown weights format 'Q4_K_X'; did you mean"):
        find_mix("Q4_K_X")


def test_a_mix_is_announced() -> None:
    """Results that rest on it say so."""
    assert any(
        "Q4_K_M is a mix: typically 4.799 bits" in text for text in prepare("qwen3-8b", weights="q4_k_m").assumptions
    )


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{name: X, linear: [3, 2, 1], embedding: 1, head: 1}", "from low to high"),
        ("{name: X, linear: [1, 2, 3], embedding: 1}", "lacks head"),
        ("{name: X, linear: [1, 2, 3], embedding: 1, haed: 1}", "unknown key 'haed'; did you mean head?"),
        ("{name: X, linear: 1, embedding: 1, head: 1}", "wrong type"),
        ("X", "must be a mapping"),
    ],
)
def test_a_fault_in_the_table_has_its_place(entry: str, message: str) -> None:
    """Whoever adds a mix is told the line and what to write."""
    with pytest.raises(SpecError, match=message):
        read_table(parse(f"checked: 2026-11-29\nmixes:\n- {entry}\n", "weights.yaml"))
