"""Edits: blocks that run beside every later request of a model, `with model.edit() as (tracer, edit):`."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from nnsight._capture import BodySkipper, find_block
from nnsight._interleave import Receipt
from nnsight._program import Program
from nnsight._program.containers import own_copies
from nnsight._trace.deliver import without_skip
from nnsight._trace.in_block import InBlock
from nnsight.errors import InvalidRequestError, OutsideTraceError

if TYPE_CHECKING:
    from nnsight._trace.model import TracedModel


@dataclass
class EditResult:
    """What an edit brought home from one request.

    Attributes:
        saves: What its block saved, by variable or source text.
        receipt: What was served and changed; of a request of several sequences a list with that of each, as the saves
            are lists then.
    """

    saves: dict[str, object] = field(default_factory=dict)
    receipt: Any = field(default_factory=Receipt)


class EditTracer(InBlock):
    """The tracer of an edit: steps, the result and the end of whatever request its block runs beside.

    Attributes:
        model: The model that is edited.
    """

    stands_in = True

    def __init__(self, model: TracedModel) -> None:
        """Make the tracer of an edit."""
        self.model = model

    @property
    def result(self) -> Any:
        """The finished output of the request, inside a block.

        Raises:
            OutsideTraceError: It is asked for outside the block.
        """
        raise OutsideTraceError(
            "the block of an edit runs beside many requests: use tracer.result inside it, and save what is wanted of it"
        )


class Edit:
    """A block that runs beside every later request of its model, traced or not, until it is cleared.

    Attributes:
        model: The model that is edited.
        name: What the edit is called, in `edits=[...]`, among what it saves, and in errors of its block.
        key: Differs between edits, also of one name.
    """

    def __init__(self, model: TracedModel, name: str) -> None:
        """Make an edit, which is installed at the end of its block."""
        self.model = model
        self.name = name
        self.key = uuid.uuid4().hex
        self._program: Program | None = None

    @property
    def installed(self) -> bool:
        """Whether requests that are made now have it run beside them."""
        return self in self.model.edits

    def clear(self) -> None:
        """Remove the edit: requests that are made from now on run without it. Nothing happens where it is removed."""
        if self.installed:
            self.model._uninstall([self])

    @property
    def program(self) -> Program:
        """The captured block.

        Raises:
            OutsideTraceError: The block has not ended yet.
        """
        if self._program is None:
            raise OutsideTraceError(f"the edit {self.name!r} has no program before the end of its block")
        return self._program

    def __repr__(self) -> str:
        """Say what it is called, and whether it is installed."""
        return f"<Edit {self.name!r}{'' if self.installed else ', not installed'}>"


class EditBlock:
    """The `with` statement of an edit."""

    def __init__(self, model: TracedModel, name: object) -> None:
        """Prepare the capture of a block.

        Raises:
            InvalidRequestError: The name is taken, or is no name.
            UnsupportedFeatureError: The backend has no edits.
        """
        model._check_edits()
        taken = [edit.name for edit in model.edits]
        if name is None:
            name = next(each for number in range(len(taken) + 1) if (each := f"edit_{number}") not in taken)
        if not isinstance(name, str) or not name:
            raise InvalidRequestError(f"name={name!r} is no name for an edit; give it a text")
        self._edit = Edit(model, name)
        self._check_name()

    def _check_name(self) -> None:
        name, taken = self._edit.name, [edit.name for edit in self._edit.model.edits]
        if name in taken:
            raise InvalidRequestError(
                f"an edit named {name!r} is installed already; clear it first, or give this one another name than "
                f"{', '.join(map(repr, taken))}"
            )

    def __enter__(self) -> tuple[EditTracer, Edit]:
        """Find the block and skip it here."""
        frame = sys._getframe(1)
        self._frame: FrameType = frame
        self._source = find_block(frame)
        self._skipper = BodySkipper(frame, self._source)
        self._skipper.start()
        return EditTracer(self._edit.model), self._edit

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """Capture the block and install it.

        Raises:
            UntransferableValueError: A value that the block names cannot travel.
        """
        frame = self.__dict__.pop("_frame")
        if not self._skipper.finish(kind, error, traceback):
            return False
        with without_skip(error):
            model = self._edit.model
            program = Program.from_frame(self._source, frame, given={}, value_names=model._tree.location_names)
            for pending in program.pending.values():
                raise pending.refusal()
            self._check_name()
            # Later changes of a container are none of the edit's, wherever it runs.
            self._edit._program = replace(program, values=own_copies(program.values))
            model._install(self._edit)
        return True


def chosen_edits(model: TracedModel, given: object) -> tuple[Edit, ...] | None:
    """Return the edits that `edits=[...]` asks for, in the order of their installation; None for all.

    Raises:
        InvalidRequestError: One is not installed, or it is no list.
    """
    if given is None:
        return None
    if isinstance(given, str | Edit) or not isinstance(given, Iterable):
        spelled = repr(given.name) if isinstance(given, Edit) else repr(given)
        raise InvalidRequestError(f"edits={spelled} is no list; write edits=[{spelled}], or edits=[] for none")
    installed = model.edits
    chosen = [_find(each, installed) for each in given]
    return tuple([edit for edit in installed if edit in chosen])


def _find(asked: object, installed: tuple[Edit, ...]) -> Edit:
    found = next((edit for edit in installed if edit is asked or edit.name == asked), None)
    if found is None:
        name = asked.name if isinstance(asked, Edit) else asked
        names = f"there are: {', '.join(repr(edit.name) for edit in installed)}" if installed else "none is installed"
        raise InvalidRequestError(f"edits names {name!r}, which is no installed edit of this model; {names}")
    return found
