"""The cases on which other calculators were compared: ours gives the right bytes on each."""

from __future__ import annotations

import pytest

import kvcalc
from tests.golden.peers import CASES, QUANTISED, TOOLS, Case

# The right values as the survey lists them, so that a slip in a sum written out by hand shows.
SURVEYED = {
    "gpt2": 1_207_959_552,
    "llama-3.1-8b": 4_294_967_296,
    "llama-3.1-70b": 85_899_345_920,
    "deepseek-v3": 2_302_672_896,
    "gemma-3-27b": 3_120_562_176,
    "gpt-oss-20b": 808_452_096,
    "qwen3-next-80b-a3b": 882_573_312,
    "mistral-7b-v0.1": 536_870_912,
    "gemma-3n-e4b": 285_212_672,
    "minicpm3-4b": 1_170_210_816,
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.model)
def test_a_bundled_spec_gives_the_right_bytes(case: Case) -> None:
    """Our total equals the sum worked out by hand, to the byte, and so does the survey's."""
    result = kvcalc.size(case.model, context=case.context, batch=case.batch, kv_dtype=case.kv_dtype)
    assert result.total_bytes == case.right == SURVEYED[case.model]


@pytest.mark.parametrize(("kv_dtype", "right"), QUANTISED.items())
def test_a_quantised_cache_counts_its_scales(kv_dtype: str, right: int) -> None:
    """Block formats are charged with their scale bytes: 34 and 18 bytes for 32 elements."""
    assert kvcalc.size("llama-3.1-8b", context=32_768, kv_dtype=kv_dtype).total_bytes == right


def test_quantised_caches_are_the_surveyed_sizes() -> None:
    """2.125 GiB and 1.125 GiB, as the survey works them out."""
    assert QUANTISED == {"q8_0": 2_281_701_376, "q4_0": 1_207_959_552}


def test_every_tool_has_an_answer_for_every_case() -> None:
    """No column of the table is shorter than another."""
    assert {len(case.answers) for case in CASES} == {len(TOOLS)}
