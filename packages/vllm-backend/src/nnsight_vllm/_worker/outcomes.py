"""What a worker sends home for requests that are over, written for several at once."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from nnsight._interleave import Receipt
from nnsight._program.failures import describe_error
from nnsight._trace.bunches import BunchWriter
from nnsight._trace.messages import TRUSTED, block_codecs, encode_values, write_handed
from nnsight._wire import decode
from nnsight_vllm._mailbox import news_key
from nnsight_vllm._outcome_messages import OutcomeMessage, RequestNote, write_message
from nnsight_vllm._transfer import LARGE_BYTES, remove_shared, write_shared
from nnsight_vllm._worker.ended import NUM_OWN_PARTS, Ended

if TYPE_CHECKING:
    from nnsight._program.streaming import News
    from nnsight._wire import Parts
    from nnsight_vllm._worker.traced import Traced
    from nnsight_vllm.compat.model_access import WorkerModel

# A reply lies in shared memory for this long at most.
_STALE_S: Final = 600.0


class OutcomeWriter:
    """Closes requests and writes what became of them; the large parts lie in shared memory.

    Attributes:
        tells: Whether this worker tells the callers; one rank does.
    """

    def __init__(self, model: WorkerModel) -> None:
        """Write for one worker."""
        self._model = model
        self._files: dict[str, float] = {}
        self.tells = model.rank == 0

    def settle(self, traced: Traced) -> Ended:
        """Close the blocks of a request, none of which waits for its result, and keep what will be told of it."""
        return Ended.of(traced, told=self.tells)

    def write_each(self, ended: Sequence[Ended]) -> Iterator[tuple[list[str], bytes]]:
        """Write what became of requests, several in a message as long as they are small.

        Nothing where another rank does.

        Yields:
            The keys of some of the requests, with the message that tells of them.
        """
        if not self.tells:
            return
        first = 0
        bunch = _Bunch()
        for number, each in enumerate(ended, 1):
            self._add(bunch, each)
            if number == len(ended) or bunch.values.num_bytes >= LARGE_BYTES:
                yield from self._finish_or_part(bunch, ended[first:number])
                first, bunch = number, _Bunch()

    def _finish_or_part(self, bunch: _Bunch, ended: Sequence[Ended]) -> Iterator[tuple[list[str], bytes]]:
        """Finish a message, or where a value in it cannot be read, one for each request."""
        try:
            yield bunch.keys, self._finish(bunch)
        except Exception as error:  # noqa: BLE001 - it belongs to one request, and the others come home
            if len(ended) > 1:
                for each in ended:
                    yield from self.write_each([each])
                return
            failed = _Bunch()
            self._add(failed, Ended.failed(ended[0].key, error))
            yield failed.keys, self._finish(failed)

    def write_news(self, news: Sequence[tuple[str, News]]) -> tuple[list[str], bytes]:
        """Write what requests under way have saved lately, each with its key.

        Returns:
            What the message is posted under, and the message.
        """
        bunch = _Bunch()
        for key, each in news:
            parts = [each.values, each.additions]
            try:
                bunch.values.add(parts)
            except Exception:  # noqa: BLE001 - what cannot travel is told of when the request is over
                bunch.values.add([_sendable(part, None) for part in parts])
            bunch.notes.append(RequestNote(key, Receipt()))
        return [news_key(key) for key in bunch.keys], self._finish(bunch)

    def write_with_result(self, traced: Traced, result_data: bytes) -> bytes:
        """Write what became of a request of which a block waits for the finished output.

        Args:
            traced: The request.
            result_data: The finished output as a message of the wire.
        """
        result: object = None
        runs = traced.blocks.runs
        try:
            result = decode(result_data, codecs=block_codecs(), limits=TRUSTED)
            for run in runs:
                run.give_result(result)
        except Exception as error:  # noqa: BLE001 - it belongs to this request, and the others come home
            traced.error = traced.error or error
            for run in runs:
                run.close()
        bunch = _Bunch(result)
        ended = self.settle(traced)
        if not self.tells:
            return b""
        self._add(bunch, ended)
        return self._finish(bunch)

    def _add(self, bunch: _Bunch, ended: Ended) -> None:
        try:
            bunch.notes.append(self._taken_in(bunch, ended))
        except Exception as error:  # noqa: BLE001 - it belongs to this request, and the others come home
            failed = Ended.failed(ended.key, error)
            bunch.notes.append(self._taken_in(bunch, failed))

    def _taken_in(self, bunch: _Bunch, ended: Ended) -> RequestNote:
        """Take in what a request saved, and return what is told of it beside that."""
        error = ended.error
        exports: dict[str, bytes | str] = {}
        for name, value in ended.exports.items():
            try:
                exports[name] = self._place(write_handed(value, name))
            except Exception as refusal:  # noqa: BLE001 - what cannot be sent is that request's error
                error = error or describe_error(refusal)
        try:
            sizes = bunch.values.add(ended.parts)
        except Exception as refusal:  # noqa: BLE001 - as above
            error = error or describe_error(refusal)
            sizes = bunch.values.add([_sendable(part, bunch.result) for part in ended.parts])
        for (_, receipt), size in zip(ended.edits, sizes[NUM_OWN_PARTS:], strict=True):
            receipt.bytes_home = size
        ended.receipt.bytes_home = sum(sizes[:NUM_OWN_PARTS])
        return RequestNote(ended.key, ended.receipt, error, exports, ended.edits)

    def _finish(self, bunch: _Bunch) -> bytes:
        return write_message(OutcomeMessage(bunch.notes, self._place(bunch.values.finish())))

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


class _Bunch:
    """Outcomes that become one message."""

    def __init__(self, result: object = None) -> None:
        self.result = result
        self.values = BunchWriter(result)
        self.notes: list[RequestNote] = []

    @property
    def keys(self) -> list[str]:
        return [note.key for note in self.notes]


def _sendable(values: Mapping[str, object], result: object) -> dict[str, object]:
    """Return those values that can travel."""
    kept = {}
    for name, value in values.items():
        try:
            encode_values({name: value}, result)
        except Exception:  # noqa: BLE001 - what cannot be sent is left out
            continue
        kept[name] = value
    return kept
