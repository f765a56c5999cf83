"""`kvcalc plot`: the files it writes, the values it tells, and what it refuses."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import answer, program, run

GPT2_TOKEN_BYTES = 2 * 12 * 768 * 2


def figure_of(page: str) -> dict[str, Any]:
    """Return the figure inside a page."""
    found = re.search(r'<script type="application/json" id="figure">(.*?)</script>', page, flags=re.DOTALL)
    assert found
    figure: dict[str, Any] = json.loads(found[1])
    return figure


def test_a_page_is_written_and_its_size_told(tmp_path: Path) -> None:
    """The path and the bytes on standard error; nothing on standard output."""
    path = tmp_path / "out.html"
    result = run("plot", "context", "gpt2-small", "-o", str(path))
    assert (result.code, result.out) == (0, "")
    assert result.err == f"wrote {path}, {path.stat().st_size / 2**20:.2f} MiB  ({path.stat().st_size:,} bytes)\n"
    assert os.listdir(tmp_path) == ["out.html"]


def test_a_page_goes_to_standard_output_when_asked() -> None:
    """The page and nothing else, and nothing on standard error."""
    result = run("plot", "context", "gpt2-small", "-o", "-")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("<!DOCTYPE html>")
    assert result.out.endswith("</html>\n")


def test_an_older_page_is_overwritten(tmp_path: Path) -> None:
    """As the tools that people know do it."""
    path = tmp_path / "out.html"
    path.write_text("old")
    assert run("plot", "context", "gpt2-small", "-o", str(path)).code == 0
    assert path.read_text().startswith("<!DOCTYPE html>")


def test_the_page_tells_model_engine_formats_and_sources(tmp_path: Path) -> None:
    """What the numbers are of, where they come from, and what was assumed, without opening a picture."""
    path = tmp_path / "out.html"
    options = ("--batch", "3", "--kv-dtype", "q8_0/q4_0", "--weights", "q8_0", "-o", "block_size=16")
    assert run("plot", "context", "gpt2-small", *options, "-o", str(path)).code == 0
    text = path.read_text()
    for words in (
        "KV cache against context: gpt2-small",
        "3 sequences",
        "Engine ideal",
        "block_size 16",
        "q8_0/q4_0",
        "126 MiB  (132,217,296 bytes), q8_0",
        "Dimensions of gpt2-small: <a href=",
        "Assumed: dtype float16",
        "How to read it",
    ):
        assert words in text


def test_values_as_json() -> None:
    """Exact integers that stand for the page's points, on standard output alone."""
    result = run("plot", "context", "gpt2-small", "--to", "4096", "--batch", "8", "--json")
    assert result.err == "warning: gpt2-small was trained for 1,024 positions; context 4,096 is beyond them\n"
    data = json.loads(result.out)
    [series] = data.pop("series")
    assert series.pop("total_bytes") == [8 * GPT2_TOKEN_BYTES * context for context in series["context"]]
    assert (series.pop("context")[0], series) == (
        1,
        {
            "model": "gpt2-small",
            "max_context": 1024,
            "weights_bytes": 248_879_616,
            "cache_passes_weights_at": 844,
            "kv_dtype": "fp16",
        },
    )
    assert len(data.pop("assumptions")) == 1
    assert data == {
        "schema": "kvcalc.plot/1",
        "plot": "context",
        "engine": {"name": "ideal", "version": ""},
        "batch": 8,
        "warnings": ["gpt2-small was trained for 1,024 positions; context 4,096 is beyond them"],
    }


def test_json_can_go_to_a_file(tmp_path: Path) -> None:
    """The same values as on standard output."""
    path = tmp_path / "values.json"
    assert run("plot", "context", "gpt2-small", "--json", "-o", str(path)).code == 0
    assert path.read_text() == answer("plot", "context", "gpt2-small", "--json")


def test_values_agree_with_size() -> None:
    """Two commands, one number: ranks, replicas and a remedy included."""
    options = ("--tp", "4", "--pp", "3", "--dp", "2", "--batch", "9", "-o", "block_size=16", "--kv-dtype", "fp8")
    [series] = json.loads(answer("plot", "context", "llama-3.1-8b", *options, "--json"))["series"]
    pairs = dict(zip(series["context"], series["total_bytes"], strict=True))
    for context in (1, 17, 4096, 131_072):
        size = json.loads(answer("size", "llama-3.1-8b", "--ctx", str(context), *options, "--json"))
        assert pairs[context] == size["total_bytes"]


def test_capacity_divides_the_memory() -> None:
    """288 MiB hold 8 sequences of GPT-2 at its trained maximum, with nothing to spare."""
    data = json.loads(answer("plot", "capacity", "gpt2-small", "--kv-memory", "288MiB", "--json"))
    [series] = data["series"]
    assert data["kv_memory_bytes"] == 288 * 2**20
    for context, batch, spare in zip(series["context"], series["max_batch"], series["spare_bytes"], strict=True):
        assert (batch, spare) == divmod(288 * 2**20, GPT2_TOKEN_BYTES * context)
    assert (series["context"][-1], series["max_batch"][-1]) == (1024, 8)


def test_capacity_is_decided_by_the_fullest_rank() -> None:
    """32 layers in three stages are 11, 11 and 10; two replicas double the batch."""
    options = ("--kv-memory", "1GiB", "--pp", "3", "--dp", "2", "--from", "1000", "--to", "1000", "--json")
    [series] = json.loads(answer("plot", "capacity", "llama-3.1-8b", *options))["series"]
    fits, spare = divmod(2**30, 11 * 2 * 8 * 128 * 2 * 1000)
    assert (series["max_batch"], series["spare_bytes"]) == ([2 * fits], [spare])


def test_each_curve_ends_where_its_model_was_trained_to_end_unless_told(tmp_path: Path) -> None:
    """Without --to nothing is drawn that a model was not made for, so that there is nothing to warn of."""
    path = tmp_path / "out.html"
    models = ("llama-3.1-8b", "gpt2-small", "falcon-mamba-7b")
    result = run("plot", "context", *models, "-o", str(path))
    assert result.err.startswith("wrote ")
    ends = {trace["name"]: trace["x"][-1] for trace in figure_of(path.read_text())["data"]}
    assert {name: ends[name] for name in models} == {
        "llama-3.1-8b": 131_072,
        "gpt2-small": 1024,
        "falcon-mamba-7b": 131_072,
    }
    assert "falcon-mamba-7b: the source states no trained maximum; drawn to 131,072" in path.read_text()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("plot contxt gpt2 -o {0}/a.html", "no plot 'contxt'; did you mean context?"),
        ("plot pie gpt2 -o {0}/a.html", "no plot 'pie'; there are context, capacity"),
        ("plot context -o {0}/a.html", "Missing argument 'MODELS...'."),
        ("plot context gpt2", "no file to write: add for example -o out.html, or -o - for standard output"),
        ("plot context gpt3 -o {0}/a.html", "no model 'gpt3'; did you mean"),
        ("plot context gpt2 gpt2-small -o {0}/a.html", "gpt2-small is named twice"),
        ("plot context gpt2 -o {0}/a.html -o {0}/b.html", "-o names 2 files"),
        ("plot context gpt2 -o {0}/missing/a.html", "no folder {0}/missing"),
        ("plot context gpt2 -o {0}", "is a folder"),
        ("plot context gpt2 -o {0}/a.png", ".png needs an extra that is not available yet; write a.html instead"),
        ("plot context gpt2 -o {0}/a.html --json", "must end in .json"),
        ("plot context gpt2 --from 100 --to 10 -o {0}/a.html", "--from 100 is beyond --to 10"),
        ("plot context gpt2 --from 4K -o {0}/a.html", "--from 4,096 is beyond 1,024, the last context drawn of"),
        ("plot context gpt2 --from 0 -o {0}/a.html", "--from: 0 is out of range"),
        ("plot context gpt2 --to 4M -o {0}/a.html", "--to: '4M' is ambiguous"),
        ("plot context gpt2 --batch -3 -o {0}/a.html", "--batch: '-3' is not a token count"),
        ("plot context gpt2 --reserve-ctx 512 -o {0}/a.html", "exceeds --reserve-ctx 512"),
        ("plot context gpt2 --shared-prefix 100 -o {0}/a.html", "(--from and --to say which contexts are drawn"),
        ("plot context gpt2 -o blok_size=16 -o {0}/a.html", "no option 'blok_size'; did you mean block_size?"),
        ("plot capacity gpt2 -o {0}/a.html", "Missing option '--kv-memory'."),
        ("plot capacity gpt2 --kv-memory 24G -o {0}/a.html", "'24G' is ambiguous: write 24GiB"),
        ("plot capacity gpt2 --kv-memory 36863 -o {0}/a.html", "which needs 36,864 bytes"),
    ],
)
def test_bad_input_is_told_in_one_line_and_writes_nothing(call: str, message: str, tmp_path: Path) -> None:
    """Exit code 2, and no file."""
    result = run(*call.format(tmp_path).split())
    assert (result.code, result.out) == (2, "")
    assert message.format(tmp_path) in result.err
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1
    assert os.listdir(tmp_path) == []


def test_too_many_models_are_refused(tmp_path: Path) -> None:
    """More lines than a reader can tell apart."""
    result = run("plot", "context", *["gpt2"] * 17, "-o", str(tmp_path / "a.html"))
    assert (result.code, result.err) == (2, "error: 17 models are too many for one picture; name at most 16\n")


def test_a_model_that_does_not_fit_beside_one_that_does_is_told() -> None:
    """The picture is drawn, and the empty line explained."""
    result = run("plot", "capacity", "gpt2-small", "llama-3.1-8b", "--kv-memory", "100000", "--json")
    assert (result.code, result.err) == (0, "warning: llama-3.1-8b does not fit at all\n")


def test_values_are_drawn_without_plotly() -> None:
    """JSON needs no plotly, help needs neither pydantic nor yaml: a program of its own says what it imported."""
    for arguments, forbidden in (
        (["plot", "context", "gpt2-small", "--json"], {"plotly", "numpy", "torch"}),
        (["plot", "context", "--help"], {"plotly", "numpy", "torch", "pydantic", "yaml"}),
        (["plot", "--help"], {"plotly", "numpy", "torch", "pydantic", "yaml"}),
    ):
        result = program(*arguments, PYTHONPROFILEIMPORTTIME="1")
        assert result.code == 0
        imported = {line.rsplit("|", 1)[-1].strip().split(".")[0] for line in result.err.splitlines()}
        assert not imported & forbidden
