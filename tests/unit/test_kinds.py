"""What one layer of each kind keeps, against figures that others publish."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

import kvcalc.spec.kinds as package
from kvcalc.footprint import Retention
from kvcalc.spec.kinds import KINDS, STATE_VARIANTS, Kind
from kvcalc.spec.kinds.chunked import Chunked
from kvcalc.spec.kinds.compressed import Compressed
from kvcalc.spec.kinds.cross import Cross
from kvcalc.spec.kinds.full import Full
from kvcalc.spec.kinds.indexer import Indexer
from kvcalc.spec.kinds.mla import Mla
from kvcalc.spec.kinds.shared import Shared
from kvcalc.spec.kinds.sliding import Sliding
from kvcalc.spec.kinds.union import AnyKind


def state(**dimensions: Any) -> Kind:
    """Return a state kind."""
    kind: Kind = TypeAdapter(AnyKind).validate_python({"kind": "state", **dimensions})
    return kind


def elements(kind: Kind) -> list[tuple[str, int]]:
    """Return the role and the elements of every entry."""
    return [(entry.role, entry.elements) for entry in kind.entries()]


# One of every kind, with real dimensions.
EXAMPLES: dict[str, Kind] = {
    "full": Full(heads=32, kv_heads=8, head_dim=128),
    "sliding": Sliding(heads=32, kv_heads=16, head_dim=128, window=1024),
    "chunked": Chunked(heads=40, kv_heads=8, head_dim=128, chunk=8192),
    "mla": Mla(heads=128, kv_lora_rank=512, qk_rope_head_dim=64),
    "indexer": Indexer(index_head_dim=128),
    "cross": Cross(heads=20, kv_heads=20, head_dim=64, encoder_context=1500),
    "shared": Shared(of="full"),
    "compressed": Compressed(heads=64, head_dim=512, window=128, ratio=4, index_head_dim=128),
    "mamba1": state(variant="mamba1", channels=5120, state_size=16, conv_kernel=4),
    "mamba2": state(variant="mamba2", state_heads=128, state_head_dim=64, groups=8, state_size=128, conv_kernel=4),
    "gated_deltanet": state(variant="gated_deltanet", key_heads=16, value_heads=32, key_head_dim=128,
                            value_head_dim=128, conv_kernel=4),
    "kda": state(variant="kda", state_heads=32, state_head_dim=128, conv_kernel=4),
    "rg_lru": state(variant="rg_lru", channels=2560, conv_kernel=4),
    "rwkv4": state(variant="rwkv4", channels=4096),
    "rwkv": state(variant="rwkv", channels=2560, state_heads=40, state_head_dim=64),
    "short_conv": state(variant="short_conv", channels=2048, conv_kernel=3),
    "lightning": state(variant="lightning", state_heads=64, state_head_dim=96),
}  # fmt: skip


def test_every_kind_and_variant_has_an_example_here() -> None:
    """A new kind joins the tests of this file by an entry above."""
    assert set(EXAMPLES) == (set(KINDS) | set(STATE_VARIANTS)) - {"state"}


def test_every_file_is_a_kind_of_its_name() -> None:
    """The registry, the union and the folder agree."""
    files = {path.stem for path in Path(str(package.__file__)).parent.glob("[a-z]*.py")} - {"union"}

    assert files == set(KINDS)
    assert {kind.model_fields["kind"].default for kind in KINDS.values()} == set(KINDS)
    assert {kind.model_fields["variant"].default for kind in STATE_VARIANTS.values()} == set(STATE_VARIANTS)
    for kind in EXAMPLES.values():
        assert TypeAdapter(AnyKind).validate_python(kind.model_dump()) == kind


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_every_kind_explains_itself(name: str) -> None:
    """What it keeps, where the rule comes from, its dimensions in words, and a text for every field."""
    kind = EXAMPLES[name]

    assert kind.keeps
    assert kind.rule_source
    assert kind.describe
    assert type(kind).__doc__
    assert set(type(kind).field_docs()) >= set(type(kind).model_fields) - {"kind", "variant"}


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_every_entry_can_be_placed(name: str) -> None:
    """Axes are named and positive, the row is within them, and what is sharded is one of them."""
    for entry in EXAMPLES[name].entries():
        names = [axis for axis, _ in entry.axes]
        assert all(size > 0 for _, size in entry.axes)
        assert len(set(names)) == len(names)
        assert 1 <= entry.row_axes <= len(names)
        assert entry.shard is None or entry.shard in names
        assert entry.elements == math.prod(size for _, size in entry.axes)
        assert entry.elements == entry.row_elements * math.prod(size for _, size in entry.rows)


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_unknown_fields_and_wrong_types_are_refused(name: str) -> None:
    """Text is no number, and nothing is ignored."""
    kind = EXAMPLES[name]
    fields = kind.model_dump()

    with pytest.raises(ValidationError, match="extra_forbidden"):
        type(kind).model_validate({**fields, "colour": 1})
    for field, value in fields.items():
        if isinstance(value, int):
            with pytest.raises(ValidationError):
                type(kind).model_validate({**fields, field: str(value)})
            with pytest.raises(ValidationError):
                type(kind).model_validate({**fields, field: -1})


def test_heads_have_separate_keys_and_values() -> None:
    """Of the same size, of another, or none where the values are the keys."""
    assert elements(Full(heads=32, kv_heads=8, head_dim=128)) == [("k", 1024), ("v", 1024)]
    assert elements(Full(heads=64, kv_heads=8, head_dim=192, v_head_dim=128)) == [("k", 1536), ("v", 1024)]
    assert elements(Full(heads=64, kv_heads=1, head_dim=512, v_head_dim=0)) == [("k", 512)]


@pytest.mark.parametrize(("kv_heads", "name"), [(8, "MHA"), (4, "GQA"), (2, "GQA"), (1, "MQA")])
def test_grouping_follows_from_the_heads(kv_heads: int, name: str) -> None:
    """MHA, GQA and MQA are printed, not declared."""
    assert Full(heads=8, kv_heads=kv_heads, head_dim=64).grouping == name


def test_retention_is_the_kind_s_rule() -> None:
    """All tokens, the last ones, the current chunk's, the encoder's, or a state."""
    found = {name: {entry.retention for entry in kind.entries()} for name, kind in EXAMPLES.items()}

    assert found["full"] == found["mla"] == found["indexer"] == {Retention.all()}
    assert found["sliding"] == {Retention.window(1024)}
    assert found["chunked"] == {Retention.chunk(8192)}
    assert found["cross"] == {Retention.encoder(1500)}
    assert found["shared"] == set()
    assert all(found[name] == {Retention.state()} for name in STATE_VARIANTS)


def test_mla_keeps_a_latent_and_a_rotary_key() -> None:
    """DeepSeek-V3, 61 layers in fp16: 576 * 2 * 61 = 70,272 bytes per token (llama.cpp's K-only cache of it)."""
    per_layer = sum(size for _, size in elements(EXAMPLES["mla"]))

    assert per_layer == 576
    assert per_layer * 2 * 61 == 70_272


# Elements of the convolution part and of the recurrent part of one layer and sequence, as llama.cpp's recurrent memory
# holds them (n_embd_r, n_embd_s), for the example dimensions above.
LLAMA_CPP = {
    "mamba1": (3 * 5120, 16 * 5120),
    "mamba2": (3 * (8192 + 2 * 8 * 128), 128 * 8192),
    "gated_deltanet": (24_576, 524_288),
    "kda": (3 * 3 * 32 * 128, 128 * 128 * 32),
    "rwkv": (2 * 2560, 2560 * 64),
    "short_conv": (2048 * 2, 0),
    "lightning": (0, 96 * 96 * 64),
}


@pytest.mark.parametrize("name", sorted(LLAMA_CPP))
def test_states_have_the_elements_that_llama_cpp_allocates(name: str) -> None:
    """Convolution inputs and recurrent state, counted apart."""
    by_role = {"conv": 0, "ssm": 0}
    for role, size in elements(EXAMPLES[name]):
        by_role[role] += size

    assert (by_role["conv"], by_role["ssm"]) == LLAMA_CPP[name]


def test_qwen3_next_has_the_state_that_llama_cpp_logs() -> None:
    """36 gated DeltaNet layers, all in fp32: 79,036,416 bytes for one sequence."""
    assert 36 * 4 * sum(size for _, size in elements(EXAMPLES["gated_deltanet"])) == 79_036_416


def test_recurrent_parts_are_fp32_unless_the_spec_says_otherwise() -> None:
    """Lightning attention is the exception: the model's dtype."""
    formats = {
        name: [entry.element for entry in EXAMPLES[name].entries() if entry.role == "ssm"] for name in STATE_VARIANTS
    }
    own = state(variant="mamba1", channels=8, state_size=2, conv_kernel=2, state_dtype="bf16", conv_dtype="fp32")

    assert formats.pop("lightning") == ["model"]
    assert formats.pop("short_conv") == []
    assert set(map(tuple, formats.values())) == {("fp32",)}
    assert [entry.element for entry in own.entries()] == ["fp32", "bf16"]


def test_rwkv_4_keeps_two_tokens_and_three_accumulators() -> None:
    """Five tensors of the hidden size, two in the model's dtype and three in fp32 (transformers' RWKV)."""
    shifted, recurrent = EXAMPLES["rwkv4"].entries()

    assert (shifted.elements, shifted.element) == (2 * 4096, "model")
    assert (recurrent.elements, recurrent.element) == (3 * 4096, "fp32")


def test_compressed_layers_keep_window_entries_and_what_waits() -> None:
    """DeepSeek-V4 (transformers 5.24.0): w = 2(h+i) elements wait, c = h+i are compressed and overlap."""
    csa, h, i, r = EXAMPLES["compressed"], 512, 128, 4
    hca = Compressed(heads=64, head_dim=512, window=128, ratio=128)
    totals: dict[tuple[str, str], int] = {}
    for entry in csa.entries():
        key = (entry.retention.rule, entry.element)
        totals[key] = totals.get(key, 0) + entry.elements

    assert totals == {
        ("window", "k"): h,
        ("compressed", "k"): h + i,
        ("remainder", "model"): 2 * 2 * (h + i),  # KV and gate
        ("onset", "model"): r * (h + i),
        ("onset", "fp32"): r * (h + i),
    }
    assert [(entry.retention.rule, entry.elements) for entry in hca.entries()] == [
        ("window", h), ("compressed", h), ("remainder", 2 * h),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("full", "GQA, 8 kv heads of 128"),
        ("sliding", "GQA, 16 kv heads of 128, window 1,024"),
        ("chunked", "GQA, 8 kv heads of 128, chunk 8,192"),
        ("mla", "MLA, latent 512 + rope 64"),
        ("indexer", "indexer keys of 128"),
        ("cross", "MHA, 20 kv heads of 64, 1,500 encoder positions"),
        ("shared", "reads the KV of 'full'"),
        ("compressed", "CSA, 1 per 4 tokens of 512, window 128"),
        ("gated_deltanet", "gated_deltanet, state 32 x 128 x 128"),
        ("short_conv", "short_conv, convolution only"),
    ],
)
def test_dimensions_read_as_a_few_words(name: str, text: str) -> None:
    """What tables print beside the bytes."""
    assert EXAMPLES[name].describe == text


def test_only_attention_has_query_heads() -> None:
    """Which is what tensor parallelism must divide."""
    heads = {name: kind.attention_heads for name, kind in EXAMPLES.items()}

    assert {name for name, count in heads.items() if count is not None} == {
        "full", "sliding", "chunked", "mla", "cross", "compressed",
    }  # fmt: skip
    assert heads["mla"] == 128
