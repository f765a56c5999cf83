"""Section 1, context size to cells: the literal rule for one context and batch, and the same as staircases.

A cache is a number of streams (one per slot, or one for all if unified) of equally many cells, always whole groups of
256. Whatever the options, one stream has `pad * ceil(C0 / (pad * slots))` cells, C0 the total context and `slots` 1 if
unified: dividing the padded total and padding again, as llama.cpp does, gives nothing else for up to 256 slots.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from kvcalc.footprint import Count, Scope, Steps

# Slots at most (llama-server's -np); the identity above holds up to here.
MAX_SLOTS = 256
PAD = 256

Factors = tuple[tuple[str, int], ...]


def pad_to(x: int, multiple: int) -> int:
    """Return x rounded up to a multiple."""
    return -(-x // multiple) * multiple


@dataclass(frozen=True)
class Span:
    """How many cells a stream of a cache has: all of the context's, a window's, or one per `size` tokens.

    `per_slot`: every slot has a stream of its own even in a unified context (DeepSeek-V4).
    """

    rule: Literal["base", "window", "compressed"] = "base"
    size: int = 0
    per_slot: bool = False


@dataclass(frozen=True)
class Context:
    """One context as llama.cpp creates it: what its log calls n_ctx, n_ctx_seq, n_batch, n_ubatch and n_seq_max."""

    n_ctx: int
    n_ctx_seq: int
    n_batch: int
    n_ubatch: int
    n_seq_max: int
    unified: bool

    @classmethod
    def create(cls, wanted: int, slots: int, n_batch: int, n_ubatch: int, *, unified: bool, pad: int) -> Context:
        """Return the context for `wanted` tokens in all slots; a micro-batch of 0 is as large as the batch."""
        batch = min(wanted, n_batch)
        total = pad_to(wanted, pad)
        per_stream = total if unified else pad_to(-(-wanted // slots), pad)
        n_ctx = total if unified else per_stream * slots
        return cls(n_ctx, per_stream, batch, min(batch, n_ubatch or n_batch), slots, unified)

    @property
    def streams(self) -> int:
        """Streams of an ordinary cache."""
        return 1 if self.unified else self.n_seq_max


@dataclass(frozen=True)
class CellRule(ABC):
    """The options that decide how many cells there are."""

    unified: bool = False
    swa_full: bool = False
    pad: int = PAD

    @abstractmethod
    def context(self, n: int, b: int) -> Context:
        """Return the context for n tokens in each of b sequences."""

    @abstractmethod
    def allocated(self, span: Span) -> tuple[Steps, Factors]:
        """Return the cells of all streams as a staircase of n and b, and what one of its units is."""

    @abstractmethod
    def used(self, span: Span) -> Steps:
        """Return the cells that the sequences' tokens take: all of them, those in the window, or the compressed."""

    @abstractmethod
    def slots(self) -> Steps:
        """Return the number of slots."""

    def cells(self, span: Span, context: Context) -> int:
        """Return the cells of one stream."""
        if span.rule == "compressed":
            return pad_to(max(1, -(-context.n_ctx_seq // span.size)), self.pad)
        if not self.slides(span):
            return context.n_ctx_seq
        windows = context.n_seq_max if self.unified and not span.per_slot else 1
        return pad_to(min(context.n_ctx_seq, span.size * windows + context.n_ubatch), self.pad)

    def streams(self, span: Span, context: Context) -> int:
        """Return the streams of a cache."""
        return context.n_seq_max if span.per_slot else context.streams

    def slides(self, span: Span) -> bool:
        """Return whether a cache has room for a window only."""
        return span.rule == "window" and not self.swa_full

    def tokens_per_unit(self, span: Span) -> int:
        """Return the tokens for which a cache has one group of cells."""
        return self.pad * span.size if span.rule == "compressed" else self.pad

    def unit(self, streams: int = 1) -> Factors:
        """Return the factors of one unit: a block of cells, in each of `streams` streams."""
        block = ("block_tokens", self.pad)
        return (("streams", streams), block) if streams > 1 else (block,)


@dataclass(frozen=True)
class TotalRule(CellRule):
    """llama.cpp's own: one total context; None: `n_ctx` is context x batch, `n_seq_max` the batch."""

    n_ctx: int | None = None
    n_seq_max: int | None = None
    n_batch: int = 2048
    n_ubatch: int = 512

    def context(self, n: int, b: int) -> Context:
        """Return the context for n tokens in each of b sequences."""
        wanted = n * b if self.n_ctx is None else self.n_ctx
        slots = b if self.n_seq_max is None else self.n_seq_max
        return Context.create(wanted, slots, self.n_batch, self.n_ubatch, unified=self.unified, pad=self.pad)

    def allocated(self, span: Span) -> tuple[Steps, Factors]:
        """Return the cells of all streams: constant where both n_ctx and n_seq_max are given."""
        if self.n_ctx is not None and self.n_seq_max is not None:
            context = self.context(1, 1)
            groups = self.cells(span, context) // self.pad
            return Steps.constant(groups).once(), self.unit(self.streams(span, context))
        if self.n_ctx is not None:
            return self._divided(span, self.n_ctx), self.unit()
        if self.n_seq_max is not None:
            return self._fixed_slots(span, self.n_seq_max)
        keep, per_sequence = self._limit(span)
        padded = Steps.padded(self.tokens_per_unit(span), self.unified, keep, per_sequence)
        if self.unified and span.per_slot:
            padded = WholeForEverySlot(**{name: getattr(padded, name) for name in Steps.__slots__})
        return padded, self.unit()

    def used(self, span: Span) -> Steps:
        """Return the cells that the tokens take, of a given total at most what it holds."""
        if span.rule == "compressed":
            return Steps.compressed(span.size)
        if self.slides(span):
            return Steps.window(span.size)
        if self.n_ctx is None:
            return Steps.per_token()
        return Steps.padded(1, unified=True, keep=self._most_tokens(span, self.n_ctx))

    def slots(self) -> Steps:
        """Return the slots: one per sequence unless `n_seq_max` fixes them."""
        return Steps.constant() if self.n_seq_max is None else Steps.constant(self.n_seq_max).once()

    def _most_tokens(self, span: Span, n_ctx: int) -> int:
        """Return the tokens that a given total holds."""
        if self.n_seq_max is None:
            return n_ctx
        context = self.context(1, 1)
        return context.n_ctx_seq * self.streams(span, context)

    def _limit(self, span: Span, n_ctx: int | None = None) -> tuple[int | None, int]:
        """Return the tokens at which a window's cache stops growing, and how many more each sequence adds.

        Beside the windows there is room for a micro-batch. A context shorter than that makes the micro-batch smaller,
        which never shows, because the context then is the limit.
        """
        if not self.slides(span):
            return None, 0
        n_batch = self.n_batch if n_ctx is None else min(n_ctx, self.n_batch)
        tail = min(n_batch, self.n_ubatch or self.n_batch)
        return (tail, span.size) if self.unified and not span.per_slot else (span.size + tail, 0)

    def _fixed_slots(self, span: Span, slots: int) -> tuple[Steps, Factors]:
        """A total of n x b tokens that a fixed number of slots divides."""
        streams = slots if span.per_slot or not self.unified else 1
        divisor = 1 if self.unified else slots
        keep, per_sequence = self._limit(span)
        if keep is not None:
            keep = pad_to(keep + per_sequence * slots, self.pad) * divisor
        return Steps.padded(self.tokens_per_unit(span) * divisor, unified=True, keep=keep), self.unit(streams)

    def _divided(self, span: Span, n_ctx: int) -> Steps:
        """A fixed total that the batch divides, or that every slot has whole."""
        width, (keep, per_sequence) = self.tokens_per_unit(span), self._limit(span, n_ctx)
        if self.unified and (keep is None or span.per_slot):
            groups = -(-n_ctx // width)
            limited = groups if keep is None else min(groups, -(-keep // width))
            return Steps.constant(limited) if span.per_slot else Steps.constant(limited).once()
        scope: Scope = "once" if self.unified else "sequence"
        return DividedTotal(rate=0, cap=keep, cap_per_sequence=per_sequence, width=width, fixed=n_ctx, scope=scope)


@dataclass(frozen=True)
class SlotRule(CellRule):
    """Ollama's: every slot has `num_ctx` tokens (None: the context), at most `max_context`; `num_parallel` slots.

    Batch and micro-batch are the same; None: chosen by the tokens of all slots (`automatic_batch`).
    """

    num_ctx: int | None = None
    num_parallel: int | None = None
    num_batch: int | None = None
    max_context: int | None = None

    def context(self, n: int, b: int) -> Context:
        """Return the context for n tokens in each of b sequences."""
        wanted = self.slot_tokens(n)
        slots = b if self.num_parallel is None else self.num_parallel
        batch = automatic_batch(wanted * slots) if self.num_batch is None else self.num_batch
        return Context.create(wanted * slots, slots, batch, batch, unified=self.unified, pad=self.pad)

    def slot_tokens(self, n: int) -> int:
        """Return the tokens of one slot: what is asked for, no more than the model was trained for, at least 4."""
        asked = n if self.num_ctx is None else self.num_ctx
        return max(asked if self.max_context is None else min(asked, self.max_context), 4)

    def allocated(self, span: Span) -> tuple[Steps, Factors]:
        """Return the cells of all slots: as many streams of the same cells."""
        steps = self._one_slot(span)
        if self.num_parallel is None:
            return steps, self.unit()
        return steps.once(), self.unit(self.num_parallel)

    def used(self, span: Span) -> Steps:
        """Return the cells that the tokens take."""
        if span.rule == "compressed":
            return Steps.compressed(span.size)
        if self.slides(span):
            return Steps.window(span.size)
        return Steps.per_token().capped(self.max_context)

    def slots(self) -> Steps:
        """Return the slots: one per sequence unless `num_parallel` fixes them."""
        return Steps.constant() if self.num_parallel is None else Steps.constant(self.num_parallel).once()

    def _one_slot(self, span: Span) -> Steps:
        width, fixed = self.tokens_per_unit(span), None if self.num_ctx is None else self.slot_tokens(1)
        if self.slides(span) and self.num_batch is None:
            limit = self.max_context if fixed is None else fixed
            return AutomaticWindow(
                cap=span.size,
                width=width,
                tokens=fixed or 0,
                limit=limit,
                slots=self.num_parallel or 0,
            )
        keep = self.max_context if fixed is None else fixed
        if self.slides(span) and self.num_batch is not None:
            with_batch = span.size + self.num_batch
            keep = with_batch if keep is None else min(keep, with_batch)
        if fixed is None:
            return Steps.padded(width, keep=keep)
        assert keep is not None
        return Steps.constant(-(-keep // width))


# Ollama's batch by the tokens of all slots: (more than, batch). Less where it finds too little memory free.
_AUTOMATIC_BATCHES = ((0, 512), (4096, 1024), (32768, 2048))


def automatic_batch(tokens: Count) -> Count:
    """Return the batch that Ollama chooses for a total of `tokens` where memory is no concern; int or int64 array."""
    batch, chosen = 0, 0 * tokens
    for more_than, size in _AUTOMATIC_BATCHES:
        chosen = chosen + (size - batch) * (tokens > more_than)
        batch = size
    return chosen


def _smaller(a: Count, b: Count) -> Count:
    """Return the smaller of two counts; either may be an int64 array."""
    return a + (b - a) * (b < a)


class DividedTotal(Steps):
    """A total of `fixed` tokens in units of `width`, shared by the batch (scope `sequence`) or whole (`once`).

    With `-o n_ctx=` alone the slots divide what there is, which falls as the batch grows: no staircase of n and b.
    Constant in n. At most `cap + cap_per_sequence * b` tokens count, as in any staircase.
    """

    __slots__ = ()

    def per_scope(self, n: Count, b: Count) -> Count:
        """Return the units of one sequence, or of the batch."""
        parts = self.width * b if self.scope == "sequence" else self.width
        share = -(-self.fixed // parts)
        if self.cap is None:
            return share
        return _smaller(share, -(-(self.cap + self.cap_per_sequence * b) // self.width))


class WholeForEverySlot(Steps):
    """A pooled count that every sequence has once more: DeepSeek-V4's slots in a unified context.

    It grows with the square of the batch, so it is no staircase either.
    """

    __slots__ = ()

    def per_scope(self, n: Count, b: Count) -> Count:
        """Return the units of the batch."""
        return super().per_scope(n, b) * b


@dataclass(frozen=True, slots=True)
class AutomaticWindow(Steps):
    """A window of `cap` tokens and Ollama's automatic batch, of a slot's tokens at most.

    The batch depends on the tokens of all slots together, so the window's cache grows once more where they pass a
    bound. `tokens` fixes a slot's tokens and `slots` the slots (0: the context, the batch); `limit` caps the tokens.
    """

    tokens: int = 0
    limit: int | None = None
    slots: int = 0

    def per_scope(self, n: Count, b: Count) -> Count:
        """Return the units of one slot."""
        tokens = self._slot_tokens(n)
        room = (self.cap or 0) + automatic_batch(tokens * (self.slots or b))
        return -(-_smaller(tokens, room) // self.width)

    def next_change(self, n: int, b: int) -> int | None:
        """Return the smallest context above n at which the count differs; it never falls, so it is bisected."""
        here, high = self.per_scope(n, b), max([n, *self.corners(b)]) + self.width
        if self.tokens or self.per_scope(high, b) == here:
            return None
        low = n
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.per_scope(middle, b) == here else (low, middle)
        return high

    def corners(self, b: int) -> Iterator[int]:
        """Yield the contexts where the batch changes, where the window is full, and the limit."""
        if self.tokens:
            return
        for more_than, batch in _AUTOMATIC_BATCHES:
            yield more_than // (self.slots or b) + 1
            yield (self.cap or 0) + batch
        if self.limit is not None:
            yield self.limit

    def growth(self, n: int, b: int) -> Fraction:
        """Return the unrounded units that the next token adds while the batch stays the same."""
        tokens = self._slot_tokens(n)
        room = (self.cap or 0) + automatic_batch(tokens * (self.slots or b))
        grows = not self.tokens and tokens < room and (self.limit is None or tokens < self.limit)
        return Fraction(int(grows), self.width)

    def _slot_tokens(self, n: Count) -> Count:
        if self.tokens:
            return self.tokens
        return n if self.limit is None else _smaller(n, self.limit)
