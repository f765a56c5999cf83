"""Placements to curves, and curves to figures: plain dicts in plotly's form, made without plotly and without I/O."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from itertools import pairwise
from typing import Any

from kvcalc.errors import BadInput, UnsupportedByEngine
from kvcalc.footprint import Placement
from kvcalc.units import IEC_UNITS, format_exact

# Okabe and Ito's palette without the colours that are too light for lines on white or too dark on black; the lines of
# more models than colours differ by their dashes.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
DASHES = ("solid", "dash", "dot", "dashdot")
MAX_CURVES = len(COLOURS) * len(DASHES)

# Contexts of the grid that all curves of a figure share, and steps of a batch drawn exactly, in a figure of one curve.
# At a batch of 128 a step is less than a hundredth of the height.
POINTS = 1024
STEPS = 128

# Taller than this many times the tallest curve, the weights' line would flatten it.
_WEIGHTS_IN_VIEW = 12
_ROOM = 0.06
_TICKS = 8
_LOG_TICKS = 10
_ZOOM_LEVELS = 7

# What a page says below the figures.
CONTEXT_READING = (
    "How to read it: a layer of full attention adds the same bytes for every token, so its cache is a straight line "
    "in the context; windows, chunks and recurrent states stop growing and bend the line, and a compressed cache (MLA) "
    "makes it less steep. The values at the points are exact, to the byte; between two points the line is drawn "
    "straight. A line turns pale beyond the context that its model was trained for.",
    "Move over the picture for exact bytes, drag to enlarge a part, double-click to see all of it again; a click on a "
    "name hides its line. Ticks stand at powers of two and their multiples: 1 KiB = 1,024 bytes.",
)
CAPACITY_READING = (
    "How to read it: at each context, the largest number of sequences of that length whose cache every rank can hold; "
    "the fullest rank decides, and the spare bytes are what it has left. The values at the points are exact. The "
    "lowest steps are all drawn; where a batch changes more often than there are points, the line between two points "
    "is drawn straight. It turns pale beyond the context that its model was trained for, and ends where not even one "
    "sequence fits.",
    "Move over the picture for exact numbers, drag to enlarge a part, double-click to see all of it again; a click on "
    "a name hides its line. Only the cache is counted: weights and everything else need memory of their own.",
)

_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


@dataclass(frozen=True)
class Subject:
    """What one curve is about: a name, where its cache lies, the contexts to draw, and what is known beside them.

    `weights_bytes` counts the weights of all replicas; `passes_weights_at` is the first context whose cache is larger.
    """

    name: str
    placement: Placement
    low: int
    high: int
    trained: int | None = None
    weights_bytes: int | None = None
    passes_weights_at: int | None = None


@dataclass(frozen=True)
class Curve:
    """A subject with its exact values: bytes, or batches with the bytes that the fullest rank has to spare."""

    subject: Subject
    contexts: tuple[int, ...]
    values: tuple[int, ...]
    spare_bytes: tuple[int, ...] | None = None

    @cached_property
    def texts(self) -> list[str]:
        """What a reader is told at every point: exact, in words."""
        if self.spare_bytes is None:
            return [format_exact(value) for value in self.values]
        pairs = zip(self.values, self.spare_bytes, strict=True)
        return [f"batch {batch:,}, spare {format_exact(spare)}" for batch, spare in pairs]

    def to_json(self) -> dict[str, Any]:
        """Return the values as JSON data, exact integers."""
        subject = self.subject
        data: dict[str, Any] = {"model": subject.name, "max_context": subject.trained, "context": list(self.contexts)}
        if self.spare_bytes is not None:
            return {**data, "max_batch": list(self.values), "spare_bytes": list(self.spare_bytes)}
        weights = {"weights_bytes": subject.weights_bytes, "cache_passes_weights_at": subject.passes_weights_at}
        return {**data, "total_bytes": list(self.values), **weights}


def context_curves(subjects: Sequence[Subject], batch: int, points: int = POINTS) -> tuple[Curve, ...]:
    """Return the bytes of all ranks for `batch` sequences at every context of a common grid."""
    contexts = _contexts(subjects, points, lambda subject: subject.placement.local_batch(batch))
    curves = []
    for subject in subjects:
        own = tuple(context for context in contexts if subject.low <= context <= subject.high)
        local, whole = subject.placement.local_batch(batch), subject.placement.whole()
        values = tuple(int(whole.bytes(context, local)) * subject.placement.dp for context in own)
        curves.append(Curve(subject, own, values))
    return tuple(curves)


def capacity_curves(
    subjects: Sequence[Subject], memory: int, points: int = POINTS, steps: int = STEPS
) -> tuple[Curve, ...]:
    """Return the largest batch whose cache fits `memory` bytes on every rank, at every context of a common grid.

    The grid has both sides of the last `steps` falls of the batch (shared among the curves), so that those steps are
    drawn exactly. Contexts at which any batch fits are left out; BadInput where all do, or none fits.
    """
    for subject in subjects:
        _require_bounded(subject, memory)
    contexts = _contexts(subjects, points, lambda _: 1)
    fits = [_Fits(subject, memory) for subject in subjects]
    each = max(steps // len(subjects), 16)
    contexts = sorted({*contexts, *(end for fit in fits for end in fit.step_ends(contexts, each))})
    curves = tuple(Curve(fit.subject, *zip(*fit.bounded(contexts), strict=True)) for fit in fits)
    if not any(curve.values[0] for curve in curves):
        raise BadInput(_does_not_fit(subjects[0], memory))
    return curves


def largest_context(placement: Placement, memory: int, local_batch: int = 1) -> int | None:
    """Return the largest context of `local_batch` sequences per replica that every rank holds; None without limit."""
    fits = [rank.admitted.max_tokens(memory, local_batch) for rank in placement.ranks]
    return min((fit for fit in fits if fit is not None), default=None)


def context_figure(curves: Sequence[Curve]) -> dict[str, Any]:
    """Return the figure of cache bytes against context; with one curve, the weights and where the cache passes them."""
    tallest = max([1, *(value for curve in curves for value in curve.values)])
    lowest = min((value for curve in curves for value in curve.values if value), default=1)
    data, high, ends = _traces(curves), tallest, [lowest, tallest]
    if len(curves) == 1 and curves[0].subject.weights_bytes is not None:
        data += _weights_traces(curves[0])
        ends.append(curves[0].subject.weights_bytes)
        high = max(ends) if weights_in_view(curves[0]) else tallest
    axis = _Axis("KV cache", 0, high, _byte_label, log_range=(min(ends), max(ends)))
    return _figure(data, curves, axis, "linear")


def weights_in_view(curve: Curve) -> bool:
    """Return whether the line of the weights fits a linear picture of the curve without flattening it."""
    weights = curve.subject.weights_bytes
    return weights is not None and weights <= _WEIGHTS_IN_VIEW * max(curve.values)


def capacity_figure(curves: Sequence[Curve]) -> dict[str, Any]:
    """Return the figure of the largest batch against context, a staircase."""
    positive = [value for curve in curves for value in curve.values if value]
    axis = _Axis("Largest batch (sequences)", 0, max(positive), _count_label, log_range=(min(positive), max(positive)))
    return _figure(_traces(curves), curves, axis, "log")


def landmarks(curves: Sequence[Curve]) -> list[int]:
    """Return the contexts that a short table shows: powers of two, the ends, and what the models were trained for."""
    drawn = {context for curve in curves for context in curve.contexts}
    ends = {end for curve in curves for end in (curve.contexts[0], curve.contexts[-1], curve.subject.trained)}
    powers = sorted(context for context in drawn if context & (context - 1) == 0)
    return sorted({*powers[-12:], *(end for end in ends if end in drawn)})


def _contexts(subjects: Sequence[Subject], points: int, batch_of: Callable[[Subject], int]) -> list[int]:
    """Return the contexts at which all curves are drawn: round numbers, and wherever one of them turns."""
    low, high = min(subject.low for subject in subjects), max(subject.high for subject in subjects)
    each = max(points // len(subjects), 16)
    step = _step(high - low, each)
    found = {low, high, *range(low, min(each // 4, high)), *range(-(-low // step) * step, high + 1, step)}
    found.update(context for context in _per_octave(high, max(each // 16, 8)) if context >= low)
    for subject in subjects:
        found.update((subject.low, subject.high))
        if subject.trained is not None and low <= subject.trained <= high:
            found.update({subject.trained, min(subject.trained + 1, high)})
        turns = subject.placement.whole().sample(subject.low, subject.high, max(each // 4, 2), batch_of(subject))
        found.update(context for context, _ in turns)
    return sorted(found)


def _step(span: int, count: int) -> int:
    """Return the smallest power of two of which at most `count` steps cover the span."""
    step = 1
    while step * count < span:
        step *= 2
    return step


def _per_octave(high: int, count: int) -> Iterable[int]:
    """Yield numbers up to `high`, `count` between a power of two and the next: evenly spread on a logarithmic axis."""
    power = 1
    while power <= high:
        yield from (power + power * part // count for part in range(count) if power + power * part // count <= high)
        power *= 2


class _Fits:
    """The largest batches of one subject in a given memory, each worked out once."""

    def __init__(self, subject: Subject, memory: int) -> None:
        self.subject, self.memory = subject, memory
        self._known: dict[int, tuple[int, int] | None] = {}

    def at(self, context: int) -> tuple[int, int] | None:
        """Return the largest batch and what the fullest rank then has to spare; None where any batch fits."""
        if context not in self._known:
            self._known[context] = _largest_batch(self.subject.placement, self.memory, context)
        return self._known[context]

    def bounded(self, contexts: Iterable[int]) -> list[tuple[int, int, int]]:
        """Return context, batch and spare bytes at those of the contexts that are the subject's own."""
        own = [context for context in contexts if self.subject.low <= context <= self.subject.high]
        return [(context, *fit) for context in own if (fit := self.at(context)) is not None]

    def step_ends(self, contexts: Sequence[int], steps: int) -> Iterable[int]:
        """Yield both sides of the last `steps` falls of the batch, found by halving the gaps between the contexts."""
        stack = list(pairwise((context, batch) for context, batch, _ in self.bounded(contexts)))
        while stack and steps > 0:
            (low, before), (high, after) = stack.pop()
            if before == after:
                continue
            if high - low == 1:
                steps -= 1
                yield from (low, high)
                continue
            middle = (low + high) // 2
            fit = self.at(middle)
            if fit is not None:
                stack += [((low, before), (middle, fit[0])), ((middle, fit[0]), (high, after))]


def _largest_batch(placement: Placement, memory: int, context: int) -> tuple[int, int] | None:
    """Return the largest batch over all replicas, and the bytes left on the fullest rank; None where any batch fits."""
    fits = [rank.admitted.max_batch(memory, context) for rank in placement.ranks]
    local = min((fit for fit in fits if fit is not None), default=None)
    if local is None:
        return None
    if local == 0:
        return 0, memory
    return local * placement.dp, memory - max(rank.admitted.peak(context, local) for rank in placement.ranks)


def _require_bounded(subject: Subject, memory: int) -> None:
    """Raise where the memory is handed out in units, which bytes cannot tell, or where every batch fits."""
    ranks = subject.placement.ranks
    if any(rank.pools for rank in ranks):
        raise UnsupportedByEngine(f"{subject.name}: the capacity of engines that hand out pages cannot be drawn")
    if _largest_batch(subject.placement, memory, subject.high) is None:
        raise BadInput(f"{subject.name}: its cache does not grow with the batch, so that no batch is the largest")


def _does_not_fit(subject: Subject, memory: int) -> str:
    needed = max(rank.admitted.peak(subject.low, 1) for rank in subject.placement.ranks)
    return (
        f"--kv-memory {memory:,} bytes does not hold one sequence of {subject.name} at context {subject.low:,}, "
        f"which needs {needed:,} bytes"
    )


@dataclass(frozen=True)
class _Axis:
    """One axis: its title, what it must show on a linear and on a logarithmic scale, and how its ticks are labelled."""

    title: str
    low: int
    high: int
    label: Callable[[int], str]
    log_range: tuple[int, int]


def _traces(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """Return the curves, what lies beyond the trained maximum paler, and a mark where that maximum is."""
    data: list[dict[str, Any]] = []
    marks: list[dict[str, Any]] = []
    for index, curve in enumerate(curves):
        line = {"color": COLOURS[index % len(COLOURS)], "dash": DASHES[index // len(COLOURS)]}
        trained = curve.subject.trained
        split = sum(trained is None or context <= trained for context in curve.contexts)
        within, beyond = range(split), range(max(split - 1, 0), len(curve.contexts))
        if within:
            data.append(_trace(curve, within, {**line, "width": 2.5}))
        if split < len(curve.contexts):
            pale = _trace(curve, beyond if within else range(len(curve.contexts)), {**line, "width": 1.5})
            data.append({**pale, "opacity": 0.55, "showlegend": not within})
        if trained is not None and trained in curve.contexts:
            marks.append({**_trained_mark(curve, trained, line["color"]), "showlegend": not marks})
    return data + marks


def _trace(curve: Curve, part: range, line: Mapping[str, Any]) -> dict[str, Any]:
    """Return a part of a curve as a plotly trace, with the exact values in the hover text."""
    texts = curve.texts
    return {
        "type": "scatter",
        "mode": "lines" if len(part) > 1 else "markers",
        "name": curve.subject.name,
        "legendgroup": curve.subject.name,
        "x": [curve.contexts[index] for index in part],
        "y": [curve.values[index] for index in part],
        "text": [texts[index] for index in part],
        "hovertemplate": "%{text}<extra>%{fullData.name}</extra>",
        "line": dict(line),
        "marker": {"color": line["color"], "size": 8},
    }


def _trained_mark(curve: Curve, trained: int, colour: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "trained maximum",
        "legendgroup": "trained maximum",
        "x": [trained],
        "y": [curve.values[curve.contexts.index(trained)]],
        "hoverinfo": "skip",
        "cliponaxis": False,
        "marker": {"color": colour, "size": 13, "symbol": "diamond", "line": {"color": "#ffffff", "width": 1.5}},
    }


def _weights_traces(curve: Curve) -> list[dict[str, Any]]:
    """Return the weights as a horizontal line, and a mark where the cache passes them if that is in the picture."""
    subject = curve.subject
    assert subject.weights_bytes is not None
    ends = [curve.contexts[0], curve.contexts[-1]]
    data: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": f"weights, {format_exact(subject.weights_bytes)}",
            "x": ends if ends[0] < ends[1] else [ends[0] - 1, ends[0] + 1],
            "y": [subject.weights_bytes] * 2,
            "hoverinfo": "skip",
            "line": {"color": "#808080", "dash": "dash", "width": 2},
        }
    ]
    crossing = subject.passes_weights_at
    if crossing is not None and curve.contexts[0] <= crossing <= curve.contexts[-1]:
        data.append(_crossing(crossing, subject.weights_bytes, left=3 * crossing > curve.contexts[-1]))
    return data


def _crossing(context: int, weights: int, left: bool) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers+text",
        "name": f"the cache passes the weights at context {context:,}",
        "x": [context],
        "y": [weights],
        "text": [f"{context:,}"],
        "cliponaxis": False,
        "textposition": "top left" if left else "bottom right",
        "hoverinfo": "skip",
        "marker": {"color": "#808080", "size": 11, "symbol": "circle-open", "line": {"width": 2.5}},
    }


def _figure(data: list[dict[str, Any]], curves: Sequence[Curve], axis: _Axis, scale: str) -> dict[str, Any]:
    """Return traces and layout; `layout.meta` holds both scales, and finer ticks for who zooms in."""
    low, high = min(curve.contexts[0] for curve in curves), max(curve.contexts[-1] for curve in curves)
    contexts = _Axis("Context (tokens of one sequence; K = 1,024)", low, high, _token_label, log_range=(low, high))
    scales = {
        "linear": {**_linear("xaxis", contexts), **_linear("yaxis", axis)},
        "log": {**_logarithmic("xaxis", contexts), **_logarithmic("yaxis", axis)},
    }
    common = {"tickmode": "array", "zeroline": False, "showline": True, "ticks": "outside"}
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": contexts.title}, **common, "hoverformat": ",d", **_of("xaxis", scales[scale])},
        "yaxis": {"title": {"text": axis.title}, **common, "automargin": True, **_of("yaxis", scales[scale])},
        "hovermode": "x unified",
        "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"},
        "font": {"family": _FONT, "size": 14},
        "margin": {"l": 84, "r": 24, "t": 32, "b": 64},
        "meta": {"scale": scale, "scales": scales, "zoom": {"xaxis": _zoom(contexts), "yaxis": _zoom(axis)}},
    }
    return {"data": data, "layout": layout}


def _of(name: str, scale: Mapping[str, Any]) -> dict[str, Any]:
    """Return one axis's part of a scale, without the axis's name."""
    return {key.split(".", 1)[1]: value for key, value in scale.items() if key.startswith(f"{name}.")}


def _linear(name: str, axis: _Axis) -> dict[str, Any]:
    """Return the linear form of an axis: ticks at multiples of a power of two."""
    low = axis.low if axis.low < axis.high else axis.low - 1
    ticks = _multiples(axis, _step(axis.high - axis.low, _TICKS))
    return _axis_form(name, "linear", [low, _above(axis)], ticks, axis.label)


def _logarithmic(name: str, axis: _Axis) -> dict[str, Any]:
    """Return the logarithmic form of an axis: ticks at powers of two, every so many octaves."""
    low, high = (math.log10(max(end, 1)) for end in axis.log_range)
    room = _ROOM * (high - low) or 0.3
    ends = [round(low - room / 2, 6), round(high + room, 6)]
    octaves = max(int((high - low) / math.log10(2)), 1)
    return _axis_form(name, "log", ends, _powers(axis.log_range, _step(octaves, _LOG_TICKS)), axis.label)


def _axis_form(
    name: str, type_: str, ends: list[float], ticks: list[int], label: Callable[[int], str]
) -> dict[str, Any]:
    return {
        f"{name}.type": type_,
        f"{name}.range": ends,
        f"{name}.tickvals": ticks,
        f"{name}.ticktext": [label(tick) for tick in ticks],
    }


def _multiples(axis: _Axis, step: int) -> list[int]:
    return list(range(-(-axis.low // step) * step, int(_above(axis)) + 1, step))


def _above(axis: _Axis) -> float:
    """Return where a linear axis ends: a little above the highest value, which would touch the frame."""
    return axis.high + (_ROOM * (axis.high - axis.low) or 1)


def _powers(ends: tuple[int, int], stride: int) -> list[int]:
    """Return every `stride`-th power of two from the one below the range to the one above it."""
    low, high = max(ends[0], 1).bit_length() - 1, max(ends[1], 1).bit_length()
    return [2**power for power in range(low - low % stride, high + 1, stride)]


def _zoom(axis: _Axis) -> dict[str, list[dict[str, Any]]]:
    """Return ever finer ticks for both scales, coarse to fine; a viewer takes the first that has enough in sight."""
    coarse = _step(axis.high - axis.low, _TICKS)
    steps = [coarse >> level for level in range(_ZOOM_LEVELS) if coarse >> level]
    linear = [_labelled(_multiples(axis, step), axis.label) for step in steps]
    octaves = [_labelled(_powers(axis.log_range, stride), axis.label) for stride in (8, 4, 2, 1)]
    return {"linear": linear, "log": octaves + linear}


def _labelled(ticks: list[int], label: Callable[[int], str]) -> dict[str, Any]:
    return {"tickvals": ticks, "ticktext": [label(tick) for tick in ticks]}


def _byte_label(size: int) -> str:
    """Return bytes exactly, in the largest unit that they reach: `1.5 GiB`."""
    power = min((max(size, 1).bit_length() - 1) // 10, len(IEC_UNITS) - 1)
    return "0" if size == 0 else f"{_decimal(size, 1024**power)} {IEC_UNITS[power]}"


def _token_label(count: int) -> str:
    """Return a context exactly, as options take it: `512`, `1.5K`, `128K`, `1Mi`."""
    power = min((max(count, 1).bit_length() - 1) // 10, 2)
    return f"{_decimal(count, 1024**power)}{('', 'K', 'Mi')[power]}"


def _count_label(count: int) -> str:
    return f"{count:,}"


def _decimal(part: int, whole: int) -> str:
    return f"{(Decimal(part) / Decimal(whole)).normalize():,f}"
