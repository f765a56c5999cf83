"""From YAML to a model: what is inherited, how patterns repeat, and one line for each mistake."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvcalc.errors import BadInput, SpecError
from kvcalc.spec.kinds import Full, Sliding
from kvcalc.spec.load import load_file
from kvcalc.spec.model import ModelSpec
from kvcalc.spec.resolve import resolve, with_encoder_context, with_kv_heads
from kvcalc.yaml_tree import parse

PLAIN = """\
name: small
architecture: small
source: {url: "https://example.org", checked: 2026-11-29}
layers: 4
hidden_size: 512
heads: 8
kv_heads: 4
head_dim: 64
dtype: bfloat16
max_context: 4096
parameters: 1000
"""
HYBRID = f"""\
{PLAIN}kinds:
  local: {{kind: sliding, window: 16}}
  global: {{kind: full}}
pattern: [local, global]
"""


def spec_of(text: str) -> ModelSpec:
    """Return the model that a text describes."""
    return resolve(parse(text, "s.yaml"), "s.yaml")


def faults(text: str) -> list[str]:
    """Return the lines that a text is refused with, without the file's name."""
    with pytest.raises(SpecError) as caught:
        spec_of(text)
    lines = str(caught.value).splitlines()
    assert all(line.startswith("s.yaml:") for line in lines)
    return [line.removeprefix("s.yaml:") for line in lines]


def changed(old: str, new: str, text: str = HYBRID) -> str:
    """Return a text with one part replaced."""
    assert old in text
    return text.replace(old, new, 1)


def without(key: str, text: str = PLAIN) -> str:
    """Return a text without the line of a key."""
    return re.sub(rf"(?m)^{key}:.*\n", "", text)


# --- what a good file means -------------------------------------------------------------------------------------


def test_a_model_without_kinds_has_full_attention_everywhere() -> None:
    """The simplest file: every layer alike."""
    spec = spec_of(PLAIN)

    assert [layer.names for layer in spec.layers] == [("full",)] * 4
    assert spec.layers[0].kinds == (Full(heads=8, kv_heads=4, head_dim=64),)


def test_omitted_dimensions_are_worked_out() -> None:
    """Without kv_heads every head has its own; without head_dim the hidden size is split."""
    kind = spec_of(without("kv_heads", without("head_dim"))).layers[0].kinds[0]

    assert kind == Full(heads=8, kv_heads=8, head_dim=64)
    assert isinstance(kind, Full)
    assert kind.grouping == "MHA"


def test_kinds_inherit_and_override_the_dimensions_above() -> None:
    """A kind with heads of its own works its kv_heads and head_dim out from those."""
    own = spec_of(changed("{kind: full}", "{kind: full, heads: 4, kv_heads: 2, head_dim: 32}")).layers[1].kinds[0]
    bare = spec_of(without("kv_heads", without("head_dim", changed("{kind: full}", "{kind: full, heads: 4}"))))

    assert own == Full(heads=4, kv_heads=2, head_dim=32)
    assert bare.layers[1].kinds[0] == Full(heads=4, kv_heads=4, head_dim=128)
    assert bare.layers[0].kinds[0] == Sliding(heads=8, kv_heads=8, head_dim=64, window=16)


def test_a_pattern_repeats_and_is_cut_at_the_last_layer() -> None:
    """Five layers of a pattern of three."""
    spec = spec_of(changed("[local, global]", "[local, local, global]").replace("layers: 4", "layers: 5"))

    assert [layer.names[0] for layer in spec.layers] == ["local", "local", "global", "local", "local"]


def test_a_layer_may_have_two_kinds_or_none() -> None:
    """`[a, b]` is one layer of both; `none` keeps nothing."""
    spec = spec_of(changed("[local, global]", "[[local, global], none]"))

    assert [layer.names for layer in spec.layers] == [("local", "global"), (), ("local", "global"), ()]
    assert spec.empty_layers() == 2
    assert [(group.name, group.indices) for group in spec.groups()] == [("local", (0, 2)), ("global", (0, 2))]


def test_a_model_of_mlp_layers_alone_keeps_nothing() -> None:
    """A pattern of none needs no kinds."""
    spec = spec_of(f"{PLAIN}pattern: [none]\n")

    assert spec.groups() == ()
    assert spec.empty_layers() == 4


def test_one_kind_needs_no_pattern() -> None:
    """Every layer is of it."""
    spec = spec_of(f"{PLAIN}kinds: {{local: {{kind: sliding, window: 8}}}}\n")

    assert [layer.names for layer in spec.layers] == [("local",)] * 4


def test_line_ends_and_a_byte_order_mark_do_not_matter(tmp_path: Path) -> None:
    """A file saved on Windows is the same model."""
    path = tmp_path / "small.yaml"
    path.write_bytes(("\ufeff" + HYBRID.replace("\n", "\r\n")).encode())

    assert load_file(path).layers == spec_of(HYBRID).layers


# --- what is wrong with a bad one -------------------------------------------------------------------------------

KNOWN = (
    "known: name, aliases, architecture, source, layers, hidden_size, heads, kv_heads, head_dim, v_head_dim, "
    "encoder_context, dtype, max_context, parameters, vocab_size, intermediate_size, experts_per_token, "
    "moe_intermediate_size, tie_word_embeddings, assumed, pattern, kinds"
)
KINDS = "full, sliding, chunked, mla, indexer, cross, shared, compressed, state"
STATES = "mamba1, mamba2, gated_deltanet, kda, rg_lru, rwkv4, rwkv, short_conv, lightning"


# A text, and the one line that it is refused with.
MISTAKES = [
    # unknown keys, and what they are called here
    (PLAIN + "color: red\n", f"12:1: color: unknown key; {KNOWN}"),
    (PLAIN + "alias: [a]\n", "12:1: alias: unknown key; did you mean aliases?"),
    (changed("kv_heads", "kv_groups"),
     "7:1: kv_groups: unknown key; use kv_heads: the number of key and value heads (papers call them KV groups)"),
    (changed("{kind: full}", "{kind: full, kv_groups: 2}"),
     "14:24: kinds.global.kv_groups: unknown key; use kv_heads: the number of key and value heads (papers call them "
     "KV groups)"),
    (PLAIN + "sliding_window: 4096\n",
     "12:1: sliding_window: unknown key; use window, in a kind: kinds: {local: {kind: sliding, window: N}} and "
     "pattern: [local]"),
    (PLAIN + "window: 4096\n",
     "12:1: window: unknown key; it belongs to a kind: kinds: {sliding: {kind: sliding, window: ...}}"),
    (PLAIN + "kv_lora_rank: 512\n",
     "12:1: kv_lora_rank: unknown key; it belongs to a kind: kinds: {mla: {kind: mla, kv_lora_rank: ...}}"),
    (PLAIN + "state_size: 16\n",
     "12:1: state_size: unknown key; it belongs to a kind: "
     "kinds: {mamba1: {kind: state, variant: mamba1, state_size: ...}}"),
    (PLAIN + "n_layer: 4\n", "12:1: n_layer: unknown key; use layers"),
    (changed("{kind: full}", "{kind: full, window: 4}"),
     "14:24: kinds.global.window: unknown key; this kind has heads, kv_heads, head_dim, v_head_dim, kind"),
    (changed("window: 16", "window: 1,000"), "13:36: kinds.local.000: unknown key; write numbers without separators"),
    (changed("checked:", "date: 1, checked:"), "3:38: source.date: unknown key; known: url, checked, note"),
    # missing fields
    (without("name"), "1:1: name: is missing: the model's name in kvcalc, lower case by convention"),
    (without("layers"), "1:1: layers: is missing: layers of the (text) decoder, MLP-only layers included"),
    (without("max_context"), "1:1: max_context: is missing (write null if unknown): tokens that the model was "
                             "trained for (max_position_embeddings); null if unknown or unbounded"),
    (without("parameters"), "1:1: parameters: is missing (write null if unknown): number of weights; null if unknown"),
    (without("heads"), "1:1: heads: is missing; attention layers need it"),
    (without("heads", without("kv_heads", without("head_dim"))), "1:1: heads: is missing; attention layers need it"),
    (without("head_dim").replace("512", "510"),
     "1:1: head_dim: is missing, and hidden_size is not divisible by heads; write head_dim"),
    (changed('url: "https://example.org", ', ""), "3:1: source.url: is missing: address of the published config, "
                                                  "or of the public file that transcribes it"),
    (changed(", window: 16", ""),
     "13:3: kinds.local.window: is missing: tokens that a query sees, the current one included"),
    (PLAIN + "kinds: {x: {kind: cross}}\n", "12:9: kinds.x.encoder_context: is missing: encoder positions of one "
                                            "sequence; 0 where the input has none (text without an image)"),
    # wrong types
    (changed("layers: 4", "layers: four"), "4:9: layers: must be a whole number, not 'four'"),
    (changed("layers: 4", 'layers: "4"'), "4:9: layers: must be a whole number, not '4'"),
    (changed("layers: 4", "layers: true"), "4:9: layers: must be a whole number, not true"),
    (changed("layers: 4", "layers: null"), "4:9: layers: must be a whole number, not null"),
    (changed("layers: 4", "layers: [4]"), "4:9: layers: must be a whole number, not [4]"),
    (changed("name: small", "name: 3"), "1:7: name: must be text, not 3; quote it if it is meant as text"),
    (changed("name: small", 'name: ""'), "1:7: name: must not be empty"),
    (changed("name: small", "name: a b"), "1:7: name: 'a b' cannot be used here; start with a letter or digit and "
                                          "use only letters, digits and . _ / : + -"),
    (changed("name: small", f"name: {'a' * 201}"), "1:7: name: is longer than 200 characters"),
    (changed("architecture: small", "architecture: a/b"),
     "2:15: architecture: 'a/b' cannot be used here; start with a letter or digit and use only letters, digits and "
     "_ . -"),
    (changed('{url: "https://example.org", checked: 2026-11-29}', "https://example.org"),
     "3:9: source: must be a mapping of keys to values, not 'https://example.org'"),
    (changed("2026-11-29", "2026-13-29"), "3:47: source.checked: must be a date as YYYY-MM-DD, not '2026-13-29'"),
    (changed("2026-11-29", "20261129"), "3:47: source.checked: must be a date as YYYY-MM-DD, not 20261129"),
    (changed("2026-11-29", "1764374400"), "3:47: source.checked: must be a date as YYYY-MM-DD, not 1764374400"),
    (changed("bfloat16", "bfloat17"),
     "9:8: dtype: unknown dtype 'bfloat17'; did you mean bfloat16 or float16 or float?"),
    (changed("bfloat16", "16"), "9:8: dtype: must be text, not 16; quote it if it is meant as text"),
    (PLAIN + "aliases: small\n", "12:10: aliases: must be a list, for example [a, b], not 'small'"),
    (PLAIN + "aliases: [1]\n", "12:11: aliases[0]: must be text, not 1; quote it if it is meant as text"),
    (PLAIN + "assumed: [dtyp]\n", "12:11: assumed[0]: 'dtyp' is not a field of a spec; did you mean dtype?"),
    # numbers out of range
    (changed("layers: 4", "layers: 0"), "4:9: layers: must be at least 1, not 0"),
    (changed("layers: 4", "layers: -4"), "4:9: layers: must be at least 1, not -4"),
    (changed("layers: 4", "layers: 10001"), "4:9: layers: 10001 is out of range; at most 10,000 is possible"),
    (changed("head_dim: 64", "head_dim: 99999999"),
     "8:11: head_dim: 99999999 is out of range; at most 16,777,216 is possible"),
    (changed("window: 16", "window: 0"), "13:34: kinds.local.window: must be at least 1, not 0"),
    (changed("window: 16", "window: 9999999999999"),
     "13:34: kinds.local.window: 9999999999999 is out of range; at most 1,099,511,627,776 is possible"),
    # heads and kv_heads
    (changed("kv_heads: 4", "kv_heads: 3"),
     "7:11: kv_heads: heads 8 is not divisible by kv_heads 3; use one of 1, 2, 4, 8"),
    (changed("{kind: full}", "{kind: full, kv_heads: 5}"),
     "14:34: kinds.global.kv_heads: heads 8 is not divisible by kv_heads 5; use one of 1, 2, 4, 8"),
    (changed("{kind: full}", "{kind: full, heads: 6}"),
     "7:11: kv_heads: heads 6 is not divisible by kv_heads 4; use one of 1, 2, 3, 6"),
    # kinds
    (PLAIN + "kinds: {}\n", "12:1: kinds: is empty; define a kind, or leave it out for full attention"),
    (PLAIN + "kinds: [full]\n", "12:8: kinds: must be a mapping of keys to values, not ['full']"),
    (PLAIN + "kinds: {a: full}\n", "12:12: kinds.a: must be a mapping of keys to values, not 'full'"),
    (PLAIN + "kinds: {a: {window: 3}}\n", f"12:9: kinds.a.kind: is missing; write one of {KINDS}"),
    (PLAIN + "kinds: {a: {kind: slidng}}\n",
     "12:19: kinds.a.kind: 'slidng' is not a kind of layer; did you mean sliding?"),
    (PLAIN + "kinds: {a: {kind: 3}}\n", f"12:19: kinds.a.kind: 3 is not a kind of layer; write one of {KINDS}"),
    (PLAIN + "kinds: {a: {kind: state}}\n", f"12:9: kinds.a.variant: is missing; write one of {STATES}"),
    (PLAIN + "kinds: {a: {kind: state, variant: mamba}}\n",
     "12:35: kinds.a.variant: 'mamba' is not a variant of state; did you mean mamba2 or mamba1?"),
    (PLAIN + "kinds: {a: {kind: state, variant: short_conv, channels: 4, conv_kernel: 1}}\n",
     "12:73: kinds.a.conv_kernel: must be at least 2, not 1"),
    (PLAIN + "kinds: {a: {kind: state, variant: rwkv4, channels: 4, state_dtype: fp64}}\n",
     "12:68: kinds.a.state_dtype: must be 'model', 'fp32', 'fp16' or 'bf16', not 'fp64'"),
    (PLAIN + 'kinds: {"a b": {kind: full}}\n',
     "12:16: kinds.a b: 'a b' cannot be used here; start with a letter and use only letters, digits and _"),
    (changed("local: {", "none: {"), "13:3: kinds.none: 'none' means a layer that keeps nothing; rename this"),
    # patterns
    (changed("[local, global]", "[local, global, local, global, local]"),
     "15:10: pattern: has 5 entries for 4 layers; it must not be longer than 'layers'"),
    (changed("[local, global]", "[local, globl, global]"),
     "15:18: pattern[1]: 'globl' is not defined; did you mean global or local?"),
    (changed("[local, global]", "[local, global, zzz]"),
     "15:26: pattern[2]: 'zzz' is not defined; define it under 'kinds' (which has local, global)"),
    (PLAIN + "pattern: [local]\n",
     "12:11: pattern[0]: 'local' is not defined; define it under 'kinds' (which has full)"),
    (changed("[local, global]", "[local]"),
     "14:3: kinds.global: is defined, but 'pattern' never names it; name it there or remove it"),
    (without("pattern", HYBRID),
     "12:1: kinds: several kinds need a pattern that says which layer has which: pattern: [local, global]"),
    (changed("[local, global]", "[]"), "15:10: pattern: is empty; name the kind of every layer, or leave it out"),
    (changed("[local, global]", "local"), "15:10: pattern: must be a list, for example [a, b], not 'local'"),
    (changed("[local, global]", "[local, 3]"),
     "15:18: pattern[1]: must be the name of a kind, or a list of such names, not 3"),
    (changed("[local, global]", "[local, [[global]]]"),
     "15:18: pattern[1]: must be the name of a kind, or a list of such names, not [['global']]"),
    (changed("[local, global]", "[local, [], global]"),
     "15:18: pattern[1]: is empty; write 'none' for a layer that keeps nothing"),
    (changed("[local, global]", "[local, [global, none]]"),
     "15:18: pattern[1]: names 'none' beside a kind; write one or the other"),
    (changed("[local, global]", "[local, [global, global]]"),
     "15:18: pattern[1]: names a kind twice; a layer has each kind once"),
    # shared layers
    (changed("{kind: full}", "{kind: shared}"), "14:3: kinds.global.of: is missing: name of the kind, defined in the "
     "same spec, whose last layer before this one holds the keys and values"),
    (changed("{kind: full}", "{kind: shared, of: lokal}"),
     "14:30: kinds.global.of: 'lokal' is not defined; did you mean local or global?"),
    (changed("{kind: full}", "{kind: shared, of: global}"),
     "14:30: kinds.global.of: 'global' is this kind itself; name a kind that keeps keys and values"),
    (changed("{kind: full}", "{kind: shared, of: local}").replace("[local, global]", "[global, local]"),
     "14:30: kinds.global.of: no layer before layer 0 (counted from 0) is of kind 'local'; put one earlier in "
     "'pattern'"),
    (changed("{kind: full}", "{kind: shared, of: local}").replace("[local, global]", "[[local, global]]"),
     "14:30: kinds.global.of: no layer before layer 0 (counted from 0) is of kind 'local'; put one earlier in "
     "'pattern'"),
    (changed("{kind: full}\npattern: [local, global]",
             "{kind: shared, of: other}\n  other: {kind: shared, of: local}\npattern: [local, other, global]"),
     "14:30: kinds.global.of: 'other' keeps nothing that could be shared; name a kind that keeps keys and values"),
    # no spec at all
    ("", "1:1: the file is empty; a spec starts with 'name: ...'"),
    ("# later\n", "1:1: the file is empty; a spec starts with 'name: ...'"),
    ("- a\n", "1:1: is not a mapping of keys to values; a spec starts with 'name: ...'"),
    ("hello\n", "1:1: is not a mapping of keys to values; a spec starts with 'name: ...'"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line"), MISTAKES, ids=[line[:60] for _, line in MISTAKES])
def test_a_mistake_is_one_line_that_says_what_to_write(text: str, line: str) -> None:
    """Its place, its field, what is wrong, and the way out; and nothing else is reported."""
    assert faults(text) == [line]


def test_several_mistakes_are_reported_together_in_the_order_of_the_file() -> None:
    """Each once, even where two kinds inherit the same wrong number."""
    text = changed("layers: 4", "layers: 0")
    for old, new in (
        ("heads: 8\nkv_heads: 4", "color: red\nheads: x\nkv_heads: -4"),
        ("bfloat16", "bf17"),
        ("window: 16", "window: 0"),
    ):
        text = changed(old, new, text)

    assert faults(text) == [
        "4:9: layers: must be at least 1, not 0",
        f"6:1: color: unknown key; {KNOWN}",
        "7:8: heads: must be a whole number, not 'x'",
        "8:11: kv_heads: must be at least 1, not -4",
        "10:8: dtype: unknown dtype 'bf17'; did you mean bf16?",
        "14:34: kinds.local.window: must be at least 1, not 0",
    ]


def test_a_wrong_number_is_not_followed_by_what_depends_on_it() -> None:
    """Where hidden_size is wrong, nothing is said about the head_dim that it would give."""
    assert faults(changed("hidden_size: 512", "hidden_size: -1", without("head_dim", HYBRID))) == [
        "5:14: hidden_size: must be at least 1, not -1"
    ]
    assert faults(changed("heads: 8", "heads: 0", without("kv_heads", without("head_dim", HYBRID)))) == [
        "6:8: heads: must be at least 1, not 0"
    ]


def test_a_misspelt_kind_is_reported_where_it_is_used_and_where_it_is_not() -> None:
    """The pattern names one that does not exist, so the one that was meant is left over."""
    assert faults(changed("[local, global]", "[local, globl]")) == [
        "14:3: kinds.global: is defined, but 'pattern' never names it; name it there or remove it",
        "15:18: pattern[1]: 'globl' is not defined; did you mean global or local?",
    ]


def test_thousands_of_unknown_keys_are_no_hang() -> None:
    """A file of nonsense below the size limit is refused in a moment."""
    lines = faults("".join(f"key{index}: {index}\n" for index in range(40_000)))

    assert len(lines) == 51
    assert lines[-1].endswith("more problems")


# --- what-ifs ---------------------------------------------------------------------------------------------------


def test_kv_heads_can_be_replaced_in_every_layer() -> None:
    """MHA, GQA and MQA of one model; the original is left alone."""
    spec = spec_of(HYBRID)

    mqa = with_kv_heads(spec, 1)

    assert [group.kind.describe for group in mqa.groups()] == [
        "MQA, 1 kv head of 64, window 16",
        "MQA, 1 kv head of 64",
    ]
    assert spec.groups()[0].kind.describe == "GQA, 4 kv heads of 64, window 16"


@pytest.mark.parametrize("kv_heads", [3, 0, -1, 16])
def test_kv_heads_that_do_not_divide_the_heads_are_refused(kv_heads: int) -> None:
    """With the model's name and its heads."""
    with pytest.raises(BadInput, match=f"^kv_heads {kv_heads} does not divide the 8 heads of small$"):
        with_kv_heads(spec_of(HYBRID), kv_heads)


def test_a_model_without_heads_has_no_kv_heads_to_replace() -> None:
    """MLA and recurrent layers."""
    spec = spec_of(f"{PLAIN}kinds: {{a: {{kind: mla, kv_lora_rank: 512, qk_rope_head_dim: 64}}}}\n")

    with pytest.raises(BadInput, match="has no layer with key and value heads"):
        with_kv_heads(spec, 1)


def test_the_encoder_context_can_be_replaced() -> None:
    """In cross-attention layers only."""
    text = (
        f"{PLAIN}kinds: {{own: {{kind: full}}, cross: {{kind: cross, encoder_context: 10}}}}\npattern: [[own, cross]]\n"
    )

    spec = with_encoder_context(spec_of(text), 99)

    assert [group.kind.describe for group in spec.groups()] == [
        "GQA, 4 kv heads of 64", "GQA, 4 kv heads of 64, 99 encoder positions",
    ]  # fmt: skip
