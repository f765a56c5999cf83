"""What llama.cpp itself creates: its library loads a model by metadata alone and prints the sizes of its memory.

`llama_model_params.no_alloc` makes the library simulate weights and cache, so that real hyper-parameters cost nothing;
only recurrent states are really allocated. The library ends the whole process where it meets what it does not expect,
so it runs in a process of its own: this module, started with `-m`. llama_cpp is imported inside functions.
"""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kvcalc.engines._llama_cpp.cells import Context
from kvcalc.engines._llama_cpp.log import log_lines
from kvcalc.engines._llama_cpp.placement import Memory
from kvcalc.errors import KvcalcError, MissingExtra, UnsupportedByEngine
from kvcalc.read.gguf import read_header
from kvcalc.spec.kinds import Chunked, Compressed, Heads, Indexer, Kind, Shared, Sliding, State
from kvcalc.spec.kinds.mla import Mla
from kvcalc.spec.kinds.state import GatedDeltaNet, Kda, Mamba1, Mamba2, Rwkv, ShortConv
from kvcalc.spec.model import ModelSpec

PURPOSE = "validate --engine llama.cpp"
TIMEOUT_SECONDS = 120

Value = int | float | bool | str | list[int] | list[float] | list[bool]

# ggml's type ids of the cache types.
_TYPE_IDS = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "iq4_nl": 20, "bf16": 30}

# The lines about memory; sizes of K and V buffers read 0.00 where nothing is allocated.
_MEMORY_LINE = re.compile(
    r"llama_kv_cache(?!: (attn_rot|layer|reusing|- ))|llama_memory_recurrent: (?!layer)|"
    r"llama_context:.* output buffer|llama_dsv4_comp_state: (?!layer)"
)
_SIMULATED = re.compile(r"(KV buffer size = ).*")
_NOTICES = re.compile(r"using full-size SWA cache")
_REFUSAL = re.compile(r"llama_init_from_model: (?!enabling|flash_attn is not compatible)|llama_model_load: error")


@dataclass(frozen=True)
class Comparison:
    """The lines that were predicted and those that the library printed, buffers of simulated caches without sizes."""

    predicted: tuple[str, ...]
    printed: tuple[str, ...]
    library: str

    @property
    def equal(self) -> bool:
        """Whether the two agree, character by character."""
        return self.predicted == self.printed


def compare(spec: ModelSpec, found: Memory, context: Context) -> Comparison:
    """Return what llama.cpp prints for this memory beside what the profile predicts.

    MissingExtra without llama-cpp-python; UnsupportedByEngine with the library's own words where it refuses;
    KvcalcError where it breaks off.
    """
    if find_spec("llama_cpp") is None:
        raise MissingExtra("llamacpp", PURPOSE)
    settings = found.settings
    request = {
        "metadata": metadata(spec, found),
        "parameters": {
            **{name: getattr(context, name) for name in ("n_ctx", "n_batch", "n_ubatch", "n_seq_max")},
            "n_rs_seq": settings.n_rs_seq,
            "kv_unified": context.unified,
            "swa_full": settings.rule.swa_full,
            "flash_attn_type": {"auto": -1, "off": 0, "on": 1}[settings.flash_attn],
            "type_k": _TYPE_IDS[settings.k_name],
            "type_v": _TYPE_IDS[settings.v_name],
        },
    }
    # The library runs on the CPU alone here: devices are a matter of arithmetic.
    on_cpu = replace(found, settings=replace(settings, devices=()), layer_devices=("CPU",) * found.plan.layers)
    answer = run(request)
    predicted = tuple(_SIMULATED.sub(r"\1", line) for line in log_lines(spec, on_cpu, context))
    return Comparison(predicted, tuple(answer["lines"]), answer["library"])


def run(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the library answers in a process of its own: its version and the lines about memory."""
    environment = {**os.environ, "GGML_NO_BACKTRACE": "1"}
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "kvcalc.measure.llama_cpp"],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=TIMEOUT_SECONDS,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise KvcalcError(f"llama.cpp did not answer within {TIMEOUT_SECONDS} seconds") from None
    lines = ended.stdout.splitlines()
    if ended.returncode or not lines:
        found = re.search(r"GGML_ASSERT.*|\w*Error.*", ended.stderr)
        reason = found[0] if found else "it gave no reason"
        raise KvcalcError(f"llama.cpp broke off (exit code {ended.returncode}): {reason}")
    answer: dict[str, Any] = json.loads(lines[-1])
    if answer["refusal"]:
        raise UnsupportedByEngine(answer["refusal"])
    return answer


# --- A model by its metadata ------------------------------------------------------------------------------------------

# Keys that some architectures insist on and that the memory does not depend on.
_FILLERS: dict[str, Value] = {
    "feed_forward_length": 256,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.layer_norm_epsilon": 1e-5,
    "attention.clamp_kqv": 8.0,
    "attention.relative_buckets_count": 32,
    "attention.q_lora_rank": 64,
    "attention.indexer.head_count": 4,
    "attention.indexer.top_k": 16,
    "attention.indexer.block_size": 128,
    "attention.indexer.local_blocks": 1,
    "attention.output_group_count": 8,
    "attention.output_lora_rank": 32,
    "attention.compress_rope_freq_base": 160000.0,
    "attention.decay_lora_rank": 64,
    "attention.iclr_lora_rank": 64,
    "attention.value_residual_mix_lora_rank": 32,
    "attention.gate_lora_rank": 128,
    "decoder_start_token_id": 0,
    "embedding_length_per_layer_input": 0,
    "expert_count": 4,
    "expert_used_count": 2,
    "expert_feed_forward_length": 64,
    "expert_shared_count": 1,
    "expert_shared_feed_forward_length": 64,
    "expert_gating_func": 2,
    "expert_weights_norm": True,
    "expert_weights_scale": 1.0,
    "hash_layer_count": 0,
    "hyper_connection.count": 4,
    "hyper_connection.epsilon": 1e-6,
    "hyper_connection.sinkhorn_iterations": 2,
    "interleave_moe_layer_step": 1,
    "leading_dense_block_count": 0,
    "logit_scale": 1.0,
    "moe_every_n_layers": 1,
    "n_deepstack_layers": 3,
    "rescale_every_n_layers": 0,
    "residual_scale": 1.0,
    "swiglu_clamp_exp": 10.0,
    "time_decay_extra_dim": 64,
    "time_mix_extra_dim": 32,
    "use_parallel_residual": True,
}
_SQRT_SOFTPLUS = 4
_SECTIONED = ("qwen2vl", "qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe")


def metadata(spec: ModelSpec, found: Memory) -> dict[str, Value]:
    """Return the metadata of a GGUF file of this model, without tensors, as llama.cpp reads it.

    A model that was read from a GGUF file keeps that file's own keys; only the vocabulary is left out.
    """
    if spec.origin.endswith(".gguf"):
        return _own_metadata(Path(spec.origin), spec)
    arch, layers = found.plan.architecture.name, spec.layers
    keys: dict[str, Value] = {
        **_FILLERS,
        "context_length": spec.max_context or 4096,
        "embedding_length": spec.file.hidden_size,
        "block_count": len(layers),
        "decoder_block_count": len(layers),
        "vocab_size": spec.file.vocab_size or 32000,
    }
    by_name = {group.name: group.kind for group in spec.groups()}
    attention = [_attention([_owner(kind, by_name) for kind in layer.kinds]) for layer in layers]
    keys |= _heads(attention, found)
    keys |= _windows(attention, spec, found)
    for kind in by_name.values():
        keys |= _state_keys(kind)
    keys |= _extras(spec, arch)
    if arch in _SECTIONED:
        keys["rope.dimension_sections"] = [11, 11, 10, 0]
    return {
        "general.architecture": arch,
        "general.name": spec.name,
        "tokenizer.ggml.model": "no_vocab",
        **{f"{arch}.{key}": value for key, value in keys.items()},
    }


def _own_metadata(path: Path, spec: ModelSpec) -> dict[str, Value]:
    header = read_header(path)
    arch = header.architecture or ""
    own = {key: value for key, value in header.metadata.items() if key.startswith(f"{arch}.")}
    kept: dict[str, Value] = {key: list(value) if isinstance(value, tuple) else value for key, value in own.items()}
    if spec.file.vocab_size is not None:
        kept[f"{arch}.vocab_size"] = spec.file.vocab_size
    return {"general.architecture": arch, "general.name": spec.name, "tokenizer.ggml.model": "no_vocab", **kept}


def _owner(kind: Kind, by_name: Mapping[str, Kind]) -> Kind:
    return by_name[kind.of] if isinstance(kind, Shared) else kind


def _attention(kinds: Sequence[Kind]) -> Kind | None:
    """Return the kind of a layer that has keys and values; None for a layer without attention."""
    return next((kind for kind in kinds if isinstance(kind, Heads | Mla | Compressed)), None)


def _heads(attention: Sequence[Kind | None], found: Memory) -> dict[str, Value]:
    """Return the keys about heads, per layer where layers differ."""
    attending = [kind for kind in attention if kind is not None]
    if not attending:
        return {"attention.head_count": 0}
    latent = found.plan.architecture.latent and found.settings.latent
    kv_heads = [_kv_heads(kind, latent) for kind in attention]
    if found.plan.architecture.kv_heads_in_every_layer:
        kv_heads = [max(kv_heads)] * len(kv_heads)
    heads = [kind.attention_heads or 0 if kind is not None else attending[0].attention_heads or 0 for kind in attention]
    keys: dict[str, Value] = {"attention.head_count": _one(heads), "attention.head_count_kv": _one(kv_heads)}
    plain = [kind for kind in attending if not isinstance(kind, Sliding | Chunked)] or attending
    key, value = _head_dims(plain[0], latent)
    windowed = [kind for kind in attending if isinstance(kind, Sliding)]
    keys |= {"attention.key_length": key, "attention.value_length": value, "rope.dimension_count": key}
    if windowed and _head_dims(windowed[0], latent) != (key, value):
        key_swa, value_swa = _head_dims(windowed[0], latent)
        keys |= {"attention.key_length_swa": key_swa, "attention.value_length_swa": value_swa}
        keys["rope.dimension_count_swa"] = key_swa
    first = plain[0]
    if isinstance(first, Mla):
        keys |= {"attention.kv_lora_rank": first.kv_lora_rank, "rope.dimension_count": first.qk_rope_head_dim}
        if latent:
            expanded = (first.qk_nope_head_dim or 0) + first.qk_rope_head_dim
            keys |= {"attention.key_length_mla": expanded, "attention.value_length_mla": first.v_head_dim or 0}
    return keys


def _one(values: list[int]) -> int | list[int]:
    return values[0] if len(set(values)) == 1 else values


def _kv_heads(kind: Kind | None, latent: bool) -> int:
    if isinstance(kind, Heads):
        return kind.kv_heads
    if isinstance(kind, Mla):
        return 1 if latent else kind.heads
    return 1 if kind is not None else 0


def _head_dims(kind: Kind, latent: bool) -> tuple[int, int]:
    if isinstance(kind, Mla):
        if latent:
            return kind.kv_lora_rank + kind.qk_rope_head_dim, kind.kv_lora_rank
        return (kind.qk_nope_head_dim or 0) + kind.qk_rope_head_dim, kind.v_head_dim or 0
    if isinstance(kind, Heads):
        return kind.head_dim, kind.value_dim or kind.head_dim
    assert isinstance(kind, Compressed)
    return kind.head_dim, kind.head_dim


def _windows(attention: Sequence[Kind | None], spec: ModelSpec, found: Memory) -> dict[str, Value]:
    """Return the window and its pattern, and the layers that read another's keys and values."""
    windows = [kind.window for kind in attention if isinstance(kind, Sliding | Compressed)]
    keys: dict[str, Value] = {}
    if windows and found.plan.architecture.fixed_window is None:
        keys["attention.sliding_window"] = windows[0]
    if windows and found.plan.architecture.memory == "attention":
        keys["attention.sliding_window_pattern"] = [isinstance(kind, Sliding) for kind in attention]
    shared = sum(any(isinstance(kind, Shared) for kind in layer.kinds) for layer in spec.layers)
    if shared:
        keys["attention.shared_kv_layers"] = shared
    return keys


def _state_keys(kind: Kind) -> dict[str, Value]:
    """Return the keys about a recurrent state or an indexer; none for other kinds."""
    match kind:
        case Mamba1():
            return _ssm(kind.conv_kernel, kind.channels, kind.state_size, max(kind.channels // 64, 1), None)
        case Mamba2():
            inner = kind.state_heads * kind.state_head_dim
            return _ssm(kind.conv_kernel, inner, kind.state_size, kind.state_heads, kind.groups)
        case GatedDeltaNet():
            inner = kind.value_heads * kind.value_head_dim
            return _ssm(kind.conv_kernel, inner, kind.key_head_dim, kind.value_heads, kind.key_heads)
        case Kda():
            return {"ssm.conv_kernel": kind.conv_kernel, "kda.head_dim": kind.state_head_dim}
        case Rwkv():
            return {"wkv.head_size": kind.state_head_dim}
        case ShortConv():
            return {"shortconv.l_cache": kind.conv_kernel}
        case Indexer():
            return {"attention.indexer.key_length": kind.index_head_dim}
    return {}


def _ssm(kernel: int, inner: int, state: int, rank: int, groups: int | None) -> dict[str, Value]:
    keys: dict[str, Value] = {
        "ssm.conv_kernel": kernel,
        "ssm.inner_size": inner,
        "ssm.state_size": state,
        "ssm.time_step_rank": rank,
    }
    return keys if groups is None else {**keys, "ssm.group_count": groups}


def _extras(spec: ModelSpec, arch: str) -> dict[str, Value]:
    """Return what single families need: which layers are recurrent, have an MLP, an indexer, or compress."""
    kinds = [layer.kinds for layer in spec.layers]
    recurrent = [any(isinstance(kind, State) for kind in layer) for layer in kinds]
    indexed = [any(isinstance(kind, Indexer) for kind in layer) for layer in kinds]
    if arch == "nemotron_h":
        return {"feed_forward_length": [0 if layer else 256 for layer in kinds]}
    if arch in ("qwen3next", "qwen35", "qwen35moe", "minimax-01"):
        return {"full_attention_interval": recurrent.index(False) + 1}
    if arch == "minimax-m3":
        return {"leading_dense_block_count": indexed.index(True)}
    if arch in ("glm-dsa", "hy_v4"):
        return {"attention.indexer.types": indexed}
    if arch == "deepseek4":
        compressed = [next((kind for kind in layer if isinstance(kind, Compressed)), None) for layer in kinds]
        ratios = [kind.ratio if kind else 0 for kind in compressed]
        index = next((kind.index_head_dim for kind in compressed if kind and kind.index_head_dim), 128)
        return {
            "attention.compress_ratios": ratios,
            "attention.indexer.key_length": index,
            "expert_gating_func": _SQRT_SOFTPLUS,
            "rope.dimension_count": 64,
        }
    return {}


# --- In the process of its own ----------------------------------------------------------------------------------------


def gguf_bytes(keys: Mapping[str, Value]) -> bytes:
    """Return a GGUF file (version 3) that holds these keys and no tensors."""
    parts = [b"GGUF", struct.pack("<IQQ", 3, 0, len(keys))]
    for key, value in keys.items():
        kind, data = _encoded(value)
        parts += [_text(key), struct.pack("<I", kind), data]
    made = b"".join(parts)
    return made + b"\0" * (-len(made) % 32)


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _encoded(value: Value) -> tuple[int, bytes]:
    """Return a value's type id in GGUF and its bytes."""
    match value:
        case bool():
            return 7, struct.pack("<?", value)
        case int():
            return 4, struct.pack("<I", value)
        case float():
            return 6, struct.pack("<f", value)
        case str():
            return 8, _text(value)
    kind, _ = _encoded(value[0])
    return 9, struct.pack("<IQ", kind, len(value)) + b"".join(_encoded(item)[1] for item in value)


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Create the context with the library and return what it said."""
    import ctypes

    llama_cpp: Any = import_module("llama_cpp")
    api: Any = import_module("llama_cpp.llama_cpp")
    said: list[str] = []

    def listen(_level: int, text: bytes, _data: object) -> None:
        said.append(text.decode("utf-8", "replace"))

    def no_data(_tensor: object, _data: object) -> None:
        """Weights are simulated: there is nothing to set."""

    listener, setter = api.llama_log_callback(listen), api.llama_model_set_tensor_data_t(no_data)
    api.llama_log_set(listener, ctypes.c_void_p(0))
    api.llama_backend_init()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        path.write_bytes(gguf_bytes(request["metadata"]))
        model = _load(ctypes, llama_cpp, api, path, setter)
    created = None
    if model:
        parameters = api.llama_context_default_params()
        for name, value in request["parameters"].items():
            setattr(parameters, name, value)
        created = api.llama_init_from_model(model, parameters)
    lines = [line.rstrip() for line in "".join(said).splitlines()]
    refusal = (
        "" if created else next((line for line in reversed(lines) if _REFUSAL.match(line)), "llama.cpp gave no reason")
    )
    kept = [_SIMULATED.sub(r"\1", line) for line in lines if _MEMORY_LINE.match(line) and not _NOTICES.search(line)]
    return {"library": f"llama-cpp-python {llama_cpp.__version__}", "refusal": refusal, "lines": kept}


def _load(ctypes: Any, llama_cpp: Any, api: Any, path: Path, no_data: Any) -> Any:
    """Return the model that the metadata describes, weights simulated; None if the library does not take it."""

    class InitParameters(ctypes.Structure):  # type: ignore[misc]
        _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p))

    suffix = {"darwin": "dylib", "win32": "dll"}.get(sys.platform, "so")
    name = "ggml-base.dll" if suffix == "dll" else f"libggml-base.{suffix}"
    ggml = ctypes.CDLL(str(Path(llama_cpp.__file__).parent / "lib" / name))
    ggml.gguf_init_from_file.argtypes = [ctypes.c_char_p, InitParameters]
    ggml.gguf_init_from_file.restype = ctypes.c_void_p
    ggml.gguf_free.argtypes = [ctypes.c_void_p]
    parameters = api.llama_model_default_params()
    parameters.no_alloc = True
    parameters.n_gpu_layers = 0
    keys = ggml.gguf_init_from_file(str(path).encode(), InitParameters(True, None))
    try:
        return api.llama_model_init_from_user(keys, no_data, None, parameters)
    finally:
        ggml.gguf_free(keys)


if __name__ == "__main__":
    json.dump(_answer(json.load(sys.stdin)), sys.stdout)
