"""The standard values that one visit hands out, and what the block makes of them.

Several of them may be found at one place of the model: a tensor of its value, or the sum of one with something else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from nnsight._interleave.structure import describe
from nnsight._interleave.sums import Sum, outside_inference, replaced, select
from nnsight.errors import MismatchedValueError, UnsupportedFeatureError
from nnsight.families import LayerArgument

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nnsight._interleave.location import Location
    from nnsight._interleave.visit import Visit

_UNSEEN: Final = object()


class StandardValues:
    """What a block sees of one visit under standard names.

    The visit is handed to each method: kept here, the two would keep each other, and all that was copied for the block.
    """

    __slots__ = ("_stale", "_stream", "_sums")

    def __init__(self) -> None:
        """Begin with none."""
        self._sums: dict[Location, Sum] = {}
        # Sums that were handed out and whose terms changed since.
        self._stale: tuple[Sum, ...] = ()
        self._stream: object = _UNSEEN

    def see(self, visit: Visit, location: Location) -> object:
        """Return a standard value, whose changes were folded.

        Raises:
            UnsupportedFeatureError: It cannot be found here.
        """
        target, addend = self._terms(visit, location)
        if addend is None:
            return target
        known = self._sums.get(location)
        if known is None or not known.is_sum_of((target, addend)):
            if known is not None:
                self._stale = (*self._stale, known)
            tensor = outside_inference(lambda: target + addend)
            known = self._sums[location] = Sum.of(location, tensor, (target, addend), handed=True)
        return known.tensor

    def is_changed(self) -> bool:
        """Tell whether the block changed a sum in place."""
        return any([total.is_changed() for total in self._totals()])

    def handed(self) -> Iterator[Sum]:
        """Yield the sums that the block was handed."""
        return (total for total in self._totals() if total.handed)

    def fold_changes(self, visit: Visit) -> None:
        """Bring the sums that the block changed into the location's value.

        Raises:
            UnsupportedFeatureError: A value was changed under two names at once.
        """
        for total in self._totals():
            if not total.is_changed():
                continue
            if not total.is_sum_of(self._terms(visit, total.location)):
                raise UnsupportedFeatureError(
                    f"{total.location} and another value of {total.location.place} that it is made of were both "
                    "changed after both were read, so it cannot be told which change comes first; read one of them "
                    "again after changing the other, and change what that gives"
                )
            visit.note_edit(total.location)
            self._fold(visit, total.location, total.tensor)

    def assign(self, visit: Visit, location: Location, new: object) -> None:
        """Let a standard value take the place of the model's.

        Raises:
            MismatchedValueError: It does not fit.
            SharedValueError: It would change what every request uses.
            UnsupportedFeatureError: It cannot be found here, or was changed under two names at once.
        """
        self.fold_changes(visit)
        standard = location.standard
        assert standard is not None
        _, addend = self._terms(visit, location)
        if isinstance(new, torch.Tensor):
            visit.scope.check(select(visit.live, standard.value.part, location.name), new, location.name)
        elif not isinstance(new, int | float) or isinstance(new, bool):
            raise MismatchedValueError(
                f"{location} is a tensor, but the block assigned {describe(new)}; assign a tensor"
            )
        if addend is None:
            visit.check(replaced(visit.value, standard.value.part, new), location)
        self._fold(visit, location, new)

    def _totals(self) -> tuple[Sum, ...]:
        return (*self._sums.values(), *self._stale)

    def _terms(self, visit: Visit, location: Location) -> tuple[Any, Any]:
        """Return the tensor that a standard value is found in, and what is added to it or None."""
        standard = location.standard
        assert standard is not None
        target = select(visit.value, standard.value.part, location.name)
        if not isinstance(target, torch.Tensor | int | float):
            raise UnsupportedFeatureError(
                f"{location} is to be found at {standard.place}, where there is {describe(target)} instead of a "
                "tensor: the family does not fit this model; read the outputs and inputs of its modules instead"
            )
        plus = standard.value.plus
        if plus is None:
            return target, None
        if isinstance(plus, LayerArgument):
            if self._stream is _UNSEEN:
                self._stream = self._argument_of_layer(visit, standard.layer, plus, location)
            return target, self._stream
        return target, select(visit.value, plus, location.name)

    def _argument_of_layer(self, visit: Visit, layer: str, argument: LayerArgument, location: Location) -> object:
        call = visit.call_under_way(layer)
        live = None if call is None else select(call, argument, location.name)
        if not isinstance(live, torch.Tensor):
            raise UnsupportedFeatureError(
                f"{location} is what {layer} was given and what {location.place} adds to it, but {layer} is given "
                f"{describe(live)} as {argument.name} here; read {location.place} and the input of {layer} instead"
            )
        return outside_inference(lambda: visit.scope.take(live))

    def _fold(self, visit: Visit, location: Location, new: Any) -> None:
        standard = location.standard
        assert standard is not None
        _, addend = self._terms(visit, location)
        left = new
        if addend is not None:
            given = new.to(addend.device) if isinstance(new, torch.Tensor) else new
            left = outside_inference(lambda: given - addend)
        visit.replace(replaced(visit.value, standard.value.part, left))
        known = self._sums.pop(location, None)
        if addend is not None and isinstance(new, torch.Tensor):
            handed = known is not None and known.handed and known.tensor is new
            self._sums[location] = Sum.of(location, new, (left, addend), handed=handed)
