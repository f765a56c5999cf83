"""MHA, GQA and MQA: what the number of key and value heads does to a model's cache."""

from __future__ import annotations

from collections.abc import Sequence

from kvcalc.api import Setup, SizeResult
from kvcalc.errors import KvcalcError
from kvcalc.explain.result import Attention
from kvcalc.spec.kinds import Heads
from kvcalc.spec.model import ModelSpec
from kvcalc.spec.resolve import with_kv_heads

NOTE = (
    "MHA, GQA, MQA: query heads may share K and V. The cache pays for kv_heads, which papers call KV groups: "
    "as many as heads in MHA, 1 in MQA."
)
NO_HEADS = "MHA, GQA, MQA: no layer here keeps heads of K and V, so kv_heads (KV groups in papers) plays no part."


def head_kinds(spec: ModelSpec) -> tuple[Heads, ...]:
    """Return the kinds of layer that keep heads of K and V."""
    return tuple(group.kind for group in spec.groups() if isinstance(group.kind, Heads))


def example_kv_heads(heads: int) -> int:
    """Return kv_heads for an example of GQA: the largest divisor of `heads` that is at most a third of them."""
    return max(divisor for divisor in range(1, max(heads // 3, 1) + 1) if heads % divisor == 0)


def attention_rows(setup: Setup, size: SizeResult) -> tuple[Attention, ...]:
    """Return the totals with kv_heads of MHA, of the model (or an example of GQA), and of MQA, the largest first."""
    kinds = head_kinds(setup.spec)
    if not kinds:
        return ()
    own = {kind.kv_heads for kind in kinds}
    kv_heads = own.pop() if len(own) == 1 else None
    name = "/".join(dict.fromkeys(kind.grouping for kind in kinds))
    rows = [Attention(name, kv_heads, size.total_bytes, is_model=True)]
    for choice in _choices(kinds):
        total = None if choice == kv_heads else _total_with(setup, choice, size)
        if total is not None:
            rows.append(Attention(_name(choice, kinds), choice, total, is_model=False))
    return tuple(sorted(rows, key=lambda row: -row.total_bytes))


def _choices(kinds: Sequence[Heads]) -> list[int]:
    """Return the kv_heads worth comparing, as far as the layers agree on their heads."""
    heads = {kind.heads for kind in kinds}
    if len(heads) > 1:
        return [1]
    most = heads.pop()
    grouped = any(1 < kind.kv_heads < most for kind in kinds)
    return sorted({most, 1} if grouped else {most, example_kv_heads(most), 1}, reverse=True)


def _name(kv_heads: int, kinds: Sequence[Heads]) -> str:
    if kv_heads == 1:
        return "MQA"
    return "MHA" if all(kind.heads == kv_heads for kind in kinds) else "GQA"


def _total_with(setup: Setup, kv_heads: int, size: SizeResult) -> int | None:
    """Return the total with other kv_heads; None where the engine, the format or tp forbids them."""
    try:
        spec = with_kv_heads(setup.spec, kv_heads)
        return setup.engine.place(spec, setup.deployment).total_bytes(size.context, size.batch)
    except KvcalcError:
        return None
