"""What people see, whole: every command and option group against a file under `snapshots/`.

`KVCALC_UPDATE_SNAPSHOTS=1 pytest tests/cli/test_snapshots.py` writes the files anew; read the difference before you
keep it. Each holds the command line, the standard output and, after a line of dashes, what went to standard error.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from tests.cli.running import run

SNAPSHOTS = Path(__file__).parent / "snapshots"
UPDATE = os.environ.get("KVCALC_UPDATE_SNAPSHOTS") == "1"

CALLS = {
    "help": "--help",
    "help-size": "size --help",
    "help-explain": "explain --help",
    "help-compare": "compare --help",
    "help-models": "models --help",
    "help-show": "show --help",
    "help-engines": "engines --help",
    "help-gpus": "gpus --help",
    "help-fit": "fit --help",
    "help-which": "which --help",
    "help-check": "check --help",
    "version": "--version",
    "size": "size gpt2-small --ctx 4096 --batch 8",
    "size-json": "size gpt2-small --ctx 4096 --batch 8 --json",
    "size-csv": "size gpt2-small --ctx 1024 --format csv",
    "size-md": "size gpt2-small --ctx 1024 --format md",
    "size-si": "size gpt2-small --ctx 1024 --units si",
    "size-bytes": "size gpt2-small --ctx 1024 --units bytes",
    "size-hybrid": "size gemma-3-27b --ctx 32K --batch 4",
    "size-ranks": "size llama-3.1-8b --ctx 8K --batch 9 --tp 4 --pp 3 --dp 2",
    "size-stored-as": "size llama-3.1-8b --ctx 8K --kv-dtype q8_0/q4_0 --weights q4_0 --dtype fp16",
    "size-encoder": "size whisper-large-v3 --ctx 100 --encoder-ctx 750",
    "size-paged": "size llama-3.1-8b --ctx 1000 --batch 3 -o block_size=16",
    "size-reserved": "size llama-3.1-8b --ctx 1000 --reserve-ctx 8192",
    "size-evicted": "size llama-3.1-8b --ctx 8K --evict window:1020,sinks:4",
    "size-shared-prefix": "size llama-3.1-8b --ctx 8K --batch 16 --shared-prefix 2K",
    "explain": "explain gpt2-small --ctx 4096 --batch 8",
    "explain-json": "explain gpt2-small --ctx 4096 --batch 8 --json",
    "explain-csv": "explain gpt2-small --ctx 1024 --format csv",
    "explain-md": "explain gpt2-small --ctx 1024 --format md",
    "explain-bytes": "explain gpt2-small --ctx 1024 --units bytes",
    "explain-hybrid": "explain gemma-3-27b --ctx 32768 --batch 3 --tp 4 --dp 2 -o block_size=16",
    "explain-mla": "explain deepseek-v3.2 --ctx 4096",
    "explain-compressed": "explain deepseek-v4-flash --ctx 4099",
    "explain-encoder": "explain whisper-large-v3 --ctx 100 --batch 2",
    "explain-state": "explain mamba2-2.7b --ctx 4096",
    "explain-shared-layers": "explain gemma-3n-e4b --ctx 4096",
    "explain-shared-prefix": "explain gemma-3-27b --ctx 4K --batch 4 --shared-prefix 2000 --evict window:1000,sinks:4",
    "explain-chunked": "explain llama-4-scout --ctx 20000 --batch 3",
    "explain-stages": "explain nemotron-h-56b --ctx 4096 --pp 2 --tp 2 --kv-dtype q8_0/q4_0",
    "explain-reserved": "explain llama-3.1-8b --ctx 4096 --reserve-ctx 8192 --tp 16 --kv-dtype int8",
    "compare-models": "compare llama-3.1-8b qwen3-8b --ctx 32768",
    "compare-json": "compare llama-3.1-8b qwen3-8b --ctx 32768 --json",
    "compare-attention": "compare gpt2-small --attention mha,gqa:4,mqa --ctx 4096",
    "compare-kv-dtypes": "compare llama-3.1-8b --kv-dtypes bf16,fp8,q8_0/q4_0 --ctx 8K --batch 8",
    "compare-bytes": "compare llama-3.1-8b --kv-dtypes bf16,fp8 --ctx 8K --batch 8 --units bytes",
    "compare-csv": "compare gpt2-small --attention mha,mqa --ctx 1000 --format csv",
    "compare-md": "compare gpt2-small --attention mha,mqa --ctx 1000 --format md",
    "compare-remedies": "compare gpt2-small --remedies --ctx 512 --batch 8",
    "compare-remedies-given": "compare llama-3.1-8b --remedies --ctx 8K --batch 4 --evict budget:1024"
    " --shared-prefix 4K --reserve-ctx 16K -o block_size=32",
    "compare-remedies-state": "compare mamba2-2.7b --remedies --ctx 4096",
    "compare-gpus": "compare llama-3.1-8b --gpu l4,h100-80gb --ctx 8K --engine vllm --price l4=0.8"
    " --price h100-80gb=2.5",
    "fit-gpu": "fit llama-3.1-8b --gpu rtx-4090 --ctx 8K --engine vllm",
    "fit-layouts": "fit gemma-3-27b --gpu l4 --gpus 1..8 --ctx 32K --kv-dtype fp8",
    "fit-lengths": "fit llama-3.1-8b --kv-memory 16GiB --ctx 8K --lengths p50=800,p95=6000",
    "fit-json": "fit gpt2-small --gpu t4 --json",
    "fit-csv": "fit gpt2-small --gpu t4 --format csv",
    "fit-md": "fit gpt2-small --gpu t4 --format md",
    "fit-bytes": "fit gpt-oss-20b --gpu rtx-5090 --weights vllm-mxfp4 --ctx 32K --units bytes",
    "which": "which --gpu t4 --ctx 32K",
    "check-command": "check --gpu l4 -- vllm serve Qwen/Qwen3-8B --max-model-len 8192 --max-num-seqs 64",
    "models": "models gpt2",
    "models-json": "models gpt2-small --json",
    "models-csv": "models gpt2-small --format csv",
    "models-md": "models gpt2-small --format md",
    "show": "show gemma-3-27b",
    "show-json": "show gemma-3-27b --json",
    "show-csv": "show gpt2-small --format csv",
    "show-md": "show gpt2-small --format md",
    "show-two-kinds": "show whisper-large-v3",
    "show-empty-layers": "show nemotron-h-56b",
    "gpus": "gpus rtx-40",
    "gpus-one": "gpus m3-max-64gb --units bytes",
    "gpus-assumed": "gpus t4",
    "gpus-json": "gpus t4 --json",
    "gpus-csv": "gpus h200 --format csv",
    "gpus-md": "gpus mi35 --format md",
    "engines": "engines ideal",
    "engines-json": "engines ideal --json",
    "engines-csv": "engines ideal --format csv",
    "engines-md": "engines ideal --format md",
}


@pytest.mark.parametrize("name", CALLS)
def test_a_command_prints_what_its_snapshot_holds(name: str) -> None:
    """The whole output is the one that was looked at and kept."""
    result = run(*shlex.split(CALLS[name]))
    assert result.code == 0, result.err
    text = f"$ kvcalc {CALLS[name]}\n{result.out}" + (f"{'-' * 8}\n{result.err}" if result.err else "")
    path = SNAPSHOTS / f"{name}.txt"
    if UPDATE:
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_every_snapshot_has_a_call() -> None:
    """No file is left behind when a call goes."""
    assert {path.stem for path in SNAPSHOTS.iterdir()} == set(CALLS)


@pytest.mark.parametrize("name", [name for name in CALLS if not name.endswith(("-json", "-csv", "-md"))])
def test_what_people_read_fits_eighty_columns(name: str) -> None:
    """No line wraps, but for an address that cannot be folded."""
    lines = (SNAPSHOTS / f"{name}.txt").read_text(encoding="utf-8").splitlines()[1:]
    report = lines[: lines.index("-" * 8)] if "-" * 8 in lines else lines
    assert [line for line in report if len(line) > 80 and "://" not in line] == []
