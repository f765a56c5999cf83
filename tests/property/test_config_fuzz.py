"""No config, however damaged, does more to the reader than a SpecError: a model or an error, nothing else, and soon.

Configs of real shape, one and more of every family, are changed at random places: values of other types and sizes,
keys taken away or moved, lists cut, lengthened and mixed, whole files cut and overwritten.
"""

from __future__ import annotations

import copy
import json
import random
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kvcalc.errors import SpecError
from kvcalc.read.hf_config import config_spec, model_types, read_config
from kvcalc.spec.model import ModelSpec
from tests.golden.test_read_parameters import PINNED
from tests.unit.test_read_hf_config import LLAMA, MIXED, OLDER

# Each of the about 250 configs is changed so many times: about 20,000 inputs, in some ten seconds.
ROUNDS = 80

STRANGE: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 7, 10**9, -(10**9), 2**31, 2**63, 2**64, 10**30, 0.5, 1e300, float("nan"),
    float("inf"), "", "8", "auto", "llama", "\x00", "\u202e", "\ud800", [], [None], [0], [1] * 50, ["x"], {}, {"a": 1},
    {"model_type": "llama"}, ["full_attention"] * 4, "M*-E" * 4, [[[[]]]], 10_000, 10_001,
]  # fmt: skip


def seeds() -> list[dict[str, Any]]:
    """Return configs of every family."""
    found = [config for config, _ in [*MIXED.values(), *OLDER.values()]]
    for model_type, cases in PINNED.items():
        found.append({**cases[-1]["config"], "model_type": model_type})
    found += [{**LLAMA, "model_type": model_type} for model_type in model_types()]
    return found


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value, containers included."""
    inner = value.items() if isinstance(value, dict) else enumerate(value[:20]) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


def changed(config: dict[str, Any], chance: random.Random) -> Any:
    """Return a copy with one to four places changed."""
    config = copy.deepcopy(config)
    for _ in range(chance.randint(1, 4)):
        path = chance.choice(places(config))
        if not path:
            continue
        holder: Any = config
        for key in path[:-1]:
            holder = holder[key]
        key, value = path[-1], holder[path[-1]]
        match chance.randrange(6):
            case 0:
                del holder[key]
            case 1 if isinstance(value, int):
                holder[key] = value + chance.choice([-1, 1, 10**9])
            case 2 if isinstance(value, list) and value:
                many = 2 if isinstance(value[0], (list, dict)) else 9_999
                holder[key] = chance.choice([value[:-1], value * 2, value[::-1], [*value, "x"], value[:1] * many])
            case 3 if isinstance(holder, dict):
                moved = holder.pop(key)
                holder[chance.choice([*holder, "x"])] = moved
            case _:
                holder[key] = copy.deepcopy(chance.choice(STRANGE))
    return config


def outcome(config: dict[str, Any]) -> bool:
    """Return whether a config was read; anything but a model and a SpecError of one file is raised."""
    text = json.dumps(config)
    try:
        spec = config_spec(json.loads(text), text, "some/config.json")
    except SpecError as error:
        problems = error.problems
    else:
        assert len(spec.layers) == spec.file.layers
        assert spec.parameters is None or 1 <= spec.parameters <= 10**15
        return True
    assert all(problem.file == "some/config.json" for problem in problems)
    assert all(len(str(problem)) < 2_000 for problem in problems[:50])
    return False


@pytest.mark.slow
def test_random_changes_give_a_model_or_an_error() -> None:
    """Both happen often; no input takes more than a moment."""
    chance, read, refused, slowest = random.Random(20261129), 0, 0, 0.0
    for config in seeds():
        for _ in range(ROUNDS):
            mutated = changed(config, chance)
            began = time.monotonic()
            if outcome(mutated):
                read += 1
            else:
                refused += 1
            slowest = max(slowest, time.monotonic() - began)
    assert read > 2_000
    assert refused > 2_000
    assert read + refused > 15_000
    assert slowest < 5  # about a tenth of a second alone on the machine


def test_random_bytes_give_a_model_or_an_error(tmp_path: Path) -> None:
    """Files cut, overwritten, and with bytes put in."""
    chance, path = random.Random(7), tmp_path / "config.json"
    whole = json.dumps(MIXED["gemma-3-27b"][0], indent=2).encode()
    for _ in range(1_500):
        content = bytearray(whole)
        for _ in range(chance.randint(1, 5)):
            at = chance.randrange(len(content) + 1)
            match chance.randrange(4):
                case 0:
                    del content[at:]
                case 1:
                    content[at : at + 1] = bytes([chance.randrange(256)])
                case 2:
                    content[at:at] = chance.choice([b"{", b"[", b'"', b"9" * 50, b"null", b"\xff", b"\\u0000", b","])
                case 3:
                    del content[at : at + chance.randint(1, 9)]
        path.write_bytes(content)
        with suppress(SpecError):
            assert isinstance(read_config(path), ModelSpec)
