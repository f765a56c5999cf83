"""Figures that users saw in logs of llama.cpp, ik_llama.cpp and Ollama, within what was printed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

import kvcalc
from kvcalc.spec.model import ModelSpec
from kvcalc.spec.resolve import resolve
from kvcalc.yaml_tree import Tree
from tests.golden.reports_llama_cpp import REPRODUCED, UNEXPLAINED, Report
from tests.shared_material import shared

MIB, GIB = 2**20, 2**30
ENGINES = ("llama.cpp", "ik_llama.cpp", "Ollama (estimate)")


def spec_of(report: Report) -> ModelSpec:
    """Return the report's model: a bundled one, or what is known of it."""
    if isinstance(report.spec, str):
        return kvcalc.load(report.spec)
    return resolve(Tree("reported.yaml", data=dict(report.spec)))


def figures(report: Report) -> dict[str, float]:
    """Return the profile's figures: MiB where the name does not say otherwise."""
    result = kvcalc.size(
        spec_of(report),
        context=report.context,
        batch=report.batch,
        engine=report.engine,
        kv_dtype=report.kv_dtype,
        options=report.options,
    )
    found: Mapping[str, Any] = result.engine_report
    kv = found["k_bytes"] + found["v_bytes"]
    made: dict[str, float] = {"total": kv / MIB, "cells": found["cells"]}
    made |= {side: found[f"{side}_bytes"] / MIB for side in ("k", "v", "r", "s")}
    made["recurrent"] = (found["r_bytes"] + found["s_bytes"]) / MIB
    for cache in found["caches"]:
        made[cache["name"]] = (cache["k_bytes"] + cache["v_bytes"]) / MIB
        made[f"{cache['name']} k"], made[f"{cache['name']} cells"] = cache["k_bytes"] / MIB, cache["cells"]
    for device in found["devices"]:
        made[f"{device['name']} buffer"] = device["buffer_bytes"] / MIB
        made[f"{device['name']} buffer GiB"] = device["buffer_bytes"] / GIB
    if "preload_estimate_bytes" in found:
        made["estimate"] = found["preload_estimate_bytes"] / MIB
        made["estimate GiB"] = found["preload_estimate_bytes"] / GIB
    return made


def as_printed(value: float, text: str) -> str:
    """Return a figure with as many decimals as the printed one."""
    return f"{value:.{len(text.partition('.')[2])}f}"


@pytest.mark.parametrize("report", [*REPRODUCED, *UNEXPLAINED], ids=lambda report: report.id)
def test_a_report_is_reproduced_digit_by_digit(report: Report) -> None:
    """Every figure of the report, printed with the report's decimals, is the report's text."""
    found = figures(report)
    assert {name: as_printed(found[name], text) for name, text in report.expected.items()} == dict(report.expected)


def test_every_explained_case_is_reproduced() -> None:
    """No case of these engines that the survey could explain is left out."""
    lines = shared("reports/cases.jsonl").read_text(encoding="utf-8").splitlines()
    explained = {case["id"] for case in map(json.loads, lines) if case["engine"] in ENGINES and case["explained"]}
    assert explained == {report.id for report in REPRODUCED}


def test_the_figures_are_those_that_the_survey_saw() -> None:
    """Every figure in MiB stands in the survey's words for its case, or in its numbers."""
    lines = shared("reports/cases.jsonl").read_text(encoding="utf-8").splitlines()
    cases = {case["id"]: case for case in map(json.loads, lines)}
    missing = []
    for report in (*REPRODUCED, *UNEXPLAINED):
        seen = " ".join(map(str, cases[report.id]["observed"]))
        seen += " ".join(str(figure["observed"]) for figure in cases[report.id]["residual"])
        missing += [
            (report.id, text) for name, text in report.expected.items() if text.rstrip("0").rstrip(".") not in seen
        ]
    assert missing == []
