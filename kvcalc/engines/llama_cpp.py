"""llama.cpp: every cell and every recurrent state is allocated when the context is created.

`admitted` is what llama.cpp allocates, `held` what the sequences' tokens need of it: the rows of their tokens (of the
window's tokens, where the layer has one), and the recurrent states whole. A rank is a device: the GPUs in order, then
the CPU if it holds any layer.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from kvcalc.engines._base import Deployment, EngineOptions, EngineProfile
from kvcalc.engines._llama_cpp.cells import MAX_SLOTS, PAD, TotalRule
from kvcalc.engines._llama_cpp.deployment import (
    assumptions,
    check_fits,
    choose_devices,
    choose_types,
    require_devices_only,
    type_names,
)
from kvcalc.engines._llama_cpp.log import log_lines
from kvcalc.engines._llama_cpp.placement import Memory, memory, place
from kvcalc.engines._llama_cpp.report import report
from kvcalc.engines._llama_cpp.settings import Settings, Version
from kvcalc.errors import BadInput
from kvcalc.footprint import Placement
from kvcalc.spec.model import ModelSpec

_Tokens = Annotated[int, Field(ge=0, le=2**40)]
_Layers = Annotated[int, Field(ge=-1, le=10_000)]
_FLASH_ATTN: dict[str, Literal["auto", "on", "off"]] = {
    "-1": "auto", "auto": "auto", "0": "off", "off": "off", "false": "off", "1": "on", "on": "on", "true": "on",
}  # fmt: skip


class Options(EngineOptions):
    """Options of llama.cpp, by its own names; defaults are llama-server's with an explicit `-np`."""

    n_ctx: _Tokens | None = None
    """Tokens of the whole context, all slots together; omitted: context x batch; 0: the trained context."""
    n_batch: Annotated[int, Field(ge=1, le=2**31)] = 2048
    """Tokens of a logical batch."""
    n_ubatch: Annotated[int, Field(ge=0, le=2**31)] = 512
    """Tokens of a micro-batch, which a window's cache has room for besides the window; 0: as n_batch."""
    n_seq_max: Annotated[int, Field(ge=1, le=MAX_SLOTS)] | None = None
    """Slots (`-np`); omitted: the batch."""
    n_rs_seq: Annotated[int, Field(ge=0, le=1024)] = 0
    """Copies of every recurrent state for going back when a draft is refused, besides the state itself."""
    kv_unified: bool = False
    """Whether all slots share one stream of cells (`-kvu`)."""
    swa_full: bool = False
    """Whether layers with a window get as many cells as the others (`--swa-full`)."""
    flash_attn: Literal["auto", "on", "off"] = "auto"
    """Flash attention: auto (-1), on (1) or off (0)."""
    type_k: str | None = None
    """Type of K: f32 f16 bf16 q8_0 q5_1 q5_0 q4_1 q4_0 iq4_nl; omitted: --kv-dtype, else f16."""
    type_v: str | None = None
    """Type of V, likewise."""
    n_gpu_layers: _Layers = -1
    """Layers on GPUs, counted from the last, the output included (`-ngl`); -1: all."""
    ngl: _Layers | None = None
    """Short for n_gpu_layers."""
    tensor_split: str | None = None
    """Parts of the layers by GPU: `3,1`; omitted: equal parts."""
    device: str | None = None
    """Names of the GPUs as llama.cpp lists them: `CUDA0,CUDA1`; omitted: CUDA devices, as other options imply."""
    offload_kqv: bool = True
    """Whether the cache lies with its layer; false: all of it in the CPU's memory."""
    no_kv_offload: bool = False
    """The same the other way round (`--no-kv-offload`)."""
    nextn_predict_layers: Annotated[int, Field(ge=0, le=100)] = 0
    """Layers for multi-token prediction in the file: no cache here, but they count for n_gpu_layers."""
    mla: bool = True
    """Whether the file has MLA's keys (key_length_mla, value_length_mla); without them every head is cached."""
    n_outputs_max: _Tokens | None = None
    """Tokens of a micro-batch with logits; omitted: the slots, as in llama-server; 0: all of them."""
    feed_forward_length: Annotated[int, Field(ge=1, le=2**24)] | None = None
    """Width of the feed-forward network, which the compute buffer depends on; omitted: the spec's."""
    engine_version: Version = "2026-10"
    """Whose rules: commit 0c1e5709 of 2026-10, or 2025-08 (commit 4227c9be)."""

    @field_validator("flash_attn", mode="before")
    @classmethod
    def _read_flash_attn(cls, value: object) -> object:
        text = str(value).lower()
        if text not in _FLASH_ATTN:
            raise ValueError("must be auto, on or off (-1, 1 or 0)")
        return _FLASH_ATTN[text]

    @field_validator("ngl")
    @classmethod
    def _check_ngl(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and info.data.get("n_gpu_layers", -1) not in (-1, value):
            raise ValueError(f"contradicts n_gpu_layers={info.data['n_gpu_layers']}")
        return value

    @field_validator("tensor_split")
    @classmethod
    def _check_tensor_split(cls, text: str | None) -> str | None:
        if text is not None and not sum(_parts(text)) > 0:
            raise ValueError("must be numbers of which one is above 0, for example 3,1")
        return text

    @property
    def split(self) -> tuple[float, ...]:
        """The parts of `tensor_split`."""
        return _parts(self.tensor_split) if self.tensor_split else ()


def _parts(text: str) -> tuple[float, ...]:
    """Return the numbers of a tensor split; ValueError for anything but finite numbers from 0 on."""
    parts = tuple(float(part) for part in text.replace("/", ",").split(","))
    if any(not 0 <= part < 2**31 for part in parts):
        raise ValueError("must be numbers from 0 on, for example 3,1")
    return parts


class LlamaCpp(EngineProfile[Options]):
    """llama.cpp's server with an explicit number of slots."""

    name: ClassVar[str] = "llama.cpp"
    version: ClassVar[str] = "0c1e5709"
    summary: ClassVar[str] = "llama.cpp: cells of all slots allocated at start, in whole groups of 256"
    options_class = Options

    def place(self, spec: ModelSpec, deployment: Deployment[Options]) -> Placement:
        """Return one rank per device; UnsupportedByEngine has the engine's own message where it has one."""
        return place(memory_of(spec, deployment), deployment.dp)

    def check(self, spec: ModelSpec, deployment: Deployment[Options], context: int, batch: int) -> None:
        """Raise BadInput for more sequences than slots, or tokens than cells."""
        check_fits(_rule(spec, deployment.options), context, -(-batch // deployment.dp))

    def report(
        self, spec: ModelSpec, deployment: Deployment[Options], context: int, batch: int, placement: Placement
    ) -> dict[str, Any]:
        """Return the engine's own figures, those of one replica; `held_bytes` counts all replicas."""
        found = memory_of(spec, deployment)
        sized = found.settings.rule.context(context, placement.local_batch(batch))
        return {**report(spec, found, sized, context), "held_bytes": placement.held_bytes(context, batch)}

    def log_lines(self, spec: ModelSpec, deployment: Deployment[Options], context: int, batch: int) -> tuple[str, ...]:
        """Return the lines that one replica prints about its memory."""
        found = memory_of(spec, deployment)
        return log_lines(spec, found, found.settings.rule.context(context, -(-batch // deployment.dp)))

    def kv_dtype(self, deployment: Deployment[Options]) -> str:
        """Return the types of K and V in kvcalc's names, f16 unless something else is asked for."""
        return type_names(*choose_types(deployment, deployment.options.type_k, deployment.options.type_v))

    def weight_shares(self, spec: ModelSpec, deployment: Deployment[Options]) -> tuple[Fraction | None, ...]:
        """Return the share of the layers on every device; None for the CPU, whose memory is not a GPU's."""
        return memory_of(spec, deployment).layer_shares()

    def assumptions(self, spec: ModelSpec, deployment: Deployment[Options]) -> tuple[str, ...]:
        """Return what was taken for granted, with the option that changes it."""
        options = deployment.options
        types_given = deployment.kv_given or options.type_k is not None or options.type_v is not None
        devices_named = options.device is not None
        return assumptions(memory_of(spec, deployment), types_given=types_given, devices_named=devices_named)


def memory_of(spec: ModelSpec, deployment: Deployment[Options]) -> Memory:
    """Return a model's memory; errors as for `place`."""
    return memory(spec, _settings(spec, deployment))


def _settings(spec: ModelSpec, deployment: Deployment[Options]) -> Settings:
    """Return the deployment in llama.cpp's terms; BadInput where options contradict each other."""
    options = deployment.options
    require_devices_only(deployment)
    type_k, type_v = choose_types(deployment, options.type_k, options.type_v)
    n_gpu_layers = options.n_gpu_layers if options.ngl is None else options.ngl
    return Settings(
        _rule(spec, options),
        type_k,
        type_v,
        options.flash_attn,
        options.n_rs_seq,
        options.offload_kqv and not options.no_kv_offload,
        n_gpu_layers,
        options.split,
        choose_devices(options.device, len(options.split), deployment.pp, n_gpu_layers),
        options.nextn_predict_layers,
        options.n_outputs_max,
        options.feed_forward_length,
        options.mla,
        options.engine_version,
    )


def _rule(spec: ModelSpec, options: Options) -> TotalRule:
    """Return the options that decide how many cells there are; in August 2025 flash attention had a say."""
    old = options.engine_version == "2025-08"
    return TotalRule(
        options.kv_unified,
        options.swa_full,
        32 if old and options.flash_attn == "off" else PAD,
        _total_context(spec, options.n_ctx),
        options.n_seq_max,
        options.n_batch,
        options.n_ubatch,
    )


def _total_context(spec: ModelSpec, n_ctx: int | None) -> int | None:
    """Return n_ctx, 0 read as the trained context."""
    if n_ctx != 0:
        return n_ctx
    if spec.max_context is None:
        raise BadInput(f"n_ctx=0 means the trained context, which the spec of {spec.name} does not give")
    return spec.max_context


ENGINE = LlamaCpp()
