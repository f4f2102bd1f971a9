"""The blocks of one request: those of the edits that apply to it, in order, and then its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nnsight._interleave.location import Location
from nnsight._interleave.turns import RESULT
from nnsight._interleave.visit import MISSING
from nnsight._program.failures import keep_user_frames
from nnsight._trace.edit import EditResult
from nnsight._trace.request import Outcome

if TYPE_CHECKING:
    from nnsight._interleave import BlockRun
    from nnsight._program import Program


@dataclass(slots=True)
class Block:
    """One block of a request.

    Attributes:
        program: What it runs.
        run: The block, under way.
        edit: The name of the edit that it is; None for the request's own block.
    """

    program: Program
    run: BlockRun
    edit: str | None = None


class RequestBlocks:
    """The blocks of a request, which see the model one after the other: each sees what those before it changed.

    Attributes:
        blocks: The edits' in the order of their installation, and then the request's own, where it has one.
        runs: The same blocks under way.
    """

    __slots__ = ("blocks", "runs")

    def __init__(self, own: Program | None, edits: Mapping[str, Program], start: Callable[[Program], BlockRun]) -> None:
        """Prepare the blocks.

        Args:
            own: The request's own program; None for a request that is not traced.
            edits: The programs of the edits that apply to it, by name.
            start: Makes a run of a program, as `program.start(...)`.
        """
        programs: list[tuple[str | None, Program]] = list(edits.items())
        if own is not None:
            programs.append((None, own))
        self.blocks = [Block(program, start(program), name) for name, program in programs]
        self.runs = [block.run for block in self.blocks]
        for rank, run in enumerate(self.runs):
            run.rank = rank

    @property
    def own(self) -> Block | None:
        """The request's own block."""
        return self.blocks[-1] if self.blocks and self.blocks[-1].edit is None else None

    @property
    def over(self) -> bool:
        """Whether a block failed, or ended the request: it is to run no further step."""
        return any([run.stopped or run.error is not None for run in self.runs])

    @property
    def waits_for_result(self) -> bool:
        """Whether a block of a request that is over still waits for its finished output."""
        return any([not run.finished for run in self.runs])

    def end(self) -> None:
        """Tell the blocks that the request runs no further step, and let the statements after their loops run."""
        failed = any([run.error is not None for run in self.runs])
        for run in self.runs:
            # Where another block ended the request within a step, what this one waits for is nobody's fault.
            waits_in_step = self.over and type(run.wait) is Location and run.wait is not RESULT
            if failed or waits_in_step:
                run.close()
            else:
                run.end()

    def finish(self, *, result: object = MISSING, error: BaseException | None = None) -> Outcome:
        """Let the blocks end with their request, and tell what became of it.

        Args:
            result: The finished output of the request, where there is one.
            error: Why the backend could not complete it.

        Returns:
            The outcome, with the error of the first block that failed. A traceback in it has the user's own lines
            alone.
        """
        failure = self.failure()
        if error is None:
            self.end()
        for block in self.blocks:
            if error is not None:
                block.run.fail(error)
            elif result is not MISSING:
                block.run.give_result(result)
            block.run.close()
            block.run.count_late_edits()
        if error is not None and failure is None:
            # It is no edit's, though it was raised in their blocks too.
            failure = (self.own.run.error if self.own is not None else None) or error
        return self._outcome(None if result is MISSING else result, failure or self.failure())

    def _outcome(self, result: object, failure: BaseException | None) -> Outcome:
        if failure is not None:
            keep_user_frames(failure, frozenset(block.program.source.filename for block in self.blocks))
        edits = {
            block.edit: EditResult({**block.run.unnamed, **block.run.named}, block.run.receipt)
            for block in self.blocks
            if block.edit is not None
        }
        if self.own is None:
            return Outcome(result=result, error=failure, edits=edits)
        run = self.own.run
        return Outcome(run.named, run.unnamed, run.changes, result, failure, run.receipt, run.exports, edits=edits)

    def failure(self) -> BaseException | None:
        """Return the error of the first block that failed; one of an edit names it."""
        for block in self.blocks:
            if block.run.error is not None:
                if block.edit is not None:
                    name_edit(block.run.error, block.edit)
                return block.run.error
        return None


def name_edit(error: BaseException, name: str) -> None:
    """Note on an error that an edit raised it."""
    note = f"raised in the edit {name!r}, which runs beside every request of the model until it is cleared"
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)
