"""Whether an engine is ours: its `additional_config` says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

KEY = "nnsight"
# A byte budget of as much as the engine leaves of its device.
SPARE: Final = "spare"
# How much a block may run in each step and hold, where the operator says nothing.
DEFAULT_BUDGETS: Final[Mapping[str, Any]] = {"step_budget": 10_000_000, "byte_budget": SPARE}


def options_of(vllm_config: Any) -> dict[str, Any] | None:
    """Return what the engine's operator asked of us, or None for an engine that is none of ours."""
    additional = getattr(vllm_config, "additional_config", None)
    options = additional.get(KEY) if isinstance(additional, dict) else None
    return options if isinstance(options, dict) else None
