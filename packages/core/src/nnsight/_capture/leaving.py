"""Where the code of a `with` statement can be left before its body runs."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, NamedTuple

from nnsight._capture.bytecode import Handler, Instruction, Span, handler_of, handlers, variable_names
from nnsight.errors import CaptureError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType


class Exit(NamedTuple):
    """The offsets of the instructions at which an exception leaves a body before it has done anything.

    Attributes:
        points: Where to raise. There are several if the body starts with a `try` statement: its handlers have to be
            left again as soon as they are entered. Empty if the body has no instructions.
        repeated: Whether it has to be raised at all of them, because the body starts with a `try` statement.
        early: For a body that starts with a `try` statement, where to raise if that can be done only once: at the
            instruction that binds the `as` target, None if there is more than one.
        early_name: The variable that this instruction would have bound, None if it binds none.
    """

    points: frozenset[int]
    repeated: bool = False
    early: int | None = None
    early_name: str | None = None


def find_exit(code: CodeType, listing: Sequence[Instruction], index: int, node: ast.With, item: int) -> Exit:
    """Find out where the body of a block can be left.

    Args:
        code: The code that enters the block.
        listing: Its instructions.
        index: The index of the instruction that enters the block.
        node: The `with` statement of the block.
        item: The index of the item that is entered.

    Returns:
        The offsets.

    Raises:
        CaptureError: The code has an unknown shape, or lacks the columns that tell the body from the header.
    """
    place = f"{code.co_filename}:{node.lineno}"
    target = node.items[item].optional_vars
    table = handlers(code)
    binding = listing[index + 1]
    handler = handler_of(table, binding.start)
    # Without `as` one instruction drops the value, and one stores it in a plain name. In Python 3.13 the latter may
    # load the first variable of the body as well, which has no effect.
    simple = target is None or isinstance(target, ast.Name)
    after = index + 2 if simple else index + 1
    following = [later.context_expr for later in node.items[item + 1 :]] or node.body
    if not simple and not binding.span.exact and following[0].lineno <= (_span(target).end_line or 0):
        raise CaptureError(
            f"the body of the block at {place} cannot be told apart from what it binds after `as`, because Python "
            "keeps no columns here (no_debug_ranges); put the body on a line of its own"
        )
    while not simple and after < len(listing) and listing[after].span.inside(_span(target)):
        after += 1
    # Exceptions are not handled in a NOP.
    while after < len(listing) and listing[after].name == "NOP":
        after += 1
    if handler is None or after >= len(listing):
        raise _unknown(place)
    first = listing[after]
    if handler_of(table, first.start) == handler:
        return Exit(_offsets(first))
    if first.span == listing[index].span:
        # The next instruction already calls `__exit__`.
        return Exit(frozenset())
    points = _offsets(first) | _points_in_handlers(table, listing, first, handler, place)
    if not simple:
        return Exit(points, True)
    name = _stored_name(code, binding) if target is not None else None
    return Exit(points, True, binding.offset, name)


def _span(target: ast.expr | None) -> Span:
    return Span(None, None, None, None) if target is None else Span.of(target)


def _offsets(instruction: Instruction) -> frozenset[int]:
    # Events come at the prefixes of an instruction or at the instruction itself.
    return frozenset(range(instruction.start, instruction.offset + 2, 2))


def _points_in_handlers(
    table: Sequence[Handler], listing: Sequence[Instruction], first: Instruction, handler: int, place: str
) -> frozenset[int]:
    """The first instructions of the handlers that an exception at `first` passes on its way to `handler`."""
    by_start = {each.start: number for number, each in enumerate(listing)}
    points: frozenset[int] = frozenset()
    current = handler_of(table, first.start)
    while current != handler:
        number = by_start.get(-1 if current is None else current)
        # A handler first saves the exception that was being handled before. If it fails after that, a cleanup
        # restores that exception and raises again.
        if number is None or listing[number].name != "PUSH_EXC_INFO":
            raise _unknown(place)
        point = listing[number + 1]
        cleanup = by_start.get(handler_of(table, point.start) or -1)
        if cleanup is None or [each.name for each in listing[cleanup : cleanup + 3]] != _CLEANUP:
            raise _unknown(place)
        points |= _offsets(point)
        current = handler_of(table, listing[cleanup + 2].start)
    return points


_CLEANUP = ["COPY", "POP_EXCEPT", "RERAISE"]


def _stored_name(code: CodeType, instruction: Instruction) -> str:
    if instruction.name in ("STORE_NAME", "STORE_GLOBAL"):
        return code.co_names[instruction.argument]
    names = variable_names(code)
    packed = instruction.name.count("_FAST") == 2
    return names[instruction.argument >> 4 if packed else instruction.argument]


def _unknown(place: str) -> CaptureError:
    return CaptureError(f"the body of the block at {place} cannot be skipped: its code has an unknown shape")
