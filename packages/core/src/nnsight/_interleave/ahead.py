"""Values of a step that are copied where the model passes them, for a block that runs once it is past them all.

Between two places of a forward that a block reads, the model runs through so much memory that little of what a turn of
the block needs is left in the processor's caches, and fetching it again is most of what the turn costs. A block that is
known to change nothing, and to read nothing but the outputs of certain modules, cannot tell when it runs: so these
outputs are copied as they pass, which is little, and the block has one turn for all of them.

What it asks for in another order than the model's is as much out of order as it would be beside the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from nnsight._interleave.scope import RowScope
from nnsight._interleave.structure import map_tensors
from nnsight._interleave.visit import MISSING

if TYPE_CHECKING:
    from nnsight._interleave.location import Location
    from nnsight._interleave.scope import Scope

Tensor = torch.Tensor


class KeptScope(RowScope):
    """Hands out rows that are a copy already."""

    __slots__ = ()

    def take(self, live: Tensor) -> Tensor:
        """Return the copy, as a tensor of its own on the same memory."""
        return live.detach()


class ReadAhead:
    """What is copied for one block in a step.

    Attributes:
        keepers: What copies the output of each module, by path.
        error: Why a copy could not be made; None where all could.
        scope: The rows of the request in this step.
        rows: Where they are in the batch; None where they are all of it.
    """

    def __init__(self, outputs: Mapping[str, frozenset[int] | None]) -> None:
        """Prepare to copy outputs.

        Args:
            outputs: By path, which items of an output that is a tuple; None for all of them.
        """
        self.keepers = {path: Keeper(self, path, items) for path, items in outputs.items()}
        self.error: Exception | None = None
        self.scope: RowScope | None = None
        self.rows: slice | None = None
        self._kept: list[tuple[str, object, int | None, int]] = []
        self._next = 0

    def begin(self, scope: RowScope) -> None:
        """Enter a step in which the request owns these rows."""
        self.scope = scope
        self.rows = None if scope.num_rows == scope.total else slice(scope.start, scope.stop)
        self.error = None
        self._kept = []
        self._next = 0
        if torch.is_inference_mode_enabled():
            # Tensors made in inference mode do not count their versions; in it, others are written all the same.
            with torch.inference_mode(mode=False):
                for keeper in self.keepers.values():
                    keeper.prepare(scope)

    def end(self) -> None:
        """Let go of what the block did not ask for."""
        self._kept = []
        for keeper in self.keepers.values():
            keeper.forget()

    def note(self, path: str, output: object, index: int | None = None, width: int = 0) -> None:
        """Keep what a module returned, copied: all of it, or the one item with this index of a tuple so wide."""
        self._kept.append((path, output, index, width))

    def next_of(self, location: Location) -> object:
        """Return what the location held when the model next came there; `MISSING` where it did not."""
        place = location.place
        if place.side == "output" and not place.ops:
            for number in range(self._next, len(self._kept)):
                path, output, index, width = self._kept[number]
                if path == place.path:
                    self._next = number + 1
                    return output if not width else tuple([output if each == index else None for each in range(width)])
        return MISSING

    def kept_scope(self) -> Scope:
        """Return the scope of what was kept."""
        scope = self.scope
        assert scope is not None
        return KeptScope(scope.start, scope.stop, scope.total, scope.alone)


class Keeper:
    """Copies the output of one module.

    In steps after the first, the memory for the copy is there before the model runs, which leaves less to do beside it.
    """

    __slots__ = ("_ahead", "_device", "_dtype", "_items", "_live_shape", "_only", "_path", "_shape", "_target")

    def __init__(self, ahead: ReadAhead, path: str, items: frozenset[int] | None) -> None:
        """Copy these items of a tuple; all where there is None."""
        self._ahead = ahead
        self._path = path
        self._items = items
        # The one item of a tuple that is copied.
        self._only = next(iter(items)) if items is not None and len(items) == 1 else None
        # What the last copy was, where it was one tensor.
        self._shape: torch.Size | None = None
        self._dtype = torch.float32
        self._device = torch.device("cpu")
        self._target: Tensor | None = None
        self._live_shape: torch.Size | None = None

    def prepare(self, scope: RowScope) -> None:
        """Make the memory for the rows of a request, where the last copy tells what they will be."""
        shape, self._target = self._shape, None
        if shape is not None and shape[0] == scope.num_rows:
            self._target = torch.empty(shape, dtype=self._dtype, device=self._device)
            self._live_shape = torch.Size([scope.total, *shape[1:]])

    def forget(self) -> None:
        """Let go of memory that was not needed."""
        self._target = None

    def keep(self, output: Any) -> None:
        """Copy an output, which the model goes on with."""
        target, only = self._target, self._only
        if target is not None:
            width = len(output) if only is not None and type(output) is tuple else 0
            live = output if only is None or width <= only else output[only]
            if type(live) is Tensor and live.shape == self._live_shape and live.dtype is self._dtype:
                self._target = None
                ahead = self._ahead
                rows = ahead.rows
                try:
                    target.copy_(live if rows is None else live[rows])
                except Exception as error:  # noqa: BLE001 - it belongs to the request that reads, never to the model
                    ahead.error = error
                ahead.note(self._path, target, only, width)
                return
        self._keep_anew(output)

    def _keep_anew(self, output: Any) -> None:
        ahead = self._ahead
        scope, items = ahead.scope, self._items
        assert scope is not None
        # Tensors made in inference mode do not count their versions.
        guard = torch._C._InferenceMode(False) if torch.is_inference_mode_enabled() else None
        if guard is not None:
            guard.__enter__()  # type: ignore[no-untyped-call]
        grad = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)
        try:
            if type(output) is Tensor:
                kept: object = scope.take(output)
            elif type(output) is tuple and items is not None:
                kept = tuple(
                    [map_tensors(item, scope.take) if index in items else None for index, item in enumerate(output)]
                )
            else:
                kept = map_tensors(output, scope.take)
            ahead.note(self._path, kept)
            self._learn(kept)
        except Exception as error:  # noqa: BLE001 - it belongs to the request that reads, never to the model
            ahead.error = error
        finally:
            torch._C._set_grad_enabled(grad)
            if guard is not None:
                guard.__exit__(None, None, None)

    def _learn(self, kept: object) -> None:
        """Note what a copy is, for the next step."""
        only = kept[self._only] if type(kept) is tuple and self._only is not None else kept
        if type(only) is Tensor and only.dim():
            self._shape, self._dtype, self._device = only.shape, only.dtype, only.device
