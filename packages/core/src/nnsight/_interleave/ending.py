"""How a block ends: with its request, with an error, or because nobody waits for it any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from nnsight._interleave.location import Location
from nnsight._interleave.refusals import never_served, out_of_order
from nnsight._interleave.turns import RESULT, BlockClosed, Turns
from nnsight._interleave.visit import MISSING

if TYPE_CHECKING:
    from nnsight._interleave.modes import BlockModes
    from nnsight._interleave.recording import Recording
    from nnsight.errors import OutOfOrderError

# A block that answers every refused wait with another wait is ended after so many.
_MAX_REFUSALS: Final = 1000


class EndingTurns(Turns):
    """The turns of a block whose step, or whose request, may end while it waits.

    Attributes:
        step: The step that the request is in; -1 before its first.
        ended: Whether the request runs no further step.
        result: The finished output of the request; `MISSING` before it is there.
        tree: The modules of the model that it runs beside; set by the interleaver.
        recordings: Calls of modules that are recorded for it.
    """

    __slots__ = ("_last", "ended", "recordings", "result", "step", "tree")

    def __init__(self, body: Callable[[Any], object], modes: BlockModes) -> None:
        """Prepare a block; see `Turns`."""
        super().__init__(body, modes)
        self.step = -1
        self.ended = False
        self.result: object = MISSING
        self.tree: Any = None
        self.recordings: list[Recording] = []
        self._last: Location | None = None

    @property
    def records(self) -> bool:
        """Whether calls are recorded for it."""
        return bool(self.recordings) and not self.stopped and self.error is None

    def end_step(self) -> None:
        """Refuse what the block still waits for in the step that is over."""
        for _ in range(_MAX_REFUSALS):
            if self.finished or type(self.wait) is not Location or self.wait is RESULT:
                return
            self._note_untouched()
            self._switch(throw=self._out_of_order(self.wait))
        self._give_up()

    def end(self) -> None:
        """Tell the block that its request runs no further step, and let the statements after its loops run."""
        self.ended = True
        for _ in range(_MAX_REFUSALS):
            if self.finished or self.wait is RESULT:
                return
            if type(self.wait) is Location:
                self._note_untouched()
                self._switch(throw=self._out_of_order(self.wait))
            else:
                self._switch()
        self._give_up()

    def _give_up(self) -> None:
        self.close()
        if self.error is None:
            self.error = never_served(_MAX_REFUSALS, self.step)

    def give_result(self, result: object) -> None:
        """Hand the finished output to a block that waits for it."""
        self.result = result
        while not self.finished:
            before = self.wait
            if before is RESULT:
                self._switch()
            else:
                self.end()
                if self.wait is not RESULT and not self.finished:
                    self.close()

    def fail(self, error: BaseException) -> None:
        """Raise `error` in the block where it waits."""
        if not self.finished:
            self._note_untouched()
            self._switch(throw=error)
        elif self.error is None:
            self.error = error

    def close(self) -> None:
        """End the block because its request is gone."""
        for _ in range(_MAX_REFUSALS):
            if self.finished:
                break
            self._note_untouched()
            self._switch(throw=BlockClosed())
        self.finished = True
        self._visit = None
        if self.records:
            for recording in self.recordings:
                recording.note_untouched(self.tree)

    def release(self) -> None:
        """Forget how the block ended, once that was told.

        The traceback of an error leads back to the run, and with it to all that the block kept, which may be gigabytes
        of a GPU: they would stay until the garbage collector comes by.
        """
        self.error = None

    def _note_untouched(self) -> None:
        """Note the location that the block waits for, if it does: it is not reached any more."""
        if type(self.wait) is Location and self.wait is not RESULT:
            self.receipt.note_untouched(self.wait.name)

    def _out_of_order(self, wait: Location) -> OutOfOrderError:
        return out_of_order(wait, self._last, self.step, over=self.ended)
