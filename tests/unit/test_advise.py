"""Layouts and single changes: the least of each kind, the smallest layout, what cannot be done."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from kvcalc.advise import attempt, smallest_layout, suggestions
from kvcalc.answer import counts_of, memory_of
from kvcalc.errors import BadInput, UnsupportedByEngine
from kvcalc.fitting import Question, Standing, stand
from kvcalc.memory import Card, KvMemory
from kvcalc.spec.model import ModelSpec
from tests.property.specs import small_spec

TOKEN = 4 * 2 * 4 * 64 * 2  # bytes of one token of the small model
MIB = 2**20


def spec(**changes: Any) -> ModelSpec:
    """Return the small model with weights, so that it can be put on a GPU."""
    return small_spec(**{"parameters": 10**9, "max_context": 4096, **changes})


def question(memory: int, **changes: Any) -> Question:
    """Return whether one sequence of 1,000 tokens fits into a cache of so many bytes."""
    return replace(Question(spec(), {}, 1000, 1, KvMemory(memory)), **changes)


def by_kind(asked: Question) -> dict[str, str]:
    """Return the changes that help, by kind."""
    return {each.kind: each.change for each in suggestions(stand(asked)) if each.helps}


def test_what_fits_needs_no_advice() -> None:
    """Nothing is suggested."""
    assert suggestions(stand(question(1000 * TOKEN))) == ()


def test_each_change_is_the_least() -> None:
    """Half the memory: half the context, formats of at most half the bytes, two ranks, a window of half."""
    found = by_kind(question(500 * TOKEN))
    assert found["context"] == "--ctx 500"
    assert found["kv_dtype"] == "--kv-dtype fp8"
    assert found["tp"] == "--tp 2"
    assert found["evict"] == "--evict window:496,sinks:4"
    assert found["memory"] == f"--kv-memory {1000 * TOKEN}"


def test_a_slightly_smaller_format_is_preferred_to_a_much_smaller_one() -> None:
    """Of 60 % of the bytes, int8 with its scales (68 of 128) is enough; of less than half, the next below fp8."""
    assert by_kind(question(600 * TOKEN))["kv_dtype"] == "--kv-dtype int8"
    assert by_kind(question(500 * TOKEN - 1))["kv_dtype"] == "--kv-dtype q5_1"


def test_the_batch_is_reduced_where_there_is_one() -> None:
    """Of three sequences two fit; of one there is nothing to take away."""
    assert by_kind(question(2000 * TOKEN, batch=3))["batch"] == "--batch 2"
    assert "batch" not in {each.kind for each in suggestions(stand(question(500 * TOKEN)))}


def test_what_cannot_help_is_said() -> None:
    """A memory of one byte: no context, format, degree or window is enough."""
    found = {each.kind: each for each in suggestions(stand(question(1)))}
    assert [kind for kind, each in found.items() if not each.helps] == ["context", "kv_dtype", "tp", "evict"]
    assert all(each.text.startswith("no ") for each in found.values() if not each.helps)


def card(gpu: str = "l4") -> Card:
    """Return a GPU without options."""
    found = memory_of(None, gpu)
    assert isinstance(found, Card)
    return found


def test_a_larger_gpu_is_the_smallest_that_is_enough() -> None:
    """20 billion weights take 40 GB: more than an A100 40GB has, less than a card of 45 GiB."""
    asked = Question(spec(parameters=20 * 10**9), {}, 1000, 1, card())
    change = by_kind(asked)["gpu"]
    name = change.removeprefix("--gpu ")
    found = card(name).gpu.total_bytes
    assert found > 40 * 10**9
    smaller = [gpu for gpu in ("a100-40gb", "rtx-5090") if card(gpu).gpu.total_bytes < found]
    assert all(not stand(replace(asked, memory=card(gpu))).fits for gpu in smaller)


@pytest.mark.parametrize(("parameters", "batch"), [(5 * 10**9, 1), (20 * 10**9, 4), (30 * 10**9, 900)])
def test_the_smallest_layout_is_the_smallest(parameters: int, batch: int) -> None:
    """No layout of fewer GPUs fits, and none of as many has a larger batch, each tried on its own."""
    asked = Question(spec(parameters=parameters, max_context=None), {}, 1000, batch, card())
    found = smallest_layout(asked, range(1, 9), {}).standing
    chosen = found.setup.deployment
    used = chosen.tp * chosen.pp * chosen.dp
    assert found.fits
    for tp, pp, dp in product(range(1, used + 1), repeat=3):
        if tp * pp * dp <= used:
            other = attempt(asked.changed(tp=tp, pp=pp, dp=dp))
            if isinstance(other, Standing) and other.fits:
                assert tp * pp * dp == used
                assert (other.max_batch or 0) <= (found.max_batch or 0)


def test_fixed_degrees_are_kept() -> None:
    """With tp 2 given only such layouts are tried; where none has it, that is said."""
    asked = Question(spec(), {}, 1000, 1, card())
    search = smallest_layout(asked, range(1, 5), {"tp": 2})
    assert {layout.tp for layout in search.tried} == {2}
    with pytest.raises(BadInput, match="no layout of 3 GPUs has tp 2"):
        smallest_layout(asked, range(3, 4), {"tp": 2})


def test_an_engine_that_takes_no_layout_says_so() -> None:
    """Whole layers go to llama.cpp's devices: of tp 2 there is none."""
    asked = Question(spec(architecture="llama", kinds={"full": {"kind": "full"}}, pattern=["full"]),
                     {"engine": "llama.cpp"}, 1000, 1, card())  # fmt: skip
    assert {layout.tp for layout in smallest_layout(asked, range(2, 3), {}).tried if layout.fits} == {1}
    with pytest.raises(UnsupportedByEngine, match="--pp"):
        smallest_layout(asked, range(2, 3), {"tp": 2})


@pytest.mark.parametrize("gpus", [0, -1, 5000, (3, 2)])
def test_numbers_of_gpus_have_a_range(gpus: Any) -> None:
    """From 1 to 4,096, the smaller first."""
    with pytest.raises(BadInput, match="--gpus"):
        counts_of(gpus)
