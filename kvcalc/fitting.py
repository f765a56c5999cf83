"""What fits into a memory: a prepared setup against the bytes that its ranks have for the cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvcalc.capacity import Capacity, capacity, max_batch
from kvcalc.errors import BadInput
from kvcalc.fit_result import FitResult, Rung
from kvcalc.prepared import Setup, check, require_range, warnings
from kvcalc.units import MAX_BYTES, MAX_TOKENS, format_bytes


def fit_into(setup: Setup, kv_memory: int, context: int | None, batch: int) -> FitResult:
    """Return what a prepared setup holds in `kv_memory` bytes on every rank; BadInput for values out of range."""
    spec, engine, deployment, placement = setup.spec, setup.engine, setup.deployment, setup.placement
    asked = context if context is not None else spec.max_context
    if asked is None:
        raise BadInput(f"{spec.name} has no trained maximum; say for which context (--ctx)")
    require_range("kv memory", kv_memory, MAX_BYTES)
    check(setup, asked, batch)
    available = (kv_memory,) * len(placement.ranks)
    own = engine.budget_report(spec, deployment, available, asked) or {}
    context = own.get("max_model_len", asked)
    budgets = engine.cache_budgets(spec, deployment, available)
    found = capacity(placement, budgets, context, batch)
    fits = found.fits and bool(own.get("admitted", True)) and max(budgets) <= kv_memory
    least = _least_memory(found, budgets, kv_memory)
    lowered = (f"{engine.name} lowers the context from {asked:,} to {context:,}",) if context != asked else ()
    return FitResult(
        model=spec.name,
        engine=engine.name,
        engine_version=engine.version,
        context=context,
        batch=batch,
        dtype=deployment.dtype.name,
        kv_dtype=setup.kv_dtype,
        fits=fits,
        max_batch=found.max_batch,
        max_context=_allowed_context(setup, found.max_context, context, batch),
        budget_bytes=kv_memory,
        weights_bytes=None,
        binding=found.binding,
        suggestions=() if fits else (*_suggestions(setup, found, own, context, batch), *least),
        ladder=_ladder(setup, budgets, context, batch),
        engine_report={**engine.report(spec, deployment, context, batch, placement), **own},
        assumptions=setup.assumptions,
        warnings=warnings(spec, context) + lowered,
    )


def _allowed_context(setup: Setup, fitting: int | None, context: int, batch: int) -> int | None:
    """Return the largest context that fits and that the engine's options allow, given that they allow `context`."""
    if _allows(setup, fitting or MAX_TOKENS, batch) or (fitting is not None and fitting <= context):
        return fitting
    low, high = context, fitting or MAX_TOKENS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _allows(setup, middle, batch) else (low, middle)
    return low


def _allows(setup: Setup, context: int, batch: int) -> bool:
    try:
        setup.engine.check(setup.spec, setup.deployment, context, batch)
    except BadInput:
        return False
    return True


def _ladder(setup: Setup, budgets: Sequence[int], context: int, batch: int) -> tuple[Rung, ...]:
    """Return the largest batch at contexts that double from 1024 to the trained maximum, and at the one asked for."""
    top = max(context, setup.spec.max_context or 0)
    doubled = {1024 << step for step in range(40) if 1024 << step <= top}
    return tuple(
        Rung(each, max_batch(setup.placement, budgets, each))
        for each in sorted(doubled | {context})
        if _allows(setup, each, batch)
    )


def _least_memory(found: Capacity, budgets: Sequence[int], kv_memory: int) -> tuple[str, ...]:
    """Return the budget that would do; nothing where the engine's options, not the memory, are too small."""
    set_by_options = max(budgets) != kv_memory
    if set_by_options and not found.fits:
        return ()
    least = max(found.needed_memory, max(budgets) if set_by_options else 0)
    return (f"--kv-memory {least} is the least that fits ({format_bytes(least)})",)


def _suggestions(setup: Setup, found: Capacity, own: Mapping[str, Any], context: int, batch: int) -> tuple[str, ...]:
    """Return the contexts and batches that would fit; `own` is what the engine says itself."""
    texts = []
    longest = _allowed_context(setup, found.max_context, context, batch)
    if not own.get("admitted", True):
        longest = own.get("max_context_that_fits", longest)
    if longest is not None and 0 < longest < context:
        texts.append(f"--ctx {longest} is the largest context that fits at batch {batch:,}")
    if found.max_batch is not None and 0 < found.max_batch < batch:
        texts.append(f"--batch {found.max_batch} is the largest batch that fits at context {context:,}")
    return tuple(texts)
