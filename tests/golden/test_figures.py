"""Figures of real models, whole, as JSON under `figures/`.

`KVCALC_UPDATE_SNAPSHOTS=1 pytest tests/golden/test_figures.py` writes the files anew; read the difference before you
keep it. The bytes in them are not only compared with what was once computed: they are worked out here again from the
published dimensions.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from kvcalc import api
from kvcalc.plot import figures
from kvcalc.plot.figures import Subject

FOLDER = Path(__file__).parent / "figures"
UPDATE = os.environ.get("KVCALC_UPDATE_SNAPSHOTS") == "1"

# K and V, 12 layers of 768 elements, two bytes each: Radford et al. 2019.
GPT2_TOKEN_BYTES = 2 * 12 * 768 * 2
GPT2_WEIGHT_BYTES = 124_439_808 * 2


def subject(model: str, high: int, batch: int) -> Subject:
    """Return a model as the plot command draws it."""
    setup = api.prepare(model)
    size = api.measure(setup, high, batch)
    spec = setup.spec
    return Subject(
        spec.name, setup.placement, 1, high, spec.max_context, size.weights_bytes, size.cache_passes_weights_at
    )


def gpt2_context() -> dict[str, Any]:
    """GPT-2 small, 8 sequences, past its weights and its trained maximum."""
    return figures.context_figure(figures.context_curves([subject("gpt2-small", 2048, 8)], batch=8, points=16))


def hybrids_context() -> dict[str, Any]:
    """Full attention, windows and MLA side by side."""
    subjects = [subject(model, 131_072, 1) for model in ("llama-3.1-8b", "gemma-3-27b", "deepseek-v3")]
    return figures.context_figure(figures.context_curves(subjects, batch=1, points=48))


def gpt2_capacity() -> dict[str, Any]:
    """GPT-2 small in 288 MiB: 8 sequences of 1,024 tokens."""
    return figures.capacity_figure(
        figures.capacity_curves([subject("gpt2-small", 1024, 1)], memory=288 * 2**20, points=16, steps=8)
    )


MAKERS = {"gpt2-context": gpt2_context, "hybrids-context": hybrids_context, "gpt2-capacity": gpt2_capacity}


@pytest.mark.parametrize("name", MAKERS)
def test_a_figure_is_what_it_was(name: str) -> None:
    """Traces, texts, ranges and ticks; the finer ticks for who zooms in are tested elsewhere."""
    figure = MAKERS[name]()
    del figure["layout"]["meta"]["zoom"]
    path = FOLDER / f"{name}.json"
    if UPDATE:
        path.write_text(json.dumps(figure, indent=1) + "\n", encoding="utf-8")
    assert figure == json.loads(path.read_text(encoding="utf-8"))


def test_bytes_of_gpt2_are_those_of_its_published_dimensions() -> None:
    """Every point of the golden figure, the weights, and the crossing."""
    data = json.loads((FOLDER / "gpt2-context.json").read_text(encoding="utf-8"))["data"]
    for trace in data[:2]:
        assert trace["y"] == [8 * GPT2_TOKEN_BYTES * context for context in trace["x"]]
    weights, crossing = data[3:]
    assert weights["y"] == [GPT2_WEIGHT_BYTES] * 2
    assert crossing["x"] == [GPT2_WEIGHT_BYTES // (8 * GPT2_TOKEN_BYTES) + 1] == [844]


def test_bytes_of_the_hybrids_are_those_of_their_published_dimensions() -> None:
    """All layers, windows of 1,024 tokens in 52 of 62 layers, and one latent of 576 elements."""
    data = json.loads((FOLDER / "hybrids-context.json").read_text(encoding="utf-8"))["data"]
    bytes_at = {
        "llama-3.1-8b": lambda n: 2 * 32 * 8 * 128 * 2 * n,
        "gemma-3-27b": lambda n: 2 * 16 * 128 * 2 * (10 * n + 52 * min(n, 1024)),
        "deepseek-v3": lambda n: 61 * (512 + 64) * 2 * n,
    }
    for trace in data[:3]:
        assert trace["y"] == [bytes_at[trace["name"]](context) for context in trace["x"]]


def test_batches_of_gpt2_are_those_of_its_published_dimensions() -> None:
    """Memory divided by the bytes of a sequence, and what is left over."""
    trace = json.loads((FOLDER / "gpt2-capacity.json").read_text(encoding="utf-8"))["data"][0]
    for context, batch, text in zip(trace["x"], trace["y"], trace["text"], strict=True):
        fits, spare = divmod(288 * 2**20, GPT2_TOKEN_BYTES * context)
        assert batch == fits
        assert f"{spare:,} bytes" in text
