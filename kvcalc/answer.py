"""The whole answer to "does it fit": where the question stands, what would help, what a real load means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kvcalc import lengths as real
from kvcalc.advise import fewest, offloads, smallest_layout, suggestions
from kvcalc.errors import BadInput
from kvcalc.fit_result import FitResult, Interval, Layout
from kvcalc.fitting import Question, Standing, answers, ladder, stand
from kvcalc.hardware.budget import parse_share
from kvcalc.hardware.gpu import find_gpu
from kvcalc.hardware.overhead import from_log_lines
from kvcalc.lengths import Load, read_lengths
from kvcalc.memory import Card, KvMemory, Memory, memory_report
from kvcalc.prepared import MAX_RANKS, require_range, warnings
from kvcalc.server_line import command_line
from kvcalc.units import MAX_BYTES, format_bytes

MOST_SEARCHED = 512  # GPUs of a range of layouts


def memory_of(
    kv_memory: int | None,
    gpu: str | None,
    *,
    utilization: str | None = None,
    overhead: int | None = None,
    overhead_parts: Mapping[str, int] | None = None,
    reserve: int = 0,
    log: str | None = None,
    max_num_seqs: int | None = None,
) -> Memory:
    """Return the memory that the options describe; BadInput where they contradict each other or one is missing."""
    on_gpu = {
        "--utilization": utilization,
        "--overhead": overhead if overhead is not None else overhead_parts,
        "--memory-reserve": reserve,
        "--from-log": log,
    }
    if kv_memory is not None:
        extra = next((name for name, value in on_gpu.items() if value), None)
        if gpu is not None or extra:
            other = "--gpu" if gpu is not None else extra
            raise BadInput(f"--kv-memory contradicts {other}: it is what weights and overhead have left for the cache")
        require_range("kv memory", kv_memory, MAX_BYTES)
        return KvMemory(kv_memory)
    if gpu is None:
        raise BadInput(
            "fit needs --gpu NAME ('kvcalc gpus' lists them), or --kv-memory SIZE, the cache's on every rank"
        )
    if overhead is not None and overhead_parts:
        raise BadInput("--overhead SIZE replaces all parts and contradicts --overhead PART=SIZE; give one of them")
    for name, value in (("--memory-reserve", reserve), ("--overhead", overhead or 0)):
        if not 0 <= value <= MAX_BYTES:
            raise BadInput(f"{name} must be between 0 and {MAX_BYTES:,} bytes, not {value:,}")
    return Card(
        gpu=find_gpu(gpu),
        utilization=None if utilization is None else parse_share(utilization),
        reserve=reserve,
        overhead=overhead,
        parts=tuple((overhead_parts or {}).items()),
        logged=() if log is None else tuple(from_log_lines(log).items()),
        max_num_seqs=max_num_seqs,
    )


def counts_of(gpus: int | tuple[int, int] | None) -> range | None:
    """Return the numbers of GPUs to try; BadInput unless they are between 1 and 4,096, the first no larger."""
    if gpus is None:
        return None
    first, last = gpus if isinstance(gpus, tuple) else (gpus, gpus)
    require_range("--gpus", first, MAX_RANKS)
    require_range("--gpus", last, MAX_RANKS)
    if first != last and last > MOST_SEARCHED:
        raise BadInput(f"--gpus {first}..{last}: a range is searched up to {MOST_SEARCHED} GPUs")
    if first > last:
        raise BadInput(f"--gpus {first}..{last} is empty; write the smaller number first")
    return range(first, last + 1)


def answer(
    question: Question,
    *,
    counts: range | None = None,
    fixed: Mapping[str, int] | None = None,
    lengths: str | None = None,
    emit: bool = False,
) -> FitResult:
    """Return the answer to a question, for the smallest layout of `counts` GPUs where that is given."""
    if emit and question.draft is not None:
        raise BadInput("--emit writes the command of one model alone; give --draft or --emit")
    tried: tuple[Layout, ...] = ()
    if counts is None:
        standing = stand(question)
    else:
        if isinstance(question.memory, KvMemory):
            raise BadInput("--gpus needs --gpu NAME: --kv-memory is what one rank of a given layout has")
        search = smallest_layout(question, counts, fixed or {})
        tried, standing = search.tried, search.standing
    return _result(standing, tried if len(tried) > 1 else (), lengths, emit)


def _result(standing: Standing, tried: tuple[Layout, ...], lengths: str | None, emit: bool) -> FitResult:
    """Return the answer for a layout that is settled."""
    question, setup, memory = standing.question, standing.setup, standing.question.memory
    spec, engine, deployment = setup.spec, setup.engine, setup.deployment
    suggested = suggestions(standing)
    report = memory_report(memory, setup, standing.ranks) if isinstance(memory, Card) else None
    return FitResult(
        model=spec.name,
        engine=engine.name,
        engine_version=engine.version,
        context=standing.context,
        batch=question.batch,
        dtype=deployment.dtype.name,
        kv_dtype=setup.kv_dtype,
        weights_format=setup.weights_format,
        tp=deployment.tp,
        pp=deployment.pp,
        dp=deployment.dp,
        fits=standing.fits,
        max_batch=standing.max_batch,
        max_context=standing.max_context,
        trained_context=spec.max_context,
        budget_bytes=memory.size if isinstance(memory, KvMemory) else min(each.typical for each in standing.ranks),
        weights_bytes=None if isinstance(memory, KvMemory) else setup.weights_bytes(),
        binding=standing.found.binding,
        suggestions=suggested,
        ladder=ladder(standing),
        engine_report={
            **engine.report(spec, deployment, standing.context, question.batch, setup.placement),
            **standing.own,
        },
        memory=report,
        interval=_interval(standing) if isinstance(memory, Card) else None,
        layouts=tried,
        load=None if lengths is None else _load(standing, lengths),
        offload=offloads(question) if report is not None and engine.name == "llama.cpp" else (),
        command=_command(standing) if emit else "",
        assumptions=(*setup.assumptions, *_assumed(standing)),
        warnings=(
            *warnings(spec, standing.context),
            *_warnings(standing),
            *(_served_weights(standing) if emit else ()),
        ),
    )


def _interval(standing: Standing) -> Interval:
    """Return what fits with the most overhead and weights that were seen, and with the least."""
    low, high = answers(standing, "low"), answers(standing, "high")
    return Interval((low[0], high[0]), (low[1], high[1]), (low[2], high[2]))


def _load(standing: Standing, text: str) -> Load:
    """Return how many sequences of real lengths fit; they end at the longest context that the model or one rank has."""
    longest = standing.setup.spec.max_context if standing.question.context is None else standing.context
    lengths = read_lengths(text, longest or standing.context)
    return real.load(standing.setup.placement, standing.budgets, lengths, longest or lengths.weights[-1][0])


def _command(standing: Standing) -> str:
    """Return the command line of what fits: as asked, else with the context or batch that fits."""
    if standing.fits:
        return command_line(standing)
    question = standing.question
    for change in suggestions(standing):
        if change.helps and change.kind in ("context", "batch"):
            smaller = replace(question, context=change.max_context, batch=change.max_batch or 1)
            return command_line(stand(smaller))
    command_line(standing)  # an engine without a command line is said first
    return ""


def _assumed(standing: Standing) -> tuple[str, ...]:
    """Return what the division of a GPU's memory takes for granted."""
    setup, memory = standing.setup, standing.question.memory
    if isinstance(memory, KvMemory):
        return ()
    texts = []
    if memory.gpu.memory_basis != "measured":
        texts.append(f"{memory.gpu.name} hands out {format_bytes(memory.gpu.total_bytes)}: {memory.gpu.runtime_rule}")
    if setup.placement.ranks and setup.deployment.tp * setup.deployment.pp > 1:
        texts.append("weights on a rank are those of its share of the layers, split evenly over tp")
    if any(rank.budget is None for rank in standing.ranks):
        texts.append("the host's memory is enough for the layers that are not on a GPU")
    return tuple(texts)


def _served_weights(standing: Standing) -> tuple[str, ...]:
    """Return that a command line names the published checkpoint, where another format of the weights was asked for."""
    asked = standing.question.arguments.get("weights")
    return (f"the command names the published weights; serve a file or checkpoint in {asked}",) if asked else ()


def _warnings(standing: Standing) -> tuple[str, ...]:
    """Return what a user must know: a context that the engine lowers, too little beside its share."""
    question, setup = standing.question, standing.setup
    texts = []
    if standing.context != question.asked_context:
        asked = question.asked_context
        texts.append(f"{setup.engine.name} lowers the context from {asked:,} to {standing.context:,}")
    memory, local = question.memory, setup.placement.local_batch(question.batch)
    if isinstance(memory, Card) and setup.engine.name == "vllm" and local > memory.sequences:
        texts.append(
            f"vLLM runs {memory.sequences:,} sequences at once on this GPU; more take --max-num-seqs and larger "
            "activations, which are not counted"
        )
    budget = next((rank.budget for rank in standing.ranks if rank.budget), None)
    if budget is not None and budget.share != 1:
        outside = budget.overhead.total(inside=False)[1]
        if outside > budget.outside_bytes:
            texts.append(
                f"{format_bytes(outside)} are typically needed beside the engine's share of {float(budget.share):g}, "
                f"which leaves {format_bytes(budget.outside_bytes)}; lower --utilization"
            )
    return tuple(texts)


def helping(result: FitResult) -> str:
    """Return the first change that makes a deployment fit, in words; an empty string if there is none."""
    found = fewest(result.suggestions)
    return found.text if found else ""
