"""One visit of a location: what a block is handed there, and what it leaves."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import PurePath
from types import CodeType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch

from nnsight._interleave import refusals
from nnsight._interleave.landing import Landing, is_fixed
from nnsight._interleave.structure import describe, map_tensors
from nnsight._interleave.sums import Sum, outside_inference, replaced, select
from nnsight.errors import MismatchedValueError, NNsightError, UnsupportedFeatureError
from nnsight.families import LayerArgument

if TYPE_CHECKING:
    from collections.abc import Callable

    from nnsight._interleave.landing import Handed
    from nnsight._interleave.late import LateEdits
    from nnsight._interleave.location import Location
    from nnsight._interleave.replay import Put, RowLog
    from nnsight._interleave.scope import Scope

MISSING: Final = object()
# There is no value: a module that is called without arguments has no input.
NOTHING: Final = object()

# Arguments of a module's call that is under way, positional and by keyword; None where there is none.
CallUnderWay: TypeAlias = "Callable[[str], tuple[tuple[Any, ...], dict[str, Any]] | None]"

_ENVOYS: Final = str(PurePath(__file__).parent.parent / "_envoy")


def asking_statement(depth: int) -> tuple[CodeType, int]:
    """Note the instruction of the caller so many frames up, or of the one above it that is no envoy's."""
    frame = sys._getframe(depth + 1)
    while frame.f_code.co_filename.startswith(_ENVOYS) and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code, frame.f_lasti


def _spell_statement(code: CodeType, offset: int) -> str:
    position = next(islice(code.co_positions(), offset // 2, None), None)
    line = position[0] if position is not None else None
    return f"{code.co_filename}:{line or code.co_firstlineno}"


class Visit:
    """What one block is handed at a location, in one turn.

    Of a tuple, an item that the block does not ask for is not copied: the model stands still during the turn, so what
    is asked for later in it is what it was at the beginning.

    Attributes:
        location: Where.
        locations: All that the block asked for here: standard values and `.output` may be found at one place.
        edited: Names of what the block changed, complete when it has landed.
        own: The block's own copy; `MISSING` before it is handed out.
    """

    __slots__ = (
        "_asked",
        "_assigned",
        "_call_under_way",
        "_handed",
        "_items",
        "_live",
        "_log",
        "_replacement",
        "_scope",
        "_stale",
        "_stream",
        "_sums",
        "edited",
        "location",
        "locations",
        "own",
    )

    def __init__(
        self,
        location: Location,
        live: object,
        scope: Scope,
        asked: tuple[CodeType, int] | None,
        call_under_way: CallUnderWay,
        log: RowLog | None = None,
    ) -> None:
        """Prepare a visit.

        Args:
            location: Where.
            live: The model's own value, or `NOTHING`.
            scope: The part of it that belongs to the request.
            asked: The statement of the block that asked for it.
            call_under_way: Gives the arguments of a module's call that is under way, by path.
            log: Where what the block leaves is noted.
        """
        self.location = location
        self._log = log
        self.own: object = MISSING
        self._live: Any = live
        self._scope = scope
        self._asked = asked
        self._call_under_way = call_under_way
        self._items: dict[int, object] | None = None
        self._replacement: object = MISSING
        self._assigned = False
        self._handed: list[Handed] = []
        self._sums: dict[Location, Sum] = {}
        # Sums that were handed out and whose terms changed since.
        self._stale: tuple[Sum, ...] = ()
        self._stream: object = MISSING
        self.locations: tuple[Location, ...] = (location,)
        self.edited: tuple[str, ...] = ()

    @property
    def value(self) -> object:
        """What the block sees: what it assigned, or its own copy."""
        if self._replacement is not MISSING:
            return self._replacement
        if self.own is MISSING:
            self.hand_out()
        return self.own

    def item(self, index: int) -> Any:
        """Return `value[index]`."""
        self._fold_changes()
        if self._replacement is MISSING and self.own is MISSING:
            self.hand_out(index)
            if self.own is MISSING:
                assert self._items is not None
                return self._items[index % len(self._live)]
        value: Any = self.value
        return value[index]

    def hand_out(self, wanted: int | None = None) -> None:
        """Copy the model's value for the block, or only one item where it is a tuple that has it."""
        if self._live is NOTHING:
            self.own = None
        elif torch.is_inference_mode_enabled():
            # Tensors made in inference mode do not count their versions.
            with torch.inference_mode(mode=False), torch.set_grad_enabled(torch.is_grad_enabled()):
                self._hand_out(wanted)
        else:
            self._hand_out(wanted)

    def _hand_out(self, wanted: int | None) -> None:
        live = self._live
        if type(live) is not tuple or (wanted is None and self._items is None):
            self.own = map_tensors(live, self._copy)
            return
        items = self._items
        if items is None:
            items = self._items = {}
        count = len(live)
        if wanted is not None and -count <= wanted < count:
            index = wanted % count
            if index not in items:
                items[index] = map_tensors(live[index], self._copy)
            return
        for index in range(count):
            if index not in items:
                items[index] = map_tensors(live[index], self._copy)
        self.own = tuple([items[index] for index in range(count)])

    def see(self, location: Location) -> object:
        """Return what the block sees at a location of this place.

        Raises:
            UnsupportedFeatureError: A standard value cannot be found here, or was changed under two names at once.
        """
        self._fold_changes()
        standard = location.standard
        if standard is None:
            return self.value
        target, addend = self._terms(location)
        if addend is None:
            return target
        known = self._sums.get(location)
        if known is None or not known.is_sum_of((target, addend)):
            if known is not None:
                self._stale = (*self._stale, known)
            tensor = outside_inference(lambda: target + addend)
            known = self._sums[location] = Sum.of(location, tensor, (target, addend), handed=True)
        return known.tensor

    def assign(self, location: Location, value: object) -> None:
        """Let a value take the place of the model's.

        Raises:
            MismatchedValueError: The value does not fit.
            SharedValueError: It would change what every request uses.
            UnsupportedFeatureError: A standard value cannot be found here, or was changed under two names at once.
        """
        if self._live is NOTHING:
            raise MismatchedValueError(
                f"{location} was assigned, but the module is called without arguments here, so there is nothing "
                "to replace; change the output of the module, or the input of one that is given a value"
            )
        if location.standard is not None:
            self._assign_standard(location, value)
        else:
            self._check(value, location)
            self._sums.clear()
            self._stale = ()
            self._replacement = value
        self._assigned = True
        self._note_edit(location)

    def _note_edit(self, location: Location) -> None:
        if location.name not in self.edited:
            self.edited = (*self.edited, location.name)

    def _check(self, value: object, location: Location) -> None:
        scope = self._scope

        def check(live: torch.Tensor, own: torch.Tensor, where: str) -> torch.Tensor:
            scope.check(live, own, where)
            return live

        checking = Landing(
            self._handed, check, scope.fill, before_change=_allow, everything=scope.lands_unchanged, dry=True
        )
        checking.land(self._live, value, location.name)

    def copies(self) -> list[torch.Tensor]:
        """Return the tensors that were copied for the block."""
        return [own for own, _, _ in self._handed]

    def is_untouched(self) -> bool:
        """Tell at a glance that the block changed nothing; False where it takes a closer look."""
        if self._sums and any([total.is_changed() for total in (*self._sums.values(), *self._stale)]):
            return False
        if self._replacement is not MISSING:
            return False
        if self.own is MISSING:
            if self._items is not None and not all([is_fixed(item) for item in self._items.values()]):
                return False
        elif not is_fixed(self.own):
            return False
        return all([own._version == version for own, version, _ in self._handed])

    def _left(self) -> object:
        """Return what the block left; of a tuple, what it did not ask for is the model's own."""
        if self._replacement is not MISSING:
            return self._replacement
        if self.own is MISSING and self._items is not None:
            items = self._items
            return tuple([items.get(index, item) for index, item in enumerate(self._live)])
        return self.own

    def land(self, *, read_only: bool) -> tuple[object, bool]:
        """Bring what the block left into the model.

        Returns:
            What the model goes on with, and whether the block changed anything.

        Raises:
            NNsightError: It does not fit, is shared with other requests, or the program promised to change nothing.
        """
        self._fold_changes()

        def refuse() -> None:
            if read_only:
                raise refusals.read_only(next(iter(self.edited), self.location.name))

        everything = self._assigned and self._scope.lands_unchanged
        put: Put = self._scope.put
        if self._log is not None:
            put = self._log.noting(self.location, self._scope, put)
        landing = Landing(self._handed, put, self._scope.fill, before_change=refuse, everything=everything)
        try:
            landed = landing.land(self._live, self._left(), self.location.name)
        except NNsightError as error:
            raise type(error)(f"{error}{self._where_asked()}") from None
        except Exception as error:
            error.add_note(f"raised while a change of {self.location} landed{self._where_asked()}")
            raise
        if landing.changed and not self.edited:
            self._note_edit(self.location)
        return landed, landing.changed or self._assigned

    def refuse_item_of_tensor(self) -> None:
        """Refuse an item of a tensor, which is a row, to a block that is to change all rows alike.

        Raises:
            UnsupportedFeatureError: The value is no tuple or list.
        """
        if not isinstance(self._live, tuple | list):
            raise refusals.not_by_row(self.location, f"it is {describe(self._live)} here, whose items are rows")

    def refuse_changes_across_rows(self) -> None:
        """Refuse a change of a tensor that has not one row for each token.

        Raises:
            UnsupportedFeatureError: Such a tensor was changed.
        """
        total = self._scope.total
        for own, version, live in self._handed:
            by_row = live.dim() > 1 and live.shape[0] == total
            if own._version != version and not by_row:
                shape = tuple(live.shape)
                raise refusals.not_by_row(self.location, f"it has shape {shape}, which is not [tokens, ...]")

    def watch(self, late: LateEdits) -> None:
        """Have what was handed out watched for edits that come too late."""
        where = self.location.name
        for own, _, _ in self._handed:
            late.watch_tensor(own, where)
        for total in (*self._sums.values(), *self._stale):
            if total.handed:
                late.watch_tensor(total.tensor, total.location.name)
        for shown in (self.own,) if self._items is None else self._items.values():
            if shown is not MISSING and not is_fixed(shown):
                late.watch_containers(shown, where)

    # Standard values ----------------------------------------------------------------------------------------------

    def _terms(self, location: Location) -> tuple[Any, Any]:
        """Return the tensor that a standard value is found in, and what is added to it or None."""
        standard = location.standard
        assert standard is not None
        target = select(self.value, standard.value.part, location.name)
        if not isinstance(target, torch.Tensor | int | float):
            raise UnsupportedFeatureError(
                f"{location} is to be found at {standard.place}, where there is {describe(target)} instead of a "
                "tensor: the family does not fit this model; read the outputs and inputs of its modules instead"
            )
        plus = standard.value.plus
        if plus is None:
            return target, None
        if isinstance(plus, LayerArgument):
            if self._stream is MISSING:
                self._stream = self._argument_of_layer(standard.layer, plus, location)
            return target, self._stream
        return target, select(self.value, plus, location.name)

    def _argument_of_layer(self, layer: str, argument: LayerArgument, location: Location) -> object:
        call = self._call_under_way(layer)
        live = None if call is None else select(call, argument, location.name)
        if not isinstance(live, torch.Tensor):
            raise UnsupportedFeatureError(
                f"{location} is what {layer} was given and what {location.place} adds to it, but {layer} is given "
                f"{describe(live)} as {argument.name} here; read {location.place} and the input of {layer} instead"
            )
        return outside_inference(lambda: self._scope.take(live))

    def _fold_changes(self) -> None:
        """Bring the sums that the block changed into the location's value."""
        for total in (*self._sums.values(), *self._stale):
            if not total.is_changed():
                continue
            if not total.is_sum_of(self._terms(total.location)):
                raise UnsupportedFeatureError(
                    f"{total.location} and another value of {total.location.place} that it is made of were both "
                    "changed after both were read, so it cannot be told which change comes first; read one of them "
                    "again after changing the other, and change what that gives"
                )
            self._note_edit(total.location)
            self._fold(total.location, total.tensor)

    def _assign_standard(self, location: Location, new: object) -> None:
        self._fold_changes()
        standard = location.standard
        assert standard is not None
        _, addend = self._terms(location)
        if isinstance(new, torch.Tensor):
            self._scope.check(select(self._live, standard.value.part, location.name), new, location.name)
        elif not isinstance(new, int | float) or isinstance(new, bool):
            raise MismatchedValueError(
                f"{location} is a tensor, but the block assigned {describe(new)}; assign a tensor"
            )
        if addend is None:
            self._check(replaced(self.value, standard.value.part, new), location)
        self._fold(location, new)

    def _fold(self, location: Location, new: Any) -> None:
        standard = location.standard
        assert standard is not None
        _, addend = self._terms(location)
        left = new
        if addend is not None:
            given = new.to(addend.device) if isinstance(new, torch.Tensor) else new
            left = outside_inference(lambda: given - addend)
        self._replacement = replaced(self.value, standard.value.part, left)
        known = self._sums.pop(location, None)
        if addend is not None and isinstance(new, torch.Tensor):
            handed = known is not None and known.handed and known.tensor is new
            self._sums[location] = Sum.of(location, new, (left, addend), handed=handed)

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        own = self._scope.take(tensor)
        self._handed.append((own, own._version, tensor))
        return own

    def _where_asked(self) -> str:
        if self._asked is None:
            return ""
        how = "assigned it" if self._assigned else "read it"
        return (
            f". The block {how} at {_spell_statement(*self._asked)} and changed it in place after that. Such a change "
            "lands when the block waits for its next value or ends, so the line that the traceback shows is not the "
            "one to blame"
        )


def _allow() -> None:
    return None
