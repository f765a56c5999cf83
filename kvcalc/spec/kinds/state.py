"""Recurrent state: a fixed number of bytes per sequence instead of a growing cache.

One kind, several variants. Each keeps a convolution part (the last conv_kernel - 1 inputs) in the model's dtype and a
recurrent part whose dtype is its own, fp32 unless the spec says otherwise.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from kvcalc.footprint import Retention, Role
from kvcalc.spec.kinds._base import CacheEntry, Dimension, Kind, StateDtype

Kernel = Annotated[int, Field(strict=True, ge=2, le=1024)]


class State(Kind):
    """Base of the variants: the dtypes of the two parts."""

    kind: Literal["state"] = "state"
    conv_dtype: StateDtype = "model"
    """Format of the convolution part; `model` is the model's dtype."""
    state_dtype: StateDtype = "fp32"
    """Format of the recurrent part; `model` is the model's dtype."""

    keeps: ClassVar[str] = "one state per sequence, however long the context"

    @property
    def describe(self) -> str:
        """The variant and its state's shape, for example `gated_deltanet, state 32 x 128 x 128`."""
        states = [entry for entry in self.entries() if entry.role == "ssm"]
        shape = " + ".join(" x ".join(str(size) for _, size in entry.axes) for entry in states)
        return f"{getattr(self, 'variant')}, {f'state {shape}' if shape else 'convolution only'}"  # noqa: B009

    def conv(self, shard: str, kernel: int, *axes: tuple[str, int]) -> CacheEntry:
        """Return the convolution part: the last kernel - 1 inputs of the given axes."""
        return self._entry("conv", self.conv_dtype, shard, (*axes, ("conv_history", kernel - 1)))

    def recurrent(self, shard: str, *axes: tuple[str, int]) -> CacheEntry:
        """Return the recurrent part of the given axes."""
        return self._entry("ssm", self.state_dtype, shard, axes)

    def _entry(self, role: Role, dtype: StateDtype, shard: str, axes: tuple[tuple[str, int], ...]) -> CacheEntry:
        return CacheEntry(role, axes, Retention.state(), dtype, shard)


class Mamba1(State):
    """Mamba: a convolution over `channels`, a state of `channels` x `state_size`."""

    variant: Literal["mamba1"] = "mamba1"
    channels: Dimension
    """Inner channels: expand x hidden_size."""
    state_size: Dimension
    """State elements per channel."""
    conv_kernel: Kernel
    """Width of the convolution."""

    rule_source: ClassVar[str] = "Gu and Dao 2023, arXiv:2312.00752"

    def entries(self) -> tuple[CacheEntry, ...]:
        """Return the convolution's inputs and the state."""
        channels = ("channels", self.channels)
        state = self.recurrent("channels", channels, ("state_size", self.state_size))
        return (self.conv("channels", self.conv_kernel, channels), state)


class Mamba2(State):
    """Mamba 2: `state_heads` heads of `state_head_dim`; B and C in `groups` groups pass the convolution too."""

    variant: Literal["mamba2"] = "mamba2"
    state_heads: Dimension
    """Heads of the state."""
    state_head_dim: Dimension
    """Elements of one head."""
    groups: Dimension
    """Groups that share B and C."""
    state_size: Dimension
    """State elements per channel."""
    conv_kernel: Kernel
    """Width of the convolution."""

    rule_source: ClassVar[str] = "Dao and Gu 2024, arXiv:2405.21060"

    def entries(self) -> tuple[CacheEntry, ...]:
        """Return the convolution's inputs (x; B and C) and the state."""
        heads = (("state_heads", self.state_heads), ("state_head_dim", self.state_head_dim))
        groups = (("b_and_c", 2), ("groups", self.groups), ("state_size", self.state_size))
        return (
            self.conv("state_heads", self.conv_kernel, *heads),
            self.conv("groups", self.conv_kernel, *groups),
            self.recurrent("state_heads", *heads, ("state_size", self.state_size)),
        )


class GatedDeltaNet(State):
    """Gated DeltaNet: queries, keys and values pass the convolution; a key x value matrix per value head."""

    variant: Literal["gated_deltanet"] = "gated_deltanet"
    key_heads: Dimension
    """Heads of queries and keys."""
    value_heads: Dimension
    """Heads of values, and of the state."""
    key_head_dim: Dimension
    """Elements of one query or key head."""
    value_head_dim: Dimension
    """Elements of one value head."""
    conv_kernel: Kernel
    """Width of the convolution."""

    rule_source: ClassVar[str] = "Yang et al. 2024, arXiv:2412.06464"

    def entries(self) -> tuple[CacheEntry, ...]:
        """Return the convolution's inputs (queries and keys; values) and the state."""
        keys = (("q_and_k", 2), ("key_heads", self.key_heads), ("key_head_dim", self.key_head_dim))
        values = (("value_heads", self.value_heads), ("value_head_dim", self.value_head_dim))
        state = (("value_heads", self.value_heads), ("key_head_dim", self.key_head_dim))
        return (
            self.conv("key_heads", self.conv_kernel, *keys),
            self.conv("value_heads", self.conv_kernel, *values),
            self.recurrent("value_heads", *state, ("value_head_dim", self.value_head_dim)),
        )


class Kda(State):
    """Kimi Delta Attention: queries, keys and values of equal size pass the convolution; a square matrix per head."""

    variant: Literal["kda"] = "kda"
    state_heads: Dimension
    """Heads of queries, keys, values and the state."""
    state_head_dim: Dimension
    """Elements of one head."""
    conv_kernel: Kernel
    """Width of the convolution."""

    rule_source: ClassVar[str] = "Kimi Linear, arXiv:2510.26692"

    def entries(self) -> tuple[CacheEntry, ...]:
        """Return the convolution's inputs (queries, keys, values) and the state."""
        heads = ("state_heads", self.state_heads)
        inputs = (("q_k_v", 3), heads, ("state_head_dim", self.state_head_dim))
        state = (heads, ("key_dim", self.state_head_dim), ("value_dim", self.state_head_dim))
        return (self.conv("state_heads", self.conv_kernel, *inputs), self.recurrent("state_heads", *state))


class RgLru(State):
    """RG-LRU (Griffin, RecurrentGemma): a convolution and a gated vector of `channels`."""

    variant: Literal["rg_lru"] = "rg_lru"
    channels: Dimension
    """Width of the recurrence."""
    conv_kernel: Kernel
    """Width of the convolution."""

    rule_source: ClassVar[str] = "De et al. 2024, arXiv:2402.19427"

    def entries(self) -> tuple[CacheEntry, ...]:
        """Return the convolution's inputs and the state."""
        channels = ("channels", self.channels)
        return (self.conv("channels", self.conv_kernel, channels), self.recurrent("channels", channels))


class Rwkv4(State):
    """RWKV 4: the previous token of both mixers, and numerator, denominator and maximum of every channel."""

    variant: Literal["rwkv4"] = "rwkv4"
    channels: Dimension
    """Channels of the mixers (the hidden size)."""

    rule_source: ClassVar[str] = "Peng et al. 2023, arXiv:2305.13048"

    def entries(self) -> tuple[CacheEntry, ...]:
        """Return the two shifted tokens and the three accumulators."""
        channels = ("channels", self.channels)
        shifted = self._entry("conv", self.conv_dtype, "channels", (("token_shifts", 2), channels))
        return (shifted, self.recurrent("channels", ("accumulators", 3), channels))


class Rwkv(State):
    """RWKV 5, 6 and 7: the previous token of both mixers, and a square matrix per head."""

    variant: Literal["rwkv"] = "rwkv"
    channels: Dimension
    """Channels of the token shift (the hidden size)."""
    state_heads: Dimension
    """Heads of the state: the attention's size / state_head_dim."""
    state_head_dim: Dimension
    """Elements of one head (64 in the published models)."""

    rule_source: ClassVar[str] = "Peng et al. 2024, arXiv:2404.05892 (5 and 6); Peng et al. 2025, arXiv:2503.14456 (7)"

    def entries(self) -> tuple[CacheEntry, ...]:
        """Return the two shifted tokens and the state."""
        shifted = (("token_shifts", 2), ("channels", self.channels))
        state = (("state_heads", self.state_heads), ("key_dim", self.state_head_dim))
        return (
            self._entry("conv", self.conv_dtype, "channels", shifted),
            self.recurrent("state_heads", *state, ("value_dim", self.state_head_dim)),
        )


class ShortConv(State):
    """A gated short convolution (LFM2): the last inputs of the convolution and nothing else."""

    variant: Literal["short_conv"] = "short_conv"
    channels: Dimension
    """Channels of the convolution."""
    conv_kernel: Kernel
    """Width of the convolution (conv_L_cache)."""

    rule_source: ClassVar[str] = "LFM2: conv_L_cache of its published config.json"

    def entries(self) -> tuple[CacheEntry, ...]:
        """Return the convolution's inputs."""
        return (self.conv("channels", self.conv_kernel, ("channels", self.channels)),)


class Lightning(State):
    """Lightning attention (MiniMax-01): a square matrix per head, in the model's dtype unless the spec says."""

    variant: Literal["lightning"] = "lightning"
    state_heads: Dimension
    """Heads of the state."""
    state_head_dim: Dimension
    """Elements of one head."""
    state_dtype: StateDtype = "model"
    """Format of the recurrent part; `model` is the model's dtype."""

    rule_source: ClassVar[str] = "MiniMax-01, arXiv:2501.08313"

    def entries(self) -> tuple[CacheEntry, ...]:
        """Return the state."""
        state = (("state_heads", self.state_heads), ("key_dim", self.state_head_dim))
        return (self.recurrent("state_heads", *state, ("value_dim", self.state_head_dim)),)


AnyState = Annotated[
    Mamba1 | Mamba2 | GatedDeltaNet | Kda | RgLru | Rwkv4 | Rwkv | ShortConv | Lightning,
    Field(discriminator="variant"),
]
