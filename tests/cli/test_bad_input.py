"""Bad input: one clear line on standard error, nothing on standard output, the exit code, never a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import run

SPEC = """\
name: small
architecture: llama
source: {url: https://example.org/config.json, checked: 2026-01-01}
layers: 2
hidden_size: 96
heads: 2
dtype: bfloat16
max_context: null
parameters: null
"""


def refused(*arguments: str) -> tuple[int, str]:
    """Return the exit code and the one line of a run that must be refused."""
    result = run(*arguments)
    assert result.out == ""
    assert result.err.endswith("\n")
    assert result.err.count("\n") == 1, result.err
    assert "Traceback" not in result.err
    return result.code, result.err.rstrip("\n")


GPT2 = ("size", "gpt2-small")

USAGE = [
    ((*GPT2, "--ctx", "0"), "--ctx: 0 is out of range; it must be between 1 and 1,000,000,000,000"),
    ((*GPT2, "--ctx", "-1"), "--ctx: '-1' is not a token count; must be at least 1"),
    ((*GPT2, "--ctx", "1" + "0" * 30), "is out of range; it must be between 1 and"),
    ((*GPT2, "--ctx", "10^30"), "--ctx: '10^30' is not a token count; write for example 4096, 4K or 1Mi"),
    ((*GPT2, "--ctx", "1e30"), "--ctx: '1e30' is not a token count"),
    ((*GPT2, "--ctx", "4M"), "'4M' is ambiguous: write 4Mi (4,194,304)"),
    ((*GPT2, "--ctx", "4.5"), "not a whole number"),
    ((*GPT2, "--ctx", ""), "--ctx: '' is not a token count"),
    ((*GPT2, "--ctx", "9" * 3_999), "--ctx: '99999"),
    ((*GPT2, "--ctx", "9" * 5_000), "argument 4 (999999999999...) has 5,000 characters; at most 4,000 are read"),
    ((*GPT2, "--ctx"), "Option '--ctx' requires an argument"),
    (GPT2, "Missing option '--ctx'"),
    (("size", "--ctx", "5"), "Missing argument 'MODEL'"),
    (("size", "", "--ctx", "5"), "MODEL is empty"),
    ((*GPT2, "--ctx", "5", "--batch", "0"), "--batch: 0 is out of range"),
    ((*GPT2, "--ctx", "5", "--batch", "x"), "--batch: 'x' is not a token count"),
    ((*GPT2, "--ctx", "5", "--tp", "0"), "tp must be between 1 and 4,096, not 0"),
    ((*GPT2, "--ctx", "5", "--tp", "two"), "'two' is not a valid integer"),
    ((*GPT2, "--ctx", "5", "--tp", "64", "--dp", "512"), "tp * pp * dp must be between 1 and 4,096"),
    (("plot", "capacity", "gpt2", "--kv-memory", "24G", "-o", "x.html"), "write 24GiB (25,769,803,776 bytes) or 24GB"),
    (("size", "gpt2-smal", "--ctx", "5"), "no model 'gpt2-smal'; did you mean gpt2-small"),
    (("show", "gpt2-smal"), "no model 'gpt2-smal'; did you mean gpt2-small"),
    (("models", "gpt2-smal"), None),
    (("models", "zzzzzz"), "no model matches 'zzzzzz'"),
    ((*GPT2, "--ctx", "5", "--format", "tabel"), "'tabel' is not one of 'table', 'json', 'csv', 'md'"),
    ((*GPT2, "--ctx", "5", "--units", "metric"), "'metric' is not one of"),
    ((*GPT2, "--ctx", "5", "--engine", "ideel"), "unknown engine 'ideel'; did you mean ideal?"),
    (("engines", "ideel"), "unknown engine 'ideel'; did you mean ideal?"),
    ((*GPT2, "--ctx", "5", "--kv-dtype", "fp61"), "unknown kv dtype 'fp61'; did you mean fp16"),
    ((*GPT2, "--ctx", "5", "--kv-dtype", "fp8/fp8/fp8"), "has 3 parts; write F for both or K/V"),
    ((*GPT2, "--ctx", "5", "--kv-dtype", ""), "--kv-dtype is empty"),
    ((*GPT2, "--ctx", "5", "--dtype", "floaty"), "unknown dtype 'floaty'"),
    ((*GPT2, "--ctx", "5", "--weights", "q9"), "unknown weights format 'q9'"),
    ((*GPT2, "--ctx", "5", "--cntx", "6"), "No such option"),
    (("siez", "gpt2"), "no command 'siez'; did you mean size"),
    (("",), "no command ''"),
    ((*GPT2, "--ctx", "5", "more"), "Got unexpected extra argument"),
    ((*GPT2, "--ctx", "5", "-o", "block_size"), "-o block_size: write KEY=VALUE, for example -o block_size=16"),
    ((*GPT2, "--ctx", "5", "-o", "blok_size=16"), "engine ideal has no option 'blok_size'; did you mean block_size?"),
    ((*GPT2, "--ctx", "5", "-o", "block_size=0"), "option block_size=0: must be at least 1"),
    ((*GPT2, "--ctx", "5", "--evict", "windw:5"), "must be window:W[,sinks:S] or budget:N"),
    ((*GPT2, "--ctx", "5", "--evict", "window:5,sink:1"), "must be window:W[,sinks:S] or budget:N"),
    ((*GPT2, "--ctx", "5", "--evict", "window:0"), "must keep at least one token"),
    ((*GPT2, "--ctx", "5", "--encoder-ctx", "10"), "gpt2-small has no cross-attention layers"),
    # Options that contradict each other.
    ((*GPT2, "--ctx", "5", "--json", "--format", "csv"), "--json contradicts --format csv"),
    ((*GPT2, "--ctx", "500", "--reserve-ctx", "100"), "context 500 exceeds --reserve-ctx 100"),
    ((*GPT2, "--ctx", "500", "--shared-prefix", "501"), "--shared-prefix 501 exceeds the context 500"),
    ((*GPT2, "--ctx", "5", "-o", "block_size=1", "-o", "block_size=2"), "-o block_size is given twice"),
    ((*GPT2, "--ctx", "5", "--evict", "window:3", "-o", "evict=window:4"), "evict is given twice"),
    # Control characters are shown, not obeyed.
    (("size", "a\nb\x1b[31m", "--ctx", "5"), "no model 'a b\\x1b[31m'"),
]

REFUSED = [
    ((*GPT2, "--ctx", "5", "--tp", "5"), "tp 5 does not divide the 12 heads; use tp 1 2 3 4 6 12"),
    ((*GPT2, "--ctx", "5", "--pp", "13"), "pp 13 needs at least 13 layers"),
    ((*GPT2, "--ctx", "5", "--dcp", "2"), "drop --dcp"),
    (
        ("size", "phi-2", "--ctx", "5", "--kv-dtype", "int4_g64"),
        "blocks of 64 elements, which do not divide a row of 80",
    ),
    (
        ("size", "llama-3.1-8b", "--ctx", "500", "--evict", "budget:100", "--shared-prefix", "50"),
        "--evict budget:N with --shared-prefix is not covered",
    ),
]


@pytest.mark.parametrize(("arguments", "message"), USAGE)
def test_a_wrong_argument_is_a_usage_error(arguments: tuple[str, ...], message: str | None) -> None:
    """Unknown names, values out of range and contradictions exit with 2."""
    if message is None:  # `gpt2-smal` is a part of gpt2-small, so that a query finds it
        assert run(*arguments).code == 0
        return
    code, line = refused(*arguments)
    assert code == 2
    assert line.startswith("error: ")
    assert message in line


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_what_an_engine_or_a_format_cannot_do_exits_with_1(arguments: tuple[str, ...], message: str) -> None:
    """The request is well formed, and refused with the reason."""
    code, line = refused(*arguments)
    assert code == 1
    assert message in line


def test_a_missing_file_is_a_usage_error() -> None:
    """A path that does not exist exits with 2, as does a folder."""
    assert refused("size", "./nowhere.yaml", "--ctx", "5") == (2, "error: ./nowhere.yaml: no such file")


def test_a_folder_is_a_usage_error(tmp_path: Path) -> None:
    """A folder is no spec."""
    code, line = refused("size", str(tmp_path), "--ctx", "5")
    assert code == 2
    assert "is a folder" in line


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", ":1:1: the file is empty"),
        (b"\x00\x01\x02\xff\xfe" * 40, ":1:"),
        (b"name: caf\xe9\n", ":1:10: is not UTF-8 text (byte 0xe9)"),
        (b"name: [unclosed\n", "not valid YAML"),
        (b"- a\n- b\n", "is not a mapping"),
        (SPEC.encode() + b"kv_groups: 1\n", "kv_groups: unknown key; use kv_heads"),
        (SPEC.replace("layers: 2", "layers: two").encode(), ":4:9: layers: must be a whole number, not 'two'"),
        (b"a: " + b"x" * 2**20, "is larger than 1,048,576 bytes"),
    ],
)
@pytest.mark.parametrize("command", ["size", "explain", "show"])
def test_a_faulty_file_is_one_line_with_its_place(command: str, content: bytes, message: str, tmp_path: Path) -> None:
    """Rubbish, an empty file, a wrong encoding or a wrong key: `file:line:col: message`, exit 1."""
    path = tmp_path / "spec.yaml"
    path.write_bytes(content)
    code, line = refused(command, str(path), *(() if command == "show" else ("--ctx", "5")))
    assert code == 1
    assert line.startswith(f"{path}:")
    assert message in line


def test_every_fault_of_a_file_is_told_at_once(tmp_path: Path) -> None:
    """Two faults are two lines."""
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC.replace("layers: 2", "layers: two").replace("dtype: bfloat16", "dtype: bfloat61"))
    result = run("size", str(path), "--ctx", "5")
    assert (result.code, result.out) == (1, "")
    assert [line.split(": ")[1] for line in result.err.splitlines()] == ["layers", "dtype"]


@pytest.mark.parametrize(
    "name", ["x" * 3_000, "./" + "x" * 3_000, "~nobody-of-this-name", "~nobody-of-this-name/a.yaml"]
)
def test_a_name_that_the_system_cannot_look_up_is_unknown(name: str) -> None:
    """A name longer than files may have, or somebody else's home that does not exist, is no model."""
    code, line = refused("size", name, "--ctx", "5")
    assert code == 2
    assert "no such file" in line or "no model" in line
