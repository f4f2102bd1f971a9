"""What is kept of a request that is over until its caller is told: what it saved, and its receipts.

A sweep has very many requests, and what their blocks ran with is let go of as each of them ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from nnsight._interleave import Receipt
from nnsight._program.failures import describe_error

if TYPE_CHECKING:
    from nnsight_vllm._worker.traced import Traced

_NOTHING: Final[Mapping[str, object]] = {}
# What a request's own block saved: by variable, by label, and in containers that were saved outside it.
_NO_SAVES: Final = (_NOTHING, _NOTHING, _NOTHING)
NUM_OWN_PARTS: Final = len(_NO_SAVES)


# Not frozen, since one is made for each request: that would take four times as long.
@dataclass(slots=True)
class Ended:
    """One request.

    Attributes:
        key: The client's id of it.
        error: What ended it early, as `describe_error` tells it.
        receipt: Of the request's own block; empty where it has none.
        parts: What its own block saved, in several parts, and then what each edit saved.
        exports: Variables that later invokes of its trace need.
        edits: The receipts of its edits, by name.
    """

    key: str
    error: dict[str, Any] | None
    receipt: Receipt
    parts: Sequence[Mapping[str, object]]
    exports: Mapping[str, object]
    edits: tuple[tuple[str, Receipt], ...] = ()

    @classmethod
    def of(cls, traced: Traced, *, told: bool) -> Ended:
        """Close the blocks of a request, and let go of all that nobody will be told.

        Args:
            traced: The request, none of whose blocks waits for its result.
            told: Whether this worker tells the caller of it; others keep nothing.
        """
        assert traced.key is not None
        blocks = traced.blocks
        try:
            for run in blocks.runs:
                run.close()
            if not told:
                return cls._without_saves(traced.key, None)
            for run in blocks.runs:
                run.count_late_edits()
            failure, error = traced.error or blocks.failure(), None
            if failure is not None:
                error = describe_error(failure, frozenset(block.program.source.filename for block in blocks.blocks))
            ended = cls._without_saves(traced.key, error)
            parts: list[Mapping[str, object]] = list(_NO_SAVES)
            for block in blocks.blocks:
                run = block.run
                if block.edit is None:
                    ended.receipt, ended.exports = run.receipt, run.exports
                    parts[:NUM_OWN_PARTS] = run.named, run.unnamed, run.changes
                else:
                    parts.append({**run.unnamed, **run.named} if run.unnamed else run.named)
                    ended.edits = (*ended.edits, (block.edit, run.receipt))
            ended.parts = parts
        except Exception as error:  # noqa: BLE001 - it belongs to this request, and the others come home
            return cls.failed(traced.key, error)
        finally:
            traced.release()
        return ended

    @classmethod
    def failed(cls, key: str, error: BaseException) -> Ended:
        """Tell of a request of which nothing but an error is left."""
        return cls._without_saves(key, describe_error(error))

    @classmethod
    def _without_saves(cls, key: str, error: dict[str, Any] | None) -> Ended:
        return cls(key, error, Receipt(), _NO_SAVES, _NOTHING)
