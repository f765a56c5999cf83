"""A model as kvcalc sees it: layers in order, each with its kinds, every number with its source."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from kvcalc.spec.documented import Documented
from kvcalc.spec.kinds import Kind
from kvcalc.spec.kinds._base import Dimension, OptionalDimension, Tokens

Name = Annotated[str, Field(strict=True, min_length=1, max_length=200, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:+-]*$")]
KindName = Annotated[str, Field(strict=True, pattern=r"^[A-Za-z][A-Za-z0-9_]*$", max_length=40)]
LayerCount = Annotated[int, Field(strict=True, ge=1, le=10_000)]

NO_KIND = "none"


class Source(Documented):
    """Where a model's numbers come from."""

    url: Annotated[str, Field(strict=True, min_length=1, max_length=500)]
    """Address of the published config, or of the public file that transcribes it."""
    checked: datetime.date
    """Date on which the numbers were compared with it (YYYY-MM-DD)."""
    note: Annotated[str, Field(strict=True, max_length=500)] | None = None
    """Anything a reader must know about the source."""


class SpecFile(Documented):
    """A model spec as written in YAML; `kinds` and `pattern` are left out by models with one kind of layer."""

    name: Name
    """The model's name in kvcalc, lower case by convention."""
    aliases: tuple[Name, ...] = ()
    """Other names: Hugging Face ids, usual short names."""
    architecture: Annotated[str, Field(strict=True, pattern=r"^[A-Za-z0-9_.-]+$", max_length=60)]
    """The Hugging Face model_type, which some engines' rules depend on."""
    source: Source
    """Where the numbers come from."""
    layers: LayerCount
    """Layers of the (text) decoder, MLP-only layers included."""
    hidden_size: Dimension
    """Width of the model, in elements."""
    heads: Dimension | None = None
    """Query heads of one layer; omitted where no layer attends."""
    kv_heads: Dimension | None = None
    """Key and value heads of one layer; omitted: as many as heads (MHA); 1 is MQA."""
    head_dim: Dimension | None = None
    """Elements of one head; omitted: hidden_size / heads."""
    v_head_dim: OptionalDimension | None = None
    """Elements of one value head where it differs from head_dim."""
    encoder_context: OptionalDimension | None = None
    """Encoder positions that cross-attention layers keep unless --encoder-ctx says otherwise."""
    dtype: Annotated[str, Field(strict=True)]
    """Element format of weights and cache as published: float16, bfloat16, float32."""
    max_context: Tokens | None
    """Tokens that the model was trained for (max_position_embeddings); null if unknown or unbounded."""
    parameters: Annotated[int, Field(strict=True, ge=1, le=10**15)] | None
    """Number of weights; null if unknown."""
    vocab_size: Dimension | None = None
    """Tokens of the vocabulary; some engines' output buffers depend on it."""
    intermediate_size: Dimension | None = None
    """Width of the feed-forward layers; what engines need beside the cache depends on it."""
    experts_per_token: Dimension | None = None
    """Experts that a token is sent to, in a mixture of experts."""
    moe_intermediate_size: Dimension | None = None
    """Width of one expert; omitted: intermediate_size."""
    tie_word_embeddings: Annotated[bool, Field(strict=True)] | None = None
    """Whether the output head is the token embedding, and stored once."""
    assumed: tuple[Annotated[str, Field(strict=True)], ...] = ()
    """Fields above that the source does not give."""
    pattern: tuple[KindName | tuple[KindName, ...], ...] | None = None
    """Kind names in layer order, repeated and cut at `layers`; `none` for one that keeps nothing; `[a, b]` for two."""
    kinds: dict[KindName, dict[str, Any]] | None = None
    """The kinds that `pattern` names: `{kind: sliding, window: 1024}`; each may override the dimensions above."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: the names of its kinds in the spec, and the kinds; both empty for a layer that keeps nothing."""

    names: tuple[str, ...]
    kinds: tuple[Kind, ...]


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """All layers of one named kind: its name, the kind, and the layers' indices from 0."""

    name: str
    kind: Kind
    indices: tuple[int, ...]


@dataclass(frozen=True)
class ModelSpec:
    """A resolved model: what SpecFile describes, with `pattern` and inherited dimensions written out per layer."""

    file: SpecFile
    layers: tuple[Layer, ...]
    origin: str = ""
    # What a file that was read says of the weights: the exact bytes of its tensors, and where they, or the number of
    # parameters, come from or why they are unknown.
    weights_bytes: int | None = None
    weights_note: str = ""

    @property
    def name(self) -> str:
        """The model's name."""
        return self.file.name

    @property
    def architecture(self) -> str:
        """The Hugging Face model_type."""
        return self.file.architecture

    @property
    def dtype(self) -> str:
        """Element format of the weights, as published."""
        return self.file.dtype

    @property
    def max_context(self) -> int | None:
        """Tokens that the model was trained for."""
        return self.file.max_context

    @property
    def parameters(self) -> int | None:
        """Number of weights."""
        return self.file.parameters

    def groups(self) -> tuple[LayerGroup, ...]:
        """Return the named kinds with their layers, in order of first appearance."""
        found: dict[str, tuple[Kind, list[int]]] = {}
        for index, name, kind in self._named_kinds():
            found.setdefault(name, (kind, []))[1].append(index)
        return tuple(LayerGroup(name, kind, tuple(indices)) for name, (kind, indices) in found.items())

    def empty_layers(self) -> int:
        """Return the number of layers that keep nothing at all (MLP only)."""
        return sum(not layer.kinds for layer in self.layers)

    def _named_kinds(self) -> Iterator[tuple[int, str, Kind]]:
        for index, layer in enumerate(self.layers):
            for name, kind in zip(layer.names, layer.kinds, strict=True):
                yield index, name, kind
