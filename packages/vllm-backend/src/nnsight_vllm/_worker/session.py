"""The traced requests of one worker: their blocks, the steps they take part in, and what they bring home."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from nnsight._interleave import Budget, Interleaver
from nnsight._trace.messages import decode_program
from nnsight_vllm._mailbox import ANNOUNCEMENT, WAITS_FOR_RESULT
from nnsight_vllm._worker.edits import InstalledEdits
from nnsight_vllm._worker.ended import Ended
from nnsight_vllm._worker.news import NewsDesk
from nnsight_vllm._worker.outcomes import OutcomeWriter
from nnsight_vllm._worker.programs import ProgramShelf
from nnsight_vllm._worker.share import Share
from nnsight_vllm._worker.tokens import TokenScope
from nnsight_vllm._worker.traced import OwnProgram, Traced
from nnsight_vllm._worker.tree import build_tree
from nnsight_vllm.compat.records import missing_seams
from nnsight_vllm.compat.versions import installed_version

if TYPE_CHECKING:
    import torch

    from nnsight._envoy import ModelTree
    from nnsight._interleave import BlockRun, RowScope
    from nnsight._program import Program
    from nnsight._program.streaming import StreamedBook
    from nnsight_vllm._mailbox import Postbox
    from nnsight_vllm._worker.edits import InstalledEdit
    from nnsight_vllm.compat.model_access import WorkerModel
    from nnsight_vllm.compat.seams import Arrival, Span

_log = logging.getLogger(__name__)


class WorkerSession:
    """Listens to the events of a model runner; see `compat.seams.StepListener`.

    Attributes:
        edits: The edits that this worker was sent.
    """

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
        self._finished: dict[str, Ended | Traced] = {}
        self._current: list[Share] = []
        self._interleaver: Interleaver | None = None
        self._cached_tree: ModelTree | None = None
        self._writer = OutcomeWriter(model)
        self.edits = InstalledEdits(self._read)
        self._programs = ProgramShelf(lambda: self._tree, self._device_of)
        self._news = NewsDesk(model, self._writer, postbox)

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
        edits: list[InstalledEdit] = []
        try:
            edits = self.edits.find(arrival.edits)
            traced = self._traced(arrival, edits)
        except Exception as refusal:  # noqa: BLE001 - a program that cannot be read is that request's error
            traced = Traced.of(arrival.key, arrival.num_prompt_tokens, edits, self._start, refusal)
        self._requests[arrival.request_id] = traced
        return traced.counts_steps

    def depart(self, request_ids: Sequence[str]) -> None:
        """See requests end: let the statements after their loops run, and send home what they saved."""
        waiting: dict[str, Traced] = {}
        ended: dict[str, Ended] = {}
        self._news.forget(request_ids)
        for request_id in request_ids:
            traced = self._requests.pop(request_id, None)
            if traced is None:
                continue
            traced.blocks.end()
            if traced.key is None:
                _forget(traced)
            elif traced.waits_for_result:
                waiting[traced.key] = traced
            else:
                ended[traced.key] = self._writer.settle(traced)
        postbox = self._postbox
        self._finished.update(waiting)
        if postbox is None:
            self._finished.update(ended)
            return
        if not self._writer.tells:
            return
        if waiting:
            postbox.post_each(lambda: [(list(waiting), WAITS_FOR_RESULT)])
        if not ended:
            return
        settled = self._model.note_progress()

        def make() -> Iterator[tuple[list[str], bytes]]:
            settled()
            yield from self._writer.write_each(list(ended.values()))

        postbox.post_each(make)

    def begin(self, spans: Sequence[Span], num_rows: int, num_requests: int) -> None:
        """Enter the forward of a step."""
        # A block may have ended its request when this step was scheduled already. The others see no more of it, but for
        # uniform ones, on which the rows that it leaves in the prefix cache rest.
        self._current = [Share(part, span) for span in spans for part in self._requests[span.request_id].taking_part()]
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
        if not self._hub.awaits(name):
            return
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
            self._news.post()
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
            self._postbox.post(ANNOUNCEMENT, reply)

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
            `[[keys, message], ...]` in msgpack, without the keys that nobody knows; the message is `WAITS_FOR_RESULT`
            for blocks that cannot end without the result that was not given. Nothing where another rank tells.
        """
        ended, waiting, messages = [], [], []
        for key, result in msgspec.msgpack.decode(data):
            found = self._take(key)
            if found is None:
                continue
            if isinstance(found, Ended):
                ended.append(found)
            elif not found.waits_for_result:
                ended.append(self._writer.settle(found))
            elif result is None:
                self._finished[key] = found
                waiting.append(key)
            else:
                messages.append(([key], self._writer.write_with_result(found, result)))
        messages += self._writer.write_each(ended)
        messages += [(waiting, WAITS_FOR_RESULT)] if waiting else []
        return msgspec.msgpack.encode(messages) if self._writer.tells else b""

    def discard(self, data: bytes) -> bytes:
        """Forget requests whose caller is gone, and return how many traced requests are left."""
        for key in msgspec.msgpack.decode(data):
            found = self._take(key)
            if isinstance(found, Traced):
                for run in found.blocks.runs:
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

    def _token_scope(self, share: Share, scope: RowScope) -> TokenScope:
        mask = self._masks.get(share.request_id)
        return TokenScope(scope.start, scope.stop, scope.total, vocabulary=self._model.vocabulary, mask=mask)

    def _device_of(self, text: str) -> torch.device:
        """Put every tensor that a block brings along where the values are that it meets: results come home to a CPU."""
        return self._model.device

    def _read(self, data: bytes) -> tuple[Program, Budget]:
        budget = Budget(**self._limits)
        return decode_program(data, self._tree, self._device_of, budget=budget), budget

    def _traced(self, arrival: Arrival, edits: Sequence[InstalledEdit]) -> Traced:
        if arrival.program is None:
            return Traced.of(arrival.key, arrival.num_prompt_tokens, edits, self._start)
        own = OwnProgram(self._programs.template(arrival.program), arrival.values)
        watches = arrival.streams and arrival.key is not None
        book = self._news.watch(arrival.request_id, arrival.key or "") if watches else None

        def start(source: OwnProgram | InstalledEdit) -> BlockRun:
            return self._start(source, book if source is own else None)

        return Traced.of(arrival.key, arrival.num_prompt_tokens, [*edits, own], start)

    def _start(self, source: OwnProgram | InstalledEdit, book: StreamedBook | None = None) -> BlockRun:
        program = source.program
        values, budget = source.begin(self._limits)
        run = program.start(
            values, grad=False, read_only=program.effects.read_only, budget=budget, book=book, ahead=True
        )
        run.receipt.details.update(self._details)
        return run

    @cached_property
    def _details(self) -> dict[str, str]:
        """What the receipt of every block says of this worker."""
        return {"runner": self._model.runner_generation, "vllm": installed_version() or "unknown"}

    def _take(self, key: str) -> Ended | Traced | None:
        found = self._finished.pop(key, None)
        if found is not None:
            return found
        for request_id, candidate in self._requests.items():
            if candidate.key == key:
                rest = candidate.remainder(self._start)
                if rest is None:
                    del self._requests[request_id]
                else:
                    self._requests[request_id] = rest
                self._news.forget([request_id])
                candidate.blocks.end()
                return candidate
        return None


def _forget(traced: Traced) -> None:
    """Let go of a request that nobody asks about, but for its errors."""
    failure = traced.error or traced.blocks.failure()
    for run in traced.blocks.runs:
        run.close()
    if failure is not None:
        notes = "; ".join(getattr(failure, "__notes__", ()))
        _log.warning("a request was ended by an error of an edit: %r; %s", failure, notes)
