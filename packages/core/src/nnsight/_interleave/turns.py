"""The turns that a block takes with the model.

The block runs as a greenlet in the model's own thread, until it needs a value that the model has not computed yet; then
it waits, and the model runs on until it reaches that value.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from greenlet import getcurrent, greenlet

from nnsight._interleave.location import Location
from nnsight._interleave.receipt import Receipt
from nnsight.errors import OutsideTraceError

if TYPE_CHECKING:
    from nnsight._interleave.modes import BlockModes
    from nnsight._interleave.run import BlockRun
    from nnsight._interleave.visit import Visit

RESULT: Final = Location("tracer.result", "value")


@dataclass(frozen=True, slots=True)
class StepWait:
    """The block waits for the beginning of a step of its request."""

    step: int


class StopBlock(BaseException):
    """Ends a block from `tracer.stop()`; no error of the request."""


class BlockClosed(BaseException):
    """Ends a block whose request is gone."""


class _BlockGreenlet(greenlet):
    run_state: BlockRun


class Turns:
    """Whose turn it is, the block's or the model's, and how the block ended.

    Attributes:
        wait: What the block waits for: a location, a step, the result, or None while it runs or when it is over.
        finished: Whether the block is over.
        error: What the block raised.
        stopped: Whether the block ended itself with `tracer.stop()`.
        receipt: What was served and changed.
    """

    # A sweep has very many of them at a time.
    __slots__ = (
        "__weakref__",
        "_body",
        "_greenlet",
        "_left",
        "_modes",
        "_visit",
        "_wanted",
        "error",
        "finished",
        "receipt",
        "stopped",
        "wait",
    )

    def __init__(self, body: Callable[[Any], object], modes: BlockModes) -> None:
        """Prepare a block, which has no turn before the first switch.

        Args:
            body: Runs the block to its end.
            modes: The modes of PyTorch that the block is in.
        """
        self.wait: Location | StepWait | None = None
        self.finished = False
        self.stopped = False
        self.error: BaseException | None = None
        self.receipt = Receipt()
        self._body = body
        self._modes = modes
        self._greenlet: _BlockGreenlet | None = _BlockGreenlet(self._main)
        self._greenlet.run_state = self  # type: ignore[assignment]
        self._visit: Visit | None = None
        self._left: Visit | None = None
        self._wanted: int | None = None

    def _park(self, wait: Location | StepWait) -> None:
        turn = self._greenlet
        if turn is None or getcurrent() is not turn:
            raise OutsideTraceError(f"{wait} was asked for outside the block's own thread of execution")
        self._modes.refuse_open_modes(wait)
        self.wait = wait
        parent = turn.parent
        assert parent is not None
        parent.switch()

    def _main(self) -> None:
        try:
            self._body(self)
        except StopBlock:
            self.stopped = True
        except BlockClosed:
            pass
        except BaseException as error:  # noqa: BLE001 - SystemExit in a block ends that request, not the worker
            self.error = error
        finally:
            self.finished = True
            self.wait = None

    def _switch(self, *, hand_out: bool = False, throw: BaseException | None = None) -> None:
        turn = self._greenlet
        assert turn is not None
        if throw is not None and not turn:
            # Thrown into a greenlet that never ran, an exception would not reach the block's own frame.
            self.error = None if isinstance(throw, BlockClosed) else throw
            self.finished = True
            self.wait = None
            self._greenlet = None
            return
        turn.parent = getcurrent()
        self._modes.enter()
        began = time.perf_counter()
        try:
            if hand_out:
                try:
                    assert self._visit is not None
                    self._visit.hand_out(self._wanted)
                except Exception as error:  # noqa: BLE001 - it must reach the block, never the model's forward
                    throw = error.with_traceback(None)
            self.wait = None
            if throw is not None:
                turn.throw(throw)
            else:
                turn.switch()
        finally:
            self._left, self._visit = self._visit, None
            self.receipt.seconds += time.perf_counter() - began
            self._modes.leave()
            if self.finished:
                # The two would keep each other, and all that the block kept, until the garbage collector comes by.
                self._greenlet = None


def executing_run() -> BlockRun | None:
    """Return the run of the block that is executing, if any is."""
    turn: Any = getcurrent()
    return turn.run_state if type(turn) is _BlockGreenlet else None


def current_run() -> BlockRun:
    """Return the run of the block that is executing.

    Raises:
        OutsideTraceError: No block is executing here.
    """
    turn: Any = getcurrent()
    if type(turn) is not _BlockGreenlet:
        raise OutsideTraceError(
            "values of the model exist only inside a block: write `with model.trace(prompt):` and read them there"
        )
    return turn.run_state
