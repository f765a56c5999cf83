"""SGLang 0.5.23's rules for the KV cache, one pure function each, as docs/engines/sglang.md tells them.

A token pool has the same number of tokens in every layer of its sort. A model with windowed layers has a second one,
smaller by a ratio; one with recurrent layers has a pool of states beside it. All are cut out of the same memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from kvcalc.engines._base import row_factors, shard_axes
from kvcalc.errors import BadInput, UnsupportedByEngine
from kvcalc.footprint import Pool, Role
from kvcalc.formats import Format, find_format
from kvcalc.spec.kinds import Heads, Indexer, Kind, Mla, State

SOURCE = "SGLang 0.5.23"
CELL_SOURCE = f"{SOURCE}, model_executor/pool_configurator.py: every layer of a pool holds the same tokens, in pages"
WINDOW_SOURCE = f"{SOURCE}, model_executor/pool_configurator.py: a request needs its window and a page of the SWA pool"
STATE_SOURCE = f"{SOURCE}, mem_cache/memory_pool.py: a slot holds one state of every recurrent layer"

PoolName = Literal["full", "swa", "state"]

GIB = 2**30

# The cache's dtypes by SGLang's names; fp4 is packed with its scales.
CACHE_DTYPES: Mapping[str, str] = {
    "bf16": "bf16",
    "bfloat16": "bf16",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "mxfp8": "mxfp8",
    "fp4_e2m1": "nvfp4",
}
# DeepSeek sparse attention in fp8: 512 elements, an fp32 scale for every 128 of them, 64 rotary elements in 16 bits.
_SPARSE_ROW = 512 + 512 // 128 * 4 + 64 * 2
_INDEX_GROUP, _INDEX_SCALE = 128, 4


@dataclass(frozen=True)
class Part:
    """One tensor of a layer: the named integers whose product is its bytes for one token (or one state)."""

    role: Role
    factors: tuple[tuple[str, int], ...]

    @property
    def bytes(self) -> int:
        """Bytes of one token, or of one state."""
        return math.prod(value for _, value in self.factors)


# Bytes of one token ---------------------------------------------------------------------------------------------------


def kv_heads_on_rank(kv_heads: int, attention_tp: int, dcp: int = 1) -> int:
    """Return the KV heads of one rank: the floor of the share, at least one; context-parallel ranks have copies."""
    return max(1, kv_heads // (attention_tp // dcp))


def token_parts(kind: Kind, kv: tuple[Format, Format], attention_tp: int, dcp: int, packed: bool) -> tuple[Part, ...]:
    """Return what one token takes in a layer of attention on one rank; `packed`: fp8 rows of sparse attention."""
    if isinstance(kind, Indexer):
        return (_index_part(kind, dcp),)
    if isinstance(kind, Mla):
        return _latent_parts(kind, kv, packed)
    assert isinstance(kind, Heads)
    _require_kv_formats(kv)
    if kind.value_dim == 0:
        raise UnsupportedByEngine(f"{kind.describe}: keys that serve as values are not covered for {SOURCE}")
    heads = ("kv_heads", kv_heads_on_rank(kind.kv_heads, attention_tp, dcp))
    entries = zip(kind.entries(), kv, strict=True)
    return tuple(Part(entry.role, row_factors((heads, entry.axes[-1]), 1, stored)) for entry, stored in entries)


def _require_kv_formats(kv: tuple[Format, Format]) -> None:
    """Raise for formats of keys and values without a stated rule; fp8 keys with fp4 values are what a log showed."""
    key, value = kv[0].name, kv[1].name
    if key == value and key in ("fp32", "fp16", "bf16", "fp8", "mxfp8"):
        return
    if (key, value) == ("fp8", "nvfp4"):
        return
    if "nvfp4" in (key, value):
        raise UnsupportedByEngine(
            f"a cache of {key}/{value} is not covered: how {SOURCE} stores fp4 depends on its recipe; of keys and "
            "values only --kv-dtype fp8/nvfp4 is known"
        )
    raise UnsupportedByEngine(f"{SOURCE} does not store the cache as {key}/{value}; it takes bf16, fp8 or mxfp8")


def _latent_parts(kind: Mla, kv: tuple[Format, Format], packed: bool) -> tuple[Part, ...]:
    """One latent and one rotary key for all heads, whole on every rank."""
    stored = kv[0]
    if kv[0] != kv[1] or stored.name not in ("fp32", "fp16", "bf16", "fp8", "nvfp4"):
        raise UnsupportedByEngine(f"{SOURCE} does not store MLA's latent as {kv[0].name}/{kv[1].name}")
    if packed and stored.name == "fp8":
        if (kind.kv_lora_rank, kind.qk_rope_head_dim) != (512, 64):
            raise UnsupportedByEngine(f"{SOURCE} packs fp8 rows of a latent of 512 + 64; this is {kind.describe}")
        return (Part("latent", (("row_bytes", _SPARSE_ROW),)),)
    return tuple(Part(entry.role, row_factors(entry.axes, entry.row_axes, stored)) for entry in kind.entries())


def _index_part(kind: Indexer, dcp: int) -> Part:
    """The indexer's keys are fp8 with scales, whatever the cache's dtype, and every rank has those of all tokens."""
    groups, rest = divmod(kind.index_head_dim, _INDEX_GROUP)
    if rest:
        raise UnsupportedByEngine(f"{SOURCE} scales indexer keys in groups of {_INDEX_GROUP}; this is {kind.describe}")
    copies = (("dcp", dcp),) if dcp > 1 else ()
    return Part("index", (("row_bytes", kind.index_head_dim + groups * _INDEX_SCALE), *copies))


def packs_sparse_rows(prefill_backend: str | None, decode_backend: str | None) -> bool:
    """Return whether fp8 rows of sparse attention are packed with their scales; UnsupportedByEngine where unknown.

    The trtllm and tilelang kernels read plain rows when both prefill and decoding use them.
    """
    if prefill_backend == decode_backend and prefill_backend in ("trtllm", "tilelang"):
        return False
    if "trtllm" in (prefill_backend, decode_backend):
        raise UnsupportedByEngine(
            f"dsa_prefill_backend {prefill_backend} with dsa_decode_backend {decode_backend} is not covered for "
            f"{SOURCE}; give trtllm for both"
        )
    return True


# Recurrent state ------------------------------------------------------------------------------------------------------

_COVERED_STATES = ("mamba2", "gated_deltanet", "kda")


def state_parts(kind: State, dtype: Format, ssm: Format | None, attention_tp: int) -> tuple[Part, ...]:
    """Return the convolution's inputs and the recurrent state of one layer on one rank; `ssm` None: the spec's own."""
    variant = str(getattr(kind, "variant", ""))
    if variant not in _COVERED_STATES:
        raise UnsupportedByEngine(f"state layers of variant {variant} are not covered for {SOURCE}")
    parts = []
    for entry in kind.entries():
        stored = dtype if entry.element == "model" else find_format(entry.element)
        if entry.role == "ssm" and ssm is not None:
            stored = ssm
        parts.append(Part(entry.role, row_factors(shard_axes(entry, attention_tp), 1, stored)))
    return tuple(parts)


def slots_per_request(radix_cache: bool) -> int:
    """Return the state slots that a running request takes: with the radix cache three, its own and two snapshots."""
    return 3 if radix_cache else 1


# From memory to pools -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shares:
    """The pools that a rank's memory becomes: tokens of full attention, of windowed layers, and state slots."""

    full_tokens: int
    swa_tokens: int
    state_slots: int


@dataclass(frozen=True)
class Split:
    """How one rank's memory is cut: bytes of a token in the layers of each sort, of a state slot, and the ratios.

    `swa_floor` is the number of tokens that the windowed pool must exceed for the server to start. `slots` is the
    user's number of state slots, None: by `state_ratio` (states : tokens).
    """

    page_size: int
    full_bytes: int
    swa_bytes: int
    swa_ratio: Fraction
    swa_floor: int = 0
    state_bytes: int = 0
    state_ratio: Fraction = Fraction(9, 10)
    slots: int | None = None

    @property
    def cell(self) -> Fraction:
        """Bytes of one token of max_total_num_tokens: windowed layers hold `swa_ratio` of a token beside each."""
        return self.full_bytes + self.swa_ratio * self.swa_bytes if self.full_bytes else Fraction(self.swa_bytes)

    @property
    def page(self) -> Fraction:
        """Bytes of one page of tokens in all layers with tokens."""
        return self.page_size * self.cell

    @property
    def state_share(self) -> Fraction:
        """The part of the memory that is for states."""
        return self.state_ratio / (1 + self.state_ratio)

    def divide(self, memory: int) -> Shares:
        """Return the pools of `memory` bytes, in whole pages; nothing at all where the server would not start."""
        slots = self._state_slots(memory)
        pages = math.floor(max(memory - self._state_memory(slots), 0) / self.page)
        tokens, swa = pages * self.page_size, self._swa_pages(pages) * self.page_size
        if slots < bool(self.state_bytes) or not pages or (self.swa_bytes and swa <= self.swa_floor):
            return Shares(0, 0, 0)
        return Shares(tokens if self.full_bytes else 0, swa, slots)

    def least_memory(self, pool: PoolName, units: int, at_least: int) -> int:
        """Return the smallest memory, `at_least` or more, of which a pool gets `units` pages (or slots)."""
        if pool == "state":
            return self._memory_for_slots(units, at_least)
        return self._memory_for_pages(units if pool == "full" else self._pages_for_swa(units), at_least)

    def _state_slots(self, memory: int) -> int:
        if not self.state_bytes:
            return 0
        if self.slots is not None:
            return self.slots
        return math.floor((memory * self.state_share - self.state_bytes) / self.state_bytes)

    def _state_memory(self, slots: int) -> int:
        """One slot more than are handed out: it takes what padding writes."""
        return (slots + 1) * self.state_bytes if self.state_bytes else 0

    def _swa_pages(self, pages: int) -> int:
        if not self.swa_bytes:
            return 0
        return math.floor(pages * self.swa_ratio) if self.full_bytes else pages

    def _pages_for_swa(self, units: int) -> int:
        """Return the pages of which the windowed pool gets `units`, and enough to start."""
        needed = max(units, self.swa_floor // self.page_size + 1)
        return math.ceil(needed / self.swa_ratio) if self.full_bytes else needed

    def _memory_for_slots(self, units: int, at_least: int) -> int:
        if self.slots is not None:
            if units > self.slots:
                raise BadInput(f"{units:,} state slots are more than max_mamba_cache_size={self.slots:,}")
            return at_least
        return max(at_least, math.ceil((units + 1) * self.state_bytes / self.state_share))

    def _memory_for_pages(self, pages: int, at_least: int) -> int:
        """Invert `divide` for pages: the memory left over grows until one more state slot takes its bytes from it."""
        tokens = math.ceil(pages * self.page)
        if not self.state_bytes:
            return max(at_least, tokens)
        if self.slots is not None:
            return max(at_least, tokens + self._state_memory(self.slots))
        period = self.state_bytes / self.state_share  # the memory between one slot and the next
        taken = math.floor(at_least / period)  # slots, the spare one included
        # With `taken` slots the memory ends before (taken + 1) * period, and must hold tokens + taken * state_bytes.
        missing = Fraction(tokens) - period
        if missing >= 0:
            taken = max(taken, math.floor(missing / (period - self.state_bytes)) + 1)
        return max(at_least, math.ceil(taken * period), tokens + taken * self.state_bytes)


@dataclass(frozen=True, slots=True)
class SharedPool(Pool):
    """One of a rank's pools, whose units follow from the rank's memory by SGLang's rules instead of a plain share.

    `share` is what its share of a large memory tends to; `usable_units` is exact.
    """

    split: Split
    pool: PoolName

    def usable_units(self, budget: int) -> int:
        """Return the pages (or state slots) that the pool has in a rank of `budget` bytes."""
        shares = self.split.divide(budget)
        if self.pool == "state":
            return shares.state_slots
        return (shares.full_tokens if self.pool == "full" else shares.swa_tokens) // self.split.page_size

    def budget_for(self, units: int, at_least: int = 1) -> int:
        """Return the smallest memory of the rank, `at_least` or more, of which the pool has so many units."""
        return self.split.least_memory(self.pool, units, at_least)


# Memory for the pools -------------------------------------------------------------------------------------------------


def rest_memory(free_now: int, free_before_load: int, mem_fraction_static: Fraction) -> int:
    """Return the bytes for the pools: what is free now, less the part of the memory that is not static.

    `free_now` is the least of all ranks, `free_before_load` what was free before the model was loaded.
    """
    return math.floor(free_now - free_before_load * (1 - mem_fraction_static))


def max_running_requests(max_total_num_tokens: int, context_len: int, state_slots: int | None, per_request: int) -> int:
    """Return how many requests run at once: 2,048 to 4,096 by the tokens, and no more than the pools allow."""
    by_tokens = min(max(int(max_total_num_tokens / context_len * 512), 2048), 4096)
    limit = min(by_tokens, max_total_num_tokens // 2)
    return limit if state_slots is None else min(limit, state_slots // per_request)
