"""The traced requests of one worker: their blocks, the steps they take part in, and what they bring home."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from nnsight._interleave import Budget, Interleaver, RowLog
from nnsight._trace.messages import decode_program
from nnsight_vllm._mailbox import ANNOUNCEMENT, WAITS_FOR_RESULT
from nnsight_vllm._worker.outcomes import OutcomeWriter
from nnsight_vllm._worker.share import Share
from nnsight_vllm._worker.tokens import TokenScope
from nnsight_vllm._worker.traced import Traced
from nnsight_vllm._worker.tree import build_tree
from nnsight_vllm.compat.records import missing_seams
from nnsight_vllm.compat.versions import installed_version

if TYPE_CHECKING:
    from nnsight._envoy import ModelTree
    from nnsight._interleave import BlockRun, RowScope
    from nnsight_vllm._mailbox import Postbox
    from nnsight_vllm.compat.model_access import WorkerModel
    from nnsight_vllm.compat.seams import Arrival, Span


class WorkerSession:
    """Listens to the events of a model runner; see `compat.seams.StepListener`."""

    def __init__(
        self, model: WorkerModel, postbox: Postbox | None = None, limits: Mapping[str, int | None] | None = None
    ) -> None:
        """Serve the blocks of one worker.

        Args:
            model: The model that the worker holds.
            postbox: Leads to the caller's mailbox, where that can be reached.
            limits: `step_budget` and `byte_budget` of each block; see `Budget`.
        """
        self._model = model
        self._postbox = postbox
        self._limits = dict(limits or {})
        self._masks: Mapping[str, Any] = {}
        self._requests: dict[str, Traced] = {}
        self._finished: dict[str, Traced] = {}
        self._current: list[Share] = []
        self._interleaver: Interleaver | None = None
        self._cached_tree: ModelTree | None = None
        self._writer = OutcomeWriter(model)

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

    def arrive(self, arrival: Arrival) -> None:
        """Meet a traced request."""
        traced = Traced(arrival.key, arrival.num_prompt_tokens)
        self._requests[arrival.request_id] = traced
        try:
            budget = Budget(**self._limits)
            program = decode_program(arrival.program, self._tree, self._device_of, budget=budget)
            traced.program = program
            traced.run = program.start(program.values, grad=False, read_only=program.effects.read_only, budget=budget)
            if not program.effects.read_only:
                traced.run.log = RowLog()
            traced.run.receipt.details.update(
                runner=self._model.runner_generation, vllm=installed_version() or "unknown"
            )
        except Exception as error:  # noqa: BLE001 - a program that cannot be read is that request's error
            traced.error = error

    def depart(self, request_id: str) -> None:
        """See a request end: let the statements after its loops run, and keep its values until they are fetched."""
        traced = self._requests.pop(request_id, None)
        if traced is None:
            return
        self._finish(traced)
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
        self._current = [Share(self._requests[span.request_id], span) for span in spans]
        scopes: dict[BlockRun, Any] = {}
        steps: dict[BlockRun, int] = {}
        for share in self._current:
            share.enter(num_rows, alone=num_requests == 1)
            for run, scope in share.scopes.items():
                scopes[run] = scope
                steps[run] = share.step
        self._hub.begin_step(scopes, steps)

    def constrain(self, masks: Mapping[str, Any]) -> None:
        """Note which tokens the grammars of requests allow in this step."""
        self._masks = masks

    def offer(self, name: str, live: torch.Tensor) -> None:
        """Serve the logits or the sampled ids, one row per request."""
        scopes = {
            run: self._token_scope(share, scope) if name == "samples" else scope
            for share in self._current
            for run, scope in share.value_scopes(live.shape[0]).items()
        }
        if scopes:
            self._hub.offer(name, live, scopes)

    def finish(self) -> list[str]:
        """Leave the step and return the ids of requests whose block is over before its request."""
        if self._current:
            self._hub.end_step()
            for share in self._current:
                share.leave()
            self._current = []
        over = []
        for request_id, traced in self._requests.items():
            run = traced.run
            failed = traced.error is not None or (run is not None and (run.error is not None or run.stopped))
            if failed and not traced.ended:
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
            if traced is not None and traced.run is not None:
                traced.run.close()
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

    def _token_scope(self, share: Share, scope: RowScope) -> TokenScope:
        mask = self._masks.get(share.request_id)
        return TokenScope(scope.start, scope.stop, scope.total, vocabulary=self._model.vocabulary, mask=mask)

    def _device_of(self, text: str) -> torch.device:
        """Put a client's GPU tensor on this rank's device."""
        return torch.device("cpu") if text == "cpu" else self._model.device

    def _take(self, key: str) -> Traced | None:
        traced = self._finished.pop(key, None)
        if traced is not None:
            return traced
        for request_id, candidate in self._requests.items():
            if candidate.key == key:
                del self._requests[request_id]
                self._finish(candidate)
                return candidate
        return None

    def _finish(self, traced: Traced) -> None:
        if traced.run is not None:
            traced.run.end()
