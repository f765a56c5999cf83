"""A model placed on an engine: everything but the context and the batch, which every question then asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvcalc.engines import find_engine
from kvcalc.engines._base import Deployment, EngineProfile
from kvcalc.errors import BadInput
from kvcalc.footprint import Placement
from kvcalc.formats import find_format, find_kv_formats
from kvcalc.hardware.weights import find_mix, weights_bytes, weights_format_name
from kvcalc.spec.kinds import Cross
from kvcalc.spec.load import find, load_file
from kvcalc.spec.model import ModelSpec
from kvcalc.spec.resolve import with_encoder_context
from kvcalc.units import MAX_TOKENS

MAX_RANKS = 4096


@dataclass(frozen=True)
class Setup:
    """A model on an engine: everything but the context and the batch."""

    spec: ModelSpec
    engine: EngineProfile[Any]
    deployment: Deployment[Any]
    placement: Placement
    weights_format: str
    weights_from_file: bool
    assumptions: tuple[str, ...]

    @property
    def kv_dtype(self) -> str:
        """The cache's format: `fp16`, or `q8_0/q4_0` where K and V differ."""
        return self.engine.kv_dtype(self.deployment)

    def weights_bytes(self) -> int | None:
        """Return the bytes of one copy of the weights; None if the number of parameters is unknown.

        They are those of the file that the model was read from, unless a format was asked for.
        """
        found = self.weights_range()
        return None if found is None else found[1]

    def weights_range(self) -> tuple[int, int, int] | None:
        """Return (low, typical, high) bytes of one copy of the weights, which differ where the format is a mix.

        None if the number of parameters is unknown. A mix of which some formats keep embedding and output head in 16
        bits counts both, or one where the spec says that they are tied.
        """
        if self.weights_from_file:
            size = self.spec.weights_bytes
            return None if size is None else (size, size, size)
        if self.spec.parameters is None:
            return None
        low, typical, high, _ = weights_bytes(
            self.spec.parameters,
            self.weights_format,
            self._embeddings(),
            tied=self.spec.file.tie_word_embeddings,
            hidden_size=self.spec.file.hidden_size,
        )
        return low, typical, high

    @property
    def weights_exact(self) -> bool:
        """Whether the format stores every weight alike, so that the bytes are exact."""
        return self.weights_from_file or find_mix(self.weights_format) is None

    def _embeddings(self) -> int | None:
        """Return the weights of the token embedding and the output head; None where the spec does not give them."""
        file = self.spec.file
        if file.vocab_size is None or file.tie_word_embeddings is None:
            return None
        return file.vocab_size * file.hidden_size * (1 if file.tie_word_embeddings else 2)


def load(model: str | Path, *, download: bool = False) -> ModelSpec:
    """Return the ModelSpec of a name or alias (`kvcalc models` lists them), a file, a folder, or `hf:org/name`.

    Files are YAML specs, Hugging Face configs, GGUF or safetensors; `hf:` reads the local Hugging Face cache, and the
    network with `download`. BadInput for an unknown name or missing file, SpecError for a faulty one.
    """
    text = str(model)
    if text.startswith("hf:"):
        from kvcalc.read.model_files import read_hub_model

        return read_hub_model(text, download=download)
    path = find(text)
    if path.suffix in (".yaml", ".yml") and not path.is_dir():
        return load_file(path)
    from kvcalc.read.model_files import is_foreign, read_model

    return read_model(path) if is_foreign(path) else load_file(path)


def prepare(
    model: str | Path | ModelSpec,
    *,
    engine: str = "ideal",
    dtype: str | None = None,
    kv_dtype: str | None = None,
    weights: str | None = None,
    tp: int = 1,
    pp: int = 1,
    dp: int = 1,
    dcp: int = 1,
    encoder_context: int | None = None,
    options: Mapping[str, object] | None = None,
    download: bool = False,
) -> Setup:
    """Return a model placed on an engine, ready to be evaluated at any context and batch.

    `dtype` replaces the model's published element format, `kv_dtype` (`F` or `K/V`) the cache's, `weights` the
    weights'. `options` are the engine's own, by its own names. BadInput for an unknown name or a value out of range,
    UnsupportedByEngine where the engine (or a format, or a kind) cannot do what is asked.
    """
    spec = model if isinstance(model, ModelSpec) else load(model, download=download)
    for name, value in (("tp", tp), ("pp", pp), ("dp", dp), ("dcp", dcp)):
        require_range(name, value, MAX_RANKS)
    require_range("tp * pp * dp", tp * pp * dp, MAX_RANKS)
    profile = find_engine(engine)
    parsed = profile.parse_options({key: str(value) for key, value in (options or {}).items() if value is not None})
    stored = find_format(dtype or spec.dtype, "dtype")
    kv = find_kv_formats(kv_dtype) if kv_dtype else (stored, stored)
    deployment = Deployment(stored, kv, parsed, tp, pp, dp, dcp, kv_given=kv_dtype is not None)
    if encoder_context is not None:
        _require_cross(spec)
        spec = with_encoder_context(spec, encoder_context)
    placement = profile.place(spec, deployment)
    weights_format = weights_format_name(weights or stored.name)
    mix = find_mix(weights_format)
    from_file = weights is None and spec.weights_bytes is not None
    typical = () if mix is None else (mix.remark,)
    assumptions = _assumptions(spec, dtype, encoder_context) + typical + profile.assumptions(spec, deployment)
    return Setup(spec, profile, deployment, placement, weights_format, from_file, assumptions)


def check(setup: Setup, context: int, batch: int) -> None:
    """Raise BadInput for a context or batch out of range, or one that the engine's options contradict."""
    require_range("context", context, MAX_TOKENS)
    require_range("batch", batch, MAX_TOKENS)
    setup.engine.check(setup.spec, setup.deployment, context, batch)


def warnings(spec: ModelSpec, context: int) -> tuple[str, ...]:
    """Return what a user must know about this context, one sentence each."""
    if spec.max_context is None or context <= spec.max_context:
        return ()
    return (f"{spec.name} was trained for {spec.max_context:,} positions; context {context:,} is beyond them",)


def _assumptions(spec: ModelSpec, dtype: str | None, encoder_context: int | None) -> tuple[str, ...]:
    """Return the spec's assumptions that the user has not replaced."""
    found = []
    for name in spec.file.assumed:
        if (name == "dtype" and dtype) or (name == "encoder_context" and encoder_context is not None):
            continue
        value = getattr(spec.file, name)
        option = {"dtype": " (--dtype changes it)", "encoder_context": " (--encoder-ctx changes it)"}.get(name, "")
        found.append(f"{name} {value}: the source of {spec.name} does not give it{option}")
    return tuple(found)


def require_range(name: str, value: int, limit: int) -> None:
    """Raise BadInput unless `value` is a whole number with 1 <= value <= limit."""
    if type(value) is not int:
        raise BadInput(f"{name} must be a whole number, not {value!r}")
    if not 1 <= value <= limit:
        raise BadInput(f"{name} must be between 1 and {limit:,}, not {value:,}")


def _require_cross(spec: ModelSpec) -> None:
    if not any(isinstance(group.kind, Cross) for group in spec.groups()):
        raise BadInput(f"{spec.name} has no cross-attention layers; drop the encoder context")
