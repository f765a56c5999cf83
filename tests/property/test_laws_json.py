"""Footprints travel as JSON without losing a digit."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kvcalc.footprint import BlockGroup, Footprint, Placement, Pool, Rank, Retention, Steps, Term
from tests.property.strategies import footprints

EXACT_IN_A_DOUBLE = 2**53


def numbers(data: Any) -> list[Any]:
    """Return every number in JSON data."""
    if isinstance(data, dict):
        return [number for value in data.values() for number in numbers(value)]
    if isinstance(data, list):
        return [number for value in data for number in numbers(value)]
    return [data] if isinstance(data, int | float) else []


@given(footprints)
def test_a_footprint_survives_json(total: Footprint) -> None:
    """What is read back is equal, term by term."""
    assert Footprint.from_json(json.loads(json.dumps(total.to_json()))) == total


@given(st.integers(-(10**40), 10**40), st.integers(0, 10**40), st.integers(1, 10**40), st.text(max_size=8))
def test_large_integers_travel_as_strings(unit: int, start: int, width: int, label: str) -> None:
    """A reader with doubles (a browser) sees no integer that it would round."""
    steps = Steps(start=start, shift=width, width=width, cap=start, period=width)
    before = Footprint((Term(label, "full", "v", (("unit", unit), ("more", 2)), steps, "why"),))
    text = json.dumps(before.to_json())

    assert all(isinstance(number, int) and abs(number) <= EXACT_IN_A_DOUBLE for number in numbers(json.loads(text)))
    assert Footprint.from_json(json.loads(text)) == before


@given(st.integers(0, 10**30))
def test_the_product_is_written_beside_its_factors(factor: int) -> None:
    """A reader of the JSON need not multiply; the same value comes as an int or as its digits."""
    term = Term("x", "full", "k", (("heads", 8), ("bytes", factor)), Steps.per_token(), "why")

    written = term.to_json()["unit_bytes"]

    assert int(written) == 8 * factor
    assert isinstance(written, str) == (8 * factor > EXACT_IN_A_DOUBLE)


def test_a_placement_is_plain_json_with_exact_shares() -> None:
    """Ranks, pools and their groups are written out; a share is a fraction in text, never a float."""
    group = BlockGroup(10, 16, Retention.window(1024))
    pool = Pool("kv", 2**54, 1, Fraction(1, 3), (group,))
    held = Footprint((Term("x", "full", "k", (("bytes", 2),), Steps.per_token(), "why"),))
    placement = Placement((Rank(0, 1, held, held, (pool,)),), dp=2)

    data = json.loads(json.dumps(placement.to_json()))

    assert data["schema"] == "kvcalc.placement/1"
    assert data["dp"] == 2
    rank = data["ranks"][0]
    assert (rank["pp"], rank["tp"]) == (0, 1)
    assert Footprint.from_json(rank["held"]) == held
    assert rank["pools"] == [
        {
            "label": "kv",
            "unit_bytes": str(2**54),
            "reserved_units": 1,
            "share": "1/3",
            "groups": [{"layers": 10, "block_tokens": 16, "retention": {"rule": "window", "size": 1024}}],
        }
    ]
