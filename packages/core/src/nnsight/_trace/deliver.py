"""Bring what the blocks saved into the caller's variables, and raise what went wrong."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from nnsight._capture import write_back
from nnsight._program.containers import apply, conflicts
from nnsight._program.failures import acts_on_its_process
from nnsight.errors import ConflictingChangesWarning, LoopEndedEarlyWarning, NNsightWarning, RequestFailedError

if TYPE_CHECKING:
    from nnsight._program import SaveBook
    from nnsight._trace.request import Outcome, Request


@dataclass(frozen=True)
class Place:
    """Where a trace stands, for the warnings about it.

    Attributes:
        filename: Its file.
        line: The line of its `with` statement.
        module: The name of its module.
    """

    filename: str
    line: int
    module: str

    @classmethod
    def of(cls, frame: FrameType) -> Place:
        """Note the statement that a frame is at."""
        return cls(frame.f_code.co_filename, frame.f_lineno, frame.f_globals.get("__name__", "<unknown>"))


def deliver(
    frame: FrameType | None,
    bound: dict[str, object],
    requests: Sequence[Request],
    outcomes: Sequence[Outcome],
    *,
    book: SaveBook,
    place: Place | None,
) -> dict[str, object]:
    """Write saves to the caller's variables, and warn.

    Args:
        frame: Whose variables take the saves; None where they stay on the tracer.
        bound: Variables that the body of a trace with invokes bound by itself.
        requests: The requests of the trace.
        outcomes: What became of each.
        book: Saves of the body of a trace with invokes.
        place: Where the trace stands; None for a function form, which warns nobody.

    Returns:
        Everything saved, by variable or source text.
    """
    named = _gather([outcome.named for outcome in outcomes])
    unnamed = _gather([outcome.unnamed for outcome in outcomes])
    conflicting = _change_containers(requests, outcomes)
    own, _ = book.collect(bound)
    saves = {**unnamed, **own, **named}
    if frame is not None:
        binding = [outcome.named for request, outcome in zip(requests, outcomes, strict=True) if request.binds]
        write_back(frame, {**bound, **_gather(binding)})
    if place is not None:
        parts = [part for outcome in outcomes for part in outcome.parts]
        early = dict.fromkeys(text for part in parts for text in part.receipt.early_loops)
        _warn(place, early, LoopEndedEarlyWarning)
        _warn(place, conflicting, ConflictingChangesWarning)
    return saves


def _gather(parts: Sequence[dict[str, object]]) -> dict[str, object]:
    """Join saves of several invokes: a name saved once keeps its value, one saved more often becomes a list."""
    found: dict[str, list[object]] = {}
    for part in parts:
        for name, value in part.items():
            found.setdefault(name, []).append(value)
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}


def _change_containers(requests: Sequence[Request], outcomes: Sequence[Outcome]) -> list[str]:
    """Change the containers that were saved outside the blocks, and say what several blocks assigned."""
    changes: dict[int, tuple[str, Any, list[list[Any]]]] = {}
    for request, outcome in zip(requests, outcomes, strict=True):
        for part in outcome.parts:
            for name, change in part.changes.items():
                container = request.program.values[name]
                changes.setdefault(id(container), (name, container, []))[2].append(change)
    several = any(outcome.sequences for outcome in outcomes)
    who, each = ("blocks", "invoke and each sequence") if several else ("invokes", "invoke")
    messages = []
    for name, container, of_blocks in changes.values():
        for place, count in conflicts(name, container, of_blocks).items():
            messages.append(
                f"{count} {who} assigned {place}, and only the last assignment is left: each {each} is given its own "
                "copy of what it uses; give each a place of its own, or append, and join the values after the trace"
            )
        for change in of_blocks:
            _change(container, change)
    return messages


def _change(container: Any, change: list[Any]) -> None:
    """Change a container where it is, since others hold it too."""
    changed = apply(container, change)
    if changed is not container and type(changed) is type(container):
        container.clear()
        container.update(changed)


def _warn(place: Place, messages: Iterable[str], category: type[NNsightWarning]) -> None:
    for text in messages:
        warnings.warn_explicit(text, category, filename=place.filename, lineno=place.line, module=place.module)


def raise_first(outcomes: Sequence[Outcome], saves: dict[str, object], kind: str = "invoke") -> None:
    """Raise the error of the first request that failed, with all that was saved and notes on the others.

    Args:
        outcomes: What became of each request.
        saves: Everything saved.
        kind: What a request is called.
    """
    blocks = _labelled(outcomes, kind)
    failed = [(label, outcome) for label, outcome in blocks if outcome.error is not None]
    if not failed:
        return
    label, outcome = failed[0]
    error = outcome.error
    assert error is not None
    if acts_on_its_process(type(error)) and not isinstance(error, KeyboardInterrupt):
        ended = RequestFailedError(f"the block raised {type(error).__name__}: {error}")
        error = ended.with_traceback(error.__traceback__)
    error.saves = saves  # type: ignore[attr-defined]
    if len(blocks) > 1:
        error.add_note(
            f"raised in {label}; of the {len(blocks)} blocks, {len(blocks) - len(failed)} ran well and were delivered"
        )
    for other, later in failed[1:]:
        error.add_note(f"{other} failed too: {type(later.error).__name__}: {later.error}")
    raise error


def _labelled(outcomes: Sequence[Outcome], kind: str) -> list[tuple[str, Outcome]]:
    """List every block that ran, with the words that tell it from the others."""
    found = []
    for index, outcome in enumerate(outcomes):
        invoke = f"{kind} {index}" if len(outcomes) > 1 else ""
        for number, part in enumerate(outcome.parts):
            words = [f"sequence {number}"] if outcome.sequences else []
            found.append((" of ".join([*words, invoke] if invoke else words), part))
    return found


class without_skip:  # noqa: N801 - reads as a statement
    """Keep the signal that skipped a block out of the context of errors raised while it is handled."""

    def __init__(self, skip: BaseException | None) -> None:
        """Hide `skip`."""
        self._skip = skip

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Unlink the signal from the chain of contexts."""
        seen: set[int] = set()
        link: Any = error
        while link is not None and id(link) not in seen:
            seen.add(id(link))
            if link.__context__ is self._skip:
                link.__context__ = None
            link = link.__cause__ or link.__context__
