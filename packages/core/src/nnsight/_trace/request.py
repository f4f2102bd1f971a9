"""What a backend is given to run, and what it gives back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from nnsight._interleave import Receipt

if TYPE_CHECKING:
    from nnsight._program import Program
    from nnsight._trace.edit import Edit, EditResult


@dataclass(frozen=True)
class Request:
    """One invoke: a program and the input that it runs beside.

    Attributes:
        program: The captured block.
        prepared: The input as the backend prepared it, checked.
        binds: Whether what the block saved is bound to the variables around the trace; a block that stands in another
            function than its trace leaves them alone.
        edits: The edits that were chosen for it, in the order of their installation; None for all that are installed.
    """

    program: Program
    prepared: Any
    binds: bool = True
    edits: tuple[Edit, ...] | None = None


@dataclass
class Outcome:
    """What became of one request.

    Attributes:
        named: Saved values by variable.
        unnamed: Saved values that were bound to no variable, by their source text.
        changes: Changes of containers that were saved outside the block.
        result: The finished output of the request.
        error: What ended the block or the request early.
        receipt: What was served and changed.
        exports: Variables that later invokes of the trace need; from another process, as it wrote them.
        sequences: What became of each sequence of a request that generates several; see `join_sequences`.
        edits: What the edits that ran beside the request brought home, by name in their order.
    """

    named: dict[str, object] = field(default_factory=dict)
    unnamed: dict[str, object] = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)
    result: Any = None
    error: BaseException | None = None
    receipt: Receipt = field(default_factory=Receipt)
    exports: dict[str, object] = field(default_factory=dict)
    sequences: tuple[Outcome, ...] = ()
    edits: dict[str, EditResult] = field(default_factory=dict)

    @property
    def saves(self) -> dict[str, object]:
        """Everything saved, by variable or source text."""
        return {**self.unnamed, **self.named}

    @property
    def all_saves(self) -> dict[str, object]:
        """What the request's own block saved, and of its edits what no other block saved under the same name."""
        own = self.saves
        if not self.edits:
            return own
        of_edits: dict[str, object] = {}
        several = set()
        for each in self.edits.values():
            several |= of_edits.keys() & each.saves.keys()
            of_edits |= each.saves
        for name in several:
            del of_edits[name]
        return {**of_edits, **own}

    @property
    def parts(self) -> tuple[Outcome, ...]:
        """What became of each block that ran: one, or one for each sequence."""
        return self.sequences or (self,)

    @property
    def account(self) -> Any:
        """The receipt, or a list with that of each sequence."""
        return [sequence.receipt for sequence in self.sequences] if self.sequences else self.receipt


def join_sequences(sequences: Sequence[Outcome], result: object) -> Outcome:
    """Join what became of each sequence of one request into the request's own outcome.

    A name that sequences saved holds a list of their values, in the order of the sequences. The receipts and the
    changes of containers stay with the sequences.

    Args:
        sequences: In their order.
        result: The finished output of the request.
    """
    named: dict[str, Any] = {}
    unnamed: dict[str, Any] = {}
    for joined, parts in ((named, [each.named for each in sequences]), (unnamed, [each.unnamed for each in sequences])):
        for part in parts:
            for name, value in part.items():
                joined.setdefault(name, []).append(value)
    edits = {name: _joined([each.edits[name] for each in sequences]) for name in sequences[0].edits}
    # What one of them did not bind is not handed on, so that no list is shorter than its reader expects.
    handed = set.intersection(*(set(each.exports) for each in sequences))
    return Outcome(
        named,
        unnamed,
        result=result,
        error=next((each.error for each in sequences if each.error is not None), None),
        exports={name: [each.exports[name] for each in sequences] for name in sorted(handed)},
        sequences=tuple(sequences),
        edits=edits,
    )


def _joined(results: Sequence[EditResult]) -> EditResult:
    saves: dict[str, Any] = {}
    for result in results:
        for name, value in result.saves.items():
            saves.setdefault(name, []).append(value)
    return replace(results[0], saves=saves, receipt=[result.receipt for result in results])
