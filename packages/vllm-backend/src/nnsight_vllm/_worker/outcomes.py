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
