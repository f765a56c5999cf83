"""What each Hugging Face model type derives from its fields: which layers attend, to how much, and which keep a state.

One small function per family. The rules are those of the configuration and modelling classes of transformers, and of
the code that is published with the models that it does not have. A window that a model type ignores stays ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from kvcalc.read.hf_fields import Fields, shown
from kvcalc.spec.model import NO_KIND

Pattern: TypeAlias = "list[str | list[str]]"
Kinds: TypeAlias = "dict[str, dict[str, Any]]"


@dataclass
class Layout:
    """What a family's function finds: named kinds, their order, and what differs from the usual top level.

    Without kinds, every layer is full attention.
    """

    kinds: Kinds = field(default_factory=dict)
    pattern: Pattern = field(default_factory=list)
    top: dict[str, Any] = field(default_factory=dict)


Family: TypeAlias = "Callable[[Fields], Layout]"


def _layout(kinds: Kinds, pattern: Pattern, **top: Any) -> Layout:
    """Return a layout without the kinds that no layer has."""
    named = {name for entry in pattern for name in ([entry] if isinstance(entry, str) else entry)}
    return Layout({name: kind for name, kind in kinds.items() if name in named}, pattern, top)


# --- Attention: full, with windows, in chunks ---------------------------------------------------------------------


def _full(config: Fields) -> Layout:
    """Every layer attends to every token, whatever `sliding_window` says."""
    config.layer_types("full_attention")
    return Layout()


def _window_everywhere(config: Fields) -> Layout:
    """A `sliding_window` without a layer list applies to every layer (Mistral, Mixtral, Phi-3, StarCoder2)."""
    types = config.layer_types("full_attention", "sliding_attention")
    window = config.positive("sliding_window")
    return _local_and_global(config, [name == "sliding_attention" for name in types or []] or [bool(window)])


def _window_if_used(config: Fields) -> Layout:
    """Qwen: the window counts only with `use_sliding_window`, and from layer `max_window_layers` on."""
    types = config.layer_types("full_attention", "sliding_attention")
    if not config.flag("use_sliding_window") or not config.positive("sliding_window"):
        return Layout()
    first = config.optional("max_window_layers") or 0
    local = [index >= first for index in range(config.layers)]
    return _local_and_global(config, [name == "sliding_attention" for name in types] if types else local)


def _smollm3(config: Fields) -> Layout:
    """SmolLM3: the window counts only with `use_sliding_window`, in the layers without rotary embedding."""
    types = config.layer_types("full_attention", "sliding_attention")
    if not config.flag("use_sliding_window") or not config.positive("sliding_window"):
        return Layout()
    every = config.positive("no_rope_layer_interval") or 4
    rotary: Sequence[Any] = config.per_layer("no_rope_layers") or _all_but_every(every, config)
    local = [not flag for flag in rotary]
    return _local_and_global(config, [name == "sliding_attention" for name in types] if types else local)


def _alternating(every: int) -> Family:
    """Return a family whose every n-th layer is global and the others have the window."""

    def family(config: Fields) -> Layout:
        return _local_and_global(config, _local_layers(config, every))

    return family


def _local_layers(config: Fields, every: int) -> list[bool]:
    """Return which layers have the window: as listed, else all but every n-th."""
    types = config.layer_types("full_attention", "sliding_attention")
    if types:
        return [name == "sliding_attention" for name in types]
    # Cohere and EXAONE write the period as layer_switch, or as letters: LLLG.
    written = config.get("sliding_window_pattern", "_sliding_window_pattern", "layer_switch")
    if isinstance(written, str) and written and set(written) <= set("LG"):
        return [written[index % len(written)] == "L" for index in range(config.layers)]
    step = config.positive("sliding_window_pattern", "_sliding_window_pattern", "layer_switch") or every
    return _all_but_every(step, config)


def _all_but_every(step: int, config: Fields) -> list[bool]:
    return [(index + 1) % step != 0 for index in range(config.layers)]


def _local_and_global(config: Fields, local: Sequence[bool]) -> Layout:
    """Return windows where `local` says so and full attention elsewhere; full attention alone needs no kinds."""
    if not any(local):
        return Layout()
    kinds: Kinds = {"local": _sliding(config), "global": {"kind": "full"}}
    return _layout(kinds, ["local" if is_local else "global" for is_local in local])


def _sliding(config: Fields, name: str = "sliding_window") -> dict[str, Any]:
    return {"kind": "sliding", "window": config.integer(name)}


def _gemma3(config: Fields) -> Layout:
    """Gemma 3: of every six layers one is global. EmbeddingGemma attends both ways and keeps no cache."""
    if config.get("use_bidirectional_attention") is True:
        config.fail("use_bidirectional_attention", "is true: this is an encoder, and keeps no KV cache")
    return _alternating(6)(config)


def _exaone4(config: Fields) -> Layout:
    """EXAONE 4: of every four layers one is global; without a window, all are."""
    if not config.positive("sliding_window"):
        return Layout()
    return _alternating(4)(config)


def _gemma3n(config: Fields) -> Layout:
    """Gemma 3n: of every five layers one is global; the last `num_kv_shared_layers` read earlier layers' KV."""
    return _share_last(_alternating(5)(config), config)


def _gemma4(config: Fields) -> Layout:
    """Gemma 4: global layers have a head size and KV heads of their own; the last layers may share KV."""
    local = _local_layers(config, 6)
    local[-1] = False  # the configuration class makes the last layer global whatever the list says
    layout = _local_and_global(config, local)
    if not layout.kinds:
        config.fail("layer_types", "names no sliding_attention; a Gemma 4 has local and global layers")
    layout.kinds["global"].update(_gemma4_global(config, [index for index, flag in enumerate(local) if not flag]))
    return _share_last(layout, config)


def _gemma4_global(config: Fields, layers: list[int]) -> dict[str, Any]:
    """Return what differs in the global layers: fields of their own, or since transformers 5.24 `per_layer_config`."""
    written = config.data.get("per_layer_config")
    if written is None:
        wide: dict[str, Any] = {"head_dim": config.positive("global_head_dim") or 512}
        heads = config.positive("num_global_key_value_heads") if config.get("attention_k_eq_v") is not False else None
        return {**wide, **({"kv_heads": heads} if heads else {})}
    per_layer = list(written.values()) if isinstance(written, dict) else []
    same = all(isinstance(item, dict) and item == per_layer[0] for item in per_layer)
    named = sorted(int(key) for key in written if key.isdecimal() and len(key) < 6) if isinstance(written, dict) else []
    if not per_layer or not same or named != layers or len(written) != len(layers):
        config.fail("per_layer_config", "must say the same of every global layer, and nothing of the others")
    own = Fields(per_layer[0], config.model_type, config.file, config.text)
    own.defaults = {}
    if set(own.data) - {"head_dim", "num_key_value_heads"}:
        config.fail("per_layer_config", f"has {shown(sorted(own.data))}; known: head_dim, num_key_value_heads")
    found = {"head_dim": own.positive("head_dim"), "kv_heads": own.positive("num_key_value_heads")}
    return {name: value for name, value in found.items() if value}


def _share_last(layout: Layout, config: Fields) -> Layout:
    """Turn the last `num_kv_shared_layers` into layers that read the KV of the last earlier layer of their kind."""
    shared = config.optional("num_kv_shared_layers") or 0
    if not shared:
        return layout
    first = len(layout.pattern) - shared
    if first < 1 or set(map(str, layout.pattern[first:])) - set(map(str, layout.pattern[:first])):
        config.fail("num_kv_shared_layers", f"{shared} of {len(layout.pattern)} layers have no layer to read from")
    for index in range(first, len(layout.pattern)):
        name = str(layout.pattern[index])
        layout.kinds[f"shared_{name}"] = {"kind": "shared", "of": name}
        layout.pattern[index] = f"shared_{name}"
    return layout


def _llama4(config: Fields) -> Layout:
    """Llama 4: chunked attention except where rotary embedding is off (every fourth layer)."""
    types = config.layer_types("full_attention", "chunked_attention")
    chunk = config.positive("attention_chunk_size")
    if not chunk:
        return Layout()
    # no_rope_layers: 1 where the layer has rotary embedding, and then chunks; an empty list means the default.
    rotary = config.per_layer("no_rope_layers") if config.get("no_rope_layers") else None
    chunked: Sequence[Any] = rotary or _all_but_every(config.positive("no_rope_layer_interval") or 4, config)
    if types:
        chunked = [name == "chunked_attention" for name in types]
    kinds: Kinds = {"chunked": {"kind": "chunked", "chunk": chunk}, "global": {"kind": "full"}}
    return _layout(kinds, ["chunked" if flag else "global" for flag in chunked])


def _mimo_v2(config: Fields) -> Layout:
    """MiMo-V2: sliding layers have KV heads of their own; K and V heads differ in size."""
    hybrid = config.per_layer("hybrid_layer_pattern")
    types = config.layer_types("full_attention", "sliding_attention") or []
    if not hybrid and not types:
        config.fail("hybrid_layer_pattern", "is missing; it says which layers have a window")
    layout = _local_and_global(config, [flag == 1 for flag in hybrid or []] or [name[0] == "s" for name in types])
    # transformers writes none of these: sliding layers have twice the KV heads there.
    own = {"heads": config.positive("swa_num_attention_heads"), "head_dim": config.positive("swa_head_dim"),
           "v_head_dim": config.positive("swa_v_head_dim"),
           "kv_heads": config.positive("swa_num_key_value_heads") or 2 * config.kv_heads}  # fmt: skip
    if "local" in layout.kinds:
        layout.kinds["local"].update({name: value for name, value in own.items() if value})
    if config.positive("v_head_dim"):
        layout.top["v_head_dim"] = config.positive("v_head_dim")
    return layout


def _step3(config: Fields) -> Layout:
    """Step 3.5 and 3.7: `layer_types`; sliding layers may have heads of their own (`attention_other_setting`)."""
    types = config.layer_types("full_attention", "sliding_attention") or ["full_attention"] * config.layers
    layout = _local_and_global(config, [name == "sliding_attention" for name in types])
    if "local" in layout.kinds:
        layout.kinds["local"].update(_step3_local(config))
    groups = config.positive("num_attention_groups")
    return Layout(layout.kinds, layout.pattern, {"kv_heads": groups} if groups else {})


def _step3_local(config: Fields) -> dict[str, int]:
    """Return the heads of sliding layers where they differ."""
    own = {"num_attention_heads": "heads", "num_attention_groups": "kv_heads", "head_dim": "head_dim"}
    if not isinstance(config.data.get("attention_other_setting"), dict):
        heads = config.positive("num_sliding_attention_heads")
        return {"heads": heads} if heads else {}
    other = config.nested("attention_other_setting")
    return {name: value for key, name in own.items() if (value := other.positive(key))}


def _minimax_m2(config: Fields) -> Layout:
    """MiniMax-M2: full attention; the list that MiniMax-01 mixed its layers with says 1 for all."""
    if set(config.integers("attn_type_list") or [1]) != {1}:
        config.fail("attn_type_list", "has layers other than 1 (full attention), which model type minimax_m2 has not")
    return _full(config)


def _minimax_m3(config: Fields) -> Layout:
    """MiniMax-M3: full attention, and an indexer in the layers that `sparse_attention_config` marks."""
    types = config.layer_types("full_attention", "minimax_m3_sparse")
    if types:
        sparse: Sequence[Any] = [name == "minimax_m3_sparse" for name in types]
        index = config.integer("index_head_dim")
    else:
        settings = config.nested("sparse_attention_config")
        if not settings.flag("use_sparse_attention"):
            return Layout()
        sparse, index = settings.integers("sparse_attention_freq") or [], settings.integer("sparse_index_dim")
        if len(sparse) < config.layers:
            config.fail("sparse_attention_freq", f"has {len(sparse)} entries for {config.layers} layers")
    kinds: Kinds = {"full": {"kind": "full"}, "indexer": {"kind": "indexer", "index_head_dim": index}}
    return _layout(kinds, [["full", "indexer"] if flag else "full" for flag in sparse[: config.layers]])


# --- Latent attention -------------------------------------------------------------------------------------------------


def _mla_kind(config: Fields) -> dict[str, Any]:
    kind: dict[str, Any] = {"kind": "mla"}
    for name in ("kv_lora_rank", "qk_rope_head_dim"):
        kind[name] = config.integer(name)
    for name in ("qk_nope_head_dim", "v_head_dim"):
        value = config.positive(name)
        if value:
            kind[name] = value
    if config.model_type == "minicpm3":
        kind.setdefault("v_head_dim", config.hidden // config.heads)
    return kind


def _mla(config: Fields) -> Layout:
    """Latent attention in every layer; DeepSeek's small vision models switch it off."""
    config.layer_types("full_attention")
    if config.get("use_mla") is False:
        return Layout(top={"head_dim": config.hidden // config.heads})
    return Layout({"mla": _mla_kind(config)}, ["mla"])


def _mla_twice(config: Fields) -> Layout:
    """LongCat-Flash: two latent attentions in every layer."""
    layers = config.optional("num_layers") or config.layers // 2
    return Layout({"mla": _mla_kind(config)}, ["mla"], {"layers": 2 * layers})


def _mla_indexed(config: Fields) -> Layout:
    """Latent attention with sparse selection; layers of indexer type `shared` reuse another's selection."""
    config.layer_types("full_attention", "indexed_attention")
    index = {"kind": "indexer", "index_head_dim": config.integer("index_head_dim")}
    pattern: Pattern = [["mla", "indexer"] if own else "mla" for own in _own_indexers(config)]
    return _layout({"mla": _mla_kind(config), "indexer": index}, pattern)


def _own_indexers(config: Fields) -> list[bool]:
    """Return which layers have an indexer of their own: as listed, as a pattern of F and S, or every n-th."""
    types = config.strings("indexer_types")
    if types is None and isinstance(config.get("index_topk_pattern"), str):
        types = [{"F": "full", "S": "shared"}.get(letter, letter) for letter in config.get("index_topk_pattern")]
    if types is None:
        every = config.positive("index_topk_freq") or 1
        offset = config.optional("index_skip_topk_offset")
        first = 2 if offset is None else offset
        return [max(index - first + 1, 0) % every == 0 for index in range(config.layers)]
    if len(types) < config.layers or set(types) - {"full", "shared"}:
        config.fail("indexer_types", f"must name 'full' or 'shared' for {config.layers} layers")
    return [name == "full" for name in types[: config.layers]]


def _deepseek_v4(config: Fields) -> Layout:
    """DeepSeek-V4: `compress_ratios` per layer (0 a plain window, 4 CSA, 128 HCA), or the same by names."""
    window, index = _sliding(config), config.integer("index_head_dim")
    names = {0: "local", 4: "csa", 128: "hca"}
    ratios = config.per_layer("compress_ratios")
    types = config.layer_types("sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention")
    rates = config.get("compress_rates") or {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
    if rates != {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}:
        config.fail("compress_rates", f"is {shown(rates)}; known: 4 (CSA) and 128 (HCA)")
    if types:
        short = {"sliding_attention": "local", "compressed_sparse_attention": "csa"}
        pattern: Pattern = [short.get(name, "hca") for name in types]
    elif ratios is None:
        config.fail("compress_ratios", f"is missing; it says how each of the {config.layers} layers compresses")
    else:
        unknown = sorted(set(ratios) - set(names))
        if unknown:
            config.fail("compress_ratios", f"has the ratio {unknown[0]}; known: 0 (window), 4 (CSA), 128 (HCA)")
        pattern = [names[ratio] for ratio in ratios]
    compressed = {**window, "kind": "compressed"}
    kinds: Kinds = {
        "local": {**window, "kv_heads": 1, "v_head_dim": 0},
        "csa": {**compressed, "ratio": 4, "index_head_dim": index},
        "hca": {**compressed, "ratio": 128},
    }
    return _layout(kinds, pattern)


# --- Recurrent states -------------------------------------------------------------------------------------------------


def _two_kinds(name: str, state: dict[str, Any], attends: Sequence[bool]) -> Layout:
    kinds: Kinds = {name: state, "attention": {"kind": "full"}}
    return _layout(kinds, ["attention" if flag else name for flag in attends])


def _state(variant: str, **sizes: int) -> dict[str, Any]:
    return {"kind": "state", "variant": variant, **sizes}


def _gated_delta(config: Fields) -> Layout:
    """Qwen3-Next, Qwen3.5 and OLMo Hybrid: gated DeltaNet, and full attention every fourth layer or as listed."""
    key_heads, value_heads = (config.positive(f"linear_num_{what}_heads") or config.heads for what in ("key", "value"))
    key_dim = config.positive("linear_key_head_dim") or 3 * config.hidden // 4 // key_heads
    state = _state(
        "gated_deltanet",
        key_heads=key_heads,
        value_heads=value_heads,
        key_head_dim=key_dim,
        value_head_dim=config.positive("linear_value_head_dim") or 2 * key_dim,
        conv_kernel=config.integer("linear_conv_kernel_dim"),
    )
    types = config.layer_types("full_attention", "linear_attention")
    every = config.positive("full_attention_interval") or 4
    linear = [name == "linear_attention" for name in types] if types else _all_but_every(every, config)
    return _two_kinds("linear", state, [not flag for flag in linear])


def _kimi_linear(config: Fields) -> Layout:
    """Kimi Linear and Kimi K3: KDA, and latent attention in the layers that are listed.

    Published configs nest the sizes and count layers from 1; transformers writes both flat, with `layer_types`.
    """
    types = config.layer_types("full_attention", "linear_attention")
    if types:
        sizes, names = config, ("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")
        attends = [name == "full_attention" for name in types]
    else:
        sizes, names = config.nested("linear_attn_config"), ("num_heads", "head_dim", "short_conv_kernel_size")
        attends = _kimi_attending(sizes, config.layers)
    heads, head_dim, kernel = (sizes.integer(name) for name in names)
    kda = _state("kda", state_heads=heads, state_head_dim=head_dim, conv_kernel=kernel)
    return _layout({"linear": kda, "mla": _mla_kind(config)}, ["mla" if flag else "linear" for flag in attends])


def _kimi_attending(linear: Fields, layers: int) -> list[bool]:
    """Return which layers attend, after checking that the two lists name every layer."""
    attending = linear.integers("full_attn_layers") or []
    recurrent = linear.integers("kda_layers")
    if recurrent is not None and sorted([*attending, *recurrent]) != list(range(1, layers + 1)):
        linear.fail("kda_layers", f"and full_attn_layers together must name each of {layers} layers, from 1, once")
    return [layer in set(attending) for layer in range(1, layers + 1)]


def _minimax(config: Fields) -> Layout:
    """MiniMax-Text-01 and M1: lightning attention, and full attention as listed (1 in `attn_type_list`)."""
    state = _state("lightning", state_heads=config.heads, state_head_dim=config.head_dim)
    types = config.layer_types("full_attention", "linear_attention")
    listed = config.per_layer("attn_type_list")
    if types:
        return _two_kinds("linear", state, [name == "full_attention" for name in types])
    if listed:
        return _two_kinds("linear", state, [flag == 1 for flag in listed])
    return _two_kinds("linear", state, [index % 2 == 0 for index in range(config.layers)])


def _mamba1_kind(config: Fields, prefix: str = "") -> dict[str, Any]:
    """Return Mamba 1; hybrids prefix its fields with `mamba_` and have MLPs of another `intermediate_size`."""
    channels = None if prefix else config.positive("intermediate_size", "d_inner")
    return _state(
        "mamba1",
        channels=channels or config.integer(f"{prefix}expand") * config.hidden,
        state_size=config.integer(f"{prefix}d_state", "state_size"),
        conv_kernel=config.integer(f"{prefix}d_conv", "conv_kernel"),
    )


def _mamba(config: Fields) -> Layout:
    """Mamba and Falcon Mamba: a state in every layer."""
    return Layout({"mamba": _mamba1_kind(config)}, ["mamba"])


def _jamba(config: Fields) -> Layout:
    """Jamba: Mamba, and full attention every `attn_layer_period` layers from `attn_layer_offset` on."""
    types = config.layer_types("full_attention", "linear_attention")
    period, offset = config.integer("attn_layer_period"), config.integer("attn_layer_offset")
    if not period:
        config.fail("attn_layer_period", "must be at least 1")
    attends = [index % period == offset for index in range(config.layers)]
    if types:
        attends = [name == "full_attention" for name in types]
    return _two_kinds("mamba", _mamba1_kind(config, "mamba_"), attends)


def _mamba2_kind(heads: int, head_dim: int, groups: int, state: int, kernel: int) -> dict[str, Any]:
    sizes = {"state_heads": heads, "state_head_dim": head_dim, "groups": groups, "state_size": state}
    return _state("mamba2", **sizes, conv_kernel=kernel)


def _mamba2(config: Fields) -> Layout:
    """Mamba 2: a state in every layer."""
    sizes = (config.integer(name) for name in ("num_heads", "head_dim", "n_groups", "state_size", "conv_kernel"))
    no_attention = {"heads": None, "kv_heads": None, "head_dim": None}
    return Layout({"mamba": _mamba2_kind(*sizes)}, ["mamba"], no_attention)


def _mamba2_prefixed(config: Fields) -> dict[str, Any]:
    """Bamba, Granite 4 and Falcon-H1 prefix their Mamba 2 fields with `mamba_`."""
    heads = config.positive("mamba_n_heads") or config.fail("mamba_n_heads", "is missing")
    inner = config.positive("mamba_d_ssm") or config.integer("mamba_expand") * config.hidden
    wide = inner // heads if config.get("mamba_d_head") in (None, "auto") else config.integer("mamba_d_head")
    sizes = config.integer("mamba_n_groups"), config.integer("mamba_d_state"), config.integer("mamba_d_conv")
    return _mamba2_kind(heads, wide, *sizes)


def _bamba(config: Fields) -> Layout:
    """Bamba: Mamba 2, and full attention in `attn_layer_indices`."""
    types = config.layer_types("full_attention", "linear_attention")
    listed = set(config.integers("attn_layer_indices") or [])
    attends = [name == "full_attention" for name in types or []] or [index in listed for index in range(config.layers)]
    return _two_kinds("mamba", _mamba2_prefixed(config), attends)


def _granite_hybrid(config: Fields) -> Layout:
    """Granite 4: `layer_types` (or `layers_block_type`) names the layers; without it all are Mamba 2."""
    types = config.layer_types("full_attention", "linear_attention") or ["linear_attention"] * config.layers
    return _two_kinds("mamba", _mamba2_prefixed(config), [name == "full_attention" for name in types])


def _falcon_h1(config: Fields) -> Layout:
    """Falcon-H1: attention and Mamba 2 side by side in every layer."""
    return Layout({"attention": {"kind": "full"}, "mamba": _mamba2_prefixed(config)}, [["attention", "mamba"]])


def _nemotron_h(config: Fields) -> Layout:
    """Nemotron-H: one letter per layer: M Mamba 2, * attention, - MLP, E experts; or the same by names."""
    names = {"linear_attention": "mamba", "full_attention": "attention", "moe": NO_KIND, "mlp": NO_KIND}
    letters = config.get("hybrid_override_pattern")
    if isinstance(letters, str):
        by_letter = {"M": "mamba", "*": "attention", "-": NO_KIND, "E": NO_KIND}
        if set(letters) - set(by_letter):
            config.fail("hybrid_override_pattern", "has a letter that is none of M (Mamba), * (attention), - (MLP), E")
        if len(letters) != config.layers:
            config.fail("hybrid_override_pattern", f"describes {len(letters)} layers, not {config.layers}")
        pattern: Pattern = [by_letter[letter] for letter in letters]
    else:
        types = config.layer_types(*names)
        if types is None:
            config.fail("hybrid_override_pattern", "is missing; it says what each layer is")
        pattern = [names[name] for name in types]
    sizes = config.integer("n_groups"), config.integer("ssm_state_size"), config.integer("conv_kernel")
    mamba = _mamba2_kind(config.integer("mamba_num_heads"), config.integer("mamba_head_dim"), *sizes)
    return _layout({"mamba": mamba, "attention": {"kind": "full"}}, pattern)


def _zamba(config: Fields) -> Layout:
    """Zamba: Mamba 1 in every layer, and in hybrid layers attention over twice the hidden size beside it."""
    types = config.layer_types("linear_attention", "hybrid")
    period, offset = config.integer("attn_layer_period"), config.integer("attn_layer_offset")
    if not period:
        config.fail("attn_layer_period", "must be at least 1")
    # The third layer is hybrid; the period counts from the fourth.
    hybrid = [index == 2 or (index > 2 and (index - 3) % period == offset) for index in range(config.layers)]
    if types:
        hybrid = [name == "hybrid" for name in types]
    wide = config.positive("attention_head_dim") or 2 * config.hidden // config.heads
    return _zamba_layers(_mamba1_kind(config, "mamba_"), hybrid, wide)


def _zamba2(config: Fields) -> Layout:
    """Zamba 2: the same with Mamba 2; the head size follows from the hidden size, whatever the config says."""
    types, listed = config.layer_types("linear_attention", "hybrid"), config.integers("hybrid_layer_ids")
    if types is None and listed is None:
        config.fail("layers_block_type", "is missing; it (or hybrid_layer_ids) says which layers attend")
    heads = config.positive("n_mamba_heads") or config.fail("n_mamba_heads", "is missing")
    sizes = config.integer("mamba_ngroups"), config.integer("mamba_d_state"), config.integer("mamba_d_conv")
    mamba = _mamba2_kind(heads, config.integer("mamba_expand") * config.hidden // heads, *sizes)
    hybrid = [name == "hybrid" for name in types or []] or [index in (listed or []) for index in range(config.layers)]
    return _zamba_layers(mamba, hybrid, 2 * config.hidden // config.heads)


def _zamba_layers(mamba: dict[str, Any], hybrid: Sequence[bool], head_dim: int) -> Layout:
    kinds: Kinds = {"mamba": mamba, "attention": {"kind": "full"}}
    return _layout(kinds, [["mamba", "attention"] if flag else "mamba" for flag in hybrid], head_dim=head_dim)


def _recurrent_gemma(config: Fields) -> Layout:
    """RecurrentGemma: `block_types` repeats: recurrent, recurrent, attention with a window."""
    blocks = config.strings("block_types") or config.strings("_block_types")
    if not blocks or set(blocks) - {"recurrent", "attention"}:
        config.fail("block_types", "must say which layers are 'recurrent' and which 'attention'")
    width = config.positive("lru_width") or config.hidden
    kinds: Kinds = {
        "recurrent": _state("rg_lru", channels=width, conv_kernel=config.integer("conv1d_width")),
        "local": _sliding(config, "attention_window_size"),
    }
    names = ["local" if blocks[index % len(blocks)] == "attention" else "recurrent" for index in range(config.layers)]
    head_dim = config.hidden // config.heads
    return _layout(kinds, list(names), head_dim=head_dim)


def _lfm2(config: Fields) -> Layout:
    """LFM2: short convolutions, and full attention as listed."""
    conv = _state("short_conv", channels=config.hidden, conv_kernel=config.integer("conv_L_cache"))
    types, listed = config.layer_types("full_attention", "conv"), config.integers("full_attn_idxs")
    if types is None and listed is None:
        config.fail("layer_types", "is missing; it (or full_attn_idxs) says which layers attend")
    attends = [name == "full_attention" for name in types or []]
    return _two_kinds("conv", conv, attends or [index in (listed or []) for index in range(config.layers)])


def _rwkv4(config: Fields) -> Layout:
    """RWKV 4."""
    width = config.positive("attention_hidden_size") or config.hidden
    if width != config.hidden:
        config.fail("attention_hidden_size", f"{width} differs from the hidden size {config.hidden}: not covered")
    return Layout({"rwkv": _state("rwkv4", channels=config.hidden)}, ["rwkv"])


def _rwkv5(config: Fields) -> Layout:
    """RWKV 5 and 6: heads of `head_size` over the attention's width."""
    size = config.integer("head_size", "head_dim")
    width = config.positive("attention_hidden_size") or config.hidden
    if not size or width % size:
        config.fail("head_size", f"{size} does not divide the attention's width {width}")
    kind = _state("rwkv", channels=config.hidden, state_heads=width // size, state_head_dim=size)
    return Layout({"rwkv": kind}, ["rwkv"], {"heads": None, "kv_heads": None, "head_dim": None})


# --- Cross-attention --------------------------------------------------------------------------------------------------


def _encoder_decoder(config: Fields) -> Layout:
    """T5, BART and Whisper: every decoder layer attends to itself and to the encoder."""
    top: dict[str, Any] = {"layers": config.positive("num_decoder_layers", "decoder_layers") or config.layers}
    encoder = {"whisper": "max_source_positions", "bart": "max_position_embeddings", "t5": "n_positions"}
    # T5 was trained on 512 positions; transformers 5 no longer writes that.
    length = config.positive(encoder[config.model_type]) or (512 if config.model_type == "t5" else None)
    if length:
        top["encoder_context"] = length
        # Whisper always encodes 30 seconds; the others encode whatever they are given.
        if config.model_type != "whisper":
            top["assumed"] = ["encoder_context"]
    if config.model_type == "t5":
        top["max_context"] = None  # relative positions: n_positions is what it was trained on, not a limit
    return Layout({"self": {"kind": "full"}, "cross": {"kind": "cross"}}, [["self", "cross"]], top)


def _mllama(config: Fields) -> Layout:
    """Llama 3.2 Vision: the listed layers attend to the image instead of the text; text alone leaves them empty."""
    listed = set(config.integers("cross_attention_layers") or [])
    names: Pattern = ["cross" if index in listed else "self" for index in range(config.layers)]
    return _layout({"self": {"kind": "full"}, "cross": {"kind": "cross"}}, names, encoder_context=0)


# --- KV heads under names of their own --------------------------------------------------------------------------------


def _falcon(config: Fields) -> Layout:
    """Falcon's three layouts: grouped with `new_decoder_architecture`, else one KV head, else one per head."""
    if config.flag("new_decoder_architecture"):
        return Layout(top={"kv_heads": config.positive("num_kv_heads", "n_head_kv") or config.heads})
    return Layout(top={"kv_heads": 1 if config.flag("multi_query") else config.heads})


def _multi_query(config: Fields) -> Layout:
    """GPT-BigCode: one KV head with `multi_query`."""
    return Layout(top={"kv_heads": 1 if config.flag("multi_query") else config.heads})


def _attention_config(config: Fields) -> Layout:
    """MPT and DBRX keep their KV heads in a nested `attn_config`; DBRX has one if it is silent, MPT one per head."""
    if not isinstance(config.data.get("attn_config"), dict):
        if config.model_type == "dbrx":
            config.fail("attn_config", "is missing; it has the number of KV heads")
        return Layout(top={"kv_heads": config.heads})
    nested = config.nested("attn_config")
    silent = 1 if config.model_type == "dbrx" else config.heads
    heads = 1 if nested.get("attn_type") == "multiquery_attention" else nested.positive("kv_n_heads") or silent
    return Layout(top={"kv_heads": heads})


def _chatglm(config: Fields) -> Layout:
    """ChatGLM 2, 3 and GLM-4: KV heads count only with `multi_query_attention`."""
    grouped = config.flag("multi_query_attention")
    return Layout(top={"kv_heads": config.integer("multi_query_group_num") if grouped else config.heads})


def _nemotron_nas(config: Fields) -> Layout:
    """Nemotron-NAS (DeciLM): `block_configs` give every layer its own group size, or no attention."""
    blocks = config.data.get("block_configs")
    if not isinstance(blocks, list) or len(blocks) != config.layers:
        config.fail("block_configs", f"must list {config.layers} layers")
    kinds: Kinds = {}
    pattern: Pattern = []
    for block in blocks:
        name, kind = _nas_layer(config, block.get("attention") if isinstance(block, dict) else None)
        if kind is not None:
            kinds[name] = kind
        pattern.append(name)
    return Layout(kinds, pattern, {"kv_heads": None})


def _nas_layer(config: Fields, attention: Any) -> tuple[str, dict[str, Any] | None]:
    """Return a layer's kind by name; None for a layer without attention."""
    if not isinstance(attention, dict):
        config.fail("block_configs", "has a layer without an 'attention' entry")
    if attention.get("no_op") or attention.get("replace_with_linear"):
        return NO_KIND, None
    group = attention.get("n_heads_in_group")
    if type(group) is not int or group < 1 or config.heads % group:
        config.fail("block_configs", f"has n_heads_in_group {shown(group)}, which does not divide {config.heads} heads")
    heads = config.heads // group
    window = attention.get("window_length")
    if window is None:
        return f"kv{heads}", {"kind": "full", "kv_heads": heads}
    if type(window) is not int or window < 1:
        config.fail("block_configs", f"has window_length {shown(window)}, which is not a number of tokens")
    return f"kv{heads}_w{window}", {"kind": "sliding", "window": window, "kv_heads": heads}


# --- The model types that can be read ---------------------------------------------------------------------------------

_FULL_ATTENTION = (
    "apertus",
    "arcee",
    "bloom",
    "codegen",
    "cohere",
    "deepseek",
    "ernie4_5",
    "ernie4_5_moe",
    "exaone",
    "gemma",
    "glm",
    "glm4",
    "glm4_moe",
    "gpt2",
    "gpt_neox",
    "gptj",
    "granite",
    "granitemoe",
    "grok-1",
    "hunyuan_v1_dense",
    "hunyuan_v1_moe",
    "internlm2",
    "internlm3",
    "llama",
    "nemotron",
    "olmo",
    "olmo2",
    "olmoe",
    "opt",
    "phi",
    "phi3small",
    "qwen3_vl_moe_text",
    "qwen3_vl_text",
    "seed_oss",
    "stablelm",
)
_QWEN = ("mimo", "qwen2", "qwen2_moe", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text", "qwen3",
         "qwen3_moe")  # fmt: skip
_GATED_DELTA = ("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "olmo_hybrid")

FAMILIES: dict[str, Family] = {
    **dict.fromkeys(_FULL_ATTENTION, _full),
    **dict.fromkeys(
        ("mistral", "mixtral", "ministral", "ministral3", "phi3", "phimoe", "starcoder2"), _window_everywhere
    ),
    **dict.fromkeys(_QWEN, _window_if_used),
    "smollm3": _smollm3,
    "gemma2": _alternating(2),
    "gpt_oss": _alternating(2),
    "cohere2": _alternating(4),
    "olmo3": _alternating(4),
    "exaone4": _exaone4,
    "gemma3_text": _gemma3,
    "gemma3n_text": _gemma3n,
    "gemma4_text": _gemma4,
    "llama4_text": _llama4,
    "mimo_v2_flash": _mimo_v2,
    "step3p5": _step3,
    "step3p7": _step3,
    "minimax_m2": _minimax_m2,
    "minimax_m3": _minimax_m3,
    "minimax_m3_vl_text": _minimax_m3,
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite", "mistral4", "minicpm3"), _mla),
    "longcat_flash": _mla_twice,
    "deepseek_v32": _mla_indexed,
    "glm_moe_dsa": _mla_indexed,
    "deepseek_v4": _deepseek_v4,
    **dict.fromkeys(_GATED_DELTA, _gated_delta),
    "kimi_linear": _kimi_linear,
    "kimi_k3": _kimi_linear,
    **dict.fromkeys(("minimax", "minimax_text_01", "minimax_m1"), _minimax),
    "mamba": _mamba,
    "falcon_mamba": _mamba,
    "mamba2": _mamba2,
    "jamba": _jamba,
    "bamba": _bamba,
    "granitemoehybrid": _granite_hybrid,
    "falcon_h1": _falcon_h1,
    "nemotron_h": _nemotron_h,
    "zamba": _zamba,
    "zamba2": _zamba2,
    "recurrent_gemma": _recurrent_gemma,
    "lfm2": _lfm2,
    "lfm2_moe": _lfm2,
    "rwkv": _rwkv4,
    "rwkv5": _rwkv5,
    "rwkv6": _rwkv5,
    **dict.fromkeys(("t5", "bart", "whisper"), _encoder_decoder),
    "mllama_text_model": _mllama,
    "falcon": _falcon,
    "gpt_bigcode": _multi_query,
    "mpt": _attention_config,
    "dbrx": _attention_config,
    "chatglm": _chatglm,
    "nemotron-nas": _nemotron_nas,
}
