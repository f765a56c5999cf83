"""What every engine profile is: it compiles a ModelSpec and a Deployment into a Placement, and nothing else."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from pydantic import ValidationError

from kvcalc.errors import BadInput, UnsupportedByEngine, did_you_mean
from kvcalc.footprint import Placement
from kvcalc.formats import Format, find_format
from kvcalc.spec.documented import Documented
from kvcalc.spec.kinds import CacheEntry
from kvcalc.spec.model import Layer, LayerGroup, ModelSpec

if TYPE_CHECKING:  # a size needs no hardware
    from kvcalc.hardware.budget import Budget
    from kvcalc.hardware.overhead import Overhead


class EngineOptions(Documented):
    """Base of the engines' own options (`-o KEY=VALUE`), by the engine's own names; unknown keys are refused."""


AnyOptions = TypeVar("AnyOptions", bound=EngineOptions)


@dataclass(frozen=True)
class Deployment(Generic[AnyOptions]):
    """How a model is served: element formats, parallelism, and the engine's options.

    `dtype` is the model's element format, `kv` the formats of K and V; `kv_given` says whether the user chose them.
    """

    dtype: Format
    kv: tuple[Format, Format]
    options: AnyOptions
    tp: int = 1
    pp: int = 1
    dp: int = 1
    dcp: int = 1
    kv_given: bool = False

    def format_of(self, entry: CacheEntry) -> Format:
        """Return the format that stores an entry."""
        if entry.element == "k":
            return self.kv[0]
        if entry.element == "v":
            return self.kv[1]
        return self.dtype if entry.element == "model" else find_format(entry.element)


class EngineProfile(ABC, Generic[AnyOptions]):
    """One engine at one version. A profile is pure: it reads a spec and a deployment and returns plain data."""

    name: ClassVar[str]
    # The version whose rules the profile states; empty where the engine is a definition, not a program.
    version: ClassVar[str]
    # One sentence for `kvcalc engines`.
    summary: ClassVar[str]
    options_class: type[AnyOptions]

    @abstractmethod
    def place(self, spec: ModelSpec, deployment: Deployment[AnyOptions]) -> Placement:
        """Return where the cache lies; UnsupportedByEngine says what the engine does not do."""

    def check(self, spec: ModelSpec, deployment: Deployment[AnyOptions], context: int, batch: int) -> None:
        """Raise BadInput where the engine's options contradict this context or batch."""

    def report(
        self, spec: ModelSpec, deployment: Deployment[AnyOptions], context: int, batch: int, placement: Placement
    ) -> dict[str, Any]:
        """Return the engine's own figures for one context and batch."""
        return {"held_bytes": placement.held_bytes(context, batch)}

    def log_lines(
        self, spec: ModelSpec, deployment: Deployment[AnyOptions], context: int, batch: int
    ) -> tuple[str, ...]:
        """Return the lines that the engine itself would print, character by character; none if it prints none."""
        return ()

    def kv_dtype(self, deployment: Deployment[AnyOptions]) -> str:
        """Return the cache's format as reports name it: `fp16`, or `q8_0/q4_0` where K and V differ."""
        key, value = deployment.kv
        return key.name if key == value else f"{key.name}/{value.name}"

    def cache_budgets(
        self,
        spec: ModelSpec,
        deployment: Deployment[AnyOptions],
        kv_bytes_per_rank: Sequence[int],
    ) -> tuple[int, ...]:
        """Return the bytes that every rank of a replica gives its cache, of those available to it (pp, then tp)."""
        return tuple(kv_bytes_per_rank)

    def budget_report(
        self,
        spec: ModelSpec,
        deployment: Deployment[AnyOptions],
        kv_bytes_per_rank: Sequence[int],
        context: int,
    ) -> dict[str, Any] | None:
        """Return what the engine itself would report for that memory on every rank; None if it reports nothing.

        Where the engine refuses to start, `admitted` is false and `admission_error` its words; `max_model_len` is the
        context that it settles on, and `log_lines` what it prints.
        """
        return None

    def weight_shares(self, spec: ModelSpec, deployment: Deployment[AnyOptions]) -> tuple[Fraction | None, ...]:
        """Return the share of the weights on every rank of a replica (pp, then tp); None for the host's memory.

        A stage has the share of its layers, split evenly over its tensor-parallel slices: parameters are not told
        apart by layer, and embeddings count with the layers.
        """
        counts = [len(layers) for layers in stages(spec, deployment.pp)]
        return shares_of_stages(counts, deployment.tp)

    def budget(self, total: int, weights: int, overhead: Overhead, share: Fraction | None = None) -> Budget:
        """Return what a rank has for its cache, of the `total` bytes that it is given.

        The engine's own rule and default share; an engine that takes what remains takes only a share of the total
        where one is given.
        """
        from kvcalc.hardware.budget import remainder, share_of_total

        if share is None:
            return remainder(total, weights, overhead)
        return share_of_total(total, share, weights, overhead)

    def assumptions(self, spec: ModelSpec, deployment: Deployment[AnyOptions]) -> tuple[str, ...]:
        """Return what the profile takes for granted, one sentence each."""
        return ()

    def parse_options(self, pairs: Mapping[str, str]) -> AnyOptions:
        """Return the engine's options from `KEY=VALUE` texts; BadInput names the option and what it takes."""
        known = self.options_class.model_fields
        for key in pairs:
            if key not in known:
                hint = did_you_mean(key, known) or (f"; it takes {', '.join(known)}" if known else "; it takes none")
                raise BadInput(f"engine {self.name} has no option '{key}'{hint}")
        try:
            return self.options_class.model_validate(dict(pairs))
        except ValidationError as error:
            first = error.errors()[0]
            key = str(first["loc"][0]) if first["loc"] else "option"
            raise BadInput(f"option {key}={pairs.get(key, '')}: {_what_it_takes(first)}") from None


def _what_it_takes(error: Any) -> str:
    """Return pydantic's complaint about an option in plain words."""
    limits = error.get("ctx", {})
    match error["type"]:
        case "int_parsing" | "int_type" | "int_from_float" | "int_parsing_size":
            return "must be a whole number"
        case "bool_parsing" | "bool_type":
            return "must be true or false"
        case "greater_than_equal":
            return f"must be at least {limits['ge']:,}"
        case "less_than_equal":
            return f"must be at most {limits['le']:,}"
        case "literal_error":
            return f"must be {limits['expected']}"
    message = str(error["msg"]).removeprefix("Value error, ")
    return message[:1].lower() + message[1:]


def stages(spec: ModelSpec, pp: int) -> tuple[tuple[Layer, ...], ...]:
    """Return the layers of every pipeline stage, as even as can be, the first stages taking the remainder."""
    if pp > len(spec.layers):
        raise UnsupportedByEngine(f"pp {pp} needs at least {pp} layers; {spec.name} has {len(spec.layers)}")
    each, rest = divmod(len(spec.layers), pp)
    bounds = [stage * each + min(stage, rest) for stage in range(pp + 1)]
    return tuple(spec.layers[low:high] for low, high in pairwise(bounds))


# Model types of text towers whose checkpoints a server loads and profiles with their encoder.
_WITH_ENCODER = frozenset(
    {
        "gemma3_text", "gemma3n_text", "gemma4_text", "llama4_text", "mllama_text_model", "qwen2_5_vl_text",
        "qwen3_5_moe_text", "qwen3_5_text", "qwen3_vl_moe_text",
    }
)  # fmt: skip
_TEXT_ONLY_GEMMA3 = 1152  # width of Gemma 3 1B, which is published without an encoder


def reads_images(spec: ModelSpec) -> bool:
    """Return whether the published model has an encoder beside the text tower that the spec describes."""
    text_only = spec.architecture == "gemma3_text" and spec.file.hidden_size <= _TEXT_ONLY_GEMMA3
    return spec.architecture in _WITH_ENCODER and not text_only


def shares_of_stages(layers: Sequence[int], tp: int) -> tuple[Fraction, ...]:
    """Return the share of all layers on every rank, for stages of so many layers and `tp` slices of each."""
    return tuple(Fraction(count, sum(layers) * tp) for count in layers for _ in range(tp))


def group_layers(layers: Iterable[Layer]) -> tuple[LayerGroup, ...]:
    """Return the named kinds of some layers, with indices counted within them."""
    found: dict[str, LayerGroup] = {}
    for index, layer in enumerate(layers):
        for name, kind in zip(layer.names, layer.kinds, strict=True):
            before = found[name].indices if name in found else ()
            found[name] = LayerGroup(name, kind, (*before, index))
    return tuple(found.values())


def require_tp_divides_heads(groups: Iterable[LayerGroup], tp: int) -> None:
    """Raise UnsupportedByEngine unless tensor parallelism splits the query heads of every layer evenly."""
    for group in groups:
        heads = group.kind.attention_heads
        if heads is not None and heads % tp:
            divisors = [str(size) for size in range(1, min(heads, 64) + 1) if heads % size == 0]
            raise UnsupportedByEngine(f"tp {tp} does not divide the {heads} heads; use tp {' '.join(divisors)}")


def shard_axes(entry: CacheEntry, tp: int) -> tuple[tuple[str, int], ...]:
    """Return the entry's axes on one rank: the shard axis divided, or one copy each where there are more ranks.

    UnsupportedByEngine where neither divides the other.
    """
    return tuple((name, _shard(name, size, tp) if name == entry.shard else size) for name, size in entry.axes)


def _shard(axis: str, size: int, tp: int) -> int:
    if size % tp == 0:
        return size // tp
    if tp % size == 0:
        return 1
    raise UnsupportedByEngine(f"tp {tp} neither divides the {size} {axis} nor is a multiple of them")


def row_factors(axes: tuple[tuple[str, int], ...], row_axes: int, stored: Format) -> tuple[tuple[str, int], ...]:
    """Return the named integers whose product is the bytes of one position: rows, then what a row takes."""
    rows, row = axes[: len(axes) - row_axes], axes[len(axes) - row_axes :]
    elements = math.prod(size for _, size in row)
    if stored.row_bytes_extra:
        return (*rows, ("row_bytes", stored.row_bytes(elements)))
    if stored.block == 1:
        return (*rows, *row, ("bytes", stored.block_bytes))
    blocks = stored.row_bytes(elements) // stored.block_bytes
    return (*rows, ("blocks_per_row", blocks), ("block_bytes", stored.block_bytes))
