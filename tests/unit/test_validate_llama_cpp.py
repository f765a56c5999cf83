"""`kvcalc validate --engine llama.cpp`: how a comparison of log lines is told."""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc.api import prepare
from kvcalc.cli import _validate_llama_cpp
from kvcalc.measure.llama_cpp import Comparison


def validation(monkeypatch: pytest.MonkeyPatch, printed: tuple[str, ...], engine: str = "llama.cpp") -> Any:
    """Return a validation against a library that predicts two lines and prints these."""
    found = Comparison(("a", "b"), printed, "library 1")
    monkeypatch.setattr(_validate_llama_cpp, "compare", lambda *_: found)
    return _validate_llama_cpp.validate(prepare("llama-3-8b", engine=engine), 1000, 2)


@pytest.mark.parametrize("engine", ["llama.cpp", "ollama"])
def test_equal_lines_are_said_to_be_equal(monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    """Both engines run the same library."""
    result = validation(monkeypatch, ("a", "b"), engine)
    assert result.equal
    assert "equal, line for line" in result.report("iec")
    assert result.to_json()["engine"]["name"] == engine


def test_lines_that_differ_are_shown_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was predicted and what was printed, also where one side has more lines."""
    result = validation(monkeypatch, ("a", "c", "d"))
    assert not result.equal
    assert [row["equal"] for row in result.rows()] == [True, False, False]
    report = result.report("iec")
    assert "= a\n- b\n+ c\n- \n+ d\n" in report
    assert "they differ" in report
