"""What every attention kind is: a frozen record of one layer's dimensions that lists the entries the layer keeps."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from kvcalc.footprint import Retention, Role
from kvcalc.spec.documented import Documented

# Which format stores an entry: the K or V format of the deployment, the model's dtype, or one fixed by the kind.
Element = Literal["k", "v", "model", "fp32", "fp16", "bf16", "fp8"]
StateDtype = Literal["model", "fp32", "fp16", "bf16"]

# Larger than any published dimension by orders of magnitude; beyond it the number is a typing error.
Dimension = Annotated[int, Field(strict=True, ge=1, le=2**24)]
OptionalDimension = Annotated[int, Field(strict=True, ge=0, le=2**24)]
Tokens = Annotated[int, Field(strict=True, ge=1, le=2**40)]


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One tensor that a layer keeps.

    `axes` are the named sizes of what one retained position (or one state) holds, in elements; `row_axes` counts the
    trailing axes that form one row, the unit that a block format must divide. `shard` names the axis that tensor
    parallelism splits (and replicates once there are more ranks than its size); None: every rank holds it whole.
    """

    role: Role
    axes: tuple[tuple[str, int], ...]
    retention: Retention
    element: Element
    shard: str | None = None
    row_axes: int = 1

    @property
    def row_elements(self) -> int:
        """Elements of one row."""
        return math.prod(size for _, size in self.axes[len(self.axes) - self.row_axes :])

    @property
    def rows(self) -> tuple[tuple[str, int], ...]:
        """The leading axes: how many rows there are, by name."""
        return self.axes[: len(self.axes) - self.row_axes]

    @property
    def elements(self) -> int:
        """All elements of one retained position or one state."""
        return math.prod(size for _, size in self.axes)


class Kind(Documented):
    """Base of the kinds. Fields are the dimensions of one layer, in elements or tokens; unknown keys are refused."""

    # One sentence for `kvcalc explain`: what such a layer keeps and why.
    keeps: ClassVar[str]
    # Where the rule comes from.
    rule_source: ClassVar[str]

    @property
    def name(self) -> str:
        """The kind's name in specs and reports."""
        return str(getattr(self, "kind"))  # noqa: B009  (each kind declares its own Literal)

    @property
    def attention_heads(self) -> int | None:
        """Query heads of the layer, which tensor parallelism splits; None for layers without attention."""
        return None

    @property
    @abstractmethod
    def describe(self) -> str:
        """The dimensions in a few words, for tables."""

    @abstractmethod
    def entries(self) -> tuple[CacheEntry, ...]:
        """Return the entries that one layer of this kind keeps."""


class Heads(Kind):
    """A kind with separate keys and values: `kv_heads` heads of `head_dim` (keys) and `v_head_dim` (values)."""

    heads: Dimension
    """Query heads."""
    kv_heads: Dimension
    """Key and value heads: equal to heads is MHA, 1 is MQA, between is GQA ("KV groups" in papers)."""
    head_dim: Dimension
    """Elements of one key head (and of one value head unless v_head_dim is given)."""
    v_head_dim: OptionalDimension | None = None
    """Elements of one value head; omitted: head_dim; 0: the values are the keys and nothing more is stored."""

    @property
    def attention_heads(self) -> int | None:
        """Query heads."""
        return self.heads

    @property
    def grouping(self) -> str:
        """MHA, GQA or MQA."""
        if self.kv_heads == self.heads:
            return "MHA"
        return "MQA" if self.kv_heads == 1 else "GQA"

    @property
    def value_dim(self) -> int:
        """Elements of one value head; 0 where the values are read from the keys."""
        return self.head_dim if self.v_head_dim is None else self.v_head_dim

    @property
    def describe(self) -> str:
        """For example `GQA, 8 kv heads of 128`."""
        size = f"{self.head_dim}" if self.value_dim == self.head_dim else f"{self.head_dim} (V {self.value_dim})"
        return f"{self.grouping}, {self.kv_heads} kv head{'s' * (self.kv_heads != 1)} of {size}"

    def keys_and_values(self, retention: Retention) -> tuple[CacheEntry, ...]:
        """Return the K entry, and the V entry unless the values are the keys, both kept by `retention`."""
        key = CacheEntry("k", (("kv_heads", self.kv_heads), ("head_dim", self.head_dim)), retention, "k", "kv_heads")
        if self.value_dim == 0:
            return (key,)
        axes = (("kv_heads", self.kv_heads), ("head_dim", self.value_dim))
        return (key, CacheEntry("v", axes, retention, "v", "kv_heads"))
