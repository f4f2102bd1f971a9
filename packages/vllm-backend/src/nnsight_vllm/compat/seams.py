"""The events of an engine in our words, and who listens to them.

Each model runner of vLLM is adapted to these by a module of its own (`runner_v1`, `runner_v2`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


# Neither is frozen, since one is made for each request and one in each step of it: that would take four times as long.
@dataclass(slots=True)
class Arrival:
    """A request with blocks that the runner meets for the first time.

    Attributes:
        request_id: vLLM's own id.
        program: The template of the program as it travelled, or the file in shared memory that it lies in; None for a
            request that is not traced.
        values: The values of the request's own.
        key: The client's id of the request; None where no client asks for what becomes of its blocks.
        edits: The keys of the edits that it runs beside, in order; None where our part of the engine core never saw it.
        num_prompt_tokens: Length of the prompt.
        streams: Whether saves go home as they are made.
    """

    request_id: str
    program: bytes | str | None
    values: bytes
    key: str | None
    edits: tuple[str, ...] | None
    num_prompt_tokens: int
    streams: bool = False


@dataclass(slots=True)
class Span:
    """The rows of one traced request in a step.

    Attributes:
        request_id: vLLM's own id.
        index: Position of the request in the batch, which is its row of the logits.
        start: Its first row.
        stop: One past its last row.
        position: Absolute position of its first row in the request, the prompt's first being 0.
    """

    request_id: str
    index: int
    start: int
    stop: int
    position: int

    @property
    def end(self) -> int:
        """One past the absolute position of its last row."""
        return self.position + self.stop - self.start


class StepListener(Protocol):
    """What a worker does at each event of a step."""

    @property
    def active(self) -> bool:
        """Whether any traced request lives in this worker."""

    def arrive(self, arrival: Arrival) -> bool:
        """Meet a request with blocks, and tell whether one of them must not see steps whose output is dropped."""

    def depart(self, request_ids: Sequence[str]) -> None:
        """See requests end, all of which a step told."""

    def knows(self, request_id: str) -> bool:
        """Tell whether a request is traced."""

    def num_prompt_tokens(self, request_id: str) -> int:
        """Return the length of a traced request's prompt."""

    def begin(self, spans: Sequence[Span], num_rows: int, num_requests: int) -> None:
        """Enter the forward of a step; `num_rows` counts padding."""

    def constrain(self, masks: Mapping[str, Any]) -> None:
        """Hear which tokens the grammars of requests allow in this step.

        Args:
            masks: By request id, one bit for each token, 32 to a word.
        """

    def offer(self, name: str, live: torch.Tensor) -> None:
        """Serve `logits` [requests, vocabulary] or `samples` [requests], which change in place."""

    def finish(self) -> list[str]:
        """Leave the step and return the ids of requests that must end now."""
