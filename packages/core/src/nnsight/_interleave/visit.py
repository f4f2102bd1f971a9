"""One visit of a location: what a block is handed there, and what it leaves."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import PurePath
from types import CodeType
from typing import TYPE_CHECKING, Any, Final

import torch

from nnsight._interleave import refusals
from nnsight._interleave.landing import Landing, is_fixed
from nnsight._interleave.structure import map_tensors
from nnsight.errors import MismatchedValueError, NNsightError

if TYPE_CHECKING:
    from nnsight._interleave.landing import Handed
    from nnsight._interleave.late import LateEdits
    from nnsight._interleave.location import Location
    from nnsight._interleave.scope import Scope

MISSING: Final = object()
# There is no value: a module that is called without arguments has no input.
NOTHING: Final = object()

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
        own: The block's own copy; `MISSING` before it is handed out.
    """

    __slots__ = ("_asked", "_handed", "_items", "_live", "_replacement", "_scope", "location", "own")

    def __init__(self, location: Location, live: object, scope: Scope, asked: tuple[CodeType, int] | None) -> None:
        """Prepare a visit.

        Args:
            location: Where.
            live: The model's own value, or `NOTHING`.
            scope: The part of it that belongs to the request.
            asked: The statement of the block that asked for it.
        """
        self.location = location
        self.own: object = MISSING
        self._live: Any = live
        self._scope = scope
        self._asked = asked
        self._items: dict[int, object] | None = None
        self._replacement: object = MISSING
        self._handed: list[Handed] = []

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

    def assign(self, value: object) -> None:
        """Let a value take the place of the model's.

        Raises:
            MismatchedValueError: The value does not fit.
            SharedValueError: It would change what every request uses.
        """
        if self._live is NOTHING:
            raise MismatchedValueError(
                f"{self.location} was assigned, but the module is called without arguments here, so there is nothing "
                "to replace; change the output of the module, or the input of one that is given a value"
            )
        scope = self._scope

        def check(live: torch.Tensor, own: torch.Tensor, where: str) -> torch.Tensor:
            scope.check(live, own, where)
            return live

        checking = Landing(
            self._handed, check, scope.fill, before_change=_allow, everything=scope.lands_unchanged, dry=True
        )
        checking.land(self._live, value, self.location.name)
        self._replacement = value

    def is_untouched(self) -> bool:
        """Tell at a glance that the block changed nothing; False where it takes a closer look."""
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
        assigned = self._replacement is not MISSING

        def refuse() -> None:
            if read_only:
                raise refusals.read_only(self.location)

        everything = assigned and self._scope.lands_unchanged
        landing = Landing(self._handed, self._scope.put, self._scope.fill, before_change=refuse, everything=everything)
        try:
            landed = landing.land(self._live, self._left(), self.location.name)
        except NNsightError as error:
            raise type(error)(f"{error}{self._where_asked()}") from None
        except Exception as error:
            error.add_note(f"raised while a change of {self.location} landed{self._where_asked()}")
            raise
        return landed, landing.changed or assigned

    def watch(self, late: LateEdits) -> None:
        """Have what was handed out watched for edits that come too late."""
        where = self.location.name
        for own, _, _ in self._handed:
            late.watch_tensor(own, where)
        for shown in (self.own,) if self._items is None else self._items.values():
            if shown is not MISSING and not is_fixed(shown):
                late.watch_containers(shown, where)

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        own = self._scope.take(tensor)
        self._handed.append((own, own._version, tensor))
        return own

    def _where_asked(self) -> str:
        if self._asked is None:
            return ""
        how = "assigned it" if self._replacement is not MISSING else "read it"
        return (
            f". The block {how} at {_spell_statement(*self._asked)} and changed it in place after that. Such a change "
            "lands when the block waits for its next value or ends, so the line that the traceback shows is not the "
            "one to blame"
        )


def _allow() -> None:
    return None
