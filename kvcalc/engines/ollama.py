"""Ollama: llama.cpp's server as Ollama starts it, with as many tokens in every slot as `num_ctx` says.

Stated for Ollama commit fb307609 (2026-08-21), which runs llama.cpp b10488 as `-c num_ctx*np -np np -b B -ub B`.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from kvcalc.engines._base import Deployment, EngineOptions, EngineProfile
from kvcalc.engines._llama_cpp.cells import MAX_SLOTS, SlotRule
from kvcalc.engines._llama_cpp.deployment import (
    assumptions,
    choose_devices,
    choose_types,
    require_devices_only,
    type_names,
)
from kvcalc.engines._llama_cpp.log import log_lines
from kvcalc.engines._llama_cpp.placement import Memory, memory, place
from kvcalc.engines._llama_cpp.report import report
from kvcalc.engines._llama_cpp.settings import Settings
from kvcalc.errors import BadInput, UnsupportedByEngine
from kvcalc.footprint import Placement
from kvcalc.formats import Format
from kvcalc.spec.kinds import Heads
from kvcalc.spec.model import ModelSpec

# Architectures (llama.cpp's names) that Ollama serves in one slot, whatever OLLAMA_NUM_PARALLEL says.
_ONE_SLOT = ("qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe", "qwen3next", "lfm2", "lfm2moe", "nemotron_h")

# The batch on CUDA without flash attention, for GPUs of more than 8 GiB.
_BATCH_WITHOUT_FLASH_ATTENTION = 512


class Options(EngineOptions):
    """Options of Ollama: a model's parameters, and the environment's without `OLLAMA_`, in lower case."""

    num_ctx: Annotated[int, Field(ge=4, le=2**40)] | None = None
    """Tokens of one slot; omitted: the context. Never more than the model was trained for."""
    num_parallel: Annotated[int, Field(ge=1, le=MAX_SLOTS)] | None = None
    """Slots (OLLAMA_NUM_PARALLEL); omitted: the batch."""
    num_batch: Annotated[int, Field(ge=1, le=2**31)] | None = None
    """Tokens of a batch and of a micro-batch; omitted: Ollama's own choice by the tokens of all slots."""
    kv_cache_type: str | None = None
    """Type of K and of V (OLLAMA_KV_CACHE_TYPE): f16 q8_0 q4_0; omitted: --kv-dtype, else f16."""
    flash_attention: Literal["auto", "on", "off"] = "auto"
    """Flash attention (OLLAMA_FLASH_ATTENTION)."""
    num_gpu: Annotated[int, Field(ge=-1, le=10_000)] = -1
    """Layers on GPUs, counted from the last, the output included; -1: all."""
    device: str | None = None
    """Names of the GPUs as llama.cpp lists them: `CUDA0,CUDA1`."""


class Ollama(EngineProfile[Options]):
    """Ollama's way of running llama.cpp."""

    name: ClassVar[str] = "ollama"
    version: ClassVar[str] = "fb307609"
    summary: ClassVar[str] = "Ollama: llama.cpp's server, num_ctx tokens in each of num_parallel slots"
    options_class = Options

    def place(self, spec: ModelSpec, deployment: Deployment[Options]) -> Placement:
        """Return one rank per device; UnsupportedByEngine has the engine's own message where it has one."""
        return place(memory_of(spec, deployment), deployment.dp)

    def check(self, spec: ModelSpec, deployment: Deployment[Options], context: int, batch: int) -> None:
        """Raise BadInput for more sequences than slots, UnsupportedByEngine where Ollama gives the model one slot."""
        local, slots = -(-batch // deployment.dp), deployment.options.num_parallel
        name = memory_of(spec, deployment).plan.architecture.name
        if name in _ONE_SLOT and max(local, slots or 1) > 1:
            raise UnsupportedByEngine(f"Ollama serves {name} models in one slot, whatever num_parallel says")
        if local > (MAX_SLOTS if slots is None else slots):
            limit = f"{MAX_SLOTS} slots" if slots is None else f"num_parallel={slots}"
            raise BadInput(f"batch {batch:,} exceeds {limit}; a slot holds one sequence")
        num_ctx = deployment.options.num_ctx
        if num_ctx is not None and context > num_ctx:
            raise BadInput(f"context {context:,} exceeds num_ctx={num_ctx:,}; raise num_ctx or drop it")

    def report(
        self, spec: ModelSpec, deployment: Deployment[Options], context: int, batch: int, placement: Placement
    ) -> dict[str, Any]:
        """Return the engine's own figures of one replica, and what Ollama guesses before it loads the model."""
        found, rule = memory_of(spec, deployment), _rule(spec, deployment)
        sized = rule.context(context, placement.local_batch(batch))
        return {
            **report(spec, found, sized, context),
            "num_ctx": rule.slot_tokens(context),
            "num_parallel": sized.n_seq_max,
            "preload_estimate_bytes": preload_estimate(spec, found, rule.slot_tokens(context) * sized.n_seq_max),
            "held_bytes": placement.held_bytes(context, batch),
        }

    def log_lines(self, spec: ModelSpec, deployment: Deployment[Options], context: int, batch: int) -> tuple[str, ...]:
        """Return the lines that one replica's llama-server prints about its memory."""
        sized = _rule(spec, deployment).context(context, -(-batch // deployment.dp))
        return log_lines(spec, memory_of(spec, deployment), sized)

    def kv_dtype(self, deployment: Deployment[Options]) -> str:
        """Return the type of K and V in kvcalc's names, f16 unless something else is asked for."""
        return type_names(*_types(deployment))

    def weight_shares(self, spec: ModelSpec, deployment: Deployment[Options]) -> tuple[Fraction | None, ...]:
        """Return the share of the layers on every device; None for the CPU, whose memory is not a GPU's."""
        return memory_of(spec, deployment).layer_shares()

    def assumptions(self, spec: ModelSpec, deployment: Deployment[Options]) -> tuple[str, ...]:
        """Return what was taken for granted, with the option that changes it."""
        options, found = deployment.options, memory_of(spec, deployment)
        texts = assumptions(
            found,
            types_given=deployment.kv_given or options.kv_cache_type is not None,
            devices_named=options.device is not None,
            type_option="-o kv_cache_type=",
        )
        if spec.max_context is not None:
            texts += (f"num_ctx of at most {spec.max_context:,}: Ollama lowers it to the trained context",)
        if options.num_batch is None:
            texts += ("num_batch as Ollama chooses it where enough memory is free (-o num_batch= changes it)",)
        return texts


def memory_of(spec: ModelSpec, deployment: Deployment[Options]) -> Memory:
    """Return a model's memory; errors as for `place`."""
    return memory(spec, _settings(spec, deployment))


def _settings(spec: ModelSpec, deployment: Deployment[Options]) -> Settings:
    """Return what Ollama passes to llama-server."""
    options = deployment.options
    require_devices_only(deployment)
    type_k, type_v = _types(deployment)
    return Settings(
        _rule(spec, deployment),
        type_k,
        type_v,
        flash_attn=options.flash_attention,
        n_gpu_layers=options.num_gpu,
        devices=choose_devices(options.device, 0, deployment.pp, options.num_gpu),
    )


def _types(deployment: Deployment[Options]) -> tuple[Format, Format]:
    """Return the types of K and V, which Ollama cannot choose apart; BadInput if they differ."""
    written = deployment.options.kv_cache_type
    type_k, type_v = choose_types(deployment, written, written, "kv_cache_type")
    if type_k != type_v:
        raise BadInput(f"Ollama stores K and V in one type, not {type_names(type_k, type_v)}")
    return type_k, type_v


def _rule(spec: ModelSpec, deployment: Deployment[Options]) -> SlotRule:
    options = deployment.options
    num_batch = options.num_batch
    if num_batch is None and options.flash_attention == "off":
        num_batch = _BATCH_WITHOUT_FLASH_ATTENTION
    return SlotRule(
        num_ctx=options.num_ctx,
        num_parallel=options.num_parallel,
        num_batch=num_batch,
        max_context=spec.max_context,
    )


def preload_estimate(spec: ModelSpec, found: Memory, tokens: int) -> int | None:
    """Return the bytes that Ollama's PredictServerVRAM adds to the file's size for the cache, before loading.

    Always f16 and full attention with heads of hidden_size / heads: it knows neither key_length, nor windows, MLA,
    recurrent layers or the cache type. None for a model without attention heads.
    """
    kinds = [kind for layer in spec.layers for kind in layer.kinds if kind.attention_heads]
    heads = max((kind.attention_heads or 0 for kind in kinds), default=0)
    if not heads:
        return None
    kv_heads = [kind.kv_heads if isinstance(kind, Heads) else 1 for kind in kinds]
    attending = sum(any(kind.attention_heads for kind in layer.kinds) for layer in spec.layers)
    if attending < len(spec.layers) and not found.plan.architecture.kv_heads_in_every_layer:
        kv_heads.append(1)
    return 2 * len(spec.layers) * min(kv_heads) * (spec.file.hidden_size // heads) * tokens * 2


ENGINE = Ollama()
