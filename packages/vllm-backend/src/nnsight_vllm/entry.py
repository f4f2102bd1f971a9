"""Loaded by vLLM in every one of its processes, through the entry point `vllm.general_plugins`.

Does nothing by itself: the patches look at each engine's `additional_config`, and act only where it turns them on.
"""

from __future__ import annotations


def register() -> None:
    """Put the inert patches in place; called once or more per process."""
    from nnsight_vllm.compat.records import apply_patches

    apply_patches()
