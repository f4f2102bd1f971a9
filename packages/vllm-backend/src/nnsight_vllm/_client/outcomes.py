"""What a worker sent home for requests, read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nnsight._program.failures import rebuild_error
from nnsight._program.streaming import News
from nnsight._trace import EditResult, Outcome, join_sequences
from nnsight._trace.bunches import read_bunch
from nnsight._trace.messages import HandedValue
from nnsight.errors import EngineError
from nnsight_vllm._mailbox import WAITS_FOR_RESULT
from nnsight_vllm._outcome_messages import RequestNote, read_message
from nnsight_vllm._transfer import read_shared, remove_shared
from nnsight_vllm.compat import public

if TYPE_CHECKING:
    from nnsight_vllm._mailbox import Message


def read_outcomes(found: Mapping[str, Message], keys: Sequence[str], result: Any) -> Outcome:
    """Read what became of a request, and put it on its finished output.

    Args:
        found: What the worker wrote, by key.
        keys: Of the request's sequences.
        result: The finished output of the request.
    """
    parts = [read_outcome(found.get(key), key, result) for key in keys]
    for index in public.failed_sequences(result):
        part = parts[index]
        if part.error is None:
            part.error = EngineError(
                "vLLM ended the request with an error of its own; what it was is in the engine's log"
            )
    outcome = parts[0] if len(parts) == 1 else join_sequences(parts, result)
    _put_on_output(result, outcome)
    return outcome


def read_outcome(message: Message | None, key: str, result: Any) -> Outcome:
    """Read what became of one sequence of a request.

    Args:
        message: What the worker wrote, of this one and maybe of others; None where it knows nothing of it.
        key: Our id of it.
        result: The finished output of the request.
    """
    if message is None:
        return Outcome(
            result=result,
            error=EngineError("the engine returned no receipt for a traced request, so its block may not have run"),
        )
    # What is read for one request is kept for the others.
    note, parts = message.read(lambda data: _read(data, result)).pop(key)
    raised = None if note.error is None else rebuild_error(note.error)
    if isinstance(parts, Exception):
        raised, parts = raised or parts, [{} for _ in range(3 + len(note.edits))]
    named, unnamed, changes, *saved = parts
    handed: dict[str, object] = {name: HandedValue(_raw(place)) for name, place in note.exports.items()}
    edits = {name: EditResult(saves, receipt) for (name, receipt), saves in zip(note.edits, saved, strict=True)}
    return Outcome(named, unnamed, changes, result, raised, note.receipt, handed, edits=edits)


def read_news(messages: Iterable[Message], key: str) -> News:
    """Read what a request under way has saved lately, from the messages that tell of it, the first one first."""
    news = News()
    for message in messages:
        _, parts = message.read(lambda data: _read(data, None)).pop(key)
        # What cannot be read is told of when the request is over.
        if not isinstance(parts, Exception):
            news.add(News(*parts))
    return news


def _put_on_output(result: Any, outcome: Outcome) -> None:
    """Put what became of a request on its finished output, and what became of each sequence on its completion."""
    saves = outcome.all_saves
    result.saves, result.receipt, result.edits = saves, outcome.account, outcome.edits
    for completion in result.outputs:
        part = outcome.sequences[completion.index] if outcome.sequences else outcome
        completion.saves = saves if part is outcome else part.all_saves
        completion.receipt, completion.edits = part.receipt, part.edits


def read_ahead(data: bytes) -> object:
    """Read what a worker wrote before anybody asks; None where the finished output is needed for it."""
    return None if data == WAITS_FOR_RESULT else _read(data, None)


def drop_outcome(data: bytes) -> None:
    """Remove the files of outcomes that nobody will read."""
    if data == WAITS_FOR_RESULT:
        return
    message = read_message(data)
    for place in (message.values, *(each for note in message.requests for each in note.exports.values())):
        if isinstance(place, str):
            remove_shared(place)


def _read(data: bytes, result: Any) -> dict[str, tuple[RequestNote, list[Any] | Exception]]:
    message = read_message(data)
    values = message.values
    if isinstance(values, str):
        found = read_shared(values, lambda data, fetch: read_bunch(data, result, fetch=fetch))
    else:
        found = read_bunch(values, result)
    return {note.key: (note, parts) for note, parts in zip(message.requests, found, strict=True)}


def _raw(place: bytes | str) -> bytes:
    """Return a message as the worker wrote it."""
    return read_shared(place, lambda data, fetch: bytes(data)) if isinstance(place, str) else place
