"""A cache that appends one token at a time to every layer, evicts as told, and puts tokens into slots and blocks.

Written from the rules as the options describe them; it shares no formula with the engine under test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Remedies:
    """What a user asks of the allocator; `window` and `sinks` are the eviction's."""

    block: int = 1
    reserve: int | None = None
    window: int | None = None
    sinks: int = 0
    by_score: bool = False
    shared_prefix: int = 0

    @property
    def prefix(self) -> int:
        """Only whole blocks of a prefix are shared."""
        return self.shared_prefix // self.block * self.block

    @property
    def options(self) -> dict[str, object]:
        """The same as options of the ideal engine."""
        evict = None
        if self.window is not None:
            evict = f"budget:{self.window}" if self.by_score else f"window:{self.window},sinks:{self.sinks}"
        return {
            "block_size": self.block,
            "reserve_ctx": self.reserve,
            "evict": evict,
            "shared_prefix": self.shared_prefix,
        }


@dataclass
class TokenLayer:
    """What one sequence keeps in one layer: token positions, and the slots of those that are its own."""

    rule: str
    size: int
    remedies: Remedies
    kept: list[int] = field(default_factory=list)
    slots: dict[int, int] = field(default_factory=dict)

    def append(self, position: int) -> None:
        """Make room as the rules demand, then store the token in the lowest free slot."""
        self.kept = self._survivors([*self.kept, position])
        self.slots = {kept: slot for kept, slot in self.slots.items() if kept in self.kept}
        if position >= self.remedies.prefix:
            taken = set(self.slots.values())
            self.slots[position] = next(slot for slot in range(len(taken) + 1) if slot not in taken)

    def _survivors(self, positions: list[int]) -> list[int]:
        """Return the positions that a token at the last of them leaves in the cache."""
        newest = positions[-1]
        if self.rule == "chunk":
            return self._in_chunk([position for position in positions if position // self.size == newest // self.size])
        window, sinks = self.remedies.window, self.remedies.sinks
        if self.rule == "window":
            if window is None or self.size <= window:
                window, sinks = self.size, 0
            else:
                sinks = min(sinks, self.size - window)
        if window is None:
            return positions
        return [position for position in positions if position < sinks or position > newest - window]

    def _in_chunk(self, chunk: list[int]) -> list[int]:
        window, sinks = self.remedies.window, self.remedies.sinks
        if window is None or self.size <= window or len(chunk) <= window + sinks:
            return chunk
        return chunk[:sinks] + chunk[-window:]

    @property
    def shared_tokens(self) -> int:
        """Kept tokens that all sequences have in common."""
        return sum(position < self.remedies.prefix for position in self.kept)

    @property
    def shared_blocks(self) -> int:
        """Blocks of the prefix that hold a kept token."""
        block = self.remedies.block
        return len({position // block for position in self.kept if position < self.remedies.prefix})

    @property
    def own_blocks(self) -> int:
        """Blocks of slots that are in use."""
        return len({slot // self.remedies.block for slot in self.slots.values()})


def tokens(rule: str, size: int, remedies: Remedies, contexts: int, batch: int) -> list[tuple[int, int]]:
    """Return (held, set aside) token places of a batch at context 1, 2, ... `contexts`."""
    layer, block = TokenLayer(rule, size, remedies), remedies.block
    most_own = most_shared = 0
    found = []
    for position in range(max(contexts, remedies.reserve or 0)):
        layer.append(position)
        most_own, most_shared = max(most_own, len(layer.slots)), max(most_shared, layer.shared_tokens)
        held = batch * len(layer.slots) + layer.shared_tokens
        found.append((held, block * (batch * layer.own_blocks + layer.shared_blocks)))
    if remedies.reserve is not None:
        reserved = batch * _whole_blocks(most_own, block) + _whole_blocks(most_shared, block)
        found = [(held, reserved) for held, _ in found]
    return found[:contexts]


def _whole_blocks(count: int, block: int) -> int:
    return -(-count // block) * block


def places(rule: str, size: int, remedies: Remedies, contexts: int, batch: int) -> list[tuple[int, int]]:
    """Return (held, set aside) places of any retention rule, for a whole batch, at context 1, 2, ... `contexts`."""
    match rule:
        case "state":
            return [(batch, batch)] * contexts
        case "encoder":
            return [(batch * size, batch * _whole_blocks(size, remedies.block))] * contexts
        case "entries":
            counts = [context // size for context in range(1, contexts + 1)]
        case "waiting":
            counts = [context % size for context in range(1, contexts + 1)]
        case "overlap":
            counts = [int(context >= size) for context in range(1, contexts + 1)]
        case _:
            return tokens(rule, size, remedies, contexts, batch)
    return [(batch * count, batch * count) for count in counts]


# Bytes of one row of `elements`, as the formats' publications give them.
ROWS: dict[str, Callable[[int], int]] = {
    "fp16": lambda elements: 2 * elements,
    "fp8": lambda elements: elements,
    "q8_0": lambda elements: 34 * elements // 32,
    "int8": lambda elements: elements + 4,
}


def layer_entries(kind: dict[str, Any], top: dict[str, Any], kv: str) -> list[tuple[str, int, int]]:
    """Return (retention rule, its size, bytes of one place) for everything that one layer of a kind keeps, in bf16."""
    row, both = ROWS[kv], {**top, **kind}
    match kind["kind"]:
        case "full" | "sliding" | "chunked" | "cross":
            head = row(both["head_dim"]) + (row(v_dim) if (v_dim := both.get("v_head_dim", both["head_dim"])) else 0)
            rule = {"full": "all", "sliding": "window", "chunked": "chunk", "cross": "encoder"}[kind["kind"]]
            size = kind.get("window") or kind.get("chunk") or kind.get("encoder_context") or 0
            return [(rule, size, both["kv_heads"] * head)]
        case "mla":
            return [("all", 0, row(kind["kv_lora_rank"]) + row(kind["qk_rope_head_dim"]))]
        case "indexer":
            return [("all", 0, row(kind["index_head_dim"]))]
        case "compressed":
            return _compressed_entries(kind, row)
        case "state":
            return [("state", 0, _state_bytes(kind))]
        case other:
            assert other == "shared"
            return []


def _compressed_entries(kind: dict[str, Any], row: Callable[[int], int]) -> list[tuple[str, int, int]]:
    """DeepSeek-V4 as transformers holds it: w elements of waiting KV and gate each, c of an entry and its overlap."""
    head, index, ratio = kind["head_dim"], kind.get("index_head_dim"), kind["ratio"]
    window = ("window", kind["window"], row(head))
    if index is None:
        return [window, ("entries", ratio, row(head)), ("waiting", ratio, 2 * head * 2)]
    waiting, overlap = 2 * (head + index), ratio * (head + index)
    return [
        window,
        ("entries", ratio, row(head) + row(index)),
        ("waiting", ratio, 2 * waiting * 2),
        ("overlap", ratio, overlap * 2 + overlap * 4),
    ]


def _state_bytes(kind: dict[str, Any]) -> int:
    """Return the bytes of one state: convolution inputs in bf16, the recurrent part in fp32."""
    size = {name: int(value) for name, value in kind.items() if isinstance(value, int)}
    k = size.get("conv_kernel", 1) - 1
    match kind["variant"]:
        case "mamba1":
            return size["channels"] * (2 * k + 4 * size["state_size"])
        case "mamba2":
            inner = size["state_heads"] * size["state_head_dim"]
            return 2 * k * (inner + 2 * size["groups"] * size["state_size"]) + 4 * inner * size["state_size"]
        case "gated_deltanet":
            keys, values = size["key_heads"] * size["key_head_dim"], size["value_heads"] * size["value_head_dim"]
            return 2 * k * (2 * keys + values) + 4 * values * size["key_head_dim"]
        case "kda":
            inner = size["state_heads"] * size["state_head_dim"]
            return 2 * k * 3 * inner + 4 * inner * size["state_head_dim"]
        case "rg_lru":
            return size["channels"] * (2 * k + 4)
        case "rwkv4":
            return size["channels"] * (2 * 2 + 3 * 4)
        case "rwkv":
            return 2 * 2 * size["channels"] + 4 * size["state_heads"] * size["state_head_dim"] ** 2
        case "short_conv":
            return 2 * k * size["channels"]
        case other:
            assert other == "lightning"
            return 2 * size["state_heads"] * size["state_head_dim"] ** 2
