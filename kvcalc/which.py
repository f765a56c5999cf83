"""Which models of the catalogue fit on given GPUs, and in which formats: the cheapest change that makes each fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvcalc.advise import WEIGHT_FORMATS
from kvcalc.capacity import limits, max_batch, max_context
from kvcalc.errors import BadInput, UnsupportedByEngine
from kvcalc.fitting import Question
from kvcalc.hardware.weights import weights_bytes
from kvcalc.memory import Card
from kvcalc.output import fold, render
from kvcalc.prepared import Setup, check
from kvcalc.spec.load import bundled_folder, index, load_file
from kvcalc.spec.model import ModelSpec

# Formats of the cache that halve it once and twice, by engine; what an engine does not take for a model is left out.
KV_STEPS: Mapping[str, tuple[str, ...]] = {
    "ideal": ("fp8", "nvfp4"),
    "transformers": ("int4_g64",),
    "vllm": ("fp8",),
    "sglang": ("fp8",),
    "tensorrt-llm": ("fp8",),
    "llama.cpp": ("q8_0", "q4_0"),
    "ollama": ("q8_0", "q4_0"),
}
ORDER = (
    "the most parameters first; for each the fewest halvings of weights and cache together, of equals the cache's first"
)


@dataclass(frozen=True)
class Fitting:
    """A model that fits, the formats that make it, and what then fits; None where there is no largest."""

    model: str
    parameters: int
    weights: str
    weights_bytes: int
    kv_dtype: str
    changes: tuple[str, ...]
    max_batch: int | None
    max_context: int | None
    trained_context: int | None

    def to_json(self) -> dict[str, Any]:
        """Return the model as JSON data."""
        return {**vars(self), "changes": list(self.changes)}


@dataclass(frozen=True)
class Which:
    """The models that fit, largest first, and how many do not, by reason."""

    gpu: str
    engine: str
    context: int
    batch: int
    fitting: tuple[Fitting, ...]
    left_out: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        """Return the answer as JSON data."""
        return {
            "schema": "kvcalc.which/1",
            "gpu": self.gpu,
            "engine": self.engine,
            "context": self.context,
            "batch": self.batch,
            "order": ORDER,
            "models": [each.to_json() for each in self.fitting],
            "left_out": dict(self.left_out),
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each model."""
        return [
            {
                "model": each.model,
                "parameters": f"{each.parameters / 10**9:.3g} B",
                "weights": each.weights,
                "KV": each.kv_dtype,
                "max batch": "any" if each.max_batch is None else f"{each.max_batch:,}",
                "max context": "any" if each.max_context is None else f"{each.max_context:,}",
            }
            for each in self.fitting
        ]

    def report(self, width: int | None = None) -> str:
        """Return the table for people, in `width` columns where names, which are there to be copied, leave room."""
        heading = f"{self.gpu}, context {self.context:,}, batch {self.batch:,}, engine {self.engine}"
        counts = ", ".join(f"{count} {reason}" for reason, count in self.left_out.items() if count)
        blocks = [
            heading,
            self._table(width) or "no model fits",
            fold(f"{len(self.fitting)} fit; left out: {counts or 'none'}", hanging="  "),
            fold(f"order: {ORDER}", hanging="  "),
        ]
        return "\n\n".join(blocks)

    __str__ = report

    def _table(self, width: int | None) -> str:
        """Return the models as a table that loses columns from the right until it fits, but never a part of a name."""
        rows = self.rows()
        while True:
            table = render(rows, "table", aligned_right=("parameters", "max batch", "max context"))
            if width is None or not rows or len(rows[0]) == 1 or len(table.splitlines()[1]) <= width:
                return table
            rows = [dict(list(row.items())[:-1]) for row in rows]


def which(arguments: Mapping[str, Any], context: int, batch: int, memory: Card) -> Which:
    """Return the catalogue's models that fit with these arguments of `prepare`; BadInput for values out of range."""
    fitting = list[Fitting]()
    left_out = dict.fromkeys(("too large", "trained for less", "of unknown size", "not held by the engine"), 0)
    for spec in _catalogue():
        found = _judge(Question(spec, arguments, context, batch, memory))
        if isinstance(found, Fitting):
            fitting.append(found)
        else:
            left_out[found] += 1
    engine = str(arguments.get("engine", "ideal"))
    ordered = sorted(fitting, key=lambda each: (-each.parameters, each.model))
    return Which(memory.gpu.name, engine, context, batch, tuple(ordered), left_out)


def _catalogue() -> Iterator[ModelSpec]:
    for entry in index().values():
        yield load_file(bundled_folder() / str(entry["file"]))


def _judge(question: Question) -> Fitting | str:
    """Return a model with the cheapest formats with which it fits, or why it is left out."""
    spec = question.spec
    if spec.parameters is None:
        return "of unknown size"
    if spec.max_context is not None and question.asked_context > spec.max_context:
        return "trained for less"
    if not isinstance(question.memory, Card) or _smallest(question) > question.memory.total_bytes * _ranks(question):
        return "too large"
    return _cheapest(question)


def _smallest(question: Question) -> int:
    """Return the bytes of the weights in the smallest format that is tried."""
    given = question.arguments.get("weights")
    formats = [given] if given else [question.spec.dtype, *_weight_steps(question.engine)]
    return min(weights_bytes(question.spec.parameters or 0, str(name)).low for name in formats)


def _ranks(question: Question) -> int:
    return int(question.arguments.get("tp") or 1) * int(question.arguments.get("pp") or 1)


def _weight_steps(engine: str) -> tuple[str, ...]:
    """Return the formats that halve the weights once and twice."""
    listed = WEIGHT_FORMATS[engine]
    return (listed[0], "Q4_K_M" if "Q4_K_M" in listed else listed[-1])


def _steps(question: Question) -> list[tuple[str | None, str | None]]:
    """Return the (weights, cache) formats to try, the fewest halvings first, of equals those of the cache first."""
    given_weights, given_cache = question.arguments.get("weights"), question.arguments.get("kv_dtype")
    weights = (None, *(() if given_weights else _weight_steps(question.engine)))
    caches = (None, *(() if given_cache else KV_STEPS[question.engine]))
    pairs = [(one, two) for one in range(len(weights)) for two in range(len(caches))]
    return [(weights[one], caches[two]) for one, two in sorted(pairs, key=lambda pair: (sum(pair), pair[0]))]


def _cheapest(question: Question) -> Fitting | str:
    setups: dict[str | None, Setup | None] = {}
    for weights, cache in _steps(question):
        if cache not in setups:
            setups[cache] = _placed(question if cache is None else question.changed(kv_dtype=cache))
        setup = setups[cache]
        if setup is None:
            if cache is None:
                return "not held by the engine"
            continue
        if weights is not None:
            setup = replace(setup, weights_format=weights, weights_from_file=False)
        found = _fitting(question, setup, weights, cache)
        if found is not None:
            return found
    return "too large"


def _placed(question: Question) -> Setup | None:
    """Return the model on the engine; None where the engine does not hold it so."""
    try:
        setup = question.setup()
        check(setup, question.asked_context, question.batch)
    except (UnsupportedByEngine, BadInput):
        return None
    return setup


def _fitting(question: Question, setup: Setup, weights: str | None, cache: str | None) -> Fitting | None:
    """Return what fits of a model in its formats; None if the batch does not."""
    available = [rank.typical for rank in question.memory.ranks(setup)]
    if min(available) < 0:
        return None
    budgets = setup.engine.cache_budgets(setup.spec, setup.deployment, available)
    context, local = question.asked_context, setup.placement.local_batch(question.batch)
    if any(limit.needed(context, local) > limit.budget for limit in limits(setup.placement, budgets)):
        return None
    changes = [
        *(() if cache is None else (f"--kv-dtype {cache}",)),
        *(() if weights is None else (f"--weights {weights}",)),
    ]
    return Fitting(
        model=setup.spec.name,
        parameters=setup.spec.parameters or 0,
        weights=setup.weights_format,
        weights_bytes=setup.weights_bytes() or 0,
        kv_dtype=setup.kv_dtype,
        changes=tuple(changes),
        max_batch=max_batch(setup.placement, budgets, context),
        max_context=max_context(setup.placement, budgets, question.batch),
        trained_context=setup.spec.max_context,
    )
