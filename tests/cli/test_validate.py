"""`kvcalc validate` where nothing is allocated: refusals, and the comparison over an allocation made up here."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest

from kvcalc.measure import cache
from kvcalc.measure.cache import Allocation
from tests.cli.running import run


@pytest.fixture
def allocated(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Make `allocate` answer with what the test sets as `by_label`, and remember what it was asked for."""
    seen = SimpleNamespace(by_label={}, tensors=None, device=None)

    def allocate(tensors: tuple[cache.CacheTensor, ...], device: str) -> Allocation:
        seen.tensors, seen.device = tensors, device
        return Allocation(sum(seen.by_label.values()), seen.by_label, len(tensors), "a counter", None, device, "9.9")

    monkeypatch.setattr(cache, "allocate", allocate)
    return seen


def test_equal_bytes_exit_with_0(allocated: SimpleNamespace) -> None:
    """gpt2-small at 512 tokens: 24 tensors of 512 x 12 x 64 elements."""
    allocated.by_label = {"full": 18_874_368}
    result = run("validate", "gpt2-small", "--ctx", "512", "--json")
    assert (result.code, result.err) == (0, "")
    data = json.loads(result.out)
    assert data["schema"] == "kvcalc.validate/1"
    assert (data["predicted_bytes"], data["allocated_bytes"], data["equal"]) == (18_874_368, 18_874_368, True)
    assert data["by_kind"] == [
        {
            "label": "full",
            "kind": "full",
            "layers": 12,
            "predicted_bytes": 18_874_368,
            "allocated_bytes": 18_874_368,
        }
    ]
    assert (data["torch_version"], data["device"], data["context"], data["batch"]) == ("9.9", "cpu", 512, 1)
    assert [tensor.shape for tensor in allocated.tensors] == [(1, 512, 12, 64)] * 24
    assert {tensor.dtype for tensor in allocated.tensors} == {"float16"}


@pytest.mark.parametrize("by_label", [{"full": 18_874_367}, {}, {"full": 18_874_368, "more": 1}, {"other": 18_874_368}])
def test_a_difference_exits_with_1(allocated: SimpleNamespace, by_label: dict[str, int]) -> None:
    """A byte too few, nothing, something that nobody predicted, or the right sum in the wrong place."""
    allocated.by_label = by_label
    result = run("validate", "gpt2-small", "--ctx", "512", "--json")
    data = json.loads(result.out)
    assert (result.code, data["equal"]) == (1, False)
    assert {row["label"]: row["allocated_bytes"] for row in data["by_kind"]} == {"full": 0, **by_label}


def test_the_table_says_how_far_off_it_is(allocated: SimpleNamespace) -> None:
    """In words, with the sign."""
    allocated.by_label = {"full": 18_874_400}
    result = run("validate", "gpt2-small", "--ctx", "512")
    assert result.code == 1
    assert "they differ: +32 bytes in all" in result.out


def test_a_context_beyond_the_trained_maximum_warns(allocated: SimpleNamespace) -> None:
    """On standard error and in JSON."""
    allocated.by_label = {"full": 150_994_944}
    result = run("validate", "gpt2-small", "--ctx", "4096", "--json")
    warning = "gpt2-small was trained for 1,024 positions; context 4,096 is beyond them"
    assert (result.code, result.err) == (0, f"warning: {warning}\n")
    assert json.loads(result.out)["warnings"] == [warning]


def test_a_missing_torch_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line that installs it, exit code 1."""
    monkeypatch.setitem(sys.modules, "torch", None)
    result = run("validate", "gpt2-small", "--ctx", "512")
    assert (result.code, result.out) == (1, "")
    assert result.err == "error: validate needs the extra 'torch': pip install 'kvcalc[torch]'\n"


@pytest.mark.parametrize(
    ("call", "code", "message"),
    [
        ("gpt2-small", 2, "Missing option '--ctx'."),
        ("gpt2-smal --ctx 512", 2, "no model 'gpt2-smal'; did you mean gpt2-small"),
        ("gpt2-small --ctx 512 --device tpu", 2, "'tpu' is not one of 'cpu', 'cuda'"),
        ("gpt2-small --ctx 0", 2, "--ctx: 0 is out of range"),
        ("gpt2-small --ctx 512 --encoder-ctx 9", 2, "gpt2-small has no cross-attention layers"),
        ("gpt2-small --ctx 512 --tp 2", 1, "lies on one device; drop tp 2"),
        ("gpt2-small --ctx 512 --pp 2", 1, "drop pp 2"),
        ("gpt2-small --ctx 512 --dp 2", 1, "drop dp 2"),
        ("gpt2-small --ctx 512 -o block_size=16", 1, "has no block_size"),
        ("gpt2-small --ctx 512 --reserve-ctx 1024", 1, "has no reserve_ctx"),
        ("gpt2-small --ctx 512 --evict window:100", 1, "has no evict"),
        ("gpt2-small --ctx 512 --shared-prefix 100", 1, "has no shared_prefix"),
        ("gpt2-small --ctx 512 --engine vllm", 1, "only"),
        ("gpt2-small --ctx 512 --kv-dtype q8_9", 2, "unknown kv dtype 'q8_9'; did you mean q8_0"),
    ],
)
def test_what_cannot_be_allocated_is_refused_in_one_line(
    allocated: SimpleNamespace, call: str, code: int, message: str
) -> None:
    """Before anything is allocated."""
    result = run("validate", *call.split())
    assert (result.code, result.out) == (code, "")
    assert message in result.err
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1
    assert allocated.tensors is None
