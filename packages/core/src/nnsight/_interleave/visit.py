"""One visit of a location: the live value, what the block was handed of it, and what the block made of that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from nnsight._interleave.scope import map_tensors, merge, same_tensors

if TYPE_CHECKING:
    from nnsight._interleave.location import Location
    from nnsight._interleave.scope import Scope

MISSING: Final = object()


class Visit:
    """The value of a location while its block has its turn.

    Of a tuple, an item that the block does not ask for is not copied: the model stands still during the turn, so what
    is asked for later in it is what it was at the beginning.

    Attributes:
        location: The location.
        handed: The tensors that the block was handed, each with its version then.
    """

    __slots__ = ("_items", "_live", "_own", "_replacement", "_scope", "handed", "location")

    def __init__(self, location: Location, live: object, scope: Scope) -> None:
        """Begin a visit.

        Args:
            location: The location.
            live: The model's own value.
            scope: The part of it that belongs to the request.
        """
        self.location = location
        self.handed: list[tuple[torch.Tensor, int]] = []
        self._live: Any = live
        self._scope = scope
        self._own: object = MISSING
        self._items: dict[int, object] | None = None
        self._replacement: Any = MISSING

    def hand_out(self, wanted: int | None) -> None:
        """Copy the value for the block, or only one item where it is a tuple that has it."""
        if torch.is_inference_mode_enabled():
            # Tensors made in inference mode do not count their versions.
            with torch.inference_mode(mode=False), torch.set_grad_enabled(torch.is_grad_enabled()):
                self._hand_out(wanted)
        else:
            self._hand_out(wanted)

    def value(self) -> Any:
        """Return the block's own copy, or what it replaced the value with."""
        if self._replacement is not MISSING:
            return self._replacement
        if self._own is MISSING:
            self.hand_out(None)
        return self._own

    def item(self, index: int) -> object:
        """Return `value()[index]`."""
        if self._replacement is MISSING and self._own is MISSING:
            self.hand_out(index)
            if self._own is MISSING:
                assert self._items is not None
                return self._items[index % len(self._live)]
        return self.value()[index]

    def replace(self, value: object) -> None:
        """Replace the value.

        Raises:
            MismatchedValueError: It does not fit.
        """
        where = str(self.location)

        def check(live: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
            self._scope.check(live, own, where)
            return own

        merge(self._live, value, check, where, self._scope.fill)
        self._replacement = value

    def changed(self) -> object:
        """Return what the block made of the value; `MISSING` when it is what it was."""
        if self._replacement is not MISSING:
            return self._replacement
        for tensor, version in self.handed:
            if tensor._version != version:
                return self._edited()
        return MISSING if same_tensors(self._shown(), self.handed) else self._edited()

    def land(self, value: object) -> object:
        """Put a value into the request's part of the live one, and return what the model goes on with.

        Raises:
            MismatchedValueError: It does not fit.
            SharedValueError: It would change what other requests use.
        """
        scope, where = self._scope, self.location.name

        def put(live: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
            return live if own is live else scope.put(live, own, where)

        return merge(self._live, value, put, where, scope.fill)

    def _hand_out(self, wanted: int | None) -> None:
        live = self._live
        if type(live) is not tuple or (wanted is None and self._items is None):
            self._own = map_tensors(live, self._copy)
            return
        items = self._items
        if items is None:
            items = self._items = {}
        count = len(live)
        partly = wanted is not None and -count <= wanted < count
        for index in (wanted % count,) if partly else range(count):  # type: ignore[operator]
            if index not in items:
                items[index] = map_tensors(live[index], self._copy)
        if not partly:
            self._own = tuple([items[index] for index in range(count)])

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        own: torch.Tensor = self._scope.take(tensor)
        self.handed.append((own, own._version))
        return own

    def _shown(self) -> object:
        """Return all that the block was handed, in order."""
        if self._items is None:
            return self._own
        return tuple(self._items.values())

    def _edited(self) -> object:
        """Return the value with the block's copies in the place of what was copied."""
        if self._items is None:
            return self._own
        return tuple([self._items.get(index, item) for index, item in enumerate(self._live)])
