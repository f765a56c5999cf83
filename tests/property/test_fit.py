"""`fit` on GPUs is exact on both sides: its answers fit, one more sequence or token does not, on every engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcalc.advise import attempt, suggestions
from kvcalc.answer import memory_of
from kvcalc.engines import ENGINES
from kvcalc.fitting import Question, Standing, answers, stand
from kvcalc.footprint import Pool
from kvcalc.prepared import load

# Full, sliding + full, latent, indexed latent, states + full, chunked + full, states alone.
MODELS = (
    "llama-3.1-8b", "gemma-3-4b", "gpt-oss-20b", "deepseek-v2-lite", "glm-5", "qwen3-next-80b-a3b", "llama-4-scout",
    "mamba2-2.7b", "phi-3-mini-4k",
)  # fmt: skip
CARDS = ("l4", "rtx-4090", "a100-80gb", "h200", "b200")


@st.composite
def questions(draw: st.DrawFn, engine: str) -> Question:
    """Return a model in some deployment on some card, at some context and batch."""
    model = draw(st.sampled_from(MODELS))
    degree = "pp" if engine in ("llama.cpp", "ollama") else draw(st.sampled_from(("tp", "pp", "dp")))
    arguments: dict[str, Any] = {"engine": engine, degree: draw(st.sampled_from((1, 2, 4)))}
    kv_dtype, weights = (
        draw(st.sampled_from((None, None, "fp8", "q8_0"))),
        draw(st.sampled_from((None, "fp8", "Q4_K_M"))),
    )
    arguments |= {"kv_dtype": kv_dtype, "weights": weights}
    context, batch = draw(st.integers(1, 4000)) * 8 - 7, draw(st.integers(1, 40))
    return Question(load(model), arguments, context, batch, memory_of(None, draw(st.sampled_from(CARDS))))


@settings(max_examples=25, deadline=None)
@pytest.mark.parametrize("engine", ENGINES)
@given(data=st.data())
def test_one_more_does_not_fit(engine: str, data: st.DataObject) -> None:
    """The largest batch fits and its successor does not; so with the largest context; the interval holds the answer."""
    question = data.draw(questions(engine))
    found = attempt(question)
    if not isinstance(found, Standing):
        return  # the engine does not hold this model so

    for name, answer in (("batch", found.max_batch), ("context", found.max_context)):
        if answer is None or found.missing_weights:
            continue
        assert answer == 0 or holds(asking(question, name, answer), found), (name, answer)
        assert not holds(asking(question, name, answer + 1), found), (name, answer)

    low, high = answers(found, "low"), answers(found, "high")
    assert low[0] <= found.fits <= high[0]
    for least, answer, most in ((low[1], found.max_batch, high[1]), (low[2], found.max_context, high[2])):
        if least is not None and answer is not None and most is not None:
            assert least <= answer <= most


def asking(question: Question, name: str, value: int) -> Question:
    """Return the question for another batch or context."""
    return replace(question, batch=value) if name == "batch" else replace(question, context=value)


def holds(question: Question, before: Standing) -> bool:
    """Return whether a question fits with the memory that another had: its estimates may depend on the batch."""
    found = attempt(question)
    if not isinstance(found, Standing):
        return False
    local = found.setup.placement.local_batch(question.batch)
    if any(len(rank.pools) > 1 for rank in found.setup.placement.ranks):
        return found.fits  # pools share the memory by their own rules; tests/property/test_capacity.py has them
    return all(rank.admitted.peak(question.asked_context, local) <= hands_out(rank.pools, budget)
               for rank, budget in zip(found.setup.placement.ranks, before.budgets, strict=True))  # fmt: skip


def hands_out(pools: tuple[Pool, ...], budget: int) -> int:
    """Return the bytes that a rank hands out, in whole units where it has one pool."""
    if not pools:
        return budget
    pool = pools[0]
    return max(int(budget * pool.share) // pool.unit_bytes - pool.reserved_units, 0) * pool.unit_bytes


@settings(max_examples=10, deadline=None)
@pytest.mark.parametrize("engine", ["ideal", "vllm", "llama.cpp"])
@given(data=st.data())
def test_what_is_suggested_fits(engine: str, data: st.DataObject) -> None:
    """A context or batch that is said to fit does, and so does the degree of parallelism."""
    question = data.draw(questions(engine))
    found = attempt(replace(question, batch=question.batch * 10))
    if not isinstance(found, Standing) or found.fits:
        return
    for each in suggestions(found):
        if each.helps and each.kind in ("context", "batch"):
            value = int(each.change.split()[1])
            assert stand(asking(found.question, each.kind, value)).fits
        elif each.helps and each.kind in ("tp", "pp", "kv_dtype", "weights"):
            name, value_text = each.change[2:].split()
            key = name.replace("-", "_")
            assert stand(found.question.changed(**{key: int(value_text) if key in ("tp", "pp") else value_text})).fits
