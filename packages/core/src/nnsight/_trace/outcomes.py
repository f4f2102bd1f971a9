"""The end of a request: its block ends, and what became of it travels home."""

from __future__ import annotations

import io
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from nnsight._interleave import Receipt
from nnsight._program.failures import describe_error, keep_user_frames, rebuild_error
from nnsight._trace.edit import EditResult
from nnsight._trace.messages import HandedValue, decode_values, encode_values, write_handed
from nnsight._trace.request import Outcome
from nnsight.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nnsight._envoy import ModelTree
    from nnsight._interleave import BlockRun
    from nnsight._program import Program

# A run is that of one sequence; where there are several, each is written by itself.
_PARTS = frozenset(field.name for field in fields(Outcome)) - {"sequences"}


def finish_run(
    run: BlockRun, program: Program, *, result: object = None, error: BaseException | None = None
) -> Outcome:
    """Let a block end with its request, and tell what became of it.

    The statements after the block's last step run, and a block that waits for the result is handed it. Where the
    backend could not complete the request, the block is told so by an `error` instead, raised where it waits.

    Args:
        run: The block; its request has had its last step.
        program: What it runs.
        result: The finished output of the request.
        error: Why there is none.

    Returns:
        The outcome. A traceback in it has the user's own lines alone.
    """
    if error is None:
        run.end()
        run.give_result(result)
    else:
        run.fail(error)
    run.close()
    run.count_late_edits()
    failure = run.error or error
    if failure is not None:
        keep_user_frames(failure, frozenset({program.source.filename}))
    return Outcome(run.named, run.unnamed, run.changes, result, failure, run.receipt, run.exports)


def encode_outcome(outcome: Outcome, program: Program | None = None) -> bytes:
    """Write what became of a request, for the process of its caller.

    A value that cannot travel is the error of its request, unless that has one already; all others come home.

    Args:
        outcome: What `finish_run` returned, or one made by hand for a request whose block never ran.
        program: What ran, whose lines a traceback keeps wherever its file lies; None where it could not be read.
    """
    try:
        return _encode(outcome, program)
    except Exception as refusal:  # noqa: BLE001 - values of the user's own classes may raise anything when they are read
        sifted = {kind: _sift(kind, getattr(outcome, kind)) for kind in ("named", "unnamed", "changes", "exports")}
        result = _sift("result", {"result": outcome.result})
        edits = {name: _sift("saves", each.saves) for name, each in outcome.edits.items()}
        sifting = [*sifted.values(), result, *edits.values()]
        refusals = [*(error for part in sifting for error in part.refusals), refusal]
        values: dict[str, Any] = {kind: part.values for kind, part in sifted.items()}
        kept = Outcome(
            **values,
            result=result.values.get("result"),
            error=outcome.error or refusals[0],
            receipt=outcome.receipt,
            edits={name: EditResult(part.values, outcome.edits[name].receipt) for name, part in edits.items()},
        )
        return _encode(kept, program)


def decode_outcome(data: bytes | memoryview, tree: ModelTree) -> Outcome:
    """Read what `encode_outcome` wrote, in the process of the request's caller.

    The bytes name classes of saved values, which are imported: read them from a process of your own only.

    Args:
        data: What `encode_outcome` wrote.
        tree: The modules of the model on this side, for those that a save refers to.

    Raises:
        WireError: The bytes are no outcome of this version.
    """
    parts = decode_values(data, tree=tree)
    if parts.keys() != _PARTS:
        raise WireError("the bytes are no outcome of this version of nnsight; use one version on both sides")
    error = None if parts["error"] is None else rebuild_error(parts["error"])
    receipt = Receipt.from_dict({**parts["receipt"], "bytes_home": memoryview(data).nbytes})
    edits = {name: EditResult(saves, Receipt.from_dict(each)) for name, (saves, each) in parts["edits"].items()}
    return Outcome(**{**parts, "error": error, "receipt": receipt, "edits": edits})


@dataclass
class _Sifted:
    """Values that can travel, and why the others cannot."""

    values: dict[str, object]
    refusals: list[Exception]


def _encode(outcome: Outcome, program: Program | None) -> bytes:
    files = frozenset() if program is None else frozenset({program.source.filename})
    # One message, so that a value saved twice, or the result and a save of it, are one object at home too.
    message = {
        **{name: getattr(outcome, name) for name in sorted(_PARTS)},
        "error": None if outcome.error is None else describe_error(outcome.error, files),
        "receipt": outcome.receipt.as_dict(),
        "edits": {name: [each.saves, each.receipt.as_dict()] for name, each in outcome.edits.items()},
        "exports": {name: HandedValue(write_handed(value, name).joined()) for name, value in outcome.exports.items()},
    }
    whole = io.BytesIO()
    for part in encode_values(message):
        whole.write(part)
    return whole.getvalue()


def _sift(kind: str, values: Mapping[str, object]) -> _Sifted:
    sifted = _Sifted({}, [])
    for name, value in values.items():
        try:
            encode_values({kind: {name: value}})
        except Exception as refusal:  # noqa: BLE001 - as above
            sifted.refusals.append(_as_named_by_the_user(name, value) or refusal)
        else:
            sifted.values[name] = value
    return sifted


def _as_named_by_the_user(name: str, value: object) -> Exception | None:
    """Refuse a value without the names of our own around that of the user."""
    try:
        encode_values({name: value})
    except Exception as refusal:  # noqa: BLE001 - as above
        return refusal
    return None
