"""`kvcalc check`: declared deployments and real command lines as a gate: exit codes, places, annotations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.running import run

GOOD = """\
deployments:
  - name: chat
    model: llama-3.1-8b
    engine: vllm
    gpu: h100-80gb
    contexts: [8K, 128Ki]
    batch: 16
    reserve: 1GiB
    utilization: "0.9"
    options: {enable_prefix_caching: true}
  - name: small
    model: gpt2-small
    gpu: l4
    context: 1024
"""


@pytest.fixture
def deployment(tmp_path: Path) -> Path:
    """A file with two deployments, of which one does not fit at its longer context."""
    path = tmp_path / "deployment.yaml"
    path.write_text(GOOD, encoding="utf-8")
    return path


def test_one_line_for_each_part_and_exit_3(deployment: Path) -> None:
    """Every context of every deployment, with its place, and what would help where it does not fit."""
    result = run("check", str(deployment))
    lines = result.out.splitlines()
    assert result.code == 3
    assert [line.split(": ")[1] for line in lines] == ["chat", "chat", "small"]
    assert lines[0].startswith(f"{deployment}:2:5: chat: batch 16 at context 8,192 fits")
    assert "batch 16 at context 131,072 does not fit: rank 0 lacks" in lines[1]
    assert "--ctx" in lines[1]
    assert lines[2].startswith(f"{deployment}:11:5: small: batch 1 at context 1,024 fits")


def test_annotations_for_github(deployment: Path) -> None:
    """Only what fails, on the line of its deployment, with commas and colons of the file's name escaped."""
    result = run("check", str(deployment), "--format", "github")
    (line,) = result.out.splitlines()
    assert result.code == 3
    assert line.startswith(
        f"::error file={str(deployment).replace(':', '%3A').replace(',', '%2C')},line=2,col=5::chat: "
    )
    deployment.write_text(GOOD.replace("[8K, 128Ki]", "[8K]"), encoding="utf-8")
    fine = run("check", str(deployment), "--format", "github")
    assert (fine.code, fine.out) == (0, "all deployments fit\n")


def test_json_and_rows(deployment: Path) -> None:
    """The parts as data."""
    data = json.loads(run("check", str(deployment), "--json").out)
    assert (data["schema"], data["fits"]) == ("kvcalc.check/1", False)
    assert [part["fits"] for part in data["parts"]] == [True, False, True]
    assert run("check", str(deployment), "--format", "csv").out.count("\n") == 4
    assert run("check", str(deployment), "--json", "--format", "md").code == 2


def test_a_file_of_one_deployment_needs_no_list(tmp_path: Path) -> None:
    """Its keys stand at the top; a memory for the cache serves instead of a GPU."""
    path = tmp_path / "one.yml"
    path.write_text("model: gpt2-small\nkv_memory: 1GiB\ncontext: 1K\nbatch: 2\n", encoding="utf-8")
    assert run("check", str(path)).code == 0


def test_several_files_are_judged_together(deployment: Path, tmp_path: Path) -> None:
    """As a pre-commit hook passes them."""
    other = tmp_path / "other.yaml"
    other.write_text("model: gpt2-small\ngpu: l4\n", encoding="utf-8")
    assert run("check", str(deployment), str(other)).out.count("\n") == 4


def test_a_layout_of_declared_gpus_is_searched(tmp_path: Path) -> None:
    """Eight GPUs without degrees: the best layout of eight counts."""
    path = tmp_path / "many.yaml"
    path.write_text("model: llama-3.1-70b\ngpu: h100-80gb\ngpus: 8\ncontext: 8K\nbatch: 64\n", encoding="utf-8")
    assert run("check", str(path)).code == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ":1:1: must hold a deployment"),
        ("just text\n", ":1:1: must hold a deployment"),
        ("[]\n", ":1:1: must hold a deployment"),
        ("deployments: []\n", ":1:14: deployments: must be a list of deployments"),
        ("deployments: [3]\n", ":1:15: deployments[0]: must be a mapping"),
        ("deployments: [{model: gpt2-small, gpu: l4}]\nother: 1\n", ":2:1: other: stands beside"),
        ("model: gpt2-small\n", ":1:1: lacks 'gpu'"),
        ("gpu: l4\n", ":1:1: lacks 'model'"),
        ("model: gpt2-small\ngup: l4\n", ":2:1: gup: unknown key; did you mean gpu?"),
        ("model: gpt2-smal\ngpu: l4\n", ":1:8: model: no model 'gpt2-smal'; did you mean gpt2-small"),
        ("model: gpt2-small\ngpu: l5\n", ":2:6: gpu: no GPU 'l5'"),
        ("model: gpt2-small\ngpu: l4\ncontext: 4M\n", ":3:10: context: '4M' is ambiguous"),
        ("model: gpt2-small\ngpu: l4\nbatch: 0\n", ":3:8: batch: 0 is out of range"),
        ("model: gpt2-small\ngpu: l4\nutilization: 0.9\n", ":3:14: utilization: '0.9' is not a whole number"),
        ("model: gpt2-small\ngpu: l4\nreserve: -1GiB\n", ":3:10: reserve:"),
        ("model: gpt2-small\ngpu: l4\ntp: true\n", ":3:5: tp: must be a whole number"),
        ("model: gpt2-small\ngpu: l4\ntp: 5\n", "tp 5 does not divide the 12 heads"),
        ("model: gpt2-small\ngpu: l4\ngpus: 3\ntp: 2\n", "no layout of 3 GPUs has tp 2"),
        ("model: gpt2-small\ngpu: l4\nkv_memory: 1GiB\n", "--kv-memory contradicts --gpu"),
        ("model: gpt2-small\ngpu: l4\noptions: {block_sizes: 16}\n", "has no option 'block_sizes'"),
        ("model: gpt2-small\ngpu: l4\noptions: {block_size: [1]}\n", ":3:23: options.block_size: must be text"),
        ("model: gpt2-small\ngpu: l4\ncontexts: []\n", ":3:11: contexts: must be a list"),
        ("model: &m gpt2-small\ngpu: *m\n", "anchors"),
        ("model: gpt2-small\nmodel: gpt2-small\ngpu: l4\n", "duplicate key"),
        ("model: !!python/object:os.system gpt2\n", "tags"),
        ("{" * 40, ":1:"),
        ('model: gpt2-small\ngpu: l4\nname: "\\e[31m"\ncontext: 9999999999999\n', ":4:10: context:"),
    ],
)
def test_a_faulty_file_is_told_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    """`file:line:col: field: message`, exit code 1, nothing on standard output."""
    path = tmp_path / "deployment.yaml"
    path.write_text(text, encoding="utf-8")
    result = run("check", str(path))
    assert (result.code, result.out) == (1, "")
    assert message in result.err
    assert all(line.startswith(str(path)) for line in result.err.splitlines())


def test_a_command_line_is_judged() -> None:
    """Qwen3 8B on an L4: 8 Ki tokens fit, 40 Ki do not; what is not understood is listed."""
    served = ("vllm", "serve", "Qwen/Qwen3-8B", "--max-model-len")
    fine = run("check", "--gpu", "l4", "--", *served, "8192", "--not-a-flag", "1")
    assert fine.code == 0
    assert "not understood, and not counted: --not-a-flag 1" in fine.err
    long = run("check", "--gpu", "l4", "--", *served, "40960")
    assert long.code == 3
    assert "--ctx" in long.out


def test_the_sequences_of_a_command() -> None:
    """One is enough for vLLM to start, and a warning says how many fit; llama-server needs room for all its slots."""
    vllm = run("check", "--gpu", "l4", "--", "vllm", "serve", "Qwen/Qwen3-8B", "--max-model-len", "8192",
               "--max-num-seqs", "64")  # fmt: skip
    assert vllm.code == 0
    assert "of --max-num-seqs 64 fit at 8,192 tokens each" in vllm.err
    slots = ("check", "--gpu", "l4", "--", "llama-server", "-m", "llama-3.1-8b", "-ngl", "99", "-c")
    assert run(*slots, "32768", "-np", "4").code == 0
    assert run(*slots, "131072", "-np", "4").code == 3


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("serve.sh", "#!/bin/sh\nexec vllm serve Qwen/Qwen3-8B --max-model-len 40960\n"),
        ("Dockerfile", 'FROM vllm/vllm-openai\nCMD ["vllm", "serve", "Qwen/Qwen3-8B", "--max-model-len", "40960"]\n'),
        (
            "compose.yaml",
            "services:\n  llm:\n    image: x\n    command: vllm serve Qwen/Qwen3-8B --max-model-len 40960\n",
        ),
    ],
)
def test_commands_in_files_are_judged(tmp_path: Path, name: str, text: str) -> None:
    """Scripts, Dockerfiles and compose files, with the line of the command."""
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    result = run("check", "--gpu", "l4", str(path))
    assert result.code == 3
    assert result.out.startswith(f"{path}:2:")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.yaml"], "nowhere.yaml: no such file"),
        (["--gpu", "l5", "nowhere.yaml"], "no GPU 'l5'"),
        (["--", "ollama", "run", "x"], "'ollama' is no server that is known; write vllm serve ... or llama-server"),
        (["--", "ls", "-l"], "'ls' is no server that is known"),
        (["--gpu", "l4", "--", "trtllm-serve", "x"], "'trtllm-serve' is no server that is known"),
        (["--gpu", "l4", "--", "docker", "run", "x"], "'docker' is no server that is known"),
        (["--gpu", "l4", "--", "llama-server", "-m", "nope.gguf"], "nope.gguf: no such file"),
        (["--", "vllm", "serve", "Qwen/Qwen3-8B"], "--gpu NAME"),
        (["--gpu", "l4", "--", "vllm", "bench"], "vllm serve"),
        (["--gpu", "l4", "--", "vllm", "serve", "no/such-model"], "no model 'no/such-model'"),
        (["--gpu", "l4", "--gpus", "4", "--", "vllm", "serve", "Qwen/Qwen3-8B", "-tp", "2"], "runs on 2"),
        (["--gpu", "l4", "--gpus", "1..2", "x.yaml"], "one number"),
        (["--gpu", "l4", "--utilization", "0.5", "--", "vllm", "serve", "Qwen/Qwen3-8B",
          "--gpu-memory-utilization", "0.9"], "contradicts"),
        ([], "FILE"),
    ],
)  # fmt: skip
def test_a_wrong_call_ends_with_2_and_one_line(arguments: list[str], message: str) -> None:
    """The line names what is missing or contradicts."""
    result = run("check", *arguments)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    "option",
    ["--gpu l4", "--gpus 2", "--ctx 1K", "--batch 2", "--utilization 0.5", "--memory-reserve 1GiB", "--overhead 0",
     "--overhead non_torch=1GiB"],
)  # fmt: skip
def test_hardware_beside_declared_deployments_is_refused(deployment: Path, option: str) -> None:
    """A deployment names its own; what would be passed over is an error, not silence."""
    result = run("check", str(deployment), *option.split())
    assert (result.code, result.out) == (2, "")
    assert f"{option.split(maxsplit=1)[0]} is for a command line; {deployment} names its own" in result.err


def test_a_folder_is_called_one(tmp_path: Path) -> None:
    """It is there, so that "no such file" would mislead."""
    result = run("check", str(tmp_path))
    assert (result.code, result.out) == (2, "")
    assert f"{tmp_path} is a folder" in result.err


SERVED = ("vllm", "serve", "Qwen/Qwen3-8B", "--max-model-len")


def spare(*arguments: str) -> float:
    """Return the GiB to spare of a command that fits on an L4."""
    result = run("check", "--gpu", "l4", "--", *arguments)
    assert result.code == 0
    return float(result.out.split(" GiB to spare")[0].rsplit(" ", 1)[1])


@pytest.mark.parametrize("length", ["auto", "-1"])
def test_a_length_that_vllm_lowers(length: str) -> None:
    """The length it settles on fits when it is written out, and one block more does not; nothing fits on 12 GiB."""
    result = run("check", "--gpu", "l4", "--", *SERVED, length)
    assert result.code == 0
    settled = int(result.out.split("fits, at context ")[1].replace(",", ""))
    assert run("check", "--gpu", "l4", "--", *SERVED, str(settled)).code == 0
    assert run("check", "--gpu", "l4", "--", *SERVED, str(settled + 16)).code == 3
    assert run("check", "--gpu", "rtx-3060", "--", *SERVED, length).code == 3
    assert run("check", "--gpu", "l4", "--ctx", "40K", "--", *SERVED, length).code == 3


def test_quantized_weights_leave_more() -> None:
    """Of 8.19 B weights, 1.24 B of them embeddings, fp8 saves a byte and AWQ 11.844 bits of each of the others."""
    plain, gib = spare(*SERVED, "8192"), 2**30
    linear = 8_190_735_360 - 2 * 151_936 * 4096
    assert spare(*SERVED, "8192", "--quantization", "fp8") - plain == pytest.approx(linear / gib, abs=0.1)
    assert spare(*SERVED, "8192", "-q", "awq") - plain == pytest.approx(linear * 11.844 / 8 / gib, abs=0.1)
    unknown = run("check", "--gpu", "l4", "--", *SERVED, "8192", "--quantization", "torchao")
    assert "not understood, and not counted: --quantization torchao" in unknown.err


def test_eager_servers_keep_no_cuda_graphs() -> None:
    """What --enforce-eager leaves is what leaving the part out by hand leaves."""
    by_hand = run("check", "--gpu", "l4", "--overhead", "cuda_graphs=0", "--", *SERVED, "8192")
    eager = run("check", "--gpu", "l4", "--", *SERVED, "8192", "--enforce-eager")
    assert eager.out == by_hand.out
    assert "not understood" not in eager.err
    assert spare(*SERVED, "8192", "--enforce-eager") > spare(*SERVED, "8192")


def test_variables_in_front_of_a_command_are_passed_over() -> None:
    """As a shell takes them."""
    assert spare("CUDA_VISIBLE_DEVICES=0", *SERVED, "8192") == spare(*SERVED, "8192")


@pytest.mark.parametrize(
    ("words", "model"),
    [
        ("-m llama-3.1-8b.gguf", "llama-3.1-8b"),
        ("-m /models/llama-3.1-8b.gguf", "llama-3.1-8b"),
        ("-hf Qwen/Qwen3-8B-GGUF", "qwen3-8b"),
        ("-hf ggml-org/Qwen3-8B-GGUF:Q4_K_M", "qwen3-8b"),
    ],
)
def test_a_gguf_file_that_is_not_there(words: str, model: str) -> None:
    """The catalogue's model of that name is judged, and said."""
    result = run("check", "--gpu", "l4", "--", "llama-server", *words.split(), "-c", "8192", "-ngl", "99")
    assert result.code == 0
    assert f"{model} of the catalogue is judged in its place" in result.err
    assert ("the weights are counted in bf16" in result.err) == (":" not in words)


def test_a_memory_of_the_command_leaves_a_gpu_no_say() -> None:
    """--kv-cache-memory-bytes goes before --gpu; that is said."""
    result = run("check", "--gpu", "l4", "--", *SERVED, "8192", "--kv-cache-memory-bytes", "2G")
    assert result.code == 0
    assert "--gpu not counted: the command gives the cache its memory" in result.err
