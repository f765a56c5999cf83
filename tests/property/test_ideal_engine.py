"""The ideal engine against a literal cache: every kind, alone and mixed, with every remedy."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from kvcalc import api
from kvcalc.errors import UnsupportedByEngine
from tests.property.literal_engine import ROWS, Remedies, layer_entries, places
from tests.property.specs import TOP, small_spec

CONTEXTS = 50

few = st.integers(1, 24)
batches = st.integers(1, 3)

head_kinds = st.one_of(
    st.fixed_dictionaries(
        {"kind": st.just("full")},
        optional={"kv_heads": st.sampled_from((1, 2, 8)), "v_head_dim": st.sampled_from((0, 32))},
    ),
    st.fixed_dictionaries(
        {"kind": st.just("sliding"), "window": few}, optional={"head_dim": st.sampled_from((32, 96))}
    ),
    st.fixed_dictionaries({"kind": st.just("chunked"), "chunk": few}),
    st.fixed_dictionaries({"kind": st.just("cross"), "encoder_context": st.integers(0, 30)}),
)
headless_kinds = st.one_of(
    st.fixed_dictionaries({"kind": st.just("mla"), "kv_lora_rank": st.just(64), "qk_rope_head_dim": st.just(32)}),
    st.fixed_dictionaries({"kind": st.just("indexer"), "index_head_dim": st.sampled_from((32, 64))}),
)
states = st.sampled_from(
    (
        {"variant": "mamba1", "channels": 24, "state_size": 16, "conv_kernel": 4},
        {"variant": "mamba2", "state_heads": 8, "state_head_dim": 4, "groups": 2, "state_size": 3, "conv_kernel": 4},
        {"variant": "gated_deltanet", "key_heads": 2, "value_heads": 4, "key_head_dim": 5, "value_head_dim": 7,
         "conv_kernel": 3},
        {"variant": "kda", "state_heads": 4, "state_head_dim": 6, "conv_kernel": 4},
        {"variant": "rg_lru", "channels": 20, "conv_kernel": 4},
        {"variant": "rwkv4", "channels": 12},
        {"variant": "rwkv", "channels": 12, "state_heads": 2, "state_head_dim": 6},
        {"variant": "short_conv", "channels": 12, "conv_kernel": 3},
        {"variant": "lightning", "state_heads": 2, "state_head_dim": 6},
    )
).map(lambda dimensions: {"kind": "state", **dimensions})  # fmt: skip
compressed_kinds = st.fixed_dictionaries(
    {"kind": st.just("compressed"), "head_dim": st.just(64), "window": few, "ratio": few},
    optional={"index_head_dim": st.just(32)},
)
kinds = st.one_of(head_kinds, headless_kinds, states, compressed_kinds)


@st.composite
def remedies(draw: st.DrawFn) -> Remedies:
    """Return any combination of paging, reservation, eviction and a shared prefix."""
    evicts = draw(st.booleans())
    by_score = evicts and draw(st.integers(0, 4)) == 0
    return Remedies(
        block=draw(st.sampled_from((1, 1, 2, 3, 4, 8))),
        reserve=draw(st.none() | st.integers(1, 60)),
        window=draw(few) if evicts else None,
        sinks=draw(st.integers(0, 6)) if evicts and not by_score else 0,
        by_score=by_score,
        shared_prefix=draw(st.just(0) | st.integers(0, 30)),
    )


@st.composite
def models(draw: st.DrawFn) -> dict[str, Any]:
    """Return the pattern and kinds of a small model: layers of one or two kinds, empty ones, and shared ones."""
    chosen = draw(st.lists(kinds, min_size=1, max_size=3))
    named: dict[str, dict[str, Any]] = {f"k{index}": kind for index, kind in enumerate(chosen)}
    pattern: list[Any] = draw(st.permutations(list(named)))
    if len(pattern) > 1 and draw(st.booleans()):
        pattern[:2] = [pattern[:2]]
    if draw(st.booleans()):
        pattern.append("none")
    if chosen[0]["kind"] != "shared" and draw(st.booleans()):
        named["reader"] = {"kind": "shared", "of": "k0"}
        pattern.append("reader")
    return {"layers": len(pattern) + draw(st.integers(0, 3)), "kinds": named, "pattern": pattern}


def refused(model: dict[str, Any], asked: Remedies) -> bool:
    """Return whether the documentation of the options excludes this combination."""
    for kind in model["kinds"].values():
        name, window = kind["kind"], asked.window
        if name == "compressed" and (asked.block, asked.reserve, window, asked.shared_prefix) != (1, None, None, 0):
            return True
        if not asked.prefix:
            continue
        if name == "chunked":
            evicted = window is not None and window < kind["chunk"]
            if evicted or (asked.reserve is None and kind["chunk"] % asked.block):
                return True
        grows = name in ("full", "mla", "indexer") or (
            name == "sliding" and window is not None and kind["window"] > window
        )
        if grows and asked.by_score:
            return True
    return False


def literal_bytes(
    model: dict[str, Any], asked: Remedies, contexts: int, batch: int, kv: str = "fp16"
) -> list[tuple[int, int]]:
    """Return (held, set aside) bytes of all layers of a model at context 1, 2, ... `contexts`."""
    totals = [(0, 0)] * contexts
    for index in range(model["layers"]):
        entry = model["pattern"][index % len(model["pattern"])]
        for name in [entry] if isinstance(entry, str) else entry:
            for rule, size, unit in layer_entries(model["kinds"][name], TOP, kv) if name != "none" else []:
                layer = places(rule, size, asked, contexts, batch)
                totals = [
                    (a + held * unit, b + aside * unit) for (a, b), (held, aside) in zip(totals, layer, strict=True)
                ]
    return totals


def check_against_literal_cache(model: dict[str, Any], asked: Remedies, batch: int, kv: str) -> None:
    """Assert that the engine refuses what its options exclude, and counts the literal cache's bytes otherwise."""
    if refused(model, asked):
        event("refused")
        with pytest.raises(UnsupportedByEngine):
            api.prepare(small_spec(**model), kv_dtype=kv, options=asked.options)
        return
    placement = api.prepare(small_spec(**model), kv_dtype=kv, options=asked.options).placement
    contexts = min(CONTEXTS, asked.reserve or CONTEXTS)

    found = [(placement.held_bytes(n, batch), placement.total_bytes(n, batch)) for n in range(1, contexts + 1)]
    assert found == literal_bytes(model, asked, contexts, batch, kv)


@given(models(), remedies(), batches, st.sampled_from(sorted(ROWS)))
def test_the_engine_counts_what_a_literal_cache_holds(
    model: dict[str, Any], asked: Remedies, batch: int, kv: str
) -> None:
    """Held and set-aside bytes are those of a cache that appends, evicts, shares and frees token by token."""
    check_against_literal_cache(model, asked, batch, kv)


@given(
    st.one_of(
        st.just({"kind": "full"}),
        st.fixed_dictionaries({"kind": st.just("sliding"), "window": few}),
        st.fixed_dictionaries({"kind": st.just("chunked"), "chunk": few}),
    ),
    remedies(),
    batches,
)
@example({"kind": "chunked", "chunk": 10}, Remedies(reserve=13, shared_prefix=4), 2)
@example({"kind": "chunked", "chunk": 8}, Remedies(block=4, shared_prefix=20), 3)
@example({"kind": "chunked", "chunk": 20}, Remedies(block=3, window=7, sinks=2), 1)
@example({"kind": "sliding", "window": 9}, Remedies(block=4, shared_prefix=20), 2)
@example({"kind": "sliding", "window": 9}, Remedies(block=4, window=6, sinks=5, shared_prefix=9), 2)
@example({"kind": "full"}, Remedies(block=4, window=5, sinks=6, shared_prefix=30), 3)
@settings(max_examples=4 * settings().max_examples)
def test_layers_of_tokens_count_what_a_literal_cache_holds(kind: dict[str, Any], asked: Remedies, batch: int) -> None:
    """The three rules that keep tokens, one at a time: where paging, eviction and sharing meet."""
    check_against_literal_cache(only(kind), asked, batch, "fp16")


def only(kind: dict[str, Any]) -> dict[str, Any]:
    """Return a model whose layers are all of one kind."""
    return {"layers": 2, "kinds": {"only": kind}, "pattern": ["only"]}


@given(head_kinds, remedies(), st.integers(1, 40))
def test_ranks_that_divide_the_kv_heads_share_the_bytes(kind: dict[str, Any], asked: Remedies, context: int) -> None:
    """With tp a divisor of kv_heads, the ranks together hold what one device would."""
    model = only(kind)
    if refused(model, asked):
        return
    spec, kv_heads = small_spec(**model), kind.get("kv_heads", TOP["kv_heads"])
    whole = api.prepare(spec, options=asked.options).placement.total_bytes(context, 2)

    for tp in (1, 2, 4, 8):
        ranks = api.prepare(spec, tp=tp, options=asked.options).placement.per_rank_bytes(context, 2)
        copies = max(tp // kv_heads, 1)
        assert len(ranks) == tp
        assert len(set(ranks)) == 1
        assert sum(ranks) == whole * copies


@pytest.mark.parametrize(
    "kind",
    [
        {"kind": "mla", "kv_lora_rank": 64, "qk_rope_head_dim": 32},
        {"kind": "indexer", "index_head_dim": 32},
        {"kind": "compressed", "head_dim": 64, "window": 5, "ratio": 4, "index_head_dim": 32},
    ],
)
def test_what_all_heads_share_is_held_by_every_rank(kind: dict[str, Any]) -> None:
    """A latent, an indexer key and a compressed entry have no heads to split: tensor parallelism copies them."""
    spec = small_spec(**only(kind))
    one = api.prepare(spec).placement.per_rank_bytes(100, 3)

    assert api.prepare(spec, tp=4).placement.per_rank_bytes(100, 3) == one * 4


@given(states, st.sampled_from((1, 2)))
def test_states_are_split_by_their_heads_or_channels(kind: dict[str, Any], tp: int) -> None:
    """Every variant's parts have an even number of heads, channels and groups here, so that two ranks halve them."""
    spec = small_spec(**only(kind))
    whole = api.prepare(spec).placement.total_bytes(7, 2)

    assert api.prepare(spec, tp=tp).placement.per_rank_bytes(7, 2) == (whole // tp,) * tp


@given(models(), st.integers(1, 4), st.integers(1, 40), st.integers(1, 5))
def test_stages_hold_their_own_layers(model: dict[str, Any], pp: int, context: int, batch: int) -> None:
    """Stages split the layers as evenly as can be, the first ones taking the rest, and together hold every byte."""
    layers, pattern = model["layers"], model["pattern"]
    if pp > layers:
        with pytest.raises(UnsupportedByEngine, match=f"pp {pp} needs at least {pp} layers"):
            api.prepare(small_spec(**model), pp=pp)
        return
    counts = [layers // pp + (stage < layers % pp) for stage in range(pp)]
    repeated = [pattern[index % len(pattern)] for index in range(layers)]
    expected = []
    for stage, count in enumerate(counts):
        first = sum(counts[:stage])
        part = {"layers": count, "pattern": repeated[first : first + count], "kinds": model["kinds"]}
        expected.append(literal_bytes(part, Remedies(), context, batch)[-1][1])

    assert list(api.prepare(small_spec(**model), pp=pp).placement.per_rank_bytes(context, batch)) == expected


def test_ranks_are_listed_by_replica_then_stage_then_slice() -> None:
    """dp, pp, tp: two replicas of two uneven stages of two slices."""
    kinds_ = {"full": {"kind": "full"}, "one": {"kind": "full", "kv_heads": 1}}
    spec = small_spec(layers=2, kinds=kinds_, pattern=["full", "one"])
    per_token = {"full": 4 * 64 * 2 * 2, "one": 1 * 64 * 2 * 2}

    ranks = api.prepare(spec, tp=2, pp=2, dp=2).placement.per_rank_bytes(10, 6)

    full, one = 10 * 3 * per_token["full"] // 2, 10 * 3 * per_token["one"]  # the one kv head is copied to both slices
    assert ranks == (full, full, one, one) * 2


@given(st.integers(1, 9), st.integers(1, 20))
def test_every_replica_provides_for_the_fullest(dp: int, batch: int) -> None:
    """Data parallelism shares the batch out; each replica holds ceil(batch / dp) sequences."""
    spec = small_spec()
    one = api.prepare(spec).placement

    ranks = api.prepare(spec, dp=dp).placement.per_rank_bytes(12, batch)

    assert ranks == (one.total_bytes(12, -(-batch // dp)),) * dp
