"""MODEL arguments that are files: which reader a path needs, the weights beside a config, and every command."""

from __future__ import annotations

import json
import os
import struct
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from kvcalc import api
from kvcalc.errors import BadInput, KvcalcError, SpecError
from kvcalc.read.model_files import is_foreign, read_model
from tests.cli.running import run

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
}
SPEC = """name: tiny
architecture: llama
source: {url: https://example.org, checked: 2026-11-29}
layers: 2
hidden_size: 64
heads: 4
kv_heads: 2
dtype: float16
max_context: 512
parameters: null
"""
PER_TOKEN = 2 * 2 * 2 * 16 * 2  # layers, K and V, KV heads, elements, bytes
PARAMETERS = 2 * 100 * 64 + 2 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128 + 2 * 64) + 64


def write_config(folder: Path, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "config.json"
    path.write_text(json.dumps({**CONFIG, **changes}), encoding="utf-8")
    return path


def write_weights(path: Path, dtype: str = "F16", elements: int = 1000) -> int:
    """Write a safetensors file of one tensor; return its bytes."""
    size = elements * {"F16": 2, "F8_E4M3": 1}[dtype]
    header = json.dumps({"w": {"dtype": dtype, "shape": [elements], "data_offsets": [0, size]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(size))
    return size


def write_gguf(path: Path, tensors: bool = True, **extra: int) -> Path:
    """Write a small llama by the gguf package."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in {"block_count": 2, "embedding_length": 64, "attention.head_count": 4,
                       "attention.head_count_kv": 2, "context_length": 512, "feed_forward_length": 128,
                       **extra}.items():  # fmt: skip
        writer.add_uint32(f"llama.{key}", value)
    if tensors:
        writer.add_tensor("token_embd.weight", np.zeros((100, 64), dtype=np.float16))
        writer.add_tensor("blk.0.attn_norm.weight", np.zeros(64, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_config_alone_gives_parameters_times_dtype(tmp_path: Path) -> None:
    """The file or its folder, from anywhere."""
    path = write_config(tmp_path / "model")
    for given in (path, path.parent, str(path)):
        result = api.size(given, context=10, batch=3)
        assert (result.model, result.per_token_bytes, result.total_bytes) == ("model", PER_TOKEN, 30 * PER_TOKEN)
        assert (result.weights_bytes, result.weights_note) == (2 * PARAMETERS, "")


def test_weights_beside_a_config_are_taken_from_their_headers(tmp_path: Path) -> None:
    """Quantised weights do not change the cache: it stays in the model's dtype."""
    path = write_config(tmp_path / "model", quantization_config={"quant_method": "fp8"})
    size = write_weights(path.with_name("model.safetensors"), "F8_E4M3")
    for given in (path.parent, path.with_name("model.safetensors")):
        result = api.size(given, context=10)
        assert (result.weights_bytes, result.weights_note) == (size, "from the file")
        assert (result.kv_dtype, result.total_bytes) == ("fp16", 10 * PER_TOKEN)
        assert "weights       1,000 bytes, from the file" in str(result)
    assert api.size(path.parent, context=10, weights="fp32").weights_bytes == 4 * PARAMETERS


def test_an_index_stands_for_its_shards(tmp_path: Path) -> None:
    """Named itself or found in the folder; where a shard is missing, a folder still has its parameters."""
    folder = write_config(tmp_path / "model").parent
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    total = write_weights(folder / names[0])
    header = json.dumps({"v": {"dtype": "F16", "shape": [5], "data_offsets": [0, 10]}}).encode()
    (folder / names[1]).write_bytes(struct.pack("<Q", len(header)) + header + bytes(10))
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": names[0], "v": names[1]}}), encoding="utf-8")
    for given in (folder, index, folder / names[1]):
        assert api.load(given).weights_bytes == total + 10
    (folder / names[1]).unlink()
    spec = api.load(folder)
    assert (spec.weights_bytes, spec.parameters) == (None, PARAMETERS)
    assert spec.weights_note.startswith("parameters x dtype, because model-00002-of-00002.safetensors cannot be read")
    with pytest.raises(SpecError, match="cannot be read"):
        api.load(index)


def test_weights_without_a_config_are_no_model(tmp_path: Path) -> None:
    """Tensors do not say what layers keep."""
    write_weights(tmp_path / "model.safetensors")
    with pytest.raises(BadInput, match=r"its model is described by a config\.json, and there is none beside it"):
        api.load(tmp_path / "model.safetensors")


def test_a_gguf_gives_cache_and_weights(tmp_path: Path) -> None:
    """By its name, by its magic under any name, or as the only one of its folder."""
    path = write_gguf(tmp_path / "tiny.gguf")
    (tmp_path / "mmproj-tiny.gguf").write_bytes(b"not read")
    (tmp_path / "blob").write_bytes(path.read_bytes())
    for given in (path, tmp_path / "blob", tmp_path):
        result = api.size(given, context=10)
        assert (result.total_bytes, result.weights_bytes) == (10 * PER_TOKEN, 100 * 64 * 2 + 64 * 4)
    assert api.load(path).file.tie_word_embeddings is True
    assert api.load(path).file.intermediate_size == 128


def test_a_gguf_without_tensors_has_no_weights(tmp_path: Path) -> None:
    """A vocabulary, or metadata alone."""
    result = api.size(write_gguf(tmp_path / "vocab.gguf", tensors=False), context=10)
    assert (result.weights_bytes, result.weights_note) == (None, "the file has no tensors")


def test_a_folder_of_a_spec_is_that_spec(tmp_path: Path) -> None:
    """Where it holds nothing that goes before it."""
    (tmp_path / "tiny.yaml").write_text(SPEC, encoding="utf-8")
    assert api.load(tmp_path).name == "tiny"
    assert api.load(tmp_path / "tiny.yaml").name == "tiny"
    write_config(tmp_path)
    assert api.load(tmp_path).parameters == PARAMETERS


def test_a_spec_may_have_any_name(tmp_path: Path) -> None:
    """What is neither GGUF nor JSON is read as YAML."""
    (tmp_path / "spec.txt").write_text(SPEC, encoding="utf-8")
    assert not is_foreign(tmp_path / "spec.txt")
    assert api.load(tmp_path / "spec.txt").name == "tiny"


def test_catalogue_names_go_before_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder called like a model is reached by ./ in front."""
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path / "gpt2")
    assert api.load("gpt2").name == "gpt2-small"
    assert api.load("./gpt2").name == "gpt2"
    write_config(tmp_path / "other")
    assert api.load("other").name == "other"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "is a folder without a model: no config.json, no .gguf file and no spec in it"),
        (["confg.json"], "and no spec in it; did you mean confg.json?"),
        (["a.gguf", "b.gguf"], "is a folder with 2 GGUF files; name one: a.gguf, b.gguf"),
        (["a.yaml", "b.yml"], "is a folder with 2 specs; name one: a.yaml, b.yml"),
    ],
)
def test_a_folder_that_leaves_open_what_is_meant_is_refused(tmp_path: Path, names: list[str], message: str) -> None:
    """With what there is."""
    for name in names:
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(BadInput) as caught:
        read_model(tmp_path)
    assert message in str(caught.value)


def test_only_the_first_parts_of_split_sets_are_counted(tmp_path: Path) -> None:
    """Three parts are one model."""
    for number in (1, 2, 3):
        (tmp_path / f"m-{number:05}-of-00003.gguf").write_bytes(b"")
    with pytest.raises(SpecError, match=r"m-00001-of-00003\.gguf:1:1: is empty, not a GGUF file"):
        read_model(tmp_path)


def test_hostile_paths_are_refused_in_a_moment(tmp_path: Path) -> None:
    """Links in circles, folders that cannot be read, pipes, names of no file system."""
    loop = tmp_path / "loop.json"
    loop.symlink_to(loop)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.json").symlink_to(tmp_path / "a" / "config.json")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "config.json").mkdir()
    began = time.monotonic()
    for given in (loop, tmp_path / "a", tmp_path / "b", "./nowhere.json", "./" + "x" * 3000, "~nobody/config.json",
                  "/dev/null/config.json", "./\0.json"):  # fmt: skip
        with pytest.raises(KvcalcError):
            api.load(given)
    assert time.monotonic() - began < 5


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes")
def test_a_pipe_among_the_weights_does_not_hang(tmp_path: Path) -> None:
    """It is not opened."""
    folder = write_config(tmp_path / "model").parent
    os.mkfifo(folder / "model.safetensors")
    assert api.load(folder).weights_note == "parameters x dtype, because model.safetensors is not a regular file"


COMMANDS = (
    "size {} --ctx 10",
    "explain {} --ctx 10",
    "show {}",
    "compare {} gpt2 --ctx 10",
    "compare {} --attention mha,mqa --ctx 10",
    "compare {} --kv-dtypes fp16,fp8 --ctx 10",
    "compare {} --engines ideal,vllm --ctx 10",
    "compare {} --remedies --ctx 10",
    "fit {} --kv-memory 1GiB",
    "plot context {} --json",
    "import {}",
)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", ["config", "folder", "gguf", "safetensors"])
def test_every_command_takes_a_file_for_a_name(tmp_path: Path, command: str, kind: str) -> None:
    """Whatever the file is."""
    config = write_config(tmp_path / "model")
    write_weights(config.with_name("model.safetensors"))
    paths = {"config": config, "folder": config.parent, "gguf": write_gguf(tmp_path / "model.gguf"),
             "safetensors": config.with_name("model.safetensors")}  # fmt: skip
    result = run(*command.format(paths[kind]).split())
    assert result.code == 0, result.err
    assert result.out


def test_show_tells_where_the_weights_come_from(tmp_path: Path) -> None:
    """Their exact bytes, or why the number of parameters is unknown."""
    config = write_config(tmp_path / "model")
    write_weights(config.with_name("model.safetensors"))
    assert "2,000 bytes" in run("show", str(config.parent)).out
    write_config(tmp_path / "other", model_type="deepseek")
    out = " ".join(run("show", str(tmp_path / "other")).out.split())
    assert "parameters unknown (model type deepseek is not counted" in out
