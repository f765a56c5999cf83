"""Tables, CSV, Markdown and running text."""

from __future__ import annotations

import json

import pytest

from kvcalc.output import fold, printable, render, shorten, terminal_width, to_json, unbroken

ROWS = [{"model": "gpt2", "bytes": 1024, "note": None}, {"model": "a|b, c", "bytes": 7, "note": "x"}]


def test_a_table_has_one_column_for_each_key() -> None:
    """Numbers to the right, nothing for None, no blanks at the ends of lines."""
    assert render(ROWS, "table", aligned_right=["bytes"]) == (
        "model   bytes  note\n"
        "------  -----  ----\n"
        "gpt2     1024\n"
        "a|b, c      7  x"
    )  # fmt: skip


def test_csv_quotes_what_needs_it() -> None:
    """One header, the same columns."""
    assert render(ROWS, "csv") == 'model,bytes,note\ngpt2,1024,\n"a|b, c",7,x'


def test_markdown_escapes_bars() -> None:
    """Numbers to the right."""
    assert render(ROWS, "md", aligned_right=["bytes"]) == (
        "| model | bytes | note |\n"
        "| --- | --: | --- |\n"
        "| gpt2 | 1024 |  |\n"
        "| a\\|b, c | 7 | x |"
    )  # fmt: skip


@pytest.mark.parametrize("style", ["table", "csv", "md"])
def test_no_rows_are_no_output(style: str) -> None:
    """An empty answer is empty, at any width."""
    assert render([], style) == ""
    assert render([], style, width=10) == ""


def test_a_narrow_table_gives_up_optional_columns_then_the_middle_of_names() -> None:
    """From the right, and only those that may go; numbers stay whole."""
    rows = [{"model": "a-model-with-a-long-name", "bytes": 123456, "note": "something"}]

    assert render(rows, "table", width=38, optional=["note"]).splitlines()[2] == "a-model-with-a-long-name  123456"
    assert render(rows, "table", width=20, optional=["note"]).splitlines()[2] == "a-mod...name  123456"
    assert render(rows, "table", width=1, optional=["note"]).splitlines()[2].endswith("  123456")


def test_long_names_lose_their_middle() -> None:
    """Both ends tell models apart."""
    assert shorten("abcdefghij", 10) == "abcdefghij"
    assert shorten("abcdefghijk", 10) == "abcd...ijk"


def test_running_text_folds_between_words() -> None:
    """At 78 columns, never inside a word or an unbroken phrase."""
    text = f"{'word ' * 14}{unbroken('not apart at all')} end"

    lines = fold(text, "  ", "    ").splitlines()

    assert all(len(line) <= 78 for line in lines)
    assert lines[1] == "    not apart at all end"
    assert fold("x" * 100) == "x" * 100


def test_control_characters_are_written_out() -> None:
    """A terminal shows them, it does not obey them."""
    assert printable("a\x1b[31mb\n") == "a\\x1b[31mb\\n"


def test_json_keeps_letters_and_whole_numbers() -> None:
    """Indented, not escaped."""
    assert to_json({"größe": 2**60}) == f'{{\n  "größe": {2**60}\n}}'
    assert json.loads(to_json({"a": [1]})) == {"a": [1]}


def test_the_width_is_that_of_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """And unknown where output goes to a file."""
    monkeypatch.setenv("COLUMNS", "91")
    assert terminal_width() == 91
    for value in ("", "0", "wide"):
        monkeypatch.setenv("COLUMNS", value)
        assert terminal_width() is None
