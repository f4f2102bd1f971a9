"""One request of a worker that blocks run beside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nnsight._trace import RequestBlocks

if TYPE_CHECKING:
    from nnsight._interleave import BlockRun
    from nnsight._program import Program
    from nnsight_vllm.compat.seams import Span

Start = Callable[["Program"], "BlockRun"]


@dataclass
class Traced:
    """One request.

    Attributes:
        key: The client's id of it; None where nobody asks for what becomes of its blocks.
        num_prompt_tokens: Length of its prompt.
        blocks: Its blocks.
        error: Why the program, or an edit, could not be read.
        ended: Whether the scheduler was told to end it.
        num_forwards: How many forwards each of its uniform blocks has seen.
    """

    key: str | None
    num_prompt_tokens: int
    blocks: RequestBlocks
    error: BaseException | None = None
    ended: bool = False
    num_forwards: dict[BlockRun, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        key: str | None,
        num_prompt_tokens: int,
        own: Program | None,
        edits: dict[str, Program],
        start: Start,
        error: BaseException | None = None,
    ) -> Traced:
        """Prepare the blocks of a request.

        Args:
            key: See above.
            num_prompt_tokens: See above.
            own: The request's own program.
            edits: The programs of its edits, by name.
            start: Makes a run of a program.
            error: See above.
        """
        traced = cls(key, num_prompt_tokens, RequestBlocks(own, edits, start), error)
        for block in traced.blocks.blocks:
            # What requests share of the prefix cache rests on it, so its source is not merely believed.
            block.run.by_row = block.edit is not None and block.program.effects.every_row
            if block.run.by_row:
                traced.num_forwards[block.run] = 0
        return traced

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
        return len(self.num_forwards) < len(self.blocks.blocks)

    def fail(self, error: Callable[[], BaseException]) -> None:
        """Raise an error in the blocks that cannot go on, which uniform ones can whatever the engine computes."""
        for run in self.blocks.runs:
            if run not in self.num_forwards:
                run.fail(error())

    def step_of(self, run: BlockRun, span: Span) -> int:
        """Return which step a forward is to a block.

        Uniform blocks do the same in each, so they count every forward as a step: also parts of a prompt, and what is
        computed again after the request was preempted.
        """
        seen = self.num_forwards.get(run)
        if seen is None:
            return span.step
        self.num_forwards[run] = seen + 1
        return seen

    def remainder(self, start: Start) -> Traced | None:
        """Return what stays of a request that its client has let go of while it may still run.

        What it computes is found by others in the prefix cache, so its uniform blocks stay; None where it has none.
        """
        uniform = {
            block.edit: block.program
            for block in self.blocks.blocks
            if block.edit is not None and block.run in self.num_forwards
        }
        return Traced.of(None, self.num_prompt_tokens, None, uniform, start) if uniform else None
