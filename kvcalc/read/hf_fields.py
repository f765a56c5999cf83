"""The fields of a published Hugging Face config: types checked, class defaults filled in, errors with their place.

A config leaves out what equals its class's default, so the defaults are data: `hf_defaults.json`, made from the
configuration classes of transformers, with the version.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

from kvcalc.errors import Problem, SpecError

MAX_LAYERS = 10_000

# One quantity, the names it goes by in published configs, in order of preference.
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers")
HIDDEN = ("hidden_size", "n_embd", "d_model", "n_embed")
HEADS = ("num_attention_heads", "n_head", "n_heads", "decoder_attention_heads", "num_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
HEAD_DIM = ("head_dim", "d_kv", "kv_channels", "attention_head_dim")
CONTEXT = ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "context_length", "seq_length",
           "max_sequence_length", "max_target_positions", "model_max_length")  # fmt: skip
INNER = ("intermediate_size", "n_inner", "ffn_hidden_size", "ffn_dim", "d_ff", "decoder_ffn_dim")
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
EXPERTS_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk", "moe_k")
LAYER_LISTS = ("hybrid_override_pattern", "layers_block_type", "layer_types")

# What configs of before transformers 5 call a kind of layer, and what they are called since.
_OLDER_LAYER_TYPES = {
    "mamba": "linear_attention",
    "attention": "full_attention",
    "deepseek_sparse_attention": "indexed_attention",
}


class Fields:
    """One mapping of a config (the language model's), with its class's defaults."""

    def __init__(self, data: dict[str, Any], model_type: str, file: str, text: str) -> None:
        self.data = data
        self.model_type = model_type
        self.file = file
        self.text = text
        self.defaults = class_defaults().get(model_type, {})

    def get(self, *names: str) -> Any:
        """Return the first of the names that the config gives, else the class's default, else None."""
        for name in names:
            if self.data.get(name) is not None:
                return self.data[name]
        for name in names:
            # A key that is null in the file overrules the default: that is how a window is switched off.
            if self.defaults.get(name) is not None and name not in self.data:
                return self.defaults[name]
        return None

    def integer(self, *names: str) -> int:
        """Return a whole number; SpecError if none of the names has one."""
        value = self.optional(*names)
        if value is None:
            self.fail(names[0], f"is missing, and model type {self.model_type} has no default for it")
        return value

    def optional(self, *names: str) -> int | None:
        """Return a whole number from 0 on, or None; SpecError if the value is something else."""
        value = self.get(*names)
        if value is None:
            return None
        name = next((name for name in names if self.data.get(name) is not None), names[0])
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail(name, f"must be a whole number, not {shown(value)}")
        if not 0 <= value < 2**63:
            self.fail(name, f"{shown(value)} is out of range")
        return value

    def positive(self, *names: str) -> int | None:
        """Return a whole number from 1 on; None for 0, which configs write for "not used", and if there is none."""
        return self.optional(*names) or None

    def flag(self, name: str) -> bool:
        """Return whether a switch is on; SpecError if the value is neither true, false nor null."""
        value = self.get(name)
        if not isinstance(value, (bool, type(None))):
            self.fail(name, f"must be true or false, not {shown(value)}")
        return bool(value)

    def strings(self, name: str) -> list[str] | None:
        """Return a list of texts, or None if the config has none."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.fail(name, f"must be a list of names, not {shown(value)}")
        return value

    def integers(self, name: str) -> list[int] | None:
        """Return a list of whole numbers, or None if the config has none."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            self.fail(name, f"must be a list of whole numbers, not {shown(value)}")
        return value

    def per_layer(self, name: str) -> list[int] | None:
        """Return a list with a whole number for every layer; what it says of layers beyond the last is left out.

        Those predict further tokens at once and keep nothing while one token is decoded at a time.
        """
        values = self.integers(name)
        if values is None:
            return None
        if len(values) < self.layers:
            self.fail(name, f"has {len(values)} entries for {self.layers} layers")
        return values[: self.layers]

    def layer_types(self, *known: str) -> list[str] | None:
        """Return the name of every layer's kind, older names replaced; None if the config does not list the layers.

        SpecError for another number of layers or a name that is not `known`.
        """
        key = next((name for name in ("layer_types", "layers_block_type") if self.strings(name)), None)
        if key is None:
            return None
        listed = [_OLDER_LAYER_TYPES.get(name, name) for name in self.strings(key) or []]
        further = self.optional("num_nextn_predict_layers") or 0
        if len(listed) not in (self.layers, self.layers + further):
            self.fail(key, f"has {len(listed)} entries for {self.layers} layers")
        for name in listed:
            if name not in known:
                message = f"names '{shown(name)[1:-1]}', which model type {self.model_type} does not have"
                self.fail(key, f"{message}; known: {', '.join(known)}")
        return listed[: self.layers]

    def nested(self, name: str) -> Fields:
        """Return a nested mapping as fields of its own; SpecError if there is none."""
        value = self.data.get(name)
        if not isinstance(value, dict):
            self.fail(name, f"model type {self.model_type} needs this mapping")
        inner = Fields(value, self.model_type, self.file, self.text)
        inner.defaults = {}
        return inner

    def fail(self, name: str, message: str) -> NoReturn:
        """Raise a SpecError at the field's place in the file."""
        raise SpecError([Problem(self.file, *place(self.text, name), name, message)])

    @property
    def layers(self) -> int:
        """Layers of the decoder; the length of the layer list where a config gives only that."""
        listed = self.get(*LAYER_LISTS)
        given = any(self.data.get(name) is not None for name in LAYERS)
        count = len(listed) if not given and isinstance(listed, (str, list)) and listed else self.integer(*LAYERS)
        if not 1 <= count <= MAX_LAYERS:
            name = next((name for name in LAYERS if self.data.get(name) is not None), LAYERS[0])
            self.fail(name, f"{shown(count)} layers are not possible; from 1 to {MAX_LAYERS:,}")
        return count

    @property
    def heads(self) -> int:
        """Query heads, at least 1."""
        heads = self.integer(*HEADS)
        if heads == 0:
            self.fail(next(name for name in HEADS if name in self.data), "must be at least 1, not 0")
        return heads

    @property
    def kv_heads(self) -> int:
        """Key and value heads: as many as query heads where the config says null, 0 or nothing."""
        return self.positive(*KV_HEADS) or self.heads

    @property
    def hidden(self) -> int:
        """Width of the model."""
        return self.integer(*HIDDEN)

    @property
    def head_dim(self) -> int:
        """Elements of one head: as given, else the hidden size shared out among the heads."""
        return self.positive(*HEAD_DIM) or self.hidden // self.heads


@lru_cache(maxsize=1)
def class_defaults() -> dict[str, dict[str, Any]]:
    """Return the defaults of each model type's configuration class, by field."""
    path = Path(__file__).with_name("hf_defaults.json")
    defaults: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["model_types"]
    return defaults


def place(text: str, name: str) -> tuple[int, int]:
    """Return the line and column of a key in JSON text, (1, 1) if it does not stand there."""
    match = re.search(rf'"{re.escape(name)}"\s*:', text)
    if not match:
        return 1, 1
    return text.count("\n", 0, match.start()) + 1, match.start() - text.rfind("\n", 0, match.start())


def shown(value: Any) -> str:
    """Return a JSON value for a message: cut where it is long, without control characters."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 200:
        return "a number of more than 60 digits"
    if isinstance(value, (list, dict)) and len(value) > 8:
        return f"a {'list' if isinstance(value, list) else 'mapping'} of {len(value):,}"
    text = json.dumps(value, default=str)
    return text if len(text) <= 40 else f"{text[:36]}..."
