"""Full attention: every token's keys and values (MHA, GQA and MQA)."""

from __future__ import annotations

from typing import ClassVar, Literal

from kvcalc.footprint import Retention
from kvcalc.spec.kinds._base import CacheEntry, Heads


class Full(Heads):
    """A layer whose every query sees every earlier token."""

    kind: Literal["full"] = "full"

    keeps: ClassVar[str] = "the keys and values of every token"
    rule_source: ClassVar[str] = (
        "Vaswani et al. 2017 (MHA); Shazeer 2019, arXiv:1911.02150 (MQA); Ainslie et al. 2023, arXiv:2305.13245 (GQA)"
    )

    def entries(self) -> tuple[CacheEntry, ...]:
        """Return K and V of every token."""
        return self.keys_and_values(Retention.all())
