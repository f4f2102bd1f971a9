"""Rows as a block left them, kept so that they can be written again.

An engine that runs out of room may drop a request and compute it anew later, its prompt and what it generated in one
forward. A block is not run twice: whatever it changed is written again at the same places, at the same positions.

Shape suffixes: R = rows of one request, T = rows of the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import torch

from nnsight._interleave.location import Location
from nnsight._interleave.stand_in import StandIn
from nnsight._interleave.structure import parts
from nnsight._interleave.visit import Visit
from nnsight.errors import MismatchedValueError, UnsupportedFeatureError

if TYPE_CHECKING:
    from nnsight._interleave.scope import Scope

Tensor = torch.Tensor
Put = Callable[[Tensor, Tensor, str], Tensor]

LOG_BYTES: Final = 64 * 2**20
# What was left in logits and sampled ids is needed for steps whose token got lost, of which there are one or two.
_NUM_VALUES: Final = 4

_Place = tuple[str, str, tuple[str, ...]]


class RowLog:
    """What one block left in rows of the model, by place and position.

    Attributes:
        position: Absolute position of the first row that the request computes in this step.
        problem: Why the rows cannot be written again; None where they can.
    """

    def __init__(self, limit: int = LOG_BYTES) -> None:
        """Keep rows of up to `limit` bytes."""
        self.position = 0
        self.problem: str | None = None
        self._limit = limit
        self._size = 0
        self._rows: dict[_Place, dict[str, list[tuple[int, Tensor]]]] = {}
        # Calls in whose place a value was put in this step: their output may be changed once more.
        self._skipped: dict[_Place, int] = {}

    def noting(self, location: Location, scope: Scope, put: Put) -> Put:
        """Return `put`, which lands a tensor of the block, so that what it leaves is noted too."""

        def put_and_note(live: Tensor, own: Tensor, where: str) -> Tensor:
            landed = put(live, own, where)
            if self.problem is None:
                self._note(location, where[len(location.name) :], landed, scope)
            return landed

        return put_and_note

    def places(self) -> Iterator[Location]:
        """Make a location of each place where rows were left."""
        for path, side, ops in self._rows:
            yield Location(path, side, ops)

    def parts(self, location: Location, first: int, count: int) -> dict[str, list[tuple[int, Tensor]]]:
        """Return what was left at a place in `count` rows from position `first` on.

        Returns:
            For each part of the value, as a block spells it, runs of rows with the position of their first.
        """
        found: dict[str, list[tuple[int, Tensor]]] = {}
        for part, entries in self._rows.get((location.path, location.side, location.ops), {}).items():
            for position, rows in entries:
                begin, end = max(position, first), min(position + len(rows), first + count)
                if begin < end:
                    found.setdefault(part, []).append((begin, rows[begin - position : end - position]))
        return found

    def _note(self, location: Location, part: str, landed: Tensor, scope: Any) -> None:
        if not landed.dim() or landed.shape[0] != scope.total:
            self._drop(f"{location} was changed in a value that is not one row per token")
            return
        rows = landed[scope.start : scope.stop].detach()
        place = location.place
        skips = place.side == "skip"
        key = (place.path, "output" if skips else place.side, place.ops)
        entries = self._rows.setdefault(key, {}).setdefault(part, [])
        if entries and entries[-1][0] >= self.position:
            if skips or self._skipped.pop(key, None) != self.position:
                self._drop(f"{location} was changed several times in one step")
                return
            entries.pop()
        if skips:
            self._skipped[key] = self.position
        if place.side == "value":
            entries.append((self.position, rows.clone()))
            del entries[:-_NUM_VALUES]
            return
        self._size += rows.numel() * rows.element_size()
        if self._size > self._limit:
            self._drop(f"the block changed more than {self._limit // 2**20} MiB of rows, which is as much as is kept")
            return
        entries.append((self.position, rows.clone()))

    def _drop(self, problem: str) -> None:
        self.problem = problem
        self._rows.clear()


class Replay(StandIn):
    """Stands for a block at one place where it left rows that are computed again now."""

    def __init__(
        self, log: RowLog, location: Location, first: int, count: int, failed: Callable[[Exception], None]
    ) -> None:
        """Prepare to write rows.

        Args:
            log: What the block left.
            location: Where; made by `log.places`.
            first: Absolute position of the first row that is computed again.
            count: How many rows are.
            failed: Told why the rows could not be written.
        """
        super().__init__(location)
        self._rows = log.parts(location, first, count)
        self._first = first
        self._failed = failed

    @property
    def has_rows(self) -> bool:
        """Whether there is anything to write."""
        return bool(self._rows)

    def serve(self, live: object, scope: Scope) -> object:
        """Write the rows into the model's value."""
        location = self.arrive()
        visit = Visit(location, live, scope, None, self.call_under_way)
        try:
            visit.hand_out()
            with torch.inference_mode(mode=False), torch.no_grad():
                for part, entries in self._rows.items():
                    own = _part(visit.own, part, location)
                    for position, rows in entries:
                        own[position - self._first : position - self._first + len(rows)] = rows
            return visit.land(read_only=False)[0]
        except Exception as error:  # noqa: BLE001 - it belongs to the request, never to the model
            self._failed(error)
            return live

    def end_step(self) -> None:
        """See whether the place was reached."""
        if not self.finished:
            self._failed(UnsupportedFeatureError(f"{self.wait} was changed earlier, but is not reached now"))


def replays(log: RowLog, first: int, count: int, failed: Callable[[Exception], None], *, samples: bool) -> list[Replay]:
    """Return what writes again whatever a block left in `count` rows from position `first` on.

    Args:
        log: What the block left.
        first: Absolute position of the first row that is computed again.
        count: How many rows are.
        failed: Told why the rows of a place could not be written.
        samples: Whether the last of them is sampled from again.
    """
    found = []
    for location in log.places():
        if location.side != "value":
            found.append(Replay(log, location, first, count, failed))
        elif samples:
            found.append(Replay(log, location, first + count - 1, 1, failed))
    return [each for each in found if each.has_rows]


def _part(value: object, name: str, location: Location) -> Tensor:
    if not name:
        if isinstance(value, Tensor):
            return value
        raise MismatchedValueError(f"{location} holds no tensor where one was changed earlier")
    for place, item in parts(value):
        if name.startswith(place):
            return _part(item, name[len(place) :], location)
    raise MismatchedValueError(f"{location} has no {name} now, which was changed earlier")
