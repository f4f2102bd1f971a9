"""One visit of a location: what a block is handed there, and what it leaves."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch

from nnsight._interleave import refusals
from nnsight._interleave.landing import Landing, is_fixed
from nnsight._interleave.standards import StandardValues
from nnsight._interleave.structure import describe, map_tensors
from nnsight.errors import MismatchedValueError, NNsightError

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

_ENVOYS: Final = frozenset(map(str, (Path(__file__).parent.parent / "_envoy").glob("*.py")))


def asking_statement(depth: int) -> tuple[CodeType, int]:
    """Note the instruction of the caller so many frames up, or of the one above it that is no envoy's."""
    frame = sys._getframe(depth + 1)
    while frame.f_code.co_filename in _ENVOYS and frame.f_back is not None:
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
        live: The model's own value, or `NOTHING`.
        scope: The part of it that belongs to the request.
        call_under_way: Gives the arguments of a module's call that is under way, by path.
        locations: All that the block asked for here: standard values and `.output` may be found at one place.
        edited: Names of what the block changed, complete when it has landed.
        own: The block's own copy; `MISSING` before it is handed out.
    """

    __slots__ = (
        "_asked",
        "_assigned",
        "_handed",
        "_items",
        "_log",
        "_open",
        "_replacement",
        "_standards",
        "call_under_way",
        "edited",
        "live",
        "location",
        "locations",
        "own",
        "scope",
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
            location: See above.
            live: See above.
            scope: See above.
            asked: The statement of the block that asked for it.
            call_under_way: See above.
            log: Where what the block leaves is noted.
        """
        self.location = location
        self.live: Any = live
        self.scope = scope
        self.call_under_way = call_under_way
        self.own: object = MISSING
        self.locations: tuple[Location, ...] = (location,)
        self.edited: tuple[str, ...] = ()
        self._asked = asked
        self._log = log
        self._assigned = False
        self._handed: list[Handed] = []
        self._items: dict[int, object] | None = None
        # Whether something was handed out in whose parts others can be put.
        self._open = False
        self._replacement: object = MISSING
        self._standards: StandardValues | None = None

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
        if self._standards is not None:
            self._standards.fold_changes(self)
        if self._replacement is MISSING and self.own is MISSING:
            if self._items is None or index not in self._items:
                self.hand_out(index)
            if self.own is MISSING:
                assert self._items is not None
                return self._items[index % len(self.live)]
        value: Any = self.value
        return value[index]

    def hand_out(self, wanted: int | None = None) -> None:
        """Copy the model's value for the block, or only one item where it is a tuple that has it."""
        live = self.live
        if live is NOTHING:
            self.own = None
        elif torch.is_inference_mode_enabled():
            # Tensors made in inference mode do not count their versions.
            with torch.inference_mode(mode=False), torch.set_grad_enabled(torch.is_grad_enabled()):
                self._hand_out(live, wanted)
        else:
            self._hand_out(live, wanted)

    def _hand_out(self, live: Any, wanted: int | None) -> None:
        items = self._items
        if type(live) is not tuple or (wanted is None and items is None):
            self.own = self._copied(live)
            return
        if items is None:
            items = self._items = {}
        count = len(live)
        if wanted is not None and -count <= wanted < count:
            index = wanted % count
            if index not in items:
                items[index] = self._copied(live[index])
            return
        for index in range(count):
            if index not in items:
                items[index] = self._copied(live[index])
        self.own = tuple([items[index] for index in range(count)])

    def _copied(self, live: object) -> object:
        if type(live) is torch.Tensor:
            return self._copy(live)
        own = map_tensors(live, self._copy)
        self._open = self._open or not is_fixed(own)
        return own

    def see(self, location: Location) -> object:
        """Return what the block sees at a location of this place.

        Raises:
            UnsupportedFeatureError: A standard value cannot be found here, or was changed under two names at once.
        """
        if self._standards is not None:
            self._standards.fold_changes(self)
        return self.value if location.standard is None else self.standards.see(self, location)

    @property
    def standards(self) -> StandardValues:
        """The standard values that are found here."""
        if self._standards is None:
            self._standards = StandardValues()
        return self._standards

    def assign(self, location: Location, value: object) -> None:
        """Let a value take the place of the model's.

        Raises:
            MismatchedValueError: The value does not fit.
            SharedValueError: It would change what every request uses.
            UnsupportedFeatureError: A standard value cannot be found here, or was changed under two names at once.
        """
        if self.live is NOTHING:
            raise MismatchedValueError(
                f"{location} was assigned, but the module is called without arguments here, so there is nothing "
                "to replace; change the output of the module, or the input of one that is given a value"
            )
        if location.standard is not None:
            self.standards.assign(self, location, value)
        else:
            self.check(value, location)
            self._standards = None
            self._replacement = value
        self._assigned = True
        self.note_edit(location)

    def replace(self, value: object) -> None:
        """Let a value that is known to fit take the place of the model's."""
        self._replacement = value

    def note_edit(self, location: Location) -> None:
        """Note that the block changed what it knows by this name."""
        if location.name not in self.edited:
            self.edited = (*self.edited, location.name)

    def check(self, value: object, location: Location) -> None:
        """Refuse a value that cannot take the place of the model's.

        Raises:
            MismatchedValueError: It does not fit.
            SharedValueError: It would change what every request uses.
        """
        scope = self.scope

        def check(live: torch.Tensor, own: torch.Tensor, where: str) -> torch.Tensor:
            scope.check(live, own, where)
            return live

        checking = Landing(
            self._handed, check, scope.fill, before_change=_allow, everything=scope.lands_unchanged, dry=True
        )
        checking.land(self.live, value, location.name)

    def copies(self) -> list[torch.Tensor]:
        """Return the tensors that were copied for the block."""
        return [own for own, _, _ in self._handed]

    def is_untouched(self) -> bool:
        """Tell at a glance that the block changed nothing; False where it takes a closer look."""
        for own, version, _ in self._handed:
            if own._version != version:
                return False
        if self._replacement is not MISSING or (self._standards is not None and self._standards.is_changed()):
            return False
        return not self._open

    def _left(self) -> object:
        """Return what the block left; of a tuple, what it did not ask for is the model's own."""
        if self._replacement is not MISSING:
            return self._replacement
        if self.own is MISSING and self._items is not None:
            items = self._items
            return tuple([items.get(index, item) for index, item in enumerate(self.live)])
        return self.own

    def land(self, *, read_only: bool) -> tuple[object, bool]:
        """Bring what the block left into the model.

        Returns:
            What the model goes on with, and whether the block changed anything.

        Raises:
            NNsightError: It does not fit, is shared with other requests, or the program promised to change nothing.
        """
        if self._standards is not None:
            self._standards.fold_changes(self)

        def refuse() -> None:
            if read_only:
                raise refusals.read_only(next(iter(self.edited), self.location.name))

        everything = self._assigned and self.scope.lands_unchanged
        put: Put = self.scope.put
        if self._log is not None:
            put = self._log.noting(self.location, self.scope, put)
        landing = Landing(self._handed, put, self.scope.fill, before_change=refuse, everything=everything)
        try:
            landed = landing.land(self.live, self._left(), self.location.name)
        except NNsightError as error:
            raise type(error)(f"{error}{self._where_asked()}") from None
        except Exception as error:
            error.add_note(f"raised while a change of {self.location} landed{self._where_asked()}")
            raise
        if landing.changed and not self.edited:
            self.note_edit(self.location)
        return landed, landing.changed or self._assigned

    def refuse_item_of_tensor(self) -> None:
        """Refuse an item of a tensor, which is a row, to a block that is to change all rows alike.

        Raises:
            UnsupportedFeatureError: The value is no tuple or list.
        """
        if not isinstance(self.live, tuple | list):
            raise refusals.not_by_row(self.location, f"it is {describe(self.live)} here, whose items are rows")

    def refuse_changes_across_rows(self) -> None:
        """Refuse a change of a tensor that has not one row for each token.

        Raises:
            UnsupportedFeatureError: Such a tensor was changed.
        """
        total = self.scope.total
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
        if self._standards is not None:
            for total in self._standards.handed():
                late.watch_tensor(total.tensor, total.location.name)
        if self._open:
            for shown in (self.own,) if self._items is None else self._items.values():
                late.watch_containers(shown, where)

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        own = self.scope.take(tensor)
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
