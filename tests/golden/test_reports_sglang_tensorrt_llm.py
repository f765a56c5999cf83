"""What SGLang and TensorRT-LLM servers printed in public logs and bug reports, against kvcalc, to the printed digits.

Every case keeps the name and the address it has in the collection that it comes from; docs/engines/sglang.md and
docs/engines/tensorrt-llm.md tell the same stories. Most servers were older than the versions of the profiles; where
that shows, the test says so.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from kvcalc.engines import _sglang_rules as rules
from kvcalc.spec.model import ModelSpec
from tests.property.specs import small_spec
from tests.served import Served

GIB = 2**30


def printed(text: str) -> tuple[int, int]:
    """Return the least and the most bytes that are printed as `text` GiB."""
    half = Fraction(1, 2 * 10 ** len(text.partition(".")[2]))
    return int((Fraction(text) - half) * GIB), int((Fraction(text) + half) * GIB)


# SGLang ---------------------------------------------------------------------------------------------------------------


def sglang(model: str | ModelSpec, options: dict[str, Any] | None = None, **arguments: Any) -> Served:
    """Return a model on SGLang."""
    return Served(model, "sglang", {"options": options, **arguments})


def lines(setup: Served, tokens: int) -> list[str]:
    """Return what kvcalc says the server logs where its pool has so many tokens, without the dtype."""
    (cell, *_) = setup.report()["cell_bytes_per_rank"]
    report = setup.report(-(-tokens * Fraction(cell) // 1))
    assert report["max_total_num_tokens"] == tokens
    return [line.partition("#tokens: ")[2] or line for line in report["log_lines"]]


@pytest.mark.parametrize(
    ("name", "model", "arguments", "line"),
    [
        ("sgl-001", "qwen3-235b-a22b", {"tp": 4}, "367404, K size: 8.23 GB, V size: 8.23 GB"),
        ("sgl-002", "qwen2.5-32b", {"tp": 4}, "46611, K size: 1.42 GB, V size: 1.42 GB"),
        ("sgl-003", "qwen3-8b", {}, "430067, K size: 29.53 GB, V size: 29.53 GB"),
        ("sgl-012", "qwen2.5-1.5b", {"kv_dtype": "fp8/nvfp4"}, "4001280, K size: 26.71 GB, V size: 15.03 GB"),
        ("sgl-014", "gpt2-small", {}, "248479, K size: 4.27 GB, V size: 4.27 GB"),
    ],
)
def test_the_line_of_one_pool(name: str, model: str, arguments: dict[str, Any], line: str) -> None:
    """Five servers' "KV Cache is allocated" (vllm issue 21348; notes), "GB" being GiB, a page more than the tokens."""
    assert lines(sglang(model, **arguments), int(line.partition(",")[0])) == [line], name


def hybrid(linear: int, attention: int, **changes: Any) -> ModelSpec:
    """Return a model of Gated DeltaNet and attention layers with the dimensions of Qwen3.5 27B."""
    delta = {
        "kind": "state", "variant": "gated_deltanet", "key_heads": 16, "value_heads": changes.pop("value_heads", 48),
        "key_head_dim": 128, "value_head_dim": 128, "conv_kernel": 4,
    }  # fmt: skip
    dimensions = {"hidden_size": 5120, "heads": 24, "kv_heads": 4, "head_dim": 256, **changes}
    pattern = ["linear"] * linear + ["attention"] * attention
    kinds = {"linear": delta, "attention": {"kind": "full"}}
    return small_spec(layers=linear + attention, pattern=pattern, kinds=kinds, **dimensions)


def with_states(setup: Served, slots: int, tokens: int) -> list[str]:
    """Return what kvcalc says the server logs with so many state slots and tokens."""
    sizes = setup.report()
    state, token = sizes["state_bytes_per_slot_per_rank"][0], sizes["full_bytes_per_token_per_rank"][0]
    report = setup.report((slots + 1) * state + tokens * token)
    assert (report["state_slots"], report["max_total_num_tokens"]) == (slots, tokens)
    return [line.partition("#tokens: ")[2] or line.partition("max_mamba_")[2] for line in report["log_lines"]]


def test_states_have_a_slot_more_than_is_said() -> None:
    """sgl-006 (v0.5.17): Qwen3.5 27B, 43 slots of a bf16 state, 171,008 tokens; its drafter's one layer beside it."""
    options = {"max_mamba_cache_size": 43, "mamba_ssm_dtype": "bfloat16"}
    assert with_states(sglang("qwen3.5-27b", options), 43, 171008) == [
        "cache_size: 43, conv_state size: 0.12GB, ssm_state size: 3.09GB",
        "171008, K size: 5.22 GB, V size: 5.22 GB",
    ]
    drafter = small_spec(layers=1, heads=24, kv_heads=4, head_dim=256)
    assert lines(sglang(drafter), 171008) == ["171008, K size: 0.33 GB, V size: 0.33 GB"]


def test_mamba_2_states_are_fp32_and_their_inputs_are_not() -> None:
    """sgl-007: Nemotron Nano 9B v2's 27 Mamba 2 and 4 attention layers: 48 slots, 2,618,868 tokens."""
    mamba = {
        "kind": "state", "variant": "mamba2", "state_heads": 128, "state_head_dim": 80, "groups": 8,
        "state_size": 128, "conv_kernel": 4,
    }  # fmt: skip
    kinds = {"mamba": mamba, "attention": {"kind": "full"}}
    pattern = ["mamba"] * 27 + ["attention"] * 4
    dimensions = {"heads": 40, "kv_heads": 8, "head_dim": 128, "hidden_size": 4480}
    spec = small_spec(layers=31, pattern=pattern, kinds=kinds, **dimensions)
    assert with_states(sglang(spec, {"max_mamba_cache_size": 48}), 48, 2618868) == [
        "cache_size: 48, conv_state size: 0.09GB, ssm_state size: 6.46GB",
        "2618868, K size: 19.98 GB, V size: 19.98 GB",
    ]


def test_four_slots_are_five() -> None:
    """sgl-008: a reduced Qwen3.5 of 6 linear and 2 attention layers: 0.06 GB is five states, four would be 0.05."""
    spec = hybrid(6, 2, value_heads=32, heads=16, kv_heads=2)
    setup = sglang(spec, {"max_mamba_cache_size": 4, "disable_radix_cache": True})
    assert with_states(setup, 4, 10097100) == [
        "cache_size: 4, conv_state size: 0.00GB, ssm_state size: 0.06GB",
        "10097100, K size: 19.26 GB, V size: 19.26 GB",
    ]


def test_windowed_pools_as_large_as_the_others() -> None:
    """sgl-009 (sglang pull request 15464): MiMo-V2-Flash on 4 ranks; in that build the windowed pool was full-size."""
    assert lines(sglang("mimo-v2-flash", {"swa_full_tokens_ratio": 1}, tp=4), 1496958) == [
        "1496958, K size: 41.76 GB, V size: 27.84 GB",
        "1496958, K size: 4.82 GB, V size: 3.21 GB",
        "SWAKVPool mem usage: 77.63 GB, swa size: 1496958, full size: 1496958",
    ]


def test_windowed_pools_by_the_ratio() -> None:
    """sgl-010 (sglang pull request 18039): 375,360 tokens in pages of 64 and 0.8 of them for the windowed layers."""
    setup = sglang("mimo-v2-flash", {"page_size": 64}, tp=4)
    windowed, _, both = lines(setup, 375360)
    assert windowed == "300288, K size: 8.38 GB, V size: 5.59 GB"
    assert both.endswith("swa size: 300288, full size: 375360")


def test_the_memory_of_the_log_gives_the_tokens() -> None:
    """ov-133: Qwen3 14B on 4 ranks: 23.08 GB free, 7.08 for weights, 0.8 static enclose 298,447 tokens and 11.38 GB."""
    setup = sglang("qwen3-14b", tp=4)
    ends = []
    for end, other in ((0, 1), (1, 0)):
        free = printed("23.08")[end]
        rest = rules.rest_memory(free - printed("7.08")[other], free, Fraction("0.8"))
        ends.append(setup.report(rest))
    assert ends[0]["max_total_num_tokens"] <= 298447 <= ends[1]["max_total_num_tokens"]
    assert printed("11.38")[0] <= ends[1]["allocated_bytes_per_rank"][0]
    assert printed("11.38")[1] >= ends[0]["allocated_bytes_per_rank"][0]


def test_states_of_a_drafter_are_thirty() -> None:
    """sgl-006, not modelled: 2.11 GB of intermediate states are 30 states, such as 10 requests of 3 drafts."""
    state = 48 * 48 * 128 * 128 * 2
    low, high = printed("2.11")
    assert [number for number in range(1, 100) if low <= number * state <= high] == [30]


def test_the_virtual_cache_is_the_card() -> None:
    """sgl-014, not modelled: 7.99 GB are 12 tensors of a 24th of the card's 16,376 MiB, in whole pages of 2 MiB."""
    tensor = 16376 // (2 * 12) // 2 * 2
    assert f"{12 * tensor / 1024:.2f}" == "7.99"


# TensorRT-LLM ---------------------------------------------------------------------------------------------------------


def tensorrt_llm(model: str | ModelSpec, options: dict[str, Any] | None = None, **arguments: Any) -> Served:
    """Return a model on TensorRT-LLM."""
    return Served(model, "tensorrt-llm", {"options": options, **arguments})


def of_blocks(setup: Served, blocks: int, context: int = 1) -> dict[str, Any]:
    """Return what kvcalc says of a pool of just so many blocks."""
    (size,) = setup.report()["bytes_per_token_per_rank"]
    block: int = setup.report()["tokens_per_block"]
    report = setup.report(blocks * block * size, context)
    assert report["num_blocks"] == blocks
    return report


def blocks_rounded_up(setup: Served, available: str, fraction: str) -> set[int]:
    """Return the blocks that the engine backend made of a printed memory: it rounded up, the PyTorch backend down."""
    (size,) = setup.report()["bytes_per_token_per_rank"]
    block = setup.report()["tokens_per_block"]
    return {-(-int(end * Fraction(fraction) / size) // block) for end in printed(available)}


LONG_BLOCKS = {"tokens_per_block": 64}


@pytest.mark.parametrize(
    ("name", "model", "available", "fraction", "blocks"),
    [
        ("trt-001", "qwen1.5-7b", "21.89", "0.9", 631),
        ("trt-009", small_spec(layers=56, heads=8, kv_heads=8, head_dim=128), "63.62", "0.99", 4607),
        ("trt-010", small_spec(layers=32, heads=16, kv_heads=16, head_dim=128), "1.42", "0.9", 82),
    ],
)
def test_older_servers_rounded_blocks_up(
    name: str, model: str | ModelSpec, available: str, fraction: str, blocks: int
) -> None:
    """Blocks of a printed memory (TensorRT-LLM issue 2268; notes); of the PyTorch backend they are one fewer."""
    setup = tensorrt_llm(model, LONG_BLOCKS)
    assert blocks in blocks_rounded_up(setup, available, fraction), name
    fewer = {setup.report(int(end * Fraction(fraction)))["num_blocks"] for end in printed(available)}
    assert blocks - 1 in fewer, name


def test_bytes_of_a_pool_are_exact() -> None:
    """trt-002 (issue 1400): 132,608 tokens of a 7B model are 69,524,783,104 bytes."""
    report = of_blocks(tensorrt_llm("llama-2-7b", LONG_BLOCKS), 132608 // 64)
    assert report["allocated_bytes_per_rank"] == [69524783104]
    assert report["max_tokens"] == 132608


def test_the_lines_of_one_pool() -> None:
    """trt-004 (triton-inference-server tutorials 150): TinyLlama, 116,617 blocks for sequences of 2,051 tokens."""
    assert of_blocks(tensorrt_llm("tinyllama-1.1b"), 116617, 2051)["log_lines"] == [
        "Max KV cache blocks per sequence: 65 [window size=2051], tokens per block=32, primary blocks=116617",
        "Allocated 78.30 GiB for max tokens in paged KV cache (3731744)",
    ]


def test_blocks_of_64_tokens() -> None:
    """trt-007, trt-009: 26.91 GiB for 220,480 tokens, 2,048 blocks a sequence of 131,072; 62.99 GiB for 294,848."""
    pages, allocated = of_blocks(tensorrt_llm("llama-3.1-8b", LONG_BLOCKS), 220480 // 64, 131072)["log_lines"]
    assert "per sequence: 2048 " in pages
    assert allocated == "Allocated 26.91 GiB for max tokens in paged KV cache (220480)"
    wide = tensorrt_llm(small_spec(layers=56, heads=8, kv_heads=8, head_dim=128), LONG_BLOCKS)
    assert of_blocks(wide, 4607)["log_lines"][1] == "Allocated 62.99 GiB for max tokens in paged KV cache (294848)"


def test_a_sequence_longer_than_the_pool() -> None:
    """trt-010: 82 blocks of 64 cut it to 5,185 tokens, 81 blocks and a token; the PyTorch backend to whole blocks."""
    report = of_blocks(tensorrt_llm(small_spec(layers=32, heads=16, kv_heads=16, head_dim=128), LONG_BLOCKS), 82, 9999)
    assert report["max_seq_len"] == 82 * 64
    assert (82 - 1) * 64 + 1 == 5185


def test_a_fake_manager_says_nothing_of_bytes() -> None:
    """trt-011: "Allocated 0.00 GiB" for 3,958,272 tokens: blocks x tokens is right, the GiB are of heads of size 0."""
    assert 61848 * 64 == 3958272
