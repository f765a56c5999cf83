"""From the YAML as written to a ModelSpec: validation, inherited dimensions, patterns, and messages people can act on."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from kvcalc.errors import BadInput, Problem, SpecError, did_you_mean
from kvcalc.formats import find_format
from kvcalc.spec.documented import Documented
from kvcalc.spec.kinds import KINDS, STATE_VARIANTS, Cross, Heads, Kind, Shared
from kvcalc.spec.model import NO_KIND, Layer, ModelSpec, SpecFile
from kvcalc.spec.yaml_tree import Path_, Tree

# Top-level dimensions that a kind inherits unless it overrides them.
INHERITED = ("heads", "kv_heads", "head_dim", "v_head_dim", "encoder_context")

# What people write for a field that has another name here.
_OTHER_NAMES = {
    "kv_groups": "use kv_heads: the number of key and value heads (papers call them KV groups)",
    "num_key_value_heads": "use kv_heads",
    "num_attention_heads": "use heads",
    "num_hidden_layers": "use layers",
    "n_layer": "use layers",
    "n_head": "use heads",
    "n_embd": "use hidden_size",
    "d_model": "use hidden_size",
    "torch_dtype": "use dtype",
    "max_position_embeddings": "use max_context",
    "seq_len": "use max_context",
    "sliding_window": "use a kind: kinds: {local: {kind: sliding, window: N}} and pattern: [local]",
    "window": "use a kind: kinds: {local: {kind: sliding, window: N}} and pattern: [local]",
    "layer_types": "use pattern",
    "model_type": "use architecture",
}


def resolve(tree: Tree, origin: str = "") -> ModelSpec:
    """Return the ModelSpec that the parsed YAML describes; SpecError lists every problem with its place."""
    if not isinstance(tree.data, dict):
        message = "the file is empty" if tree.data is None else "is not a mapping of keys to values"
        raise SpecError([tree.problem((), f"{message}; a spec starts with 'name: ...'")])
    problems: list[Problem] = []
    written = _spec_file(tree, problems)
    kinds = _kinds(tree, problems)
    _check_dtype(tree, problems)
    if written is None or problems:
        raise SpecError(problems)
    _check_assumed(written, tree, problems)
    layers = _layers(written, kinds, tree, problems)
    if problems:
        raise SpecError(problems)
    return ModelSpec(written, layers, origin)


def _spec_file(tree: Tree, problems: list[Problem]) -> SpecFile | None:
    """Return the validated top level, or None with the problems added."""
    try:
        return SpecFile.model_validate(tree.data)
    except ValidationError as error:
        problems.extend(_explain(item, (), tree, SpecFile) for item in error.errors())
        return None


def _check_dtype(tree: Tree, problems: list[Problem]) -> None:
    dtype = tree.data.get("dtype")
    if not isinstance(dtype, str):
        return
    try:
        find_format(dtype, "dtype")
    except BadInput as error:
        problems.append(tree.problem(("dtype",), str(error)))


def _check_assumed(written: SpecFile, tree: Tree, problems: list[Problem]) -> None:
    for index, name in enumerate(written.assumed):
        if name not in SpecFile.model_fields:
            hint = did_you_mean(name, SpecFile.model_fields)
            problems.append(tree.problem(("assumed", index), f"'{name}' is not a field of a spec{hint}"))


def _kinds(tree: Tree, problems: list[Problem]) -> dict[str, Kind]:
    """Return the named kinds with inherited dimensions filled in; without `kinds`, one called `full`."""
    raw = tree.data.get("kinds")
    if raw is None:
        kind = _kind({"kind": "full"}, (), tree, problems)
        return {"full": kind} if kind else {}
    if not isinstance(raw, dict):
        return {}
    found: dict[str, Kind] = {}
    for name, written in raw.items():
        if name == NO_KIND:
            problems.append(tree.problem(("kinds", name), "'none' is reserved for layers that keep nothing", True))
        elif isinstance(written, dict):
            kind = _kind(written, ("kinds", name), tree, problems)
            if kind:
                found[name] = kind
    return found


def _kind(written: dict[str, Any], path: Path_, tree: Tree, problems: list[Problem]) -> Kind | None:
    """Return one validated kind, or None with the problems added."""
    kind_class = _kind_class(written, path, tree, problems)
    if kind_class is None:
        return None
    known = set(kind_class.model_fields)
    merged = {**_inherited(written, tree.data, known), **written}
    try:
        kind = kind_class.model_validate(merged)
    except ValidationError as error:
        problems.extend(_explain(item, path, tree, kind_class) for item in error.errors())
        return None
    if isinstance(kind, Heads) and kind.heads % kind.kv_heads:
        message = f"heads {kind.heads} is not divisible by kv_heads {kind.kv_heads}"
        problems.append(_at_kind(path, "kv_heads", written, tree, message))
        return None
    return kind


def _kind_class(written: dict[str, Any], path: Path_, tree: Tree, problems: list[Problem]) -> type[Kind] | None:
    """Return the class that `kind` (and for states `variant`) names."""
    name = written.get("kind")
    if name is None:
        problems.append(tree.problem(path, f"has no 'kind'; write one of {', '.join(KINDS)}", True))
        return None
    if not isinstance(name, str) or name not in KINDS:
        hint = did_you_mean(str(name), KINDS) or f"; known: {', '.join(KINDS)}"
        problems.append(tree.problem((*path, "kind"), f"unknown kind '{name}'{hint}"))
        return None
    if name != "state":
        return KINDS[name]
    variant = written.get("variant")
    if not isinstance(variant, str) or variant not in STATE_VARIANTS:
        hint = did_you_mean(str(variant), STATE_VARIANTS) or f"; known: {', '.join(STATE_VARIANTS)}"
        problems.append(tree.problem((*path, "variant"), f"unknown state variant '{variant}'{hint}"))
        return None
    return STATE_VARIANTS[variant]


def _inherited(written: dict[str, Any], top: dict[str, Any], known: set[str]) -> dict[str, Any]:
    """Return the top-level dimensions that the kind takes over, with kv_heads and head_dim worked out."""
    merged = {name: top[name] for name in INHERITED if top.get(name) is not None and name in known}
    heads = written.get("heads", merged.get("heads"))
    if "kv_heads" in known and "kv_heads" not in merged and isinstance(heads, int):
        merged["kv_heads"] = heads
    hidden = top.get("hidden_size")
    if "head_dim" in known and "head_dim" not in merged and isinstance(heads, int) and isinstance(hidden, int):
        merged.update({"head_dim": hidden // heads} if heads > 0 and hidden % heads == 0 else {})
    return merged


def _layers(written: SpecFile, kinds: dict[str, Kind], tree: Tree, problems: list[Problem]) -> tuple[Layer, ...]:
    """Return the layers that the pattern spells out, after checking the pattern against the kinds."""
    pattern: tuple[Any, ...] | None = written.pattern
    if pattern is None:
        if written.kinds is not None and len(kinds) != 1:
            problems.append(
                tree.problem(("kinds",), "several kinds need a 'pattern' that says which layer has which", True)
            )
        pattern = tuple(kinds)[:1]
    if not pattern:
        problems.append(tree.problem(("pattern",), "is empty; name a kind for every layer"))
        return ()
    if len(pattern) > written.layers:
        message = f"has {len(pattern)} entries for {written.layers} layers; it must not be longer than 'layers'"
        problems.append(tree.problem(("pattern",), message))
    names = [(entry,) if isinstance(entry, str) else entry for entry in pattern]
    _check_pattern(names, kinds, tree, problems)
    if problems:
        return ()
    per_entry = [tuple(name for name in entry if name != NO_KIND) for entry in names]
    layers = tuple(_layer(per_entry[index % len(per_entry)], kinds) for index in range(written.layers))
    _check_sources(layers, kinds, tree, problems)
    return layers


def _layer(names: tuple[str, ...], kinds: dict[str, Kind]) -> Layer:
    return Layer(names, tuple(kinds[name] for name in names))


def _check_pattern(names: list[tuple[str, ...]], kinds: dict[str, Kind], tree: Tree, problems: list[Problem]) -> None:
    """Report names that no kind defines, kinds named twice in one layer, and kinds that no entry names."""
    for index, entry in enumerate(names):
        for name in entry:
            if name not in kinds and name != NO_KIND:
                hint = did_you_mean(name, kinds) or f"; defined: {', '.join(kinds)}"
                problems.append(tree.problem(("pattern", index), f"names the undefined kind '{name}'{hint}"))
        if len(set(entry)) < len(entry) or not entry or (NO_KIND in entry and len(entry) > 1):
            problems.append(tree.problem(("pattern", index), "must name different kinds, or 'none' alone"))
    used = {name for entry in names for name in entry}
    for name in kinds:
        if name not in used:
            problems.append(tree.problem(("kinds", name), "is defined, but 'pattern' never names it", True))


def _check_sources(layers: tuple[Layer, ...], kinds: dict[str, Kind], tree: Tree, problems: list[Problem]) -> None:
    """Report shared layers whose source does not exist, keeps nothing itself, or comes later."""
    for name, kind in kinds.items():
        if not isinstance(kind, Shared):
            continue
        path = ("kinds", name, "of")
        source = kinds.get(kind.of)
        if source is None:
            hint = did_you_mean(kind.of, kinds) or f"; defined: {', '.join(kinds)}"
            problems.append(tree.problem(path, f"names the undefined kind '{kind.of}'{hint}"))
        elif not source.entries():
            problems.append(tree.problem(path, f"kind '{kind.of}' keeps nothing that could be shared"))
        else:
            first = next(index for index, layer in enumerate(layers) if name in layer.names)
            if not any(kind.of in layer.names for layer in layers[:first]):
                problems.append(tree.problem(path, f"no layer before layer {first} is of kind '{kind.of}'"))


def _at_kind(path: Path_, name: str, written: dict[str, Any], tree: Tree, message: str) -> Problem:
    """Return a problem at a kind's field, which may stand in the kind or at the top level."""
    if path and name not in written and name in tree.data:
        path = ()
    return tree.problem((*path, name), message)


def _explain(item: Any, path: Path_, tree: Tree, record: type[Documented]) -> Problem:
    """Return pydantic's error as a problem at its place, in words that say what to write."""
    inner = tuple(part for part in item["loc"] if not _is_union_tag(part))
    full = (*path, *inner)
    name = str(inner[-1]) if inner else ""
    if item["type"] == "missing":
        return tree.problem(full, _missing(name, path, record), at_key=True)
    if item["type"] == "extra_forbidden":
        hint = f"; {_OTHER_NAMES[name]}" if name in _OTHER_NAMES else did_you_mean(name, record.model_fields)
        return tree.problem(full, f"unknown key{hint}", at_key=True)
    if path and inner and full not in tree.values and (name,) in tree.values:
        full = (name,)  # the value was inherited from the top level
    return tree.problem(full, _wrong_value(item))


def _is_union_tag(part: str | int) -> bool:
    """Whether pydantic names a member of a union here, which is not a place in the file."""
    return isinstance(part, str) and ("[" in part or part in ("str", "[key]"))


def _missing(name: str, path: Path_, record: type[Documented]) -> str:
    """Return what a missing field means and what to write."""
    if path == () and name == "heads":
        return "is missing; attention layers need it"
    meaning = record.field_docs().get(name, "").rstrip(".")
    optional = " (write null if unknown)" if name in ("max_context", "parameters") else ""
    if name == "head_dim":
        return "is missing, and hidden_size is not divisible by heads; write head_dim"
    return f"is missing{optional}" + (f": {meaning[:1].lower()}{meaning[1:]}" if meaning else "")


def _wrong_value(item: Any) -> str:
    """Return pydantic's complaint about a value in plain words."""
    given, context = item["input"], item.get("ctx", {})
    shown = repr(given) if isinstance(given, str) else "null" if given is None else str(given)
    shown = shown if len(shown) <= 40 else f"{shown[:36]}..."
    match item["type"]:
        case "int_type" | "int_parsing" | "int_from_float":
            return f"must be a whole number, not {shown}"
        case "greater_than_equal":
            return f"must be at least {context['ge']}, not {shown}"
        case "less_than_equal":
            return f"{shown} is out of range; at most {context['le']:,} is possible"
        case "string_type":
            return f"must be text, not {shown}; quote it if it is meant as text"
        case "string_pattern_mismatch" | "string_too_short":
            return f"{shown} is not a valid name; use letters, digits and . _ / : + -"
        case "string_too_long":
            return f"is longer than {context['max_length']} characters"
        case "tuple_type" | "list_type":
            return f"must be a list, for example [a, b], not {shown}"
        case "dict_type" | "model_type" | "mapping_type":
            return f"must be a mapping of keys to values, not {shown}"
        case "literal_error":
            return f"must be {context['expected']}, not {shown}"
        case kind if kind.startswith("date"):
            return f"must be a date as YYYY-MM-DD, not {shown}"
    return f"{item['msg'][:1].lower()}{item['msg'][1:]} (got {shown})"


def with_encoder_context(spec: ModelSpec, encoder_context: int) -> ModelSpec:
    """Return the spec with `encoder_context` in every cross-attention layer."""
    layers = tuple(
        Layer(
            layer.names,
            tuple(
                kind.model_copy(update={"encoder_context": encoder_context}) if isinstance(kind, Cross) else kind
                for kind in layer.kinds
            ),
        )
        for layer in spec.layers
    )
    return ModelSpec(spec.file, layers, spec.origin)


def with_kv_heads(spec: ModelSpec, kv_heads: int) -> ModelSpec:
    """Return the spec with `kv_heads` in every full-attention layer (what-if: MHA, GQA, MQA); BadInput if impossible."""
    layers = []
    for layer in spec.layers:
        kinds = []
        for kind in layer.kinds:
            if isinstance(kind, Heads):
                if kind.heads % kv_heads:
                    raise BadInput(f"kv_heads {kv_heads} does not divide the {kind.heads} heads of {spec.name}")
                kind = kind.model_copy(update={"kv_heads": kv_heads})
            kinds.append(kind)
        layers.append(Layer(layer.names, tuple(kinds)))
    if not any(isinstance(kind, Heads) for layer in layers for kind in layer.kinds):
        raise BadInput(f"{spec.name} has no layer with key and value heads (MLA and recurrent layers have none)")
    return ModelSpec(spec.file, tuple(layers), spec.origin)
