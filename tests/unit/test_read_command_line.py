"""Server command lines: what `vllm serve` and `llama-server` are told about the cache, and what is refused."""

from __future__ import annotations

import shlex
import time
from typing import Any

import pytest

from kvcalc.engines import find_engine
from kvcalc.errors import BadInput
from kvcalc.read.command_line import ServerCommand, flag_of, image_program, parse_command


def parsed(text: str) -> ServerCommand:
    return parse_command(shlex.split(text))


def test_vllm_flags_become_arguments_and_options() -> None:
    """Parallelism and dtype go to `prepare`, the rest to the engine by its own names."""
    command = parsed(
        "vllm serve Qwen/Qwen3-8B --tensor-parallel-size 2 -pp 2 -dp 4 --dtype bfloat16 --kv-cache-dtype fp8 "
        "--max-model-len 32768 --max-num-seqs 64 --gpu-memory-utilization 0.85 --block-size 32 "
        "--no-enable-prefix-caching"
    )
    assert command == ServerCommand(
        engine="vllm",
        model="Qwen/Qwen3-8B",
        context=32768,
        batch=64,
        arguments={"dtype": "bfloat16", "tp": 2, "pp": 2, "dp": 4},
        options={"kv_cache_dtype": "fp8", "block_size": "32", "enable_prefix_caching": "false"},
        utilization="0.85",
    )


def test_llama_server_shares_its_context_out_among_the_slots() -> None:
    """`-c` counts the tokens of all slots together; options keep llama.cpp's names."""
    command = parsed("llama-server -m ./model.gguf -c 65536 -np 8 -ctk q8_0 -ctv q8_0 -ub 256 -fa on --port 8080")
    assert (command.engine, command.model, command.context, command.batch) == ("llama.cpp", "./model.gguf", 8192, 8)
    assert command.options == {
        "n_ctx": "65536", "n_seq_max": "8", "type_k": "q8_0", "type_v": "q8_0", "n_ubatch": "256", "flash_attn": "on",
    }  # fmt: skip
    assert command.unknown == ()


def test_slots_of_a_unified_cache_may_each_use_all_of_it() -> None:
    """With -kvu no slot has a share of its own."""
    assert parsed("llama-server -m m.gguf -c 65536 -np 8 -kvu").context == 65536


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("vllm serve m --max-model-len=8192", "context", 8192),
        ("vllm serve m --max_model_len 8192", "context", 8192),
        ("vllm serve m --max-model-len 8k", "context", 8000),
        ("vllm serve m --max-model-len 8K", "context", 8192),
        ("vllm serve m --max-model-len 1M", "context", 2**20),
        ("vllm serve m --max-model-len 25.6k", "context", 25600),
        ("vllm serve m --max-model-len auto", "context", None),
        ("vllm serve m --max-model-len auto", "options", {"auto_fit": "true"}),
        ("vllm serve m --quantization gptq", "arguments", {"weights": "w4a16"}),
        ("vllm serve m -q compressed-tensors", "unknown", ("--quantization compressed-tensors",)),
        ("vllm serve m --enforce-eager", "eager", True),
        ("vllm serve m --enforce-eager --no-enforce-eager", "eager", False),
        ("vllm serve m", "context", None),
        ("vllm serve m --dtype auto", "arguments", {}),
        ("vllm serve m --kv-cache-dtype auto", "options", {}),
        ("vllm serve m --max-num-batched-tokens 16k", "options", {"max_num_batched_tokens": "16000"}),
        ("vllm serve m --kv-cache-memory-bytes 24G", "kv_memory", 24 * 2**30),
        ("vllm serve m -tp=4", "arguments", {"tp": 4}),
        ("vllm serve --port 80 m -tp 4", "model", "m"),
        ("vllm serve --trust-remote-code m", "model", "m"),
        ("vllm serve --trust-remote-code=true m", "model", "m"),
        ("vllm serve --model m", "model", "m"),
        ("python3 -m vllm.entrypoints.openai.api_server --model m", "model", "m"),
        ("CUDA_VISIBLE_DEVICES=0,1 exec vllm serve m -tp 2", "arguments", {"tp": 2}),
        ("numactl --interleave=all vllm serve m", "model", "m"),
        ("nohup /opt/venv/bin/vllm serve m", "model", "m"),
        ("uv run --with vllm vllm serve m", "model", "m"),
        ("docker run --gpus all -p 8000:8000 vllm/vllm-openai:v0.33.0 --model m -tp 2", "arguments", {"tp": 2}),
        ("docker run ghcr.io/ggml-org/llama.cpp:server-cuda -m x.gguf -c 4096", "context", 4096),
        ("llama-server -m x.gguf -c 0", "context", None),
        ("llama-server -hf ggml-org/gemma-3-4b-it-GGUF:Q4_K_M", "model", "ggml-org/gemma-3-4b-it-GGUF:Q4_K_M"),
        ("./build/bin/llama-server -m x.gguf -fa", "options", {"flash_attn": "on"}),
        ("llama-server -fa -m x.gguf", "model", "x.gguf"),
        ("llama-server -m x.gguf -fa 0", "options", {"flash_attn": "off"}),
        ("llama-server -m x.gguf --swa-full=false", "options", {}),
        ("LLAMA_ARG_CTX_SIZE=8192 llama-server -m x.gguf", "unknown", ("LLAMA_ARG_CTX_SIZE=8192",)),
    ],
)
def test_the_spellings_of_a_flag_mean_the_same(text: str, field: str, value: Any) -> None:
    """With - or _, with = or a space, before or after the model, in vLLM's units."""
    assert getattr(parsed(text), field) == value


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("vllm serve m --speculative-config '{\"method\": 1}'", ('--speculative-config {"method": 1}',)),
        ("vllm serve m --enforce-eager --lora-modules a=b c=d", ("--lora-modules a=b c=d",)),
        ("vllm serve --not-a-flag value m", ("--not-a-flag value",)),
        ("vllm serve m extra", ("extra",)),
        ("vllm serve m --enable-prefix-caching=maybe", ("--enable-prefix-caching=maybe",)),
        ("llama-server -m x.gguf --made-up 7", ("--made-up 7",)),
    ],
)
def test_what_is_not_understood_is_listed(text: str, unknown: tuple[str, ...]) -> None:
    """Nobody takes an answer for more than it is."""
    assert parsed(text).unknown == unknown


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("vllm serve", "the command names no model"),
        ("vllm serve --made-up m", "the command names no model (not understood: --made-up m)"),
        ("vllm serve $MODEL", "the model is $MODEL, a variable whose value is not known"),
        ("vllm serve m -tp $TP", "-tp $TP: the value of the variable is not known"),
        ("vllm serve m -tp two", "tp two is not a whole number from 1 on"),
        ("vllm serve m -tp 0", "tp 0 is not a whole number from 1 on"),
        ("vllm serve m --max-model-len", "--max-model-len needs a value"),
        ("vllm serve m --max-model-len -5", "--max-model-len -5 is not a whole number"),
        ("vllm serve m --max-model-len 1.0001k", "--max-model-len 1.0001k is not a whole number"),
        ("vllm serve m --max-num-seqs many", "--max-num-seqs many is not a whole number"),
        ("llama-server -m x.gguf -c 8K", "-c 8K is not a whole number from 0 on"),
        ("llama-server", "the command names no model"),
        ("vllm bench serve", "only 'vllm serve MODEL ...' starts a server"),
        ("ollama run llama3", "'ollama' is no server that is known"),
        ("", "'nothing' is no server that is known"),
    ],
)
def test_a_command_that_cannot_be_judged_is_refused(text: str, message: str) -> None:
    """With the flag and what is wrong with it."""
    with pytest.raises(BadInput) as caught:
        parsed(text)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 400


def test_half_a_million_words_take_no_time() -> None:
    """Reading is linear in the words."""
    began = time.monotonic()
    command = parse_command(["vllm", "serve", "m", *["x"] * 250_000, *["--made-up", "1"] * 125_000])
    assert len(command.unknown) == 375_000
    assert time.monotonic() - began < 5  # a second alone on the machine


@pytest.mark.parametrize("engine", ["vllm", "llama.cpp"])
def test_every_flag_sets_an_option_that_the_engine_has(engine: str) -> None:
    """Options are named as the engine profile names them."""
    from kvcalc.read import command_line

    flags = command_line._VLLM if engine == "vllm" else command_line._LLAMA
    targets = {flag.target[8:] for flag in flags.values() if flag.target.startswith("options.")}
    assert targets <= set(find_engine(engine).options_class.model_fields)


def test_an_option_is_written_as_it_is_read() -> None:
    """`flag_of` is the way back."""
    assert flag_of("vllm", "block_size", "32") == ("--block-size", "32")
    assert flag_of("vllm", "enable_prefix_caching", "false") == ("--no-enable-prefix-caching",)
    assert flag_of("llama.cpp", "type_k", "q8_0") == ("-ctk", "q8_0")
    assert flag_of("vllm", "auto_fit", "true") == ()


def test_well_known_images_start_their_server() -> None:
    """By their names, whatever the registry and the tag."""
    for image in ("vllm/vllm-openai", "docker.io/vllm/vllm-openai:v1@sha256:0"):
        assert image_program(image) == ["vllm", "serve"]
    assert image_program("ghcr.io/ggml-org/llama.cpp:server-cuda-b6000") == ["llama-server"]
    assert image_program("ghcr.io/ggml-org/llama.cpp:full") == []
    assert image_program("nginx") == []
