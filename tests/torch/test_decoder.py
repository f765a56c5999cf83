"""The prediction against a decoder that really generates: what it holds is what kvcalc says, and it is enough."""

from __future__ import annotations

from pathlib import Path

import pytest

import kvcalc

pytestmark = pytest.mark.torch

SPEC = """\
name: tiny
architecture: tiny
source: {{url: "https://example.org", checked: 2026-01-01}}
layers: {layers}
hidden_size: {hidden}
heads: {heads}
kv_heads: {kv_heads}
dtype: {dtype}
max_context: 4096
parameters: null
"""
HYBRID = """\
pattern: [local, global]
kinds:
  local: {kind: sliding, window: 10}
  global: {kind: full}
"""


def spec(folder: Path, *, layers: int, hidden: int, heads: int, kv_heads: int, dtype: str, more: str = "") -> str:
    """Write a spec of the decoder and return its path."""
    path = folder / "tiny.yaml"
    text = SPEC.format(layers=layers, hidden=hidden, heads=heads, kv_heads=kv_heads, dtype=dtype)
    path.write_text(text + more)
    return str(path)


def test_gpt2_small_holds_the_predicted_bytes_after_every_step() -> None:
    """12 layers of 12 heads of 64 in fp16: a prompt of 20 tokens for two sequences, then four tokens one by one."""
    import torch

    from tests.torch.decoder import Decoder, Dimensions

    torch.manual_seed(0)
    decoder = Decoder(Dimensions(hidden=768, heads=12, kv_heads=12, windows=(None,) * 12), torch.float16)
    ids = torch.randint(97, (2, 20))
    for context in range(20, 25):
        logits = decoder.forward(ids, context - ids.shape[1], cached=True)
        predicted = kvcalc.size("gpt2-small", context=context, batch=2).total_bytes
        assert decoder.held_bytes() == predicted == 2 * context * 36_864
        ids = logits[:, -1:].argmax(2)
    assert len(decoder.held()) == 24


@pytest.mark.parametrize("kv_heads", [8, 4, 2, 1], ids=["MHA", "GQA of 2", "GQA of 4", "MQA"])
def test_grouped_queries_hold_less_and_answer_the_same(kv_heads: int, tmp_path: Path) -> None:
    """With the cache or without, the logits agree; the cache holds what is predicted for 4-byte elements, twice."""
    import torch

    from tests.torch.decoder import Decoder, Dimensions

    torch.manual_seed(1)
    size = Dimensions(hidden=64, heads=8, kv_heads=kv_heads, windows=(None,) * 3)
    decoder = Decoder(size, torch.float64)
    ids, logits = decoder.generate(torch.randint(97, (3, 5)), steps=30)
    assert torch.allclose(logits, decoder.forward(ids, 0, cached=False)[:, 4:], atol=1e-9)
    model = spec(tmp_path, layers=3, hidden=64, heads=8, kv_heads=kv_heads, dtype="float32")
    assert decoder.held_bytes() == 2 * kvcalc.size(model, context=35, batch=3).total_bytes


def test_a_window_is_all_that_a_windowed_layer_needs(tmp_path: Path) -> None:
    """Layers that forget all but the last 10 tokens answer as if they kept everything, and hold what is predicted."""
    import torch

    from tests.torch.decoder import Decoder, Dimensions

    torch.manual_seed(2)
    decoder = Decoder(Dimensions(hidden=48, heads=4, kv_heads=2, windows=(10, None, 10, None)), torch.float64)
    ids, logits = decoder.generate(torch.randint(97, (2, 4)), steps=40)
    assert torch.allclose(logits, decoder.forward(ids, 0, cached=False)[:, 3:], atol=1e-9)
    model = spec(tmp_path, layers=4, hidden=48, heads=4, kv_heads=2, dtype="float32", more=HYBRID)
    assert decoder.held_bytes() == 2 * kvcalc.size(model, context=44, batch=2).total_bytes


def test_a_window_one_token_shorter_is_too_short() -> None:
    """The test above can fail: a layer that keeps 9 tokens where its queries see 10 gives other logits."""
    import torch

    from tests.torch.decoder import Decoder, Dimensions

    torch.manual_seed(2)
    decoder = Decoder(Dimensions(hidden=48, heads=4, kv_heads=2, windows=(9, None, 9, None)), torch.float64)
    ids, logits = decoder.generate(torch.randint(97, (2, 4)), steps=40)
    for layer in decoder.layers:
        layer.window = None if layer.window is None else 10
    assert not torch.allclose(logits, decoder.forward(ids, 0, cached=False)[:, 3:], atol=1e-9)
