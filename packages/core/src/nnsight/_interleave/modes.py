"""Autograd modes at the border between a block and the model.

Modes belong to the thread, and both sides of a greenlet switch run in one thread: each side gets its own back.
"""

from __future__ import annotations

import torch


class BlockModes:
    """The inference mode and grad mode that a block runs in, kept across its waits."""

    __slots__ = ("_guard", "_model_grad", "grad", "inference")

    def __init__(self, *, grad: bool, inference: bool = False) -> None:
        """Start the block in these modes."""
        self.grad = grad
        self.inference = inference
        self._guard: torch._C._InferenceMode | None = None
        self._model_grad = True

    def enter(self) -> None:
        """Leave the model's modes and enter the block's."""
        if torch.is_inference_mode_enabled() != self.inference:
            self._guard = torch._C._InferenceMode(self.inference)
            self._guard.__enter__()  # type: ignore[no-untyped-call]
        else:
            self._model_grad = torch.is_grad_enabled()
        torch._C._set_grad_enabled(self.grad)

    def leave(self) -> None:
        """Keep the block's modes for its next turn and restore the model's."""
        self.inference = torch.is_inference_mode_enabled()
        self.grad = torch.is_grad_enabled()
        guard, self._guard = self._guard, None
        if guard is not None:
            # The guard restores grad mode as well.
            guard.__exit__(None, None, None)
        else:
            torch._C._set_grad_enabled(self._model_grad)
