"""Server commands in scripts, Dockerfiles and compose files."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvcalc.errors import SpecError
from kvcalc.read.command_files import read_commands
from kvcalc.read.command_line import ServerCommand

Read = Callable[[str, str], tuple[ServerCommand, ...]]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Return a function that reads a file of a name and a text."""

    def one(name: str, text: str) -> tuple[ServerCommand, ...]:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return read_commands(path)

    return one


SCRIPT = r"""#!/bin/bash
# don't be fooled: vllm serve not-this
set -e
export MODEL="Qwen/Qwen3-8B"   # the model
TP=${TP:-2}
if true; then
  CUDA_VISIBLE_DEVICES=0,1 vllm serve $MODEL \
    --tensor-parallel-size "${TP}" \
    --max-model-len ${LEN:-32768} > server.log 2>&1 &
fi
echo 'vllm serve not-this-either'
llama-server -m 'my model.gguf' -c 8192 -np 2; echo done
bash -lc "vllm serve other --served-model-name 'a b' && true"
"""


def test_a_script_is_read_with_its_variables_comments_and_continued_lines(read: Read) -> None:
    """Each command has the line on which it starts."""
    first, second, third = read("serve.sh", SCRIPT)
    assert (first.model, first.arguments, first.context, first.line) == ("Qwen/Qwen3-8B", {"tp": 2}, 32768, 7)
    assert first.unknown == ()
    assert (second.model, second.context, second.batch, second.line) == ("my model.gguf", 4096, 2, 12)
    assert (third.model, third.unknown, third.line) == ("other", (), 13)


@pytest.mark.parametrize(
    "text",
    [
        'FROM vllm/vllm-openai:v0.33.0\nCMD ["--model", "m", "--max-model-len", "4096"]\n',
        'FROM python:3\nENTRYPOINT ["vllm", "serve"]\nCMD ["m", "--max-model-len", "4096"]\n',
        "FROM python:3\nCMD vllm serve m --max-model-len 4096\n",
        'FROM python:3\nCMD ["sh", "-c", "exec vllm serve m --max-model-len 4096"]\n',
        "FROM a AS build\nRUN pip install vllm\nCMD vllm serve no\nFROM python:3\nENTRYPOINT vllm serve m \\\n"
        "  # why\n  --max-model-len 4096\n",
        "ARG LEN=4096\nFROM python:3\nENV MODEL=m\nCMD vllm serve ${MODEL} --max-model-len $LEN\n",
    ],
)
def test_a_dockerfile_starts_its_entrypoint_with_its_command(read: Read, text: str) -> None:
    """Exec form, shell form, or both, the last stage alone."""
    (command,) = read("Dockerfile", text)
    assert (command.engine, command.model, command.context) == ("vllm", "m", 4096)


COMPOSE = """
x-common: &common
  image: vllm/vllm-openai:latest
  shm_size: 8g
services:
  chat:
    <<: *common
    ports: ["8000:8000", 8001:8001]
    deploy: {resources: {limits: {cpus: 0.50}}}
    command: >
      --model Qwen/Qwen3-8B
      --max-model-len ${LEN:-8192}
      --gpu-memory-utilization 0.9
  small:
    image: ghcr.io/ggml-org/llama.cpp:server
    environment: {LLAMA_ARG_FLASH_ATTN: on}
    command: [-m, /models/x.gguf, -c, 16384, -np, 4]
  own:
    image: mine
    entrypoint: [bash, -c]
    command: ["vllm serve third --max-num-seqs 8"]
  web:
    image: nginx
    command: nginx -g 'daemon off;'
"""


def test_a_compose_file_has_a_command_for_each_service(read: Read) -> None:
    """As a list or a text, after the program of a well-known image, with anchors and unquoted ports."""
    chat, small, own = read("compose.yaml", COMPOSE)
    assert (chat.model, chat.context, chat.utilization) == ("Qwen/Qwen3-8B", 8192, "0.9")
    assert (small.engine, small.model, small.context, small.batch) == ("llama.cpp", "/models/x.gguf", 4096, 4)
    assert small.unknown == ("LLAMA_ARG_FLASH_ATTN=on",)
    assert (own.model, own.batch) == ("third", 8)
    assert chat.line == 6


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("s.sh", "echo hello\n", ":1:1: has no command that starts vllm serve or llama-server"),
        ("s.sh", "\n\nvllm serve m -tp $TP\n", ":3:1: -tp $TP: the value of the variable is not known; write it out"),
        ("s.sh", "vllm serve 'm\n", ":1:1: a quotation mark is not closed on this line"),
        ("s.sh", "vllm serve $(cat model)\n", "the model is $, a variable"),
        ("Dockerfile", "FROM a\nCMD [vllm, serve]\n", ":2:1: is not a JSON list of words"),
        ("Dockerfile", 'FROM a\nCMD ["vllm", "serve"]\n', ":2:1: the command names no model"),
        ("c.yaml", "services:\n  a:\n    command: vllm serve 'm\n", ":2:1: command: a quotation mark is not closed"),
        ("c.yaml", "services: [\n", "not valid YAML"),
        ("c.yaml", "- a\n- b\n", "not a compose file: the top level must be a mapping"),
        ("c.yaml", "a: " + "[" * 40 + "]" * 40, "nested deeper than 32 levels"),
        ("c.yaml", "a: \x01", "not a compose file: control characters"),
        ("c.yaml", "services: {a: 5, b: {command: {c: d}}}\n", "has no command that starts"),
    ],
)
def test_a_file_that_cannot_be_judged_is_refused_with_the_place(read: Read, name: str, text: str, message: str) -> None:
    """File, line and reason."""
    with pytest.raises(SpecError) as caught:
        read(name, text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("s.sh", "vllm serve m " + "x " * 250_000),
        ("s.sh", "vllm serve m" + " \\\n --made-up 1" * 10_000),
        ("s.sh", "true\n" * 10_000 + "vllm serve m\n"),
        ("s.sh", "vllm serve m\n" * 10_000),
        ("s.sh", "vllm serve m " + "'a' " * 100_000),
        ("s.sh", "A=$A$A\n" * 10_000 + "vllm serve m $A\n"),
        ("s.sh", "A=aaaaaaaaaaaaaaaa\n" + "A=$A$A\n" * 1_000 + "vllm serve m\n"),
        ("s.sh", "vllm serve m \0\n"),
        ("Dockerfile", "FROM a\n" + "RUN x\n" * 10_000 + 'CMD ["vllm", "serve", "m"]\n'),
        ("c.yaml", "a: &a {x: y}\n" + "".join(f"a{n}: &b{n} {{<<: *a}}\n" for n in range(9_000))
         + "services: {s: {command: vllm serve m}}\n"),
    ],
)  # fmt: skip
def test_large_files_take_a_moment(read: Read, name: str, text: str) -> None:
    """Long lines, many lines, and variables that double each time."""
    began = time.monotonic()
    assert read(name, text)[0].model == "m"
    assert time.monotonic() - began < 10  # a second or less alone on the machine


def test_a_file_of_more_than_a_mebibyte_is_refused(read: Read) -> None:
    """Before it is looked at."""
    with pytest.raises(SpecError, match="larger than"):
        read("s.sh", "vllm serve m\n" + "#" * 2**20)
