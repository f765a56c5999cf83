"""kvcalc against vLLM 0.33.0's own planning code: bytes, groups, blocks, admission, and the figures it prints.

`vllm_0.33.0.json` holds what that code gave for 59 configurations, run on CPU from the PyPI wheel; the layer lists it
was given were typed by hand, and are those of the specs named there.
"""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from kvcalc import api
from kvcalc.fit_result import FitResult
from kvcalc.spec.kinds import Heads, Kind, Mla
from kvcalc.spec.load import load
from tests.shared_material import shared

HERE = Path(__file__).parent
DATA: dict[str, Any] = json.loads((HERE / "vllm_0.33.0.json").read_text(encoding="utf-8"))
CASES: list[dict[str, Any]] = DATA["cases"]
DEPLOYMENT = ("tp", "pp", "dcp")


def spec_of(name: str) -> str:
    """Return the MODEL argument of a model of the data: a catalogue name, or a spec of this folder."""
    found: str = DATA["specs"][name]
    return str(HERE / found) if found.endswith(".yaml") else found


def fit(case: dict[str, Any]) -> FitResult:
    """Return what kvcalc says to a configuration; options that the data leaves out are its defaults."""
    options = {**DATA["defaults"], **case["options"]}
    deployment = {name: options.pop(name) for name in DEPLOYMENT}
    dtype = options.pop("model_dtype")
    return api.fit(
        spec_of(case["model"]),
        engine="vllm",
        kv_memory=case["available_bytes_per_gpu"],
        context=options.pop("max_model_len"),
        dtype=dtype,
        options=options,
        **deployment,
    )


def every_stage(per_rank: list[int], case: dict[str, Any]) -> list[int]:
    """Return one entry per pipeline stage of a list per rank."""
    return per_rank[:: case["options"].get("tp", 1)]


@pytest.fixture(params=CASES, ids=lambda case: str(case["id"]))
def case(request: pytest.FixtureRequest) -> dict[str, Any]:
    """One configuration, with what vLLM made of it."""
    found: dict[str, Any] = request.param
    return found


def test_blocks_and_groups_are_those_of_the_engine(case: dict[str, Any]) -> None:
    """Groups, their blocks and pages, and the bytes of a block on every stage."""
    expected, report = case["expected"], fit(case).engine_report
    assert [_group(group) for group in report["groups"]] == expand(expected["groups"])
    assert every_stage(report["bytes_per_block_per_rank"], case) == expected["bytes_per_block_per_worker"]
    assert report["blocks_per_sequence"] == expected["blocks_for_one_request_at_max_model_len"]
    assert report["resolved_block_size"] == expected["resolved_block_size_option"]
    assert report["block_size"] == expected["final_cache_config_block_size"]
    assert report["scheduler_block_size"] == expected["scheduler_block_size"]
    assert report["hash_block_size"] == expected["hash_block_size"]
    assert report["mamba_block_size"] == expected["mamba_block_size"]
    assert report["mamba_cache_mode"] == expected["mamba_cache_mode"]
    assert report["max_in_flight_tokens"] == expected["max_in_flight_tokens"]


def test_the_server_would_print_the_same(case: dict[str, Any]) -> None:
    """The number of blocks, the allocated bytes, the reported tokens, and the concurrency to its printed digits."""
    expected, report = case["expected"], fit(case).engine_report
    allocated = every_stage(report["allocated_bytes_per_rank"], case)
    assert report["num_blocks"] == expected["num_blocks"]
    assert report["usable_blocks"] == expected["usable_blocks"]
    assert allocated == expected["allocated_bytes_per_worker"]
    assert sorted(set(allocated)) == expected["backing_tensor_sizes"]
    assert report["kv_cache_size_tokens"] == expected["kv_cache_size_tokens_reported"]
    assert report["max_concurrency"] == expected["max_concurrency"]
    assert report["max_concurrency_printed"] == expected["max_concurrency_printed"]


def test_admission_is_the_same(case: dict[str, Any]) -> None:
    """Whether the server starts, its error word for word, and the largest context that it would accept."""
    expected, result = case["expected"], fit(case)
    report = result.engine_report
    assert result.fits == report["admitted"] == expected["admission_ok"]
    assert report["admission_error"] == expected.get("admission_error")
    assert report["max_context_that_fits"] == expected["estimated_max_model_len_that_fits"]
    assert result.context == report["max_model_len"] == expected["max_model_len_after"]


def test_the_placement_holds_one_request(case: dict[str, Any]) -> None:
    """One admitted sequence takes the bytes that vLLM gives for one request, on every stage."""
    options = {**DATA["defaults"], **case["options"]}
    deployment = {name: options.pop(name) for name in DEPLOYMENT}
    dtype = options.pop("model_dtype")
    del options["max_model_len"]
    setup = api.prepare(spec_of(case["model"]), engine="vllm", dtype=dtype, options=options, **deployment)
    found = api.measure(setup, case["expected"]["max_model_len_after"], 1)
    expected = case["expected"]["bytes_for_one_request_at_max_model_len_per_worker"]
    assert every_stage(list(found.per_rank_bytes), case) == expected


def test_the_data_are_those_of_the_engine() -> None:
    """The facts kept here are what the reference file says, no more and no less."""
    reference = json.loads(shared("golden/vllm.json").read_text(encoding="utf-8"))
    assert compact(reference) == DATA


@pytest.mark.parametrize("name", DATA["specs"])
def test_the_specs_have_the_layers_that_the_engine_was_given(name: str) -> None:
    """Kinds, heads, sizes and order of all layers that keep something are those typed into vLLM's code."""
    definition = json.loads(shared("golden/vllm.json").read_text(encoding="utf-8"))["model_definitions"][name]
    spec = load(spec_of(name))
    typed = [
        {key: value for key, value in layer.items() if key != "name"}
        for layer in definition["layers"]
        if not layer.get("kv_shared")
    ]
    found = [
        {"idx": index, **_as_typed(kind)}
        for index, layer in enumerate(spec.layers)
        for kind in layer.kinds
        if kind.entries()
    ]
    assert found == typed
    assert (spec.file.layers, spec.file.heads) == (definition["num_hidden_layers"], definition["num_attention_heads"])


def _group(group: dict[str, Any]) -> list[Any]:
    names = ("kind", "layers", "block_size", "blocks_per_sequence", "page_bytes", "used_page_bytes")
    return [group[name] for name in names]


def expand(groups: list[list[Any]]) -> list[list[Any]]:
    """Return groups one by one from the data's [times, kind, layers, block size, blocks, pages, used pages]."""
    return [group[1:] for group in groups for _ in range(group[0])]


# How a definition names what the spec's kinds hold.
_TYPED_STATES: dict[str, tuple[str, dict[str, str]]] = {
    "gated_deltanet": (
        "gdn",
        {
            "num_k_heads": "key_heads",
            "num_v_heads": "value_heads",
            "head_k_dim": "key_head_dim",
            "head_v_dim": "value_head_dim",
        },
    ),
    "mamba2": (
        "mamba2",
        {"n_groups": "groups", "num_heads": "state_heads", "head_dim": "state_head_dim", "state_size": "state_size"},
    ),
    "mamba1": ("mamba1", {"intermediate_size": "channels", "state_size": "state_size"}),
}


def _as_typed(kind: Kind) -> dict[str, Any]:
    """Return a kind in the words of the reference file."""
    if isinstance(kind, Heads):
        size = {key: getattr(kind, key) for key in ("window", "chunk") if hasattr(kind, key)}
        return {"kind": kind.name, "num_kv_heads": kind.kv_heads, "head_size": kind.head_dim, **size}
    if isinstance(kind, Mla):
        return {"kind": "mla", "num_kv_heads": 1, "head_size": kind.kv_lora_rank + kind.qk_rope_head_dim}
    if kind.name == "indexer":
        return {"kind": "indexer", "num_kv_heads": 1, "head_size": 132}  # 128 fp8 keys and one fp32 scale
    name, fields = _TYPED_STATES[str(getattr(kind, "variant"))]  # noqa: B009
    sizes = {typed: getattr(kind, field) for typed, field in fields.items()}
    if name == "mamba2":
        sizes["intermediate_size"] = sizes["num_heads"] * sizes["head_dim"]
    return {"kind": name, **sizes, "conv_kernel": getattr(kind, "conv_kernel")}  # noqa: B009


def compact(reference: dict[str, Any]) -> dict[str, Any]:
    """Return the reference file's cases as `vllm_0.33.0.json` keeps them: defaults once, equal groups counted."""
    defaults = DATA["defaults"]
    cases = []
    for case in reference["cases"]:
        expected = {key: value for key, value in case["expected"].items() if key not in ("layout", "note", "groups")}
        groups = [
            [
                group["kind"],
                group["num_layers"],
                group["block_size"],
                group["max_blocks_per_request"],
                group["layer_page_bytes"],
                group["layer_unpadded_page_bytes"],
            ]
            for group in case["expected"]["groups"]
        ]
        expected["groups"] = [[len(list(alike)), *group] for group, alike in groupby(groups)]
        options = {
            key: value
            for key, value in case["options"].items()
            if value is not None and (key not in defaults or defaults[key] != value)
        }
        budget = {"available_bytes_per_gpu": case["available_bytes_per_gpu"]}
        cases.append({"id": case["id"], "model": case["model"], "options": options, **budget, "expected": expected})
    return {**DATA, "cases": cases}
