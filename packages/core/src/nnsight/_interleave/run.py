"""One block that runs beside one request, as a greenlet.

The block and the model take turns in one thread. The block runs until it needs a value that the model has not
computed yet; then it waits, and the model runs on until it reaches that value.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from greenlet import getcurrent, greenlet

from nnsight._interleave.late_edits import LateEdits
from nnsight._interleave.location import Location
from nnsight._interleave.modes import BlockModes
from nnsight._interleave.receipt import Receipt
from nnsight._interleave.refusals import never_served, out_of_order, read_only
from nnsight._interleave.scope import Scope, map_tensors, merge, same_tensors
from nnsight.errors import OutOfOrderError, OutsideTraceError

MISSING: Final = object()
UNSEEN: Final = object()
RESULT: Final = Location("tracer.result", "value")

# A block that answers every refused wait with another wait is ended after so many.
_MAX_REFUSALS: Final = 1000


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


class BlockRun:
    """A block and everything that one request keeps for it.

    Attributes:
        step: The step that the request is in; -1 before its first.
        wait: What the block waits for: a location, a step, the result, or None while it runs or when it is over.
        finished: Whether the block is over.
        error: What the block raised.
        stopped: Whether the block ended itself with `tracer.stop()`.
        receipt: What was served and changed.
        saves: Where the block's saves are marked.
        named: What the block saved, by variable; complete when it is over.
        looks_into: Tells for the last name of a module's path whether the program may ask for ops of it, or None.
        unnamed: What it saved under no variable, by label.
        changes: How it changed containers that were saved outside it.
    """

    def __init__(
        self,
        body: Callable[[BlockRun], object],
        *,
        grad: bool = False,
        inference: bool = False,
        read_only: bool = False,
    ) -> None:
        """Prepare a block; `start` runs it up to its first wait.

        Args:
            body: Runs the block to its end.
            grad: Grad mode that the block begins in.
            inference: Inference mode that the block begins in.
            read_only: Whether the program promised to change nothing.
        """
        self.step = -1
        self.wait: Location | StepWait | None = None
        self.finished = False
        self.stopped = False
        self.error: BaseException | None = None
        self.receipt = Receipt()
        self.scope: Scope | None = None
        self.result: object = MISSING
        self.ended = False
        self.saves: Any = None
        self.named: dict[str, object] = {}
        self.unnamed: dict[str, object] = {}
        self.changes: dict[str, object] = {}
        self._body = body
        self._read_only = read_only
        self._modes = BlockModes(grad=grad, inference=inference)
        self._greenlet = _BlockGreenlet(self._main)
        self._greenlet.run_state = self
        self._writes_only = False
        self._was_read = False
        self._in_place: object = None
        self.looks_into: Callable[[str], bool] | None = None
        self._current: Location | None = None
        self._own: object = None
        self._live: object = None
        self._replacement: object = MISSING
        self._edited: object = None
        self._value_scope: Any = None
        self._handed: list[tuple[torch.Tensor, int]] = []
        self._late = LateEdits()
        self._last: Location | None = None

    # What the block calls -----------------------------------------------------------------------------------------

    def read(self, location: Location) -> object:
        """Wait for `location` and return the block's own copy of it.

        A location that may be reached several times in one call of its module is waited for anew by each read.
        """
        if location is self._current and not (location.repeats and self._was_read):
            if self._own is MISSING:
                self._hand_out()
            self._was_read = True
            return self._own if self._replacement is MISSING else self._replacement
        self._writes_only = False
        self._park(location)
        self._was_read = True
        return self._own

    def write(self, location: Location, value: object) -> None:
        """Replace the value of `location`, waiting for it first where it has not been reached.

        Raises:
            MismatchedValueError: The value does not fit.
            OutOfOrderError: The model has passed the location.
        """
        if location is not self._current:
            self._writes_only = True
            self._park(location)
        if self._read_only:
            raise read_only(location)
        merge(self._live, value, self._check_fit, location.name, self._value_scope.fill)
        self._replacement = value

    def skip(self, location: Location, value: object) -> None:
        """Put `value` in the place of the call at `location`, which has not begun.

        Raises:
            MismatchedValueError: The value does not fit what the call returns.
            OutOfOrderError: The model has passed the call.
        """
        if self._read_only:
            raise read_only(location)
        self._writes_only = True
        self._in_place = value
        self._park(location)

    def wait_for_step(self, step: int) -> bool:
        """Wait for the beginning of a step; return whether it came before the request ended."""
        if step < self.step:
            raise OutOfOrderError(
                f"step {step} was asked for when the request was in step {self.step}; "
                f"iterate over steps in order, from {self.step} on"
            )
        if step > self.step and not self.ended:
            self._park(StepWait(step))
        return step <= self.step

    def wait_for_result(self) -> object:
        """Wait for the finished output of the request."""
        if self.result is MISSING:
            self._park(RESULT)
        return self.result

    def _park(self, wait: Location | StepWait) -> None:
        if getcurrent() is not self._greenlet:
            raise OutsideTraceError(f"{wait} was asked for outside the block's own thread of execution")
        self._modes.refuse_open_modes(wait)
        self.wait = wait
        parent = self._greenlet.parent
        assert parent is not None
        parent.switch()

    # What the backend calls ---------------------------------------------------------------------------------------

    def begin_step(self, step: int, scope: Scope | None) -> None:
        """Tell the block that its request enters `step`, owning `scope` of the batch; start or resume it if due."""
        self.step = step
        self.scope = scope
        if self.finished:
            return
        self.receipt.steps += 1
        wait = self.wait
        if wait is None or (type(wait) is StepWait and wait.step <= step):
            self._switch()

    def serve(self, live: object, scope: Scope) -> object:
        """Hand the awaited value to the block and let it run to its next wait.

        Args:
            live: The model's own value.
            scope: The part of it that belongs to the request.

        Returns:
            The value that the model goes on with: `live` itself, changed in place or not, or a replacement.
        """
        location = self.wait
        assert type(location) is Location
        visits = self.receipt.visits
        where = location.name
        visits[where] = visits.get(where, 0) + 1
        self._current = self._last = location
        self._live = live
        self._own = MISSING
        self._value_scope = scope
        self._replacement = MISSING
        self._was_read = False
        self._handed.clear()
        self._switch(hand_out=not self._writes_only)
        replacement = self._replacement
        self._replacement = MISSING
        if replacement is MISSING:
            unchanged = all([tensor._version == version for tensor, version in self._handed])
            if unchanged and same_tensors(self._edited, self._handed):
                self._watch(location)
                return live
            replacement = self._edited
        self._watch(location)
        return self._land(location, live, replacement, scope)

    def serve_skip(self, live: object, scope: Scope) -> object:
        """Land the value that the block put in the place of a call, and let it run to its next wait.

        Args:
            live: What the call returns, or would return; `UNSEEN` where anything goes.
            scope: The part of it that belongs to the request.

        Returns:
            What the model goes on with, or `MISSING` where the value did not fit.
        """
        location = self.wait
        assert type(location) is Location
        value, self._in_place = self._in_place, None
        where = location.name
        visits, edits = self.receipt.visits, self.receipt.edits
        visits[where] = visits.get(where, 0) + 1
        self._last = location
        try:
            if live is UNSEEN:
                landed = map_tensors(value, torch.Tensor.clone)
            else:
                landed = merge(live, value, lambda one, other: scope.put(one, other, where), where, scope.fill)
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to this request alone
            self.fail(error)
            return MISSING
        edits[where] = edits.get(where, 0) + 1
        self._switch()
        return landed

    def end_step(self) -> None:
        """Refuse what the block still waits for in the step that is over."""
        for _ in range(_MAX_REFUSALS):
            if self.finished or type(self.wait) is not Location or self.wait is RESULT:
                return
            self._switch(throw=out_of_order(self.wait, self._last, self.step))
        self._give_up()

    def end(self) -> None:
        """Tell the block that its request runs no further step, and let the statements after its loops run."""
        self.ended = True
        for _ in range(_MAX_REFUSALS):
            if self.finished or self.wait is RESULT:
                return
            if type(self.wait) is Location:
                self._switch(throw=out_of_order(self.wait, self._last, self.step))
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
            self._switch(throw=error)
        elif self.error is None:
            self.error = error

    def close(self) -> None:
        """End the block because its request is gone."""
        for _ in range(_MAX_REFUSALS):
            if self.finished:
                break
            self._switch(throw=BlockClosed())
        self.finished = True
        self._handed.clear()
        self._own = self._live = self._current = None

    def count_late_edits(self) -> None:
        """Warn of tensors that were changed in place after the model had moved on."""
        self.receipt.warnings += self._late.warnings()

    # The turns ----------------------------------------------------------------------------------------------------

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
        if throw is not None and not turn:
            # Thrown into a greenlet that never ran, an exception would not reach the block's own frame.
            self.error = None if isinstance(throw, BlockClosed) else throw
            self.finished = True
            self.wait = None
            return
        turn.parent = getcurrent()
        self._modes.enter()
        began = time.perf_counter()
        try:
            if hand_out:
                try:
                    self._hand_out()
                except Exception as error:  # noqa: BLE001 - it must reach the block, never the model's forward
                    throw = error
            self.wait = None
            if throw is not None:
                turn.throw(throw)
            else:
                turn.switch()
        finally:
            self._edited, self._own, self._live, self._current = self._own, None, None, None
            self.receipt.seconds += time.perf_counter() - began
            self._modes.leave()

    def _hand_out(self) -> None:
        handed = self._handed
        take = self._value_scope.take

        def copy(tensor: torch.Tensor) -> torch.Tensor:
            own: torch.Tensor = take(tensor)
            handed.append((own, own._version))
            return own

        if torch.is_inference_mode_enabled():
            # Tensors made in inference mode do not count their versions.
            with torch.inference_mode(mode=False), torch.set_grad_enabled(torch.is_grad_enabled()):
                self._own = map_tensors(self._live, copy)
        else:
            self._own = map_tensors(self._live, copy)

    def _land(self, location: Location, live: object, value: object, scope: Scope) -> object:
        where = location.name
        try:
            if self._read_only:
                raise read_only(location)
            landed = merge(live, value, lambda one, other: scope.put(one, other, where), where, scope.fill)
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to this request alone
            self.fail(error)
            return live
        edits = self.receipt.edits
        edits[where] = edits.get(where, 0) + 1
        return landed

    def _watch(self, location: Location) -> None:
        if self._read_only:
            # Its source shows no edit, so there is no late one to warn of.
            return
        self._late.watch([tensor for tensor, _ in self._handed], location)
        self._handed.clear()

    def _check_fit(self, live: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        self._value_scope.check(live, own, str(self._current))
        return own


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
    run: BlockRun = turn.run_state
    return run
