"""Every kind x engine x element format x tensor parallelism: it compiles, or the engine says why it does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, TypeVar

import pytest

from kvcalc import api
from kvcalc.engines import ENGINES
from kvcalc.errors import UnsupportedByEngine
from kvcalc.formats import FORMATS
from kvcalc.spec.kinds import KINDS, STATE_VARIANTS
from kvcalc.spec.model import ModelSpec
from tests.property.specs import small_spec

Answer = TypeVar("Answer")

DEGREES = (1, 2, 4, 8)
HEADS = {"heads": 16, "kv_heads": 4, "head_dim": 128, "hidden_size": 2048}

# Kinds by name, with the model type that has such layers; a layer of several kinds lists them.
LAYERS: dict[str, tuple[str, dict[str, Any]]] = {
    "full": ("llama", {"full": {"kind": "full"}}),
    "sliding": ("gemma3_text", {"local": {"kind": "sliding", "window": 1024}}),
    "chunked": ("llama4_text", {"local": {"kind": "chunked", "chunk": 8192}}),
    "mla": ("deepseek_v3", {"mla": {"kind": "mla", "kv_lora_rank": 512, "qk_rope_head_dim": 64,
                                    "qk_nope_head_dim": 128, "v_head_dim": 128}}),
    "indexer": ("deepseek_v32", {"index": {"kind": "indexer", "index_head_dim": 128}}),
    "cross": ("mllama", {"cross": {"kind": "cross", "encoder_context": 1601}}),
    "shared": ("gemma3n_text", {"full": {"kind": "full"}, "reader": {"kind": "shared", "of": "full"}}),
    "compressed": ("deepseek_v4", {"csa": {"kind": "compressed", "head_dim": 512, "window": 128, "ratio": 4,
                                           "index_head_dim": 128}}),
    "mamba1": ("mamba", {"ssm": {"kind": "state", "variant": "mamba1", "channels": 4096, "state_size": 16,
                                 "conv_kernel": 4}}),
    "mamba2": ("mamba2", {"ssm": {"kind": "state", "variant": "mamba2", "state_heads": 64, "state_head_dim": 64,
                                  "groups": 8, "state_size": 128, "conv_kernel": 4}}),
    "gated_deltanet": ("qwen3_next", {"gdn": {"kind": "state", "variant": "gated_deltanet", "key_heads": 16,
                                              "value_heads": 32, "key_head_dim": 128, "value_head_dim": 128,
                                              "conv_kernel": 4}}),
    "kda": ("kimi_linear", {"kda": {"kind": "state", "variant": "kda", "state_heads": 32, "state_head_dim": 128,
                                    "conv_kernel": 4}}),
    "rg_lru": ("recurrent_gemma", {"lru": {"kind": "state", "variant": "rg_lru", "channels": 2560, "conv_kernel": 4}}),
    "rwkv4": ("rwkv", {"rwkv": {"kind": "state", "variant": "rwkv4", "channels": 2048}}),
    "rwkv": ("rwkv6", {"rwkv": {"kind": "state", "variant": "rwkv", "channels": 2048, "state_heads": 32,
                                "state_head_dim": 64}}),
    "short_conv": ("lfm2", {"conv": {"kind": "state", "variant": "short_conv", "channels": 2048, "conv_kernel": 3}}),
    "lightning": ("minimax", {"lightning": {"kind": "state", "variant": "lightning", "state_heads": 64,
                                            "state_head_dim": 128}}),
    "full + cross": ("whisper", {"self": {"kind": "full"}, "cross": {"kind": "cross", "encoder_context": 1500}}),
    "mla + indexer": ("deepseek_v32", {"mla": {"kind": "mla", "kv_lora_rank": 512, "qk_rope_head_dim": 64},
                                       "index": {"kind": "indexer", "index_head_dim": 128}}),
    "full + mamba2": ("falcon_h1", {"full": {"kind": "full"},
                                    "ssm": {"kind": "state", "variant": "mamba2", "state_heads": 64,
                                            "state_head_dim": 64, "groups": 8, "state_size": 128, "conv_kernel": 4}}),
    "sliding, full": ("gemma3_text", {"local": {"kind": "sliding", "window": 1024}, "full": {"kind": "full"}}),
    "gated_deltanet, full": ("qwen3_next", {"gdn": {"kind": "state", "variant": "gated_deltanet", "key_heads": 16,
                                                    "value_heads": 32, "key_head_dim": 128, "value_head_dim": 128,
                                                    "conv_kernel": 4}, "full": {"kind": "full"}}),
}  # fmt: skip

# On how many ranks the same bytes of a kind lie, where tp is more than what it can be split into.
COPIES: dict[str, Callable[[int], int]] = {
    "full": lambda tp: max(tp // 4, 1),
    "mla": lambda tp: tp,
    "state": lambda tp: 1,
}
COPIES.update(dict.fromkeys(("sliding", "chunked", "cross"), COPIES["full"]))
COPIES.update(dict.fromkeys(("indexer", "compressed"), COPIES["mla"]))


def spec_of(name: str) -> ModelSpec:
    """Return a model of the layers called `name`: one kind each, `a + b` in one layer, `a, b` in turn."""
    architecture, kinds = LAYERS[name]
    pattern: list[Any] = [list(kinds)] if "+" in name else list(kinds)
    return small_spec(**HEADS, architecture=architecture, layers=4, kinds=kinds, pattern=pattern, dtype="bfloat16")


def or_reason(ask: Callable[..., Answer], *arguments: Any, **more: Any) -> Answer | str:
    """Return an answer of the API, or the line that says why the engine does not give it."""
    try:
        return ask(*arguments, **more)
    except UnsupportedByEngine as error:
        return str(error) or "\n"


def setups(name: str, engine: str) -> Iterator[tuple[str, int, api.Setup]]:
    """Yield (format, tp, setup) for every combination that the engine takes."""
    spec = spec_of(name)
    for kv_dtype, tp in product(FORMATS, DEGREES):
        answer = or_reason(api.prepare, spec, engine=engine, kv_dtype=kv_dtype, tp=tp)
        if isinstance(answer, str):
            assert answer.isprintable(), (kv_dtype, tp)
        else:
            yield kv_dtype, tp, answer


def test_every_kind_and_variant_is_in_the_matrix() -> None:
    """A new kind needs a row above; engines and formats join by themselves."""
    covered = {kind.get("variant", kind["kind"]) for _, kinds in LAYERS.values() for kind in kinds.values()}

    assert covered == (set(KINDS) | set(STATE_VARIANTS)) - {"state"}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", LAYERS)
def test_a_combination_compiles_or_is_refused_with_a_reason(name: str, engine: str) -> None:
    """And what compiles is measured: whole bytes, never less for a larger batch."""
    for kv_dtype, tp, setup in setups(name, engine):
        where, placement = (kv_dtype, tp), setup.placement
        sizes = [placement.total_bytes(3000, batch) for batch in (1, 2, 3, 8)]
        held = [placement.held_bytes(3000, batch) for batch in (1, 2, 3, 8)]
        assert all(type(size) is int for size in sizes + held), where
        assert sizes == sorted(sizes), where
        assert held == sorted(held), where
        assert len(placement.ranks) == tp, where
        assert all(rank.admitted.peak(3000, 2) >= rank.admitted.bytes(3000, 2) for rank in placement.ranks), where


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", LAYERS)
def test_what_compiles_is_reported(name: str, engine: str) -> None:
    """The whole result, once for each combination's default format."""
    result = or_reason(api.size, spec_of(name), context=3000, batch=2, engine=engine)
    if isinstance(result, str):
        assert result.isprintable()
        return
    assert sum(row.bytes for row in result.breakdown) == result.total_bytes == sum(result.per_rank_bytes)
    assert result.to_json()["schema"] == "kvcalc.size/1"
    assert str(result)


@pytest.mark.parametrize("name", LAYERS)
def test_the_ideal_engine_takes_everything_and_shards_as_promised(name: str) -> None:
    """Heads and channels are split, and copied beyond their number; what all heads share is copied to every rank."""
    spec = spec_of(name)
    found = {(kv_dtype, tp): setup for kv_dtype, tp, setup in setups(name, "ideal")}
    kind_of = {group.name: group.kind.name for group in spec.groups()}

    assert set(found) == set(product(FORMATS, DEGREES))
    for (kv_dtype, tp), setup in found.items():
        one = found[kv_dtype, 1].placement.ranks[0].admitted.by_label(3000, 2)
        expected = sum(size * COPIES[kind_of[label]](tp) for label, size in one.items())
        assert setup.placement.total_bytes(3000, 2) == expected, (kv_dtype, tp)
