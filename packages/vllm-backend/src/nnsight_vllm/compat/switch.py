"""Whether an engine is ours: its `additional_config` says so."""

from __future__ import annotations

from typing import Any

KEY = "nnsight"


def options_of(vllm_config: Any) -> dict[str, Any] | None:
    """Return what the engine's operator asked of us, or None for an engine that is none of ours."""
    additional = getattr(vllm_config, "additional_config", None)
    options = additional.get(KEY) if isinstance(additional, dict) else None
    return options if isinstance(options, dict) else None
