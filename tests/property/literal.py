"""Allocators that do literally what a rule says: append one token at a time, hold sets of blocks, free them, count.

They know none of kvcalc's formulas; each yields, for every context from 1 to `contexts`, the units that are held.
"""

from __future__ import annotations

from collections.abc import Iterator


def whole_blocks(contexts: int, block: int, start: int = 0) -> Iterator[int]:
    """Hold every token after the first `start`, in blocks of `block` tokens."""
    blocks: set[int] = set()
    for token in range(contexts):
        if token >= start:
            blocks.add((token - start) // block)
        yield len(blocks)


def ring(contexts: int, keep: int, block: int, start: int = 0, spare: int = 0) -> Iterator[int]:
    """Hold the last `keep` tokens after `start`: each overwrites the oldest; a block counts once it was written."""
    written: set[int] = set()
    slot = 0
    for token in range(contexts):
        if token >= start:
            written.add(slot // block)
            slot = (slot + 1) % keep
        yield len(written) + spare


def freed_by_position(contexts: int, keep: int, block: int, limit: int | None = None) -> Iterator[int]:
    """Hold blocks by position; free each that is older than the last `keep` tokens (and whole within `limit`)."""
    blocks: set[int] = set()
    for token in range(contexts):
        blocks.add(token // block)
        for held in list(blocks):
            last = held * block + block - 1
            if last < token + 1 - keep and (limit is None or last < limit):
                blocks.remove(held)
        yield len(blocks)


def current_chunk(contexts: int, size: int, block: int, keep: int | None = None, start: int = 0) -> Iterator[int]:
    """Hold the tokens of the current chunk after `start`, the last `keep` of them; drop them all at its end."""
    chunk: list[int] = []
    for token in range(contexts):
        if token >= start:
            if (token - start) % size == 0:
                chunk = []
            chunk.append(token)
            if keep is not None:
                chunk = chunk[-keep:]
        yield len({index // block for index in range(len(chunk))})


def waiting_tokens(contexts: int, ratio: int, start: int = 0) -> Iterator[int]:
    """Hold the tokens after `start` that wait until `ratio` of them are together."""
    waiting: list[int] = []
    for token in range(contexts):
        if token >= start:
            waiting.append(token)
        if len(waiting) == ratio:
            waiting = []
        yield len(waiting)


def compressed_entries(contexts: int, ratio: int, start: int = 0) -> Iterator[int]:
    """Hold one entry for every `ratio` tokens after `start` that are together."""
    waiting, entries = 0, 0
    for token in range(contexts):
        waiting += token >= start
        if waiting == ratio:
            waiting, entries = 0, entries + 1
        yield entries


def from_a_moment_on(contexts: int, start: int) -> Iterator[int]:
    """Hold one unit from the token after the first `start` on."""
    held = False
    for token in range(contexts):
        held = held or token >= start
        yield int(held)


def padded_stream(contexts: int, cells: int, keep: int | None, streams: int, together: bool) -> Iterator[int]:
    """Hold groups of `cells` cells, added when a token finds none free; `together` puts all streams into one.

    `keep` is the most cells that are asked for, however many tokens there are.
    """
    tokens_of = [0] if together else [0] * streams
    groups_of = [0] if together else [0] * streams
    for _ in range(contexts):
        for stream in range(streams):
            index = 0 if together else stream
            tokens_of[index] += 1
            asked = tokens_of[index] if keep is None else min(tokens_of[index], keep)
            if asked > groups_of[index] * cells:
                groups_of[index] += 1
        yield sum(groups_of)


def quantised_tail(contexts: int, prompt: int, residual: int, unit: int, packed: int) -> Iterator[int]:
    """Count the bytes of a cache that packs the prompt at once, then every `residual` further tokens together."""
    packed_tokens, plain_tokens = 0, 0
    for token in range(contexts):
        if token < prompt:
            packed_tokens += 1
        else:
            plain_tokens += 1
        if plain_tokens == residual:
            packed_tokens, plain_tokens = packed_tokens + residual, 0
        yield packed_tokens * packed + plain_tokens * unit
