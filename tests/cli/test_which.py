"""`kvcalc which`: what fits, in which order and formats, and what is left out."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest

from tests.cli.running import answer, run

ASKED = ("which", "--gpu", "rtx-4090", "--ctx", "32K")


def which(*arguments: str) -> dict[str, Any]:
    """Return the JSON answer of `kvcalc which` on an RTX 4090 at 32 Ki tokens."""
    data: dict[str, Any] = json.loads(answer(*ASKED, *arguments, "--json"))
    return data


@pytest.fixture(scope="module", params=["ideal", "vllm", "llama.cpp"])
def found(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What fits, on three engines."""
    return which("--engine", request.param)


def test_the_largest_comes_first(found: dict[str, Any]) -> None:
    """In the order that the answer states; every model of the catalogue is listed or counted."""
    sizes = [each["parameters"] for each in found["models"]]
    assert sizes == sorted(sizes, reverse=True)
    assert "most parameters first" in found["order"]
    total = len(json.loads(answer("models", "--json"))["models"])
    assert len(sizes) + sum(found["left_out"].values()) == total


@pytest.mark.parametrize("place", [0, 5, 20, -1])
def test_fit_gives_the_same_answer(found: dict[str, Any], place: int) -> None:
    """A listed model fits with its changes, with the same batch and context, and not with fewer changes."""
    each = found["models"][place]
    asked = ("fit", each["model"], "--gpu", "rtx-4090", "--ctx", "32K", "--engine", found["engine"])
    changes = [word for change in each["changes"] for word in change.split()]
    data = json.loads(answer(*asked, *changes, "--json"))
    assert (data["max_batch"], data["max_context"]) == (each["max_batch"], each["max_context"])
    assert data["weights_bytes"] == each["weights_bytes"]
    if changes:
        assert run(*asked).code == 3
    for change in each["changes"] if len(each["changes"]) > 1 else ():
        assert run(*asked, *change.split()).code == 3


def test_the_batch_counts() -> None:
    """Fewer models hold 16 sequences than one; each has room for them."""
    many, one = which("--batch", "16"), which()
    assert 0 < len(many["models"]) < len(one["models"])
    assert all(each["max_batch"] is None or each["max_batch"] >= 16 for each in many["models"])


def test_given_formats_are_kept() -> None:
    """With both formats given nothing is changed."""
    data = which("--weights", "fp8", "--kv-dtype", "fp8")
    assert {each["kv_dtype"] for each in data["models"]} == {"fp8"}
    assert {tuple(each["changes"]) for each in data["models"]} == {()}


def test_people_and_sheets() -> None:
    """A table within 80 columns with the counts and the order below; CSV has a row for each model."""
    text = answer(*ASKED)
    assert "order: the most parameters first" in text
    assert "too large" in text
    assert max(map(len, text.splitlines())) <= 82
    rows = list(csv.DictReader(io.StringIO(answer(*ASKED, "--format", "csv"))))
    assert len(rows) == len(which()["models"])


@pytest.mark.parametrize("columns", ["20", "50", "80"])
def test_names_are_whole(monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    """They are there to be copied: a narrow table loses columns, not parts of names."""
    monkeypatch.setenv("COLUMNS", columns)
    table = answer(*ASKED).split("\n\n")[1].splitlines()[2:]
    assert [line.split()[0] for line in table] == [each["model"] for each in which()["models"]]
    assert max(map(len, table)) <= max(int(columns), 30)


def test_nothing_fits() -> None:
    """A card that is full ends with 3."""
    result = run(*ASKED, "--memory-reserve", "24015MiB")
    assert result.code == 3
    assert "no model fits" in result.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ctx", "32K"], "which needs --gpu NAME ('kvcalc gpus' lists them)"),
        (["--gpu", "rtx-4090"], "--ctx"),
        (["--gpu", "rtx4090x", "--ctx", "1K"], "no GPU 'rtx4090x'"),
        (["--gpu", "rtx-4090", "--ctx", "1K", "--engine", "vlm"], "unknown engine"),
        (["--gpu", "rtx-4090", "--ctx", "1K", "--kv-dtype", "fp9"], "unknown kv dtype"),
        (["--gpu", "rtx-4090", "--ctx", "1K", "-o", "blocksize=1"], "no option"),
        (["--gpu", "rtx-4090", "--ctx", "1K", "--gpus", "2"], "--gpus"),
        (["--gpu", "rtx-4090", "--ctx", "1K", "--memory-reserve", "1TiB"], "leaves nothing"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], message: str) -> None:
    """Names and values are checked before any model is blamed for them."""
    result = run("which", *arguments)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert result.err.count("\n") == 1
