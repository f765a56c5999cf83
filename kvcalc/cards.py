"""One model on several GPUs side by side: the largest batch and context of each, and what a sequence costs on it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from kvcalc.advise import attempt
from kvcalc.answer import memory_of
from kvcalc.errors import BadInput
from kvcalc.fitting import Question, Standing
from kvcalc.hardware.gpu import find_gpu
from kvcalc.memory import Card
from kvcalc.output import fold, render
from kvcalc.spec.model import ModelSpec
from kvcalc.units import format_bytes

_PRICE = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")


@dataclass(frozen=True)
class CardRow:
    """A model on one GPU, or on `gpus` equal ones. `price` is that of one GPU for an hour, in the user's currency.

    `cost` is what the hour costs for each of the sequences of the largest batch; None without a price or a batch.
    """

    gpu: str
    gpus: int
    total_bytes: int
    cache_bytes: int | None
    fits: bool
    max_batch: int | None
    max_context: int | None
    price: Fraction | None
    note: str = ""

    @property
    def cost(self) -> Fraction | None:
        """Price of all GPUs for an hour, divided by the sequences of the largest batch."""
        return self.price * self.gpus / self.max_batch if self.price is not None and self.max_batch else None

    def to_json(self) -> dict[str, Any]:
        """Return the row as JSON data; prices as decimal texts."""
        return {
            **vars(self),
            "price": _decimal(self.price, 9),
            "cost_per_sequence_hour": _decimal(self.cost, 9),
        }


@dataclass(frozen=True)
class CardComparison:
    """A model on several GPUs, at one context and batch."""

    model: str
    engine: str
    context: int
    batch: int
    rows: tuple[CardRow, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as JSON data."""
        head = {"schema": "kvcalc.compare-gpus/1", "model": self.model, "engine": self.engine}
        counts = {"context": self.context, "batch": self.batch}
        return {**head, **counts, "rows": [row.to_json() for row in self.rows]}

    def report(self, units: str = "iec", width: int | None = None) -> str:
        """Return the table for people, at most `width` columns wide."""
        priced = any(row.price is not None for row in self.rows)
        cells = [_cells(row, units, priced) for row in self.rows]
        counts = f"largest batch at context {self.context:,}, largest context at batch {self.batch:,}"
        blocks = [
            fold(f"{self.model}, engine {self.engine}: {counts}", hanging="  "),
            render(cells, "table", aligned_right=list(cells[0])[1:], width=width),
            "\n".join(fold(f"{row.gpu}: {row.note}", hanging="  ") for row in self.rows if row.note),
            "per sequence: price of the GPUs for an hour over the largest batch" if priced else "",
        ]
        return "\n\n".join(block for block in blocks if block)

    __str__ = report


def compare_gpus(
    spec: ModelSpec,
    arguments: Mapping[str, Any],
    *,
    context: int,
    batch: int,
    names: Sequence[str],
    prices: Mapping[str, Fraction],
) -> CardComparison:
    """Return a model on several GPUs; BadInput for an unknown GPU, one listed twice, or a price of one not compared."""
    found = [find_gpu(name) for name in names]
    known = [gpu.name for gpu in found]
    for name in known:
        if known.count(name) > 1:
            raise BadInput(f"{name} is listed twice")
    priced = {find_gpu(name).name: price for name, price in prices.items()}
    for name in priced:
        if name not in known:
            raise BadInput(f"--price {name}: it is not among the GPUs that are compared")
    rows = tuple(
        _row(Question(spec, arguments, context, batch, memory_of(None, name)), priced.get(name)) for name in known
    )
    return CardComparison(spec.name, str(arguments.get("engine", "ideal")), context, batch, rows)


def parse_prices(texts: Sequence[str]) -> dict[str, Fraction]:
    """Return the prices of `GPU=PRICE` texts, per GPU and hour; BadInput for anything else."""
    found: dict[str, Fraction] = {}
    for text in texts:
        name, equals, price = text.partition("=")
        if not equals or not name or not _PRICE.fullmatch(price):
            raise BadInput(f"--price '{text[:40]}': write GPU=PRICE, the price of one for an hour: h100-80gb=2.5")
        if name in found:
            raise BadInput(f"--price {name} is given twice")
        found[name] = Fraction(price)
    return found


def _row(question: Question, price: Fraction | None) -> CardRow:
    memory = question.memory
    assert isinstance(memory, Card)
    degrees = [int(question.arguments.get(name) or 1) for name in ("tp", "pp", "dp")]
    gpus = degrees[0] * degrees[1] * degrees[2]
    standing = attempt(question)
    if not isinstance(standing, Standing):
        return CardRow(memory.gpu.name, gpus, memory.total_bytes, None, False, None, None, price, standing)
    short = standing.missing_weights
    return CardRow(
        gpu=memory.gpu.name,
        gpus=gpus,
        total_bytes=memory.total_bytes,
        cache_bytes=min(rank.typical for rank in standing.ranks),
        fits=standing.fits,
        max_batch=standing.max_batch,
        max_context=standing.max_context,
        price=price,
        note=f"weights and overhead exceed it by {format_bytes(short)}" if short else "",
    )


def _cells(row: CardRow, units: str, priced: bool) -> dict[str, str]:
    cells = {
        "GPU": row.gpu if row.gpus == 1 else f"{row.gpus} x {row.gpu}",
        "handed out": format_bytes(row.total_bytes, units),
        "cache": "-" if row.cache_bytes is None else format_bytes(row.cache_bytes, units),
        "batch": _shown(row.max_batch, row.cache_bytes),
        "context": _shown(row.max_context, row.cache_bytes),
    }
    return {**cells, "per sequence": _decimal(row.cost, 4) or "-"} if priced else cells


def _shown(value: int | None, known: int | None) -> str:
    if known is None:
        return "-"
    return "any" if value is None else f"{value:,}"


def _decimal(value: Fraction | None, digits: int) -> str | None:
    """Return a price with at most so many decimals."""
    if value is None:
        return None
    scaled = round(value * 10**digits)
    text = f"{scaled // 10**digits}.{scaled % 10**digits:0{digits}d}".rstrip("0")
    return text.removesuffix(".")
