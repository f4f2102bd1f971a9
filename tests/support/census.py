"""Counts of what a process holds, to be compared before and after."""

from __future__ import annotations

import gc
import os
import threading
from dataclasses import dataclass

import greenlet
import torch


@dataclass(frozen=True)
class Census:
    """What there is of each kind.

    Attributes:
        descriptors: Open files and sockets.
        threads: Threads that Python knows.
        greenlets: Greenlets alive, the main ones included.
        tensors: Tensors alive.
        frames: Frames kept alive by something.
    """

    descriptors: int
    threads: int
    greenlets: int
    tensors: int
    frames: int

    @classmethod
    def take(cls) -> Census:
        """Count, once what is unreachable is gone."""
        gc.collect()
        kinds = [type(each) for each in gc.get_objects()]
        return cls(
            descriptors=len(os.listdir("/proc/self/fd")),
            threads=threading.active_count(),
            greenlets=sum(issubclass(kind, greenlet.greenlet) for kind in kinds),
            tensors=sum(issubclass(kind, torch.Tensor) for kind in kinds),
            frames=sum(kind.__name__ == "frame" for kind in kinds),
        )

    def more_than(self, before: Census) -> dict[str, int]:
        """Return by how many there are more than before; what another test had left may go meanwhile."""
        counts = {name: getattr(self, name) - getattr(before, name) for name in self.__dataclass_fields__}
        return {name: count for name, count in counts.items() if count > 0}


def resident_bytes() -> int:
    """Return how much memory this process holds, in bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
