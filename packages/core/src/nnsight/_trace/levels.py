"""Values that invokes of one trace hand to later ones, and the order that follows from it.

Between an invoke and the end of its trace, a variable that it binds holds a `Pending`. An invoke that finds one in a
variable that it reads needs the value: it runs when the invoke that binds it is over, and the others run together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import FrameType

from nnsight._capture import visible_values, write_back
from nnsight._capture.variables import MISSING
from nnsight._program import Pending
from nnsight._trace.request import Outcome, Request
from nnsight.errors import HandoverError


def leave_pending(
    frame: FrameType, request: Request, *, trace: object, invoke: int, saved: Callable[[object], bool]
) -> None:
    """Let the variables that an invoke binds stand for its values in the code around it.

    Args:
        frame: Where the invoke stands.
        request: The invoke.
        trace: What the invokes of its trace share.
        invoke: Its number.
        saved: Tells whether a container was saved outside the blocks: it keeps its name.
    """
    before = visible_values(frame, request.program.bound)
    pending: dict[str, object] = {}
    for name in request.program.bound:
        displaced = before.get(name, MISSING)
        if not saved(displaced):
            outer = displaced.displaced if isinstance(displaced, Pending) else displaced
            pending[name] = Pending(trace, invoke, name, outer)
    write_back(frame, pending)


def without_pending(variables: dict[str, object]) -> dict[str, object]:
    """Return what the variables of a trace's own code hold, without the values of its invokes."""
    own = {name: value.displaced if isinstance(value, Pending) else value for name, value in variables.items()}
    return {name: value for name, value in own.items() if value is not MISSING}


def ask_for_exports(requests: Sequence[Request]) -> list[Request]:
    """Tell the program of each invoke which of its variables later invokes need."""
    wanted: list[set[str]] = [set() for _ in requests]
    for request in requests:
        for pending in request.program.pending.values():
            wanted[pending.invoke].add(pending.name)
    return [
        replace(request, program=request.program.exporting(names)) if names else request
        for request, names in zip(requests, wanted, strict=True)
    ]


def hand_over(request: Request, outcomes: Sequence[Outcome | None]) -> Request:
    """Give a request the values that it needs of others, which are over.

    Raises:
        HandoverError: One of them failed, or did not bind the variable.
    """
    values = dict(request.program.values)
    for name, pending in request.program.pending.items():
        outcome = outcomes[pending.invoke]
        assert outcome is not None
        if outcome.error is not None:
            raise HandoverError(
                f"the invoke needs `{pending.name}` of invoke {pending.invoke}, which failed, so it did not run: "
                f"{type(outcome.error).__name__}: {outcome.error}"
            )
        if pending.name not in outcome.exports:
            raise HandoverError(
                f"the invoke needs `{pending.name}` of invoke {pending.invoke}, which ended without binding it, so it "
                f"did not run; bind `{pending.name}` wherever that invoke may end, or before it"
            )
        values[name] = outcome.exports[pending.name]
    return replace(request, program=replace(request.program, values=values))


def run_in_levels(requests: Sequence[Request], execute: Callable[[Sequence[Request]], list[Outcome]]) -> list[Outcome]:
    """Run requests, those that need values of others after these, and all that can at once.

    Args:
        requests: The requests of a trace.
        execute: Runs some of them and returns what became of each.
    """
    outcomes: list[Outcome | None] = [None] * len(requests)
    for level in _levels(requests):
        ready: dict[int, Request] = {}
        for number in level:
            try:
                ready[number] = (
                    hand_over(requests[number], outcomes) if requests[number].program.pending else requests[number]
                )
            except HandoverError as error:
                outcomes[number] = Outcome(error=error)
        if ready:
            for number, outcome in zip(ready, execute(list(ready.values())), strict=True):
                outcomes[number] = outcome
    return [outcome for outcome in outcomes if outcome is not None]


def _levels(requests: Sequence[Request]) -> list[list[int]]:
    depths: list[int] = []
    levels: list[list[int]] = []
    for number, request in enumerate(requests):
        needed = [depths[pending.invoke] for pending in request.program.pending.values()]
        depth = 1 + max(needed, default=-1)
        depths.append(depth)
        if depth == len(levels):
            levels.append([])
        levels[depth].append(number)
    return levels
