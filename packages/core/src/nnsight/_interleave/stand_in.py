"""What stands for a block at one place, in a step that the block itself has no part in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnsight._interleave.location import Location
from nnsight._interleave.run import BlockRun

if TYPE_CHECKING:
    from nnsight._interleave.scope import Scope


class StandIn(BlockRun):
    """Waits at one location for one step; a subclass says in `serve` what it does there."""

    def __init__(self, location: Location) -> None:
        """Wait at `location`."""
        super().__init__(lambda run: None)
        self.wait = location

    def begin_step(self, step: int, scope: Scope | None) -> None:
        """Enter the step."""
        self.step = step

    def arrive(self) -> Location:
        """Wait no longer, and return where the model has got to."""
        location = self.wait
        assert type(location) is Location
        self.wait = None
        self.finished = True
        return location
