"""Edits that a block makes after the model has moved on: they change the block's own copy only, and it is told so.

Whether a tensor was changed after all is known when the block lets go of it, or at the end. Until then a probe stands
for it: a tensor of no elements that shares its version counter, so that nothing is kept alive for this.
"""

from __future__ import annotations

import sys
import weakref
from functools import lru_cache
from typing import Any

import torch

from nnsight._interleave.structure import holds_tensor, parts

Tensor = torch.Tensor

# Up to so many containers are looked at in each turn of the block; more of them are looked at less often.
_FEW = 16


@lru_cache(maxsize=64)
def _nothing(dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty(0, dtype=dtype, device=device)


class _Reference(weakref.ref[Tensor]):
    """A weak reference that is a key of its own, whatever tensor it leads to."""

    __slots__ = ()
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


class LateEdits:
    """The tensors and containers of one block that the model has gone on without."""

    def __init__(self) -> None:
        """Begin with none."""
        self._tensors: dict[_Reference, tuple[Tensor, int, str]] = {}
        self._containers: list[tuple[Any, tuple[int, ...], str]] = []
        self._next_look = _FEW
        self._counts: dict[str, int] = {}

    def watch_tensor(self, own: Tensor, where: str) -> None:
        """Watch a tensor that was handed out."""
        probe = own.detach()
        try:
            probe.data = _nothing(own.dtype, own.device)
        except (RuntimeError, TypeError):
            # Sparse tensors and the like have no data to take away.
            return
        self._tensors[_Reference(own, self._settle)] = (probe, own._version, where)

    def watch_containers(self, own: object, where: str, seen: set[int] | None = None) -> None:
        """Watch the containers of a value that was handed out, whose items can be replaced."""
        seen = set() if seen is None else seen
        if isinstance(own, Tensor) or id(own) in seen or not holds_tensor(own):
            return
        seen.add(id(own))
        items = [item for _, item in parts(own)]
        if type(own) is not tuple:
            self._containers.append((own, tuple(map(id, items)), where))
        for item in items:
            self.watch_containers(item, where, seen)

    def look(self) -> None:
        """Let go of containers that the block has let go of; called when the block waits."""
        if len(self._containers) < self._next_look and len(self._containers) > _FEW:
            return
        kept = []
        for entry in self._containers:
            # The list, the tuple, this name and the call.
            container, items, where = entry
            if sys.getrefcount(container) > 3:
                kept.append(entry)
            else:
                self._settle_container(container, items, where)
        self._containers = kept
        self._next_look = 2 * len(kept)

    def finish(self) -> dict[str, int]:
        """Stop watching, and return how many tensors and containers of each location were changed late."""
        for entry in self._containers:
            self._settle_container(*entry)
        for reference in list(self._tensors):
            self._settle(reference)
        counts, self._counts = self._counts, {}
        self._containers.clear()
        return counts

    def _settle(self, reference: weakref.ref[Tensor]) -> None:
        entry = self._tensors.pop(reference, None)  # type: ignore[call-overload]
        if entry is not None:
            probe, version, where = entry
            if probe._version != version:
                self._count(where)

    def _settle_container(self, container: Any, items: tuple[int, ...], where: str) -> None:
        if tuple([id(item) for _, item in parts(container)]) != items:
            self._count(where)

    def _count(self, where: str) -> None:
        self._counts[where] = self._counts.get(where, 0) + 1
