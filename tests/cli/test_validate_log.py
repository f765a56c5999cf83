"""`kvcalc validate --log`: logs in the shape of real servers', with the figures that those printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcalc import api
from kvcalc.errors import BadInput, KvcalcError
from kvcalc.log_check import Given, LogCheck, check
from kvcalc.log_check.settings import known_name
from kvcalc.measure.log import read_lines
from tests.cli.running import run

LOGS = Path(__file__).resolve().parents[1] / "golden" / "logs"

Verdicts = list[tuple[str, str, str]]


def checked(*lines: str, **given_: Any) -> LogCheck:
    """Return the check of some lines."""
    return check(read_lines(lines), Given(**given_))


def verdicts(result: LogCheck) -> Verdicts:
    """Return every figure's name, printed text and verdict."""
    return [(figure.name, figure.printed, figure.verdict) for figure in result.figures]


def of_file(name: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Return the exit code and the JSON of a log's check."""
    result = run("validate", "--log", str(LOGS / name), *arguments, "--json")
    assert result.err == ""
    return result.code, json.loads(result.out)


# Logs of every engine -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "arguments", "model", "engine", "figures"),
    [
        (
            "vllm-qwen3-30b-a3b.txt", [], "qwen3-30b-a3b", "vllm",
            [
                ("GPU KV cache size", "566,016", "within rounding"),
                ("maximum concurrency", "17.27", "within rounding"),
            ],
        ),
        (
            "vllm-refusal.txt", [], "qwen3-30b-a3b", "vllm",
            [("GiB needed", "10.12", "equal"), ("longest context", "122080", "within rounding")],
        ),
        (
            "sglang-qwen3-14b.txt", [], "qwen3-14b", "sglang",
            [
                ("K, GB", "5.69", "equal"),
                ("V, GB", "5.69", "equal"),
                ("max_total_num_tokens", "298447", "within rounding"),
            ],
        ),
        (
            "sglang-mimo-v2-flash.txt", [], "mimo-v2-flash", "sglang",
            [
                ("windowed layers' tokens", "300288", "equal"),
                ("windowed layers, K, GB", "8.38", "equal"),
                ("windowed layers, V, GB", "5.59", "equal"),
            ],
        ),
        (
            "sglang-qwen3.5-27b-eagle.txt", [], "qwen3.5-27b", "sglang",
            [
                ("conv states, GB", "0.12", "equal"),
                ("ssm states, GB", "3.09", "equal"),
                ("intermediate states, GB", "2.11", "not compared"),
                ("K, GB", "5.22", "equal"),
                ("V, GB", "5.22", "equal"),
                ("pool, GB", "0.33", "not compared"),
            ],
        ),
        (
            "tensorrt-llm-qwen1.5-7b.txt", ["qwen1.5-7b"], "qwen1.5-7b", "tensorrt-llm",
            [("blocks of the primary pool", "631", "equal")],
        ),
        (
            "tensorrt-llm-tinyllama.txt", [], "tinyllama-1.1b", "tensorrt-llm",
            [
                ("blocks of a sequence", "65", "equal"),
                ("tokens of the pool", "3731744", "equal"),
                ("GiB of the pool", "78.30", "equal"),
            ],
        ),
        (
            "llama-cpp-gpt-oss-20b.txt", [], "gpt-oss-20b", "llama.cpp",
            [
                ("cells announced, cache 1", "131072", "equal"),
                ("cells, cache 1", "131072", "equal"),
                ("layers, cache 1", "12", "equal"),
                ("K and V, MiB, cache 1", "3072.00", "equal"),
                ("K, MiB, cache 1", "1536.00", "equal"),
                ("V, MiB, cache 1", "1536.00", "equal"),
                ("cells announced, cache 2", "2304", "equal"),
                ("cells, cache 2", "2304", "equal"),
                ("layers, cache 2", "12", "equal"),
                ("K and V, MiB, cache 2", "54.00", "equal"),
                ("K, MiB, cache 2", "27.00", "equal"),
                ("V, MiB, cache 2", "27.00", "equal"),
            ],
        ),
        (
            "ollama-llama3.1-8b.txt", [], "llama-3.1-8b", "ollama",
            [
                ("memory.required.kv, GiB", "1.0", "equal"),
                ("KV, MiB", "1024.00", "equal"),
                ("K, MiB", "512.00", "equal"),
                ("V, MiB", "512.00", "equal"),
            ],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and value.endswith(".txt") else "",
)  # fmt: skip
def test_a_log_agrees(name: str, arguments: list[str], model: str, engine: str, figures: Verdicts) -> None:
    """Every figure that a server printed is the predicted one, to the printed digits; exit code 0."""
    code, data = of_file(name, *arguments)
    assert (code, data["equal"]) == (0, True)
    assert (data["schema"], data["model"], data["engine"]["name"]) == ("kvcalc.validate_log/1", model, engine)
    assert [(figure["name"], figure["printed"], figure["verdict"]) for figure in data["figures"]] == figures


def test_an_older_rule_is_named() -> None:
    """Of vLLM 0.19.0, which counted tokens another way, the line differs, and the note says how; exit code 1."""
    code, data = of_file("vllm-qwen3.5-27b.txt")
    figures = {figure["name"]: figure for figure in data["figures"]}
    assert (code, data["equal"]) == (1, False)
    assert figures["attention block size"]["verdict"] == "equal"
    assert figures["maximum concurrency"]["verdict"] == "within rounding"
    assert figures["GPU KV cache size"]["verdict"] == "differs"
    assert figures["GPU KV cache size"]["note"] == "older servers print blocks / 4 groups x block size"
    assert "vLLM 0.19.0 has the rules of 0.33.0" in data["assumptions"]


# What would explain a difference --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "model", "explanation"),
    [
        (
            ["Available KV cache memory: 10.55 GiB", "GPU KV cache size: 230,528 tokens",
             "Maximum concurrency for 100,000 tokens per request: 2.31x"],
            "qwen3-30b-a3b", "would agree with -o kv_cache_dtype=fp8, or --tp 2",
        ),
        (
            ["Available KV cache memory: 38.41 GiB", "GPU KV cache size: 559,232 tokens",
             "Maximum concurrency for 65,536 tokens per request: 8.53x", "vllm serve x -tp 2"],
            "qwen3-8b", "would agree with -o block_size=128",
        ),
        (
            ["max seq len (131072), (4.54 GiB KV cache is needed"],
            "gpt-oss-120b", "would agree with -o max_num_batched_tokens=1024 -o async_scheduling=false",
        ),
        (
            ["max seq len (1048576), (6.42 GiB KV cache is needed"],
            "llama-4-scout", "",
        ),
        (
            ["KV Cache is allocated. #tokens: 442750, K size: 27.03 GB, V size: 27.03 GB", "ServerArgs(tp_size=2)"],
            "llama-3.1-8b", "",
        ),
        (
            ["KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 442750, K size: 27.02 GB, V size: 27.02 GB"],
            "llama-3.1-8b", "would agree with --kv-dtype bf16",
        ),
        (
            ["KV Cache is allocated. #tokens: 367404, K size: 8.23 GB, V size: 8.23 GB", "ServerArgs(tp_size=2)"],
            "qwen3-235b-a22b", "would agree with --kv-dtype fp8, or --tp 4",
        ),
        (
            ["creating     SWA KV cache, size = 2304 cells",
             "llama_kv_cache: size = 3072.00 MiB (131072 cells,  12 layers,  1/1 seqs)"],
            "gpt-oss-20b", "would agree with -o n_ubatch=2048",
        ),
        (
            ['kv cache" device=CUDA0 size="800.0 MiB"', 'kv cache" device=CPU size="6.6 GiB"', "--ctx-size 8192"],
            "glm-4.7-flash", "would agree with -o mla=false",
        ),
        (
            ["Allocated 13.46 GiB for max tokens in paged KV cache (220480)"],
            "llama-3.1-8b", "would agree with --kv-dtype fp8, or --tp 2",
        ),
    ],
)  # fmt: skip
def test_neighbouring_settings_are_tried(lines: list[str], model: str, explanation: str) -> None:
    """The first ones under which the figure would agree are named; nothing is said where none does."""
    result = checked(*lines, model=model)
    differing = [figure for figure in result.figures if figure.verdict == "differs"]
    assert not result.equal
    assert differing
    assert any(figure.note.startswith(explanation) if explanation else not figure.note for figure in differing)


def test_what_cannot_be_compared_is_said() -> None:
    """A fake cache manager's 0.00 GiB, tokens without a memory, a context that is not there; and it is no agreement."""
    fake = checked(
        "Using fake cache manager with head_dim=0 and num pages: 61848",
        "Allocated 0.00 GiB for max tokens in paged KV cache (3958272)",
        model="llama-3.1-8b",
    )
    assert verdicts(fake) == [("GiB of the pool", "0.00", "not compared")]
    assert fake.figures[0].note == "a fake cache manager prints 0.00, whatever the cache takes"
    assert fake.equal is None
    alone = checked("GPU KV cache size: 178,880 tokens", "seed=1, max_seq_len=8", model="llama-3.1-8b")
    assert verdicts(alone) == [("GPU KV cache size", "178,880", "not compared")]


@pytest.mark.parametrize("style", ["table", "json", "csv"])
def test_nothing_compared_is_no_difference(tmp_path: Path, style: str) -> None:
    """Exit code 2, and a line that says what is missing; with it the figure is compared."""
    path = tmp_path / "server.log"
    path.write_text("Available KV cache memory: 10.55 GiB\nGPU KV cache size: 86,416 tokens\n", encoding="utf-8")
    call = ("validate", "--log", str(path), "llama-3.1-8b", "--format", style)
    result = run(*call)
    assert result.code == 2
    assert "nothing could be compared: the log does not have the context: give --ctx\n" in result.err
    if style == "json":
        assert json.loads(result.out)["equal"] is None
    assert run(*call, "--ctx", "8K").code == 0


def test_tokens_and_concurrency_vouch_for_each_other() -> None:
    """Without the memory, a number of blocks must print both lines."""
    tokens, times = "GPU KV cache size: 145,829 tokens", "Maximum concurrency for 131,072 tokens per request: 1.11x"
    assert checked(tokens, times, model="gemma-3-27b").equal
    assert not checked(tokens.replace("9 ", "8 "), times, model="gemma-3-27b").equal


def test_the_poorest_rank_decides() -> None:
    """In vllm issue 21348 the rank that printed 8.11 GiB had more than the one that decided; 8.02 GiB agree."""
    lines = [
        "Available KV cache memory: 8.11 GiB",
        "GPU KV cache size: 178,880 tokens",
        "max_seq_len=32768, engine (v0",
    ]
    assert not checked(*lines, model="qwen3-235b-a22b", arguments={"tp": 4}, context=32768).equal
    more = [*lines, "Available KV cache memory: 8.02 GiB"]
    assert checked(*more, model="qwen3-235b-a22b", arguments={"tp": 4}, context=32768).equal


@pytest.mark.parametrize(
    ("model", "arguments", "memory", "context"),
    [
        ("llama-3.1-8b", {}, 16 * 2**30, 32768),
        ("gpt-oss-20b", {"options": {"max_num_batched_tokens": 2048}}, 10 * 2**30, 131072),
        ("qwen3.5-27b", {"kv_dtype": "fp8"}, 20 * 2**30, 131072),
        ("deepseek-v3", {"tp": 8}, 12 * 2**30, 131072),
    ],
)
def test_what_vllm_would_print_agrees(model: str, arguments: dict[str, Any], memory: int, context: int) -> None:
    """The lines of `fit`, with the memory as the server prints it, are read back as agreeing."""
    lines = api.fit(model, kv_memory=memory, context=context, engine="vllm", **arguments).engine_report["log_lines"]
    options = arguments.get("options", {})
    given_ = {"arguments": {key: value for key, value in arguments.items() if key != "options"}, "options": options}
    result = checked(f"Available KV cache memory: {memory / 2**30:.2f} GiB", *lines, model=model, **given_)
    assert len(result.figures) == 2
    assert result.equal


# What the user says ---------------------------------------------------------------------------------------------------


def test_the_command_line_goes_before_the_log() -> None:
    """--tp 4 in place of the log's 2: twice the tokens would fit, and tp 2 is what explains the log."""
    code, data = of_file("vllm-qwen3-30b-a3b.txt", "--tp", "4")
    assert (code, data["settings"]["tp"]) == (1, 4)
    assert {figure["note"] for figure in data["figures"]} == {"would agree with --tp 2"}
    code, data = of_file("vllm-refusal.txt", "--kv-dtype", "bf16")
    assert (code, data["kv_dtype"]) == (1, "bf16")
    assert data["figures"][0]["predicted"] == "20.23"
    assert of_file("vllm-qwen3-30b-a3b.txt", "llama-3.1-8b")[1]["model"] == "llama-3.1-8b"


@pytest.mark.parametrize(
    ("call", "code", "message"),
    [
        (["--log", "missing.txt"], 2, "missing.txt: no such file"),
        (["--log", str(LOGS)], 2, "is a directory"),
        (["--log", str(LOGS / "tensorrt-llm-qwen1.5-7b.txt")], 2, "cannot be told (it does not say which): name it"),
        (["--log", str(LOGS / "vllm-refusal.txt"), "gpt2-smal"], 2, "did you mean gpt2-small"),
        (["--log", str(LOGS / "vllm-refusal.txt"), "--engine", "sglang"], 2, "no line of sglang about a cache"),
        (["--log", str(LOGS / "vllm-refusal.txt"), "--device", "cpu"], 2, "--device has no effect"),
        (["--log", str(LOGS / "vllm-refusal.txt"), "--weights", "fp8"], 2, "--weights has no effect"),
        (["--log", str(LOGS / "vllm-refusal.txt"), "-o", "page_size=2"], 2, "engine vllm has no option 'page_size'"),
        (["--log", str(LOGS / "vllm-refusal.txt"), "--tp", "3"], 1, "tp 3 does not divide the 32 heads"),
        ([], 2, "Missing argument 'MODEL'."),
        (["gpt2-small"], 2, "Missing option '--ctx'."),
    ],
)
def test_a_mistake_is_one_line(call: list[str], code: int, message: str) -> None:
    """On standard error, without a traceback."""
    result = run("validate", *call)
    assert (result.code, result.out) == (code, "")
    assert message in result.err
    assert result.err.count("\n") == 1


def test_a_log_without_figures_is_refused(tmp_path: Path) -> None:
    """With what was looked for."""
    path = tmp_path / "empty.log"
    path.write_text("INFO: Uvicorn running on http://127.0.0.1:8000\n", encoding="utf-8")
    result = run("validate", "--log", str(path))
    assert (result.code, result.out) == (2, "")
    assert "no line of vLLM, SGLang, TensorRT-LLM, llama.cpp or Ollama about a cache" in result.err


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Qwen/Qwen3-8B", "qwen3-8b"),
        ("qwen3-8b", "qwen3-8b"),
        ("RedHatAI/Qwen2.5-7B-Instruct-fp8-dynamic", "qwen2.5-7b"),
        (
            "/hub/models--meta-llama--Llama-3.1-8B-Instruct/snapshots/0e9e39f249a16976918f6564b8830bc894c89659",
            "llama-3.1-8b",
        ),
        ("/models/Meta-Llama-3-8B-Instruct.Q4_K_M.gguf", "llama-3-8b"),
        ("Meta Llama 3.1 8B Instruct", "llama-3.1-8b"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", None),
        ("/models/mine", None),
        ("fp8", None),
        ("", None),
    ],
)
def test_a_model_is_known_by_its_names(text: str, name: str | None) -> None:
    """Ids, paths, files and titles; formats of weights and tuning are passed over, anything else is not guessed."""
    assert known_name(text) == name


def test_a_name_that_was_interpreted_is_said() -> None:
    """So that nobody takes another model's figures for his."""
    line = "non-default args: {'model': 'RedHatAI/Qwen2.5-7B-Instruct-fp8-dynamic'}"
    result = checked(line, "1.75 GiB KV cache is needed", "max_seq_len=32768 engine (v0", context=32768)
    assert "model: 'RedHatAI/Qwen2.5-7B-Instruct-fp8-dynamic' is qwen2.5-7b" in result.assumptions
    assert result.equal


# The forms of the answer ----------------------------------------------------------------------------------------------


def test_the_report_for_people() -> None:
    """A table, the verdict in words, remarks by line, what was assumed."""
    result = run("validate", "--log", str(LOGS / "tensorrt-llm-qwen1.5-7b.txt"), "qwen1.5-7b")
    assert result.out.splitlines()[:7] == [
        "qwen1.5-7b, KV bf16, as tensorrt-llm main, PyTorch backend",
        "from the log: batch 1, tokens_per_block 64",
        "",
        "figure                      line  printed  predicted  verdict",
        "--------------------------  ----  -------  ---------  -------",
        "blocks of the primary pool     4      631        631  equal",
        "",
    ]
    assert "1 figure: 1 equal" in result.out
    assert "rounds blocks up" in result.out


def test_rows_for_programs() -> None:
    """CSV and Markdown have a row for each figure."""
    log = str(LOGS / "vllm-refusal.txt")
    assert run("validate", "--log", log, "--format", "csv").out.splitlines() == [
        "figure,line,printed,predicted,verdict",
        "GiB needed,4,10.12,10.12,equal",
        "longest context,4,122080,122000 to 122224,within rounding",
    ]


# Malice ---------------------------------------------------------------------------------------------------------------


def _lines() -> list[str]:
    return sorted({line for path in LOGS.glob("*.txt") for line in path.read_text(encoding="utf-8").splitlines()})


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A line of a real shape with one number or a piece of it replaced."""
    line = draw(st.sampled_from(_lines()))
    at = draw(st.integers(0, len(line)))
    put = draw(
        st.sampled_from(["", "0", "9" * 18, "9" * 400, "-1", "1e5", "None", "'", "NaN", "\x1b[31m", "½", "10 GiB"])
    )
    return line[:at] + put + line[at + draw(st.integers(0, 12)) :]


@given(
    st.lists(st.sampled_from(_lines()) | mutated(), min_size=1, max_size=8),
    st.sampled_from([None, "llama-3.1-8b", "gpt-oss-20b"]),
)
def test_no_log_ends_in_a_traceback(lines: list[str], model: str | None) -> None:
    """Interleaved engines, lines cut and numbers beyond all bounds: a check, or an error that says what is wrong."""
    try:
        result = checked(*lines, model=model)
    except KvcalcError:
        return
    assert json.loads(json.dumps(result.to_json()))["figures"] is not None
    assert str(result)


def test_a_model_that_the_engine_does_not_take_is_an_error() -> None:
    """One line, with the engine's reason."""
    with pytest.raises(KvcalcError, match="not covered for SGLang"):
        checked("KV Cache is allocated. #tokens: 1, K size: 1.42 GB, V size: 1.42 GB", model="whisper-tiny")
    with pytest.raises(BadInput, match="tp must be between 1 and"):
        checked("1.75 GiB KV cache is needed", model="llama-3.1-8b", arguments={"tp": 10**6})
