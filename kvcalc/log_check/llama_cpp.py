"""llama.cpp's and Ollama's figures: cells, layers, K and V of every cache, recurrent states, older whole sums.

The lines that the engine's profile predicts are read like the log's own, so that figure stands beside figure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from kvcalc import api
from kvcalc.api import SizeResult
from kvcalc.log_check import settings as read
from kvcalc.log_check.figures import MIB, UNITS, Figure, Verdict, decimal, ends, exact, rounded, skipped, whole
from kvcalc.log_check.settings import Given, Settings
from kvcalc.measure.log import LLAMA_CPP, OLLAMA, Fact, Log, read_lines
from kvcalc.units import MAX_TOKENS

_OLD = "2025-08"
_FLASH = {"enabled": "on", "1": "on", "true": "on", "disabled": "off", "0": "off", "false": "off", "auto": "auto"}


def settings(log: Log, given: Given) -> tuple[Settings, tuple[str, ...]]:
    """Return the server's settings as far as the log has them, and what else must be said."""
    started = read.started_with(log, LLAMA_CPP)
    spec, note = read.find_model([*reversed(log.values("llama model", "model")), started.model], given)
    told = _context_values(log)
    first = _first_cache(log)
    slots = read.ranks(told.get("n_seq_max") or first.get("sequences")) or 1
    total = read.tokens(told.get("n_ctx")) or _cells_of_all(first) or _whole_context(log, slots)
    unified = read.switch(told.get("kv_unified"))
    if unified is None and "streams" in first:
        unified = "true" if first["streams"] == "1" and slots > 1 else "false"
    options = started.options | read.known(
        n_ctx=total,
        n_seq_max=slots,
        n_batch=read.tokens(told.get("n_batch")),
        n_ubatch=read.tokens(told.get("n_ubatch")),
        kv_unified=unified,
        flash_attn=_FLASH.get(told.get("flash_attn", "")),
        n_rs_seq=whole(log.last("llama states", "copies")),
        type_k=first.get("k_type"),
        type_v=first.get("v_type") or first.get("k_type"),
        engine_version=_OLD if _is_old(log, first) else None,
    )
    found = given.over(Settings(spec, LLAMA_CPP, {}, options, _per_slot(total, slots), slots))
    return found, ((note,) if note else ())


def _context_values(log: Log) -> dict[str, str]:
    """Return what the last context that was made says of itself."""
    return {fact["key"]: fact["value"] for fact in log.all("llama context")}


def _first_cache(log: Log) -> Mapping[str, str]:
    """Return the values of the cache with most cells, of which the others are a part."""
    caches = [fact.values for fact in (*log.all("llama cache"), *log.all("llama whole cache"))]
    return max(caches, key=lambda values: whole(values.get("cells")) or 0, default={})


def _cells_of_all(cache: Mapping[str, str]) -> int | None:
    """Return the tokens of all slots that a cache has cells for."""
    cells, streams = whole(cache.get("cells")), whole(cache.get("streams"))
    return min(cells * streams, MAX_TOKENS) if cells and streams else None


def _whole_context(log: Log, slots: int) -> int | None:
    """Return the tokens of all slots by what Ollama says."""
    size = read.tokens(log.last("ollama runner", "ctx_size"))
    if size is not None:
        return size
    told = read.arguments_of(log, "ollama settings")
    each = read.tokens(told.get("CONTEXT_LENGTH"))
    return None if each is None else each * slots


def _per_slot(total: int | None, slots: int) -> int | None:
    return None if total is None else max(total // slots, 1)


def _is_old(log: Log, cache: Mapping[str, str]) -> bool:
    return cache.get("source") == "llama_kv_cache_unified" or bool(log.all("llama whole cache"))


def neighbours(with_: Settings) -> Iterator[tuple[str, Settings]]:
    """Yield settings one step away, each with the words that say which."""
    for size in (256, 512, 1024, 2048, 4096):
        yield f"-o n_ubatch={size}", with_.having(n_ubatch=size)
    for value in ("on", "off"):
        yield f"-o flash_attn={value}", with_.having(flash_attn=value)
    yield "-o swa_full=true", with_.having(swa_full="true")
    yield "-o mla=false", with_.having(mla="false")
    for value in ("true", "false"):
        yield f"-o kv_unified={value}", with_.having(kv_unified=value)
    for name in ("f16", "q8_0", "q4_0"):
        yield f"-o type_k={name} -o type_v={name}", with_.having(type_k=name, type_v=name)
    for version in ("2026-10", _OLD):
        yield f"-o engine_version={version}", with_.having(engine_version=version)


def figures(log: Log, with_: Settings) -> Iterator[Figure]:
    """Yield every figure of the log beside what these settings make of it."""
    if with_.context is None:
        yield from _without_context(log)
        return
    result = api.measure(with_.setup(), with_.context, with_.batch)
    made = read_lines(result.log_lines)
    yield from _side_by_side(log, made, "llama cells", {"cells": "cells announced"})
    names = {"cells": "cells", "layers": "layers", "size": "K and V, MiB", "k": "K, MiB", "v": "V, MiB"}
    yield from _side_by_side(log, made, "llama cache", names)
    yield from _side_by_side(log, made, "llama states", {"cells": "states", "r": "R, MiB", "s": "S, MiB"})
    yield from _whole_sums(log, result.engine_report)
    yield from _ollama_sums(log, result)


def _without_context(log: Log) -> Iterator[Figure]:
    for fact in log.facts:
        key = next((key for key in ("size", "cells") if key in fact.values), None)
        if key is not None and fact.engine in (LLAMA_CPP, OLLAMA):
            yield skipped(fact, key, fact.name, "the log does not have the context")


def _side_by_side(log: Log, made: Log, sort: str, names: Mapping[str, str]) -> Iterator[Figure]:
    """Yield the figures of all lines of a sort, each beside the predicted line of its place.

    A log of several contexts has more lines: the prediction's are held against them again and again.
    """
    predicted = made.all(sort)
    for place, fact in enumerate(log.all(sort)):
        alike = [(number, each) for number, each in enumerate(predicted, 1) if each.get("which") == fact.get("which")]
        number, other = alike[place % len(alike)] if alike else (0, None)
        of = f", cache {number}" if len(predicted) > 1 and number else ""
        for key, name in names.items():
            if fact.get(key) is None:
                continue
            if other is None:
                yield Figure(name, fact.line, fact[key], "none", "differs", "no such cache is predicted")
            elif other.get(key) is not None:
                yield _beside(fact, other, key, name + of)


def _beside(fact: Fact, predicted: Fact, key: str, name: str) -> Figure:
    value = whole(predicted[key])
    if value is not None:
        return exact(fact, key, name, value)
    return rounded(fact, key, name, decimal(predicted[key]) or Fraction(0), 1)


def _whole_sums(log: Log, report: Mapping[str, Any]) -> Iterator[Figure]:
    """Yield the one sum that builds before the summer of 2025 printed; their "MB" are MiB."""
    for fact in log.all("llama whole cache"):
        yield rounded(fact, "size", "KV, MiB", report["k_bytes"] + report["v_bytes"], MIB)
        for key in ("k", "v"):
            if fact.get(key):
                yield rounded(fact, key, f"{key.upper()}, MiB", report[f"{key}_bytes"], MIB)


def _ollama_sums(log: Log, result: SizeResult) -> Iterator[Figure]:
    """Yield what Ollama estimated, and what its devices hold together."""
    report = result.engine_report
    size = report["k_bytes"] + report["v_bytes"]
    for fact in log.all("ollama estimate"):
        yield rounded(fact, "size", f"memory.required.kv, {fact['unit']}", size, UNITS.get(fact["unit"], 1))
    devices = log.all("ollama device")
    if devices:
        yield _devices(devices, size)


def _devices(devices: tuple[Fact, ...], size: int) -> Figure:
    """Compare the sum of what the devices hold, each rounded for itself."""
    parts = [ends(fact["size"], UNITS.get(fact["unit"], 1)) for fact in devices]
    low, high = sum(part[0] for part in parts), sum(part[1] for part in parts)
    printed = " + ".join(f"{fact['size']} {fact['unit']}" for fact in devices)
    verdict: Verdict = "within rounding" if low <= size <= high else "differs"
    return Figure("cache on all devices", devices[0].line, printed, f"{size / MIB:,.1f} MiB", verdict)
