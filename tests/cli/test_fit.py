"""`kvcalc fit`: what a budget holds, the engine's own lines, exit codes, and one clear line for what it cannot take."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest

import kvcalc.api
from tests.cli.running import answer, run

GIB = 2**30
# The stable keys; a later version may add to them, never take away.
KEYS = {
    "schema", "model", "engine", "context", "batch", "dtype", "kv_dtype", "fits", "max_batch", "max_context",
    "budget_bytes", "weights_bytes", "binding", "suggestions", "ladder", "engine_report", "assumptions", "warnings",
}  # fmt: skip


def fit(*arguments: str, code: int = 0) -> dict[str, Any]:
    """Return the JSON answer of `kvcalc fit ARGUMENTS`, which must end with that exit code."""
    result = run("fit", *arguments, "--json")
    assert result.code == code, result.err
    data: dict[str, Any] = json.loads(result.out)
    return data


def changes(data: dict[str, Any]) -> list[str]:
    """Return the changes that help, in the order of the answer."""
    return [each["change"] for each in data["suggestions"] if each["helps"]]


def test_the_answer_in_numbers() -> None:
    """16 GiB hold 128 Ki tokens of Llama 3.1 8B's 131,072 bytes: 16 sequences of 8 Ki, or one of 128 Ki."""
    data = fit("llama-3.1-8b", "--kv-memory", "16GiB", "--ctx", "8K")
    assert set(data) >= KEYS
    assert (data["schema"], data["fits"]) == ("kvcalc.fit/1", True)
    assert (data["max_batch"], data["max_context"]) == (16, 131072)
    assert (data["budget_bytes"], data["weights_bytes"]) == (16 * GIB, None)
    assert data["binding"] == {
        "rank": 0, "pp": 0, "tp": 0, "pool": None, "needed_bytes": GIB, "budget_bytes": 16 * GIB,
        "spare_bytes": 15 * GIB,
    }  # fmt: skip
    assert {"context": 8192, "max_batch": 16} in data["ladder"]
    assert [rung["context"] for rung in data["ladder"]] == [512 << step for step in range(9)]


def test_what_the_server_would_print() -> None:
    """Gemma 3 27B in 20 GiB on vLLM, as its own planning code has it (case Gemma-3-27B#1)."""
    data = fit("gemma-3-27b", "--engine", "vllm", "--kv-memory", "20GiB", "--ctx", "131072")
    found = data["engine_report"]
    assert (found["num_blocks"], found["kv_cache_size_tokens"], found["admitted"]) == (16384, 145829, True)
    assert (found["max_concurrency"], found["max_concurrency_printed"]) == (16384 / 14726, "1.11x")
    assert found["max_context_that_fits"] == 131072
    assert found["log_lines"] == [
        "GPU KV cache size: 145,829 tokens",
        "Maximum concurrency for 131,072 tokens per request: 1.11x",
    ]
    assert data["max_batch"] == (16384 - 1) // found["blocks_per_sequence"] == 1
    assert {"block_size", "bytes_per_block_per_rank", "groups", "held_bytes"} <= set(found)


@pytest.mark.parametrize("context", [1000, 8192, 20000, 100000])
def test_a_batch_is_the_usable_blocks_divided(context: int) -> None:
    """For every context, max_batch is the blocks without the null block over those of one sequence, in whole."""
    data = fit("gpt-oss-20b", "--engine", "vllm", "--kv-memory", "10GiB", "--ctx", str(context), "--tp", "2")
    found = data["engine_report"]
    assert data["max_batch"] == (found["num_blocks"] - 1) // found["blocks_per_sequence"]


def test_what_does_not_fit_ends_with_3_and_says_what_would() -> None:
    """The engine's refusal word for word, and one change each that helps; the changes are true."""
    asked = ("gemma-3-27b", "--engine", "vllm", "--kv-memory", "10GiB")
    data = fit(*asked, code=3)
    refusal = data["engine_report"]["admission_error"]
    assert "(17.98 GiB KV cache is needed" in refusal
    assert "the estimated maximum model length is 26512." in refusal
    assert (data["fits"], data["max_batch"], data["max_context"]) == (False, 0, 26512)
    changes = {each["kind"]: each["change"] for each in data["suggestions"] if each["helps"]}
    assert (changes["context"], changes["memory"]) == ("--ctx 26512", "--kv-memory 19302973440")
    assert fit(*asked, "--ctx", "26512")["fits"]
    assert not fit(*asked, "--ctx", "26513", code=3)["fits"]
    assert fit("gemma-3-27b", "--engine", "vllm", "--kv-memory", "19302973440")["fits"]
    assert not fit("gemma-3-27b", "--engine", "vllm", "--kv-memory", "19302973439", code=3)["fits"]


def test_a_batch_that_does_not_fit_names_the_one_that_does() -> None:
    """17 sequences do not fit where 16 do; the server would start all the same."""
    data = fit("llama-3.1-8b", "--kv-memory", "16GiB", "--ctx", "8K", "--batch", "17", code=3)
    assert {"--batch 16", "--ctx 7710"} <= {each["change"] for each in data["suggestions"]}
    vllm = fit("llama-3.1-8b", "--engine", "vllm", "--kv-memory", "16GiB", "--ctx", "8K", "--batch", "16", code=3)
    assert (vllm["max_batch"], vllm["engine_report"]["admitted"]) == (15, True)  # one block is the null block


def test_auto_fit_lowers_the_context_and_says_so() -> None:
    """The answer is about the context that the server settles on."""
    result = run("fit", "llama-3.1-8b", "--engine", "vllm", "--kv-memory", "10GiB", "-o", "auto_fit=true", "--json")
    data = json.loads(result.out)
    assert (result.code, data["context"], data["fits"]) == (0, 81904, True)
    assert data["engine_report"]["kv_cache_size_tokens"] == 81920
    assert result.err == "warning: vllm lowers the context from 131,072 to 81,904\n"


def test_blocks_that_are_set_replace_the_memory() -> None:
    """9,000 blocks of 2 MiB hold one request of 8,192; they must fit themselves, and so must a request."""
    asked = ("llama-3.1-8b", "--engine", "vllm", "-o", "num_gpu_blocks_override=9000", "--kv-memory")
    data = fit(*asked, "20GiB")
    assert (data["max_batch"], data["engine_report"]["num_blocks"]) == (1, 9000)
    assert fit(*asked, str(9000 * 2**21))["fits"]
    short = fit(*asked, str(9000 * 2**21 - 1), code=3)
    assert (short["max_batch"], short["engine_report"]["admitted"]) == (1, True)
    assert changes(short) == ["--kv-dtype int8", "--tp 2", f"--kv-memory {9000 * 2**21}"]
    refused = fit(*asked, "10GiB", code=3)
    assert changes(refused) == ["--ctx 81904", "--kv-dtype int8", "--tp 2", f"--kv-memory {9000 * 2**21}"]
    small = fit(*asked, "20GiB", "--batch", "2", code=3)
    assert changes(small) == ["--ctx 71984", "--batch 1"]


def test_a_reservation_bounds_the_context() -> None:
    """An engine's option that forbids longer contexts is the largest context, and cuts the ladder."""
    data = fit("gpt2-small", "--kv-memory", "1GiB", "--reserve-ctx", "2048")
    assert data["max_context"] == 2048
    assert [rung["context"] for rung in data["ladder"]] == [512, 1024]


def test_the_trained_maximum_is_the_context_unless_given() -> None:
    """gpt2-small has 1,024 positions; a model without a maximum needs --ctx; beyond it there is a warning."""
    assert fit("gpt2-small", "--kv-memory", "1GiB")["context"] == 1024
    result = run("fit", "mamba-130m", "--kv-memory", "1GiB")
    assert (result.code, result.err) == (2, "error: mamba-130m has no trained maximum; say for which context (--ctx)\n")
    assert "beyond them" in run("fit", "gpt2-small", "--kv-memory", "1GiB", "--ctx", "4096").err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ctx", "4096"], "--kv-memory SIZE"),
        (["--kv-memory", "16G"], "ambiguous"),
        (["--kv-memory", "0"], "--kv-memory"),
        (["--kv-memory", "1GiB", "--ctx", "0"], "--ctx"),
        (["--kv-memory", "1GiB", "--batch", "0"], "--batch"),
    ],
)
def test_a_wrong_call_ends_with_2_and_one_line(arguments: list[str], message: str) -> None:
    """The line names the option."""
    result = run("fit", "llama-3.1-8b", *arguments)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert result.err.count("\n") == 1


def test_the_report_for_people() -> None:
    """Every main figure with its exact bytes, the binding rank, the ladder, the log lines."""
    text = answer("fit", "llama-3.1-8b", "--engine", "vllm", "--kv-memory", "20GiB", "--ctx", "131072")
    for line in (
        "fits             yes",
        "budget           20.0 GiB  (21,474,836,480 bytes), the cache's on every rank",
        "largest batch    1 at context 131,072",
        "largest context  163,824 at batch 1",
        "log: GPU KV cache size: 163,840 tokens",
        "log: Maximum concurrency for 131,072 tokens per request: 1.25x",
        "131,072              1",
    ):
        assert line in text
    assert max(map(len, text.splitlines())) <= 80


def test_one_row_as_csv() -> None:
    """The columns that a sheet needs."""
    text = answer("fit", "llama-3.1-8b", "--kv-memory", "16GiB", "--ctx", "8K", "--format", "csv")
    (row,) = csv.DictReader(io.StringIO(text))
    assert (row["fits"], row["max_batch"], row["max_context"]) == ("True", "16", "131072")


def test_python_users_get_the_same() -> None:
    """`api.fit` returns the typed result that the command prints."""
    result = kvcalc.api.fit("llama-3.1-8b", kv_memory=16 * GIB, context=8192)
    assert (result.max_batch, result.fits) == (16, True)
    assert str(result).startswith("llama-3.1-8b  context 8,192, batch 1, KV bf16, engine ideal\n")
    assert result.to_json() == fit("llama-3.1-8b", "--kv-memory", "16GiB", "--ctx", "8K")
