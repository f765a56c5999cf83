"""A model on an engine, asked through the public calls: what tests of engine profiles pass around."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kvcalc import api
from kvcalc.api import Setup, SizeResult
from kvcalc.capacity import capacity
from kvcalc.fit_result import FitResult
from kvcalc.spec.model import ModelSpec


@dataclass(frozen=True)
class Served:
    """A model (a name or a spec), its engine, and the other arguments of `api.prepare`."""

    model: str | ModelSpec
    engine: str
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def setup(self) -> Setup:
        """The model placed on the engine."""
        return api.prepare(self.model, engine=self.engine, **self.arguments)

    def size(self, context: int = 1, batch: int = 1) -> SizeResult:
        """Return the size of its cache."""
        return api.size(self.model, context=context, batch=batch, engine=self.engine, **self.arguments)

    def fit(self, memory: int, context: int = 1, batch: int = 1) -> FitResult:
        """Return what `memory` bytes on every rank hold."""
        given = self.arguments
        return api.fit(self.model, kv_memory=memory, context=context, batch=batch, engine=self.engine, **given)

    def least_memory(self, context: int, batch: int = 1) -> int:
        """Return the smallest memory on every rank with which a batch fits at a context."""
        placement = self.setup.placement
        return capacity(placement, [1] * len(placement.ranks), context, batch).needed_memory

    def report(self, memory: int | None = None, context: int = 1) -> dict[str, Any]:
        """Return the engine's report of one sequence, or of what it makes of `memory` bytes on every rank."""
        if memory is None:
            return self.size(context).engine_report
        return self.fit(memory, context).engine_report
