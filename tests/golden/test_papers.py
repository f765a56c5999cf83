"""Figures that papers, reports and blogs printed of KV caches, against kvcalc, in the unit that each of them means.

`KB` is read as 1,024 or 1,000 bytes by the figure that it makes right: docs/papers.md has the list with links. What
depends on more than the models' dimensions, or was a slip, is tested as that.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

import kvcalc
from kvcalc.spec.model import ModelSpec
from tests.property.specs import small_spec

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40
KB, MB, GB, TB = 10**3, 10**6, 10**9, 10**12


def mha(layers: int, heads: int, head_dim: int) -> ModelSpec:
    """Return a model with as many KV heads as heads."""
    return small_spec(layers=layers, heads=heads, kv_heads=heads, head_dim=head_dim, hidden_size=heads * head_dim)


def cache(model: str | ModelSpec, context: int = 1, batch: int = 1, **arguments: Any) -> int:
    """Return the bytes of a cache."""
    return kvcalc.size(model, context=context, batch=batch, **arguments).total_bytes


def printed(size: int | Fraction, unit: int, like: str) -> str:
    """Return a size in a unit, with as many decimals as the printed figure has."""
    decimals = len(like.partition(".")[2])
    return f"{float(Fraction(size) / unit):.{decimals}f}"


OPT_175B = mha(96, 96, 128)
OPT_30B = mha(48, 56, 128)
# PaLM 540B with keys and values for every head, whose heads are halved to keep the number of weights.
PALM_MHA = mha(118, 48, 128)


@pytest.mark.parametrize(
    ("source", "model", "unit", "figure"),
    [
        ("PagedAttention, arXiv:2309.06180, section 3", "opt-13b", KIB, "800"),
        ("Insights into DeepSeek-V3, arXiv:2505.09343, table 1", "deepseek-v3", KB, "70.272"),
        ("Insights into DeepSeek-V3, arXiv:2505.09343, table 1", "qwen2.5-72b", KB, "327.680"),
        ("Insights into DeepSeek-V3, arXiv:2505.09343, table 1", "llama-3.1-405b", KB, "516.096"),
        ("Cake, table 1: LongAlpaca-7B", "llama-2-7b", KIB, "512"),
        ("Cake, table 1: LongAlpaca-13B", "llama-2-13b", KIB, "800"),
        ("Cake, table 1", "llama-3.1-8b", KIB, "128"),
        ("Cake, table 1", "llama-3.1-70b", KIB, "320"),
        ("Bottlenecks, table 3", "llama-3.1-70b", KB, "328"),
        ("Bottlenecks, table 3", "deepseek-v3", KB, "70"),
        ("Mooncake", "llama-3-70b", KIB, "320"),
        ("botbeat.news", "gpt2-xl", KIB, "300"),
        ("botbeat.news", "deepseek-v3", KIB, "69"),
        ("tooljolt.com", "deepseek-v3", KIB, "68.6"),
    ],
)
def test_bytes_of_a_token(source: str, model: str, unit: int, figure: str) -> None:
    """A token's keys and values in 16 bits, as printed."""
    assert printed(cache(model), unit, figure) == figure, source


@pytest.mark.parametrize(
    ("source", "model", "place", "unit", "figure"),
    [
        ("FlexGen, arXiv:2303.06865", OPT_175B, (512 + 32, 512), TIB, "1.2"),
        ("H2O, arXiv:2306.14048", OPT_30B, (1024, 128), GB, "180"),
        ("Efficiently scaling transformer inference, arXiv:2211.05102", PALM_MHA, (2048, 512), TB, "3"),
        ("NVIDIA, Mastering LLM techniques", "llama-2-7b", (4096, 1), GIB, "2"),
        ("Hugging Face on KV quantisation", "llama-2-7b", (10_000, 1), GB, "5"),
        ("KIVI, issue 17", "llama-2-7b", (4196, 1), GIB, "2.05"),
        ("dev.omniforge.online", "llama-3.1-8b", (32768, 1), GB, "4.3"),
        ("provide.ai, 128k", "deepseek-v3", (128 * 1024, 1), GIB, "8.58"),
        ("provide.ai, 160k", "deepseek-v3", (160 * 1024, 1), GIB, "10.72"),
        ("Hugging Face on Llama 3.1, 1k", "llama-3.1-8b", (1024, 1), GIB, "0.125"),
        ("Hugging Face on Llama 3.1, 16k", "llama-3.1-8b", (16_000, 1), GIB, "1.95"),
        ("Hugging Face on Llama 3.1, 128k", "llama-3.1-8b", (128_000, 1), GIB, "15.62"),
        ("Hugging Face on Llama 3.1, 1k", "llama-3.1-70b", (1024, 1), GIB, "0.312"),
        ("Hugging Face on Llama 3.1, 16k", "llama-3.1-70b", (16_000, 1), GIB, "4.88"),
        ("Hugging Face on Llama 3.1, 128k", "llama-3.1-70b", (128_000, 1), GIB, "39.06"),
    ],
)
def test_bytes_of_a_cache(source: str, model: str | ModelSpec, place: tuple[int, int], unit: int, figure: str) -> None:
    """Caches of a context and a batch in 16 bits, as printed (0.3125 is printed as 0.313 there, as 0.312 here)."""
    assert printed(cache(model, *place), unit, figure) == figure, source


def test_exact_halves_are_rounded_either_way() -> None:
    """Printed as 68.63 and as 0.313, where Python writes 68.62 and 0.312: they are 68.625 and 0.3125."""
    assert cache("deepseek-v3", 2**20) == Fraction("68.625") * GIB
    assert cache("llama-3.1-70b", 1024) == Fraction("0.3125") * GIB


def test_opt_13b_takes_1_6_gb_for_2048_tokens() -> None:
    """PagedAttention: "as much as 1.6 GB": 1.5625 GiB, rounded up."""
    assert cache("opt-13b", 2048) == Fraction("1.5625") * GIB


def test_gpt2_in_fp32() -> None:
    """njkumar.com: 75.5 MB for GPT-2 124M, 1,024 tokens in fp32."""
    assert printed(cache("gpt2-small", 1024, dtype="fp32"), MB, "75.5") == "75.5"


def test_one_of_eight_gpus() -> None:
    """KVDirect: 640 MB on each of eight GPUs for a 16K prompt of a 70B model."""
    assert set(kvcalc.size("llama-3.1-70b", context=16384, tp=8).per_rank_bytes) == {640 * MIB}


def test_deepseek_v2_keeps_elements_of_latents() -> None:
    """arXiv:2405.04434: 34.6K elements a token for DeepSeek-V2; 15.6K and 110.6K for the small ablation model."""
    assert cache("deepseek-v2") // 2 == 34_560
    latent = {"kind": "mla", "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    small = small_spec(layers=27, heads=16, kinds={"mla": latent})
    assert printed(cache(small) // 2, 1000, "15.6") == "15.6"
    assert printed(cache(mha(27, 16, 128)) // 2, 1000, "110.6") == "110.6"


def test_deepseek_v2s_large_ablation_had_56_heads() -> None:
    """Its 860.2K elements are those of 56 heads; the released model's 128 would be 1,966K."""
    assert printed(cache(mha(60, 56, 128)) // 2, 1000, "860.2") == "860.2"
    assert cache(mha(60, 128, 128)) // 2 == 1_966_080


def test_the_multiples_of_deepseek_v3() -> None:
    """arXiv:2505.09343: 4.66x is right; 7.28x is a slip, its own figures give 7.34x."""
    one = cache("deepseek-v3")
    assert printed(Fraction(cache("qwen2.5-72b"), one), 1, "4.66") == "4.66"
    assert printed(Fraction(cache("llama-3.1-405b"), one), 1, "7.34") == "7.34"


def test_gpt2_xl_against_deepseek_v3() -> None:
    """botbeat.news: 4.4x."""
    assert printed(Fraction(cache("gpt2-xl"), cache("deepseek-v3")), 1, "4.4") == "4.4"


def test_llama_405b_has_8_kv_heads_and_not_16() -> None:
    """Hugging Face on Llama 3.1: 0.984, 15.38 and 123.05 are twice what 8 heads keep."""
    twice = [printed(2 * cache("llama-3.1-405b", n), GIB, "0.000") for n in (1024, 16_000, 128_000)]
    assert twice == ["0.984", "15.381", "123.047"]


def test_blocks_of_llama_3_3_70b() -> None:
    """A storage benchmark: 10,768 blocks "of 5.12 MB", 55 GB: 16 tokens of 320 kB; a block has 5 MiB, all 56.5 GB."""
    block = cache("llama-3.3-70b", 16, options={"block_size": 16})
    assert block == 5 * MIB
    assert printed(10768 * block, GB, "56.5") == "56.5"
    assert printed(10768 * 16 * 320 * KB, GB, "55") == "55"


def test_llama_2_13b_is_not_a_megabyte_a_token() -> None:
    """rohan-paul.com rounds 800 KiB to 1 MB, a fifth too much."""
    assert printed(Fraction(MB, cache("llama-2-13b")), 1, "1.22") == "1.22"


def test_qwen3_235b_is_rounded_down() -> None:
    """Bottlenecks, table 3: 192 KB are 192.512."""
    assert cache("qwen3-235b-a22b") == 192_512


def test_one_query_group_is_an_eighth() -> None:
    """Character.AI: multi-query against groups of eight is 8x."""
    grouped, multi = (small_spec(heads=32, kv_heads=heads, head_dim=128) for heads in (8, 1))
    assert cache(grouped) == 8 * cache(multi)


def test_what_windows_were_not_used_for() -> None:
    """vLLM issue 11382: 25 % of Gemma 2's cache at 8,192 tokens and 56.25 % of Ministral's at 131,072 was waste."""
    gemma, every_token = cache("gemma-2-9b", 8192), cache(mha(42, 8, 256), 8192)
    assert Fraction(every_token - gemma, every_token) == Fraction(1, 4)
    heads = {"layers": 36, "heads": 32, "kv_heads": 8, "head_dim": 128}
    kinds = {"full": {"kind": "full"}, "local": {"kind": "sliding", "window": 32768}}
    ministral = cache(small_spec(**heads, kinds=kinds, pattern=["full", "local", "local", "local"]), 131072)
    every_token = cache(small_spec(**heads), 131072)
    assert Fraction(every_token - ministral, every_token) == Fraction(9, 16)


def test_what_images_were_not_used_for() -> None:
    """vLLM issue 11382: 79.6 % for mllama is 8 of 40 layers with images, and 1 token of 150 in text."""
    layers, cross = 40, 8
    waste = 1 - Fraction((layers - cross) * 1 + cross * 149, layers * 150)
    assert printed(100 * waste, 1, "79.6") == "79.6"


def test_deepseek_v4_is_near_its_readers_derivation() -> None:
    """provide.ai: 6.08 and 8.71 GiB at 1M tokens; in 16 bits throughout they are 6.72 and 9.63.

    With indexer keys in 8 bits (128 to 132 bytes) they would be 6.07 to 6.09 and 8.69 to 8.72: not decided.
    """
    for model, whole, low, high in (
        ("deepseek-v4-flash", "6.72", 6.068, 6.088),
        ("deepseek-v4-pro", "9.63", 8.687, 8.716),
    ):
        result = kvcalc.size(model, context=2**20)
        assert printed(result.total_bytes, GIB, whole) == whole
        csa = next(row for row in result.breakdown if row.label == "csa").bytes
        index = csa * 256 // 1280  # a compressed entry has 512 elements, its indexer key 128
        ends = [(result.total_bytes - index * (256 - size) // 256) / GIB for size in (128, 132)]
        assert [round(end, 3) for end in ends] == pytest.approx([low, high], abs=0.002)
