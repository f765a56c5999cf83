"""Whatever is typed and whatever a file holds: an answer, or an error of one line for each problem."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kvcalc.engines import ENGINES
from kvcalc.formats import FORMATS
from tests.cli.running import Result, run

_PLACE = re.compile(r".*:\d+:\d+: .+")

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def mostly(right: st.SearchStrategy[str], wrong: st.SearchStrategy[str] = _TEXT) -> st.SearchStrategy[str]:
    """Return a strategy of values that are usually right."""
    return st.integers(0, 7).flatmap(lambda chance: right if chance else wrong)


_COUNTS = mostly(
    st.one_of(st.integers(1, 3_000).map(str), st.integers(1, 10**12).map(str), st.integers(1, 99).map("{}K".format)),
    st.one_of(
        st.integers(-3, 0).map(str), st.from_regex(r"[0-9]{1,40}(\.[0-9]{1,4})?[kKMGi]{0,2}", fullmatch=True), _TEXT
    ),
)
_NAMES = st.sampled_from(
    ["gpt2-small", "llama-3.1-8b", "gemma-3-27b", "llama-4-scout", "deepseek-v3.2", "deepseek-v4-flash", "zamba2-2.7b",
     "whisper-large-v3", "mamba2-2.7b", "gemma-3n-e4b"]
)  # fmt: skip
_MODELS = mostly(_NAMES, st.one_of(st.sampled_from(["gpt2-smal", ".", "~", "./x"]), _TEXT))
_FORMAT = st.sampled_from(list(FORMATS))
_EVICTION = st.builds("window:{},sinks:{}".format, st.integers(0, 3_000), st.integers(0, 9))
_OPTIONS = st.one_of(
    st.tuples(st.just("--ctx"), _COUNTS),
    st.tuples(st.just("--batch"), _COUNTS),
    st.tuples(st.just("--kv-dtype"), mostly(st.one_of(_FORMAT, st.builds("{}/{}".format, _FORMAT, _FORMAT)))),
    st.tuples(st.sampled_from(["--dtype", "--weights"]), mostly(_FORMAT)),
    st.tuples(
        st.sampled_from(["--tp", "--pp", "--dp"]), mostly(st.sampled_from("1248"), st.sampled_from(["0", "x", "99999"]))
    ),
    st.tuples(st.sampled_from(["--reserve-ctx", "--shared-prefix"]), _COUNTS),
    st.tuples(st.sampled_from(["--encoder-ctx", "--dcp"]), _COUNTS),
    st.tuples(st.just("--evict"), mostly(st.one_of(_EVICTION, st.integers(0, 3_000).map("budget:{}".format)))),
    st.tuples(st.just("-o"), mostly(st.integers(0, 300).map("block_size={}".format))),
    st.tuples(st.just("--engine"), mostly(st.sampled_from(list(ENGINES)))),
    st.tuples(st.just("--format"), mostly(st.sampled_from(["table", "json", "csv", "md"]))),
    st.tuples(st.just("--units"), mostly(st.sampled_from(["iec", "si", "bytes"]))),
    st.tuples(st.just("--json")),
)
_SPECIFIC = {
    "size": st.just(()),
    "explain": st.just(()),
    "compare": st.one_of(
        st.just(("--remedies",)),
        st.tuples(st.just("--attention"), st.sampled_from(["mha,mqa", "gqa:4,mha", "gqa:3", "gqa:,", "gqa:٣"])),
        st.tuples(st.just("--kv-dtypes"), st.tuples(_FORMAT, _FORMAT).map(",".join)),
        st.just(("gpt2-xl",)),
    ),
}


def assert_clean(result: Result) -> None:
    """An answer on standard output with at most warnings beside it, or nothing there and one line per problem."""
    assert result.code in (0, 1, 2), result
    lines = result.err.split("\n")[:-1]
    assert "Traceback" not in result.err
    if result.code == 0:
        assert result.out.strip()
        assert all(line.startswith("warning: ") for line in lines), result.err
        return
    assert result.out == ""
    assert lines
    assert len(lines) == 1 or all(_PLACE.fullmatch(line) for line in lines), result.err
    assert all(line.strip() and line.isprintable() for line in lines), result.err


@given(st.sampled_from(sorted(_SPECIFIC)), _MODELS, st.lists(_OPTIONS, max_size=4), st.data())
def test_any_options_give_an_answer_or_a_clean_error(
    command: str, model: str, options: list[tuple[str, ...]], data: st.DataObject
) -> None:
    """No combination of options ends in a traceback, or in an answer beside an error."""
    specific: Sequence[str] = data.draw(_SPECIFIC[command])
    flat = [text for option in options for text in option]
    context = [] if "--ctx" in flat else ["--ctx", data.draw(st.sampled_from(["1", "100", "5K"]))]
    assert_clean(run(command, model, *specific, *context, *flat))


@given(st.sampled_from(["models", "show", "engines"]), st.one_of(_TEXT, _NAMES, st.just("--json")))
def test_any_name_gives_an_answer_or_a_clean_error(command: str, name: str) -> None:
    """What is looked up is found, or said not to be."""
    result = run(command, name)
    if name not in ("--help", "-h"):
        assert_clean(result)


_KINDS: dict[str, dict[str, Any]] = {
    "full": {"kind": "full"},
    "values_are_keys": {"kind": "full", "kv_heads": 1, "v_head_dim": 0},
    "local": {"kind": "sliding", "window": 1_024},
    "chunks": {"kind": "chunked", "chunk": 2_048},
    "latent": {"kind": "mla", "kv_lora_rank": 512, "qk_rope_head_dim": 64},
    "selector": {"kind": "indexer", "index_head_dim": 128},
    "encoder": {"kind": "cross", "encoder_context": 100},
    "reader": {"kind": "shared", "of": "full"},
    "squeezed": {"kind": "compressed", "window": 128, "ratio": 4, "index_head_dim": 64},
    "memory": {"kind": "state", "variant": "mamba1", "channels": 512, "state_size": 16, "conv_kernel": 4},
    "convolution": {"kind": "state", "variant": "short_conv", "channels": 512, "conv_kernel": 3},
}
_ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2**70),
    st.floats(allow_nan=False),
    _TEXT,
    st.sampled_from([[], {}, ["a"]]),
)


@st.composite
def _specs(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a spec of any kinds of layer, in any order, with up to two places spoiled."""
    heads = draw(st.sampled_from([1, 4, 12, 32]))
    names = draw(st.lists(st.sampled_from(sorted(_KINDS)), max_size=4, unique=True))
    spec: dict[str, Any] = {
        "name": "drawn",
        "architecture": "llama",
        "source": {"url": "https://example.org", "checked": "2026-01-01"},
        "layers": draw(st.integers(len(names) + 1, 200)),
        "hidden_size": heads * draw(st.sampled_from([32, 64, 80])),
        "heads": heads,
        "kv_heads": draw(st.sampled_from([1, heads])),
        "dtype": draw(st.sampled_from(["float16", "bfloat16", "fp32", "q8_0"])),
        "max_context": draw(st.none() | st.integers(1, 10**6)),
        "parameters": draw(st.none() | st.integers(1, 10**12)),
    }
    kinds = {name: dict(_KINDS[name]) for name in names}
    if names:
        spec["kinds"] = kinds
        spec["pattern"] = draw(st.permutations([*names, *draw(st.sampled_from([[], ["none"]]))]))
    for _ in range(draw(st.integers(0, 2))):
        place = draw(st.sampled_from([spec, *kinds.values()]))
        place[draw(st.sampled_from([*place, "kv_groups", "assumed"]))] = draw(_ANYTHING)
    return spec


def _in_a_file(content: bytes, command: str) -> Result:
    """Return the result of a command on a spec file of this content."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spec.yaml"
        path.write_bytes(content)
        arguments = () if command == "show" else ("--ctx", "5000", "--batch", "3")
        return run(command, str(path), *arguments)


@given(_specs(), st.sampled_from(["size", "explain", "show"]))
def test_any_spec_gives_an_answer_or_clean_errors(spec: dict[str, Any], command: str) -> None:
    """JSON is YAML: specs with right and wrong values in every place."""
    assert_clean(_in_a_file(json.dumps(spec).encode(), command))


@given(st.one_of(st.binary(max_size=200), _TEXT.map(str.encode)), st.sampled_from(["size", "show"]))
def test_any_bytes_give_a_clean_error(content: bytes, command: str) -> None:
    """Rubbish is refused."""
    result = _in_a_file(content, command)
    assert_clean(result)
    assert result.code == 1
