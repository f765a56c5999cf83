"""YAML to data with positions: everything that is easily mistyped has a place and a way out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvcalc.errors import SpecError
from kvcalc.yaml_tree import MAX_FILE_BYTES, dotted, parse, read_text


def fault(text: str) -> str:
    """Return the lines that a text is refused with."""
    with pytest.raises(SpecError) as caught:
        parse(text, "s.yaml")
    return str(caught.value)


def test_plain_values_become_numbers_texts_booleans_and_null() -> None:
    """Only what is written plainly is converted; quoted text stays text."""
    text = "{a: 12, b: -3, c: text, d: true, e: False, f: null, g: ~, h: , i: '12', j: \"no\", k: 2026-11-29, l: 12abc}"

    assert parse(text, "s.yaml").data == {
        "a": 12, "b": -3, "c": "text", "d": True, "e": False, "f": None, "g": None, "h": None, "i": "12", "j": "no",
        "k": "2026-11-29", "l": "12abc",
    }  # fmt: skip


def test_every_key_and_value_has_its_place() -> None:
    """Lines and columns count from 1, in block and flow style."""
    tree = parse("name: x\nkinds:\n  local: {kind: sliding}\npattern: [a, b]\n", "s.yaml")

    assert tree.keys["kinds", "local"] == (3, 3)
    assert tree.values["kinds", "local", "kind"] == (3, 17)
    assert tree.values["pattern", 1] == (4, 14)


def test_a_problem_stands_at_the_nearest_place_in_the_file() -> None:
    """A field that is missing is reported where it belongs."""
    tree = parse("name: x\nkinds:\n  local: {kind: sliding}\n", "s.yaml")

    assert str(tree.problem(("kinds", "local", "window"), "is missing", at_key=True)) == (
        "s.yaml:3:3: kinds.local.window: is missing"
    )
    assert str(tree.problem(("layers",), "is missing")) == "s.yaml:1:1: layers: is missing"


def test_a_tree_made_by_hand_has_only_its_first_line() -> None:
    """Readers of other files have data without positions."""
    from kvcalc.yaml_tree import Tree

    assert str(Tree("config.json", {"a": 1}).problem(("a",), "is odd")) == "config.json:1:1: a: is odd"


def test_paths_read_like_code() -> None:
    """Keys with dots, list items in brackets; an empty key is visible, a long one short."""
    assert dotted(("kinds", "local", "window")) == "kinds.local.window"
    assert dotted(("pattern", 2, 0)) == "pattern[2][0]"
    assert dotted(("",)) == "''"
    assert dotted(("a" * 100,)) == f"{'a' * 20}..."


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1e9", "'1e9' has an exponent; write plain digits, for example 1000000000 instead of 1e9"),
        ("-1.5E+3", "'-1.5E+3' has an exponent; write plain digits, for example 1000000000 instead of 1e9"),
        ("010", "'010' starts with 0, which YAML 1.1 reads as octal; write it without the leading zero"),
        ("0_1", "'0_1' starts with 0, which YAML 1.1 reads as octal; write it without the leading zero"),
        ("no", "'no' is a boolean in YAML 1.1 and text in 1.2; quote it, or write true/false"),
        ("On", "'On' is a boolean in YAML 1.1 and text in 1.2; quote it, or write true/false"),
        ("1:30", "'1:30' is a base-60 number in YAML 1.1; write a decimal number or quote it"),
        ("1_000", "'1_000' has digit separators; write plain digits"),
        ("1,000,000", "'1,000,000' has digit separators; write plain digits"),
        ("0x10", "'0x10' is not decimal; write a decimal number"),
        ("0b11", "'0b11' is not decimal; write a decimal number"),
        ("0o17", "'0o17' is not decimal; write a decimal number"),
        ("4.0", "'4.0' is not a whole number; write plain digits, or quote it if it is text"),
        (".5", "'.5' is not a whole number; write plain digits, or quote it if it is text"),
        (".inf", "'.inf' is not a whole number; write plain digits, or quote it if it is text"),
        (".NaN", "'.NaN' is not a whole number; write plain digits, or quote it if it is text"),
        ("9" * 40, "'99999999999999999999...' has 40 digits; nothing is so large, check it"),
        ("&a 4", "YAML anchors (&a) are not supported; remove it"),
        ("*a", "YAML aliases (*a) are not supported; write the value out"),
        ("!!int 4", "YAML tags (!!int) are not supported; remove it"),
        ("!own 4", "YAML tags (!own) are not supported; remove it"),
        ("! 4", "YAML tags (!) are not supported; remove it"),
        ("!!python/object/apply:os.system [ls]", "YAML tags (!!python/object/appl...) are not supported; remove it"),
    ],
)
def test_a_value_that_readers_of_yaml_disagree_about_is_refused(text: str, message: str) -> None:
    """With its place, and in words that say what to write instead."""
    assert fault(f"name: x\nlayers: {text}\n") == f"s.yaml:2:9: layers: {message}"


@pytest.mark.parametrize("text", ["'1e9'", '"010"', "'no'", "'1:30'", "'!!int'", "'*a'", "|\n  4.0"])
def test_quoted_text_is_text(text: str) -> None:
    """Quoting is the way out that the messages name."""
    assert isinstance(parse(f"x: {text}\n", "s.yaml").data["x"], str)


def test_duplicate_keys_are_refused_with_both_places() -> None:
    """At the top level and inside; the first one's line is in the message."""
    assert fault("a: 1\nb: 2\na: 3\n") == "s.yaml:3:1: a: duplicate key; it already stands on line 1"
    assert fault("k: {w: 1, w: 2}\n") == "s.yaml:1:11: k.w: duplicate key; it already stands on line 1"


def test_merge_keys_are_refused() -> None:
    """They would pull in values from elsewhere."""
    assert fault("k: {<<: {w: 1}, w: 2}\n") == (
        "s.yaml:1:5: k: YAML merge keys (<<) are not supported; write the values out"
    )


def test_a_key_must_be_plain_text() -> None:
    """Lists and mappings as keys exist in YAML, and mean nothing here."""
    assert fault("a: 1\n? [b, c]\n: 2\n") == "s.yaml:2:3: a key must be plain text; write 'key: value'"


def test_several_documents_are_refused() -> None:
    """One file holds one model."""
    assert fault("a: 1\n---\nb: 2\n") == "s.yaml:2:1: holds several YAML documents; write one model per file"


def test_deep_nesting_is_refused() -> None:
    """Lists and mappings alike, however deep."""
    end = "nested deeper than 16 levels; a spec needs no more than 4"

    assert fault("a: " + "[" * 500 + "]" * 500) == f"s.yaml:1:19: a{'[0]' * 15}: {end}"
    assert fault("{a: " * 17 + "1" + "}" * 17) == f"s.yaml:1:65: {'.'.join('a' * 16)}: {end}"
    assert fault("a: " + "[" * 5000) == "s.yaml:1:1003: not valid YAML: exceeded maximum nesting depth"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("\ta: 1\n", "s.yaml:1:1: not valid YAML: found character that cannot start any token; "
                     "indent with spaces, not tabs, and quote text that starts with @ or `"),
        ("a: b: c\n", "s.yaml:1:5: not valid YAML: mapping values are not allowed in this context; "
                      "quote text that contains ': ', and check the indentation"),
        ("a: {b: 1\n", "s.yaml:2:1: not valid YAML: did not find expected ',' or '}'; "
                       "a comma or a closing ] or } is missing"),
        ("a: [\n", "s.yaml:2:1: not valid YAML: did not find expected node content; "
                   "a value, or a closing ] or }, is missing"),
        ("a: 'b\n", "s.yaml:2:1: not valid YAML: found unexpected end of stream; a closing quote is missing"),
        ("a: 1\nb\n", "s.yaml:3:1: not valid YAML: could not find expected ':'; every line reads 'key: value'"),
        ("a: 1\n b: 2\n", "s.yaml:2:3: not valid YAML: mapping values are not allowed in this context; "
                          "quote text that contains ': ', and check the indentation"),
    ],
)  # fmt: skip
def test_broken_yaml_has_a_place_and_a_hint(text: str, line: str) -> None:
    """The parser's words, and what they usually mean in a spec."""
    assert fault(text) == line


@pytest.mark.parametrize(
    ("char", "shown"), [("\0", "U+0000"), ("\x1b", "U+001B"), ("\x7f", "U+007F"), ("\ufffe", "U+FFFE")]
)
def test_control_characters_are_refused_with_their_place(char: str, shown: str) -> None:
    """A binary file, or a terminal's escape sequence in a name."""
    assert fault(f"a: 1\nb: c{char}\n") == f"s.yaml:2:5: contains the control character {shown}; a spec is plain text"


def test_control_characters_in_escapes_do_not_break_the_line() -> None:
    """A key may hold a line break in quotes; the message stays one line."""
    assert fault('"a\\nb": 1\n"a\\nb": 2\n') == "s.yaml:2:1: a\\nb: duplicate key; it already stands on line 1"


def test_all_problems_are_reported_in_the_order_of_the_file() -> None:
    """One run shows everything that is wrong."""
    assert fault("a: 010\nb: &x no\na: 1\n").splitlines() == [
        "s.yaml:1:4: a: '010' starts with 0, which YAML 1.1 reads as octal; write it without the leading zero",
        "s.yaml:2:4: b: YAML anchors (&x) are not supported; remove it",
        "s.yaml:2:4: b: 'no' is a boolean in YAML 1.1 and text in 1.2; quote it, or write true/false",
        "s.yaml:3:1: a: duplicate key; it already stands on line 1",
    ]


def test_very_many_problems_are_counted() -> None:
    """The first fifty are listed."""
    lines = fault("".join(f"k{index}: no\n" for index in range(1000))).splitlines()

    assert len(lines) == 51
    assert lines[-1] == "s.yaml:51:6: and 950 more problems"


def test_an_empty_text_is_no_data() -> None:
    """Nothing, a comment and an explicit null are the same."""
    for text in ("", "# nothing\n", "---\n", "null\n"):
        assert parse(text, "s.yaml").data is None


def test_a_byte_order_mark_and_crlf_are_read_over(tmp_path: Path) -> None:
    """Files from Windows are files; lines are counted the same."""
    path = tmp_path / "s.yaml"
    path.write_bytes("\ufeffa: 1\r\nb: 010\r\n".encode())

    with pytest.raises(SpecError) as caught:
        parse(read_text(path), "s.yaml")
    assert str(caught.value).startswith("s.yaml:2:4: b: '010' starts with 0")


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    """Nobody may ever write to it."""
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    with pytest.raises(SpecError) as caught:
        read_text(pipe)
    assert str(caught.value) == f"{pipe}:1:1: cannot be read: not a regular file"


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    """Missing, a folder, not UTF-8, too large."""
    folder, binary, large = tmp_path, tmp_path / "b", tmp_path / "l"
    binary.write_bytes(b"a: 1\nb: caf\xe9\n")
    large.write_bytes(b"#" * (MAX_FILE_BYTES + 1))

    for path, message in (
        (tmp_path / "none", "1:1: cannot be read: No such file or directory"),
        (folder, "1:1: cannot be read: Is a directory"),
        (binary, "2:7: is not UTF-8 text (byte 0xe9); save it as UTF-8"),
        (large, "1:1: is larger than 1,048,576 bytes, which no such file needs"),
    ):
        with pytest.raises(SpecError) as caught:
            read_text(path)
        assert str(caught.value) == f"{path}:{message}"


def test_a_file_of_exactly_the_limit_is_read(tmp_path: Path) -> None:
    """The limit is inclusive."""
    path = tmp_path / "s.yaml"
    path.write_bytes(b"#" * MAX_FILE_BYTES)

    assert len(read_text(path)) == MAX_FILE_BYTES
