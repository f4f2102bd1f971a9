"""What a worker sends home for one request, written."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from nnsight._program.failures import describe_error
from nnsight._trace.messages import TRUSTED, block_codecs, encode_values, write_handed
from nnsight._wire import decode
from nnsight_vllm._transfer import LARGE_BYTES, remove_shared, write_shared

if TYPE_CHECKING:
    from collections.abc import Callable

    from nnsight._wire import Parts
    from nnsight_vllm._worker.traced import Traced
    from nnsight_vllm.compat.model_access import WorkerModel

# A reply lies in shared memory for this long at most.
_STALE_S: Final = 600.0


class OutcomeWriter:
    """Writes outcomes; the large parts of them lie in shared memory."""

    def __init__(self, model: WorkerModel) -> None:
        """Write for one worker."""
        self._model = model
        self._files: dict[str, float] = {}

    def write(self, traced: Traced, result: bytes | None) -> bytes:
        """Write what became of a request whose block is over but for the finished output.

        Args:
            traced: The request.
            result: The finished output as a message of the wire; None where the block does not wait for it.
        """
        try:
            return self._outcome(traced, result)
        except Exception as error:  # noqa: BLE001 - it belongs to this request, and the others come home
            return _failed(error)

    def _outcome(self, traced: Traced, result_data: bytes | None) -> bytes:
        blocks = traced.blocks
        result = None
        if result_data is not None:
            result = decode(result_data, codecs=block_codecs(), limits=TRUSTED)
            for run in blocks.runs:
                run.give_result(result)
        for run in blocks.runs:
            run.close()
        if self._model.rank:
            return b""
        for run in blocks.runs:
            run.count_late_edits()
        failure = traced.error or blocks.failure()
        files = frozenset(block.program.source.filename for block in blocks.blocks)
        writing = _Writing(self._place, result, None if failure is None else describe_error(failure, files))
        own = None if blocks.own is None else blocks.own.run
        parts: dict[str, Any] = {
            part: writing.values(getattr(own, part, {})) for part in ("named", "unnamed", "changes")
        }
        parts["receipt"] = {} if own is None else own.receipt.as_dict()
        parts["exports"] = {} if own is None else writing.exports(own.exports)
        parts["edits"] = {
            block.edit: [writing.values({**block.run.unnamed, **block.run.named}), block.run.receipt.as_dict()]
            for block in blocks.blocks
            if block.edit is not None
        }
        return msgspec.msgpack.encode({**parts, "error": writing.error})

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


class _Writing:
    """Writes the values of one request; one that cannot be sent is its error, unless it has one."""

    def __init__(self, place: Callable[[Parts], bytes | str], result: object, error: dict[str, Any] | None) -> None:
        self._place = place
        self._result = result
        self.error = error

    def values(self, values: dict[str, object]) -> bytes | str:
        try:
            return self._place(encode_values(values, self._result))
        except Exception as refusal:  # noqa: BLE001 - what cannot be sent is that request's error
            self.error = self.error or describe_error(refusal)
            return self._place(encode_values(_sendable(values, self._result), self._result))

    def exports(self, values: dict[str, object]) -> dict[str, bytes | str]:
        written: dict[str, bytes | str] = {}
        for name, value in values.items():
            try:
                written[name] = self._place(write_handed(value, name))
            except Exception as refusal:  # noqa: BLE001 - as above
                self.error = self.error or describe_error(refusal)
        return written


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


def _failed(error: BaseException) -> bytes:
    empty = dict.fromkeys(("named", "unnamed", "changes"), encode_values({}).joined())
    return msgspec.msgpack.encode({**empty, "error": describe_error(error), "receipt": {}, "exports": {}, "edits": {}})
