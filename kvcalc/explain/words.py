"""Counts in words: what is kept, how many of it, and why."""

from __future__ import annotations

import re

from kvcalc.footprint import Steps
from kvcalc.spec.kinds import Kind

_ROLES = {
    "k": "K",
    "v": "V",
    "latent": "latent",
    "conv": "last inputs",
    "ssm": "recurrent state",
    "index": "indexer key",
}
# What some kinds of layer mean by a role.
_ROLES_OF_KIND = {("mla", "k"): "rotary K", ("compressed", "conv"): "compressor input", ("compressed", "k"): "K (= V)"}


def role(name: str, kind: Kind | None) -> str:
    """Return what an entry is, in words."""
    return _ROLES_OF_KIND.get((kind.name if kind else "", name), _ROLES[name])


def plural(count: int, noun: str) -> str:
    """Return `1 token`, `2 tokens`, `2 entries`."""
    return f"{count:,} {noun if count == 1 else plural_noun(noun)}"


def plural_noun(noun: str) -> str:
    """Return the plural of one of the nouns used here."""
    return f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"


def kept_noun(kind: Kind | None, steps: Steps) -> str:
    """Return the noun for one thing kept: a token, an encoder position, a sequence's state, a compressed entry."""
    if kind is None:
        return "unit"
    name = kind.name
    if name == "state":
        return "state"
    if name == "cross":
        return "encoder position"
    if name == "compressed" and steps.period is None and (steps.width > 1 or steps.cap == 1):
        return "entry" if steps.width > 1 else "group"
    return "token"


def keeps(kind: Kind) -> str:
    """Return what a layer of this kind keeps, with the model's numbers in the sentence."""

    def number(match: re.Match[str]) -> str:
        value = getattr(kind, match[1], None)
        return f"{value:,}" if isinstance(value, int) else match[1]

    return re.sub(r"`(\w+)`", number, kind.keeps)


def owner(steps: Steps) -> str:
    """Return whose units a staircase counts."""
    if steps.scope == "sequence":
        return "one sequence"
    return "the whole batch, once" if steps.scope == "once" else "all sequences, in one pool"


def expression(steps: Steps, n: int, b: int) -> str:
    """Return the count of a staircase with the numbers in it: `ceil(min(32,768, 1,024) / 16)`."""
    if type(steps) is not Steps:  # an engine's own rule, which these fields do not tell
        return f"{int(steps.per_scope(n, b)):,}"
    if steps.rate == 0:
        return f"{steps.fixed + steps.shift // steps.width:,}"
    text = f"{n:,} x {b:,}" if steps.scope == "pooled" else f"{n:,}"
    if steps.start:
        position = n * b if steps.scope == "pooled" else n
        text = f"({text} - {steps.start:,})" if position >= steps.start else "0"
    if steps.period is not None:
        text = f"({text} mod {steps.period:,})"
    if steps.rate > 1:
        text = f"{steps.rate:,} x {text}"
    if steps.cap is not None:
        text = f"min({text}, {steps.cap + steps.cap_per_sequence * b:,})"
    if steps.width > 1:
        text = _divided(text, steps)
    return f"({steps.fixed:,} + {text})" if steps.fixed else text


def _divided(text: str, steps: Steps) -> str:
    if steps.shift == steps.width - 1:
        return f"ceil({text} / {steps.width:,})"
    shifted = f"({text} + {steps.shift:,})" if steps.shift else text
    return f"floor({shifted} / {steps.width:,})"


def reason(kind: Kind | None, steps: Steps, b: int) -> str:
    """Return why just so many units are counted, as a phrase that follows the number."""
    if type(steps) is not Steps:
        return "by a rule of the engine's own"
    if steps.rate == 0:
        if kind is not None and kind.name in ("state", "cross"):
            return "whatever the context"
        return "set aside from the start, used or not"
    if kind is not None and kind.name == "compressed":
        return _compressed_reason(steps)
    if steps.period is not None:
        return f"those of the current chunk of {steps.period:,}"
    return _growing_reason(kind, steps, b)


def _compressed_reason(steps: Steps) -> str:
    if steps.period is not None:
        return f"those that wait to fill a group of {steps.period:,}"
    if steps.cap is None:
        return f"one for every {steps.width:,} whole tokens"
    return _onset(steps) if steps.cap == 1 else f"at most the last {steps.cap:,} (its window)"


def _growing_reason(kind: Kind | None, steps: Steps, b: int) -> str:
    """Return the reason of counts that grow with the context, up to a limit or without one."""
    if steps.cap is None:
        return f"all after the first {steps.start:,}, which are shared" if steps.start else "every token is kept"
    limit = steps.cap + steps.cap_per_sequence * b
    if limit == 1 and steps.start:
        return _onset(steps)
    if steps.scope == "once":
        return f"those of the first {limit:,} tokens, the same in every sequence"
    more = f", not counting the first {steps.start:,}" if steps.start else ""
    more += f", and {steps.fixed:,} spare" if steps.fixed else ""
    if limit == getattr(kind, "window", None):
        return f"at most the last {limit:,} (its window){more}"
    return f"at most {limit:,} tokens (a limit of the engine and its options){more}"


def _onset(steps: Steps) -> str:
    return f"from token {steps.start + 1:,} on"
