"""One block that runs beside one request: what it asks of the model, and what the model brings it."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import TYPE_CHECKING, Any, Final

from greenlet import getcurrent

from nnsight._interleave.ending import EndingTurns
from nnsight._interleave.late import LateEdits
from nnsight._interleave.location import Location
from nnsight._interleave.modes import BlockModes
from nnsight._interleave.refusals import read_only
from nnsight._interleave.scope import RowScope
from nnsight._interleave.structure import map_tensors
from nnsight._interleave.turns import RESULT, StepWait
from nnsight._interleave.visit import MISSING, Visit, asking_statement
from nnsight.errors import BudgetExceededError, OutOfOrderError, UnsupportedFeatureError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nnsight._interleave.ahead import ReadAhead
    from nnsight._interleave.budget import Budget, ByteBudget
    from nnsight._interleave.pieces import Pieces
    from nnsight._interleave.replay import RowLog
    from nnsight._interleave.scope import Scope
    from nnsight._interleave.visit import CallUnderWay

UNSEEN: Final = object()

# Copies are made ahead of a block in steps of so many rows at most: of longer ones all would be held at once.
_MOST_ROWS: Final = 8
# With fewer visits in a step, turns beside the model cost no more.
_FEWEST_VISITS: Final = 2


class BlockRun(EndingTurns):
    """A block and everything that one request keeps for it.

    Attributes:
        call_under_way: Gives the arguments of a module's call that is under way, by path.
        saves: Where the block's saves are marked.
        named: What the block saved, by variable; complete when it is over.
        looks_into: Tells for the last name of a module's path whether the program may ask for ops of it, or None.
        unnamed: What it saved under no variable, by label.
        changes: How it changed containers that were saved outside it.
        exports: Variables that later invokes of the trace need.
        loop: The loop over steps that the block is in, as it is spelled.
        budget: How much it may run and hold; None without a limit.
        num_armed: How many of them the interleaver has begun in this step.
        tier: How the steps of the request run, for the receipt.
        log: Keeps what the block leaves in rows of the model, where they may have to be written again.
        pieces: What earlier parts of the prompt had where the block reads, if it is computed in several.
        rank: Its place among the blocks of one request, which see a value one after the other.
        by_row: Whether it is to change whole rows of tokens alone, as its source promises; all else fails it.
        plan_ahead: Tells which outputs can be copied ahead of the block, or that none can; None where nothing can be.
    """

    __slots__ = (
        "_ahead",
        "_asked",
        "_catching_up",
        "_in_place",
        "_late",
        "_num_served",
        "_read_only",
        "_was_read",
        "_writes_only",
        "budget",
        "by_row",
        "call_under_way",
        "changes",
        "exports",
        "log",
        "looks_into",
        "loop",
        "named",
        "num_armed",
        "pieces",
        "plan_ahead",
        "rank",
        "saves",
        "scope",
        "tier",
        "unnamed",
    )

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
        super().__init__(body, BlockModes(grad=grad, inference=inference))
        self.scope: Scope | None = None
        self.call_under_way: CallUnderWay = no_call
        self.saves: Any = None
        self.named: dict[str, object] = {}
        self.unnamed: dict[str, object] = {}
        self.changes: dict[str, object] = {}
        self.exports: dict[str, object] = {}
        self.loop: str | None = None
        self.num_armed = 0
        self.tier = "eager"
        self.budget: Budget | None = None
        self.log: RowLog | None = None
        self.pieces: Pieces | None = None
        self.rank = 0
        self.by_row = False
        self.plan_ahead: Callable[[], ReadAhead | None] | None = None
        self._ahead: ReadAhead | None = None
        self._catching_up: tuple[ReadAhead, Scope] | None = None
        self._num_served = 0
        self._read_only = read_only
        self._writes_only = False
        self._was_read = False
        self._in_place: object = None
        self.looks_into: Callable[[str], bool] | None = None
        self._asked: tuple[CodeType, int] | None = None
        # The source of a read-only program shows no edit, so there is no late one to warn of.
        self._late = None if read_only else LateEdits()

    @property
    def present(self) -> bool:
        """Whether the block waits for something, or calls are recorded for it although it is over."""
        return not self.finished or self.records

    def limit(self, budget: Budget | None, saved: Callable[[], Iterable[object]]) -> None:
        """Limit what the block may run and hold; `saved` returns the values that it has saved."""
        self.budget = budget
        if budget is not None and budget.bytes is not None:
            budget.bytes.saved = saved

    # What the block calls -----------------------------------------------------------------------------------------

    def read(self, location: Location) -> object:
        """Wait for `location` and return the block's own copy of it.

        A location that may be reached several times in one call of its module is waited for anew by each read.
        """
        return self._visit_of(location).see(location)

    def read_item(self, location: Location, index: int) -> object:
        """Return `read(location)[index]`; where the value is a tuple, its other items are not copied yet."""
        visit = self._visit_of(location, wanted=index)
        if self.by_row:
            visit.refuse_item_of_tensor()
        return visit.item(index)

    def write(self, location: Location, value: object) -> None:
        """Replace the value of `location`, waiting for it first where it has not been reached.

        Raises:
            MismatchedValueError: The value does not fit.
            OutOfOrderError: The model has passed the location.
        """
        visit = self._visit_of(location, writes=True)
        if self._read_only:
            raise read_only(location)
        visit.assign(location, value)

    def skip(self, location: Location, value: object) -> None:
        """Put `value` in the place of the call at `location`, which has not begun.

        Raises:
            MismatchedValueError: The value does not fit what the call returns.
            OutOfOrderError: The model has passed the call.
        """
        if self._read_only:
            raise read_only(location)
        self._asked = asking_statement(1)
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

    def _visit_of(self, location: Location, *, wanted: int | None = None, writes: bool = False) -> Visit:
        """Return the visit under way where the location is, which several may share, or wait for one."""
        visit = self._visit
        again = location.repeats and self._was_read and not writes
        if visit is None or visit.location.place is not location.place or again:
            self._asked = asking_statement(2)
            self._wanted, self._writes_only = wanted, writes
            if self._catching_up is None or not self._take_kept(location, self._catching_up):
                self._park(location)
            visit = self._visit
            assert visit is not None
        elif location not in visit.locations:
            visit.locations = (*visit.locations, location)
            visits = self.receipt.visits
            visits[location.name] = visits.get(location.name, 0) + 1
        if not writes:
            self._was_read = True
        return visit

    # What the backend calls ---------------------------------------------------------------------------------------

    def begin_step(self, step: int, scope: Scope | None) -> None:
        """Tell the block that its request enters `step`, owning `scope` of the batch; start or resume it if due."""
        self.step = step
        self.scope = scope
        if self.budget is not None:
            self.budget.renew()
        if self.present:
            self._count_step(scope)
        if self.finished:
            return
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
        self._arrive_at(location)
        if self.pieces is not None:
            try:
                scope = self.pieces.joined(location, live, scope)
            except UnsupportedFeatureError as error:
                self._switch(throw=error)
                return live
        visit = self._visit = Visit(location, live, scope, self._asked, self.call_under_way, self.log)
        self._switch(hand_out=not self._writes_only)
        last, self._left = self._left, None
        if self._catching_up is not None:
            # It may have gone on to others in the same turn, and has left all but the last.
            if last is None:
                return live
            visit = last
        if self.budget is not None and self.budget.bytes is not None:
            self._charge(visit, self.budget.bytes)
        late = self._late
        if late is not None:
            late.look()
        if visit.is_untouched():
            if late is not None:
                visit.watch(late)
            return live
        try:
            if self.by_row:
                visit.refuse_changes_across_rows()
            landed, changed = visit.land(read_only=self._read_only)
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to this request alone
            self.fail(error)
            return live
        if late is not None:
            visit.watch(late)
        if changed:
            edits = self.receipt.edits
            for name in visit.edited:
                edits[name] = edits.get(name, 0) + 1
        return landed

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
                landed = map_tensors(value, lambda tensor: tensor.clone())
            else:
                visit = Visit(location, live, scope, self._asked, self.call_under_way, self.log)
                visit.assign(location, value)
                landed, _ = visit.land(read_only=False)
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to this request alone
            self.fail(error)
            return MISSING
        edits[where] = edits.get(where, 0) + 1
        self._switch()
        return landed

    def ahead_in_step(self, scope: Scope) -> ReadAhead | None:
        """Return what is to be copied ahead of the block in the step that it has entered; None where nothing is.

        That is worth it where the block read most of it in the step before.
        """
        served, self._num_served = self._num_served, 0
        wait = self.wait
        if served < _FEWEST_VISITS or type(wait) is not Location or type(scope) is not RowScope:
            return None
        if scope.num_rows > _MOST_ROWS or self.pieces is not None or self.recordings:
            return None
        if self._ahead is None and self.plan_ahead is not None:
            self._ahead = self.plan_ahead()
            if self._ahead is None:
                self.plan_ahead = None
        ahead = self._ahead
        if ahead is None or wait.place.path not in ahead.keepers or 2 * served < len(ahead.keepers):
            return None
        ahead.begin(scope)
        return ahead

    def catch_up(self, ahead: ReadAhead) -> None:
        """Let the block run through what was copied ahead of it."""
        scope = ahead.kept_scope()
        if ahead.error is not None:
            self.fail(ahead.error)
        # Of others than read-only programs, late edits are looked for at each turn.
        self._catching_up = (ahead, scope) if self._late is None else None
        try:
            while type(self.wait) is Location and self.wait is not RESULT:
                kept = ahead.next_of(self.wait)
                if kept is MISSING:
                    break
                self.serve(kept, scope)
        finally:
            self._catching_up = None
            ahead.end()

    def _take_kept(self, location: Location, catching_up: tuple[ReadAhead, Scope]) -> bool:
        """Go on to what was copied ahead without giving up the turn; return whether there was such a value.

        Raises:
            Exception: What was wrong with the visit that the block leaves, as it is raised where the block waits.
        """
        if getcurrent() is not self._greenlet:
            return False
        self._modes.refuse_open_modes(location)
        visit, self._visit = self._visit, None
        if visit is not None:
            try:
                if self.budget is not None and self.budget.bytes is not None:
                    self._charge_copies(visit, self.budget.bytes)
                if not visit.is_untouched():
                    visit.land(read_only=self._read_only)
            except Exception:
                self.receipt.note_untouched(location.name)
                raise
        ahead, scope = catching_up
        kept = ahead.next_of(location)
        if kept is MISSING:
            return False
        self._arrive_at(location)
        self._visit = visit = Visit(location, kept, scope, self._asked, self.call_under_way, self.log)
        if not self._writes_only:
            visit.hand_out(self._wanted)
        return True

    def _arrive_at(self, location: Location) -> None:
        visits = self.receipt.visits
        where = location.name
        visits[where] = visits.get(where, 0) + 1
        self._last = location
        self._was_read = False
        self._num_served += 1

    def count_late_edits(self) -> None:
        """Warn of tensors that were changed in place after the model had moved on."""
        if self._late is None:
            return
        for where, count in self._late.finish().items():
            self.receipt.warn(
                f"{where} was changed in place {count} time(s) after the model had moved on: "
                "only the block's own copy changed"
            )

    def _charge(self, visit: Visit, budget: ByteBudget) -> None:
        try:
            self._charge_copies(visit, budget)
        except BudgetExceededError as error:
            self.fail(error)

    def _charge_copies(self, visit: Visit, budget: ByteBudget) -> None:
        for copy in visit.copies():
            budget.note(copy)
        budget.refuse_overrun()

    def _count_step(self, scope: Scope | None) -> None:
        receipt = self.receipt
        receipt.steps += 1
        receipt.tiers[self.tier] = receipt.tiers.get(self.tier, 0) + 1
        num_rows = None if scope is None else scope.num_rows
        if num_rows is not None:
            receipt.rows = (receipt.rows or 0) + num_rows


def no_call(path: str) -> None:
    """Know of no call that is under way."""
