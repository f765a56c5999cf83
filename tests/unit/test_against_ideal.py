"""What an engine's rules cost: the line that `explain` and `compare --engines` print."""

from __future__ import annotations

from kvcalc.api import measure, prepare
from kvcalc.compare import Case, compare_engines
from kvcalc.explain.against_ideal import against_ideal


def line(model: str, context: int, **arguments: object) -> str:
    """Return the line of one setup."""
    setup = prepare(model, **arguments)  # type: ignore[arg-type]
    return against_ideal(setup, measure(setup, context, 1))


def test_padding_is_told_in_percent() -> None:
    """4,000 tokens in groups of 256 cells are 4,096: 2.4 % more."""
    text = line("llama-3.1-8b", 4000, engine="llama.cpp")
    assert text.startswith("+2.4 % against the ideal engine (full +2.4 %); llama.cpp ")
    assert text.endswith("in whole groups of 256")


def test_a_window_kept_one_short_costs_less() -> None:
    """transformers keeps 4,095 tokens of a window of 4,096."""
    text = line("mistral-7b-v0.1", 8192, engine="transformers")
    assert text.startswith("-0.024 % against the ideal engine (local -0.024 %); transformers ")


def test_equal_bytes_are_said_to_be_equal() -> None:
    """Whole blocks of 16 hold 4,096 tokens exactly; the ideal engine has no line."""
    assert line("llama-3.1-8b", 4096, engine="vllm").startswith("the same bytes as the ideal engine; vllm ")
    assert line("llama-3.1-8b", 4096) == ""


def test_an_engine_that_refuses_the_model_is_a_row_that_says_so() -> None:
    """Only the first engine, the baseline, must have an answer."""
    rows = compare_engines("mamba-2.8b", ["ideal", "vllm", "sglang"], Case(1000, 1, {})).rows
    refused = [row for row in rows if row.size is None]
    assert rows[0].size is not None
    assert all(row.note for row in refused)
    assert [row.label for row in rows] == ["ideal", "vllm", "sglang"]
