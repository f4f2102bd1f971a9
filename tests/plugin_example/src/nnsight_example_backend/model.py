"""The model as a user traces it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from nnsight.backends import ModelTree, Outcome, Request, TracedModel, decode_outcome, encode_program
from nnsight.errors import InvalidRequestError
from nnsight_example_backend.engine import VALUES, Prompt
from nnsight_example_backend.network import LONGEST, VOCABULARY, Network
from nnsight_example_backend.process import WorkerProcess


class ExampleModel(TracedModel):
    """A small language model in a process of its own.

    ```python
    model = ExampleModel(seed=0)
    with model.trace([1, 2, 3], steps=4) as tracer:
        first = model.layers[0].output.save()
        result = tracer.result.save()
    ```

    A prompt is a list of token ids; the most likely token is generated `steps` times. Inside a block, `model.logits`
    [1, vocabulary] and `model.samples` [1] are those of the step, and both can be edited. The requests of a trace run
    as one batch.
    """

    backend_name = "example"

    def __init__(self, seed: int = 0) -> None:
        """Build the module tree, without weights; the first trace starts the process that has them.

        Args:
            seed: Which weights the model has.
        """
        with torch.device("meta"):
            network = Network()
        self._seed = seed
        # One batch at a time is on its way to the worker and back.
        self._lock = threading.RLock()
        self._process: WorkerProcess | None = None
        self._finalizer: weakref.finalize[[], ExampleModel] | None = None
        self._tree = ModelTree(network, values=VALUES)

    def shutdown(self) -> None:
        """End the worker; a later trace starts another."""
        with self._lock:
            if self._finalizer is not None:
                self._finalizer()
            self._process = self._finalizer = None

    def _prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Prompt:
        unknown = sorted(kwargs.keys() - {"steps"})
        if unknown:
            raise InvalidRequestError(f"{unknown[0]}={kwargs[unknown[0]]!r} is unknown; a trace takes `steps` alone")
        if len(args) != 1 or not _are_ids(args[0]):
            raise InvalidRequestError(
                f"{', '.join(map(repr, args))} is no prompt; give one list of token ids from 0 to {VOCABULARY - 1}"
            )
        steps = kwargs.get("steps", 1)
        most = LONGEST - len(args[0])
        if type(steps) is not int or not 1 <= steps <= most:
            raise InvalidRequestError(f"steps={steps!r}: after {len(args[0])} ids there are 1 to {most} steps")
        return Prompt(list(args[0]), steps)

    def _execute(self, requests: Sequence[Request]) -> list[Outcome]:
        # The edits of a request run before its own block, in their order.
        edits = [self._edits_of(request) for request in requests]
        programs = [
            [encode_program(program) for program in (*(edit.program for edit in chosen), request.program)]
            for request, chosen in zip(requests, edits, strict=True)
        ]
        names = [[edit.name for edit in chosen] for chosen in edits]
        with self._lock:
            try:
                replies = self._started().run([request.prepared for request in requests], names, programs)
            except BaseException:
                # Interrupted or broken, its messages are out of step with ours: the next trace gets another.
                self.shutdown()
                raise
        return [decode_outcome(reply, self._tree) for reply in replies]

    def _check_edits(self) -> None:
        """Allow edits."""

    def _started(self) -> WorkerProcess:
        if self._process is None:
            self._process = WorkerProcess(self._seed)
            self._finalizer = weakref.finalize(self, self._process.close)
        return self._process


def _are_ids(prompt: object) -> bool:
    return (
        isinstance(prompt, list)
        and 0 < len(prompt) < LONGEST
        and all(type(token) is int and 0 <= token < VOCABULARY for token in prompt)
    )
