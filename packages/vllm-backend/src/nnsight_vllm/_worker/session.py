"""The traced requests of one worker: their blocks, the steps they take part in, and what they bring home."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
import torch

from nnsight._interleave import BlockRun, Interleaver, RowScope
from nnsight._program.failures import describe_error
from nnsight._trace.messages import TRUSTED, block_codecs, decode_program, encode_values, write_handed
from nnsight._wire import decode
from nnsight.errors import UnsupportedFeatureError
from nnsight_vllm._mailbox import ANNOUNCEMENT, WAITS_FOR_RESULT
from nnsight_vllm._transfer import LARGE_BYTES, remove_shared, write_shared
from nnsight_vllm._worker.tree import build_tree
from nnsight_vllm.compat.records import missing_seams
from nnsight_vllm.compat.versions import installed_version

if TYPE_CHECKING:
    from nnsight._envoy import ModelTree
    from nnsight._program import Program
    from nnsight._wire import Parts
    from nnsight_vllm._mailbox import Postbox
    from nnsight_vllm.compat.model_access import WorkerModel
    from nnsight_vllm.compat.seams import Arrival, Span

# A reply lies in shared memory for this long at most.
_STALE_S: Final = 600.0


@dataclass
class _Traced:
    """One traced request."""

    key: str
    num_prompt_tokens: int
    program: Program | None = None
    run: BlockRun | None = None
    error: BaseException | None = None
    ended: bool = False

    @property
    def waits_for_result(self) -> bool:
        """Whether the block, whose request is over, still waits for its finished output."""
        return self.run is not None and not self.run.finished


class WorkerSession:
    """Listens to the events of a model runner; see `compat.seams.StepListener`."""

    def __init__(self, model: WorkerModel, postbox: Postbox | None = None) -> None:
        """Serve the blocks of one worker.

        Args:
            model: The model that the worker holds.
            postbox: Leads to the caller's mailbox, where that can be reached.
        """
        self._model = model
        self._postbox = postbox
        self._requests: dict[str, _Traced] = {}
        self._finished: dict[str, _Traced] = {}
        self._current: list[tuple[Span, BlockRun]] = []
        self._interleaver: Interleaver | None = None
        self._cached_tree: ModelTree | None = None
        self._files: dict[str, float] = {}

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
        traced = _Traced(arrival.key, arrival.num_prompt_tokens)
        self._requests[arrival.request_id] = traced
        try:
            program = decode_program(arrival.program, self._tree, self._device_of)
            traced.program = program
            traced.run = program.start(program.values, grad=False, read_only=program.effects.read_only)
            traced.run.receipt.details.update(
                runner=self._model.runner_generation, vllm=installed_version() or "unknown"
            )
        except Exception as error:  # noqa: BLE001 - a program that cannot be read is that request's error
            traced.error = error

    def resume(self, request_id: str) -> None:
        """See a preempted request come back, which its block cannot follow."""
        traced = self._requests.get(request_id)
        if traced is not None and traced.run is not None:
            traced.run.fail(
                UnsupportedFeatureError(
                    "the request was preempted because the KV cache was full, and a block cannot follow a preempted "
                    "request yet; give the engine more cache (gpu_memory_utilization) or run fewer requests at once"
                )
            )

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
            return self._outcome_or_failure(traced, None)

        postbox.post(traced.key, (lambda: WAITS_FOR_RESULT) if traced.waits_for_result else make)

    def begin(self, spans: Sequence[Span], num_rows: int, num_requests: int) -> None:
        """Enter the forward of a step."""
        self._current = []
        scopes: dict[BlockRun, Any] = {}
        steps: dict[BlockRun, int] = {}
        for span in spans:
            traced = self._requests[span.request_id]
            run = traced.run
            if run is None or not run.present:
                continue
            if span.partial:
                run.fail(
                    UnsupportedFeatureError(
                        "the prompt was split over several steps, so the block would see slices of it; leave "
                        "enable_chunked_prefill at its default, or raise max_num_batched_tokens"
                    )
                )
                continue
            self._current.append((span, run))
            scopes[run] = RowScope(span.start, span.stop, num_rows, alone=num_requests == 1)
            steps[run] = span.step
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
                outcomes.append(self._outcome_or_failure(traced, result) if traced is not None else None)
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

    def _device_of(self, text: str) -> torch.device:
        """Put a client's GPU tensor on this rank's device."""
        return torch.device("cpu") if text == "cpu" else self._model.device

    def _take(self, key: str) -> _Traced | None:
        traced = self._finished.pop(key, None)
        if traced is not None:
            return traced
        for request_id, candidate in self._requests.items():
            if candidate.key == key:
                del self._requests[request_id]
                self._finish(candidate)
                return candidate
        return None

    def _finish(self, traced: _Traced) -> None:
        if traced.run is not None:
            traced.run.end()

    def _outcome_or_failure(self, traced: _Traced, result: bytes | None) -> bytes:
        try:
            return self._outcome(traced, result)
        except Exception as error:  # noqa: BLE001 - it belongs to this request, and the others come home
            return _failed(error)

    def _outcome(self, traced: _Traced, result_data: bytes | None) -> bytes:
        run, program = traced.run, traced.program
        if run is None or program is None:
            return _failed(traced.error)
        result = None
        if result_data is not None:
            result = decode(result_data, codecs=block_codecs(), limits=TRUSTED)
            run.give_result(result)
        run.close()
        if self._model.rank:
            return b""
        run.count_late_edits()
        error = describe_error(run.error, frozenset({program.source.filename})) if run.error is not None else None
        parts: dict[str, Any] = {"error": error, "receipt": run.receipt.as_dict()}
        for part in ("named", "unnamed", "changes"):
            values = getattr(run, part)
            try:
                parts[part] = self._place(encode_values(values, result))
            except Exception as refusal:  # noqa: BLE001 - what cannot be sent is that request's error
                parts[part] = self._place(encode_values(_sendable(values, result), result))
                parts["error"] = error or describe_error(refusal)
        parts["exports"] = exports = {}
        for name, value in run.exports.items():
            try:
                exports[name] = self._place(write_handed(value, name))
            except Exception as refusal:  # noqa: BLE001 - as above
                parts["error"] = parts["error"] or describe_error(refusal)
        return msgspec.msgpack.encode(parts)

    def _place(self, parts: Parts) -> bytes | str:
        """Return data as it is, or where it is large the path of a file in shared memory."""
        if parts.size >= LARGE_BYTES and self._model.shares_host:
            self._remove_stale_files()
            path = write_shared(parts)
            if path is not None:
                self._files[path] = time.monotonic()
                return path
        return parts.joined()

    def _remove_stale_files(self) -> None:
        """Remove files that their reader, which removes what it reads, must have gone on without."""
        before = time.monotonic() - _STALE_S
        for path in [path for path, written in list(self._files.items()) if written < before]:
            del self._files[path]
            remove_shared(path)


def _sendable(values: dict[str, object], result: object) -> dict[str, object]:
    """Return those values that can travel."""
    kept = {}
    for name, value in values.items():
        try:
            encode_values({name: value}, result)
        except Exception:  # noqa: BLE001 - what cannot be sent is left out
            continue
        kept[name] = value
    return kept


def _failed(error: BaseException | None) -> bytes:
    empty = encode_values({}).joined()
    described = describe_error(error or RuntimeError("the program could not be read"))
    return msgspec.msgpack.encode(
        {"error": described, "receipt": {}, "named": empty, "unnamed": empty, "changes": empty, "exports": {}}
    )
