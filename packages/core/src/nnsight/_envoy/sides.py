"""What a call is given and returns, as a block reads and assigns it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nnsight._interleave.turns import current_run

if TYPE_CHECKING:
    from nnsight._interleave.location import Location


class Sides:
    """The output and the inputs of a module or of an op, which says where each of them is with `_location`."""

    __slots__ = ()

    def _location(self, side: str) -> Location:
        raise NotImplementedError

    @property
    def output(self) -> Any:
        """What the call returns, or the assignment assigns, as the block's own copy."""
        return current_run().read(self._location("output"))

    @output.setter
    def output(self, value: object) -> None:
        current_run().write(self._location("output"), value)

    @property
    def input(self) -> Any:
        """The call's first argument, as the block's own copy."""
        return current_run().read(self._location("input"))

    @input.setter
    def input(self, value: object) -> None:
        current_run().write(self._location("input"), value)

    @property
    def inputs(self) -> Any:
        """All arguments of the call, as `(positional, keywords)`."""
        return current_run().read(self._location("inputs"))

    @inputs.setter
    def inputs(self, value: object) -> None:
        current_run().write(self._location("inputs"), value)
