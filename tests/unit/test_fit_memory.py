"""What ranks have: weights by stage and slice, the host's memory, what the user and a log say in place of estimates."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from kvcalc.answer import memory_of
from kvcalc.errors import BadInput
from kvcalc.hardware.overhead import OverheadPart
from kvcalc.memory import HOST, Card, KvMemory, RankWeights, rank_weights
from kvcalc.prepared import prepare
from tests.property.specs import small_spec

GIB = 2**30
LLAMA_TOKEN = 32 * 2 * 8 * 128 * 2


def card(gpu: str = "l4") -> Card:
    """Return a GPU without options."""
    found = memory_of(None, gpu)
    assert isinstance(found, Card)
    return found


def weights(tp: int = 1, pp: int = 1) -> list[int]:
    """Return the bytes of the weights on every rank of a model of four layers and 1,000,000 parameters in bf16."""
    found = rank_weights(prepare(small_spec(parameters=1_000_000), tp=tp, pp=pp))
    return [each.typical for each in found if each is not None]


def test_weights_are_shared_by_layers_and_slices() -> None:
    """Whole, halves, quarters; of stages of 2, 1 and 1 layers a half and two quarters; rounded up to a byte."""
    assert weights() == [2_000_000]
    assert weights(tp=2) == [1_000_000] * 2
    assert weights(tp=2, pp=2) == [500_000] * 4
    assert weights(pp=3) == [1_000_000, 500_000, 500_000]


@pytest.mark.parametrize(("tied", "copies"), [(False, 2), (True, 1)])
def test_edges_lie_on_the_first_and_the_last_stage(tied: bool, copies: int) -> None:
    """The embedding of 100 x 512 weights and the head, which stages cannot share even where they are one tensor."""
    spec = small_spec(parameters=1_000_000, vocab_size=100, tie_word_embeddings=tied)
    found = rank_weights(prepare(spec, pp=4))
    edge = 100 * 512 * 2
    layer = (2_000_000 - copies * edge) // 4
    assert found == tuple(RankWeights(*(3 * (size,))) for size in (layer + edge, layer, layer, layer + edge))


def test_what_lies_on_the_host_takes_nothing() -> None:
    """With half of llama.cpp's layers on the GPU: half of the weights there, and a rank without a limit."""
    setup = prepare("llama-3.1-8b", engine="llama.cpp", options={"ngl": 17})
    gpu, host = card().ranks(setup)
    assert host is HOST
    assert gpu.budget is not None
    assert gpu.budget.weights_bytes == 8_030_261_248 * 2 // 2


def test_unknown_weights_are_an_error() -> None:
    """A model without a number of parameters needs a budget for the cache."""
    with pytest.raises(BadInput, match="--kv-memory"):
        card().ranks(prepare(small_spec()))
    (rank,) = KvMemory(100).ranks(prepare(small_spec()))
    assert (rank.low, rank.typical, rank.high) == (100, 100, 100)


def test_a_mix_of_weights_makes_an_interval() -> None:
    """The most weights leave the least."""
    setup = prepare("llama-3.1-8b", weights="Q4_K_M")
    (rank,) = card().ranks(setup)
    low, typical, high = setup.weights_range() or (0, 0, 0)
    total = card().gpu.total_bytes
    assert (rank.low, rank.typical, rank.high) == (total - high, total - typical, total - low)


def test_what_is_known_replaces_what_is_estimated() -> None:
    """A log's total and weights, a part of the user's, or one figure for all."""
    setup = prepare("llama-3.1-8b", engine="vllm")
    logged = replace(card(), logged=(("total", 20 * GIB), ("weights", 15 * GIB)), parts=(("context", GIB),))
    (rank,) = logged.ranks(setup)
    assert rank.budget is not None
    assert (rank.budget.total_bytes, rank.budget.weights_bytes) == (20 * GIB, 15 * GIB)
    assert {part.name: part.basis for part in rank.budget.overhead.parts}["context"] == "given"
    (rank,) = replace(card(), overhead=GIB, utilization=Fraction(1)).ranks(setup)
    assert rank.low == rank.typical == rank.high == card().gpu.total_bytes - 8_030_261_248 * 2 - GIB


def test_the_gpu_decides_what_the_server_chooses() -> None:
    """The tokens of a step in vLLM, the devices of llama.cpp; what the user says stays."""
    assert card("h100-80gb").adjusted("vllm", {}, 1) == {"max_num_batched_tokens": 8192}
    assert card("l4").adjusted("vllm", {"max_num_batched_tokens": 512}, 1) == {"max_num_batched_tokens": 512}
    assert card("l4").adjusted("llama.cpp", {}, 2) == {"device": "CUDA0,CUDA1"}
    assert card("mi300x").adjusted("ollama", {}, 1) == {"device": "ROCm0"}
    assert card("l4").adjusted("llama.cpp", {"tensor_split": "3,1"}, 1) == {"tensor_split": "3,1"}


def compute_part(model: str = "llama-3.1-8b", gpu: str = "rtx-4090", **given: Any) -> OverheadPart:
    """Return llama.cpp's compute buffer in the overhead of a GPU."""
    found = card(gpu)
    given["options"] = found.adjusted("llama.cpp", given.get("options", {}), given.get("pp", 1))
    overhead = found.overhead_of(prepare(model, engine="llama.cpp", **given))
    return next(part for part in overhead.parts if part.name == "compute")


def test_the_compute_buffer_is_that_of_the_closed_form() -> None:
    """512 tokens (256 at least) of 3 rows of 14,336 and 4 of 4,096 in fp32, and an fp16 mask of every cell."""
    part = compute_part()
    rows = 4 * (3 * 14_336 + 4 * 4096)
    assert part.basis == "derived"
    assert (part.low_bytes, part.typical_bytes) == (256 * (rows + 2 * 256), 512 * (rows + 2 * 131_072))
    cells = int(Fraction("23.52") * GIB) // (256 * LLAMA_TOKEN) * 256  # all that the GPU could hold
    assert abs(part.high_bytes - 512 * (rows + 2 * cells)) <= 512 * 2 * 1024
    fixed = compute_part(options={"n_ctx": 16_384})
    logits = 256 * 4 * (128_256 + 2 * 4096)  # of as many slots as there can be
    assert (fixed.typical_bytes, fixed.high_bytes) == (512 * (rows + 2 * 16_384), logits)


@pytest.mark.parametrize(
    ("model", "given"),
    [
        ("qwen3-8b", {}),
        ("mixtral-8x7b", {}),
        ("llama-3.1-8b", {"kv_dtype": "q8_0"}),
        ("llama-3.1-8b", {"options": {"flash_attn": "off"}}),
        ("llama-3.1-8b", {"options": {"ngl": 20}}),
        ("llama-3.1-8b", {"pp": 2}),
    ],
)
def test_elsewhere_the_compute_buffer_is_an_allowance(model: str, given: dict[str, Any]) -> None:
    """Other architectures, quantised caches, no flash attention, layers on the host, several GPUs."""
    part = compute_part(model, **given)
    assert (part.basis, part.low_bytes, part.high_bytes) == ("assumed", round(0.1 * GIB), round(4.5 * GIB))


@pytest.mark.parametrize(("context", "printed"), [(2048, 164), (32_768, 2144)])
def test_a_gpu_takes_twelve_mebibytes_less_than_the_closed_form(context: int, printed: int) -> None:
    """A public log (fedora-copr/logdetective, pull request 106): a Mistral 7B on CUDA0, without flash attention."""
    options = {"flash_attn": "off"}
    setup = prepare("mistral-7b-v0.1", engine="llama.cpp", options=options)
    report = setup.engine.report(setup.spec, setup.deployment, context, 1, setup.placement)
    assert abs(report["compute_buffer_bytes"] - (printed + 12) * 2**20) <= 28 * 512
