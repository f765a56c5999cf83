"""TensorRT-LLM's figures: blocks, tokens and bytes of the pool, blocks of a sequence, and how far it was cut."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from kvcalc.engines.tensorrt_llm import DEFAULT_FREE_FRACTION, Plan, make_plan
from kvcalc.log_check import settings as read
from kvcalc.log_check.figures import GIB, Figure, decimal, enclosed, ends, exact, rounded, skipped, whole
from kvcalc.log_check.settings import Given, Settings
from kvcalc.measure.log import TENSORRT_LLM, Fact, Log

# Fractions of the free memory that are tried where the log has none and the default does not fit.
_FRACTIONS = ("0.99", "0.95", "0.9", "0.85", "0.8", "0.7", "0.6", "0.5")
_FAKE = "a fake cache manager prints 0.00, whatever the cache takes"
_ROUNDED_UP = "the engine backend, whose line this is, rounds blocks up; the PyTorch backend rounds them down"


def settings(log: Log, given: Given) -> tuple[Settings, tuple[str, ...]]:
    """Return the server's settings as far as the log has them, and what else must be said."""
    flags = read.flags_of(log, TENSORRT_LLM)
    told = {**flags, **read.arguments_of(log, "tensorrt-llm arguments")}
    words = [word for key, word in flags.items() if key.isdecimal() and word not in ("trtllm-serve", "serve")]
    spec, note = read.find_model([told.get("model"), *words[:1]], given)
    arguments = read.known(
        tp=read.ranks(told.get("tp_size") or told.get("tensor_parallel_size")),
        pp=read.ranks(told.get("pp_size") or told.get("pipeline_parallel_size")),
    )
    printed = log.last("tensorrt-llm block", "tokens") or log.last("tensorrt-llm sequence", "block")
    options = read.known(
        tokens_per_block=read.tokens(printed or told.get("tokens_per_block")),
        enable_attention_dp=read.switch(told.get("enable_attention_dp")),
    )
    context = log.last("tensorrt-llm sequence", "window") or log.last("tensorrt-llm length", "tokens")
    found = Settings(spec, TENSORRT_LLM, arguments, options, read.tokens(context))
    return given.over(found), ((note,) if note else ())


def neighbours(with_: Settings) -> Iterator[tuple[str, Settings]]:
    """Yield settings one step away, each with the words that say which."""
    for kv_dtype in ("fp8", "bf16", "nvfp4"):
        yield f"--kv-dtype {kv_dtype}", with_.served(kv_dtype=kv_dtype).having(dtype=None)
    yield from with_.other_ranks()
    for size in (32, 64, 128):
        yield f"-o tokens_per_block={size}", with_.having(tokens_per_block=size)
    yield "-o enable_attention_dp=true", with_.having(enable_attention_dp="true")


def figures(log: Log, with_: Settings) -> Iterator[Figure]:
    """Yield every figure of the log beside what these settings make of it."""
    setup = with_.setup()
    plan = make_plan(setup.spec, setup.deployment)
    told = {**read.flags_of(log, TENSORRT_LLM), **read.arguments_of(log, "tensorrt-llm arguments")}
    printed = told.get("free_gpu_memory_fraction") or told.get("kv_cache_free_gpu_memory_fraction")
    pool = _Pool(log, plan, decimal(printed) or DEFAULT_FREE_FRACTION, with_.context)
    yield from pool.block_figures()
    yield from pool.sequence_figures()
    yield from pool.size_figures()


@dataclass(frozen=True)
class _Pool:
    """The first rank's blocks, as the log and these settings have them."""

    log: Log
    plan: Plan
    fraction: Fraction
    context: int | None

    @property
    def token_bytes(self) -> int:
        """Bytes of a token on the rank."""
        return sum(kind.bytes for kind in self.plan.stages[0])

    @property
    def blocks(self) -> int | None:
        """The blocks that the log has."""
        printed = self.log.last("tensorrt-llm blocks", "blocks") or self.log.last("tensorrt-llm sequence", "primary")
        return whole(printed)

    def block_figures(self) -> Iterator[Figure]:
        """Yield the blocks of the primary pool against the memory that was free."""
        available = self.log.last("tensorrt-llm memory", "available")
        for fact in self.log.all("tensorrt-llm blocks"):
            if available is None or self._fake or len(self.plan.windows) > 1:
                why = _FAKE if self._fake else "the log does not have the memory of the cache"
                yield skipped(fact, "blocks", "blocks of the primary pool", why)
                continue
            figure = self._blocks(fact, available, self.fraction)
            others = [each for each in _FRACTIONS if self._blocks(fact, available, Fraction(each)).agrees]
            if not figure.agrees and others:
                figure = figure.noting(f"would agree with a fraction of {others[0]} of the free memory")
            yield figure.noting(_ROUNDED_UP)

    def _blocks(self, fact: Fact, available: str, fraction: Fraction) -> Figure:
        block = self.plan.tokens_per_block
        least, most = (-(-int(end * fraction / self.token_bytes) // block) for end in ends(available, GIB))
        return enclosed(fact, "blocks", "blocks of the primary pool", least, most)

    def sequence_figures(self) -> Iterator[Figure]:
        """Yield the blocks of a sequence, and the tokens that it was cut to where the pool is too small."""
        for fact in self.log.all("tensorrt-llm sequence"):
            length = self._cut(read.tokens(fact.get("window")) or self.context)
            if length is None:
                yield skipped(fact, "blocks", "blocks of a sequence", "the log does not have the longest sequence")
            else:
                yield exact(fact, "blocks", "blocks of a sequence", -(-length // self.plan.tokens_per_block))
        for fact in self.log.all("tensorrt-llm window"):
            if self.blocks is not None:
                yield exact(fact, "tokens", "window cut to", self.blocks * self.plan.tokens_per_block)
        for fact in self.log.all("tensorrt-llm cut"):
            if self.blocks is not None:
                note = "the engine backend keeps a block less a token back"
                yield exact(
                    fact, "tokens", "sequence cut to", (self.blocks - 1) * self.plan.tokens_per_block + 1
                ).noting(note)

    def _cut(self, length: int | None) -> int | None:
        """Return the longest sequence, as the log says that it was cut."""
        cuts = [self.log.last("tensorrt-llm cut", "tokens"), self.log.last("tensorrt-llm window", "tokens")]
        found = [tokens for tokens in (length, *(read.tokens(text) for text in cuts)) if tokens is not None]
        return min(found, default=None)

    def size_figures(self) -> Iterator[Figure]:
        """Yield the tokens of all blocks and the bytes of all tokens."""
        for fact in self.log.all("tensorrt-llm cache"):
            if self.blocks is not None:
                yield exact(fact, "tokens", "tokens of the pool", self.blocks * self.plan.tokens_per_block)
            yield self._size(fact)
        for fact in self.log.all("tensorrt-llm tokens"):
            for size in self.log.all("tensorrt-llm bytes"):
                yield exact(size, "bytes", "bytes of the pool", (whole(fact["tokens"]) or 0) * self.token_bytes)

    def _size(self, fact: Fact) -> Figure:
        if self._fake:
            return skipped(fact, "gib", "GiB of the pool", _FAKE)
        if len(self.plan.windows) > 1:
            return skipped(fact, "gib", "GiB of the pool", "windows of several sizes have blocks of their own")
        return rounded(fact, "gib", "GiB of the pool", (whole(fact["tokens"]) or 0) * self.token_bytes, GIB)

    @property
    def _fake(self) -> bool:
        return bool(self.log.all("tensorrt-llm fake"))
