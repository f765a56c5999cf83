"""All kinds as one type: what a layer of a spec may be, and what the JSON schema is made from."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import Field

from kvcalc.spec.kinds.chunked import Chunked
from kvcalc.spec.kinds.compressed import Compressed
from kvcalc.spec.kinds.cross import Cross
from kvcalc.spec.kinds.full import Full
from kvcalc.spec.kinds.indexer import Indexer
from kvcalc.spec.kinds.mla import Mla
from kvcalc.spec.kinds.shared import Shared
from kvcalc.spec.kinds.sliding import Sliding
from kvcalc.spec.kinds.state import AnyState

AnyKind: TypeAlias = Annotated[
    Full | Sliding | Chunked | Mla | Indexer | Cross | Shared | Compressed | AnyState,
    Field(discriminator="kind"),
]
