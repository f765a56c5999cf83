"""A small decoder that really generates with a cache, written for the tests: its tensors are what is measured.

It knows nothing of kvcalc. Attention is full or has a window; queries may share keys and values (GQA, MQA). Weights are
random: what is kept does not depend on them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

VOCABULARY = 97
POSITIONS = 4096


@dataclass(frozen=True)
class Dimensions:
    """A decoder's dimensions; `windows` gives every layer's window, None for full attention."""

    hidden: int
    heads: int
    kv_heads: int
    windows: tuple[int | None, ...]

    @property
    def head_dim(self) -> int:
        """Elements of one head."""
        return self.hidden // self.heads


class Layer:
    """Attention and an MLP beside a residual; the attention appends to a cache, and drops what its window passed."""

    def __init__(self, size: Dimensions, window: int | None, dtype: Any) -> None:
        self.size, self.window = size, window
        kv_size = size.kv_heads * size.head_dim
        self.query, self.out = _weights(dtype, size.hidden, size.hidden), _weights(dtype, size.hidden, size.hidden)
        self.key, self.value = _weights(dtype, kv_size, size.hidden), _weights(dtype, kv_size, size.hidden)
        self.widen = _weights(dtype, 2 * size.hidden, size.hidden)
        self.narrow = _weights(dtype, size.hidden, 2 * size.hidden)
        self.kept: tuple[Any, Any] | None = None

    def forward(self, x: Any, cached: bool) -> Any:
        """Return the layer's output for the new tokens `x`, [batch, tokens, hidden]."""
        x = x + self._attention(_norm(x), cached)
        return x + torch.nn.functional.gelu(_norm(x) @ self.widen.T) @ self.narrow.T

    def _attention(self, x: Any, cached: bool) -> Any:
        key, value = self._heads(x @ self.key.T), self._heads(x @ self.value.T)
        if cached and self.kept is not None:
            key, value = torch.cat((self.kept[0], key), dim=2), torch.cat((self.kept[1], value), dim=2)
        if cached:
            start = 0 if self.window is None else max(key.shape[2] - self.window, 0)
            # A slice alone would keep the storage of all that it was cut from.
            self.kept = (key[:, :, start:].clone(), value[:, :, start:].clone())
        attended = self._attend(self._heads(x @ self.query.T), key, value)
        return attended.transpose(1, 2).flatten(2) @ self.out.T

    def _heads(self, x: Any) -> Any:
        return x.unflatten(2, (-1, self.size.head_dim)).transpose(1, 2)

    def _attend(self, query: Any, key: Any, value: Any) -> Any:
        """Return softmax(q k) v, in which no query sees a later token or one beyond its window."""
        repeat = self.size.heads // self.size.kv_heads
        key, value = key.repeat_interleave(repeat, dim=1), value.repeat_interleave(repeat, dim=1)
        scores = query @ key.transpose(2, 3) / math.sqrt(self.size.head_dim)
        at = torch.arange(key.shape[2] - query.shape[2], key.shape[2]).unsqueeze(1)
        back = at - torch.arange(key.shape[2])
        hidden = (back < 0) if self.window is None else (back < 0) | (back >= self.window)
        return scores.masked_fill(hidden, -math.inf).softmax(3) @ value


class Decoder:
    """Embeddings, layers, and a head."""

    def __init__(self, size: Dimensions, dtype: Any) -> None:
        self.tokens = _weights(dtype, VOCABULARY, size.hidden)
        self.positions = _weights(dtype, POSITIONS, size.hidden)
        self.layers = [Layer(size, window, dtype) for window in size.windows]
        self.head = _weights(dtype, VOCABULARY, size.hidden)

    def forward(self, ids: Any, seen: int, cached: bool) -> Any:
        """Return the logits of the new tokens `ids`, [batch, tokens], after `seen` earlier ones."""
        x = self.tokens[ids] + self.positions[seen : seen + ids.shape[1]]
        for layer in self.layers:
            x = layer.forward(x, cached)
        return _norm(x) @ self.head.T

    def generate(self, prompt: Any, steps: int) -> tuple[Any, Any]:
        """Return prompt and `steps` greedy tokens, all cached, and the logits from the last of the prompt on."""
        logits, ids = [self.forward(prompt, 0, cached=True)[:, -1:]], prompt
        for _ in range(steps):
            new = logits[-1].argmax(2)
            logits.append(self.forward(new, ids.shape[1], cached=True))
            ids = torch.cat((ids, new), dim=1)
        return ids, torch.cat(logits, dim=1)

    def held(self) -> list[Any]:
        """Return the tensors of the cache."""
        return [tensor for layer in self.layers for tensor in (layer.kept or ())]

    def held_bytes(self) -> int:
        """Return the bytes of the storages behind them."""
        return sum(int(tensor.untyped_storage().nbytes()) for tensor in self.held())


def _weights(dtype: Any, outputs: int, inputs: int) -> Any:
    return (torch.randn(outputs, inputs) / math.sqrt(inputs)).to(dtype)


def _norm(x: Any) -> Any:
    return torch.nn.functional.layer_norm(x, x.shape[-1:])
