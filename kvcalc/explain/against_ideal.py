"""What an engine's rules cost against the ideal engine: in all, by kind of layer, and whose rule it is."""

from __future__ import annotations

from kvcalc.api import Setup, SizeResult, measure, prepare
from kvcalc.errors import BadInput, UnsupportedByEngine
from kvcalc.formats import find_kv_formats
from kvcalc.units import format_bytes, format_change


def against_ideal(setup: Setup, size: SizeResult) -> str:
    """Return one line such as `+2.4 % against the ideal engine (full +2.4 %); RULE`, where RULE is the engine's own.

    Empty for the ideal engine itself, and where it does not do what the engine does (a split of heads, say).
    """
    if setup.engine.name == "ideal":
        return ""
    ideal = _ideal(setup, size)
    rule = f"{setup.engine.name} {setup.engine.version}: {setup.engine.summary.partition(': ')[2]}"
    if ideal is None:
        return ""
    if ideal.total_bytes == size.total_bytes:
        return f"the same bytes as the ideal engine; {rule}"
    change = format_change(size.total_bytes, ideal.total_bytes)
    return f"{change} against the ideal engine ({', '.join(_by_label(size, ideal))}); {rule}"


def _ideal(setup: Setup, size: SizeResult) -> SizeResult | None:
    """Return the ideal engine's answer to the same question, in the formats that the engine really stores."""
    deployment = setup.deployment
    try:
        find_kv_formats(size.kv_dtype)
        kv_dtype = size.kv_dtype
    except BadInput:  # a packed form of the engine's own, such as vLLM's fp8_ds_mla
        kv_dtype = "/".join(stored.name for stored in deployment.kv)
    dtype, tp, pp, dp = deployment.dtype.name, deployment.tp, deployment.pp, deployment.dp
    try:
        plain = prepare(setup.spec, dtype=dtype, kv_dtype=kv_dtype, tp=tp, pp=pp, dp=dp)
        return measure(plain, size.context, size.batch)
    except UnsupportedByEngine:
        return None


def _by_label(size: SizeResult, ideal: SizeResult) -> list[str]:
    """Return the change of every kind of layer that differs; what only the engine holds is shown in bytes."""
    needed = {row.label: row.bytes for row in ideal.breakdown}
    return [
        f"{row.label} {format_change(row.bytes, needed[row.label])}"
        if needed.get(row.label)
        else f"{row.label} {format_bytes(row.bytes)}"
        for row in size.breakdown
        if row.bytes != needed.get(row.label, 0)
    ]
