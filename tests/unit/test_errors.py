"""Errors carry an exit code, and say where a fault is and what was probably meant."""

from __future__ import annotations

import pytest

from kvcalc.errors import (
    BadInput,
    KvcalcError,
    MissingExtra,
    Problem,
    SpecError,
    UnsupportedByEngine,
    did_you_mean,
)


@pytest.mark.parametrize(
    ("error", "code"),
    [(BadInput("x"), 2), (UnsupportedByEngine("x"), 1), (SpecError([]), 1), (MissingExtra("torch", "bench"), 1)],
)
def test_every_error_is_a_kvcalc_error_with_its_exit_code(error: KvcalcError, code: int) -> None:
    """Usage is 2; files, engines and missing extras are 1."""
    assert isinstance(error, KvcalcError)
    assert error.exit_code == code


def test_a_problem_reads_as_file_line_column_field_message() -> None:
    """The form that editors and terminals turn into a link."""
    assert str(Problem("a.yaml", 3, 9, "kinds.local.window", "is odd")) == "a.yaml:3:9: kinds.local.window: is odd"
    assert str(Problem("a.yaml", 1, 1, "", "is empty")) == "a.yaml:1:1: is empty"


def test_a_spec_error_is_one_line_for_each_problem() -> None:
    """All problems at once, in the order given, and as data."""
    problems = [Problem("a.yaml", 1, 2, "x", "one"), Problem("a.yaml", 3, 4, "y", "two")]
    error = SpecError(problems)

    assert str(error) == "a.yaml:1:2: x: one\na.yaml:3:4: y: two"
    assert error.problems == tuple(problems)


def test_a_missing_extra_is_the_line_that_installs_it() -> None:
    """What is needed for what, and the command to type."""
    assert (
        str(MissingExtra("torch", "kvcalc bench"))
        == "kvcalc bench needs the extra 'torch': pip install 'kvcalc[torch]'"
    )


def test_the_nearest_names_are_suggested() -> None:
    """One, several, or none; case does not matter, and names keep theirs."""
    assert did_you_mean("gpt2-smal", ["gpt2-small", "llama"]) == "; did you mean gpt2-small?"
    assert did_you_mean("GPT2-SMALL", ["gpt2-small"]) == "; did you mean gpt2-small?"
    assert did_you_mean("qwen3-8", ["Qwen3-8B", "Qwen3-4B"]) == "; did you mean Qwen3-8B or Qwen3-4B?"
    assert did_you_mean("zzz", ["gpt2-small"]) == ""
    assert did_you_mean("", ["gpt2-small"]) == ""
