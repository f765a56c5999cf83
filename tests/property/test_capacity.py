"""The two answers of capacity are exact on both sides: what they name fits, and one more does not."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcalc import api
from kvcalc.api import Setup
from kvcalc.capacity import capacity, max_batch, max_context
from kvcalc.engines import ENGINES
from kvcalc.errors import BadInput, UnsupportedByEngine
from kvcalc.footprint import Footprint, Placement, Pool, Rank
from tests.property.specs import small_spec

KINDS: dict[str, dict[str, Any]] = {
    "full": {"kind": "full"},
    "sliding": {"kind": "sliding", "window": 40},
    "chunked": {"kind": "chunked", "chunk": 64},
    "mla": {"kind": "mla", "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 64, "v_head_dim": 64},
    "cross": {"kind": "cross", "encoder_context": 50},
    "mamba1": {"kind": "state", "variant": "mamba1", "channels": 64, "state_size": 4, "conv_kernel": 4},
    "compressed": {"kind": "compressed", "head_dim": 64, "window": 24, "ratio": 4, "index_head_dim": 32},
}
# A model of every kind alone, and two hybrids: a model type that has such layers, and which layer is what.
MODELS: dict[str, tuple[str, list[str]]] = {
    "full": ("llama", ["full"]),
    "sliding": ("mistral", ["sliding"]),
    "chunked": ("llama4_text", ["chunked", "chunked", "chunked", "full"]),
    "mla": ("deepseek_v3", ["mla"]),
    "cross": ("whisper", ["full+cross"]),
    "mamba1": ("mamba", ["mamba1"]),
    "compressed": ("deepseek_v4", ["compressed"]),
    "full and sliding": ("gemma2", ["sliding", "full"]),
    "full and mamba1": ("jamba", ["mamba1", "full"]),
}
DEPLOYMENTS = tuple(
    {"kv_dtype": kv_dtype, "tp": tp, "pp": pp, "dp": dp}
    for kv_dtype, tp, pp, dp in product((None, "fp8", "int8", "q8_0", "nvfp4"), (1, 2, 4), (1, 2), (1, 3))
)


def setup(engine: str, model: str, **arguments: Any) -> Setup:
    """Return a small model on an engine; UnsupportedByEngine where the two do not go together."""
    architecture, layers = MODELS[model]
    pattern = [layer.split("+") if "+" in layer else layer for layer in layers]
    names = dict.fromkeys(name for layer in layers for name in layer.split("+"))
    kinds = {name: KINDS[name] for name in names}
    return api.prepare(small_spec(architecture=architecture, kinds=kinds, pattern=pattern), engine=engine, **arguments)


@lru_cache
def placements(engine: str, model: str) -> tuple[Placement, ...]:
    """Return the model on every deployment that the engine takes."""
    found = []
    for deployment in DEPLOYMENTS:
        with suppress(UnsupportedByEngine, BadInput):
            found.append(setup(engine, model, **deployment).placement)
    return tuple(found)


def peak(footprint: Footprint, n: int, b: int) -> int:
    """Return the most bytes on the way to context n, context by context."""
    return max(int(footprint.bytes(each, b)) for each in range(1, n + 1))


def fits(placement: Placement, memory: int, n: int, batch: int) -> bool:
    """Return whether every rank holds a batch, counted without the code under test: bytes, or whole units."""
    local = -(-batch // placement.dp)
    for rank in placement.ranks:
        if not rank.pools and peak(rank.admitted, n, local) > memory:
            return False
        for pool in rank.pools:
            own = tuple(term for term in rank.admitted.terms if len(rank.pools) == 1 or term.label == pool.label)
            if peak(Footprint(own), n, local) > units(pool, memory) * pool.unit_bytes:
                return False
    return True


def units(pool: Pool, memory: int) -> int:
    """Return the units of a pool: those of its share, or those of the engine's own rule."""
    if type(pool) is not Pool:
        return pool.usable_units(memory)
    return max(int(memory * pool.share) // pool.unit_bytes - pool.reserved_units, 0)


@settings(max_examples=20)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", MODELS)
@given(data=st.data())
def test_the_largest_batch_and_context_are_the_largest(engine: str, model: str, data: st.DataObject) -> None:
    """For every engine, kind, format and degree of parallelism, both answers fit and their successors do not."""
    if not placements(engine, model):
        pytest.skip(f"{engine} does not hold {model} layers")
    placement = data.draw(st.sampled_from(placements(engine, model)))
    n, batch = data.draw(st.integers(1, 200), "context"), data.draw(st.integers(1, 20), "batch")
    scale = max(peak(rank.admitted, n, batch) for rank in placement.ranks)
    memory = data.draw(st.integers(max(scale // 4, 1), 4 * scale + 1), "memory")
    budgets = [memory] * len(placement.ranks)

    most = max_batch(placement, budgets, n)
    if most is not None:
        assert most == 0 or fits(placement, memory, n, most)
        assert not fits(placement, memory, n, most + 1)
    longest = max_context(placement, budgets, batch)
    if longest is None:
        assert fits(placement, memory, 300, batch)
    elif longest <= 300:  # a longer way is too slow to walk
        assert longest == 0 or fits(placement, memory, longest, batch)
        assert not fits(placement, memory, longest + 1, batch)

    found = capacity(placement, budgets, n, batch)
    assert found.fits == fits(placement, memory, n, batch)
    if found.needed_memory:
        assert fits(placement, found.needed_memory, n, batch)
        assert found.needed_memory == 1 or not fits(placement, found.needed_memory - 1, n, batch)


@given(st.integers(1, 3), st.integers(1, 10**6), st.integers(1, 300), st.integers(1, 50))
def test_more_memory_never_holds_less(extra: int, memory: int, n: int, batch: int) -> None:
    """Both answers grow with the budget."""
    placement = setup("vllm", "full and sliding").placement
    for larger in (memory + extra, memory * (1 + extra)):
        assert (max_batch(placement, [larger], n) or 0) >= (max_batch(placement, [memory], n) or 0)
        assert (max_context(placement, [larger], batch) or 0) >= (max_context(placement, [memory], batch) or 0)


def test_an_empty_placement_holds_everything() -> None:
    """What takes no memory has no largest batch or context."""
    placement = Placement((Rank(0, 0, Footprint(), Footprint()),))
    assert (max_batch(placement, [1], 10), max_context(placement, [1], 10)) == (None, None)
