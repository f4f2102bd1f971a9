"""Edits in place that came after the model had moved on, which change the block's own copy alone."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from nnsight._interleave.location import Location


class LateEdits:
    """The tensors that a block was handed, with the version of each when the model went on."""

    __slots__ = ("_watched",)

    def __init__(self) -> None:
        """Watch nothing yet."""
        self._watched: list[tuple[weakref.ref[torch.Tensor], int, Location]] = []

    def watch(self, tensors: Iterable[torch.Tensor], location: Location) -> None:
        """Note the versions of tensors that were handed out at a location."""
        watched = self._watched
        for tensor in tensors:
            watched.append((weakref.ref(tensor), tensor._version, location))

    def warnings(self) -> list[str]:
        """Return one sentence for each location whose tensors have changed since, and forget them all."""
        late: dict[str, int] = {}
        for reference, version, location in self._watched:
            tensor = reference()
            if tensor is not None and tensor._version != version:
                late[location.name] = late.get(location.name, 0) + 1
        self._watched.clear()
        return [
            f"{where} was changed in place {count} time(s) after the model had moved on: "
            "only the block's own copy changed"
            for where, count in late.items()
        ]
