"""What fits into a memory: a question about a model on an engine, and where it stands against what its ranks have."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

from kvcalc.capacity import Capacity, Limit, capacity, limits, max_batch, max_context
from kvcalc.errors import BadInput, UnsupportedByEngine
from kvcalc.fit_result import Rung
from kvcalc.footprint import Placement, Pool, Rank
from kvcalc.memory import Level, Memory, RankMemory
from kvcalc.prepared import Setup, check, prepare
from kvcalc.spec.kinds import State
from kvcalc.spec.model import ModelSpec
from kvcalc.units import MAX_TOKENS

FIRST_RUNG = 512


@dataclass(frozen=True)
class Question:
    """Does it fit: a model, how it is deployed (the arguments of `prepare`), a context, a batch, and the memory.

    `context` is the trained maximum unless given. `draft` is a second model that is served beside it.
    """

    spec: ModelSpec
    arguments: Mapping[str, Any]
    context: int | None
    batch: int
    memory: Memory
    draft: ModelSpec | None = None

    @property
    def engine(self) -> str:
        """The engine's name."""
        return str(self.arguments.get("engine", "ideal"))

    @property
    def options(self) -> Mapping[str, object]:
        """The engine's own options."""
        return self.arguments.get("options") or {}

    @property
    def asked_context(self) -> int:
        """The context asked for; BadInput where there is none."""
        asked = self.context if self.context is not None else self.spec.max_context
        if asked is None:
            raise BadInput(f"{self.spec.name} has no trained maximum; say for which context (--ctx)")
        return asked

    def changed(self, **arguments: Any) -> Question:
        """Return the question with some arguments of `prepare` replaced."""
        return replace(self, arguments={**self.arguments, **arguments})

    def setup(self) -> Setup:
        """Return the model on the engine, with the defaults that depend on the GPU; errors as for `prepare`."""
        setup, drafted = self.placed(self.spec), self.drafted()
        return setup if drafted is None else beside(setup, drafted)

    def drafted(self) -> Setup | None:
        """Return the draft model on the same engine; None where there is none."""
        return None if self.draft is None else self.placed(self.draft)

    def placed(self, spec: ModelSpec) -> Setup:
        """Return a model in this deployment."""
        options = self.memory.adjusted(self.engine, self.options, int(self.arguments.get("pp", 1)))
        return prepare(spec, **{**self.arguments, "options": options})


def beside(setup: Setup, drafted: Setup) -> Setup:
    """Return a model with its draft on the same ranks; UnsupportedByEngine where their shared pool is not covered.

    Where an engine hands out units of a pool, the pool is split between the two so that both hold as many sequences.
    """
    first, second = setup.placement, drafted.placement
    pooled = any(rank.pools for rank in (*first.ranks, *second.ranks))
    if pooled:
        _require_divisible(setup, drafted)
    if len(first.ranks) != len(second.ranks):
        raise UnsupportedByEngine(
            f"{setup.spec.name} and its draft {drafted.spec.name} are not on the same ranks; drop --draft"
        )
    ranks = tuple(_joined(*pair) for pair in zip(first.ranks, second.ranks, strict=True))
    assumed = dict.fromkeys((*setup.assumptions, *drafted.assumptions, *((_DRAFT_POOL,) if pooled else ())))
    return replace(setup, placement=Placement(ranks, first.dp), assumptions=tuple(assumed))


_DRAFT_POOL = (
    "the pool is split so that it holds as many sequences of the model as of its draft, each in its own blocks: vLLM "
    "does the same where all layers share one group; the tokens that a draft looks ahead, its activations and its CUDA "
    "graphs are not counted"
)


def _require_divisible(setup: Setup, drafted: Setup) -> None:
    """Raise UnsupportedByEngine where a draft changes more of an engine's pools than how they are divided."""
    name, deployment = setup.engine.name, setup.deployment
    if name != "vllm":
        raise UnsupportedByEngine(
            f"how engine {name} divides its pools between a model and its draft is not covered; drop --draft, or use "
            "--engine vllm, ideal or llama.cpp"
        )
    if deployment.pp > 1:
        raise UnsupportedByEngine(
            "on which pipeline stage vLLM keeps a draft is not covered; use --pp 1, or no --draft"
        )
    for each in (setup.spec, drafted.spec):
        if any(isinstance(group.kind, State) for group in each.groups()):
            raise UnsupportedByEngine(
                f"{each.name} has recurrent layers, for which vLLM keeps more states with every token that is drafted; "
                "how many is not covered, drop --draft"
            )
    for option in ("num_gpu_blocks_override", "auto_fit"):
        if getattr(deployment.options, option):
            raise UnsupportedByEngine(f"option {option} with --draft is not covered: both models share the blocks")


def _joined(first: Rank, second: Rank) -> Rank:
    """Return a rank with the caches of two models; their pools' units become bytes of one pool."""
    pools = (_joint_pool(*first.pools, *second.pools),) if first.pools and second.pools else first.pools or second.pools
    held, admitted = first.held + second.held, first.admitted + second.admitted
    return replace(first, held=held, admitted=admitted, pools=pools)


def _joint_pool(first: Pool, second: Pool) -> Pool:
    """Return the pool that is as large as two in which as many sequences lie, what each never hands out included.

    Only sums of their units are handed out, so that any unit of which both consist counts them exactly.
    """
    unit = math.gcd(first.unit_bytes, second.unit_bytes)
    reserved = first.reserved_units * first.unit_bytes + second.reserved_units * second.unit_bytes
    return Pool(first.label, unit, reserved // unit, Fraction(1), (*first.groups, *second.groups))


@dataclass(frozen=True)
class Standing:
    """Where a question stands at one level of the estimates: what fits, and what the engine itself would say.

    Answers are worked out when they are asked for. `budgets` are the bytes that the ranks' caches get, below zero by
    what the weights exceed the memory by; `overrun` says that there is less than the engine was told to take.
    """

    question: Question
    setup: Setup
    ranks: tuple[RankMemory, ...]
    level: Level
    budgets: tuple[int, ...]
    overrun: bool

    @cached_property
    def own(self) -> Mapping[str, Any]:
        """What the engine itself reports of this memory; empty where it reports nothing, or has a draft too."""
        if self.question.draft is not None:
            return {}
        available = tuple(max(rank.at(self.level), 0) for rank in self.ranks)
        setup, context = self.setup, self.question.asked_context
        return setup.engine.budget_report(setup.spec, setup.deployment, available, context) or {}

    @cached_property
    def context(self) -> int:
        """The context that the engine settles on: the one asked for, unless it is told to lower it."""
        asked = self.question.asked_context
        lowers = getattr(self.setup.deployment.options, "auto_fit", False)
        return int(self.own.get("max_model_len", asked)) if lowers else asked

    @cached_property
    def fits(self) -> bool:
        """Whether the batch fits at the context, and the engine would start."""
        local = self.setup.placement.local_batch(self.question.batch)
        within = all(limit.needed(self.context, local) <= limit.budget for limit in self._limits)
        return within and not self.overrun and bool(self.own.get("admitted", True))

    @cached_property
    def found(self) -> Capacity:
        """What the memory holds, whatever the engine's options allow."""
        return capacity(self.setup.placement, self.budgets, self.context, self.question.batch)

    @cached_property
    def max_batch(self) -> int | None:
        """Largest batch at the context that the memory and the engine's options allow; None if there is none."""
        fitting = max_batch(self.setup.placement, self.budgets, self.context)
        return allowed_batch(self.setup, fitting, self.context, self.question.batch)

    @cached_property
    def max_context(self) -> int | None:
        """Largest context at the batch that the memory and the engine's options allow."""
        fitting = max_context(self.setup.placement, self.budgets, self.question.batch)
        return allowed_context(self.setup, fitting, self.context, self.question.batch)

    @property
    def admitted_context(self) -> int | None:
        """Largest context at the batch with which the engine starts."""
        one: int | None = None if self.own.get("admitted", True) else self.own.get("max_context_that_fits")
        return min((each for each in (one, self.max_context) if each is not None), default=None)

    @property
    def missing(self) -> int:
        """The bytes that the poorest rank lacks for the batch at the context; 0 if it lacks none."""
        local = self.setup.placement.local_batch(self.question.batch)
        lacks = [limit.needed(self.context, local) - limit.budget for limit in self._limits]
        return max(0, self.missing_weights, *lacks)

    @property
    def missing_weights(self) -> int:
        """The bytes by which weights and overhead alone exceed the memory of the poorest rank; 0 where they do not."""
        return max(-min(rank.at(self.level) for rank in self.ranks), 0)

    @cached_property
    def _limits(self) -> tuple[Limit, ...]:
        return limits(self.setup.placement, self.budgets)


def stand(question: Question, level: Level = "typical") -> Standing:
    """Return where a question stands; BadInput for values out of range, UnsupportedByEngine as for `prepare`."""
    setup = question.setup()
    check(setup, question.asked_context, question.batch)
    return stand_at(question, setup, question.memory.ranks(setup, question.drafted()), level)


def stand_at(question: Question, setup: Setup, ranks: tuple[RankMemory, ...], level: Level) -> Standing:
    """Return where a checked question stands with the memory of its ranks."""
    available = tuple(rank.at(level) for rank in ranks)
    positive = tuple(max(size, 0) for size in available)
    given = setup.engine.cache_budgets(setup.spec, setup.deployment, positive)
    pairs = list(zip(available, given, strict=True))
    # An engine's own option may set more than there is, and what weights exceed no option makes good.
    overrun = any(size < 0 or size < budget for size, budget in pairs)
    return Standing(question, setup, ranks, level, tuple(min(size, 0) or budget for size, budget in pairs), overrun)


def answers(standing: Standing, level: Level) -> tuple[bool, int | None, int | None]:
    """Return (fits, largest batch, largest context) of the same setup at another level of the estimates."""
    other = stand_at(standing.question, standing.setup, standing.ranks, level)
    return other.fits, other.max_batch, other.max_context


def allowed_context(setup: Setup, fitting: int | None, context: int, batch: int) -> int | None:
    """Return the largest context that fits and that the engine's options allow, given that they allow `context`."""
    return _allowed(lambda each: _allows(setup, each, batch), fitting, context)


def allowed_batch(setup: Setup, fitting: int | None, context: int, batch: int) -> int | None:
    """Return the largest batch that fits and that the engine's options allow, given that they allow `batch`."""
    return _allowed(lambda each: _allows(setup, context, each), fitting, batch)


def _allowed(allows: Callable[[int], bool], fitting: int | None, known: int) -> int | None:
    """Return the largest number up to `fitting` that is allowed, given that `known` is."""
    if (fitting is not None and fitting <= known) or allows(fitting or MAX_TOKENS):
        return fitting
    low, high = known, fitting or MAX_TOKENS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if allows(middle) else (low, middle)
    return low


def _allows(setup: Setup, context: int, batch: int) -> bool:
    try:
        setup.engine.check(setup.spec, setup.deployment, context, batch)
    except (BadInput, UnsupportedByEngine):
        return False
    return True


def ladder(standing: Standing) -> tuple[Rung, ...]:
    """Return the largest batch at contexts that double from 512 to the trained maximum, and at the one asked for."""
    setup, context, batch = standing.setup, standing.context, standing.question.batch
    top = max(context, setup.spec.max_context or 0)
    doubled = {FIRST_RUNG << step for step in range(41) if FIRST_RUNG << step <= top}
    return tuple(
        Rung(each, allowed_batch(setup, max_batch(setup.placement, standing.budgets, each), each, batch))
        for each in sorted(doubled | {context, *((setup.spec.max_context,) if setup.spec.max_context else ())})
        if _allows(setup, each, batch)
    )
