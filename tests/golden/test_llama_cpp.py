"""The profile `llama.cpp` against sizes and log lines that llama.cpp itself printed, to the byte and the character."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import Any

import pytest

import kvcalc
from kvcalc.api import prepare
from kvcalc.engines import find_engine
from kvcalc.engines.llama_cpp import memory_of
from kvcalc.errors import UnsupportedByEngine
from kvcalc.measure.llama_cpp import compare
from tests.golden import llama_cpp_library as library
from tests.golden.llama_cpp_cases import compact, comparable, data, engine_options, model, named
from tests.shared_material import shared

CASES: list[dict[str, Any]] = data()["cases"]
CREATED = [case for case in CASES if "error" not in case]
REFUSED = [case for case in CASES if "error" in case]

GIVEN = ("n_ctx", "n_seq_max", "neither")

# Cases with the options that are given: n_ctx alone, the slots alone, or neither, where a context makes this n_ctx.
PARTLY_GIVEN = [
    (case, given)
    for case in CREATED
    for given in GIVEN
    if given != "neither" or case["options"]["n_ctx"] % engine_options(case)["n_seq_max"] == 0
]

# Reference models that the catalogue has too, read from published configs instead of GGUF keys.
BUNDLED = {
    "gpt2": "gpt2-small",
    "gpt2-xl": "gpt2-xl",
    "llama-2-7b": "llama-2-7b",
    "llama-3-8b": "llama-3-8b",
    "llama-3.1-70b": "llama-3.1-70b",
    "mistral-7b-v0.1": "mistral-7b-v0.1",
    "mixtral-8x7b": "mixtral-8x7b",
    "falcon-7b": "falcon-7b",
    "gemma2-9b": "gemma-2-9b",
    "gemma3-27b": "gemma-3-27b",
    "gemma3n-e4b": "gemma-3n-e4b",
    "gpt-oss-20b": "gpt-oss-20b",
    "gpt-oss-120b": "gpt-oss-120b",
    "qwen3-8b": "qwen3-8b",
    "qwen3-0.6b": "qwen3-0.6b",
    "llama4-scout": "llama-4-scout",
    "deepseek-v2-lite-mla": "deepseek-v2-lite",
    "deepseek-v3-mla": "deepseek-v3",
    "deepseek-v3.2-dsa": "deepseek-v3.2",
    "qwen3-next-80b": "qwen3-next-80b-a3b",
    "qwen3.5-35b-a3b": "qwen3.5-35b-a3b",
    "jamba-mini": "jamba-v0.1",
    "mamba-2.8b": "mamba-2.8b",
    "kimi-linear-48b": "kimi-linear-48b-a3b",
}


def sized(spec: Any, case: dict[str, Any]) -> kvcalc.SizeResult:
    """Return what the profile says of a case, every option given."""
    return kvcalc.size(spec, context=1, engine="llama.cpp", options=engine_options(case))


def test_the_profile_names_the_commit_that_made_the_numbers() -> None:
    """The version in reports is the one whose numbers are held here."""
    assert data()["commit"].startswith(find_engine("llama.cpp").version)


@pytest.mark.parametrize("case", CREATED, ids=lambda case: f"{case['id']}-{case['model']}")
def test_every_cache_and_state_has_the_engines_bytes(case: dict[str, Any]) -> None:
    """Cells, streams, layers and bytes of every cache, recurrent states and the output buffer."""
    report, expected = sized(model(case["model"]), case).engine_report, named(case)
    recurrent = report["recurrent"] if expected["recurrent"] else None
    assert {**{key: report[key] for key in expected}, "recurrent": recurrent} == expected


@pytest.mark.parametrize("case", CREATED, ids=lambda case: f"{case['id']}-{case['model']}")
def test_every_device_holds_what_the_engine_put_there(case: dict[str, Any]) -> None:
    """The bytes of each device, as ranks and in the report; the total is their sum."""
    result = sized(model(case["model"]), case)
    found = {device["name"]: device["context_bytes"] for device in result.engine_report["devices"]}
    assert {name: size for name, size in found.items() if size} == {
        n: size for n, size in case["devices"].items() if size
    }
    assert list(result.per_rank_bytes) == list(found.values())
    assert result.total_bytes == sum(case["devices"].values())


@pytest.mark.parametrize("case", CREATED, ids=lambda case: f"{case['id']}-{case['model']}")
def test_the_log_lines_are_the_engines(case: dict[str, Any]) -> None:
    """Every line about memory, character by character."""
    lines = list(sized(model(case["model"]), case).log_lines)
    assert comparable(lines, case["real"]) == comparable(case["log"], case["real"])


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case["id"])
def test_a_refusal_has_the_engines_words(case: dict[str, Any]) -> None:
    """What llama_init_from_model refuses is refused, with its message."""
    with pytest.raises(UnsupportedByEngine) as caught:
        sized(model(case["model"]), case)
    assert str(caught.value) == case["error"]


@pytest.mark.parametrize(
    ("case", "given"), PARTLY_GIVEN, ids=lambda value: value if isinstance(value, str) else value["id"]
)
def test_context_and_batch_stand_for_the_options_that_are_left_out(case: dict[str, Any], given: str) -> None:
    """n_ctx is context x batch and n_seq_max the batch unless an option says otherwise: the bytes are the same."""
    options = engine_options(case)
    n_ctx, slots = options["n_ctx"], options["n_seq_max"]
    left_out = {"neither": ("n_ctx", "n_seq_max"), "n_ctx": ("n_seq_max",), "n_seq_max": ("n_ctx",)}[given]
    options = {key: value for key, value in options.items() if key not in left_out}
    context, batch = (n_ctx, 1) if given == "n_seq_max" else (max(n_ctx // slots, 1), slots)
    result = kvcalc.size(model(case["model"]), context=context, batch=batch, engine="llama.cpp", options=options)
    expected = named(case)
    assert result.total_bytes == sum(case["devices"].values())
    assert result.engine_report["caches"] == expected["caches"]


@pytest.mark.parametrize(
    "case", [case for case in CREATED if case["model"] in BUNDLED], ids=lambda case: f"{case['id']}-{case['model']}"
)
def test_a_bundled_spec_gives_the_same_as_the_gguf_keys(case: dict[str, Any]) -> None:
    """A spec from a published config leads to the engine's bytes as the file's own keys do."""
    report, expected = sized(BUNDLED[case["model"]], case).engine_report, named(case)
    assert report["caches"] == expected["caches"]
    assert {key: report[key] for key in ("k_bytes", "v_bytes", "r_bytes", "s_bytes", "extra_state_bytes")} == {
        key: expected[key] for key in ("k_bytes", "v_bytes", "r_bytes", "s_bytes", "extra_state_bytes")
    }


def test_the_committed_data_is_that_of_the_reference_material() -> None:
    """Nothing was left out or changed when the reference material was made compact."""
    golden = json.loads(shared("golden/llamacpp.json").read_text(encoding="utf-8"))
    assert compact(golden) == data()


@pytest.mark.parametrize("case", library.cases(), ids=lambda case: f"{case['model']}, {case['options']}")
def test_bundled_models_of_other_families_print_the_librarys_lines(case: dict[str, Any]) -> None:
    """Families that the reference material leaves out, as the library printed them for the same metadata."""
    result = kvcalc.size(
        case["model"],
        context=library.CONTEXT,
        batch=library.BATCH,
        engine="llama.cpp",
        options=library.OPTIONS[case["options"]],
    )
    assert comparable(list(result.log_lines), real=False) == case["lines"]


@pytest.mark.skipif(find_spec("llama_cpp") is None, reason="llama-cpp-python is not installed (it compiles)")
def test_the_library_prints_what_is_predicted() -> None:
    """The library of this machine, asked anew for one hybrid model."""
    spec = kvcalc.load("qwen3.5-27b")
    found = memory_of(spec, prepare(spec, engine="llama.cpp").deployment)
    assert compare(spec, found, found.settings.rule.context(library.CONTEXT, library.BATCH)).equal
