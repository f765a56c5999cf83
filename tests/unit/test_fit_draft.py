"""A draft model beside a model: on vLLM one pool is split so that it holds as many sequences of both."""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc import api
from kvcalc.errors import BadInput, UnsupportedByEngine
from kvcalc.spec.model import ModelSpec
from tests.property.specs import small_spec

KIB, MIB = 2**10, 2**20


def largest_batch(model: str | ModelSpec, memory: int, draft: str | ModelSpec | None = None, **given: Any) -> int:
    """Return the sequences of 5,000 tokens that vLLM holds in `memory` bytes on every rank."""
    found = api.fit(model, kv_memory=memory, context=5000, engine="vllm", draft=draft, **given).max_batch
    assert found is not None
    return found


def least_memory(model: str, batch: int, **given: Any) -> int:
    """Return the fewest bytes in which vLLM holds `batch` sequences of one model alone, by halving."""
    low, high = 0, 2**44
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if largest_batch(model, middle, **given) >= batch else (middle, high)
    return high


def test_a_sequence_takes_blocks_of_both_models() -> None:
    """63 blocks for 1,000 tokens: 2 MiB of Llama 3.1 8B, 512 KiB of Llama 3.2 1B; each has a null block."""
    block = 2 * MIB + 512 * KIB
    for spare, batch, blocks in ((0, 7, 63), (-1, 6, 62), (63 * block - 1, 7, 71), (63 * block, 8, 72)):
        memory = (7 * 63 + 1) * block + spare
        found = api.fit("llama-3.1-8b", kv_memory=memory, context=1000, batch=7, engine="vllm", draft="llama-3.2-1b")
        assert (found.max_batch, found.fits) == (batch, batch >= 7)
        assert found.max_context == 16 * blocks


@pytest.mark.parametrize(
    ("model", "draft", "given"),
    [
        ("gemma-3-27b", "gemma-3-1b", {"tp": 1}),
        ("gpt-oss-120b", "gpt-oss-20b", {"tp": 2}),
        ("llama-3.1-70b", "llama-3.2-1b", {"tp": 4, "kv_dtype": "fp8"}),
    ],
)
def test_the_split_leaves_either_what_it_needs_alone(model: str, draft: str, given: dict[str, Any]) -> None:
    """Five of both fit exactly where the least memories for five of each alone add up: not with one byte less."""
    needed = least_memory(model, 5, **given) + least_memory(draft, 5, **given)
    assert largest_batch(model, needed, draft, **given) == 5
    assert largest_batch(model, needed - 1, draft, **given) == 4
    more = least_memory(model, 6, **given) + least_memory(draft, 6, **given)
    assert largest_batch(model, more - 1, draft, **given) == 5


def test_where_all_layers_share_one_group_the_split_is_the_engines() -> None:
    """vllm-028: Llama 3.1 8B and EAGLE's layer are 33 layers; the pool holds the same whichever way it is counted."""
    layers = {"heads": 32, "kv_heads": 8, "head_dim": 128}
    whole = small_spec(layers=33, **layers)
    for memory in range(int(51.625 * 2**30), int(51.635 * 2**30), 999_983):
        one = largest_batch(whole, memory)
        assert largest_batch(small_spec(layers=32, **layers), memory, small_spec(layers=1, **layers)) == one


def test_the_answer_says_how_the_pool_is_split_and_prints_no_log() -> None:
    """The server's own lines are those of one model, and would be wrong."""
    found = api.fit("llama-3.1-8b", gpu="h100-80gb", context=8192, engine="vllm", draft="llama-3.2-1b")
    assert any(text.startswith("the pool is split") for text in found.assumptions)
    assert "log_lines" not in found.engine_report
    assert found.fits


@pytest.mark.parametrize(
    ("model", "engine", "given", "words"),
    [
        ("llama-3.1-8b", "sglang", {}, "sglang divides its pools"),
        ("llama-3.1-8b", "tensorrt-llm", {}, "tensorrt-llm divides its pools"),
        ("llama-3.1-8b", "vllm", {"pp": 2}, "pipeline stage"),
        ("qwen3-next-80b-a3b", "vllm", {}, "recurrent layers"),
        ("llama-3.1-8b", "vllm", {"options": {"auto_fit": True}}, "auto_fit"),
        ("llama-3.1-8b", "vllm", {"options": {"num_gpu_blocks_override": 100}}, "num_gpu_blocks_override"),
    ],
)
def test_what_is_not_covered_is_refused(model: str, engine: str, given: dict[str, Any], words: str) -> None:
    """Other engines' pools, stages, states that grow with the drafted tokens, options about one model's blocks."""
    with pytest.raises(UnsupportedByEngine, match=words):
        api.fit(model, kv_memory=2**36, context=4096, engine=engine, draft="llama-3.2-1b", **given)


def test_a_command_line_has_no_draft() -> None:
    """A command that serves the model alone would not be the answer."""
    with pytest.raises(BadInput, match="--draft or --emit"):
        api.fit("llama-3.1-8b", kv_memory=2**36, engine="vllm", draft="llama-3.2-1b", emit=True)
