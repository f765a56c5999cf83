"""vLLM's figures: tokens, concurrency, blocks, what a refusal says, the block of recurrent models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

from kvcalc import api
from kvcalc.api import Setup
from kvcalc.engines import _vllm_rules as rules
from kvcalc.engines.vllm import ENGINE
from kvcalc.log_check import settings as read
from kvcalc.log_check.figures import GIB, Figure, decimal, enclosed, ends, exact, one_of, rounded, skipped, whole
from kvcalc.log_check.settings import Given, Settings
from kvcalc.measure.log import VLLM, Fact, Log

# Of a pool that may have more sizes than these, the sizes are not tried one by one.
_MOST_POOLS = 20_000
_DEFAULT_SWAP = "4"
_NO_MEMORY = "the log does not have the memory of the cache"
_NO_CONTEXT = "the log does not have the context: give --ctx"


def settings(log: Log, given: Given) -> tuple[Settings, tuple[str, ...]]:
    """Return the server's settings as far as the log has them, and what else must be said."""
    told = read.arguments_of(log, "vllm config", "vllm arguments", "vllm scheduler")
    started = read.started_with(log, VLLM)
    spec, note = read.find_model([told.get("model"), started.model], given)
    arguments = started.arguments | read.known(
        tp=read.ranks(told.get("tensor_parallel_size")),
        pp=read.ranks(told.get("pipeline_parallel_size")),
        dp=read.ranks(told.get("data_parallel_size")),
        dcp=read.ranks(told.get("decode_context_parallel_size")),
        dtype=read.element(told.get("dtype")),
    )
    options = started.options | read.known(
        kv_cache_dtype=read.element(told.get("kv_cache_dtype")),
        **{
            key: read.tokens(told.get(key))
            for key in ("block_size", "max_num_batched_tokens", "num_gpu_blocks_override")
        },
        **{key: read.switch(told.get(key)) for key in ("enable_prefix_caching", "async_scheduling")},
        **{key: told.get(key) for key in ("mamba_cache_dtype", "mamba_ssm_cache_dtype")},
        disable_hybrid_kv_cache_manager=read.switch(told.get("disable_hybrid_kv_cache_manager")),
    )
    context = read.tokens(told.get("max_seq_len")) or read.tokens(told.get("max_model_len")) or started.context
    found = Settings(spec, VLLM, arguments, options, context or _printed_context(log))
    drafter = "a drafter's layers and states are not modelled; they take blocks too"
    notes = ([note] if note else []) + ([drafter] if "speculative_config" in told else [])
    version = log.last("vllm version", "version")
    if version is not None and not version.startswith(ENGINE.version):
        notes.append(f"vLLM {version[:20]} has the rules of {ENGINE.version}")
    return given.over(found), tuple(notes)


def _printed_context(log: Log) -> int | None:
    return read.tokens(log.last("vllm concurrency", "context")) or read.tokens(log.last("vllm refusal", "context"))


def figures(log: Log, with_: Settings) -> Iterator[Figure]:
    """Yield every figure of the log beside what these settings make of it."""
    pool = _Pool(log, with_.setup(), with_.context)
    yield from _block_figures(log, pool)
    for fact in log.all("vllm tokens"):
        yield _tokens(fact, pool)
    for fact in log.all("vllm concurrency"):
        yield _concurrency(fact, pool)
    for fact in log.all("vllm refusal"):
        yield from _refusal(fact, pool)
    yield from _recurrent_figures(log, pool)


def neighbours(with_: Settings) -> Iterator[tuple[str, Settings]]:
    """Yield settings one step away, each with the words that say which."""
    for kv_dtype in ("fp8", "auto"):
        yield f"-o kv_cache_dtype={kv_dtype}", with_.having(kv_cache_dtype=kv_dtype)
    yield from with_.other_ranks()
    for size in (16, 32, 64, 128):
        yield f"-o block_size={size}", with_.having(block_size=size)
    for option in ("enable_prefix_caching=false", "async_scheduling=false", "disable_hybrid_kv_cache_manager=true"):
        yield f"-o {option}", with_.having(**dict([option.split("=")]))
    for size in (1024, 2048, 4096, 8192, 16384, 32768):
        stepped = with_.having(max_num_batched_tokens=size)
        yield f"-o max_num_batched_tokens={size}", stepped
        yield f"-o max_num_batched_tokens={size} -o async_scheduling=false", stepped.having(async_scheduling="false")
    for dtype in ("float32", "bfloat16"):
        yield f"-o mamba_ssm_cache_dtype={dtype}", with_.having(mamba_ssm_cache_dtype=dtype)


@dataclass(frozen=True)
class _Pool:
    """The pool of a server: the blocks that its memory may have, and what it prints with each number of them."""

    log: Log
    setup: Setup
    context: int | None

    @cached_property
    def block_bytes(self) -> int:
        """Bytes of a block on the fullest rank."""
        return max(pool.unit_bytes for rank in self.setup.placement.ranks for pool in rank.pools)

    @cached_property
    def plan(self) -> dict[str, Any]:
        """The engine's report for one token: block sizes and groups."""
        return api.measure(self.setup, 1, 1).engine_report

    @cached_property
    def by_memory(self) -> range:
        """The numbers of blocks that the printed memory, the poorest rank's, may have; none if none is printed."""
        override = self.setup.deployment.options.num_gpu_blocks_override
        if override is not None:
            return range(override, override + 1)
        printed = sorted(self.log.values("vllm memory", "gib"), key=lambda text: decimal(text) or 0)
        if not printed:
            return range(0)
        low, high = ends(printed[0], GIB)
        return range(int(low // self.block_bytes), int(high // self.block_bytes) + 1)

    def by_concurrency(self, context: int) -> range:
        """Return the numbers of blocks that the printed concurrency may have; none if none is printed."""
        for fact in self.log.all("vllm concurrency"):
            if read.tokens(fact["context"]) == context:
                low, high = ends(fact["times"])
                needed = self.needed(context)
                return range(max(int(low * needed), 1), int(high * needed) + 2)
        return range(0)

    def needed(self, context: int) -> int:
        """Return the blocks of one request."""
        blocks: int = self.setup.engine.report(
            self.setup.spec, self.setup.deployment, context, 1, self.setup.placement
        )["blocks_per_sequence"]
        return blocks


def _block_figures(log: Log, pool: _Pool) -> Iterator[Figure]:
    """Yield the blocks that older servers print, those of their swap space, and the tokens of all of them."""
    for fact in log.all("vllm blocks"):
        possible = pool.by_memory
        if possible:
            yield enclosed(fact, "gpu", "GPU blocks", possible[0], possible[-1])
        else:
            yield skipped(fact, "gpu", "GPU blocks", _NO_MEMORY)
        if fact.get("cpu"):
            yield _swapped(fact, pool)
    counts = [blocks for text in log.values("vllm blocks", "gpu") if (blocks := whole(text))]
    for fact in log.all("vllm stored"):
        if counts:
            yield exact(fact, "tokens", "tokens of all blocks", counts[-1] * pool.plan["resolved_block_size"])


def _swapped(fact: Fact, pool: _Pool) -> Figure:
    told = read.arguments_of(pool.log, "vllm config", "vllm arguments").get("swap_space")
    figure = exact(fact, "cpu", "CPU blocks", int((decimal(told or _DEFAULT_SWAP) or 0) * GIB // pool.block_bytes))
    if figure.agrees or told is not None:
        return figure
    return skipped(fact, "cpu", "CPU blocks", "the log does not have the swap space")


def _tokens(fact: Fact, pool: _Pool) -> Figure:
    """Compare "GPU KV cache size" with the tokens of every possible number of blocks."""
    name = "GPU KV cache size"
    if pool.context is None:
        return skipped(fact, "tokens", name, _NO_CONTEXT)
    possible = pool.by_memory or pool.by_concurrency(pool.context)
    if not 0 < len(possible) <= _MOST_POOLS:
        return skipped(fact, "tokens", name, _NO_MEMORY)
    needed = pool.needed(pool.context)
    made = {rules.reported_tokens(blocks, needed, pool.context): blocks for blocks in possible}
    figure = one_of(fact, "tokens", name, list(made))
    if figure.agrees:
        return figure.noting(f"{made[whole(fact['tokens']) or 0]:,} blocks")
    return figure.noting(_older_rule(fact, pool, possible))


def _older_rule(fact: Fact, pool: _Pool, possible: Sequence[int]) -> str:
    """Say whether a server that counts tokens by blocks alone would print this."""
    printed, size, groups = whole(fact["tokens"]), *_sizes(pool)
    if printed in {blocks * size for blocks in possible}:
        return f"older servers print blocks x block size: {(printed or 0) // size:,} x {size}"
    if printed in {blocks // groups * size for blocks in possible}:
        return f"older servers print blocks / {groups} groups x block size"
    return ""


def _concurrency(fact: Fact, pool: _Pool) -> Figure:
    """Compare "Maximum concurrency" with that of every possible number of blocks."""
    name, context = "maximum concurrency", read.tokens(fact["context"])
    if context is None:
        return skipped(fact, "times", name, _NO_CONTEXT)
    possible = pool.by_memory or _by_tokens(pool, context)
    if not 0 < len(possible) <= _MOST_POOLS:
        return skipped(fact, "times", name, _NO_MEMORY)
    needed = pool.needed(context)
    texts = dict.fromkeys(rules.printed_concurrency(Fraction(blocks, needed))[:-1] for blocks in possible)
    return one_of(fact, "times", name, list(texts))


def _by_tokens(pool: _Pool, context: int) -> list[int]:
    """Return the numbers of blocks that print the tokens that the log has, by the rule of today or by the older one."""
    found = [blocks for text in pool.log.values("vllm blocks", "gpu") if (blocks := whole(text))]
    needed, size, groups = pool.needed(context), *_sizes(pool)
    for printed in (whole(text) or 0 for text in pool.log.values("vllm tokens", "tokens")):
        near = printed * needed // context
        found += [n for n in range(near, near + 3) if n and rules.reported_tokens(n, needed, context) == printed]
        if not found and printed % size == 0:
            found += range(printed // size * groups, (printed // size + 1) * groups)
    return found


def _sizes(pool: _Pool) -> tuple[int, int]:
    """Return the tokens of a block and the number of groups that share the blocks."""
    return pool.plan["resolved_block_size"], len(pool.plan["groups"])


def _refusal(fact: Fact, pool: _Pool) -> Iterator[Figure]:
    """Yield what a server that does not start says: the GiB of one request, and the longest that would fit."""
    context = read.tokens(fact.get("context")) or pool.context
    admitted = max(
        (rank.admitted for rank in pool.setup.placement.ranks), key=lambda each: int(each.bytes(context or 1))
    )
    if context is None:
        yield skipped(fact, "needed", "GiB needed", _NO_CONTEXT)
        return
    needed = Fraction(round(int(admitted.bytes(context)) / GIB, 2)).limit_denominator(100)
    yield rounded(fact, "needed", "GiB needed", needed, 1)
    if fact.get("estimate") and fact.get("available"):
        longest = [min(admitted.max_tokens(int(end)) or context, context) for end in ends(fact["available"], GIB)]
        yield enclosed(fact, "estimate", "longest context", longest[0], longest[1])


def _recurrent_figures(log: Log, pool: _Pool) -> Iterator[Figure]:
    """Yield the block that a page of attention needs to hold a state, and how far the state's page is padded."""
    for fact in log.all("vllm block size"):
        yield exact(fact, "tokens", "attention block size", pool.plan["resolved_block_size"])
    states = [group for group in pool.plan["groups"] if group["kind"] == "mamba"]
    for fact in log.all("vllm padding"):
        if states:
            page, used = states[0]["page_bytes"][0], states[0]["used_page_bytes"][0]
            yield rounded(fact, "percent", "state page padding", Fraction(100 * (page - used), used), 1)
