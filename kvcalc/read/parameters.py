"""placeholder"""
from typing import Any
def count_parameters(model_type: str, config: dict[str, Any], pattern: list[str | list[str]]) -> int | None:
    return None
