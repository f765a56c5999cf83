"""`kvcalc validate --engine transformers` over a library's answer made up here, and without the library."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from kvcalc.cli import _validate_library
from kvcalc.measure.transformers_cache import Measured
from tests.cli.running import run

CALL = ("validate", "gpt2-small", "--engine", "transformers", "--ctx", "512")
CACHE = 18_874_368  # 12 layers x K and V x 512 tokens x 12 heads x 64 x 2 bytes
NEXT = CACHE + CACHE // 512
# One tensor of one layer more: the last one, old, while its new one is made.
PEAK = NEXT + CACHE // 24


def answer(**changes: Any) -> Measured:
    """Return what the library would say about GPT-2, with `changes`."""
    figures: dict[str, Any] = {
        "total_bytes": CACHE,
        "storage_bytes": CACHE,
        "by_layer": (CACHE // 12,) * 12,
        "by_label": {"full": CACHE},
        "after_decode_bytes": NEXT,
        "after_decode_storage_bytes": NEXT,
        "growth_peak_bytes": PEAK,
        "tensors": ((0, (1, 12, 512, 64), "torch.float16"),) * 24,
        "transformers_version": "9.8",
        "torch_version": "9.9",
    }
    return Measured(**{**figures, **changes})


def library_says(patch: pytest.MonkeyPatch, measured: Measured) -> None:
    """Let the library give this answer."""
    patch.setattr(_validate_library, "measure_spec", lambda *_: measured)


def test_a_library_that_agrees_exits_with_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kind and every figure of the report, and the versions that were asked."""
    library_says(monkeypatch, answer())
    result = run(*CALL, "--json")
    assert (result.code, result.err) == (0, "")
    data = json.loads(result.out)
    assert data["equal"] is True
    assert (data["predicted_bytes"], data["allocated_bytes"], data["tensors"]) == (CACHE, CACHE, 24)
    assert {row["figure"]: row["predicted_bytes"] for row in data["figures"]} == {
        "storage_bytes": CACHE,
        "after_decode_bytes": NEXT,
        "after_decode_storage_bytes": NEXT,
        "growth_peak_bytes": PEAK,
    }
    assert (data["transformers_version"], data["torch_version"], data["device"]) == ("9.8", "9.9", "meta")


@pytest.mark.parametrize(
    "changes",
    [
        {"by_label": {"full": CACHE - 1}},
        {"by_label": {"full": CACHE, "more": 1}},
        {"storage_bytes": CACHE + 1},
        {"after_decode_bytes": NEXT + 1},
        {"after_decode_storage_bytes": NEXT + 1},
        {"growth_peak_bytes": PEAK - 1},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_difference_exits_with_1(monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]) -> None:
    """One byte anywhere is a difference."""
    library_says(monkeypatch, answer(**changes))
    result = run(*CALL, "--json")
    assert (result.code, json.loads(result.out)["equal"]) == (1, False)
    assert "they differ" in run(*CALL).out


def test_a_peak_that_was_not_measured_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quantised caches and DeepSeek-V4: the figure is left out, not called equal."""
    library_says(monkeypatch, answer(growth_peak_bytes=None))
    data = json.loads(run(*CALL, "--json").out)
    assert [row["figure"] for row in data["figures"]] == [
        "storage_bytes",
        "after_decode_bytes",
        "after_decode_storage_bytes",
    ]


def test_people_read_both_sums_and_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prediction, the library's sum, and a line for every part."""
    library_says(monkeypatch, answer())
    lines = run(*CALL).out.splitlines()
    assert "against transformers 9.8 with torch 9.9, on meta" in lines
    assert "library    18.0 MiB  (18,874,368 bytes)  in 24 tensors" in lines
    assert any(line.split() == ["peak", "in", "between", f"{PEAK:,}", f"{PEAK:,}"] for line in lines)


def test_a_missing_library_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what to install."""
    monkeypatch.setitem(sys.modules, "torch", None)
    result = run(*CALL)
    assert (result.code, result.out) == (1, "")
    expected = "error: validate --engine transformers needs the extra 'torch': pip install 'kvcalc[torch]'\n"
    assert result.err == expected


@pytest.mark.parametrize("option", ["pp", "dp"])
def test_several_devices_are_not_compared(option: str) -> None:
    """The library's cache is made once."""
    result = run(*CALL, f"--{option}", "2")
    assert (result.code, result.err) == (
        1,
        f"error: one cache on one device is compared with the library's; drop --{option}\n",
    )
