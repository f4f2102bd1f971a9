"""What a worker sent home for one request, read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from nnsight._interleave import Receipt
from nnsight._program.failures import rebuild_error
from nnsight._trace import EditResult, Outcome, join_sequences
from nnsight._trace.messages import HandedValue, decode_values
from nnsight.errors import EngineError
from nnsight_vllm._mailbox import WAITS_FOR_RESULT
from nnsight_vllm._transfer import read_shared, remove_shared

_PARTS = ("named", "unnamed", "changes")


def read_outcomes(found: Mapping[str, bytes | None], keys: Sequence[str], result: Any) -> Outcome:
    """Read what became of a request, and put it on its finished output.

    Args:
        found: What the worker wrote, by key.
        keys: Of the request's sequences.
        result: The finished output of the request.
    """
    parts = [read_outcome(found[key], result) for key in keys]
    for completion in result.outputs:
        part = parts[completion.index]
        if completion.finish_reason == "error" and part.error is None:
            part.error = EngineError(
                "vLLM ended the request with an error of its own, which its log tells; one is that a block assigned to "
                "samples a token that the structured_outputs of its request do not allow"
            )
    outcome = parts[0] if len(parts) == 1 else join_sequences(parts, result)
    _put_on_output(result, outcome)
    return outcome


def read_outcome(data: bytes | None, result: Any) -> Outcome:
    """Read what became of one sequence of a request.

    Args:
        data: What the worker wrote; None where it knows nothing of it.
        result: The finished output of the request.
    """
    if data is None:
        return Outcome(
            result=result,
            error=EngineError("the engine returned no receipt for a traced request, so its block may not have run"),
        )
    parts = msgspec.msgpack.decode(data)
    named, unnamed, changes = (_values(parts[name], result) for name in _PARTS)
    error = rebuild_error(parts["error"]) if parts["error"] is not None else None
    exports: dict[str, object] = {name: HandedValue(_raw(place)) for name, place in parts["exports"].items()}
    edits = {
        name: EditResult(_values(place, result), Receipt.from_dict(receipt))
        for name, (place, receipt) in parts["edits"].items()
    }
    receipt = Receipt.from_dict(parts["receipt"])
    return Outcome(named, unnamed, changes, result, error, receipt, exports, edits=edits)


def _put_on_output(result: Any, outcome: Outcome) -> None:
    """Put what became of a request on its finished output, and what became of each sequence on its completion."""
    result.saves, result.receipt, result.edits = outcome.all_saves, outcome.account, outcome.edits
    for completion in result.outputs:
        part = outcome.sequences[completion.index] if outcome.sequences else outcome
        completion.saves, completion.receipt, completion.edits = part.all_saves, part.receipt, part.edits


def drop_outcome(data: bytes) -> None:
    """Remove the files of an outcome that nobody will read."""
    if data == WAITS_FOR_RESULT:
        return
    parts = msgspec.msgpack.decode(data)
    edits = (place for place, _ in parts["edits"].values())
    for place in (*(parts[name] for name in _PARTS), *parts["exports"].values(), *edits):
        if isinstance(place, str):
            remove_shared(place)


def _raw(place: bytes | str) -> bytes:
    """Return a message as the worker wrote it."""
    return read_shared(place, lambda data, fetch: bytes(data)) if isinstance(place, str) else place


def _values(place: bytes | str, result: Any) -> dict[str, Any]:
    if isinstance(place, str):
        return read_shared(place, lambda data, fetch: decode_values(data, result, fetch=fetch))
    return decode_values(place, result)
