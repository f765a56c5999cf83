"""The prediction against transformers' own cache, filled by its own models with random weights."""

from __future__ import annotations

from typing import Any

import pytest

import kvcalc

# The argument has another name in the newest versions, which take this one too.
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning")]

transformers = pytest.importorskip("transformers", reason="transformers is not installed (pip install 'kvcalc[torch]')")


def held_bytes(model: Any, context: int, batch: int) -> int:
    """Return the bytes of the keys and values that a model's DynamicCache holds: a prompt, then four tokens more."""
    import torch

    cache = transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        for tokens in (context - 4, 1, 1, 1, 1):
            model(torch.ones((batch, tokens), dtype=torch.long), past_key_values=cache, use_cache=True)
    kept = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
    return sum(tensor.numel() * tensor.element_size() for tensor in kept)


def test_gpt2_small() -> None:
    """512 tokens in two bytes an element: 18,874,368 bytes. The MLP, which no cache depends on, is kept small."""
    import torch

    config = transformers.GPT2Config(vocab_size=64, n_inner=16)
    model = transformers.GPT2LMHeadModel(config).to(torch.bfloat16).eval()
    held = held_bytes(model, context=512, batch=1)
    assert held == kvcalc.size("gpt2-small", context=512, dtype="bf16").total_bytes == 18_874_368


def test_smollm2_135m() -> None:
    """30 layers with 3 key and value heads for 9 query heads, in bfloat16, two sequences."""
    import torch

    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=576,
        intermediate_size=64,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
    )
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()
    held = held_bytes(model, context=100, batch=2)
    assert held == kvcalc.size("smollm2-135m", context=100, batch=2).total_bytes
