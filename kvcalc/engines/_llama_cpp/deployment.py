"""From kvcalc's deployment to llama.cpp's settings: types, devices, and what the two must not contradict."""

from __future__ import annotations

from typing import Any

from kvcalc.engines._base import Deployment
from kvcalc.engines._llama_cpp.cells import MAX_SLOTS, TotalRule
from kvcalc.engines._llama_cpp.placement import Memory
from kvcalc.engines._llama_cpp.settings import require_cache_type
from kvcalc.errors import BadInput, UnsupportedByEngine
from kvcalc.formats import Format, find_format

DEFAULT_TYPE = "fp16"


def require_devices_only(deployment: Deployment[Any]) -> None:
    """Raise UnsupportedByEngine for parallelism that llama.cpp has not: it gives whole layers to devices."""
    for name in ("tp", "dcp"):
        if getattr(deployment, name) > 1:
            raise UnsupportedByEngine(
                f"llama.cpp gives whole layers to its devices: use --pp N or -o tensor_split= instead of --{name}"
            )


def choose_types(
    deployment: Deployment[Any], type_k: str | None, type_v: str | None, option: str | None = None
) -> tuple[Format, Format]:
    """Return the types of K and V: an option, else --kv-dtype, else f16 whatever the model's own.

    The options are called type_k and type_v unless `option` names one for both.

    BadInput if both are given and differ; UnsupportedByEngine for a type that llama.cpp's cache does not take.
    """
    chosen = []
    sides = (("type_k", type_k, deployment.kv[0]), ("type_v", type_v, deployment.kv[1]))
    for side, written, given in sides:
        name = option or side
        stored = given if deployment.kv_given else find_format(DEFAULT_TYPE)
        if written is not None:
            stored = find_format(written, name)
            if deployment.kv_given and stored != given:
                raise BadInput(f"{name}={written} contradicts --kv-dtype {given.name}; give one of them")
        require_cache_type(stored)
        chosen.append(stored)
    return chosen[0], chosen[1]


def type_names(type_k: Format, type_v: Format) -> str:
    """Return the types as reports name them: `fp16`, or `q8_0/q4_0` where K and V differ."""
    return type_k.name if type_k == type_v else f"{type_k.name}/{type_v.name}"


def choose_devices(named: str | None, parts: int, pp: int, n_gpu_layers: int) -> tuple[str, ...]:
    """Return the names of the GPUs: as given, else CUDA0, CUDA1 ... as many as the split or --pp has.

    None at all where nothing speaks of a GPU: everything then lies in one memory, called CPU. BadInput where the
    counts contradict each other.
    """
    count = parts or (pp if pp > 1 else 0)
    if pp > 1 and parts not in (0, pp):
        raise BadInput(f"--pp {pp} contradicts a tensor_split of {parts} parts")
    if named is not None:
        names = () if named == "none" else tuple(name.strip() for name in named.split(","))
        if "" in names or len(set(names)) < len(names):
            raise BadInput(f"device={named} must be different names, for example CUDA0,CUDA1")
        if count > len(names):
            raise BadInput(f"device={named} has {len(names)} names for {count} parts")
        return names
    if not count and n_gpu_layers >= 0:
        count = 1
    return tuple(f"CUDA{number}" for number in range(count))


def check_fits(rule: TotalRule, context: int, batch: int) -> None:
    """Raise BadInput for more sequences than slots (at most 256), or more tokens than a given n_ctx has cells."""
    slots = rule.n_seq_max
    if slots is not None and batch > slots:
        raise BadInput(f"batch {batch:,} exceeds n_seq_max={slots}; a slot holds one sequence")
    if slots is None and batch > MAX_SLOTS:
        raise BadInput(f"batch {batch:,}: llama.cpp answers 'n_seq_max must be <= {MAX_SLOTS}'; use --dp for replicas")
    if rule.n_ctx is None:
        return
    cells = rule.context(context, batch).n_ctx
    if context * batch > cells:
        asked = f"context {context:,} for {batch:,} sequences"
        raise BadInput(f"{asked} exceeds the {cells:,} cells of n_ctx={rule.n_ctx:,}; raise n_ctx or drop it")


def assumptions(
    found: Memory, *, types_given: bool, devices_named: bool, type_option: str = "--kv-dtype"
) -> tuple[str, ...]:
    """Return what was taken for granted, one sentence each."""
    settings, architecture = found.settings, found.plan.architecture
    texts = []
    if not types_given and found.plan.caches:
        texts.append(f"cache type f16, llama.cpp's default ({type_option} changes it)")
    if settings.devices and not devices_named:
        texts.append(f"devices called {','.join(settings.devices)} (-o device= changes it)")
    if len(settings.devices) > 1 and not settings.tensor_split:
        texts.append("equal parts of the layers, as between GPUs with equal free memory (-o tensor_split= changes it)")
    if any(layer.k.role == "latent" for cache in found.plan.caches for layer in cache.layers):
        texts.append("the file has MLA's keys and the latent alone is cached (-o mla=false: files made before them)")
    if settings.n_rs_seq and not architecture.rollback and found.plan.recurrent:
        texts.append(f"n_rs_seq {settings.n_rs_seq} has no effect: {architecture.name} keeps no copies of its states")
    if found.plan.states and not settings.offload_kqv:
        texts.append("recurrent states stay in the CPU's memory with the cache")
    return tuple(texts)
