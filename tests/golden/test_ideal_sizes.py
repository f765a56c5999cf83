"""Every bundled model's size, pinned.

`python tests/golden/model_sizes.py` rewrites the table; `test_ideal_catalogue.py` computes the same numbers without it.
"""

from __future__ import annotations

import json

import pytest

from kvcalc.spec.load import index
from tests.golden.model_sizes import TABLE, sizes, text

PINNED = json.loads(TABLE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def computed() -> dict[str, dict[str, int]]:
    """Return the sizes as they come out now."""
    return sizes()


def test_the_table_lists_every_bundled_model() -> None:
    """A new model gets its line with the regenerate command."""
    assert list(PINNED) == sorted(index()), "run: python tests/golden/model_sizes.py"
    assert TABLE.read_text(encoding="utf-8") == text(PINNED)


@pytest.mark.parametrize("name", sorted(index()))
def test_a_model_s_size_is_what_it_was(name: str, computed: dict[str, dict[str, int]]) -> None:
    """Bytes of the second token, and of 4,096 tokens."""
    assert computed[name] == PINNED.get(name)


# Worked out from the dimensions that the models' papers and configs give.
@pytest.mark.parametrize(
    ("name", "per_token", "at_4096"),
    [
        ("gpt2-small", 36_864, 150_994_944),  # 2 x 12 x 12 x 64 x 2
        ("llama-2-7b", 524_288, 2_147_483_648),  # 0.5 MiB a token, 2 GiB
        ("llama-3.1-8b", 131_072, 536_870_912),  # 128 KiB a token
        ("llama-3.1-70b", 327_680, 1_342_177_280),  # 320 KiB a token
        ("deepseek-v3", 70_272, 287_834_112),  # 61 x 576 x 2
        ("mistral-7b-v0.1", 131_072, 536_870_912),  # window 4,096, just full
        ("gemma-3-27b", 507_904, 771_751_936),  # 62 x 8,192 a token; 10 x 4,096 + 52 x 1,024 at 4,096
        ("mamba-2.8b", 0, 22_937_600),  # 64 x 5,120 x (3 x 2 + 16 x 4 bytes)
    ],
)
def test_well_known_models_have_their_well_known_sizes(name: str, per_token: int, at_4096: int) -> None:
    """Two times layers, kv heads, head size and bytes; or a latent, a window, a state."""
    assert PINNED[name] == {"per_token_bytes": per_token, "context_4096_bytes": at_4096}
