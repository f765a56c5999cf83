"""vLLM 0.33.0's rules for the KV cache, one pure function each; sections 1.1 to 1.7 as in docs/engines/vllm.md.

A layer's page is what one block holds of it. Pages are made equal, layers are sorted into groups, and a block, whose
bytes are those of the widest group, serves one group at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from kvcalc.engines._base import row_factors
from kvcalc.errors import BadInput, UnsupportedByEngine
from kvcalc.footprint import Role, Steps
from kvcalc.formats import Format, find_format
from kvcalc.spec.kinds import CacheEntry, Heads, Indexer, Kind, Mla, State

SOURCE = "vLLM 0.33.0"
PAGE_SOURCE = f"{SOURCE}, v1/kv_cache_interface.py: a block holds whole tokens of every layer of its group"
STATE_SOURCE = f"{SOURCE}, layers/mamba/: a block holds one state of every layer of its group"
PADDING_SOURCE = f"{SOURCE}, v1/core/kv_cache_planning.py: every block has the bytes of the widest group"

# vLLM's own words for what a layer keeps, as its reports print them.
PageKind = Literal[
    "full_attention",
    "mla_attention",
    "sliding_window",
    "chunked_local_attention",
    "cross_attention",
    "mamba",
]

# Formats of rows, by vLLM's names of the cache's dtype; `auto` is the model's.
_FP8_PER_ROW = Format("fp8_per_token_head", 1, 1, find_format("int8").source, row_bytes_extra=4)
ROW_FORMATS: Mapping[str, Format] = {
    "float16": find_format("fp16"),
    "bfloat16": find_format("bf16"),
    **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc"), find_format("fp8")),
    "int8_per_token_head": find_format("int8"),
    "fp8_per_token_head": _FP8_PER_ROW,
    "int4_per_token_head": find_format("int4"),
    **dict.fromkeys(("nvfp4", "nvfp4_4over6"), find_format("nvfp4")),
}
# Bytes of one token of MLA with a latent of 512 and a rotary part of 64, packed with its scales.
PACKED_MLA: Mapping[str, int] = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}
_SLOTS_OF_A_BACKEND = ("turboquant_", "octave_", "ultraquant_")
# The selector of DeepSeek sparse attention: fp8 keys with one fp32 scale for every 128 elements.
_INDEX_GROUP, _INDEX_SCALE = 128, 4


@dataclass(frozen=True)
class Part:
    """One tensor of a page: the named integers whose product is its bytes for one token (or one state)."""

    role: Role
    factors: tuple[tuple[str, int], ...]

    @property
    def bytes(self) -> int:
        """Bytes of one token, or of one state."""
        return math.prod(value for _, value in self.factors)


@dataclass(frozen=True)
class Page:
    """What one block holds of one layer. Layers with equal pages can share a group.

    `size` is the window, the chunk, the encoder's positions, or the states of one request; `padded` the bytes that
    the page is padded to.
    """

    kind: PageKind
    block_size: int
    parts: tuple[Part, ...]
    size: int = 0
    padded: int | None = None

    @property
    def token_bytes(self) -> int:
        """Bytes of one token (of one state), without padding."""
        return sum(part.bytes for part in self.parts)

    @property
    def tokens(self) -> int:
        """How often `token_bytes` lie in a page: the block's tokens, or one state."""
        return 1 if self.kind == "mamba" else self.block_size

    @property
    def used_bytes(self) -> int:
        """Bytes of the page that hold something."""
        return self.tokens * self.token_bytes

    @property
    def bytes(self) -> int:
        """Bytes of the page, padding included."""
        return self.used_bytes if self.padded is None else self.padded

    @property
    def family(self) -> tuple[str, int, int]:
        """What pages of one uniform group have in common: full attention and MLA are one family."""
        kind = "full_attention" if self.kind == "mla_attention" else self.kind
        return kind, self.block_size, self.size


@dataclass(frozen=True)
class CacheLayer:
    """One tensor that vLLM allocates: its model layer's index, the kind's name in the spec, the kind, its page."""

    index: int
    label: str
    kind: str
    page: Page


@dataclass(frozen=True)
class Group:
    """Layers that share a block table; `kind` and `block_size` are those of its first layer."""

    layers: tuple[CacheLayer, ...]

    @property
    def page(self) -> Page:
        """The first layer's page, which stands for how long blocks are kept."""
        return self.layers[0].page

    def on(self, indices: range) -> tuple[CacheLayer, ...]:
        """Return the layers among `indices`: those of a pipeline stage."""
        return tuple(layer for layer in self.layers if layer.index in indices)


# 1.1 heads and head sizes of one rank ---------------------------------------------------------------------------------


def kv_heads_on_rank(kv_heads: int, tp: int) -> int:
    """Return the KV heads of one rank: the floor of the share, and one copy each where there are more ranks."""
    return max(1, kv_heads // tp)


# 1.2 bytes of one token -----------------------------------------------------------------------------------------------


def refuse_unknown_dtype(name: str) -> None:
    """Raise for a cache dtype that vLLM packs in a way of its own, or that it does not have."""
    if name.startswith(_SLOTS_OF_A_BACKEND):
        raise UnsupportedByEngine(
            f"kv_cache_dtype {name} is not covered: the size of its packed slots is set by its attention backend"
        )
    if name not in ROW_FORMATS and name not in PACKED_MLA:
        raise BadInput(f"kv_cache_dtype '{name}' is unknown; known: auto, {', '.join((*ROW_FORMATS, *PACKED_MLA))}")


def served_dtype(kv_cache_dtype: str, backend: Backend | None) -> str:
    """Return the cache dtype that a backend makes of the user's: sparse FlashMLA stores fp8 as packed rows."""
    plain = ROW_FORMATS.get(kv_cache_dtype) is ROW_FORMATS["fp8"]
    return "fp8_ds_mla" if plain and backend is not None and backend.name == "FLASHMLA_SPARSE" else kv_cache_dtype


def token_parts(kind: Kind, kv_cache_dtype: str, stored: Format | None, tp: int) -> tuple[Part, ...]:
    """Return what one token takes in a layer of attention on one rank; `stored` is None for packed MLA rows."""
    if isinstance(kind, Indexer):
        return (_index_part(kind),)
    if isinstance(kind, Mla):
        return (_packed_latent(kind, kv_cache_dtype),) if stored is None else _latent_parts(kind, stored)
    assert isinstance(kind, Heads)
    if stored is None:
        raise UnsupportedByEngine(f"kv_cache_dtype {kv_cache_dtype} packs MLA's latent; {kind.describe} has none")
    heads = ("kv_heads", kv_heads_on_rank(kind.kv_heads, tp))
    axes = [(entry.role, (heads, entry.axes[-1])) for entry in kind.entries()]
    return tuple(Part(role, row_factors(sizes, 1, stored)) for role, sizes in axes)


def _latent_parts(kind: Mla, stored: Format) -> tuple[Part, ...]:
    """One latent and one rotary key for all heads, whole on every rank; scales per row come once, as K's and V's."""
    if stored.name == "nvfp4":
        raise UnsupportedByEngine("kv_cache_dtype nvfp4 is not covered for MLA; vLLM packs it as nvfp4_ds_mla")
    if stored.row_bytes_extra:
        data = Format(stored.name, stored.block, stored.block_bytes, stored.source)
        row = data.row_bytes(kind.kv_lora_rank + kind.qk_rope_head_dim) + 2 * stored.row_bytes_extra
        return (Part("latent", (("row_bytes", row),)),)
    return tuple(Part(entry.role, row_factors(entry.axes, entry.row_axes, stored)) for entry in kind.entries())


def _packed_latent(kind: Mla, kv_cache_dtype: str) -> Part:
    """MLA's packed rows have a fixed layout: 512 elements and their scales, and 64 rotary elements."""
    if (kind.kv_lora_rank, kind.qk_rope_head_dim) != (512, 64):
        raise UnsupportedByEngine(
            f"kv_cache_dtype {kv_cache_dtype} packs a latent of 512 + 64; this is {kind.describe}"
        )
    return Part("latent", (("row_bytes", PACKED_MLA[kv_cache_dtype]),))


def _index_part(kind: Indexer) -> Part:
    """The indexer's keys are fp8 with inline scales, whatever the cache's dtype."""
    groups, rest = divmod(kind.index_head_dim, _INDEX_GROUP)
    if rest:
        raise UnsupportedByEngine(f"{SOURCE} scales indexer keys in groups of {_INDEX_GROUP}; this is {kind.describe}")
    return Part("index", (("row_bytes", kind.index_head_dim + groups * _INDEX_SCALE),))


# 1.3 block size -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Backend:
    """An attention backend: its kernels' block sizes, and the size it picks (None: the profile cannot tell)."""

    name: str
    kernel_sizes: tuple[int, ...]
    preferred: int | None
    mla: bool = False

    def resolve(self, block_size: int | None) -> int:
        """Return the tokens of a block: the user's if a kernel's size divides it, else the preferred one."""
        sizes = " or ".join(str(size) for size in self.kernel_sizes)
        if block_size is None:
            if self.preferred is None:
                raise UnsupportedByEngine(
                    f"attention_backend {self.name} has blocks of {sizes} tokens, depending on the GPU; "
                    "say which with -o block_size"
                )
            return self.preferred
        if all(block_size % size for size in self.kernel_sizes):
            raise UnsupportedByEngine(
                f"block_size {block_size} is not a multiple of {sizes}, which attention_backend {self.name} needs"
            )
        return block_size


BACKENDS: Mapping[str, Backend] = {
    backend.name: backend
    for backend in (
        Backend("FLASH_ATTN", (16,), 16),
        Backend("TRITON_ATTN", (16,), 16),
        Backend("FLASHINFER", (16, 32, 64), 16),
        Backend("CPU_ATTN", (32,), 32),
        Backend("FLASHMLA", (64,), 64, mla=True),
        Backend("FLASHMLA_SPARSE", (64,), 64, mla=True),
        Backend("CUTLASS_MLA", (128,), 128, mla=True),
        Backend("TRITON_MLA", (16,), 16, mla=True),
        Backend("FLASHINFER_MLA", (32, 64), None, mla=True),
        Backend("TOKENSPEED_MLA", (32, 64), None, mla=True),
    )
}


def sliding_block_size(block_size: int, token_bytes: int, full_token_bytes: int | None, backend: Backend) -> int:
    """Return the block of a sliding-window layer: the largest one whose page fits in a page of full attention.

    A model without full attention has nothing to fit in, and keeps its block; the smallest kernel's is the least.
    """
    if full_token_bytes is None:
        return block_size
    smallest = min(backend.kernel_sizes)
    fitting = block_size * full_token_bytes // token_bytes
    return max(smallest, fitting // smallest * smallest)


# 1.4 recurrent state --------------------------------------------------------------------------------------------------

_COVERED_STATES = ("mamba1", "mamba2", "gated_deltanet", "kda")


def state_parts(kind: State, conv: Format, ssm: Format, tp: int) -> tuple[Part, ...]:
    """Return the convolution's inputs and the recurrent state of one layer on one rank.

    UnsupportedByEngine for variants without a stated rule, and where ranks do not divide what they must split.
    """
    variant = str(getattr(kind, "variant", ""))
    if variant not in _COVERED_STATES:
        raise UnsupportedByEngine(f"state layers of variant {variant} are not covered for {SOURCE}")
    entries = [_with_whole_groups(entry, tp) for entry in kind.entries()]
    channels = sum(entry.elements // entry.axes[-1][1] for entry in entries if entry.role == "conv")
    (history,) = {entry.axes[-1] for entry in entries if entry.role == "conv"}
    (state,) = (entry for entry in entries if entry.role == "ssm")
    shared = tuple((name, _split(name, size, tp) if name == state.shard else size) for name, size in state.axes)
    inputs = (("conv_channels", _split("conv channels", channels, tp)), history, ("bytes", conv.block_bytes))
    return Part("conv", inputs), Part("ssm", (*shared, ("bytes", ssm.block_bytes)))


def _with_whole_groups(entry: CacheEntry, tp: int) -> CacheEntry:
    """Mamba 2's groups of B and C are copied where ranks do not divide them: as many groups as ranks."""
    axes = tuple((name, tp if name == "groups" and size % tp else size) for name, size in entry.axes)
    return replace(entry, axes=axes)


def _split(name: str, size: int, tp: int) -> int:
    if size % tp:
        raise UnsupportedByEngine(f"tp {tp} does not divide the {size} {name.replace('_', ' ')}")
    return size // tp


def aligned_block_size(block_size: int, state_bytes: int, token_bytes: int, backend: Backend) -> int:
    """Return the block that makes a page of attention at least as large as a state (hybrid block alignment)."""
    smallest = min(backend.kernel_sizes)
    unit = max(smallest, block_size, 128 if backend.mla else 0)
    aligned = max(block_size, unit * -(-state_bytes // (unit * token_bytes)))
    return -(-aligned // smallest) * smallest


def states_per_request(kind: State, prefix_caching: bool) -> int:
    """Return the state blocks of one request: with prefix caching a second one, and Mamba 2's checkpoint."""
    if not prefix_caching:
        return 1
    return 3 if getattr(kind, "variant", "") == "mamba2" else 2


# 1.5 groups, blocks, stages -------------------------------------------------------------------------------------------


def group_layers_by_page(layers: Sequence[CacheLayer]) -> tuple[Group, ...]:
    """Return the groups of a whole model: one if all layers can share it, else groups of equal page bytes."""
    if len({layer.page.family for layer in layers}) == 1:
        return (Group(tuple(layers)),)
    return cut_into_groups(unify_pages(layers))


def unify_pages(layers: Sequence[CacheLayer]) -> tuple[CacheLayer, ...]:
    """Return the layers with pages of equal bytes: smaller ones hold more tokens, or are padded."""
    largest = max(layer.page.bytes for layer in layers)
    return tuple(replace(layer, page=_unified(layer.page, largest)) for layer in layers)


def _unified(page: Page, largest: int) -> Page:
    if page.bytes == largest:
        return page
    if page.kind != "mamba" and largest % page.bytes == 0:
        return replace(page, block_size=page.block_size * (largest // page.bytes))
    if page.kind == "mla_attention":
        raise UnsupportedByEngine(
            f"MLA pages of {page.bytes:,} bytes beside pages of {largest:,} bytes are not covered: vLLM cannot pad them"
        )
    return replace(page, padded=largest)


def cut_into_groups(layers: Sequence[CacheLayer]) -> tuple[Group, ...]:
    """Return layers of equal pages cut into groups of at most `group_size`, by stride, kinds in order of appearance."""
    buckets: dict[Page, list[CacheLayer]] = {}
    for layer in layers:
        buckets.setdefault(layer.page, []).append(layer)
    size = group_size([len(bucket) for bucket in buckets.values()])
    groups = []
    for bucket in buckets.values():
        count = -(-len(bucket) // size)
        groups += [Group(tuple(bucket[first::count])) for first in range(count)]
    return tuple(groups)


def group_size(buckets: Sequence[int]) -> int:
    """Return the layers of a group: those of the largest kind if kinds are nearly even, else of the smallest."""
    least, most = min(buckets), max(buckets)
    return most if 2 * most < 3 * least else least


def layer_split(layers: int, pp: int) -> tuple[range, ...]:
    """Return the layers of every pipeline stage: the remainder goes to the last stages but one, backwards."""
    if pp > layers:
        raise UnsupportedByEngine(f"pp {pp} needs at least {pp} layers; the model has {layers}")
    each, rest = divmod(layers, pp)
    sizes = [each + (pp - 1 - rest <= stage < pp - 1) for stage in range(pp)]
    ends = [sum(sizes[: stage + 1]) for stage in range(pp)]
    return tuple(range(end - size, end) for size, end in zip(sizes, ends, strict=True))


def bytes_per_block(groups: Iterable[Group], stage: range) -> int:
    """Return the bytes of one block on a stage: those of the group with most bytes there."""
    return max(sum(layer.page.bytes for layer in group.on(stage)) for group in groups)


# 1.6 blocks of one request --------------------------------------------------------------------------------------------


def batches_in_flight(pp: int, async_scheduling: bool, v2_model_runner: bool) -> int:
    """Return how many batches are under way at once."""
    if not async_scheduling:
        return pp
    if v2_model_runner:
        return pp + 1
    return 2 if pp == 1 else pp


def admitted_blocks(page: Page, in_flight: int, batched: int, dcp: int) -> Steps:
    """Return the blocks of one group that a request must be able to get before it is accepted."""
    block = page.block_size
    match page.kind:
        case "sliding_window":
            return Steps.window(page.size - 1 + in_flight, block, spare=1)
        case "chunked_local_attention":
            return Steps.window(page.size + in_flight, block)
        case "cross_attention":
            return Steps.constant(-(-batched // block))
        case "mamba":
            return Steps.constant(page.size)
    return Steps.per_token(block * dcp)


def held_blocks(page: Page, dcp: int) -> tuple[tuple[Steps, int], ...]:
    """Return the blocks of one group that a request of n tokens holds, as staircases with their signs.

    Blocks of a window are freed by position, as soon as no later token sees them.
    """
    block = page.block_size
    match page.kind:
        case "sliding_window":
            return ((Steps.per_token(block), 1), (Steps.released(page.size - 1, block), -1))
        case "chunked_local_attention":
            if page.size % block:
                raise UnsupportedByEngine(
                    f"blocks of {block} tokens that do not divide a chunk of {page.size} are not covered"
                )
            return ((Steps.chunk(page.size, block), 1),)
        case "cross_attention":
            return ((Steps.constant(-(-page.size // block)), 1),)
        case "mamba":
            return ((Steps.constant(page.size), 1),)
    return ((Steps.per_token(block * dcp), 1),)


# 1.7 what the server prints -------------------------------------------------------------------------------------------


def reported_tokens(num_blocks: int, blocks_per_request: int, max_model_len: int) -> int:
    """Return the N of "GPU KV cache size: N tokens": int(concurrency * max_model_len).

    vLLM multiplies floats, and so does this function: the last digit of the line depends on it.
    """
    return int(num_blocks / blocks_per_request * max_model_len)


def printed_concurrency(concurrency: Fraction) -> str:
    """Return "1.11x" as vLLM prints it: the quotient as a float, with two decimals."""
    return f"{concurrency.numerator / concurrency.denominator:.2f}x"


def gibibytes(size: int) -> float:
    """Return bytes as the refusal prints them: GiB rounded to two decimals, without trailing zeros but one."""
    return round(size / 2**30, 2)
