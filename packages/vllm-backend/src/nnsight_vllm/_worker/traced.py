"""One request of a worker, and the blocks that run beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nnsight._interleave import Budget, RowLog
from nnsight._trace import RequestBlocks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nnsight._interleave import BlockRun
    from nnsight._program import Program
    from nnsight._trace.shipping import Template
    from nnsight_vllm._worker.edits import InstalledEdit


# Not frozen, since one is made for each request: that would take four times as long.
@dataclass(slots=True)
class OwnProgram:
    """The program of one traced request.

    Attributes:
        template: What it shares with those of other requests.
        own: The values of its own, as they travelled.
    """

    template: Template
    own: bytes

    @property
    def program(self) -> Program:
        """The program."""
        return self.template.program

    def begin(self, limits: Mapping[str, int | None]) -> tuple[dict[str, object], Budget]:
        """Return the values and the budget of a run, which no other run is given."""
        budget = Budget(**limits)
        return self.template.values(self.own, budget), budget

    def values(self) -> dict[str, object]:
        """Return values that no run is given, of a program that calls no functions."""
        return self.template.values(self.own)


Start = Callable[["OwnProgram | InstalledEdit"], "BlockRun"]


@dataclass(slots=True)
class TracedBlock:
    """One block of a request.

    Attributes:
        source: Where its program and its values are from.
        run: The block, under way.
        num_prompt_tokens: Length of the request's prompt.
        uniform: Whether it changes every row alike and nothing else: it takes part in each forward, whatever is
            computed there, and counts each as a step.
        num_served: How many rows of the request it has been beside; rows that are computed again are not served again.
            Of a uniform block, how many forwards.
    """

    source: OwnProgram | InstalledEdit
    run: BlockRun
    num_prompt_tokens: int
    uniform: bool
    num_served: int = 0

    @property
    def program(self) -> Program:
        """What it runs."""
        return self.source.program


@dataclass(slots=True)
class Traced:
    """One request.

    Attributes:
        key: The client's id of it; None where nobody asks for what becomes of its blocks.
        num_prompt_tokens: Length of its prompt.
        blocks: Its blocks.
        parts: What is kept of each of them, in their order.
        error: Why the program, or an edit, could not be read.
        ended: Whether the scheduler was told to end it.
    """

    key: str | None
    num_prompt_tokens: int
    blocks: RequestBlocks
    parts: list[TracedBlock] = field(default_factory=list)
    error: BaseException | None = None
    ended: bool = False

    @classmethod
    def of(
        cls,
        key: str | None,
        num_prompt_tokens: int,
        sources: Sequence[OwnProgram | InstalledEdit],
        start: Start,
        error: BaseException | None = None,
    ) -> Traced:
        """Prepare the blocks of a request.

        Args:
            key: See above.
            num_prompt_tokens: See above.
            sources: Its edits, and then its own program where it has one that could be read.
            start: Makes a run.
            error: See above.
        """
        by_program: dict[int, OwnProgram | InstalledEdit] = {}
        own, edits = None, {}
        for source in sources:
            program = source.program
            by_program[id(program)] = source
            if isinstance(source, OwnProgram):
                own = program
            else:
                edits[source.name] = program
        blocks = RequestBlocks(own, edits, lambda program: start(by_program[id(program)]))
        traced = cls(key, num_prompt_tokens, blocks, error=error)
        for block in blocks.blocks:
            run, effects = block.run, block.program.effects
            # What requests share of the prefix cache rests on it, so its source is not merely believed.
            uniform = run.by_row = block.edit is not None and effects.every_row
            if not uniform and not effects.read_only:
                run.log = RowLog()
            traced.parts.append(TracedBlock(by_program[id(block.program)], run, num_prompt_tokens, uniform))
        return traced

    def release(self) -> None:
        """Let go of what the blocks kept, once the client was told what became of them."""
        self.error = None
        for run in self.blocks.runs:
            run.release()

    @property
    def waits_for_result(self) -> bool:
        """Whether a block, whose request is over, still waits for its finished output."""
        return self.blocks.waits_for_result

    @property
    def over(self) -> bool:
        """Whether the request is to run no further step."""
        return self.error is not None or self.blocks.over

    @property
    def counts_steps(self) -> bool:
        """Whether one of the blocks tells steps apart, and must not see one whose output is dropped."""
        return not all([part.uniform for part in self.parts])

    def taking_part(self) -> list[TracedBlock]:
        """Return the blocks that a step of the request is shown to."""
        return [part for part in self.parts if part.uniform] if self.ended else self.parts

    def remainder(self, start: Start) -> Traced | None:
        """Return what stays of a request that its client has let go of while it may still run.

        What it computes is found by others in the prefix cache, so its uniform blocks stay; None where it has none.
        """
        uniform = [part.source for part in self.parts if part.uniform]
        return Traced.of(None, self.num_prompt_tokens, uniform, start) if uniform else None
