"""A footprint holds what a literal allocator holds that appends one token at a time."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from kvcalc.footprint import Footprint, total
from tests.property.strategies import Rule, batches, rule_sums, rules

CONTEXTS = 60


@given(rules, batches)
def test_every_rule_holds_what_its_allocator_holds(rule: Rule, batch: int) -> None:
    """At every context, the terms of a rule count the bytes of the allocator that follows it literally."""
    footprint = Footprint(rule.terms)

    assert [footprint.bytes(n, batch) for n in range(1, CONTEXTS + 1)] == list(rule.held(CONTEXTS, batch))


@given(rule_sums, batches)
def test_a_sum_holds_what_all_allocators_hold(chosen: list[Rule], batch: int) -> None:
    """Layers that follow different rules add up."""
    footprint = total(Footprint(rule.terms) for rule in chosen)
    held = [sum(sizes) for sizes in zip(*(rule.held(CONTEXTS, batch) for rule in chosen), strict=True)]

    assert [footprint.bytes(n, batch) for n in range(1, CONTEXTS + 1)] == held


@given(rule_sums, st.integers(1, CONTEXTS), batches)
def test_labels_split_the_bytes_without_rest(chosen: list[Rule], context: int, batch: int) -> None:
    """The bytes by label are those of the terms with that label, and add up to all bytes."""
    terms = [
        (f"kind{index % 2}", type(term)(f"kind{index % 2}", term.kind, term.role, term.factors, term.steps, ""))
        for index, rule in enumerate(chosen)
        for term in rule.terms
    ]
    footprint = Footprint(tuple(term for _, term in terms))
    expected: Counter[str] = Counter()
    for label, term in terms:
        expected[label] += Footprint((term,)).bytes(context, batch)

    by_label = footprint.by_label(context, batch)

    assert by_label == dict(expected)
    assert sum(by_label.values()) == footprint.bytes(context, batch)
