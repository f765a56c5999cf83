"""`kvcalc fit --gpu`: the budget part by part, layouts, what would help, real lengths, command lines, bad input."""

from __future__ import annotations

import json
import shlex
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from kvcalc.deployment_file import Hardware, check_command
from kvcalc.read.command_line import parse_command
from tests.cli.running import run
from tests.shared_material import shared

GIB = 2**30
MIB = 2**20
H100 = ("--gpu", "h100-80gb")
LLAMA_WEIGHTS = 8_030_261_248 * 2
LLAMA_TOKEN = 32 * 2 * 8 * 128 * 2


def fit(*arguments: str, code: int = 0) -> dict[str, Any]:
    """Return the JSON answer of `kvcalc fit ARGUMENTS`, which must end with that exit code."""
    result = run("fit", *arguments, "--json")
    assert result.code == code, result.err
    data: dict[str, Any] = json.loads(result.out)
    return data


def changes(data: dict[str, Any]) -> dict[str, str]:
    """Return the changes that help, by kind."""
    return {each["kind"]: each["change"] for each in data["suggestions"] if each["helps"]}


def test_the_ideal_engine_has_what_the_weights_leave() -> None:
    """79.19 GiB less two bytes for each parameter, divided by 128 KiB a token."""
    data = fit("llama-3.1-8b", *H100, "--ctx", "8K")
    total = int(Fraction("79.19") * GIB)
    assert data["weights_bytes"] == LLAMA_WEIGHTS
    assert data["budget_bytes"] == total - LLAMA_WEIGHTS
    assert data["max_context"] == (total - LLAMA_WEIGHTS) // LLAMA_TOKEN
    assert data["max_batch"] == (total - LLAMA_WEIGHTS) // (8192 * LLAMA_TOKEN)
    assert data["interval"] == {"fits": [True, True], "max_batch": [64, 64], "max_context": [526192, 526192]}


def test_a_server_budget_adds_up() -> None:
    """A share of the total, less weights and every part that lies inside the share, is what the cache gets."""
    memory = fit("llama-3.1-8b", *H100, "--ctx", "8K", "--engine", "vllm", "--utilization", "0.9")["memory"]
    inside = {
        level: sum(part[f"{level}_bytes"] for part in memory["overhead"] if part["inside"])
        for level in ("low", "typical", "high")
    }
    asked = int(Fraction("0.9") * memory["runtime_bytes"])
    assert memory["cache_typical_bytes"] == asked - LLAMA_WEIGHTS - inside["typical"]
    assert memory["cache_low_bytes"] == asked - LLAMA_WEIGHTS - inside["high"]
    assert memory["cache_high_bytes"] == asked - LLAMA_WEIGHTS - inside["low"]
    assert {part["basis"] for part in memory["overhead"]} == {"derived", "assumed"}


def test_overhead_and_reserve_are_the_users() -> None:
    """One figure replaces all parts, or one part; the reserve comes off the total."""
    asked = ("llama-3.1-8b", *H100, "--ctx", "8K", "--engine", "vllm", "--utilization", "1")
    whole = fit(*asked, "--overhead", "3GiB")
    total = int(Fraction("79.19") * GIB)
    assert whole["budget_bytes"] == total - LLAMA_WEIGHTS - 3 * GIB
    assert whole["interval"]["max_batch"] == [whole["max_batch"]] * 2
    assert fit(*asked, "--overhead", "3GiB", "--memory-reserve", "1GiB")["budget_bytes"] == whole["budget_bytes"] - GIB
    (part,) = (
        part
        for part in fit(*asked, "--overhead", "non_torch=1GiB")["memory"]["overhead"]
        if part["name"] == "non_torch"
    )
    assert (part["typical_bytes"], part["basis"]) == (GIB, "given")
    assert fit(*asked, "--overhead", "0")["budget_bytes"] == total - LLAMA_WEIGHTS


def test_a_log_replaces_estimates(tmp_path: Path) -> None:
    """What a server printed counts, to the log's digits."""
    log = tmp_path / "server.log"
    log.write_text("model weights take 14.99GiB; PyTorch activation peak memory takes 1.19GiB\n", encoding="utf-8")
    memory = fit("llama-3.1-8b", *H100, "--engine", "vllm", "--from-log", str(log))["memory"]
    parts = {part["name"]: part for part in memory["overhead"]}
    assert memory["weights_bytes"] == round(Fraction("14.99") * GIB)
    assert parts["activations"]["typical_bytes"] == round(Fraction("1.19") * GIB)
    assert "loading" not in parts


def test_a_server_that_ran_is_inside_the_interval() -> None:
    """On an RTX 4090 vLLM 0.19 at 0.9 had 2,588 blocks of 16 tokens for Llama 3.1 8B."""
    meta = json.loads(shared("traces/vllm_rtx4090/meta.json").read_text(encoding="utf-8"))
    asked = ("--gpu", "rtx-4090", "--engine", "vllm", "--utilization", "0.9", "--ctx", "8192")
    low, high = fit("llama-3.1-8b", *asked)["interval"]["max_context"]
    assert low <= meta["kv_cache"]["num_kv_tokens"] <= high


def test_weights_are_split_over_the_ranks() -> None:
    """With tp they are divided; with pp the first stage has the embedding, the last the head, each its layers."""
    whole = 70_553_706_496 * 2
    assert fit("llama-3.1-70b", *H100, "--tp", "4")["memory"]["weights_bytes"] == -(-whole // 4)
    edge = 128_256 * 8192 * 2
    data = fit("llama-3.1-70b", *H100, "--pp", "4")
    assert data["memory"]["weights_bytes"] == (whole - 2 * edge) // 4 + edge
    assert data["memory"]["rank"] == 0
    assert any("share of the layers" in text for text in data["assumptions"])


def test_the_smallest_layout_is_found_and_the_others_have_a_reason() -> None:
    """Llama 3.1 70B takes two GPUs of 80 GB; with four long sequences in fp8 (66 + 160 GiB) three, as stages."""
    data = fit("llama-3.1-70b", *H100, "--gpus", "1..8", "--ctx", "8K")
    assert (data["tp"], data["pp"], data["dp"]) == (2, 1, 1)
    smaller = [layout for layout in data["layouts"] if layout["gpus"] == 1]
    assert [layout["fits"] for layout in smaller] == [False]
    assert "weights take 131 GiB of each GPU's 79.2 GiB" in smaller[0]["why"]
    assert all(layout["fits"] or layout["why"] for layout in data["layouts"])
    assert max(layout["gpus"] for layout in data["layouts"]) == 2
    many = fit("llama-3.1-70b", *H100, "--gpus", "1..8", "--ctx", "128Ki", "--batch", "4", "--weights", "fp8")
    assert (many["tp"], many["pp"], many["dp"]) == (1, 3, 1)


def test_a_layout_that_cannot_be_says_why() -> None:
    """Three GPUs: tp 3 does not divide the heads, pp 3 does."""
    data = fit("gemma-3-27b", "--gpu", "l4", "--gpus", "3", "--ctx", "2048")
    why = {(layout["tp"], layout["pp"], layout["dp"]): layout["why"] for layout in data["layouts"]}
    assert "does not divide the 32 heads" in why[3, 1, 1]
    assert (data["pp"], data["fits"]) == (3, True)


@pytest.mark.parametrize(
    ("model", "arguments"),
    [
        ("llama-3.1-8b", ["--gpu", "l4", "--ctx", "64K"]),
        ("gemma-3-27b", [*H100, "--ctx", "128Ki", "--batch", "8", "--engine", "vllm"]),
        ("deepseek-v3", ["--gpu", "h200", "--ctx", "32K", "--tp", "8"]),
        ("qwen3-next-80b-a3b", [*H100, "--ctx", "256Ki", "--tp", "2", "--batch", "16"]),
        ("llama-3.1-8b", ["--gpu", "rtx-3060", "--ctx", "32K", "--engine", "llama.cpp"]),
    ],
)
def test_every_change_that_is_said_to_help_does(model: str, arguments: list[str]) -> None:
    """Each suggestion, put on the command line, fits; one step less of a context or a batch change does not."""
    data = fit(model, *arguments, code=3)
    assert changes(data)
    for kind, change in changes(data).items():
        option, value = change.split(" ", 1)
        kept = without(arguments, option)
        again = fit(model, *kept, option, value)
        assert again["fits"], change
        if kind in ("context", "batch"):
            assert not fit(model, *kept, option, str(int(value) + 1), code=3)["fits"]


def without(arguments: list[str], option: str) -> list[str]:
    """Return a command line without an option and its value."""
    if option == "-o" or option not in arguments:
        return arguments
    place = arguments.index(option)
    return arguments[:place] + arguments[place + 2 :]


def test_kinds_of_change_that_cannot_help_are_said() -> None:
    """Weights that exceed the GPU: no context, batch or cache format helps, and the lack is in bytes."""
    data = fit("llama-3.1-70b", *H100, "--ctx", "8K", "--batch", "2", code=3)
    hopeless = {each["kind"]: each["text"] for each in data["suggestions"] if not each["helps"]}
    lack = 70_553_706_496 * 2 - int(Fraction("79.19") * GIB)
    assert data["budget_bytes"] == -lack
    assert "no context helps" in hopeless["context"]
    assert "no batch helps" in hopeless["batch"]
    assert f"lacks {lack / GIB:.1f} GiB for weights and overhead alone" in hopeless["kv_dtype"]
    assert set(changes(data)) == {"weights", "tp", "gpu"}


def test_the_window_is_the_widest() -> None:
    """A window of one more token does not fit."""
    asked = ("llama-3.1-8b", "--kv-memory", "1GiB", "--ctx", "16K")
    change = changes(fit(*asked, code=3))["evict"]
    window = int(change.split("window:")[1].split(",")[0])
    assert window + 4 == GIB // LLAMA_TOKEN
    assert fit(*asked, "--evict", f"window:{window},sinks:4")["fits"]
    assert not fit(*asked, "--evict", f"window:{window + 1},sinks:4", code=3)["fits"]


def test_llama_cpp_searches_layers_types_and_context_together() -> None:
    """The most layers for each cache type fit, one more does not; a smaller type takes more."""
    asked = ("llama-3.1-8b", "--gpu", "rtx-3060", "--ctx", "32K", "--engine", "llama.cpp")
    rows = {row["kv_dtype"]: row["n_gpu_layers"] for row in fit(*asked, code=3)["offload"]}
    assert rows["fp16"] < rows["q8_0"] < rows["q4_0"]
    for kv_dtype, layers in rows.items():
        assert fit(*asked, "--kv-dtype", kv_dtype, "-o", f"n_gpu_layers={layers}")["fits"]
        fit(*asked, "--kv-dtype", kv_dtype, "-o", f"n_gpu_layers={layers + 1}", code=3)


def test_slots_bound_the_batch() -> None:
    """llama.cpp has at most 256 slots, however much memory there is."""
    data = fit("gpt2-small", "--kv-memory", "1TiB", "--engine", "llama.cpp")
    assert data["max_batch"] == 256
    assert {rung["max_batch"] for rung in data["ladder"]} == {256}


def test_real_lengths(tmp_path: Path) -> None:
    """Half of 1,000 and half of 3,000 tokens: the mean is 2,000; safe is the binomial's 99 % quantile."""
    trace = tmp_path / "trace.csv"
    trace.write_text("tokens\n1000\n3000\n", encoding="utf-8")
    budget = 64_000 * LLAMA_TOKEN
    load = fit("llama-3.1-8b", "--kv-memory", str(budget), "--ctx", "8K", "--lengths", str(trace))["load"]
    assert (load["mean_tokens"], load["expected"]) == (2000.0, 32)
    assert load["safe"] == safe_of_two(64, short=1, long=3)


def safe_of_two(budget: int, short: int, long: int) -> int:
    """Return the largest N of which N sequences, short or long by halves, fit with 99 %: binomials added up."""
    import math

    def chance(count: int) -> Fraction:
        ways = sum(math.comb(count, n) for n in range(count + 1) if n * long + (count - n) * short <= budget)
        return Fraction(ways, 2**count)

    return max(count for count in range(1, budget + 1) if chance(count) >= Fraction(99, 100))


def test_the_draft_model_has_weights_and_cache() -> None:
    """Its bytes come off the budget and its tokens cost beside the model's."""
    alone = fit("llama-3.1-70b", *H100, "--tp", "4", "--ctx", "8K")
    both = fit("llama-3.1-70b", *H100, "--tp", "4", "--ctx", "8K", "--draft", "llama-3.2-1b")
    assert alone["budget_bytes"] - both["budget_bytes"] == 1_235_814_400 * 2 // 4
    assert both["binding"]["needed_bytes"] - alone["binding"]["needed_bytes"] == 8192 * 16 * 2 * 8 * 64 * 2 // 4
    refused = run("fit", "llama-3.1-70b", *H100, "--tp", "4", "--draft", "llama-3.2-1b", "--engine", "sglang")
    assert (refused.code, refused.err.count("\n")) == (1, 1)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--engine", "vllm", "--ctx", "8192", "--batch", "4"],
        ["--engine", "vllm", "--ctx", "8192", "--tp", "2", "--kv-dtype", "fp8", "-o", "enable_prefix_caching=false"],
        ["--engine", "vllm", "--ctx", "64K", "--batch", "99", "--utilization", "0.9"],
        ["--engine", "llama.cpp", "--ctx", "8192", "--batch", "2", "--kv-dtype", "q8_0", "--weights", "Q4_K_M"],
    ],
)
def test_the_command_line_that_is_printed_fits(arguments: list[str]) -> None:
    """Read back, it asks the same of the same engine, and fits; of what does not fit, the largest that does."""
    result = run("fit", "llama-3.1-8b", "--gpu", "rtx-4090", *arguments, "--emit")
    assert result.out.count("\n") == 1
    command = parse_command(shlex.split(result.out.replace(".gguf", "")))
    assert command.unknown == ()
    assert command.engine == arguments[1]
    hardware = Hardware("rtx-4090", memory={"overhead_parts": {}})
    if command.engine == "vllm":
        (part,) = check_command(command, hardware)
        assert part.fits, part.message


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--gpu", "h100-80"], 2, "did you mean"),
        ([*H100, "--gpus", "8..1"], 2, "smaller number first"),
        ([*H100, "--gpus", "many"], 2, "1..8"),
        ([*H100, "--gpus", "3", "--tp", "2"], 2, "no layout of 3 GPUs has tp 2"),
        ([*H100, "--tp", "3"], 1, "does not divide the 32 heads"),
        ([*H100, "--kv-memory", "1GiB"], 2, "--kv-memory contradicts --gpu"),
        (["--kv-memory", "1GiB", "--utilization", "0.9"], 2, "--kv-memory contradicts --utilization"),
        (["--kv-memory", "1GiB", "--gpus", "2"], 2, "--gpus needs --gpu"),
        ([*H100, "--memory-reserve", "-1GiB"], 2, "must not be negative"),
        ([*H100, "--memory-reserve", "90GiB"], 2, "leaves nothing"),
        ([*H100, "--overhead", "-1"], 2, "must not be negative"),
        ([*H100, "--overhead", "1GiB", "--overhead", "context=1GiB"], 2, "contradicts"),
        ([*H100, "--overhead", "contxt=1GiB", "--engine", "vllm"], 2, "did you mean context"),
        ([*H100, "--utilization", "1.2", "--engine", "vllm"], 2, "0.92"),
        ([*H100, "--from-log", "nowhere.log"], 2, "no such file"),
        ([*H100, "--lengths", "p50=800"], 2, "two different quantiles"),
        ([*H100, "--lengths", "p50=800,p95=700"], 2, "two different quantiles"),
        ([*H100, "--lengths", "nowhere.csv"], 2, "no such file"),
        ([*H100, "--emit"], 1, "no command line"),
        ([*H100, "--weights", "q4_k_n"], 2, "did you mean"),
        (["--gpu", "b100"], 2, "no driver was seen"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], code: int, message: str) -> None:
    """The line says what is wrong; nothing goes to standard output."""
    result = run("fit", "llama-3.1-8b", *arguments)
    assert (result.code, result.out) == (code, "")
    assert message in result.err
    assert result.err.count("\n") == 1


def test_the_report_folds_and_lists_every_part() -> None:
    """People see each part with its interval and where it comes from."""
    text = run("fit", "llama-3.1-8b", *H100, "--ctx", "8K", "--engine", "vllm").out
    for word in ("handed out", "weights", "activations", "cuda_graphs", "beside the share", "derived", "assumed"):
        assert word in text
    assert max(map(len, text.splitlines())) <= 80
