"""Rows of a prompt that is computed in several parts, put together for a block that sees it whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from nnsight._interleave.location import Location
from nnsight._interleave.stand_in import StandIn
from nnsight._interleave.structure import map_tensors
from nnsight.errors import UnsupportedFeatureError

if TYPE_CHECKING:
    from nnsight._interleave.scope import RowScope, Scope

Tensor = torch.Tensor


class Pieces:
    """What earlier parts of a prompt had at the places where a block will read."""

    def __init__(self, places: Sequence[tuple[str, str]]) -> None:
        """Prepare to keep the rows of places, each a path and a side."""
        self._kept: dict[tuple[str, str], list[list[Tensor]]] = {place: [] for place in places}

    def gatherers(self) -> list[Gatherer]:
        """Return what keeps the rows of one part of the prompt, place by place."""
        return [Gatherer(Location(*place), kept) for place, kept in self._kept.items()]

    def joined(self, location: Location, live: object, scope: Any) -> Scope:
        """Return a scope that hands out the rows of a place with those of earlier parts before them."""
        place = location.place
        if place.side == "value":
            return scope  # type: ignore[no-any-return]
        kept = self._kept.get((place.path, place.side)) if not place.ops else None
        if kept is None:
            raise UnsupportedFeatureError(
                f"{location} was not kept while the prompt was computed in several parts; raise "
                "max_num_batched_tokens, or leave enable_chunked_prefill at its default"
            )
        earlier: dict[int, list[Tensor]] = {}
        for number, tensor in enumerate(_tensors(live)):
            earlier[id(tensor)] = [part[number] for part in kept if number < len(part)]
        return JoinedScope(scope, earlier)


class Gatherer(StandIn):
    """Stands for a block at one place while a part of its prompt is computed, and keeps the rows there."""

    def __init__(self, location: Location, kept: list[list[Tensor]]) -> None:
        """Prepare to keep rows."""
        super().__init__(location)
        self._kept = kept

    def serve(self, live: object, scope: Scope) -> object:
        """Keep the rows."""
        self.arrive()
        with torch.inference_mode(mode=False), torch.no_grad():
            self._kept.append([scope.take(tensor) for tensor in _tensors(live)])
        return live

    def end_step(self) -> None:
        """Let a place go that was not reached: the block is told if it asks for it."""
        self.finished = True


@dataclass(frozen=True, slots=True)
class JoinedScope:
    """The last rows of a prompt, handed out with the rows before them; nothing is changed through it.

    Attributes:
        last: The rows of the last part.
        earlier: Rows of earlier parts, by the tensor of the last part.
    """

    lands_unchanged: ClassVar[bool] = False
    last: RowScope
    earlier: dict[int, list[Tensor]]

    @property
    def alone(self) -> bool:
        """Whether no other request shares the batch."""
        return False

    @property
    def total(self) -> int | None:
        """Rows of the whole batch."""
        return self.last.total

    @property
    def num_rows(self) -> int:
        """Rows of the last part."""
        return self.last.num_rows

    def apart(self) -> JoinedScope:
        """Return itself."""
        return self

    def take(self, live: Tensor) -> Tensor:
        """Return the rows of the whole prompt.

        Shape:
            live: [T, ...]
            returns: [prompt tokens, ...]
        """
        own = self.last.take(live)
        earlier = self.earlier.get(id(live))
        if not earlier or not live.dim() or live.shape[0] != self.last.total:
            return own
        return torch.cat([*earlier, own])

    def check(self, live: Tensor, own: Tensor, where: str) -> None:
        """Never asked: the block changes nothing."""
        self.last.check(live, own, where)

    def fill(self, live: Tensor, number: float) -> Tensor:
        """Never asked, as above."""
        return self.last.fill(live, number)

    def put(self, live: Tensor, own: Tensor, where: str) -> Tensor:
        """Never asked, as above."""
        return self.last.put(live, own, where)


def _tensors(value: object) -> list[Tensor]:
    """Return the tensors of a value, in order."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    map_tensors(value, note)
    return found
