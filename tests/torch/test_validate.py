"""`kvcalc validate` with the real torch, on the CPU and, where there is one, on a GPU."""

from __future__ import annotations

import json

import pytest

from tests.cli.running import program, run

pytestmark = pytest.mark.torch


def validated(*arguments: str) -> dict[str, object]:
    """Return the JSON of a validation that must find equal bytes."""
    result = run("validate", *arguments, "--json")
    assert result.code == 0, result.err
    data: dict[str, object] = json.loads(result.out)
    return data


@pytest.mark.parametrize(("context", "expected"), [(512, 18_874_368), (4096, 150_994_944)])
def test_gpt2_allocates_what_is_published(context: int, expected: int) -> None:
    """Two well-known figures, as bytes of tensors that exist."""
    data = validated("gpt2-small", "--ctx", str(context))
    assert (data["allocated_bytes"], data["predicted_bytes"], data["equal"]) == (expected, expected, True)


def test_the_process_really_grows_by_the_cache() -> None:
    """The resident memory of a fresh process, which nothing in kvcalc computes: within 8 MiB of 604 MB."""
    result = program("validate", "gpt2-small", "--ctx", "4096", "--batch", "4", "--json")
    assert result.code == 0, result.err
    data = json.loads(result.out)
    assert data["allocator"] == "resident memory of the process"
    assert abs(data["allocator_bytes"] - 603_979_776) < 8 * 2**20


@pytest.mark.parametrize(
    "call",
    [
        "gemma-3-27b --ctx 1500 --batch 2",
        "deepseek-v3 --ctx 500",
        "deepseek-v3.2 --ctx 500",
        "deepseek-v4-flash --ctx 1001",
        "llama-4-scout --ctx 9000",
        "qwen3-next-80b-a3b --ctx 100 --batch 2",
        "whisper-large-v3 --ctx 50 --encoder-ctx 300",
        "gemma-3n-e4b --ctx 700",
        "llama-3.2-1b --ctx 300 --kv-dtype fp8",
        "llama-3.2-1b --ctx 300 --kv-dtype int8",
        "llama-3.2-1b --ctx 300 --kv-dtype nvfp4",
        "llama-3.2-1b --ctx 300 --kv-dtype q8_0/q4_0",
        "llama-3.2-1b --ctx 300 --dtype fp32",
    ],
)
def test_every_kind_and_format_allocates_what_is_predicted(call: str) -> None:
    """Windows, latents, indexers, compression, chunks, states, encoders, shared layers, block formats."""
    assert validated(*call.split())["equal"] is True


def test_more_than_the_machine_has_is_refused() -> None:
    """35 TiB, in one line, without trying."""
    result = run("validate", "gpt2-small", "--ctx", "1Mi", "--batch", "1000")
    assert (result.code, result.out) == (2, "")
    assert "the cache needs 35.2 TiB (38,654,705,664,000 bytes)" in result.err
    assert "available:" in result.err


def test_cuda_is_measured_or_refused_in_one_line() -> None:
    """Equal to the byte on a GPU, where the allocator may only round up; else one line."""
    import torch

    result = run("validate", "gpt2-small", "--ctx", "512", "--device", "cuda", "--json")
    if not torch.cuda.is_available():
        assert (result.code, result.out) == (1, "")
        assert "sees no CUDA GPU; use --device cpu" in result.err
        pytest.skip("this machine has no CUDA GPU; that it is refused was checked")
    data = json.loads(result.out)
    assert (result.code, data["allocated_bytes"]) == (0, 18_874_368)
    assert 18_874_368 <= data["allocator_bytes"] < 18_874_368 + data["tensors"] * 2**20
