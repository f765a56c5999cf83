"""What engines need beside weights and cache: formulas by hand, intervals, and pasted log lines."""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc.errors import BadInput
from kvcalc.hardware.gpu import find_gpu
from kvcalc.hardware.overhead import (
    GIB,
    Overhead,
    OverheadPart,
    estimate,
    from_log_lines,
    gib,
    parse_version,
    vllm_step_defaults,
)

LLAMA_8B: dict[str, Any] = {
    "runtime_bytes": gib("79.19"),
    "hidden_size": 4096,
    "vocab_size": 128256,
    "intermediate_size": 14336,
    "layers": 32,
    "max_num_batched_tokens": 8192,
    "max_num_seqs": 1024,
}


def _part(overhead: Overhead, name: str) -> OverheadPart:
    return next(part for part in overhead.parts if part.name == name)


def test_decimals_of_gib_become_whole_bytes() -> None:
    """Rounded to the nearest, without a float between."""
    assert gib("0.5") == 2**29
    assert gib("79.19") == 85_029_615_043


def test_activations_by_hand() -> None:
    """Sampling: 3.66 of 1024 sequences' fp32 logits, and 1.45 of the step's hidden states."""
    part = _part(estimate("vllm", **LLAMA_8B, engine_version="0.19.0"), "activations")
    assert part.typical_bytes == round(366 * 1024 * 128256 * 4 / 100 + 145 * 8192 * 4096 * 2 / 100)
    assert part.basis == "derived"
    assert part.inside


def test_older_versions_hold_more_logits() -> None:
    """9.75 of them before 0.17."""
    part = _part(estimate("vllm", **LLAMA_8B, engine_version="0.16.0"), "activations")
    assert part.typical_bytes == 975 * 1024 * 128256 * 4 // 100 + 8192 * 4096 * 2


def test_a_wide_layer_can_need_more_than_sampling() -> None:
    """T * 2 * (3 * I / TP + 4 * h) where few sequences are sampled."""
    few = {**LLAMA_8B, "max_num_seqs": 1}
    part = _part(estimate("vllm", **few, tp=2, engine_version="0.19.0"), "activations")
    assert part.typical_bytes == 8192 * 2 * (3 * 14336 // 2 + 4 * 4096)


def test_experts_add_their_part() -> None:
    """T * k * (3 * I_moe / TP + h) * 2, but not for gpt-oss."""
    plain = _part(estimate("vllm", **LLAMA_8B, engine_version="0.19.0"), "activations").typical_bytes
    mixed = estimate("vllm", **LLAMA_8B, engine_version="0.19.0", moe=(2, 1024))
    assert _part(mixed, "activations").typical_bytes == plain + 8192 * 2 * (3 * 1024 + 4096) * 2
    spared = estimate("vllm", **LLAMA_8B, engine_version="0.19.0", moe=(2, 1024), architecture="gpt_oss")
    assert _part(spared, "activations").typical_bytes == plain


def test_graphs_come_off_the_share_since_0_21() -> None:
    """Before, they were captured when the cache had its memory."""
    assert not _part(estimate("vllm", **LLAMA_8B, engine_version="0.20.0"), "cuda_graphs").inside
    current = _part(estimate("vllm", **LLAMA_8B), "cuda_graphs")
    assert current.inside
    assert current.typical_bytes == (350 + 16 * 32) * GIB // 1000


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({"tp": 2}, "non_torch"),
        ({"pp": 2}, "activations"),
        ({"moe": (2, 1024)}, "cuda_graphs"),
        ({"mla": True}, "cuda_graphs"),
        ({"multimodal": True}, "multimodal"),
    ],
)
def test_what_has_no_model_is_an_allowance_that_says_so(more: dict[str, Any], name: str) -> None:
    """Several GPUs outside torch, stages, graphs of mixtures and MLA, encoders."""
    part = _part(estimate("vllm", **LLAMA_8B, **more), name)
    assert part.basis == "assumed"
    assert "no model" in part.note


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "llama.cpp", "ollama", "transformers"])
@pytest.mark.parametrize(
    "more", [{}, {"tp": 4}, {"vocab_size": None}, {"intermediate_size": None}, {"max_num_seqs": 1}]
)
def test_parts_are_ordered_whole_numbers(engine: str, more: dict[str, Any]) -> None:
    """From low to high, in bytes, each with its reason."""
    for version in (None, "0.8.5", "0.19.0"):
        parts = estimate(engine, **{**LLAMA_8B, **more}, engine_version=version).parts
        assert parts
        for part in parts:
            sizes = (part.low_bytes, part.typical_bytes, part.high_bytes)
            assert all(type(size) is int for size in sizes)
            assert 0 <= sizes[0] <= sizes[1] <= sizes[2]
            assert part.note


def test_the_ideal_engine_needs_nothing() -> None:
    """It is a definition, not a program."""
    assert estimate("ideal", **LLAMA_8B) == Overhead()
    assert Overhead().total() == (0, 0, 0)


def test_sglang_keeps_a_part_of_the_gpu() -> None:
    """12, 17 and 23 % of it were seen to be left free."""
    part = _part(estimate("sglang", **LLAMA_8B), "static_reserve")
    assert [part.low_bytes, part.typical_bytes, part.high_bytes] == [
        gib("79.19") * percent // 100 for percent in (12, 17, 23)
    ]
    assert "no model" not in part.note  # it is policy


def test_llama_cpp_depends_on_the_platform() -> None:
    """Metal was seen to take nothing, ROCm less than CUDA."""
    typical = {
        platform: _part(estimate("llama.cpp", **LLAMA_8B, platform=platform), "context").typical_bytes
        for platform in ("cuda", "rocm", "metal")
    }
    assert typical["metal"] == 0 < typical["rocm"] < typical["cuda"]


def test_a_part_can_be_given() -> None:
    """It then has no spread, and the others stay."""
    before = estimate("vllm", **LLAMA_8B)
    after = before.with_part("cuda_graphs", 123)
    part = _part(after, "cuda_graphs")
    assert (part.low_bytes, part.typical_bytes, part.high_bytes, part.basis) == (123, 123, 123, "given")
    assert part.inside == _part(before, "cuda_graphs").inside
    assert [each.name for each in after.parts] == [each.name for each in before.parts]
    with pytest.raises(BadInput, match="did you mean cuda_graphs"):
        before.with_part("cuda_graph", 1)


def test_totals_add_up() -> None:
    """Inside and outside the share are all there is."""
    overhead = estimate("vllm", **LLAMA_8B, engine_version="0.19.0")
    inside, outside = overhead.total(inside=True), overhead.total(inside=False)
    assert tuple(a + b for a, b in zip(inside, outside, strict=True)) == overhead.total()
    assert overhead.without("loading").total()[1] == overhead.total()[1] - gib("0.03")


@pytest.mark.parametrize(
    ("gpu", "step"),
    [("h100", (8192, 1024)), ("a100-80gb", (2048, 256)), ("l4", (2048, 256)), ("gb10", (2048, 256)),
     ("b200", (16384, 1024)), ("mi300x", (16384, 1024))],
)  # fmt: skip
def test_vllm_steps_depend_on_the_gpu(gpu: str, step: tuple[int, int]) -> None:
    """Large ones take 8,192 tokens and 1,024 sequences, the largest 16,384; A100 and GB10 count as small."""
    assert vllm_step_defaults(find_gpu(gpu)) == step


def test_versions() -> None:
    """Two numbers count."""
    assert parse_version("0.19.0") == parse_version("v0.19") == (0, 19)
    assert parse_version(None) is None
    with pytest.raises(BadInput, match="'newest' is not a version"):
        parse_version("newest")


def test_an_unknown_engine_is_refused() -> None:
    """With the engines that are known."""
    with pytest.raises(BadInput, match=r"known: ideal, llama.cpp, vllm"):
        estimate("exllama", **LLAMA_8B)


# Log lines


def test_the_old_vllm_profile_is_read() -> None:
    """The lines of the V0 engine, figures of ov-066 in the shared logs."""
    text = (
        "INFO: the current vLLM instance can use total_gpu_memory (79.22GiB) x gpu_memory_utilization (0.90) = "
        "71.30GiB\nmodel weights take 14.96GiB; non_torch_memory takes 1.79GiB; PyTorch activation peak memory takes "
        "1.26GiB; the rest of the memory reserved for KV Cache is 53.29GiB."
    )
    assert from_log_lines(text) == {
        "total": gib("79.22"),
        "weights": gib("14.96"),
        "non_torch": gib("1.79"),
        "activations": gib("1.26"),
    }


def test_the_current_vllm_lines_are_read() -> None:
    """Loading and capture; of two ranks the larger counts."""
    text = (
        "(Worker_TP0) Model loading took 7.51 GiB memory and 3.1 seconds\n"
        "(Worker_TP1) Model loading took 7.49 GiB memory and 3.2 seconds\n"
        "Graph capturing finished in 14 secs, took 0.76 GiB\n"
    )
    assert from_log_lines(text) == {"weights": gib("7.51"), "cuda_graphs": gib("0.76")}


def test_llama_cpp_buffers_are_read() -> None:
    """Buffers on a device; the host's are not the GPU's."""
    text = (
        "llama_context:      CUDA0 compute buffer size =   548.00 MiB\n"
        "llama_context:  CUDA_Host compute buffer size =    12.01 MiB\n"
    )
    assert from_log_lines(text) == {"compute": 548 * 1024**2}


def test_sglang_lines_are_read() -> None:
    """They say GB and divide by 2^30."""
    text = "Load weight end. type=Qwen2ForCausalLM, avail mem=8.20 GB, mem usage=14.39 GB."
    assert from_log_lines(text) == {"weights": gib("14.39")}


def test_a_log_without_memory_is_refused() -> None:
    """The message says which lines to paste."""
    with pytest.raises(BadInput, match="paste those with 'model weights take'"):
        from_log_lines("INFO: Uvicorn running")
