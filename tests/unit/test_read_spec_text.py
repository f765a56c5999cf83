"""`kvcalc import`: what was read, as a spec that reads the same."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcalc import api
from kvcalc.read.gguf import GgufHeader
from kvcalc.read.gguf_spec import to_spec
from kvcalc.read.hf_config import config_spec
from kvcalc.read.spec_text import spec_text
from kvcalc.spec.load import index, load
from kvcalc.spec.model import ModelSpec, Source
from kvcalc.spec.resolve import resolve
from kvcalc.yaml_tree import parse
from tests.cli.running import run
from tests.unit.test_read_hf_config import GEMMA_27B, LLAMA, MIXED
from tests.unit.test_read_model_files import write_config, write_gguf, write_weights

GGUFS: dict[str, dict[str, Any]] = {
    "llama": {"attention.head_count": 8, "attention.head_count_kv": 2},
    "gemma3": {"attention.head_count": 8, "attention.head_count_kv": 4, "attention.key_length": 64,
               "attention.value_length": 64, "attention.sliding_window": 128},
    "deepseek2": {"attention.head_count": 8, "attention.head_count_kv": 1, "attention.kv_lora_rank": 64,
                  "attention.key_length": 96, "attention.value_length": 64, "attention.key_length_mla": 64,
                  "attention.value_length_mla": 32, "rope.dimension_count": 32},
    "jamba": {"attention.head_count": 8, "attention.head_count_kv": (0, 2, 0, 0, 2, 0), "ssm.inner_size": 1024,
              "ssm.state_size": 16, "ssm.conv_kernel": 4, "ssm.time_step_rank": 32},
    "t5": {"attention.head_count": 8, "attention.key_length": 64, "attention.value_length": 64},
}  # fmt: skip


def again(spec: ModelSpec) -> ModelSpec:
    """Return what the text of a spec is read as."""
    return resolve(parse(spec_text(spec), "spec.yaml"))


def bytes_of(spec: ModelSpec) -> list[int]:
    placement = api.prepare(spec).placement
    return [placement.total_bytes(context, batch) for context in (1, 100, 5_000) for batch in (1, 7)]


def read(config: dict[str, Any]) -> ModelSpec:
    text = json.dumps(config)
    return config_spec(json.loads(text), text, "config.json")


@pytest.mark.parametrize("name", MIXED)
def test_a_config_is_the_same_after_an_import(name: str) -> None:
    """Every field and every layer, and so every byte."""
    spec = read(MIXED[name][0])
    assert (again(spec).file, again(spec).layers) == (spec.file, spec.layers)
    assert bytes_of(again(spec)) == bytes_of(spec)


@pytest.mark.parametrize("arch", GGUFS)
def test_a_gguf_is_the_same_after_an_import(arch: str) -> None:
    """As above."""
    common = {"context_length": 4096, "embedding_length": 512, "block_count": 6, "feed_forward_length": 1024}
    keys = {**common, **GGUFS[arch]}
    metadata = {"general.architecture": arch, **{f"{arch}.{key}": value for key, value in keys.items()}}
    lengths = {key: len(value) for key, value in metadata.items() if isinstance(value, tuple)}
    spec = to_spec(GgufHeader("some-model.gguf", 3, "little", metadata, lengths, ()))
    assert (again(spec).file, again(spec).layers) == (spec.file, spec.layers)
    assert bytes_of(again(spec)) == bytes_of(spec)


@pytest.mark.parametrize("name", sorted(index()))
def test_a_bundled_model_is_the_same_after_an_import(name: str) -> None:
    """The writer knows every form that a spec has."""
    spec = load(name)
    assert (again(spec).file, again(spec).layers) == (spec.file, spec.layers)


def test_the_text_is_what_a_person_would_write() -> None:
    """Short lines, kinds on one line each, comments where something was assumed or is unknown."""
    spec = read({**GEMMA_27B, "torch_dtype": None, "model_type": "gemma3"})
    text = spec_text(replace(spec, file=spec.file.model_copy(update={"parameters": None}), weights_note="never asked"))
    assert text.splitlines()[0].startswith("# Made by kvcalc ")
    assert "dtype: bfloat16  # assumed: the source does not give it\n" in text
    assert "parameters: null  # unknown: never asked\n" in text
    assert "assumed: [dtype]\n" in text
    assert "kinds:\n  local: {kind: sliding, window: 1024}\n  global: {kind: full}\n" in text
    assert text.endswith("pattern: [local, local, local, local, local, global]\n")
    assert max(map(len, text.splitlines())) <= 110


def test_long_patterns_are_folded() -> None:
    """No line of one is longer than a page is wide."""
    # Thue and Morse's sequence repeats nothing.
    types = ["linear_attention" if bin(index).count("1") % 2 else "full_attention" for index in range(95)]
    spec = read({**LLAMA, "model_type": "qwen3_next", "num_hidden_layers": 95, "layer_types": types})
    pattern = spec_text(spec).partition("pattern:")[2].splitlines()
    assert len(pattern) > 5
    assert max(map(len, pattern)) <= 110
    assert again(spec).layers == spec.layers


TEXT = st.text(st.characters(exclude_categories=()), min_size=1, max_size=60)


@given(url=TEXT, note=TEXT, origin=TEXT)
def test_no_text_breaks_out_of_its_place(url: str, note: str, origin: str) -> None:
    """Quotation marks, line breaks, control characters and half surrogates are written so that YAML reads them."""
    plain = read(LLAMA)
    source = Source.model_construct(url=url, checked=plain.file.source.checked, note=note)
    spec = replace(plain, file=plain.file.model_copy(update={"source": source}), origin=origin, weights_note=origin)
    found = parse(spec_text(spec), "spec.yaml").data["source"]
    expected = ["".join("?" if "\ud800" <= c <= "\udfff" else c for c in text) for text in (url, note)]
    assert [found["url"], found["note"]] == expected


@pytest.mark.parametrize("word", ["no", "Yes", "null", "true", "1e5", "0x10", "12:30", "010", "1_000", "-x", "~"])
def test_words_that_yaml_would_take_for_something_else_are_quoted(word: str) -> None:
    """In every version of YAML."""
    plain = read(LLAMA)
    source = Source.model_construct(url=word, checked=plain.file.source.checked, note=None)
    spec = replace(plain, file=plain.file.model_copy(update={"source": source}))
    assert f'url: "{word}"' in spec_text(spec)
    assert parse(spec_text(spec), "spec.yaml").data["source"]["url"] == word


# --- The command ------------------------------------------------------------------------------------------------------


def test_import_writes_a_spec_that_sizes_the_same(tmp_path: Path) -> None:
    """And says where it comes from, and how large the weights in the file are."""
    config = write_config(tmp_path / "model")
    size = write_weights(config.with_name("model.safetensors"))
    target = tmp_path / "spec.yaml"
    result = run("import", str(config.parent), "-o", str(target))
    assert (result.code, result.out, result.err) == (0, "", f"wrote {target}\n")
    text = target.read_text(encoding="utf-8")
    assert f"# Its tensors take {size:,} bytes" in text
    assert 'url: "file:config.json"' in text
    assert api.size(target, context=77).total_bytes == api.size(config, context=77).total_bytes


def test_import_prints_unless_a_file_is_named(tmp_path: Path) -> None:
    """Or where it is -."""
    path = str(write_gguf(tmp_path / "tiny.gguf"))
    out = run("import", path).out
    assert run("import", path, "-o", "-").out == out
    assert resolve(parse(out, "spec.yaml")).layers == api.load(path).layers


def test_import_does_not_overwrite(tmp_path: Path) -> None:
    """Unless told to."""
    config, target = str(write_config(tmp_path / "model")), tmp_path / "spec.yaml"
    target.write_text("mine", encoding="utf-8")
    result = run("import", config, "-o", str(target))
    assert (result.code, result.err) == (2, f"error: -o {target}: exists; --force overwrites it\n")
    assert target.read_text(encoding="utf-8") == "mine"
    assert run("import", config, "-o", str(target), "--force").code == 0
    assert target.read_text(encoding="utf-8").startswith("# Made by kvcalc")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("spec.txt", "a spec's name ends in .yaml"),
        ("nowhere/spec.yaml", "No such file or directory"),
        ("folder.yaml", "is a folder; name a file in it"),
    ],
)
def test_import_says_where_it_cannot_write(tmp_path: Path, target: str, message: str) -> None:
    """A usage error, and nothing is left behind."""
    (tmp_path / "folder.yaml").mkdir()
    result = run("import", str(write_config(tmp_path / "model")), "-o", str(tmp_path / target))
    assert result.code == 2
    assert message in result.err


def test_a_file_that_cannot_be_read_leaves_no_spec(tmp_path: Path) -> None:
    """The error comes first."""
    target = tmp_path / "spec.yaml"
    result = run("import", str(write_config(tmp_path / "model", model_type="unheard_of")), "-o", str(target))
    assert (result.code, target.exists()) == (1, False)
