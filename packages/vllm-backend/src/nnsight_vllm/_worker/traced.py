"""One traced request of a worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nnsight._interleave import BlockRun, Budget
    from nnsight._program import Program
    from nnsight._trace.shipping import Template


@dataclass
class Traced:
    """One traced request.

    Attributes:
        key: The client's id of it.
        num_prompt_tokens: Length of its prompt.
        program: What it runs; None where that could not be read.
        run: Its block; None likewise.
        error: Why the program could not be read.
        ended: Whether the scheduler was told to end it.
        template: What its program shares with those of other requests.
        own: The values of its own, as they travelled.
        num_served: How many of its rows the block has been beside; rows that are computed again are not served again.
    """

    key: str
    num_prompt_tokens: int
    program: Program | None = None
    run: BlockRun | None = None
    error: BaseException | None = None
    ended: bool = False
    template: Template | None = None
    own: bytes = b""
    num_served: int = 0

    def values(self, budget: Budget | None = None) -> dict[str, object]:
        """Return the values of a run of its program, which no other run is given.

        Args:
            budget: What its functions count for.
        """
        return {} if self.template is None else self.template.values(self.own, budget)

    @property
    def waits_for_result(self) -> bool:
        """Whether the block, whose request is over, still waits for its finished output."""
        return self.run is not None and not self.run.finished
