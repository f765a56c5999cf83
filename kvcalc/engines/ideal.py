"""The ideal engine: the logical bytes that a perfect allocator keeps, and the remedies the field uses against them.

Paging, reservation, eviction and a shared prefix are options that combine. `held` is what the tokens need; `admitted`
is what is set aside for them: whole blocks with `block_size`, a whole reservation with `reserve_ctx`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field, field_validator

from kvcalc.engines._base import (
    Deployment,
    EngineOptions,
    EngineProfile,
    group_layers,
    require_tp_divides_heads,
    row_factors,
    shard_axes,
    stages,
)
from kvcalc.errors import BadInput, UnsupportedByEngine
from kvcalc.footprint import Footprint, Placement, Rank, Retention, Steps, Term
from kvcalc.spec.kinds import CacheEntry
from kvcalc.spec.model import LayerGroup, ModelSpec

_Tokens = Annotated[int, Field(ge=1, le=2**40)]
_EVICT = re.compile(r"window:(?P<window>[0-9]+)(?:,sinks:(?P<sinks>[0-9]+))?|budget:(?P<budget>[0-9]+)")


@dataclass(frozen=True)
class Eviction:
    """What every layer keeps at most: the last `window` tokens and the first `sinks`.

    `which_depends_on_data` is true for a budget filled by score (H2O, SnapKV), where the tokens kept cannot be told.
    """

    window: int
    sinks: int = 0
    which_depends_on_data: bool = False

    @classmethod
    def parse(cls, text: str) -> Eviction:
        """Return the eviction that `window:W[,sinks:S]` or `budget:N` means; ValueError otherwise."""
        match = _EVICT.fullmatch(text)
        if not match:
            raise ValueError("must be window:W[,sinks:S] or budget:N, for example window:1020,sinks:4")
        window = int(match["window"] or match["budget"])
        if not 1 <= window <= 2**40:
            raise ValueError("must keep at least one token, and at most 2^40")
        return cls(window, int(match["sinks"] or 0), which_depends_on_data=match["budget"] is not None)


class Options(EngineOptions):
    """Options of the ideal engine."""

    block_size: _Tokens = 1
    """Tokens of one block: every sequence is stored in whole blocks (paging)."""
    reserve_ctx: _Tokens | None = None
    """Context for which every sequence reserves its memory at the start, contiguously (`--reserve-ctx`)."""
    evict: str | None = None
    """What layers keep at most (`--evict`): `window:W[,sinks:S]` (StreamingLLM) or `budget:N` (H2O, SnapKV)."""
    shared_prefix: Annotated[int, Field(ge=0, le=2**40)] = 0
    """Tokens at the start of every sequence that are the same and stored once for the batch (`--shared-prefix`)."""

    @field_validator("evict")
    @classmethod
    def _check_evict(cls, text: str | None) -> str | None:
        if text is not None:
            Eviction.parse(text)
        return text

    @property
    def eviction(self) -> Eviction | None:
        """The parsed eviction."""
        return None if self.evict is None else Eviction.parse(self.evict)

    @property
    def shared_tokens(self) -> int:
        """The prefix tokens that are really shared: whole blocks only."""
        return self.shared_prefix - self.shared_prefix % self.block_size


# A staircase and the integers that multiply it: (("block_tokens", 16),) for blocks, (("released", -1),) for partners.
_Share = tuple[Steps, tuple[tuple[str, int], ...]]


class Ideal(EngineProfile[Options]):
    """Logical bytes: what a perfect allocator would hold."""

    name: ClassVar[str] = "ideal"
    version: ClassVar[str] = ""
    summary: ClassVar[str] = "logical bytes: what a perfect allocator keeps, with the remedies of the field"
    options_class = Options

    def place(self, spec: ModelSpec, deployment: Deployment[Options]) -> Placement:
        """Return one rank per pipeline stage and tensor-parallel slice; all slices of a stage are equal."""
        if deployment.dcp > 1:
            raise UnsupportedByEngine("engine ideal has no decode context parallelism; drop --dcp")
        require_tp_divides_heads(spec.groups(), deployment.tp)
        ranks: list[Rank] = []
        for stage, layers in enumerate(stages(spec, deployment.pp)):
            groups = group_layers(layers)
            held = _footprint(groups, deployment, paged=False)
            admitted = _footprint(groups, deployment, paged=True) if _sets_aside(deployment.options) else held
            ranks.extend(Rank(stage, slice_, held, admitted) for slice_ in range(deployment.tp))
        return Placement(tuple(ranks), deployment.dp)

    def check(self, spec: ModelSpec, deployment: Deployment[Options], context: int, batch: int) -> None:
        """Raise BadInput for a context beyond the reservation or shorter than the shared prefix."""
        options = deployment.options
        if options.reserve_ctx is not None and context > options.reserve_ctx:
            raise BadInput(
                f"context {context:,} exceeds --reserve-ctx {options.reserve_ctx:,}; reserve at least as much"
            )
        if options.shared_prefix > context:
            raise BadInput(f"--shared-prefix {options.shared_prefix:,} exceeds the context {context:,}")

    def report(
        self, spec: ModelSpec, deployment: Deployment[Options], context: int, batch: int, placement: Placement
    ) -> dict[str, Any]:
        """Return what the tokens need and what is set aside beyond it."""
        held, admitted = placement.held_bytes(context, batch), placement.total_bytes(context, batch)
        return {"held_bytes": held, "set_aside_unused_bytes": admitted - held}


def _sets_aside(options: Options) -> bool:
    return options.block_size > 1 or options.reserve_ctx is not None


def _footprint(groups: tuple[LayerGroup, ...], deployment: Deployment[Options], paged: bool) -> Footprint:
    """Return one rank's bytes: exact tokens, or (`paged`) whole blocks and reservations."""
    return Footprint(
        tuple(
            term
            for group in groups
            for entry in group.kind.entries()
            for term in _terms(group, entry, deployment, paged)
        )
    )


def _terms(group: LayerGroup, entry: CacheEntry, deployment: Deployment[Options], paged: bool) -> list[Term]:
    """Return the terms of one entry in all layers of a group."""
    axes = shard_axes(entry, deployment.tp)
    position = row_factors(axes, entry.row_axes, deployment.format_of(entry))
    unit = (("layers", len(group.indices)), *position)
    shares = _shares(entry.retention, deployment.options, group, paged)
    reason = group.kind.rule_source
    return [Term(group.name, group.kind.name, entry.role, (*unit, *more), steps, reason) for steps, more in shares]


def _shares(retention: Retention, options: Options, group: LayerGroup, paged: bool) -> list[_Share]:
    """Return the staircases of what is kept, and of what is taken back where sequences share a prefix."""
    block = options.block_size if paged else 1
    if retention.rule == "state":
        return [(Steps.constant(), ())]
    if retention.rule == "encoder":
        return [_blocks(Steps.constant(-(-retention.size // block)), block)]
    if group.kind.name == "compressed":
        return _compressed(retention, options)
    if paged and options.reserve_ctx is not None:
        return _reserved(retention, options, options.reserve_ctx, block)
    if retention.rule == "chunk":
        return _chunk(retention.size, options, block)
    return _tokens(retention, options, block)


def _blocks(steps: Steps, block: int, sign: int = 1) -> _Share:
    factors = (("block_tokens", block),) if block > 1 else ()
    return steps, (*factors, ("released", -1)) if sign < 0 else factors


def _limits(retention: Retention, options: Options) -> tuple[int | None, int]:
    """Return the recent tokens that a layer keeps (None: all) and the sinks it keeps beside them.

    Eviction leaves a layer alone whose own window is no wider. A wider window keeps the sinks that it has room for
    beside the recent tokens (StreamingLLM counts positions within the cache, so that it sees them).
    """
    window = retention.size if retention.rule == "window" else None
    eviction = options.eviction
    if eviction is None or (window is not None and window <= eviction.window):
        return window, 0
    if eviction.which_depends_on_data and options.shared_tokens:
        raise UnsupportedByEngine(
            "--evict budget:N with --shared-prefix is not covered: which prefix tokens survive depends on the data; "
            "use --evict window:W,sinks:S"
        )
    room = eviction.sinks if window is None else window - eviction.window
    return eviction.window, min(eviction.sinks, room)


def _chunk_limit(size: int, options: Options) -> int | None:
    """Return how many tokens of its current chunk a chunked layer keeps; None: all."""
    eviction = options.eviction
    return None if eviction is None or size <= eviction.window else min(size, eviction.window + eviction.sinks)


def _tokens(retention: Retention, options: Options, block: int) -> list[_Share]:
    """Full and sliding layers: tokens in a ring of whole blocks; a prefix once, less what has left the window.

    Of n tokens a sequence keeps min(n, window + sinks). With a shared prefix of P the tokens from P on are its own; of
    the prefix the batch keeps what the window still covers, and the sinks.
    """
    window, sinks = _limits(retention, options)
    prefix = options.shared_tokens
    if not prefix:
        keep = None if window is None else window + sinks
        return [_blocks(Steps.per_token(block) if keep is None else Steps.window(keep, block), block)]
    shared = _blocks(Steps.per_token(block).capped(prefix).once(), block)
    if window is None:
        return [shared, _blocks(Steps.per_token(block, start=prefix), block)]
    pinned = -(-sinks // block) * block
    own = _blocks(Steps.window(window + max(sinks - prefix, 0), block, start=prefix), block)
    if pinned >= prefix:
        return [shared, own]
    left = Steps.released(window + pinned, block, limit=prefix - pinned).once()
    return [shared, _blocks(left, block, sign=-1), own]


def _chunk(size: int, options: Options, block: int) -> list[_Share]:
    """Chunked layers: the current chunk; while it still holds prefix tokens, those once and the rest per sequence."""
    keep, prefix = _chunk_limit(size, options), options.shared_tokens
    if not prefix:
        return [_blocks(Steps.chunk(size, block, keep), block)]
    if keep is not None or size % block:
        reason = "eviction" if keep is not None else f"blocks of {block} that do not divide the chunk of {size}"
        raise UnsupportedByEngine(f"chunked layers with a shared prefix and {reason} are not covered")
    end = -(-prefix // size) * size  # where the chunk in which the prefix ends is left behind
    own: list[tuple[Steps, int]] = [(Steps.onset(end), 1), (Steps.chunk(size, block, start=end), 1)]
    if end > prefix:
        units = (end - prefix) // block
        own += [(Steps.window(end - prefix, block, start=prefix), 1), (Steps.onset(end), -units)]
    shares = [_blocks(Steps.chunk(size, block).once(), block)]
    for steps, times in own:
        per_sequence, factors = _blocks(steps, block)
        shares.append((per_sequence, (*factors, ("times", times))))
        shares.append((steps.once(), (*factors, ("times", -times))))
    return shares


def _compressed(retention: Retention, options: Options) -> list[_Share]:
    """DeepSeek-V4's layers, for which the field's remedies are not defined."""
    for given, name in (
        (options.block_size > 1, "block_size"),
        (options.reserve_ctx is not None, "--reserve-ctx"),
        (options.evict is not None, "--evict"),
        (options.shared_prefix > 0, "--shared-prefix"),
    ):
        if given:
            raise UnsupportedByEngine(f"{name} is not covered for compressed layers (DeepSeek-V4)")
    steps = {
        "window": Steps.window(retention.size),
        "compressed": Steps.compressed(retention.size),
        "remainder": Steps.remainder(retention.size),
        "onset": Steps.onset(retention.size - 1),
    }
    return [(steps[retention.rule], ())]


def _reserved(retention: Retention, options: Options, reserve: int, block: int) -> list[_Share]:
    """What is set aside from the start: the most tokens that are kept on the way to `reserve`, a shared prefix once."""
    prefix = min(options.shared_tokens, reserve)
    if retention.rule == "chunk":
        kept = _chunk_limit(retention.size, options) or retention.size
        end = -(-prefix // retention.size) * retention.size  # where the chunk in which the prefix ends is left behind
        own, shared = max(min(reserve, end) - prefix, min(reserve - end, kept)), min(prefix, kept)
    else:
        limit, sinks = _limits(retention, options)
        window = reserve if limit is None else limit
        own, shared = min(reserve - prefix, window + max(sinks - prefix, 0)), min(prefix, window + sinks)
    shares = [_blocks(Steps.constant(-(-own // block)), block)]
    if prefix:
        shares.append(_blocks(Steps.constant(-(-shared // block)).once(), block))
    return shares


ENGINE = Ideal()
