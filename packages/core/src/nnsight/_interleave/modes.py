"""Autograd modes at the border between a block and the model.

Modes belong to the thread, and both sides of a greenlet switch run in one thread: each side gets its own back.
"""

from __future__ import annotations

from typing import Final

import torch

from nnsight.errors import UnsupportedFeatureError


def _other_modes() -> tuple[int, int, bool]:
    return (
        torch._C._len_torch_function_stack(),
        torch._C._len_torch_dispatch_stack(),
        torch._C._is_any_autocast_enabled(),
    )


_NONE: Final = (0, 0, False)


class BlockModes:
    """The inference mode and grad mode that a block runs in, kept across its waits."""

    __slots__ = ("_guard", "_model_grad", "_outside", "grad", "inference")

    def __init__(self, *, grad: bool, inference: bool = False) -> None:
        """Start the block in these modes."""
        self.grad = grad
        self.inference = inference
        self._guard: torch._C._InferenceMode | None = None
        self._model_grad = True
        self._outside = _NONE

    def refuse_open_modes(self, wait: object) -> None:
        """Refuse to leave a block that has another mode of torch open, which the model would run under.

        Raises:
            UnsupportedFeatureError: The block is inside `torch.autocast`, `torch.device` or the like.
        """
        if _other_modes() != self._outside:
            raise UnsupportedFeatureError(
                f"{wait} was asked for inside a torch mode (torch.autocast, torch.device or the like) that the block "
                "opened: the model would run under it too; read the value before the mode, and use it inside"
            )

    def enter(self) -> None:
        """Leave the model's modes and enter the block's."""
        self._outside = _other_modes()
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
