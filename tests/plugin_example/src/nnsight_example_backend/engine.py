"""The engine inside the worker: requests run as one batch, each with its block beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from nnsight.backends import (
    BlockRun,
    Interleaver,
    ModelTree,
    Outcome,
    Program,
    RequestBlocks,
    RowScope,
    decode_program,
    encode_outcome,
)
from nnsight.errors import MismatchedValueError
from nnsight_example_backend.network import VOCABULARY, Attention, Network, Span, build_network

VALUES = ("logits", "samples")

# Programs of one request by the name of their edit, its own under None, as they travelled.
Programs = Mapping[str | None, bytes]


@dataclass(frozen=True)
class Generation:
    """The finished output of a request.

    Attributes:
        prompt: Token ids of the prompt.
        tokens: The ids generated after it.
    """

    prompt: list[int]
    tokens: list[int]


@dataclass(frozen=True)
class Prompt:
    """The input of a request, checked.

    Attributes:
        ids: Token ids.
        steps: How many tokens to generate.
    """

    ids: list[int]
    steps: int


@dataclass
class _Traced:
    """One request under way."""

    prompt: Prompt
    blocks: RequestBlocks
    span: Span = field(default_factory=Span)
    tokens: list[int] = field(default_factory=list)
    error: Exception | None = None

    @property
    def over(self) -> bool:
        return self.blocks.over or self.error is not None or len(self.tokens) == self.prompt.steps

    def pending(self) -> tuple[list[int], int]:
        """Return the ids that the next step computes, and the position of the first."""
        if not self.tokens:
            return self.prompt.ids, 0
        return self.tokens[-1:], len(self.prompt.ids) + len(self.tokens) - 1

    def finish(self) -> bytes:
        outcome = self.blocks.finish(result=Generation(self.prompt.ids, self.tokens), error=self.error)
        return encode_outcome(outcome, self.blocks.blocks[-1].program)


def _holds_keys_and_values(module: nn.Module) -> bool:
    """Tell whether later steps need a call of the module to have been made, even where its result is skipped."""
    return any(isinstance(part, Attention) for part in module.modules())


def _start(program: Program) -> BlockRun:
    run = program.start(program.values, grad=False, read_only=program.effects.read_only)
    run.receipt.details["engine"] = "example"
    return run


class Engine:
    """A network, and the blocks that run beside it."""

    def __init__(self, seed: int) -> None:
        """Build the network."""
        self._network: Network = build_network(seed)
        self._tree = ModelTree(self._network, values=VALUES, keeps_state=_holds_keys_and_values)
        self._interleaver = Interleaver(self._tree)

    def run(self, prompts: Sequence[Prompt], programs: Sequence[Programs]) -> list[bytes]:
        """Run requests to their ends and return their outcomes, in order."""
        begun = [self._begin(prompt, data) for prompt, data in zip(prompts, programs, strict=True)]
        requests = [request for request in begun if isinstance(request, _Traced)]
        while running := [request for request in requests if not request.over]:
            try:
                self._step(running)
            except Exception as error:  # noqa: BLE001 - the forward belongs to every request of its batch
                self._interleaver.disarm()
                for request in running:
                    request.error = error
        return [request.finish() if isinstance(request, _Traced) else request for request in begun]

    def _begin(self, prompt: Prompt, data: Programs) -> _Traced | bytes:
        """Read the programs and prepare their blocks; where one cannot be read the request has its outcome at once."""
        try:
            edits = {name: decode_program(each, self._tree) for name, each in data.items() if name is not None}
            blocks = RequestBlocks(decode_program(data[None], self._tree), edits, _start)
        except Exception as error:  # noqa: BLE001 - it is the error of this request alone
            return encode_outcome(Outcome(error=error))
        return _Traced(prompt, blocks)

    @torch.inference_mode()
    def _step(self, running: Sequence[_Traced]) -> None:
        ids: list[int] = []
        positions: list[int] = []
        for request in running:
            new, position = request.pending()
            request.span.start = len(ids)
            ids += new
            positions += range(position, position + len(new))
            request.span.stop = len(ids)
        alone = len(running) == 1
        rows = {
            run: RowScope(request.span.start, request.span.stop, len(ids), alone)
            for request in running
            for run in request.blocks.runs
        }
        steps = {run: len(request.tokens) for request in running for run in request.blocks.runs}
        self._network.enter([request.span for request in running])

        self._interleaver.begin_step(rows, steps)
        logits_TV = self._network(torch.tensor(ids), torch.tensor(positions))
        last = torch.tensor([request.span.stop - 1 for request in running])
        # From here on there is one row per request.
        row = {
            run: RowScope(index, index + 1, len(running), alone)
            for index, request in enumerate(running)
            for run in request.blocks.runs
        }
        logits = self._offer("logits", logits_TV[last], row)
        samples = self._offer("samples", logits.argmax(-1), row)
        self._interleaver.end_step()

        for request, token in zip(running, samples.tolist(), strict=True):
            if 0 <= token < VOCABULARY:
                request.tokens.append(token)
            else:
                # Left to the next forward, it would fail every request of the batch.
                request.error = MismatchedValueError(
                    f"samples was set to {token}, which is no token id; they go from 0 to {VOCABULARY - 1}"
                )

    def _offer(self, name: str, live: torch.Tensor, scopes: dict[BlockRun, RowScope]) -> torch.Tensor:
        changed = self._interleaver.offer(name, live, scopes)
        assert isinstance(changed, torch.Tensor)
        return changed
