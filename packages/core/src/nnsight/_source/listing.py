"""A function's text with the names of its ops beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nnsight._capture import FunctionSource
    from nnsight._source.naming import Op

_CONTEXT_LINES = 3


def list_ops(source: FunctionSource, ops: Sequence[Op]) -> str:
    """Print a function's text, numbered as in its file, with its ops beside the lines that they stand on."""
    return "\n".join(_rows(source, ops))


def show_op(source: FunctionSource, op: Op) -> str:
    """Print the lines around one op, with a mark at its own."""
    rows = _rows(source, [op])
    index = op.line - source.first_line
    start = max(0, index - _CONTEXT_LINES)
    return "\n".join(rows[start : index + _CONTEXT_LINES + 1])


def _rows(source: FunctionSource, ops: Sequence[Op]) -> list[str]:
    lines = source.text.removesuffix("\n").split("\n")
    digits = len(str(source.first_line + len(lines) - 1))
    label = max((len(op.name) for op in ops), default=0)
    indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    rows = []
    for number, line in enumerate(lines, source.first_line):
        names = [op.name for op in ops if op.line == number]
        first = f"{names[0]:<{label}} ->" if names else " " * (label + 3)
        rows.append(f"{first} {number:>{digits}}  {line[indent:]}".rstrip())
        rows.extend(f"{name:<{label}} ->" for name in names[1:])
    return rows
