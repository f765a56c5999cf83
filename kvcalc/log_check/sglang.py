"""SGLang's figures: tokens and gigabytes of every pool, states, and the tokens that the free memory should give."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from kvcalc.engines import _sglang_rules as rules
from kvcalc.engines.sglang import Plan, PoolSizes, make_plan
from kvcalc.log_check import settings as read
from kvcalc.log_check.figures import GIB, Figure, decimal, enclosed, ends, exact, rounded, skipped, whole
from kvcalc.log_check.settings import Given, Settings
from kvcalc.measure.log import SGLANG, Fact, Log

_SECOND = "the pool of other layers than the model's, such as a drafter's"
_MOST_TURNS = 1000
# The options of the profile that the server's arguments have by the same names.
_NUMBERS = ("page_size", "max_total_tokens", "max_mamba_cache_size")
_SWITCHES = ("disable_radix_cache", "enable_dp_attention")
_RATIOS = ("swa_full_tokens_ratio", "mamba_full_memory_ratio")
_NAMES = ("mamba_ssm_dtype", "dsa_prefill_backend", "dsa_decode_backend")


def settings(log: Log, given: Given) -> tuple[Settings, tuple[str, ...]]:
    """Return the server's settings as far as the log has them, and what else must be said."""
    flags = read.flags_of(log, SGLANG)
    told = {**flags, **read.arguments_of(log, "sglang arguments")}
    model = told.get("model_path") or told.get("model")
    spec, note = read.find_model([model], given)
    arguments = read.known(
        tp=read.ranks(told.get("tp_size") or told.get("tp")),
        pp=read.ranks(told.get("pp_size")),
        dp=read.ranks(told.get("dp_size") or told.get("dp")),
        dcp=read.ranks(told.get("dcp_size")),
        dtype=read.element(told.get("dtype")) or read.element(log.last("sglang after", "dtype")),
        kv_dtype=_seen_dtype(log),
    )
    options = read.known(
        **{key: read.tokens(told.get(key)) for key in _NUMBERS},
        **{key: read.switch(told.get(key)) for key in _SWITCHES},
        **{key: told.get(key) for key in (*_RATIOS, *_NAMES)},
    )
    if "kv_dtype" not in arguments:
        options |= read.known(kv_cache_dtype=read.element(told.get("kv_cache_dtype")))
    context = read.tokens(log.last("sglang total", "context")) or read.tokens(told.get("context_length"))
    drafter = "a drafter's layers and states are not modelled"
    notes = ([note] if note else []) + ([drafter] if "speculative_algorithm" in told else [])
    return given.over(Settings(spec, SGLANG, arguments, options, context)), tuple(notes)


def _seen_dtype(log: Log) -> str | None:
    """Return the cache's format by the dtype that the line of its pool has; fp4 is seen with keys in fp8."""
    dtype = log.last("sglang cache", "dtype") or ""
    if dtype.startswith("float4"):
        return "fp8/nvfp4"
    return "fp8" if dtype.startswith("float8") else read.element(dtype)


def neighbours(with_: Settings) -> Iterator[tuple[str, Settings]]:
    """Yield settings one step away, each with the words that say which."""
    for kv_dtype in ("fp8", "bf16"):
        other = with_.served(kv_dtype=kv_dtype).having(kv_cache_dtype=None)
        yield f"--kv-dtype {kv_dtype}", other
    yield from with_.other_ranks()
    for size in (1, 16, 32, 64, 128):
        yield f"-o page_size={size}", with_.having(page_size=size)
    for ratio in ("1.0", "0.8", "0.1"):
        yield f"-o swa_full_tokens_ratio={ratio}", with_.having(swa_full_tokens_ratio=ratio)
    for dtype in ("float32", "bfloat16"):
        yield f"-o mamba_ssm_dtype={dtype}", with_.having(mamba_ssm_dtype=dtype)


def figures(log: Log, with_: Settings) -> Iterator[Figure]:
    """Yield every figure of the log beside what these settings make of it."""
    setup = with_.setup()
    plan = make_plan(setup.spec, setup.deployment)
    server = _Server(log, plan)
    yield from server.cache_figures()
    for fact in log.all("sglang states"):
        yield from server.state_figures(fact)
    for fact in log.all("sglang windowed"):
        sizes = server.sizes(full=fact["full"], swa=fact["swa"])
        total = sum(kind.bytes * sizes.rows(kind.pool) for kind in plan.stages[0] if kind.pool != "state")
        yield rounded(fact, "gb", "both pools, GB", total, GIB)
    for fact in log.all("sglang pools"):
        yield _windowed_tokens(fact, plan)
    yield from server.total_figures(read.arguments_of(log, "sglang arguments"))


def _windowed_tokens(fact: Fact, plan: Plan) -> Figure:
    pages = (whole(fact["full"]) or 0) // plan.page_size * plan.splits[0].swa_ratio // 1
    return exact(fact, "swa", "windowed layers' tokens", int(pages) * plan.page_size)


@dataclass(frozen=True)
class _Server:
    """The first rank's pools of a server, as its log and these settings have them."""

    log: Log
    plan: Plan

    def sizes(self, *, full: str | None = None, swa: str | None = None, slots: str | None = None) -> PoolSizes:
        """Return pools of printed sizes."""
        return PoolSizes(self.plan, whole(full) or 0, whole(swa) or 0, whole(slots) or 0)

    def cache_figures(self) -> Iterator[Figure]:
        """Yield the gigabytes of every pool of tokens, each line held against the pool that it agrees with best."""
        left: list[rules.PoolName] = [pool for pool in ("swa", "full") if self.plan.has(pool)]
        for fact in self.log.all("sglang cache"):
            choices = [(pool, list(self._gigabytes(fact, pool))) for pool in left]
            if not choices:
                key = "k" if fact.get("k") else "kv"
                yield skipped(fact, key, "pool, GB", _SECOND)
                continue
            pool, found = max(choices, key=lambda choice: sum(figure.agrees for figure in choice[1]))
            left.remove(pool)
            yield from found

    def _gigabytes(self, fact: Fact, pool: rules.PoolName) -> Iterator[Figure]:
        sizes = self.sizes(full=fact["tokens"], swa=fact["tokens"])
        kinds = [kind for kind in self.plan.stages[0] if kind.pool == pool]
        of = "windowed layers, " if pool == "swa" and self.plan.has("full") else ""
        for key, roles in (("k", ("k",)), ("v", ("v",)), ("kv", ("k", "v", "latent"))):
            if fact.get(key):
                total = sum(kind.role_bytes(role) * sizes.rows(pool) for kind in kinds for role in roles)
                yield rounded(fact, key, f"{of}{key.upper()}, GB", total, GIB)

    def state_figures(self, fact: Fact) -> Iterator[Figure]:
        """Yield the gigabytes of the states, one slot more than is said."""
        sizes = self.sizes(slots=fact["slots"])
        kinds = [kind for kind in self.plan.stages[0] if kind.pool == "state"]
        for key, role in (("conv", "conv"), ("ssm", "ssm")):
            if kinds and fact.get(key):
                total = sum(kind.role_bytes(role) * sizes.rows("state") for kind in kinds)
                yield rounded(fact, key, f"{key} states, GB", total, GIB)
        if fact.get("intermediate"):
            yield skipped(fact, "intermediate", "intermediate states, GB", "states of drafts are not modelled")

    def total_figures(self, told: dict[str, str]) -> Iterator[Figure]:
        """Yield max_total_num_tokens against the memory that was free, where the log has all that decides it."""
        for fact in self.log.all("sglang total"):
            memory, fraction = self._free(), decimal(told.get("mem_fraction_static"))
            if memory is None or fraction is None or "speculative_algorithm" in told:
                yield skipped(fact, "tokens", "max_total_num_tokens", "the log does not have the memory of the pools")
                continue
            (low_before, high_before), (low_after, high_after) = memory
            # More free before loading leaves more aside: the least memory has the most of it.
            least = rules.rest_memory(int(low_after), int(high_before), fraction)
            most = rules.rest_memory(int(high_after), int(low_before), fraction)
            found = [self._tokens(size) for size in self._turns(least, most)]
            yield enclosed(fact, "tokens", "max_total_num_tokens", min(found), max(found))

    def _free(self) -> tuple[tuple[Fraction, Fraction], tuple[Fraction, Fraction]] | None:
        """Return the memory that was free before and after loading, of the rank with least."""
        before, after = (self.log.values(f"sglang {when}", "gb") for when in ("before", "after"))
        if not before or not after:
            return None
        least = [min(texts, key=lambda text: decimal(text) or 0) for texts in (before, after)]
        return ends(least[0], GIB), ends(least[1], GIB)

    def _turns(self, least: int, most: int) -> Iterator[int]:
        """Yield the ends of a range of memory and what lies about its turns: one more state slot takes tokens away."""
        yield from (least, most)
        split = self.plan.splits[0]
        if split.state_bytes and split.slots is None:
            period = split.state_bytes / split.state_share
            first, last = int(least // period) + 1, int(most // period)
            for turn in range(first, min(last, first + _MOST_TURNS) + 1):
                at = -(-turn * period // 1)
                yield from (int(at) - 1, int(at))

    def _tokens(self, memory: int) -> int:
        shares = [split.divide(max(memory, 0)) for split in self.plan.splits]
        return min(each.full_tokens or each.swa_tokens for each in shares)
