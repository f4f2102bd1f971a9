"""Which part of a live value belongs to one request, how it is handed out, and how an edit goes back.

A block is handed copies of its own, made outside inference mode, so that a tensor's version counter tells an edit
from a read. A `Scope` makes the copies (`take`) and lands edits (`put`).

Shape suffixes: R = rows of one request, T = rows of the whole batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch

from nnsight.errors import MismatchedValueError, SharedValueError

Tensor = torch.Tensor


class Scope(Protocol):
    """The part of a batch that one request owns.

    Attributes:
        lands_unchanged: Whether an assigned value lands where it is still what the block was handed, so that the model
            goes on with the block's own tensors.
    """

    @property
    def lands_unchanged(self) -> bool: ...

    @property
    def alone(self) -> bool:
        """Whether no other request shares the batch."""

    @property
    def total(self) -> int | None:
        """Rows of the whole batch, None where the first dimension does not count them."""

    @property
    def num_rows(self) -> int | None:
        """Rows of the request, None where the first dimension does not count them."""

    def apart(self) -> Scope:
        """Return the same part, whose edits land in a tensor of their own and leave other names of the memory alone."""

    def take(self, live: Tensor) -> Tensor:
        """Return a copy of the request's part of `live`."""

    def check(self, live: Tensor, own: Tensor, where: str) -> None:
        """Refuse an `own` that cannot be put into `live`.

        Raises:
            MismatchedValueError: `own` does not fit.
            SharedValueError: `live` belongs to all requests of the batch.
        """

    def fill(self, live: Tensor, number: float) -> Tensor:
        """Return a tensor like the request's part of `live` that holds one number."""

    def put(self, live: Tensor, own: Tensor, where: str) -> Tensor:
        """Land `own` in the request's part of `live` and return the tensor that the model goes on with.

        Raises:
            MismatchedValueError: `own` does not fit.
            SharedValueError: `live` belongs to all requests of the batch.
        """


@dataclass(frozen=True, slots=True)
class WholeScope:
    """The request owns everything: an in-process forward of one input.

    Edits replace the live tensor instead of being copied into it, so that gradients flow through them.
    """

    lands_unchanged: ClassVar[bool] = True
    alone: ClassVar[bool] = True
    total: ClassVar[None] = None
    num_rows: ClassVar[None] = None

    def apart(self) -> WholeScope:
        """Return itself: its edits never land in memory of the model."""
        return self

    def take(self, live: Tensor) -> Tensor:
        """Return a copy of `live` that is part of the same autograd graph."""
        return live.clone()

    def check(self, live: Tensor, own: Tensor, where: str) -> None:
        """Refuse a tensor of another shape."""
        if own.shape != live.shape:
            raise _misfit(where, live.shape, own.shape)

    def put(self, live: Tensor, own: Tensor, where: str) -> Tensor:
        """Return `own` on the device and in the dtype of `live`.

        Shape:
            live, own: equal.
        """
        self.check(live, own, where)
        landed = own.to(device=live.device, dtype=live.dtype)
        # The block keeps its own tensor: what it does to it later must not reach the model.
        return landed.clone() if landed is own else landed

    def fill(self, live: Tensor, number: float) -> Tensor:
        """Return a tensor like `live` that holds one number."""
        return torch.full_like(live, number)


# Made several times in each step of each request, so it is not frozen: that would take four times as long.
@dataclass(slots=True)
class RowScope:
    """The request owns rows `start:stop` of tensors whose first dimension counts the rows of the batch.

    Attributes:
        start: First row of the request.
        stop: One past its last row.
        total: Rows of the whole batch, padding included.
        alone: Whether no other request shares the batch.
        fresh: Whether edits land in a copy of the live tensor, which the model goes on with.
    """

    lands_unchanged: ClassVar[bool] = False
    start: int
    stop: int
    total: int
    alone: bool = False
    fresh: bool = False

    @property
    def num_rows(self) -> int:
        """Rows of the request."""
        return self.stop - self.start

    def apart(self) -> RowScope:
        """Return the same rows, whose edits land in a copy."""
        return RowScope(self.start, self.stop, self.total, self.alone, fresh=True)

    def take(self, live: Tensor) -> Tensor:
        """Return a copy of the request's rows, or of the whole tensor where it has no rows.

        Shape:
            live: [T, ...]
            returns: [R, ...]
        """
        if self.stop - self.start != self.total and live.dim() and live.shape[0] == self.total:
            return live[self.start : self.stop].clone()
        return live.clone()

    def check(self, live: Tensor, own: Tensor, where: str) -> None:
        """Refuse rows of another shape, and a change of what every request uses."""
        self._rows(live, own, where)

    def fill(self, live: Tensor, number: float) -> Tensor:
        """Return a tensor like the request's rows of `live` that holds one number."""
        return torch.full_like(self.take(live), number)

    def put(self, live: Tensor, own: Tensor, where: str) -> Tensor:
        """Copy `own` into the request's rows of `live`, in place, or of a copy of it."""
        target = live.clone() if self.fresh else live
        self._rows(target, own, where).copy_(own)
        return target

    def _rows(self, live: Tensor, own: Tensor, where: str) -> Tensor:
        if live.dim() and live.shape[0] == self.total:
            rows = live[self.start : self.stop]
        elif self.alone:
            rows = live
        else:
            raise SharedValueError(
                f"{where} has shape {tuple(live.shape)}, which is not one row per token: other requests of this step "
                "use it too, so it can be read but not changed"
            )
        if own.shape != rows.shape:
            raise _misfit(where, rows.shape, own.shape)
        return rows


def _misfit(where: str, expected: torch.Size, seen: torch.Size) -> MismatchedValueError:
    return MismatchedValueError(
        f"{where} holds a tensor of shape {tuple(expected)} for this request, but the block left one of shape "
        f"{tuple(seen)}; give it a value of the same shape"
    )
