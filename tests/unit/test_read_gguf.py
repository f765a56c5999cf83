"""GGUF headers: what they say, what a spec makes of them, and what is refused.

Oracles: the `gguf` package writes and reads the files; sizes of layers are those that llama.cpp itself allocated.
"""

from __future__ import annotations

import json
import os
import struct
import tracemalloc
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

import gguf
import numpy as np
import pytest

from kvcalc.errors import SpecError
from kvcalc.read import gguf as reader
from kvcalc.read import gguf_spec as specs
from kvcalc.read.gguf import GgufHeader, read_header
from kvcalc.read.gguf_spec import to_data, to_spec
from kvcalc.spec.kinds import Kind
from kvcalc.spec.model import ModelSpec
from tests.shared_material import shared

LITTLE, BIG = gguf.GGUFEndian.LITTLE, gguf.GGUFEndian.BIG
ReadBytes: TypeAlias = Callable[[bytes], GgufHeader]
COMMON = {"context_length": 4096, "embedding_length": 512, "block_count": 4}
LLAMA = {**COMMON, "attention.head_count": 8, "attention.head_count_kv": 2}


# --- Helpers ----------------------------------------------------------------------------------------------------------


def write(path: Path, arch: str, hparams: dict[str, Any], order: gguf.GGUFEndian = LITTLE, **general: str) -> Path:
    """Write a file without tensors by the `gguf` package; lists become arrays."""
    writer = gguf.GGUFWriter(path, arch, endianess=order)
    for key, value in general.items():
        writer.add_string(f"general.{key}", value)
    add: dict[str, Any]
    add = {"bool": writer.add_bool, "int": writer.add_uint32, "float": writer.add_float32, "list": writer.add_array}
    for key, value in hparams.items():
        add[type(value).__name__](f"{arch}.{key}", value)
    finish(writer)
    return path


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def header_of(arch: str, hparams: dict[str, Any], **general: Any) -> GgufHeader:
    """Return a header without writing a file."""
    metadata = {"general.architecture": arch, **{f"general.{key}": value for key, value in general.items()}}
    metadata.update(
        {f"{arch}.{key}": tuple(value) if isinstance(value, list) else value for key, value in hparams.items()}
    )
    lengths = {key: len(value) for key, value in metadata.items() if isinstance(value, tuple)}
    return GgufHeader("some-model.gguf", 3, "little", metadata, lengths, ())


def spec_of(arch: str, hparams: dict[str, Any]) -> ModelSpec:
    return to_spec(header_of(arch, hparams))


@pytest.fixture
def read_bytes(tmp_path: Path) -> ReadBytes:
    """Return a function that reads a file of the given bytes."""

    def read(content: bytes) -> GgufHeader:
        path = tmp_path / "file.gguf"
        path.write_bytes(content)
        return read_header(path)

    return read


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def raw(*pairs: bytes, tensors: tuple[bytes, ...] = (), number: int = 3) -> bytes:
    """Return a little-endian file of pairs and rows of the tensor table that are already encoded."""
    counts = struct.pack("<IQQ", number, len(tensors), len(pairs))
    return b"GGUF" + counts + b"".join(pairs) + b"".join(tensors)


def u32(key: bytes, value: int) -> bytes:
    return text(key) + struct.pack("<II", 4, value)


def row(name: bytes, *dims: int, kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def padded(header: bytes, data: int) -> bytes:
    """Return a file with so many bytes of data after the padding."""
    return header + bytes(-len(header) % 32 + data)


def kinds_of(spec: ModelSpec) -> list[tuple[str, ...]]:
    return [layer.names for layer in spec.layers]


def the_kind(spec: ModelSpec, name: str) -> Any:
    return next(group.kind for group in spec.groups() if group.name == name)


def golden_models() -> list[Any]:
    """Return every model of the golden file with what llama.cpp allocated for it, as the parameters of a test."""
    try:
        path = shared("golden/llamacpp.json")
    except pytest.skip.Exception as skipped:
        return [pytest.param(None, marks=pytest.mark.skip(reason=str(skipped)))]
    golden = json.loads(path.read_text(encoding="utf-8"))
    cases: dict[str, Any] = {}
    for case in golden["cases"]:
        if "expected" in case:  # others record the refusal of an option
            cases.setdefault(case["model"], case["expected"])
    return [pytest.param((model, cases[name]), id=name) for name, model in golden["models"].items()]


# --- Dimensions, against llama.cpp ------------------------------------------------------------------------------------


@pytest.mark.parametrize("golden", golden_models())
def test_a_models_layers_are_those_that_llama_cpp_allocates(golden: Any, tmp_path: Path) -> None:
    model, expected = golden
    spec = to_spec(read_header(write(tmp_path / "m.gguf", model["arch"], model["hparams"])))
    caches = {cache["name"]: cache for cache in expected["kv_caches"]}
    assert len(spec.layers) == model["hparams"]["block_count"]
    assert spec.max_context == model["hparams"]["context_length"]
    assert spec.file.vocab_size == model["hparams"]["vocab_size"]
    rows = [rows_of(caches[name]) for name in ("unified", "base", "swa", "mla", "raw_swa") if name in caches]
    assert {index: row for cache in rows for index, row in cache.items()} == attention_rows(spec)
    # DeepSeek-V4 and MiniMax-M3 give the indexer a V row in the engine that the model does not have.
    assert {index: row[0] for index, row in rows_of(caches.get("indexer")).items()} == index_rows(spec)
    window = model["hparams"].get("attention.sliding_window", 4096)
    for name in ("swa", "raw_swa"):
        for index in caches.get(name, {"layer_ids": []})["layer_ids"]:
            assert window_of(spec.layers[index].kinds) == (8192 if model["arch"] == "llama4" else window)
    states = [entry for layer in spec.layers if (entry := state_sizes(layer.kinds)) is not None]
    for recurrent in expected["recurrent"]:
        assert states == [(recurrent["n_embd_r"], recurrent["n_embd_s"])] * recurrent["layers"]
    assert bool(states) == bool(expected["recurrent"])


def rows_of(cache: Any) -> dict[int, tuple[int, int]]:
    """Return what a golden cache has per layer: elements of a K and of a V row."""
    if cache is None:
        return {}
    rows = zip(cache["k_row_elems"], cache["v_row_elems"], strict=True)
    return dict(zip(cache["layer_ids"], rows, strict=True))


def attention_rows(spec: ModelSpec) -> dict[int, tuple[int, int]]:
    """Return elements that each layer keeps of an uncompressed token, as K and as V; latents count as K."""
    found = {}
    for index, layer in enumerate(spec.layers):
        entries = [entry for kind in layer.kinds for entry in kind.entries()]
        entries = [entry for entry in entries if entry.retention.rule in ("all", "window", "chunk")]
        key = sum(entry.elements for entry in entries if entry.role in ("k", "latent"))
        if key:
            found[index] = (key, sum(entry.elements for entry in entries if entry.role == "v"))
    return found


def index_rows(spec: ModelSpec) -> dict[int, int]:
    found = {}
    for index, layer in enumerate(spec.layers):
        for entry in (entry for kind in layer.kinds for entry in kind.entries()):
            if entry.role == "index":
                found[index] = entry.elements
    return found


def window_of(kinds: tuple[Kind, ...]) -> int:
    kind = kinds[0]
    return int(getattr(kind, "chunk" if kind.name == "chunked" else "window"))


def state_sizes(kinds: tuple[Kind, ...]) -> tuple[int, int] | None:
    """Return elements of the convolution's and of the recurrent part; None for a layer without a state."""
    entries = [entry for kind in kinds if kind.name == "state" for entry in kind.entries()]
    if not entries:
        return None
    conv, ssm = (sum(entry.elements for entry in entries if entry.role == role) for role in ("conv", "ssm"))
    return conv, ssm


GEMMA3 = {
    "context_length": 131072, "embedding_length": 5376, "block_count": 62,
    "attention.head_count": 32, "attention.head_count_kv": 16,
    "attention.key_length": 128, "attention.value_length": 128, "attention.sliding_window": 1024,
}  # fmt: skip
DEEPSEEK3 = {
    "context_length": 163840, "embedding_length": 7168, "block_count": 61, "expert_gating_func": 2,
    "attention.head_count": 128, "attention.head_count_kv": 1, "attention.kv_lora_rank": 512,
    "attention.key_length": 576, "attention.value_length": 512, "rope.dimension_count": 64,
    "attention.key_length_mla": 192, "attention.value_length_mla": 128,
}  # fmt: skip
QWEN3_NEXT = {
    "context_length": 262144, "embedding_length": 2048, "block_count": 48,
    "attention.head_count": 16, "attention.head_count_kv": 2, "attention.key_length": 256,
    "attention.value_length": 256, "ssm.conv_kernel": 4, "ssm.inner_size": 4096, "ssm.state_size": 128,
    "ssm.time_step_rank": 32, "ssm.group_count": 16,
}  # fmt: skip


def test_a_plain_model_needs_neither_kinds_nor_pattern(tmp_path: Path) -> None:
    hparams = {"context_length": 1024, "embedding_length": 768, "block_count": 12, "attention.head_count": 12}
    data = to_data(read_header(write(tmp_path / "GPT-2.Q8_0.gguf", "gpt2", hparams)))
    assert data.pop("source")["url"] == "file:GPT-2.Q8_0.gguf"
    assert data == {
        "name": "gpt-2.q8_0",
        "architecture": "gpt2",
        "layers": 12,
        "hidden_size": 768,
        "heads": 12,
        "dtype": "float16",
        "max_context": 1024,
        "parameters": None,
        "assumed": ["dtype"],
    }


def test_a_pattern_is_as_short_as_it_repeats() -> None:
    data = to_data(header_of("gemma3", GEMMA3))
    assert data["pattern"] == ["local"] * 5 + ["global"]
    assert data["kinds"] == {"local": {"kind": "sliding", "window": 1024}, "global": {"kind": "full"}}
    assert (data["heads"], data["kv_heads"], data["head_dim"]) == (32, 16, 128)
    assert data["architecture"] == "gemma3_text"
    assert len(to_spec(header_of("gemma3", GEMMA3)).layers) == 62


def test_latent_attention_is_read_from_the_mla_keys() -> None:
    kind = the_kind(spec_of("deepseek2", DEEPSEEK3), "mla")
    assert (kind.kv_lora_rank, kind.qk_rope_head_dim, kind.qk_nope_head_dim, kind.v_head_dim) == (512, 64, 128, 128)
    assert sum(entry.elements for entry in kind.entries()) == 576


def test_a_file_from_before_the_mla_keys_keeps_every_expanded_head() -> None:
    old = {key: value for key, value in DEEPSEEK3.items() if not key.endswith("_mla")}
    old.update({"attention.head_count_kv": 128, "attention.key_length": 192, "attention.value_length": 128})
    kind = the_kind(spec_of("deepseek2", old), "full")
    assert (kind.kv_heads, kind.head_dim, kind.value_dim) == (128, 192, 128)


def test_a_hybrid_attends_in_every_fourth_layer() -> None:
    spec = spec_of("qwen3next", QWEN3_NEXT)
    assert kinds_of(spec) == [("linear",), ("linear",), ("linear",), ("attention",)] * 12
    assert state_sizes(spec.layers[0].kinds) == (24_576, 524_288)
    assert the_kind(spec, "attention").head_dim == 256


def test_recurrent_layers_may_be_listed() -> None:
    listed = {**QWEN3_NEXT, "block_count": 4, "attention.recurrent_layers": [False, True, True, False]}
    assert kinds_of(spec_of("qwen3next", listed)) == [("attention",), ("linear",), ("linear",), ("attention",)]


def test_layers_without_kv_heads_keep_a_state_in_jamba_and_nothing_in_an_mlp_of_nemotron_h() -> None:
    ssm = {"ssm.conv_kernel": 4, "ssm.inner_size": 1024, "ssm.state_size": 16}
    kv = {"attention.head_count": 8, "attention.head_count_kv": [0, 2, 0, 0]}
    jamba = spec_of("jamba", {**COMMON, **ssm, **kv})
    assert kinds_of(jamba) == [("mamba",), ("attention",), ("mamba",), ("mamba",)]
    ssm.update({"ssm.time_step_rank": 16, "ssm.group_count": 8})
    nemotron = spec_of("nemotron_h", {**COMMON, **ssm, **kv, "feed_forward_length": [0, 0, 2048, 0]})
    assert kinds_of(nemotron) == [("mamba",), ("attention",), (), ("mamba",)]
    assert state_sizes(nemotron.layers[0].kinds) == (3 * (1024 + 2 * 8 * 16), 1024 * 16)


def test_falcon_h1_does_both_in_every_layer() -> None:
    ssm = {"ssm.conv_kernel": 4, "ssm.inner_size": 1024, "ssm.state_size": 16, "ssm.time_step_rank": 16}
    spec = spec_of("falcon-h1", {**LLAMA, **ssm, "ssm.group_count": 1})
    assert kinds_of(spec) == [("attention", "mamba")] * 4


def test_recurrent_models_need_no_heads() -> None:
    rwkv = spec_of("rwkv7", {**COMMON, "wkv.head_size": 64})
    assert state_sizes(rwkv.layers[0].kinds) == (2 * 512, 512 * 64)
    mamba = spec_of("mamba", {**COMMON, "ssm.conv_kernel": 4, "ssm.inner_size": 1024, "ssm.state_size": 16})
    assert state_sizes(mamba.layers[3].kinds) == (3 * 1024, 16 * 1024)
    assert mamba.file.heads is None


def test_short_convolutions_kda_and_lightning_states() -> None:
    kv = {"attention.head_count": 8, "attention.head_count_kv": [0, 0, 0, 2]}
    lfm2 = spec_of("lfm2", {**COMMON, **kv, "shortconv.l_cache": 3})
    assert state_sizes(lfm2.layers[0].kinds) == (512 * 2, 0)
    assert kinds_of(lfm2)[2:] == [("conv",), ("attention",)]
    mla = {"attention.kv_lora_rank": 128, "attention.key_length": 160, "attention.key_length_mla": 96}
    kimi = spec_of("kimi-linear", {**COMMON, **kv, **mla, "kda.head_dim": 64, "ssm.conv_kernel": 4})
    assert state_sizes(kimi.layers[0].kinds) == (3 * 3 * 8 * 64, 64 * 64 * 8)
    assert kinds_of(kimi)[3] == ("mla",)
    minimax = spec_of("minimax-01", {**LLAMA, "block_count": 8, "attention.key_length": 128})
    assert kinds_of(minimax) == [("linear",)] * 7 + [("attention",)]
    assert state_sizes(minimax.layers[0].kinds) == (0, 128 * 128 * 8)


def test_kv_heads_of_their_own_make_layers_kinds_of_their_own() -> None:
    spec = spec_of("deci", {**LLAMA, "attention.head_count": [8, 0, 8, 8], "attention.head_count_kv": [2, 0, 4, 2]})
    assert kinds_of(spec) == [("full_kv2",), (), ("full_kv4",), ("full_kv2",)]
    assert (the_kind(spec, "full_kv2").kv_heads, the_kind(spec, "full_kv4").kv_heads) == (2, 4)
    openelm = {**LLAMA, "attention.head_count": [8, 8, 16, 16], "attention.head_count_kv": [2, 2, 2, 2]}
    spec = spec_of("openelm", {**openelm, "attention.key_length": 64, "attention.value_length": 64})
    assert [layer.kinds[0].attention_heads for layer in spec.layers] == [8, 8, 16, 16]
    assert kinds_of(spec) == [("full_1",), ("full_1",), ("full_2",), ("full_2",)]


def test_value_heads_may_have_another_size() -> None:
    spec = spec_of("mimo2", {**LLAMA, "attention.key_length": 192, "attention.value_length": 128})
    assert the_kind(spec, "full").value_dim == 128
    assert attention_rows(spec)[0] == (2 * 192, 2 * 128)


def test_every_layer_of_mistral_slides_and_none_of_qwen() -> None:
    window = {**LLAMA, "attention.sliding_window": 1024}
    assert kinds_of(spec_of("llama", window)) == [("local",)] * 4
    assert spec_of("llama", window).architecture == "mistral"
    assert kinds_of(spec_of("phi3", window)) == [("local",)] * 4
    assert kinds_of(spec_of("qwen2", window)) == [("full",)] * 4
    assert kinds_of(spec_of("phi3", {**window, "attention.sliding_window": 0})) == [("full",)] * 4


@pytest.mark.parametrize(
    ("pattern", "slides"),
    [
        ([True, False, True, True], [True, False, True, True]),
        ([1, 1, 0, 0], [True, True, False, False]),
        (2, [True, False, True, False]),
        (3, [True, True, False, True]),
        (1, [False] * 4),
        (0, [True] * 4),
    ],
)
def test_a_pattern_in_the_file_says_which_layers_slide(pattern: Any, slides: list[bool], tmp_path: Path) -> None:
    hparams = {**LLAMA, "attention.sliding_window": 1024, "attention.sliding_window_pattern": pattern}
    spec = to_spec(read_header(write(tmp_path / "m.gguf", "gemma4", hparams)))
    assert [layer.kinds[0].name == "sliding" for layer in spec.layers] == slides


def test_sliding_layers_may_have_heads_of_their_own_size() -> None:
    hparams = {**LLAMA, "attention.sliding_window": 1024, "attention.sliding_window_pattern": 2}
    hparams.update({"attention.key_length": 128, "attention.value_length": 128})
    hparams.update({"attention.key_length_swa": 64, "attention.value_length_swa": 32})
    spec = spec_of("gemma4", hparams)
    assert attention_rows(spec) == {0: (128, 64), 1: (256, 256), 2: (128, 64), 3: (256, 256)}


def test_the_last_layers_may_read_the_keys_and_values_of_earlier_ones() -> None:
    window = {"attention.sliding_window": 512, "attention.sliding_window_pattern": 2, "attention.shared_kv_layers": 2}
    spec = spec_of("gemma4", {**LLAMA, **window})
    assert kinds_of(spec) == [("local",), ("global",), ("shared_local",), ("shared_global",)]
    nano = spec_of("gemma3n", {**LLAMA, "block_count": 30, "attention.sliding_window": 512})
    assert sum(layer.kinds[0].name != "shared" for layer in nano.layers) == 20


def test_layers_that_predict_further_tokens_are_left_out() -> None:
    assert len(spec_of("glm4moe", {**LLAMA, "nextn_predict_layers": 1}).layers) == 3


def test_indexers_stand_beside_the_layers_that_own_one() -> None:
    dsa = {**DEEPSEEK3, "block_count": 4, "attention.indexer.key_length": 128}
    assert kinds_of(spec_of("deepseek32", dsa)) == [("mla", "indexer")] * 4
    assert kinds_of(spec_of("glm-dsa", dsa)) == [("mla", "indexer")] * 4
    typed = {**dsa, "attention.indexer.types": [True, False, True, False]}
    assert kinds_of(spec_of("glm-dsa", typed)) == [("mla", "indexer"), ("mla",)] * 2
    sparse = {**LLAMA, "attention.indexer.key_length": 128, "leading_dense_block_count": 3}
    assert kinds_of(spec_of("minimax-m3", sparse)) == [("full",)] * 3 + [("full", "indexer")]


def test_deepseek_v4_compresses_by_ratio() -> None:
    hparams = {**COMMON, "attention.head_count": 8, "attention.head_count_kv": 1, "attention.key_length": 512}
    hparams.update({"attention.sliding_window": 128, "attention.indexer.key_length": 128})
    spec = spec_of("deepseek4", {**hparams, "attention.compress_ratios": [0, 4, 128, 4, 0]})
    assert kinds_of(spec) == [("local",), ("csa",), ("hca",), ("csa",)]
    with pytest.raises(SpecError, match="unknown ratio 8"):
        spec_of("deepseek4", {**hparams, "attention.compress_ratios": [0, 8, 128, 4]})


def test_an_encoder_decoder_keeps_the_encoders_keys_too() -> None:
    spec = spec_of("t5", {**COMMON, "context_length": 512, "attention.head_count": 8})
    assert kinds_of(spec) == [("self", "cross")] * 4
    assert the_kind(spec, "cross").encoder_context == 512
    assert (spec.max_context, spec.file.assumed) == (None, ("dtype", "encoder_context"))


@pytest.mark.parametrize(
    ("arch", "extra", "model_type"),
    [
        ("llama", {}, "llama"),
        ("llama", {"expert_count": 8}, "mixtral"),
        ("deepseek2", {"attention.kv_lora_rank": 0}, "deepseek_v2"),
        ("deepseek2", {"expert_gating_func": 2}, "deepseek_v3"),
        ("olmo2", {"attention.sliding_window": 4096}, "olmo3"),
        ("gptneox", {}, "gpt_neox"),
        ("qwen3moe", {}, "qwen3_moe"),
        ("gpt-oss", {"attention.sliding_window": 128}, "gpt_oss"),
        ("llama4", {}, "llama4_text"),
    ],
)
def test_architectures_get_the_model_type_of_the_published_config(arch: str, extra: Any, model_type: str) -> None:
    assert spec_of(arch, {**LLAMA, **extra}).architecture == model_type


def test_architectures_are_called_as_in_the_package_unless_they_are_newer() -> None:
    if tuple(map(int, version("gguf").split(".")[:2])) < (0, 19):
        pytest.skip("this gguf package is older than the list of architectures")
    listed = set(gguf.MODEL_ARCH_NAMES.values())
    newer = {"deepseek32", "deepseek4", "hy_v4", "kimi-k3", "minimax-01", "minimax-m3"}
    assert set(specs._ARCHITECTURES) - listed <= newer
    assert set(specs._NO_CACHE) <= listed


# --- What else a spec takes from the header ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("general", "name"),
    [
        ({"name": "Meta Llama 3.1 8B Instruct"}, "meta-llama-3.1-8b-instruct"),
        ({"name": "***", "basename": "Qwen_3"}, "qwen_3"),
        ({"name": "\u001b[31mred\n"}, "31mred"),
        ({"name": "é" * 300}, "some-model"),
        ({"name": "a" * 300}, "a" * 200),
        ({}, "some-model"),
    ],
)
def test_names_are_made_of_what_a_name_may_have(general: dict[str, str], name: str) -> None:
    assert to_spec(header_of("llama", LLAMA, **general)).name == name


def test_the_vocabulary_is_counted_and_parameters_are_summed(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in LLAMA.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_array("tokenizer.ggml.tokens", [f"t{number}" for number in range(1000)])
    writer.add_tensor("token_embd.weight", np.zeros((1000, 64), np.float16))
    finish(writer)
    header = read_header(path)
    spec = to_spec(header)
    assert (spec.file.vocab_size, spec.parameters, header.weights_bytes) == (1000, 64_000, 128_000)
    assert "tokenizer.ggml.tokens" not in header.metadata


def test_a_file_without_tensors_has_no_parameters(tmp_path: Path) -> None:
    header = read_header(write(tmp_path / "m.gguf", "llama", {**LLAMA, "vocab_size": 100}))
    assert (header.parameters, header.weights_bytes, to_spec(header).parameters) == (None, 0, None)
    assert to_spec(header).file.vocab_size == 100


# --- Headers, against the gguf package --------------------------------------------------------------------------------


def test_tensor_types_have_the_packages_names_and_sizes() -> None:
    theirs = {kind.value: (kind.name.lower(), *size) for kind, size in gguf.GGML_QUANT_SIZES.items()}
    both = set(theirs) & set(reader.TENSOR_TYPES)
    assert len(both) >= 30
    assert {kind: reader.TENSOR_TYPES[kind] for kind in both} == {kind: theirs[kind] for kind in both}


@pytest.mark.parametrize("order", [LITTLE, BIG], ids=["little", "big"])
def test_headers_say_what_the_package_says(order: gguf.GGUFEndian, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama", endianess=order)
    writer.add_string("general.name", "naïve 模型")
    writer.add_array("some.strings", ["a", "", "模型"])
    writer.add_array("some.floats", [0.5, -1.25])
    for add, value in (("bool", True), ("int8", -8), ("uint8", 200), ("int16", -300), ("uint16", 60_000),
                       ("int32", -(2**31)), ("uint32", 2**32 - 1), ("int64", -(2**60)), ("uint64", 2**63),
                       ("float32", 0.5), ("float64", 0.1)):  # fmt: skip
        getattr(writer, f"add_{add}")(f"some.{add}", value)
    rng = np.random.default_rng(0)
    writer.add_tensor("f32", rng.random((3, 64), np.float32))
    writer.add_tensor("q8_0", np.zeros((5, 34), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("q6_k", np.zeros((2, 420), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q6_K)
    finish(writer)
    header, oracle = read_header(path), gguf.GGUFReader(path)
    assert header.byte_order == ("little" if order is LITTLE else "big")
    for key, found in header.metadata.items():
        assert (list(found) if isinstance(found, tuple) else found) == oracle.fields[key].contents()
    assert set(oracle.fields) - set(header.metadata) == {"some.strings"} | {
        f"GGUF.{name}" for name in ("version", "tensor_count", "kv_count")
    }
    assert header.array_lengths == {"some.strings": 3, "some.floats": 2}
    ours = [(tensor.name, tensor.dims, tensor.elements, tensor.bytes, tensor.type_id) for tensor in header.tensors]
    assert ours == [
        (tensor.name, tuple(tensor.shape.tolist()), tensor.n_elements, tensor.n_bytes, tensor.tensor_type)
        for tensor in oracle.tensors
    ]
    assert header.bytes_by_type == {"f32": 768, "q8_0": 170, "q6_k": 840}


def test_version_2_reads_as_version_3(read_bytes: ReadBytes) -> None:
    pairs = (text(b"general.architecture") + struct.pack("<I", 8) + text(b"llama"),)
    three, two = (read_bytes(raw(*pairs, number=number)) for number in (3, 2))
    assert (three.version, two.version) == (3, 2)
    assert three.metadata == two.metadata == {"general.architecture": "llama"}


def test_scalars_and_short_arrays_are_kept_long_ones_only_counted(read_bytes: ReadBytes) -> None:
    def array(key: bytes, count: int) -> bytes:
        return text(key) + struct.pack(f"<IIQ{count}I", 9, 4, count, *range(count))

    header = read_bytes(raw(array(b"kept", 4096), array(b"long", 4097), u32(b"after", 7)))
    assert header.metadata["kept"] == tuple(range(4096))
    assert "long" not in header.metadata
    assert header.array_lengths == {"kept": 4096, "long": 4097}
    assert header.metadata["after"] == 7


def test_long_strings_are_passed_over(read_bytes: ReadBytes) -> None:
    long = text(b"tokenizer.huggingface.json") + struct.pack("<I", 8) + text(b"\xff" * 300_000)
    assert read_bytes(raw(long, u32(b"after", 7))).metadata == {"after": 7}


def test_a_key_of_the_architecture_is_asked_for_by_its_short_name() -> None:
    header = header_of("llama", LLAMA)
    assert header.hyperparameter("attention.head_count_kv") == 2
    assert header.hyperparameter("attention.value_length") is None


def test_a_large_vocabulary_costs_neither_memory_nor_objects(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    tokens, merges = (text(b"tokens%d" % size) + struct.pack("<IIQ", 9, 8, size) for size in (128_256, 280_000))
    path.write_bytes(raw(tokens + text(b"token") * 128_256, merges + text(b"merge of two") * 280_000))
    tracemalloc.start()
    header = read_header(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert header.array_lengths == {"tokens128256": 128_256, "tokens280000": 280_000}
    assert peak < 2 * 2**20


# --- Split files ------------------------------------------------------------------------------------------------------


def split(folder: Path, tensors: int = 5) -> list[Path]:
    """Write a model in parts of two tensors by the package; return the parts."""
    writer = gguf.GGUFWriter(folder / "m.gguf", "llama", split_max_tensors=2)
    for key, value in LLAMA.items():
        writer.add_uint32(f"llama.{key}", value)
    for number in range(tensors):
        writer.add_tensor(f"blk.{number}.weight", np.zeros((number + 1, 32), np.float32))
    finish(writer)
    return sorted(folder.glob("*.gguf"))


def test_any_part_of_a_split_file_stands_for_all(tmp_path: Path) -> None:
    parts = split(tmp_path)
    assert [part.name for part in parts] == [f"m-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    for part in parts:
        header = read_header(part)
        assert header.weights_bytes == 4 * 32 * (1 + 2 + 3 + 4 + 5)
        assert header.files == tuple(map(str, parts))
        spec = to_spec(header)
        assert (spec.name, spec.parameters) == ("m", 32 * 15)


def test_a_missing_renamed_or_foreign_part_is_reported(tmp_path: Path) -> None:
    parts = split(tmp_path)
    contents = [part.read_bytes() for part in parts]
    parts[1].unlink()
    with pytest.raises(SpecError, match=r"m-00002-of-00003\.gguf:1:1: cannot be read: No such file"):
        read_header(parts[0])
    parts[1].write_bytes(contents[2])
    with pytest.raises(SpecError, match=r"m-00002.*split\.no: says that it is part 2 \(from 0\) of 3, where part 1"):
        read_header(parts[0])
    renamed = tmp_path / "model.gguf"
    renamed.write_bytes(contents[0])
    with pytest.raises(SpecError, match=r"is one of 3 parts, but its name does not end in -00001-of-00003\.gguf"):
        read_header(renamed)


def test_parts_must_hold_as_many_tensors_as_they_say(tmp_path: Path) -> None:
    def part(number: int, name: bytes, total: int) -> None:
        pairs = [
            text(key) + struct.pack("<IH", 2, value) for key, value in ((b"split.no", number), (b"split.count", 2))
        ]
        pairs.append(text(b"split.tensors.count") + struct.pack("<Ii", 5, total))
        content = padded(raw(*pairs, tensors=(row(name, 8),)), 32)
        (tmp_path / f"m-0000{number + 1}-of-00002.gguf").write_bytes(content)

    part(0, b"a", 3)
    part(1, b"b", 3)
    with pytest.raises(SpecError, match="the 2 parts hold 2 tensors instead of 3"):
        read_header(tmp_path / "m-00001-of-00002.gguf")
    part(1, b"a", 2)
    with pytest.raises(SpecError, match="a: the tensor stands in two parts"):
        read_header(tmp_path / "m-00001-of-00002.gguf")


# --- What is refused --------------------------------------------------------------------------------------------------


def array_of(kind: int, count: int) -> bytes:
    return text(b"a") + struct.pack("<IIQ", 9, kind, count)


HUGE = struct.pack("<Q", 2**60)
HOSTILE = {
    "empty": (b"", "is empty, not a GGUF file"),
    "magic": (b"PK\x03\x04" + bytes(20), r"is not a GGUF file: it starts with b'PK\\x03\\x04'"),
    "short magic": (b"GG", "is not a GGUF file"),
    "version 1": (b"GGUF" + struct.pack("<III", 1, 0, 0), "GGUF version 1 is not supported"),
    "version 4": (raw(number=4), "unknown GGUF version 4; known: 2 and 3"),
    "version 0": (raw(number=0), "unknown GGUF version 0"),
    "tensors": (b"GGUF" + struct.pack("<IQQ", 3, 2**63, 0), "number of tensors: 9,223,372,036,854,775,808 do not fit"),
    "keys": (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**64 - 1), "number of metadata keys: 18,446,744,073,709,551,615 do"),
    "key length": (raw(HUGE + bytes(16)), "metadata key: a string of 1,152,921,504,606,846,976 bytes is longer"),
    "key text": (raw(u32(b"\xff\xfe", 1)), r"metadata key: is not UTF-8 \(byte 0xff\), at byte 32"),
    "key twice": (raw(u32(b"k", 1), u32(b"k", 2)), "k: the key stands twice, at byte 41"),
    "value type": (raw(text(b"k") + struct.pack("<IQ", 13, 0)), "k: unknown value type 13"),
    "string length": (raw(text(b"k") + struct.pack("<I", 8) + HUGE), "k: the file is cut short"),
    "string text": (raw(text(b"k") + struct.pack("<I", 8) + text(b"a\x80")), r"k: is not UTF-8 \(byte 0x80\), at byte"),
    "array length": (raw(array_of(4, 2**63)), "a: the file is cut short"),
    "strings": (raw(array_of(8, 2**63)), "a: 9,223,372,036,854,775,808 strings do not fit into the 0 bytes"),
    "string in array": (raw(array_of(8, 2) + HUGE + bytes(8)), "a: the file is cut short"),
    "last string": (raw(array_of(8, 1) + struct.pack("<Q", 1)), "a: the file is cut short"),
    "nested array": (raw(array_of(9, 1) + bytes(24)), "a: arrays of arrays are not supported"),
    "array type": (raw(array_of(77, 1) + bytes(24)), "a: unknown value type 77"),
    "boolean": (raw(text(b"k") + struct.pack("<IB", 7, 2)), "k: a boolean is neither 0 nor 1 but 2"),
    "tensor name": (raw(tensors=(row(b"\xc3", 8),)), "tensor name: is not UTF-8"),
    "long tensor name": (raw(tensors=(row(b"n" * 257, 8),)), "tensor name: a string of 257 bytes is longer"),
    "dimensions": (raw(tensors=(row(b"w", 1, 1, 1, 1, 1),)), "w: has 5 dimensions; at most 4"),
    "elements": (raw(tensors=(row(b"w", 2**32, 2**32),)), "w: 4294967296 x 4294967296 elements are more"),
    "tensor type": (raw(tensors=(row(b"w", 8, kind=4),)), "w: unknown tensor type 4, at byte 24"),
    "rows": (raw(tensors=(row(b"w", 33, 32, kind=8),)), "w: type q8_0 stores blocks of 32, which do not divide"),
    "tensor twice": (padded(raw(tensors=(row(b"w", 0), row(b"w", 0))), 0), "w: the tensor stands twice"),
    "alignment": (padded(raw(tensors=(row(b"w", 8, offset=8),)), 64), "w: its offset 8 is not a multiple of"),
    "overlap": (padded(raw(tensors=(row(b"v", 9), row(b"w", 8, offset=32))), 64), "w: its data, from byte 128 on"),
    "beyond": (padded(raw(tensors=(row(b"w", 8, offset=32),)), 60), "w: its data ends at byte 128, but the file"),
    "far beyond": (padded(raw(tensors=(row(b"w", 8, offset=2**63),)), 60), "w: its data ends at byte 9,223,372,036"),
    "no alignment": (padded(raw(u32(b"general.alignment", 0), tensors=(row(b"w", 8),)), 32), "0 is not a power of two"),
    "odd alignment": (padded(raw(u32(b"general.alignment", 33), tensors=(row(b"w", 8),)), 32), "33 is not a power"),
    "parts": (raw(u32(b"split.count", 2**31)), "2,147,483,648 parts are more than the 999 that are read"),
    "control characters": (raw(u32(b"\x1b[31m\n", 1), u32(b"\x1b[31m\n", 1)), r"\\x1b\[31m\\n: the key stands twice"),
}  # fmt: skip


@pytest.mark.parametrize(("content", "message"), HOSTILE.values(), ids=HOSTILE)
def test_a_faulty_file_is_refused_with_the_place_and_the_reason(
    content: bytes, message: str, tmp_path: Path, read_bytes: ReadBytes
) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        read_bytes(content)
    assert str(caught.value).startswith(f"{tmp_path / 'file.gguf'}:1:1: ")
    assert "\x1b" not in str(caught.value)


def test_every_cut_is_refused(tmp_path: Path, read_bytes: ReadBytes) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 4)
    writer.add_array("llama.attention.sliding_window_pattern", [True, False])
    writer.add_array("tokenizer.ggml.tokens", ["a", "bc", ""])
    writer.add_tensor("token_embd.weight", np.ones((1, 8), np.float32))
    finish(writer)
    whole = path.read_bytes()
    assert read_bytes(whole).weights_bytes == 32
    for length in range(len(whole)):
        with pytest.raises(SpecError, match=r"cut short|is empty|not a GGUF|do not fit"):
            read_bytes(whole[:length])


@pytest.mark.parametrize(
    ("limit", "content", "message"),
    [
        ("strings", raw(array_of(8, 9) + bytes(72)), "a: the arrays hold more than"),
        ("kept_bytes", raw(array_of(4, 9) + bytes(36)), "a: names, texts and short arrays take more than"),
        ("header_bytes", raw(u32(b"k", 1)), "the header is longer than"),
        ("tensors", raw(tensors=(row(b"w", 0),) * 9), "number of tensors: 9 are more than the 8 that are read"),
    ],
)
def test_no_file_may_take_more_than_the_limits(
    limit: str, content: bytes, message: str, read_bytes: ReadBytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_Limits", partial(reader._Limits, **{limit: 8}))
    with pytest.raises(SpecError, match=message):
        read_bytes(content)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    loop = tmp_path / "loop.gguf"
    loop.symlink_to(loop)
    pipe = tmp_path / "pipe.gguf"
    os.mkfifo(pipe)
    for path, message in (
        (tmp_path, "is a folder"),
        (tmp_path / "missing.gguf", "cannot be read: No such file or directory"),
        (loop, "cannot be read: Too many levels of symbolic links"),
        (pipe, "is not a regular file"),
        (Path("/dev/zero"), "is not a regular file"),
        (Path("a\0b.gguf"), "is not a regular file"),
    ):
        with pytest.raises(SpecError, match=message):
            read_header(path)


def test_an_unknown_architecture_is_refused_with_the_keys_it_came_with() -> None:
    with pytest.raises(SpecError) as caught:
        spec_of("llama5", LLAMA)
    assert str(caught.value) == (
        "some-model.gguf:1:1: general.architecture: unknown architecture 'llama5'; did you mean llama or llama4?; "
        "keys in the file: attention.head_count, attention.head_count_kv, block_count, context_length, embedding_length"
    )


@pytest.mark.parametrize(
    ("arch", "general", "message"),
    [
        ("bert", {}, "bert is an encoder: it keeps no KV cache"),
        ("llada", {}, "llada is a diffusion model"),
        ("clip", {}, "clip is a projector of images or sound"),
        ("llama", {"type": "adapter"}, "general.type: is 'adapter', not a model"),
    ],
)
def test_files_without_a_cache_are_refused(arch: str, general: dict[str, str], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        to_spec(header_of(arch, LLAMA, **general))


def test_a_file_without_architecture_is_refused() -> None:
    header = GgufHeader("f.gguf", 3, "little", {"general.name": "x"}, {}, ())
    with pytest.raises(SpecError, match=r"general\.architecture: is missing; keys in the file: general\.name"):
        to_spec(header)


@pytest.mark.parametrize(
    ("arch", "changes", "message"),
    [
        ("llama", {"block_count": None}, r"llama\.block_count: is missing"),
        ("llama", {"block_count": 0}, "must be at least 1, not 0"),
        ("llama", {"block_count": 2**31}, "2,147,483,648 layers are out of range"),
        ("llama", {"attention.head_count": "8"}, "must be a whole number, not '8'"),
        ("llama", {"attention.head_count": True}, "must be a whole number, not True"),
        ("llama", {"attention.head_count": 8.0}, "must be a whole number, not 8.0"),
        ("llama", {"attention.head_count": -8}, "must be a whole number, not -8"),
        ("llama", {"attention.head_count_kv": [2, 2]}, r"head_count_kv: has 2 values for 4 layers"),
        ("llama", {"attention.head_count_kv": [2, 2, -1, 2]}, "must hold whole numbers, not -1"),
        ("llama", {"attention.head_count_kv": [2, 2, 0.5, 2]}, "must hold whole numbers, not 0.5"),
        ("llama", {"attention.head_count_kv": 3}, "kv_heads: heads 8 is not divisible by kv_heads 3"),
        ("llama", {"attention.head_count_kv": 0}, "no layer keeps anything"),
        ("llama", {"attention.key_length": 2**31}, "head_dim: 2147483648 is out of range"),
        ("llama", {"nextn_predict_layers": 4}, "nextn_predict_layers: leaves 0 of 4 layers"),
        ("gpt-oss", {}, r"gpt-oss\.attention\.sliding_window: is missing"),
        ("mimo2", {"attention.sliding_window": 128}, "sliding_window_pattern: is missing; the file gives a window"),
        ("gemma4", {"attention.sliding_window": 128, "attention.sliding_window_pattern": 1,
                    "attention.shared_kv_layers": 4}, "4 of 4 layers leave none"),
        ("gemma4", {"attention.sliding_window": 128, "attention.sliding_window_pattern": 4,
                    "attention.shared_kv_layers": 1}, "layer 3 shares keys and values, but no layer of its kind"),
        ("deepseek2", {"attention.kv_lora_rank": 512, "attention.key_length": 512, "attention.key_length_mla": 192},
         "512 does not fit a latent of 512 and expanded heads of 192"),
        ("rwkv7", {"wkv.head_size": 64, "token_shift_count": 1}, "1 shifted tokens cannot be described"),
        ("rwkv6", {"wkv.head_size": 100}, "100 does not divide the hidden size 512"),
        ("qwen3next", {**{key: value for key, value in QWEN3_NEXT.items() if "." in key}, "full_attention_interval": 0},
         "full_attention_interval: must be at least 1"),
    ],
)  # fmt: skip
def test_keys_that_describe_no_model_are_refused_by_name(arch: str, changes: dict[str, Any], message: str) -> None:
    hparams = {key: value for key, value in {**LLAMA, **changes}.items() if value is not None}
    with pytest.raises(SpecError, match=message):
        spec_of(arch, hparams)


def test_an_array_too_long_for_layers_is_named() -> None:
    header = header_of("llama", LLAMA)
    lengths = {"llama.attention.head_count": 5000}
    metadata = {key: value for key, value in header.metadata.items() if key not in lengths}
    with pytest.raises(SpecError, match="head_count: is an array of 5,000 elements"):
        to_spec(GgufHeader("f.gguf", 3, "little", metadata, lengths, ()))


def test_many_different_layers_stay_quick() -> None:
    layers = 4000
    hparams = {**LLAMA, "block_count": layers, "attention.key_length": 64, "attention.value_length": 64}
    counts = list(range(1, layers + 1))
    spec = spec_of("llama", {**hparams, "attention.head_count": counts, "attention.head_count_kv": counts})
    assert len(spec.groups()) == layers
