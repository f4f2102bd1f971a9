"""Which model runner an engine of ours gets."""

from __future__ import annotations

from typing import Any

from nnsight_vllm.compat.switch import options_of


def wrap_use_v2(use_v2: property) -> property:
    """Wrap `VllmConfig.use_v2_model_runner` to answer no for engines of ours that ask for V1.

    vLLM's own switch is an environment variable, which would stay behind for other engines of the process.
    """

    def traced_use_v2(self: Any) -> bool:
        options = options_of(self)
        if options is not None and options.get("runner") == "v1":
            return False
        assert use_v2.fget is not None
        return bool(use_v2.fget(self))

    traced_use_v2.nnsight_original = use_v2  # type: ignore[attr-defined]
    return property(traced_use_v2, doc=use_v2.__doc__)
