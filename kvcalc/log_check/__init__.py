"""What an engine's log printed about its cache, held against the prediction, figure by figure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from kvcalc.errors import BadInput, KvcalcError
from kvcalc.log_check import llama_cpp, sglang, tensorrt_llm, vllm
from kvcalc.log_check.figures import Figure
from kvcalc.log_check.result import LogCheck
from kvcalc.log_check.settings import Given, Settings
from kvcalc.measure.log import LLAMA_CPP, OLLAMA, SGLANG, TENSORRT_LLM, VLLM, Log, read_log

__all__ = ["Figure", "Given", "LogCheck", "check", "check_file"]

_ENGINES: dict[str, ModuleType] = {
    VLLM: vllm,
    SGLANG: sglang,
    TENSORRT_LLM: tensorrt_llm,
    LLAMA_CPP: llama_cpp,
    OLLAMA: llama_cpp,
}
# More than one explanation helps nobody; of many the first are shown.
_MOST_EXPLANATIONS = 2


def check_file(path: str | Path, given: Given | None = None) -> LogCheck:
    """Return the figures of a log file beside the prediction; what the user gives goes before what the log says.

    BadInput if the file cannot be read, no engine's figures are in it, or its model cannot be told.
    """
    return check(read_log(Path(path)), given or Given(), str(path))


def check(log: Log, given: Given, where: str = "the log") -> LogCheck:
    """Return the figures of a log beside the prediction, with what would explain those that differ."""
    engine = _engine(log, given, where)
    reader = _ENGINES[engine]
    settings, notes = reader.settings(log, given)
    setup = settings.setup()
    found = tuple(sorted(reader.figures(log, settings), key=lambda figure: figure.line))
    explained = tuple(_explained(log, reader, settings, found))
    runner = "" if engine == setup.engine.name else f"(by {setup.engine.name}) "
    dropped = (f"{log.dropped:,} more lines like those compared were not looked at",) if log.dropped else ()
    return LogCheck(
        model=settings.model.name,
        engine=engine,
        engine_version=f"{runner}{setup.engine.version}",
        kv_dtype=setup.kv_dtype,
        settings=settings.to_json(),
        figures=explained,
        assumptions=(*notes, *setup.assumptions),
        warnings=dropped,
    )


def _engine(log: Log, given: Given, where: str) -> str:
    """Return the engine whose figures are compared: the user's choice, or the one that says most."""
    found = log.engines
    if not found:
        raise BadInput(f"{where}: no line of vLLM, SGLang, TensorRT-LLM, llama.cpp or Ollama about a cache")
    if given.engine is None:
        return found[0]
    if given.engine not in found:
        raise BadInput(f"{where}: no line of {given.engine} about a cache, but of {' and '.join(found)}")
    return given.engine


def _explained(log: Log, reader: ModuleType, settings: Settings, found: tuple[Figure, ...]) -> Iterator[Figure]:
    """Yield the figures, those that differ with the neighbouring settings under which they would not."""
    if all(figure.verdict != "differs" for figure in found):
        yield from found
        return
    others: list[tuple[str, dict[tuple[str, int], Figure]]] = []
    for words, other in reader.neighbours(settings):
        try:
            made = {(figure.name, figure.line): figure for figure in reader.figures(log, other)}
        except KvcalcError:
            continue  # settings that this model or engine cannot have explain nothing
        others.append((words, made))
    for figure in found:
        agreeing = [words for words, made in others if _agrees(made.get((figure.name, figure.line)))]
        if figure.verdict == "differs" and agreeing:
            yield figure.noting(f"would agree with {', or '.join(agreeing[:_MOST_EXPLANATIONS])}")
        else:
            yield figure


def _agrees(figure: Figure | None) -> bool:
    return figure is not None and figure.agrees
