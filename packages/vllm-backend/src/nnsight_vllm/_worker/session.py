"""The traced requests of one worker: their blocks, the steps they take part in, and what they bring home."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from nnsight._interleave import BlockRun, Interleaver, RowScope
from nnsight._program.containers import own_copies
from nnsight._trace.messages import decode_program
from nnsight.errors import UnsupportedFeatureError
from nnsight_vllm._mailbox import ANNOUNCEMENT, WAITS_FOR_RESULT
from nnsight_vllm._worker.edits import InstalledEdits
from nnsight_vllm._worker.outcomes import OutcomeWriter
from nnsight_vllm._worker.traced import Traced
from nnsight_vllm._worker.tree import build_tree
from nnsight_vllm.compat.records import missing_seams
from nnsight_vllm.compat.versions import installed_version

if TYPE_CHECKING:
    from nnsight._envoy import ModelTree
    from nnsight._program import Program
    from nnsight_vllm._mailbox import Postbox
    from nnsight_vllm.compat.model_access import WorkerModel
    from nnsight_vllm.compat.seams import Arrival, Span

_log = logging.getLogger(__name__)


class WorkerSession:
    """Listens to the events of a model runner; see `compat.seams.StepListener`.

    Attributes:
        edits: The edits that this worker was sent.
    """

    def __init__(self, model: WorkerModel, postbox: Postbox | None = None) -> None:
        """Serve the blocks of one worker.

        Args:
            model: The model that the worker holds.
            postbox: Leads to the caller's mailbox, where that can be reached.
        """
        self._model = model
        self._postbox = postbox
        self._requests: dict[str, Traced] = {}
        self._finished: dict[str, Traced] = {}
        self._current: list[tuple[Span, BlockRun]] = []
        self._interleaver: Interleaver | None = None
        self._cached_tree: ModelTree | None = None
        self._writer = OutcomeWriter(model)
        self.edits = InstalledEdits(self._read)

    # Events of the runner -----------------------------------------------------------------------------------------

    @property
    def active(self) -> bool:
        """Whether any traced request lives in this worker."""
        return bool(self._requests)

    def knows(self, request_id: str) -> bool:
        """Tell whether a request is traced."""
        return request_id in self._requests

    def num_prompt_tokens(self, request_id: str) -> int:
        """Return the length of a traced request's prompt."""
        return self._requests[request_id].num_prompt_tokens

    def arrive(self, arrival: Arrival) -> bool:
        """Meet a request with blocks, and tell whether one of them must not see steps whose output is dropped."""
        own: Program | None = None
        edits: dict[str, Program] = {}
        error: BaseException | None = None
        try:
            edits = self.edits.find(arrival.edits)
            own = None if arrival.program is None else self._read(arrival.program)
        except Exception as refusal:  # noqa: BLE001 - a program that cannot be read is that request's error
            error = refusal
        traced = Traced.of(arrival.key, arrival.num_prompt_tokens, own, edits, self._start, error)
        self._requests[arrival.request_id] = traced
        return traced.counts_steps

    def resume(self, request_id: str) -> None:
        """See a preempted request come back, which blocks that tell steps apart cannot follow."""
        traced = self._requests.get(request_id)
        if traced is not None:
            traced.fail(
                lambda: UnsupportedFeatureError(
                    "the request was preempted because the KV cache was full, and a block cannot follow a preempted "
                    "request yet; give the engine more cache (gpu_memory_utilization) or run fewer requests at once"
                )
            )

    def depart(self, request_id: str) -> None:
        """See a request end: let the statements after its loops run, and keep its values until they are fetched."""
        traced = self._requests.pop(request_id, None)
        if traced is None:
            return
        traced.blocks.end()
        if traced.key is None:
            _forget(traced)
            return
        postbox = self._postbox
        if postbox is None or traced.waits_for_result:
            self._finished[traced.key] = traced
        if postbox is None or self._model.rank:
            return
        settled = self._model.note_progress()

        def make() -> bytes:
            settled()
            return self._writer.write(traced, None)

        postbox.post(traced.key, (lambda: WAITS_FOR_RESULT) if traced.waits_for_result else make)

    def begin(self, spans: Sequence[Span], num_rows: int, num_requests: int) -> None:
        """Enter the forward of a step."""
        self._current = []
        scopes: dict[BlockRun, Any] = {}
        steps: dict[BlockRun, int] = {}
        for span in spans:
            traced = self._requests[span.request_id]
            if span.partial:
                traced.fail(
                    lambda: UnsupportedFeatureError(
                        "the prompt was split over several steps, so the block would see slices of it; leave "
                        "enable_chunked_prefill at its default, or raise max_num_batched_tokens"
                    )
                )
            scope = RowScope(span.start, span.stop, num_rows, alone=num_requests == 1)
            for run in traced.blocks.runs:
                if run.present:
                    self._current.append((span, run))
                    scopes[run] = scope
                    steps[run] = traced.step_of(run, span)
        self._hub.begin_step(scopes, steps)

    def offer(self, name: str, live: torch.Tensor) -> None:
        """Serve the logits or the sampled ids, one row per request."""
        total = live.shape[0]
        scopes = {run: RowScope(span.index, span.index + 1, total) for span, run in self._current}
        if scopes:
            self._hub.offer(name, live, scopes)

    def finish(self) -> list[str]:
        """Leave the step and return the ids of requests whose block is over before its request."""
        if self._current:
            self._hub.end_step()
            self._current = []
        over = []
        for request_id, traced in self._requests.items():
            if traced.over and not traced.ended:
                traced.ended = True
                over.append(request_id)
        return over

    # Calls of the client ------------------------------------------------------------------------------------------

    def announce(self) -> None:
        """Tell the caller what runs here."""
        if self._postbox is not None:
            # Said here rather than by the postbox's thread, since it imports modules while vLLM does.
            reply = self.handshake()
            self._postbox.post(ANNOUNCEMENT, lambda: reply)

    def handshake(self) -> bytes:
        """Say what runs here, as JSON."""
        import nnsight_vllm

        return json.dumps(
            {
                "nnsight": nnsight_vllm.__version__,
                "vllm": installed_version(),
                "rank": self._model.rank,
                "process": os.getpid(),
                "runner": self._model.runner_generation,
                "missing": missing_seams((self._model.runner_generation,)),
            }
        ).encode()

    def collect(self, data: bytes) -> bytes:
        """Hand out what requests saved and forget them.

        Args:
            data: `[[key, result or None], ...]` in msgpack; a result is a message of the wire.

        Returns:
            One outcome per key in msgpack, `WAITS_FOR_RESULT` for a block that cannot end without the result that was
            not given; nothing on ranks other than the first.
        """
        outcomes: list[bytes | None] = []
        for key, result in msgspec.msgpack.decode(data):
            traced = self._take(key)
            if traced is not None and result is None and traced.waits_for_result:
                self._finished[key] = traced
                outcomes.append(WAITS_FOR_RESULT)
            else:
                outcomes.append(self._writer.write(traced, result) if traced is not None else None)
        return msgspec.msgpack.encode(outcomes) if self._model.rank == 0 else b""

    def discard(self, data: bytes) -> bytes:
        """Forget requests whose caller is gone, and return how many traced requests are left."""
        for key in msgspec.msgpack.decode(data):
            traced = self._take(key)
            if traced is not None:
                for run in traced.blocks.runs:
                    run.close()
        return str(len(self._requests) + len(self._finished)).encode()

    # --------------------------------------------------------------------------------------------------------------

    @property
    def _tree(self) -> ModelTree:
        if self._cached_tree is None:
            self._cached_tree = build_tree(self._model)
        return self._cached_tree

    @property
    def _hub(self) -> Interleaver:
        if self._interleaver is None:
            self._interleaver = Interleaver(self._tree)
        return self._interleaver

    def _device_of(self, text: str) -> torch.device:
        """Put a client's GPU tensor on this rank's device."""
        return torch.device("cpu") if text == "cpu" else self._model.device

    def _read(self, data: bytes) -> Program:
        return decode_program(data, self._tree, self._device_of)

    def _start(self, program: Program) -> BlockRun:
        # An edit was read once for all requests.
        run = program.start(own_copies(program.values), grad=False, read_only=program.effects.read_only)
        run.receipt.details.update(runner=self._model.runner_generation, vllm=installed_version() or "unknown")
        return run

    def _take(self, key: str) -> Traced | None:
        traced = self._finished.pop(key, None)
        if traced is not None:
            return traced
        for request_id, candidate in self._requests.items():
            if candidate.key == key:
                rest = candidate.remainder(self._start)
                if rest is None:
                    del self._requests[request_id]
                else:
                    self._requests[request_id] = rest
                candidate.blocks.end()
                return candidate
        return None


def _forget(traced: Traced) -> None:
    """Let go of a request that nobody asks about, but for its errors."""
    failure = traced.error or traced.blocks.failure()
    for run in traced.blocks.runs:
        run.close()
    if failure is not None:
        _log.warning("a request was ended by an error of an edit: %r; %s", failure, _notes(failure))


def _notes(error: BaseException) -> str:
    return "; ".join(getattr(error, "__notes__", ()))
