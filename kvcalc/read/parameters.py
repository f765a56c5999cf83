"""How many parameters a model has, from its config: exact, or unknown with the reason.

Counted is what the text model stores: embeddings, every layer, the last norm and the head; tied embeddings once, no
layers that predict further tokens, no vision or audio tower. The formulas are the shapes in the modelling classes of
transformers, and are held against those classes, built without memory, for sizes and switches chosen at random. A model
type whose count has not been checked in that way is unknown: a wrong number of parameters is worse than none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from kvcalc.read.hf_fields import EXPERTS, INNER, Fields
from kvcalc.spec.model import ModelSpec

if TYPE_CHECKING:
    from kvcalc.spec.kinds._base import Heads
    from kvcalc.spec.kinds.indexer import Indexer
    from kvcalc.spec.kinds.mla import Mla
    from kvcalc.spec.kinds.state import GatedDeltaNet, Kda, Mamba1, Mamba2, RgLru

MAX_PARAMETERS = 10**15


@dataclass(frozen=True)
class Unknown:
    """The number of parameters is not known, and why."""

    why: str


class _Layer(NamedTuple):
    """A layer of a spec; which kinds it has follows from the model type, and each counter knows its own."""

    names: tuple[str, ...]
    kinds: tuple[Any, ...]


class _NotCountedError(Exception):
    """A config leaves out what a count needs, or switches on what no count has been checked for."""


def count_parameters(config: Fields, spec: ModelSpec) -> int | Unknown:
    """Return the parameters of the model that the config describes and that was read as `spec`, or why not."""
    counter = _COUNTERS.get(config.model_type)
    if counter is None:
        why = _WHY_NOT.get(config.model_type, "no class of transformers to check a count against")
        return Unknown(f"model type {config.model_type} is not counted: {why}")
    try:
        count = counter(config, tuple(_Layer(layer.names, layer.kinds) for layer in spec.layers))
    except _NotCountedError as error:
        return Unknown(str(error))
    return count if 1 <= count <= MAX_PARAMETERS else Unknown(f"{count:,} is more than any model has")


def counted_types() -> tuple[str, ...]:
    """Return the model types whose parameters are counted, sorted."""
    return tuple(sorted(_COUNTERS))


_Counter: TypeAlias = "Callable[[Fields, tuple[_Layer, ...]], int]"


# --- Pieces -----------------------------------------------------------------------------------------------------------


def _linear(inputs: int, outputs: int, bias: bool = False) -> int:
    """Return a matrix, and one bias for each output."""
    return (inputs + bias) * outputs


def _size(config: Fields, *names: str) -> int:
    """Return a size from 0 on; _NotCountedError where neither the config nor its class gives it."""
    value = config.optional(*names)
    if value is None:
        raise _NotCountedError(f"the config does not give {names[0]}")
    return value


def _require_off(config: Fields, *switches: str) -> None:
    """Refuse a count with switches on that no class of transformers has, or that no count has been checked for."""
    for switch in switches:
        if config.get(switch):
            raise _NotCountedError(f"{switch} is set, and no count of model type {config.model_type} is known with it")


def _require_tied(config: Fields) -> None:
    """Refuse a count without tied embeddings, where the class then shares nothing else either."""
    if config.get("tie_word_embeddings") is False:
        raise _NotCountedError(f"tie_word_embeddings is off, and no {config.model_type} without it is known")


def _perhaps(config: Fields, name: str) -> int:
    """Return a number of parts that a model may do without, by a null; one that is left out has no known number."""
    if name in config.data:
        return config.optional(name) or 0
    return _size(config, name)


def _on(config: Fields, switch: str | bool) -> bool:
    """Return a switch that is fixed by the model type, or the field that has it."""
    return switch if isinstance(switch, bool) else config.flag(switch)


def _embeddings(config: Fields, head_bias: bool = False) -> int:
    """Return the vocabulary's vectors and the head, which may be the same matrix."""
    tied = config.get("tie_word_embeddings")
    if tied is None and config.model_type == "t5":
        tied = True  # since 1.1 the configs say that it is off
    if tied is None:
        raise _NotCountedError("the config does not say whether embeddings are tied (tie_word_embeddings)")
    vocabulary = _size(config, "vocab_size", "padded_vocab_size")
    return vocabulary * config.hidden * (1 if tied else 2) + vocabulary * head_bias


def _attention(
    config: Fields,
    kind: Heads,
    qkv_bias: bool = False,
    out_bias: bool = False,
    *,
    qk_norm: str = "",
    inputs: int = 0,
    gated: bool = False,
) -> int:
    """Return Q, K, V and output of a kind with heads; `qk_norm` is one weight per element of a `head`, or of all heads.

    `inputs` is the width that goes in where it is not the model's; `gated` doubles Q for a gate on the output.
    """
    inputs = inputs or config.hidden
    query, key, value = kind.heads * kind.head_dim, kind.kv_heads * kind.head_dim, kind.kv_heads * kind.value_dim
    norm = {"": 0, "head": 2 * kind.head_dim, "full": query + key}[qk_norm]
    projections = _linear(inputs, query * (1 + gated) + key + value, qkv_bias)
    return projections + _linear(kind.heads * kind.value_dim, config.hidden, out_bias) + norm


def _latent(config: Fields, kind: Mla) -> int:
    """Return multi-head latent attention: Q (perhaps through a rank of its own), the latent, K and V, output."""
    hidden, bias, rank = config.hidden, config.flag("attention_bias"), config.positive("q_lora_rank")
    nope, value = kind.qk_nope_head_dim, kind.v_head_dim
    if nope is None or value is None:
        raise _NotCountedError("the config does not give qk_nope_head_dim and v_head_dim")
    queries = kind.heads * (nope + kind.qk_rope_head_dim)
    query = _linear(hidden, rank, bias) + rank + _linear(rank, queries) if rank else _linear(hidden, queries)
    latent = _linear(hidden, kind.kv_lora_rank + kind.qk_rope_head_dim, bias) + kind.kv_lora_rank
    expanded = _linear(kind.kv_lora_rank, kind.heads * (nope + value))
    return query + latent + expanded + _linear(kind.heads * value, hidden, bias)


def _indexer(config: Fields, kind: Indexer) -> int:
    """Return a sparse selection's queries (from Q's rank), keys with their norm, and head weights."""
    heads, size = _size(config, "index_n_heads"), kind.index_head_dim
    return _linear(_size(config, "q_lora_rank"), heads * size) + _linear(config.hidden, size + heads) + 2 * size


def _gated_mlp(config: Fields, inner: int, bias: bool = False) -> int:
    """Return gate, up and down."""
    return _linear(config.hidden, 2 * inner, bias) + _linear(inner, config.hidden, bias)


def _plain_mlp(config: Fields, inner: int, bias: bool = False) -> int:
    """Return up and down."""
    return _linear(config.hidden, inner, bias) + _linear(inner, config.hidden, bias)


def _experts(config: Fields, inner: int, shared: int = 0, count: int | None = None) -> int:
    """Return gated experts with their router, and shared experts of `shared` inner elements together."""
    count = _size(config, *EXPERTS) if count is None else count
    each = _gated_mlp(config, inner)
    return count * (each + config.hidden) + (_gated_mlp(config, shared) if shared else 0)


def _mamba1(config: Fields, kind: Mamba1, bias: bool, conv_bias: bool, rank: int) -> int:
    """Return Mamba 1: in, convolution, the projection to time step, B and C, time step, A, D, out."""
    channels, state = kind.channels, kind.state_size
    inputs = _linear(config.hidden, 2 * channels, bias) + channels * (kind.conv_kernel + conv_bias)
    steps = _linear(channels, rank + 2 * state) + _linear(rank, channels, bias=True)
    return inputs + steps + channels * (state + 1) + _linear(channels, config.hidden, bias)


def _mamba2(config: Fields, kind: Mamba2, bias: bool, conv_bias: bool, norm: bool = True) -> int:
    """Return Mamba 2: in (gate, x, B, C, time step), convolution, time step, A, D, gated norm, out."""
    channels = kind.state_heads * kind.state_head_dim
    mixed = channels + 2 * kind.groups * kind.state_size
    inputs = _linear(config.hidden, channels + mixed + kind.state_heads, bias) + mixed * (kind.conv_kernel + conv_bias)
    return inputs + 3 * kind.state_heads + channels * norm + _linear(channels, config.hidden, bias)


def _time_step_rank(config: Fields, name: str) -> int:
    """Return the rank of Mamba 1's time step; `auto` is a sixteenth of the hidden size, rounded up."""
    rank = config.get(name)
    return -(-config.hidden // 16) if rank in (None, "auto") else _size(config, name)


def _gated_delta_net(config: Fields, kind: GatedDeltaNet) -> int:
    """Return gated DeltaNet: Q, K, V, gate, two factors per head, convolution, A and time step, norm, out."""
    keys, values = kind.key_heads * kind.key_head_dim, kind.value_heads * kind.value_head_dim
    projections = _linear(config.hidden, 2 * keys + 2 * values + 2 * kind.value_heads)
    small = 2 * kind.value_heads + kind.value_head_dim
    return projections + (2 * keys + values) * kind.conv_kernel + small + _linear(values, config.hidden)


def _sum(layers: Iterable[_Layer], count: Callable[[int, Any], int]) -> int:
    """Return the sum over layers of a count by index and first kind (None for a layer that keeps nothing)."""
    return sum(count(index, layer.kinds[0] if layer.kinds else None) for index, layer in enumerate(layers))


# --- Decoders of one kind of layer: attention and an MLP --------------------------------------------------------------


@dataclass(frozen=True)
class _Dense:
    """What distinguishes dense decoders: biases (fixed, or the field that says), norms, and the MLP's gate.

    `norms` are per layer, of the hidden size; with `norm_bias` each has a bias too. `extra` counts whatever else a
    layer has.
    """

    qkv_bias: str | bool = False
    out_bias: str | bool = False
    mlp_bias: str | bool = False
    qk_norm: str = ""
    norms: int = 2
    norm_bias: bool = False
    final_norm: bool = True
    gated: bool = True
    head_bias: bool = False
    extra: int = 0

    def __call__(self, config: Fields, layers: tuple[_Layer, ...]) -> int:
        """Return the parameters of all."""
        norm = config.hidden * (1 + self.norm_bias)
        mlp_bias = _on(config, self.mlp_bias)
        mlp = (_gated_mlp if self.gated else _plain_mlp)(config, _size(config, *INNER), mlp_bias)
        biases = _on(config, self.qkv_bias), _on(config, self.out_bias)
        each = _sum(layers, lambda _, kind: _attention(config, kind, *biases, qk_norm=self.qk_norm))
        each += len(layers) * (mlp + self.norms * norm + self.extra)
        return _embeddings(config, self.head_bias) + each + norm * self.final_norm


def _cohere(config: Fields, layers: tuple[_Layer, ...]) -> int:
    """Cohere: attention and MLP side by side after one norm; Q and K are normed with `use_qk_norm`."""
    norm = "full" if config.flag("use_qk_norm") else ""
    return _Dense("attention_bias", "attention_bias", qk_norm=norm, norms=1)(config, layers)


def _stablelm(config: Fields, layers: tuple[_Layer, ...]) -> int:
    """StableLM: norms with biases, one where attention and MLP are parallel; Q and K normed head by head."""
    parallel = config.flag("use_parallel_residual")
    norm = "full" if config.flag("qk_layernorm") else ""
    return _Dense("use_qkv_bias", qk_norm=norm, norms=1 if parallel else 2, norm_bias=True)(config, layers)


def _phi(config: Fields, layers: tuple[_Layer, ...]) -> int:
    """Phi-1 and Phi-2: biases everywhere, the head included; a norm for Q and one for K if asked for."""
    extra = 4 * (config.hidden // config.heads) if config.flag("qk_layernorm") else 0
    dense = _Dense(True, True, True, norms=1, norm_bias=True, gated=False, head_bias=True, extra=extra)
    return dense(config, layers)


_BIASED = ("attention_bias", "attention_bias")
_DENSE: dict[str, _Counter] = {
    "apertus": _Dense(*_BIASED, qk_norm="head", gated=False, extra=2),  # its activation has two parameters
    "arcee": _Dense(*_BIASED, "mlp_bias", gated=False),
    "cohere": _cohere,
    "cohere2": _Dense(*_BIASED, norms=1),
    "ernie4_5": _Dense("use_bias", "use_bias", "use_bias"),
    "exaone": _Dense(*_BIASED, "mlp_bias"),
    "exaone4": _Dense(qk_norm="head"),
    "gemma": _Dense(*_BIASED),
    "gemma2": _Dense(*_BIASED, norms=4),
    "gemma3_text": _Dense(*_BIASED, qk_norm="head", norms=4),
    "glm": _Dense("attention_bias"),
    "glm4": _Dense("attention_bias", norms=4),
    "granite": _Dense(*_BIASED, "mlp_bias"),
    "hunyuan_v1_dense": _Dense(*_BIASED, qk_norm="head"),
    "llama": _Dense(*_BIASED, "mlp_bias"),
    "mimo": _Dense(True),
    "ministral": _Dense(),
    "ministral3": _Dense(),
    "mistral": _Dense(),
    "nemotron": _Dense(*_BIASED, "mlp_bias", norm_bias=True, gated=False),
    "olmo": _Dense(*_BIASED, norms=0, final_norm=False),
    "olmo2": _Dense(*_BIASED, qk_norm="full"),
    "olmo3": _Dense(*_BIASED, qk_norm="full"),
    "phi": _phi,
    "phi3": _Dense(),
    "qwen2": _Dense(True),
    "qwen3": _Dense(*_BIASED, qk_norm="head"),
    "seed_oss": _Dense("attention_bias", "attention_out_bias", "mlp_bias"),
    "smollm3": _Dense(*_BIASED, "mlp_bias"),
    "stablelm": _stablelm,
    "starcoder2": _Dense("use_bias", "use_bias", "use_bias", norm_bias=True, gated=False),
}


# --- Older decoders ---------------------------------------------------------------------------------------------------


def _gpt2(config: Fields, layers: tuple[_Layer, ...]) -> int:
    """GPT-2 and GPT-BigCode: biases everywhere, learned positions."""
    hidden = config.hidden
    mlp = _plain_mlp(config, config.positive(*INNER) or 4 * hidden, bias=True)
    each = _sum(layers, lambda _, kind: _attention(config, kind, True, True) + mlp + 4 * hidden)
    return _embeddings(config) + _size(config, "n_positions") * hidden + each + 2 * hidden


def _gptj(config: Fields, layers: tuple[_Layer, ...]) -> int:
    """GPT-J and CodeGen: no biases in the attention, one norm, a head with a bias."""
    hidden = config.hidden
    mlp = _plain_mlp(config, config.positive(*INNER) or 4 * hidden, bias=True)
    each = _sum(layers, lambda _, kind: _attention(config, kind) + mlp + 2 * hidden)
    return _embeddings(config, head_bias=True) + each + 2 * hidden


def _gpt_neox(config: Fields, layers: tuple[_Layer, ...]) -> int:
    """GPT-NeoX and Pythia: biases everywhere, those of the attention by `attention_bias`."""
    return _Dense(*_BIASED, True, norm_bias=True, gated=False)(config, layers)


def _opt(config: Fields, layers: tuple[_Layer, ...]) -> int:
    """OPT: learned positions with two in front; projections where the embeddings have a width of their own."""
    hidden, bias = config.hidden, config.flag("enable_bias")
    norm = 2 * hidden if config.flag("layer_norm_elementwise_affine") else 0
    mlp = _plain_mlp(config, _size(config, *INNER), bias)
    each = _sum(layers, lambda _, kind: _attention(config, kind, bias, bias) + mlp + 2 * norm)
    last = norm if config.flag("do_layer_norm_before") and not config.flag("_remove_final_layer_norm") else 0
    width = config.positive("word_embed_proj_dim") or hidden
    tied = 1 if config.get("tie_word_embeddings") is not False else 2
    words = tied * width * _size(config, "vocab_size") + (2 * width * hidden if width != hidden else 0)
    return words + (_size(config, "max_position_embeddings") + 2) * hidden + each + last


def _bloom(config: Fields, layers: tuple[_Layer, ...]) -> int:
    """BLOOM: biases everywhere, and a norm after the embeddings."""
    hidden = config.hidden
    mlp = _plain_mlp(config, 4 * hidden, bias=True)
    each = _sum(layers, lambda _, kind: _attention(config, kind, True, True) + mlp + 4 * hidden)
    return _embeddings(config) + each + 4 * hidden


def _falcon(config: Fields, layers: tuple[_Layer, ...]) -> int:
    """Falcon: one norm before attention and MLP side by side, two in the newer layout or one after the other."""
    hidden, bias = config.hidden, config.flag("bias")
    mlp = _plain_mlp(config, config.positive("ffn_hidden_size") or 4 * hidden, bias)
    newer = config.flag("new_decoder_architecture")
    in_parallel = config.positive("num_ln_in_parallel_attn") or (2 if newer else 1)
    norms = in_parallel if newer else 1 if config.flag("parallel_attn") else 2
    each = _sum(layers, lambda _, kind: _attention(config, kind, bias, bias) + mlp + norms * 2 * hidden)
    return _embeddings(config) + each + 2 * hidden


def _mpt(config: Fields, layers: tuple[_Layer, ...]) -> int:
    """MPT as transformers has it: no biases; norms without them too."""
    mlp = _plain_mlp(config, _size(config, "expansion_ratio") * config.hidden)
    each = _sum(layers, lambda _, kind: _attention(config, kind) + mlp + 2 * config.hidden)
    return _embeddings(config) + each + config.hidden


# --- Mixtures of experts ----------------------------------------------------------------------------------------------


def _mixtral(config: Fields, layers: tuple[_Layer, ...]) -> int:
    """Mixtral, and Granite's mixture: experts in every layer."""
    experts = _experts(config, _size(config, "intermediate_size"))
    bias = config.flag("attention_bias") and config.model_type == "granitemoe"
    each = _sum(layers, lambda _, kind: _attention(config, kind, bias, bias) + experts + 2 * config.hidden)
    return _embeddings(config) + each + config.hidden


def _phimoe(config: Fields, layers: tuple[_Layer, ...]) -> int:
    """Phi-3.5-MoE: norms with biases."""
    bias, experts = config.flag("attention_bias"), _experts(config, _size(config, "intermediate_size"))
    each = _sum(layers, lambda _, kind: _attention(config, kind, bias, bias) + experts + 4 * config.hidden)
    return _embeddings(config, config.flag("lm_head_bias")) + each + 2 * config.hidden


def _olmoe(config: Fields, layers: tuple[_Layer, ...]) -> int:
    """OLMoE and MiniMax-M2: experts in every layer, Q and K normed as a whole."""
    bias, experts = config.flag("attention_bias"), _experts(config, _size(config, "intermediate_size"))
    each = _sum(
        layers, lambda _, kind: _attention(config, kind, bias, bias, qk_norm="full") + experts + 2 * config.hidden
    )
    return _embeddings(config) + each + config.hidden


def _qwen_moe(config: Fields, layers: tuple[_Layer, ...]) -> int:
    """Qwen 2 and 3 with experts: some layers may be dense; Qwen 2 has a gated shared expert, Qwen 3 norms Q and K."""
    second = config.model_type == "qwen2_moe"
    biases = (config.flag("qkv_bias"), False) if second else (config.flag("attention_bias"),) * 2
    norm = "" if second else "head"
    experts = _qwen_experts(config)
    dense = _gated_mlp(config, _size(config, "intermediate_size"))
    sparse = _qwen_sparse_layers(config)

    def layer(index: int, kind: Any) -> int:
        mixer = _attention(config, kind, *biases, qk_norm=norm)
        return mixer + (experts if index in sparse else dense) + 2 * config.hidden

    return _embeddings(config) + _sum(layers, layer) + config.hidden


def _qwen_experts(config: Fields) -> int:
    """Return experts, and the shared expert with its gate where there is one."""
    shared = config.positive("shared_expert_intermediate_size") or 0
    return _experts(config, _size(config, "moe_intermediate_size"), shared) + (config.hidden if shared else 0)


def _qwen_sparse_layers(config: Fields) -> frozenset[int]:
    """Return the layers with experts: every `decoder_sparse_step`-th that `mlp_only_layers` does not name."""
    if not config.optional(*EXPERTS):
        return frozenset()
    dense, step = set(config.integers("mlp_only_layers") or []), config.positive("decoder_sparse_step") or 1
    return frozenset(index for index in range(config.layers) if index not in dense and (index + 1) % step == 0)


def _gpt_oss(config: Fields, layers: tuple[_Layer, ...]) -> int:
    """gpt-oss: a sink for every head, biases in router and experts."""
    inner, count, hidden = _size(config, "intermediate_size"), _size(config, *EXPERTS), config.hidden
    experts = count * (_gated_mlp(config, inner, bias=True) + hidden + 1)
    bias = config.flag("attention_bias")
    each = _sum(layers, lambda _, kind: _attention(config, kind, bias, bias) + kind.heads + experts + 2 * hidden)
    return _embeddings(config) + each + hidden


def _dense_layers(config: Fields) -> frozenset[int]:
    """Return the layers without experts: as listed, else the first `first_k_dense_replace`."""
    types = config.strings("mlp_layer_types")
    if types:
        return frozenset(index for index, name in enumerate(types) if name == "dense")
    if config.get("first_k_dense_replace") is None and config.model_type == "glm4_moe_lite":
        return frozenset((0,))  # its class has such a list
    return frozenset(range(min(_size(config, "first_k_dense_replace"), config.layers)))


def _deepseek_feed_forward(config: Fields, dense: bool) -> int:
    """Return a dense MLP, or experts beside shared ones."""
    if dense:
        return _gated_mlp(config, _size(config, "intermediate_size"))
    inner = _size(config, "moe_intermediate_size")
    return _experts(config, inner, inner * _perhaps(config, "n_shared_experts"))


def _glm4_moe(config: Fields, layers: tuple[_Layer, ...]) -> int:
    """GLM-4.5 to 4.7: DeepSeek's experts; biases for Q, K and V only."""
    bias, norm = config.flag("attention_bias"), "head" if config.flag("use_qk_norm") else ""
    dense = _dense_layers(config)

    def layer(index: int, kind: Any) -> int:
        mixer = _attention(config, kind, bias, qk_norm=norm)
        return mixer + _deepseek_feed_forward(config, index in dense) + 2 * config.hidden

    return _embeddings(config) + _sum(layers, layer) + config.hidden


def _deepseek(config: Fields, layers: tuple[_Layer, ...]) -> int:
    """DeepSeek V2 to V3.2, Kimi K2, GLM-4.7-Flash and 5, Mistral 4: latent attention, and indexers in some layers."""
    if config.model_type == "deepseek_v2":
        _require_off(config, "mlp_bias")
    if config.get("use_mla") is False or (config.positive("moe_layer_freq") or 1) != 1:
        raise _NotCountedError("use_mla is off or moe_layer_freq is not 1, and no such model has been counted")
    dense, total = _dense_layers(config), _embeddings(config) + config.hidden
    for index, layer in enumerate(layers):
        total += _latent(config, layer.kinds[0]) + _deepseek_feed_forward(config, index in dense) + 2 * config.hidden
        total += sum(_indexer(config, kind) for kind in layer.kinds[1:])
    return total


def _minicpm3(config: Fields, layers: tuple[_Layer, ...]) -> int:
    """MiniCPM3: latent attention, dense MLPs."""
    mlp = _gated_mlp(config, _size(config, "intermediate_size"), config.flag("mlp_bias"))
    each = _sum(layers, lambda _, kind: _latent(config, kind) + mlp + 2 * config.hidden)
    return _embeddings(config) + each + config.hidden


def _ernie_moe(config: Fields, layers: tuple[_Layer, ...]) -> int:
    """ERNIE 4.5 with experts: in every `moe_layer_interval`-th layer from a first to a last one."""
    hidden, bias = config.hidden, config.flag("use_bias")
    inner, count = _size(config, "moe_intermediate_size"), _size(config, *EXPERTS)
    shared = inner * _perhaps(config, "moe_num_shared_experts")
    # The router's correction is a parameter here.
    experts = _experts(config, inner, 0) + count + (_gated_mlp(config, shared, bias) if shared else 0)
    dense = _gated_mlp(config, _size(config, "intermediate_size"), bias)
    first, every = _size(config, "moe_layer_start_index"), config.positive("moe_layer_interval") or 1
    last = config.get("moe_layer_end_index")
    last = len(layers) - 1 if last in (None, -1) else _size(config, "moe_layer_end_index")

    def layer(index: int, kind: Any) -> int:
        sparse = (index + 1) % every == 0 and first <= index <= last
        return _attention(config, kind, bias, bias) + (experts if sparse else dense) + 2 * hidden

    return _embeddings(config, head_bias=bias) + _sum(layers, layer) + hidden


def _llama4(config: Fields, layers: tuple[_Layer, ...]) -> int:
    """Llama 4: experts beside a shared one in every n-th layer or as listed, wider MLPs in the others."""
    inner, bias = _size(config, "intermediate_size"), config.flag("attention_bias")
    experts, dense = _experts(config, inner, inner), _gated_mlp(config, _size(config, "intermediate_size_mlp"))
    step = config.positive("interleave_moe_layer_step") or 1
    sparse = set(config.integers("moe_layers") or range(step - 1, len(layers), step))

    def layer(index: int, kind: Any) -> int:
        mixer = _attention(config, kind, bias, bias)
        return mixer + (experts if index in sparse else dense) + 2 * config.hidden

    return _embeddings(config) + _sum(layers, layer) + config.hidden


def _mimo_v2(config: Fields, layers: tuple[_Layer, ...]) -> int:
    """MiMo-V2: a sink for every head of layers with a window; K and V of their own sizes; experts as listed."""
    bias, inner = config.flag("attention_bias"), _size(config, "moe_intermediate_size")
    experts, dense = _experts(config, inner), _gated_mlp(config, _size(config, "intermediate_size"))
    listed, types = config.per_layer("moe_layer_freq"), config.strings("mlp_layer_types")
    sparse = [flag == 1 for flag in listed or []] or [name == "sparse" for name in types or []]
    if len(sparse) != len(layers):
        raise _NotCountedError("the config does not say which layers have experts")
    if config.get("add_full_attention_sink_bias") or config.get("n_shared_experts"):
        raise _NotCountedError("it has sinks in global layers or shared experts, and no such model has been counted")

    def layer(index: int, kind: Any) -> int:
        mixer = _attention(config, kind, bias) + (kind.heads if kind.name == "sliding" else 0)
        return mixer + (experts if sparse[index] else dense) + 2 * config.hidden

    return _embeddings(config) + _sum(layers, layer) + config.hidden


def _mllama(config: Fields, layers: tuple[_Layer, ...]) -> int:
    """Llama 3.2 Vision's text model: eight embeddings without a head row; gates and Q and K norms to the image."""
    hidden, mlp = config.hidden, _gated_mlp(config, _size(config, "intermediate_size"))
    _require_off(config, "tie_word_embeddings")
    vocabulary = _size(config, "vocab_size")

    def layer(_: int, kind: Any) -> int:
        cross = bool(kind.name == "cross")
        return _attention(config, kind, qk_norm="head" if cross else "") + mlp + 2 * hidden + 2 * cross

    return (2 * vocabulary + 8) * hidden + _sum(layers, layer) + hidden


def _dbrx(config: Fields, layers: tuple[_Layer, ...]) -> int:
    """DBRX: experts described by a nested `ffn_config`."""
    nested = config.data.get("ffn_config")
    if not isinstance(nested, dict):
        raise _NotCountedError("the config has no ffn_config")
    fields = config.nested("ffn_config")
    inner, count = fields.positive("ffn_hidden_size"), fields.positive("moe_num_experts")
    if inner is None or count is None:
        raise _NotCountedError("ffn_config does not give ffn_hidden_size and moe_num_experts")
    experts = _experts(config, inner, count=count)
    each = _sum(layers, lambda _, kind: _attention(config, kind) + experts + 2 * config.hidden)
    return _embeddings(config) + each + config.hidden


# --- Recurrent and hybrid models --------------------------------------------------------------------------------------


def _mamba_model(config: Fields, layers: tuple[_Layer, ...]) -> int:
    """Mamba and Falcon Mamba: one norm and a mixer per layer."""
    bias, conv_bias = config.flag("use_bias"), config.flag("use_conv_bias")
    rank = _time_step_rank(config, "time_step_rank")
    each = _sum(layers, lambda _, kind: _mamba1(config, kind, bias, conv_bias, rank) + config.hidden)
    return _embeddings(config) + each + config.hidden


def _mamba2_model(config: Fields, layers: tuple[_Layer, ...]) -> int:
    """Mamba 2: one norm and a mixer per layer."""
    bias, conv_bias = config.flag("use_bias"), config.flag("use_conv_bias")
    each = _sum(layers, lambda _, kind: _mamba2(config, kind, bias, conv_bias) + config.hidden)
    return _embeddings(config) + each + config.hidden


def _jamba(config: Fields, layers: tuple[_Layer, ...]) -> int:
    """Jamba: Mamba with norms for time step, B and C; experts in every n-th layer."""
    bias, conv_bias = config.flag("mamba_proj_bias"), config.flag("mamba_conv_bias")
    rank = _time_step_rank(config, "mamba_dt_rank")
    inner, count = _size(config, "intermediate_size"), _size(config, "num_experts")
    period, offset = config.positive("expert_layer_period") or 1, config.optional("expert_layer_offset") or 0

    def layer(index: int, kind: Any) -> int:
        if kind.name == "state":
            mixer = _mamba1(config, kind, bias, conv_bias, rank) + rank + 2 * int(kind.state_size)
        else:
            mixer = _attention(config, kind)
        sparse = count > 1 and index % period == offset
        return mixer + (_experts(config, inner) if sparse else _gated_mlp(config, inner)) + 2 * config.hidden

    return _embeddings(config) + _sum(layers, layer) + config.hidden


def _bamba(config: Fields, layers: tuple[_Layer, ...]) -> int:
    """Bamba and Granite 4: Mamba 2 or attention, then an MLP, or experts beside a shared MLP."""
    bias, conv_bias, attention_bias = (
        config.flag(name) for name in ("mamba_proj_bias", "mamba_conv_bias", "attention_bias")
    )
    if config.model_type == "bamba":
        feed_forward = _gated_mlp(config, _size(config, "intermediate_size"), config.flag("mlp_bias"))
    else:
        feed_forward = _gated_mlp(config, _size(config, "shared_intermediate_size"))
        if config.optional("num_local_experts"):
            feed_forward += _experts(config, _size(config, "intermediate_size"))

    def layer(_: int, kind: Any) -> int:
        if kind.name == "state":
            mixer = _mamba2(config, kind, bias, conv_bias)
        else:
            mixer = _attention(config, kind, attention_bias, attention_bias)
        return mixer + feed_forward + 2 * config.hidden

    return _embeddings(config) + _sum(layers, layer) + config.hidden


def _falcon_h1(config: Fields, layers: tuple[_Layer, ...]) -> int:
    """Falcon-H1: attention and Mamba 2 side by side, then an MLP."""
    attention_bias, conv_bias = config.flag("attention_bias"), config.flag("mamba_conv_bias")
    _require_off(config, "mamba_proj_bias", "projectors_bias")
    mlp = _gated_mlp(config, _size(config, "intermediate_size"), config.flag("mlp_bias"))
    total = _embeddings(config) + config.hidden
    for layer in layers:
        attention, mamba = layer.kinds
        total += _attention(config, attention, attention_bias, attention_bias)
        total += _mamba2(config, mamba, False, conv_bias, config.flag("mamba_rms_norm")) + mlp + 2 * config.hidden
    return total


def _nemotron_h(config: Fields, layers: tuple[_Layer, ...]) -> int:
    """Nemotron-H: every layer is one norm and one mixer: Mamba 2, attention, an MLP, or experts."""
    _require_off(config, "attention_bias", "mlp_bias", "mamba_proj_bias", "tie_word_embeddings")
    mamba_biases = config.flag("use_bias"), config.flag("use_conv_bias")
    letters = _nemotron_letters(config)
    total = _embeddings(config) + config.hidden * (1 + len(layers))
    for letter, layer in zip(letters, layers, strict=True):
        if letter == "M":
            total += _mamba2(config, layer.kinds[0], *mamba_biases)
        elif letter == "*":
            total += _attention(config, layer.kinds[0])
        elif letter == "-":
            total += _plain_mlp(config, _size(config, "intermediate_size"))
        else:
            total += _nemotron_experts(config)
    return total


def _nemotron_letters(config: Fields) -> str:
    """Return one letter for each layer."""
    written = config.get("hybrid_override_pattern")
    if isinstance(written, str):
        return written
    letters = {"linear_attention": "M", "full_attention": "*", "mlp": "-", "moe": "E"}
    return "".join(letters[name] for name in config.layer_types(*letters) or [])


def _nemotron_experts(config: Fields) -> int:
    """Return experts without gates, on a latent of the hidden size where there is one, beside a shared expert."""
    hidden, latent = config.hidden, config.positive("moe_latent_size")
    width = latent or hidden
    routed = _size(config, "n_routed_experts") * (2 * width * _size(config, "moe_intermediate_size") + hidden)
    shared = _plain_mlp(config, _size(config, "moe_shared_expert_intermediate_size"))
    return (2 * hidden * latent if latent else 0) + routed + shared


def _qwen_hybrid(config: Fields, layers: tuple[_Layer, ...]) -> int:
    """Qwen3-Next and Qwen3.5: gated DeltaNet or attention with a gate, then an MLP or experts."""
    bias = config.flag("attention_bias")
    sparse = frozenset[int]()
    if config.model_type not in ("qwen3_5", "qwen3_5_text"):
        sparse = _qwen_sparse_layers(config)

    def layer(index: int, kind: Any) -> int:
        if kind.name == "state":
            mixer = _gated_delta_net(config, kind)
        else:
            mixer = _attention(config, kind, bias, bias, qk_norm="head", gated=True)
        dense = index not in sparse
        rest = _gated_mlp(config, _size(config, "intermediate_size")) if dense else _qwen_experts(config)
        return mixer + rest + 2 * config.hidden

    return _embeddings(config) + _sum(layers, layer) + config.hidden


def _olmo_hybrid(config: Fields, layers: tuple[_Layer, ...]) -> int:
    """OLMo Hybrid: gated DeltaNet, or attention with Q and K normed as a whole."""
    bias, mlp = config.flag("attention_bias"), _gated_mlp(config, _size(config, "intermediate_size"))

    def layer(_: int, kind: Any) -> int:
        if kind.name == "state":
            return _gated_delta_net(config, kind) + mlp + 2 * config.hidden
        return _attention(config, kind, bias, bias, qk_norm="full") + mlp + 2 * config.hidden

    return _embeddings(config) + _sum(layers, layer) + config.hidden


def _kimi_linear(config: Fields, layers: tuple[_Layer, ...]) -> int:
    """Kimi Linear: KDA or latent attention, then DeepSeek's feed-forward under names of its own."""
    _require_off(config, "tie_word_embeddings")
    if config.model_type == "kimi_k3" or config.get("latent_moe_use_norm") or config.get("attn_res_block_size"):
        raise _NotCountedError("Kimi K3 has parts that transformers does not have")
    inner = _size(config, "moe_intermediate_size")
    experts = _experts(config, inner, inner * _perhaps(config, "num_shared_experts"))
    dense, first = _gated_mlp(config, _size(config, "intermediate_size")), config.optional("first_k_dense_replace")
    types = config.strings("mlp_layer_types") or [
        "dense" if index < (first or 0) else "sparse" for index in range(len(layers) if first is not None else 0)
    ]

    def layer(index: int, kind: Any) -> int:
        mixer = _kda(config, kind) if kind.name == "state" else _latent(config, kind)
        return mixer + (experts if types[index] == "sparse" else dense) + 2 * config.hidden

    if len(types) != len(layers):
        raise _NotCountedError("the config does not say which layers have experts")
    return _embeddings(config) + _sum(layers, layer) + config.hidden


def _kda(config: Fields, kind: Kda) -> int:
    """Return Kimi Delta Attention: Q, K, V, convolution, forget and output gates of low rank, norm, out."""
    size, hidden = kind.state_head_dim, config.hidden
    width = kind.state_heads * size
    gates = 2 * (_linear(hidden, size) + _linear(size, width)) + width
    factors = kind.state_heads + _linear(hidden, kind.state_heads)
    return _linear(hidden, 3 * width) + 3 * width * kind.conv_kernel + gates + factors + size + _linear(width, hidden)


def _lfm2(config: Fields, layers: tuple[_Layer, ...]) -> int:
    """LFM2: a gated short convolution or attention, then an MLP whose size is worked out from the published one."""
    bias, mlp = config.flag("conv_bias"), _gated_mlp(config, _lfm2_inner(config))
    each = _sum(layers, lambda _, kind: _lfm2_mixer(config, kind, bias) + mlp + 2 * config.hidden)
    return _embeddings(config) + each + config.hidden


def _lfm2_inner(config: Fields) -> int:
    """Return two thirds of the published size, rounded up to a multiple, unless the config says to leave it alone."""
    inner = _size(config, "block_ff_dim", "intermediate_size")
    if not config.flag("block_auto_adjust_ff_dim"):
        return inner
    multiplier = config.data.get("block_ffn_dim_multiplier", 1)
    inner = 2 * inner // 3
    if multiplier is None:
        return inner
    multiple = config.positive("block_multiple_of") or 1
    if isinstance(multiplier, bool) or not isinstance(multiplier, (int, float)) or not 0 < multiplier < 100:
        raise _NotCountedError("block_ffn_dim_multiplier is not a factor")
    return -(-int(multiplier * inner) // multiple) * multiple


def _lfm2_moe(config: Fields, layers: tuple[_Layer, ...]) -> int:
    """LFM2 with experts after the first dense layers; the published MLP sizes are the real ones."""
    hidden, bias, first = config.hidden, config.flag("conv_bias"), config.optional("num_dense_layers") or 0
    dense = _gated_mlp(config, _size(config, "intermediate_size"))
    experts = _experts(config, _size(config, "moe_intermediate_size"))

    def layer(index: int, kind: Any) -> int:
        return _lfm2_mixer(config, kind, bias) + (dense if index < first else experts) + 2 * hidden

    return _embeddings(config) + _sum(layers, layer) + hidden


def _lfm2_mixer(config: Fields, kind: Any, bias: bool) -> int:
    """Return a gated short convolution, or attention with normed Q and K."""
    if kind.name != "state":
        return _attention(config, kind, qk_norm="head")
    hidden, kernel = config.hidden, int(kind.conv_kernel)
    return _linear(hidden, 3 * hidden, bias) + hidden * (kernel + bias) + _linear(hidden, hidden, bias)


def _minimax(config: Fields, layers: tuple[_Layer, ...]) -> int:
    """MiniMax-Text-01 and M1: lightning attention with a norm and a gate, or attention; experts in every layer."""
    hidden, experts = config.hidden, _experts(config, _size(config, "intermediate_size"))

    def layer(_: int, kind: Any) -> int:
        if kind.name == "state":
            width = int(kind.state_heads * kind.state_head_dim)
            mixer = _linear(hidden, 4 * width) + _linear(width, hidden) + width
        else:
            mixer = _attention(config, kind)
        return mixer + experts + 2 * hidden

    return _embeddings(config) + _sum(layers, layer) + hidden


def _zamba(config: Fields, layers: tuple[_Layer, ...]) -> int:
    """Zamba: Mamba in every layer, and one block of attention and MLP over twice the width that hybrid layers share."""
    _require_tied(config)
    hidden, biases = config.hidden, (config.flag("mamba_proj_bias"), config.flag("mamba_conv_bias"))
    rank = _time_step_rank(config, "mamba_dt_rank")
    total = _embeddings(config) + hidden
    total += sum(_mamba1(config, layer.kinds[0], *biases, rank) + hidden for layer in layers)
    hybrid = [layer.kinds[1] for layer in layers if len(layer.kinds) > 1]
    if hybrid:
        mlp = _gated_mlp(config, _size(config, "intermediate_size"))
        total += _attention(config, hybrid[0], inputs=2 * hidden) + mlp + 3 * hidden
    return total + len(hybrid) * hidden * hidden


def _recurrent_gemma(config: Fields, layers: tuple[_Layer, ...]) -> int:
    """RecurrentGemma: RG-LRU or attention, then an MLP of half the published size; biases but in Q, K and V."""
    hidden, bias = config.hidden, config.flag("attention_bias")
    mlp = _gated_mlp(config, _size(config, "intermediate_size") // 2, bias=True)

    def layer(_: int, kind: Any) -> int:
        mixer = _rg_lru(config, kind) if kind.name == "state" else _attention(config, kind, bias, out_bias=True)
        return mixer + mlp + 2 * hidden

    return _embeddings(config) + _sum(layers, layer) + hidden


def _rg_lru(config: Fields, kind: RgLru) -> int:
    """Return RG-LRU: two projections in, convolution, two block-diagonal gates, the decay, out."""
    width, block = kind.channels, kind.channels // config.heads
    projections = 2 * _linear(config.hidden, width, bias=True) + _linear(width, config.hidden, bias=True)
    gates = 2 * config.heads * block * (block + 1)
    return projections + width * (kind.conv_kernel + 1) + gates + width


def _rwkv4(config: Fields, layers: tuple[_Layer, ...]) -> int:
    """RWKV 4: time mixing and channel mixing, norms with biases, one more before the first layer."""
    hidden = config.hidden
    inner = config.positive("intermediate_size") or 4 * hidden
    time_mixing = 5 * hidden + 4 * hidden * hidden
    channel_mixing = 2 * hidden + 2 * hidden * inner + hidden * hidden
    each = time_mixing + channel_mixing + 4 * hidden
    return _embeddings(config) + len(layers) * each + 4 * hidden


# --- Gemma 3n and 4 ---------------------------------------------------------------------------------------------------


def _gemma4(config: Fields, layers: tuple[_Layer, ...]) -> int:
    """Gemma 4: embeddings for every layer, layers without K and V of their own, some with experts beside the MLP."""
    hidden, own, each = config.hidden, config.optional("hidden_size_per_layer_input") or 0, 0
    inner, by_name = _size(config, "intermediate_size"), {name: k for row in layers for name, k in _named(row)}
    for layer in layers:
        shared = layer.kinds[0].name == "shared"
        kind = by_name[getattr(layer.kinds[0], "of")] if shared else layer.kinds[0]  # noqa: B009
        each += _gemma4_attention(config, kind, shared)
        each += _gated_mlp(config, inner * (2 if shared and config.flag("use_double_wide_mlp") else 1))
        each += 4 * hidden + (2 * own * hidden + hidden if own else 0)
        each += _gemma4_experts(config) if config.flag("enable_moe_block") else 0
    return _embeddings(config) + each + hidden + _per_layer_embeddings(config, len(layers), own)


def _named(layer: _Layer) -> Iterable[tuple[str, Any]]:
    return zip(layer.names, layer.kinds, strict=True)


def _gemma4_attention(config: Fields, kind: Heads, shared: bool) -> int:
    """Return Q and the output, and K and V where they are the layer's own; V may be K, in the global layers."""
    bias = config.flag("attention_bias")
    query, key = kind.heads * kind.head_dim, kind.kv_heads * kind.head_dim
    same = config.flag("attention_k_eq_v") and kind.name != "sliding"
    own = 0 if shared else _linear(config.hidden, key * (1 if same else 2), bias) + kind.head_dim
    return _linear(config.hidden, query, bias) + kind.head_dim + own + _linear(query, config.hidden, bias)


def _gemma4_experts(config: Fields) -> int:
    """Return experts with a scaled router and a factor for each expert, and the norms around them."""
    count = _size(config, *EXPERTS)
    return _experts(config, _size(config, "moe_intermediate_size")) + 4 * config.hidden + count


def _per_layer_embeddings(config: Fields, layers: int, own: int) -> int:
    """Return the vectors that every token has for every layer, and the projection to them."""
    if not own:
        return 0
    return layers * own * (_size(config, "vocab_size_per_layer_input") + config.hidden) + own


def _gemma3n(config: Fields, layers: tuple[_Layer, ...]) -> int:
    """Gemma 3n: AltUp's copies of the stream, LAuReL's low-rank residuals, embeddings for every layer."""
    hidden, own = config.hidden, _size(config, "hidden_size_per_layer_input")
    copies, rank = _size(config, "altup_num_inputs"), _size(config, "laurel_rank")
    listed = isinstance(config.get("intermediate_size"), list)
    sizes = (
        (config.integers("intermediate_size") or []) if listed else [_size(config, "intermediate_size")] * len(layers)
    )
    if len(sizes) != len(layers) or min(sizes) < 0:
        raise _NotCountedError("intermediate_size does not have every layer")
    altup = copies**2 + copies**3 + copies * hidden + (2 if config.flag("altup_correct_scale") else 1) * hidden
    each = altup + 2 * rank * hidden + hidden + 2 * own * hidden + hidden + 4 * hidden
    by_name = {name: kind for layer in layers for name, kind in _named(layer)}
    total = _embeddings(config) + hidden + _per_layer_embeddings(config, len(layers), own)
    total += 2 * (copies - 1) * hidden * hidden
    for layer, size in zip(layers, sizes, strict=True):
        shared = layer.kinds[0].name == "shared"
        kind = by_name[getattr(layer.kinds[0], "of")] if shared else layer.kinds[0]  # noqa: B009
        total += each + _gemma4_attention(config, kind, shared) + _gated_mlp(config, size)
    return total


# --- Encoder and decoder ----------------------------------------------------------------------------------------------


def _t5(config: Fields, layers: tuple[_Layer, ...]) -> int:
    """T5: no biases; relative positions in the first layer of each half; gated MLPs since 1.1."""
    width, inner, model = config.heads * _size(config, "d_kv"), _size(config, "d_ff"), config.hidden
    gated = config.flag("is_gated_act") or str(config.get("feed_forward_proj")).startswith("gated-")
    mlp = (3 if gated else 2) * model * inner + model
    attention = 4 * model * width + model
    encoder = _size(config, "num_layers") * (attention + mlp)
    positions = 2 * _size(config, "relative_attention_num_buckets") * config.heads
    return _embeddings(config) + encoder + len(layers) * (2 * attention + mlp) + positions + 2 * model


def _bart(config: Fields, layers: tuple[_Layer, ...]) -> int:
    """BART: biases everywhere, learned positions with two in front, a norm after the embeddings of each half."""
    _require_tied(config)
    model = config.hidden
    attention = 4 * _linear(model, model, bias=True) + 2 * model
    half = _feed_forward_halves(config)
    positions = 2 * ((_size(config, "max_position_embeddings") + 2) * model + 2 * model)
    encoder = _size(config, "encoder_layers") * (attention + half[0])
    return _embeddings(config) + positions + encoder + len(layers) * (2 * attention + half[1])


def _feed_forward_halves(config: Fields) -> list[int]:
    """Return the MLP and its norm of an encoder layer and of a decoder layer."""
    sizes = [_size(config, f"{side}_ffn_dim") for side in ("encoder", "decoder")]
    return [_plain_mlp(config, size, bias=True) + 2 * config.hidden for size in sizes]


def _whisper(config: Fields, layers: tuple[_Layer, ...]) -> int:
    """Whisper: two convolutions over the mel bands; keys have no bias; a norm after each half."""
    model = config.hidden
    attention = 4 * _linear(model, model, bias=True) - model + 2 * model
    half = _feed_forward_halves(config)
    sound = 3 * model * (_size(config, "num_mel_bins") + model) + 2 * model
    positions = (_size(config, "max_source_positions") + _size(config, "max_target_positions")) * model
    encoder = _size(config, "encoder_layers") * (attention + half[0])
    return _embeddings(config) + sound + positions + encoder + len(layers) * (2 * attention + half[1]) + 4 * model


def _internlm(config: Fields, layers: tuple[_Layer, ...]) -> int:
    """InternLM 2 and 3: as Llama; their own switches for biases are off in what has been checked."""
    _require_off(config, "bias", "qkv_bias", "attention_bias", "mlp_bias")
    return _Dense()(config, layers)


_LATENT = ("deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa", "kimi_k2", "mistral4")

_COUNTERS: dict[str, _Counter] = {
    **_DENSE,
    "bamba": _bamba,
    "bart": _bart,
    "bloom": _bloom,
    "codegen": _gptj,
    "dbrx": _dbrx,
    **dict.fromkeys(_LATENT, _deepseek),
    "ernie4_5_moe": _ernie_moe,
    "falcon": _falcon,
    "falcon_h1": _falcon_h1,
    "falcon_mamba": _mamba_model,
    "gemma3n_text": _gemma3n,
    "gemma4_text": _gemma4,
    "glm4_moe": _glm4_moe,
    "gpt2": _gpt2,
    "gpt_bigcode": _gpt2,
    "gpt_neox": _gpt_neox,
    "gpt_oss": _gpt_oss,
    "gptj": _gptj,
    "granitemoe": _mixtral,
    "granitemoehybrid": _bamba,
    "jamba": _jamba,
    "kimi_linear": _kimi_linear,
    "lfm2": _lfm2,
    "lfm2_moe": _lfm2_moe,
    "internlm2": _internlm,
    "internlm3": _internlm,
    "llama4_text": _llama4,
    "mamba": _mamba_model,
    "mamba2": _mamba2_model,
    "minicpm3": _minicpm3,
    "mimo_v2_flash": _mimo_v2,
    **dict.fromkeys(("minimax", "minimax_text_01", "minimax_m1"), _minimax),
    "minimax_m2": _olmoe,
    "mllama_text_model": _mllama,
    "mixtral": _mixtral,
    "mpt": _mpt,
    "nemotron_h": _nemotron_h,
    "olmo_hybrid": _olmo_hybrid,
    "olmoe": _olmoe,
    "opt": _opt,
    "phimoe": _phimoe,
    "qwen2_moe": _qwen_moe,
    "qwen3_moe": _qwen_moe,
    **dict.fromkeys(("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_next"), _qwen_hybrid),
    "recurrent_gemma": _recurrent_gemma,
    "rwkv": _rwkv4,
    "t5": _t5,
    "whisper": _whisper,
    "zamba": _zamba,
}

_VISION = "the head is part of the vision model's class, which is not counted"
_WHY_NOT: dict[str, str] = {
    **dict.fromkeys(("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"), _VISION),
    **dict.fromkeys(("qwen3_vl_text", "qwen3_vl_moe_text"), _VISION),
    "deepseek_v4": "its class in transformers counts tables that the checkpoint stores otherwise",
    "hunyuan_v1_moe": "its class in transformers cannot be built to check a count against",
    "longcat_flash": "its class in transformers has experts that the checkpoint does not have",
    "zamba2": "its shared blocks have adapters of their own for every place where they are used",
}
