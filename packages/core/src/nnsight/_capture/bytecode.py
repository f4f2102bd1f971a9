"""Reading code objects: instructions with their positions, handlers, and a comparison of two compilations."""

from __future__ import annotations

import dis
import re
import sys
from types import CodeType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import ast
    from collections.abc import Iterable, Sequence


class Span(NamedTuple):
    """A range of source text. Columns are UTF-8 byte offsets, and None where the code keeps no columns."""

    line: int | None
    end_line: int | None
    column: int | None
    end_column: int | None

    @classmethod
    def of(cls, node: ast.stmt | ast.expr) -> Span:
        """The span of a syntax tree node."""
        return cls(node.lineno, node.end_lineno, node.col_offset, node.end_col_offset)

    @property
    def exact(self) -> bool:
        """Whether lines and columns are all known."""
        return None not in self

    def inside(self, other: Span) -> bool:
        """Whether this span lies within `other`, by lines only where this one has no columns."""
        if self.line is None or other.line is None or other.end_line is None:
            return False
        end_line = self.line if self.end_line is None else self.end_line
        if not self.exact or not other.exact:
            return other.line <= self.line and end_line <= other.end_line
        start, end = (self.line, self.column or 0), (end_line, self.end_column or 0)
        return (other.line, other.column or 0) <= start and end <= (other.end_line, other.end_column or 0)


class Instruction(NamedTuple):
    """One instruction without its caches.

    `start` is the offset of its first `EXTENDED_ARG`, and equals `offset` if it has none.
    """

    start: int
    offset: int
    opcode: int
    name: str
    argument: int
    span: Span


class Handler(NamedTuple):
    """One entry of an exception table: the instructions from `start` up to `end` are guarded by `target`."""

    start: int
    end: int
    target: int


_EXTENDED_ARG = dis.opmap["EXTENDED_ARG"]
_CACHE = dis.opmap.get("CACHE", 0)
_CONSTANTS = frozenset(dis.hasconst)
_NAMES = frozenset(dis.hasname)
_VARIABLES = frozenset(dis.haslocal) | frozenset(dis.hasfree)
_JUMPS = frozenset(dis.hasjrel) | frozenset(dis.hasjabs)
# The bits below the index of the name. They say how the value is pushed.
_NAME_SHIFTS = {"LOAD_GLOBAL": 1, "LOAD_ATTR": 1 if sys.version_info >= (3, 12) else 0, "LOAD_SUPER_ATTR": 2}
# How the compiler lays out blocks decides about these, so they may differ between equal texts.
_LAYOUT = frozenset({"NOP", "NOT_TAKEN", "RESUME", "JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"})
# A block cannot return, so these were copied to its end from the code that follows it.
_RETURNS = frozenset({"RETURN_CONST", "RETURN_VALUE"})


def instructions(code: CodeType) -> list[Instruction]:
    """List the instructions of a code object as it was compiled, without the interpreter's specializations."""
    result: list[Instruction] = []
    data = code.co_code
    extended, start = 0, -1
    for offset, position in zip(range(0, len(data), 2), code.co_positions(), strict=False):
        opcode = data[offset]
        if opcode == _CACHE:
            continue
        argument = data[offset + 1] | extended
        if start < 0:
            start = offset
        if opcode == _EXTENDED_ARG:
            extended = argument << 8
            continue
        result.append(Instruction(start, offset, opcode, dis.opname[opcode], argument, Span(*position)))
        extended, start = 0, -1
    return result


def handlers(code: CodeType) -> list[Handler]:
    """Decode the exception table of a code object."""
    data = iter(code.co_exceptiontable)

    def number() -> int:
        byte = next(data)
        value = byte & 63
        while byte & 64:
            byte = next(data)
            value = value << 6 | byte & 63
        return value

    result: list[Handler] = []
    while True:
        try:
            start, length, target, _ = number() * 2, number() * 2, number() * 2, number()
        except StopIteration:
            return result
        result.append(Handler(start, start + length, target))


def handler_of(table: Sequence[Handler], offset: int) -> int | None:
    """The offset that an exception raised at `offset` continues at, or None."""
    return next((entry.target for entry in table if entry.start <= offset < entry.end), None)


def same_code(code: CodeType, reference: CodeType, within: Span | None, ignored: Sequence[Span]) -> bool:
    """Whether two code objects were compiled from the same text.

    Args:
        code: The running code.
        reference: The code that the text found compiles to.
        within: Compare only the instructions of this part of the text; None for all of it.
        ignored: Parts of the text that a tool may have rewritten: pytest replaces `assert` statements.

    Returns:
        Whether they agree in every instruction, argument and position that was compared.
    """
    columns = _has_columns(code) and _has_columns(reference)
    return _content(code, within, ignored, columns) == _content(reference, within, ignored, columns)


def nested_codes(code: CodeType) -> Iterable[CodeType]:
    """Yield a code object and all code objects inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from nested_codes(constant)


def variable_names(code: CodeType) -> list[str]:
    """The names of the slots that instructions on variables index."""
    names = list(code.co_varnames)
    names += [name for name in code.co_cellvars if name not in code.co_varnames]
    return names + list(code.co_freevars)


def _has_columns(code: CodeType) -> bool:
    return any(position[2] is not None for position in code.co_positions())


def _content(code: CodeType, within: Span | None, ignored: Sequence[Span], columns: bool) -> object:
    variables = variable_names(code)
    found: list[tuple[object, ...]] = []
    listing = instructions(code)
    for index, instruction in enumerate(listing):
        span, name = instruction.span, instruction.name
        if name in _LAYOUT:
            continue
        if within is not None and (not span.inside(within) or _returns(listing, index, code)):
            continue
        if any(span.inside(part) for part in ignored):
            continue
        if "_FAST" in name:
            # Python 3.13 puts two of these into one, but not if a rewritten `assert` has added too many variables.
            parts = re.findall("(?:LOAD|STORE|DELETE)_FAST", name)
            packed = [instruction.argument >> 4, instruction.argument & 15]
            places = packed if len(parts) == 2 else [instruction.argument]
            found += [(span.line, part, variables[place]) for part, place in zip(parts, places, strict=True)]
            continue
        name = name.replace("JUMP_FORWARD_IF", "JUMP_IF").replace("JUMP_BACKWARD_IF", "JUMP_IF")
        key = _argument(code, instruction, variables, ignored, columns)
        found.append((span.line, name, key, span if columns else None))
    content: object = tuple(found)
    if ignored:
        # The rewritten statements may move blocks around, so the order is compared within lines only.
        lines: dict[object, list[object]] = {}
        for entry in found:
            lines.setdefault(entry[0], []).append(entry)
        content = frozenset((line, tuple(entries)) for line, entries in lines.items())
    if within is not None:
        return content
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return code.co_name, counts, arguments, code.co_freevars, content


def _returns(listing: Sequence[Instruction], index: int, code: CodeType) -> bool:
    if listing[index].name in _RETURNS:
        return True
    following = listing[index + 1].name if index + 1 < len(listing) else ""
    if following != "RETURN_VALUE" or listing[index].opcode not in _CONSTANTS:
        return False
    return code.co_consts[listing[index].argument] is None


def _argument(
    code: CodeType, instruction: Instruction, variables: Sequence[str], ignored: Sequence[Span], columns: bool
) -> object:
    opcode, argument, name = instruction.opcode, instruction.argument, instruction.name
    if opcode in _JUMPS:
        return None
    if opcode in _CONSTANTS:
        return _constant(code.co_consts[argument], ignored, columns)
    if opcode in _NAMES:
        shift = _NAME_SHIFTS.get(name, 0)
        return code.co_names[argument >> shift], argument & ((1 << shift) - 1)
    if opcode in _VARIABLES:
        return variables[argument]
    return argument


def _constant(value: object, ignored: Sequence[Span], columns: bool) -> object:
    if isinstance(value, CodeType):
        return _content(value, None, ignored, columns)
    if isinstance(value, tuple):
        return tuple(_constant(item, ignored, columns) for item in value)
    if isinstance(value, frozenset):
        return frozenset(_constant(item, ignored, columns) for item in value)
    # Equal constants of different types (1, True, 1.0) and both zeros must stay apart.
    return type(value).__name__, repr(value)
