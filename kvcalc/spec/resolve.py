"""From the YAML as written to a ModelSpec: validation, inherited dimensions, patterns, and messages to act on."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from kvcalc.errors import BadInput, Problem, SpecError, did_you_mean
from kvcalc.formats import find_format
from kvcalc.spec.documented import Documented
from kvcalc.spec.kinds import KINDS, STATE_VARIANTS, Cross, Heads, Kind, Shared
from kvcalc.spec.model import NO_KIND, Layer, ModelSpec, Source, SpecFile
from kvcalc.yaml_tree import Path_, Tree

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
    "sliding_window": "use window, in a kind: kinds: {local: {kind: sliding, window: N}} and pattern: [local]",
    "attention_chunk_size": "use chunk, in a kind: kinds: {local: {kind: chunked, chunk: N}} and pattern: [local]",
    "layer_types": "use pattern",
    "model_type": "use architecture",
}

_MOST_EXPLAINED = 100  # of one record; more would only take time, nobody reads them


def resolve(tree: Tree, origin: str = "") -> ModelSpec:
    """Return the ModelSpec that the parsed YAML describes; SpecError lists every problem with its place."""
    if not isinstance(tree.data, dict):
        message = "the file is empty" if tree.data is None else "is not a mapping of keys to values"
        raise SpecError([tree.problem((), f"{message}; a spec starts with 'name: ...'")])
    problems: list[Problem] = []
    written = _spec_file(tree, problems)
    kinds = _kinds(tree, problems)
    _check_dtype(tree, problems)
    _check_date(tree, problems)
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
        problems.extend(_explain(item, (), tree, SpecFile) for item in error.errors()[:_MOST_EXPLAINED])
        return None


def _check_dtype(tree: Tree, problems: list[Problem]) -> None:
    dtype = tree.data.get("dtype")
    if not isinstance(dtype, str):
        return
    try:
        find_format(dtype, "dtype")
    except BadInput as error:
        problems.append(tree.problem(("dtype",), str(error)))


def _check_date(tree: Tree, problems: list[Problem]) -> None:
    """Report a date that pydantic would take for one, such as a number of seconds or a time of day."""
    source = tree.data.get("source")
    checked = source.get("checked") if isinstance(source, dict) else None
    if checked is not None and not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", str(checked)):
        problems.append(tree.problem(("source", "checked"), _date_wanted(checked)))


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
            problems.append(tree.problem(("kinds", name), "'none' means a layer that keeps nothing; rename this", True))
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
        problems.extend(_explain(item, path, tree, kind_class) for item in error.errors()[:_MOST_EXPLAINED])
        return None
    if isinstance(kind, Heads) and kind.heads % kind.kv_heads:
        divisors = ", ".join(str(size) for size in range(1, min(kind.heads, 256) + 1) if kind.heads % size == 0)
        wrong = "is fewer than" if kind.heads < kind.kv_heads else "is not divisible by"
        message = f"heads {kind.heads} {wrong} kv_heads {kind.kv_heads}; use one of {divisors}"
        problems.append(_at_kind(path, "kv_heads", written, tree, message))
        return None
    return kind


def _kind_class(written: dict[str, Any], path: Path_, tree: Tree, problems: list[Problem]) -> type[Kind] | None:
    """Return the class that `kind` (and for states `variant`) names, or None with the problem added."""
    for key, meaning, known in (("kind", "kind of layer", KINDS), ("variant", "variant of state", STATE_VARIANTS)):
        name, choices = written.get(key), ", ".join(known)
        if name is None:
            problems.append(tree.problem((*path, key), f"is missing; write one of {choices}", at_key=True))
            return None
        if not isinstance(name, str) or name not in known:
            near = did_you_mean(name, known) if isinstance(name, str) else ""
            message = f"{_shown(name)} is not a {meaning}{near or f'; write one of {choices}'}"
            problems.append(tree.problem((*path, key), message))
            return None
        if name != "state":
            return known[name]
    return None


def _inherited(written: dict[str, Any], top: dict[str, Any], known: set[str]) -> dict[str, Any]:
    """Return the top-level dimensions that the kind takes over, with kv_heads and head_dim worked out."""
    merged = {name: top[name] for name in INHERITED if top.get(name) is not None and name in known}
    heads, hidden = written.get("heads", merged.get("heads")), top.get("hidden_size")
    # Where heads or hidden_size is wrong that alone is reported, not what cannot be worked out from it.
    heads = heads if isinstance(heads, int) and heads > 0 else 1
    hidden = hidden if isinstance(hidden, int) and hidden > 0 else heads
    if "kv_heads" in known:
        merged.setdefault("kv_heads", heads)
    if "head_dim" in known and hidden % heads == 0:
        merged.setdefault("head_dim", hidden // heads)
    return merged


def _layers(written: SpecFile, kinds: dict[str, Kind], tree: Tree, problems: list[Problem]) -> tuple[Layer, ...]:
    """Return the layers that the pattern spells out, after checking the pattern against the kinds."""
    pattern = _pattern(written, kinds, tree, problems)
    names = [(entry,) if isinstance(entry, str) else entry for entry in pattern]
    if not problems:
        _check_pattern(names, kinds, tree, problems)
    if problems:
        return ()
    per_entry = [tuple(name for name in entry if name != NO_KIND) for entry in names]
    layers = tuple(_layer(per_entry[index % len(per_entry)], kinds) for index in range(written.layers))
    _check_sources(layers, kinds, tree, problems)
    return layers


def _pattern(
    written: SpecFile, kinds: dict[str, Kind], tree: Tree, problems: list[Problem]
) -> tuple[str | tuple[str, ...], ...]:
    """Return the pattern as written, or that of a model whose layers are all alike."""
    if written.kinds is not None and not kinds:
        problems.append(tree.problem(("kinds",), "is empty; define a kind, or leave it out for full attention", True))
        return ()
    if written.pattern is None:
        if len(kinds) > 1:
            message = f"several kinds need a pattern that says which layer has which: pattern: [{', '.join(kinds)}]"
            problems.append(tree.problem(("kinds",), message, True))
        return tuple(kinds)[:1]
    if not written.pattern:
        problems.append(tree.problem(("pattern",), "is empty; name the kind of every layer, or leave it out"))
    if len(written.pattern) > written.layers:
        message = f"has {len(written.pattern)} entries for {written.layers} layers; it must not be longer than 'layers'"
        problems.append(tree.problem(("pattern",), message))
    return written.pattern


def _layer(names: tuple[str, ...], kinds: dict[str, Kind]) -> Layer:
    return Layer(names, tuple(kinds[name] for name in names))


def _check_pattern(names: list[tuple[str, ...]], kinds: dict[str, Kind], tree: Tree, problems: list[Problem]) -> None:
    """Report names that no kind defines, kinds named twice in one layer, and kinds that no entry names."""
    for index, entry in enumerate(names):
        for name in entry:
            if name not in kinds and name != NO_KIND:
                problems.append(tree.problem(("pattern", index), _undefined(name, kinds)))
        if not entry:
            problems.append(tree.problem(("pattern", index), "is empty; write 'none' for a layer that keeps nothing"))
        elif len(set(entry)) < len(entry):
            problems.append(tree.problem(("pattern", index), "names a kind twice; a layer has each kind once"))
        elif NO_KIND in entry and len(entry) > 1:
            problems.append(tree.problem(("pattern", index), "names 'none' beside a kind; write one or the other"))
    used = {name for entry in names for name in entry}
    for name in tree.data.get("kinds") or ():
        if name not in used:
            message = "is defined, but 'pattern' never names it; name it there or remove it"
            problems.append(tree.problem(("kinds", name), message, True))


def _undefined(name: str, kinds: dict[str, Kind]) -> str:
    hint = did_you_mean(name, kinds) or f"; define it under 'kinds' (which has {', '.join(kinds)})"
    return f"{_shown(name)} is not defined{hint}"


def _check_sources(layers: tuple[Layer, ...], kinds: dict[str, Kind], tree: Tree, problems: list[Problem]) -> None:
    """Report shared layers whose source does not exist, keeps nothing itself, or comes later."""
    for name, kind in kinds.items():
        if isinstance(kind, Shared):
            message = _source_fault(name, kind.of, layers, kinds)
            if message:
                problems.append(tree.problem(("kinds", name, "of"), message))


def _source_fault(name: str, source: str, layers: tuple[Layer, ...], kinds: dict[str, Kind]) -> str:
    """Return what is wrong with the kind that the shared kind `name` reads; an empty string if nothing is."""
    if source not in kinds:
        return _undefined(source, kinds)
    if not kinds[source].entries():
        itself = "is this kind itself" if source == name else "keeps nothing that could be shared"
        return f"'{source}' {itself}; name a kind that keeps keys and values"
    first = next(index for index, layer in enumerate(layers) if name in layer.names)
    if not any(source in layer.names for layer in layers[:first]):
        return f"no layer before layer {first} (counted from 0) is of kind '{source}'; put one earlier in 'pattern'"
    return ""


def _at_kind(path: Path_, name: str, written: dict[str, Any], tree: Tree, message: str) -> Problem:
    """Return a problem at a kind's field, which may stand in the kind or at the top level."""
    if path and name not in written and name in tree.data:
        path = ()
    return tree.problem((*path, name), message)


def _explain(item: Any, path: Path_, tree: Tree, record: type[Documented]) -> Problem:
    """Return pydantic's error as a problem at its place, in words that say what to write."""
    inner = tuple(part for part in item["loc"] if part != "[key]")  # a bad key, which stands before it in the place
    full = (*path, *inner)
    name = str(inner[-1]) if inner else ""
    if full[0] == "pattern" and len(full) > 1:
        given = _shown(tree.data["pattern"][full[1]])
        return tree.problem(full[:2], f"must be the name of a kind, or a list of such names, not {given}")
    if full[0] == "source" and len(full) > 1:
        record = Source
    if item["type"] == "missing":
        return tree.problem(full, _missing(name, record), at_key=True)
    if item["type"] == "extra_forbidden":
        return tree.problem(full, f"unknown key{_known_as(name, path, record)}", at_key=True)
    if path and inner and full not in tree.values and (name,) in tree.values:
        full = (name,)  # the value was inherited from the top level
    return tree.problem(full, _wrong_value(item))


def _known_as(name: str, path: Path_, record: type[Documented]) -> str:
    """Return the hint for an unknown key: what it is called here, where it belongs, or what is known."""
    if name in _OTHER_NAMES:
        return f"; {_OTHER_NAMES[name]}"
    if name.isdigit():
        return "; write numbers without separators"
    owners = {**KINDS, **STATE_VARIANTS} if record is SpecFile else {}
    owner = next((kind for kind, owner in owners.items() if name in owner.model_fields), None)
    if owner is not None:
        kind = f"state, variant: {owner}" if owner in STATE_VARIANTS else owner
        return f"; it belongs to a kind: kinds: {{{owner}: {{kind: {kind}, {name}: ...}}}}"
    fields = ", ".join(record.model_fields)
    return f"; this kind has {fields}" if path else did_you_mean(name, record.model_fields) or f"; known: {fields}"


def _missing(name: str, record: type[Documented]) -> str:
    """Return what a missing field means and what to write."""
    if name == "heads":
        return "is missing; attention layers need it"
    if name == "head_dim":
        return "is missing, and hidden_size is not divisible by heads; write head_dim"
    meaning = record.field_docs().get(name, "").rstrip(".")
    optional = " (write null if unknown)" if name in ("max_context", "parameters") else ""
    return f"is missing{optional}: {meaning[:1].lower()}{meaning[1:]}"


# pydantic's error types in plain words; `given` is the value as written.
_WHOLE_NUMBER = "must be a whole number, not {given}"
_LIST = "must be a list, for example [a, b], not {given}"
_MAPPING = "must be a mapping of keys to values, not {given}"
_WRONG_VALUES = {
    "int_type": _WHOLE_NUMBER,
    "greater_than_equal": "must be at least {ge}, not {given}",
    "less_than_equal": "{given} is out of range; at most {le:,} is possible",
    "string_type": "must be text, not {given}; quote it if it is meant as text",
    "string_too_short": "must not be empty",
    "string_too_long": "is longer than {max_length} characters",
    "tuple_type": _LIST,
    "dict_type": _MAPPING,
    "model_type": _MAPPING,
    "literal_error": "must be {expected}, not {given}",
}


def _wrong_value(item: Any) -> str:
    """Return pydantic's complaint about a value in plain words."""
    given, context = item["input"], dict(item.get("ctx", {}))
    if item["type"].startswith("date"):
        return _date_wanted(given)
    if item["type"] == "string_pattern_mismatch":
        return f"{_shown(given)} cannot be used here; {_allowed(context['pattern'])}"
    if item["type"] in _WRONG_VALUES:
        return _WRONG_VALUES[item["type"]].format(given=_shown(given), **context)
    return f"{item['msg'][:1].lower()}{item['msg'][1:]} (got {_shown(given)})"


def _allowed(pattern: str) -> str:
    """Return in words what one of the patterns in `model` allows: its first and its last character class."""
    first = "a letter" if pattern.startswith("^[A-Za-z]") else "a letter or digit"
    others = pattern[pattern.rindex("[") + 1 : pattern.rindex("]")].removeprefix("A-Za-z0-9")
    return f"start with {first} and use only letters, digits and {' '.join(others)}"


def _date_wanted(given: object) -> str:
    return f"must be a date as YYYY-MM-DD, not {_shown(given)}"


def _shown(value: object) -> str:
    """Return a value nearly as it stands in the file, shortened."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:36]}..."


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
    return replace(spec, layers=layers)


def with_kv_heads(spec: ModelSpec, kv_heads: int) -> ModelSpec:
    """Return the spec with `kv_heads` in every layer that has key and value heads (what-if: MHA, GQA, MQA).

    BadInput if it does not divide the heads of a layer, or if no layer has any.
    """
    layers = tuple(
        Layer(layer.names, tuple(_with_kv_heads(kind, kv_heads, spec.name) for kind in layer.kinds))
        for layer in spec.layers
    )
    if not any(isinstance(kind, Heads) for layer in layers for kind in layer.kinds):
        raise BadInput(f"{spec.name} has no layer with key and value heads (MLA and recurrent layers have none)")
    return replace(spec, layers=layers)


def _with_kv_heads(kind: Kind, kv_heads: int, name: str) -> Kind:
    if not isinstance(kind, Heads):
        return kind
    if kv_heads < 1 or kind.heads % kv_heads:
        raise BadInput(f"kv_heads {kv_heads} does not divide the {kind.heads} heads of {name}")
    return kind.model_copy(update={"kv_heads": kv_heads})
