"""`kvcalc gpus`: what the snapshots do not say."""

from __future__ import annotations

import csv
import io
import json

from kvcalc.hardware.gpu import find_gpu, gpus
from tests.cli.running import run


def test_json_has_exact_integers() -> None:
    """Bytes, bytes per second and FLOP/s, and what is assumed."""
    data = json.loads(run("gpus", "h100-sxm", "--json").out)
    assert data["schema"] == "kvcalc.gpus/1"
    (one,) = data["gpus"]
    assert one["driver_bytes"] == 81559 * 1024**2
    assert one["bandwidth_bytes_per_second"] == 3_350_000_000_000
    assert one["flops"]["fp16"] == 989_000_000_000_000
    assert one["memory_basis"] == "measured"


def test_all_are_listed() -> None:
    """Without a query, every one, in every form."""
    assert len(json.loads(run("gpus", "--json").out)["gpus"]) == len(gpus())
    assert len(list(csv.DictReader(io.StringIO(run("gpus", "--format", "csv").out)))) == len(gpus())
    assert len(run("gpus").out.splitlines()) == len(gpus()) + 4


def test_a_figure_from_memory_has_a_star() -> None:
    """In the table, with the words below it."""
    text = run("gpus", "t4").out
    assert "65 T*" in text
    assert "* from memory: no source was read for flops" in text


def test_a_query_finds_aliases_and_labels() -> None:
    """By any part of the name."""
    assert "h100-80gb " in run("gpus", "HBM3").out + run("gpus", "sxm5").out
    assert find_gpu("gb10").name in run("gpus", "spark").out


def test_a_query_without_a_match_is_a_usage_error() -> None:
    """Exit 2, one line, the nearest name."""
    result = run("gpus", "h101")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error: no GPU matches 'h101'; did you mean h100")
