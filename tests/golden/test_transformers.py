"""kvcalc against transformers 5.24.0 itself: the bytes of its cache tensors and of the storages behind them.

`transformers_5.24.0.json` holds what the library's models kept after a prefill, and after one more token, for 157
models of real dimensions; `transformers_caches_5.24.0.json` holds static and quantised caches. Models that are not in
the catalogue as they were run have a spec in `specs_transformers`. Where the library gave no number, `no_numbers` says
why.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from kvcalc import api
from kvcalc.errors import UnsupportedByEngine
from kvcalc.spec.load import load
from tests.shared_material import shared

HERE = Path(__file__).parent
MODELS: dict[str, Any] = json.loads((HERE / "transformers_5.24.0.json").read_text(encoding="utf-8"))
CACHES: dict[str, Any] = json.loads((HERE / "transformers_caches_5.24.0.json").read_text(encoding="utf-8"))

# Run with another layer pattern than the released model has.
RUN_OTHERWISE = {"kimi-linear-48b-a3b": "kimi-linear-as-built"}
# Types that the run did not find and the released package has, one of them as the type of a part of the model.
KNOWN_TO_THE_RELEASE = {"exaone-3-7.8b", "minicpm3-4b", "step-3.7-flash", "kimi-k3"}


def model_argument(name: str) -> str:
    """Return the MODEL argument of a model of the data: a catalogue name, or a spec of this folder."""
    own = HERE / "specs_transformers" / f"{RUN_OTHERWISE.get(name, name)}.yaml"
    return str(own) if own.exists() else name


@lru_cache(maxsize=8)
def setup(name: str, dtype: str) -> api.Setup:
    """Return the model on the engine, its encoder as long as it was in the run."""
    model = model_argument(name)
    encoder = MODELS["encoder_context"].get(load(model).architecture)
    return api.prepare(model, engine="transformers", dtype=dtype, encoder_context=encoder)


def figures(name: str, dtype: str, tokens: int, batch: int) -> tuple[int, ...]:
    """Return kvcalc's total and storage bytes after a prefill, then both after one more token."""
    ready = setup(name, dtype)
    report = ready.engine.report(ready.spec, ready.deployment, tokens, batch, ready.placement)
    keys = ("storage_bytes", "after_decode_bytes", "after_decode_storage_bytes")
    return (ready.placement.total_bytes(tokens, batch), *(report[key] for key in keys))


@pytest.mark.parametrize("name", MODELS["models"])
def test_every_tensor_and_storage_of_a_model_is_counted_to_the_byte(name: str) -> None:
    """Total and storage bytes after prefills of 1 to 8,192 tokens and after the next token, in three formats."""
    for tokens, batch, dtype, *expected in MODELS["models"][name]:
        assert list(figures(name, dtype, tokens, batch)[: len(expected)]) == expected, (tokens, batch, dtype)


@pytest.mark.parametrize("case", CACHES["cases"], ids=lambda case: str(case[0]))
def test_static_and_quantised_caches_hold_what_the_library_allocates(case: list[Any]) -> None:
    """Bytes of a static cache, one without windows, and quantised layers with their unquantised tail."""
    _, model, prompt, decoded, dtype, options, expected, tail = case
    given = {**options, "prompt_tokens": prompt}
    size = api.size(model_argument(model), context=prompt + decoded, engine="transformers", dtype=dtype, options=given)
    assert size.total_bytes == expected + tail
    assert size.engine_report["storage_bytes"] == expected + tail


NOT_FOUND = {name for name in MODELS["no_numbers"] if " " not in name}


@pytest.mark.parametrize("name", sorted(NOT_FOUND - KNOWN_TO_THE_RELEASE))
def test_a_model_type_that_the_library_lacks_is_refused(name: str) -> None:
    """No number is made up where the library has no code."""
    with pytest.raises(UnsupportedByEngine, match="has no model type"):
        api.size(name, context=100, engine="transformers")


@pytest.mark.parametrize("name", sorted(NOT_FOUND & KNOWN_TO_THE_RELEASE))
def test_a_model_type_that_the_release_has_is_computed(name: str) -> None:
    """What the run could not build is sized by the layers' kinds."""
    assert api.size(name, context=100, engine="transformers").total_bytes > 0


def test_the_numbers_are_those_of_the_run() -> None:
    """The file here repeats the run's own, less what no test needs."""
    run = json.loads(shared("golden/transformers.json").read_text(encoding="utf-8"))
    expected = {
        model["model"]: [
            [case[column] for column in MODELS["columns"] if column in case]
            for case in model["cases"]
            if "total_bytes" in case
        ]
        for model in run["models"]
        if "cases" in model
    }
    assert MODELS["models"] == expected
