"""The statements and functions of a source text, each with the scope it stands in."""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from nnsight._capture.source import BlockSource, FunctionSource, parse_function, parse_quietly, parse_statement

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import CodeType

Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda


class Located(NamedTuple):
    """A node with its surroundings.

    Attributes:
        node: A `with` statement or a function.
        scope: The function or class directly around it, None at the top level.
        class_name: The innermost class around it, or an empty string.
        top: The outermost node that contains it.
    """

    node: ast.With | ast.AsyncWith | Scope
    scope: Scope | None
    class_name: str
    top: ast.stmt | ast.expr


@dataclass(frozen=True, eq=False)
class Outline:
    """What was found in one text, in source order.

    Attributes:
        body: The statements at the top level.
        blocks: The `with` statements.
        functions: The functions and classes.
        asserts: The `assert` statements.
        compiled: The code of the whole text, by compiler flags, where it has been compiled.
    """

    body: Sequence[ast.stmt]
    blocks: Sequence[Located]
    functions: Sequence[Located]
    asserts: Sequence[ast.Assert]
    compiled: dict[int, tuple[CodeType, ...]] = field(default_factory=dict)


def first_line(node: Scope) -> int:
    """The line that the code object of a scope starts at, which is that of its first decorator."""
    decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


# A script with many blocks is parsed once for all of them. Trees of big files are big, so only a few are kept.
@functools.lru_cache(maxsize=4)
def outline(text: str) -> Outline | None:
    """Parse a text and list its `with` statements and functions, None if it is not Python."""
    try:
        body = parse_quietly(text).body
        return _outline(body, "", body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def source_outline(source: BlockSource | FunctionSource) -> Outline:
    """List the `with` statements and functions of a captured block or function, itself included."""
    node = parse_statement(source) if isinstance(source, BlockSource) else parse_function(source)
    return _outline([node], source.class_name, [])


def _outline(roots: Iterable[ast.stmt | ast.expr], class_name: str, body: Sequence[ast.stmt]) -> Outline:
    blocks: list[Located] = []
    functions: list[Located] = []
    asserts: list[ast.Assert] = []
    for top in roots:
        pending: list[tuple[ast.AST, Scope | None, str]] = [(top, None, class_name)]
        while pending:
            node, scope, owner = pending.pop()
            if isinstance(node, ast.Assert):
                asserts.append(node)
            elif isinstance(node, ast.With | ast.AsyncWith):
                blocks.append(Located(node, scope, owner, top))
            elif isinstance(node, Scope):
                functions.append(Located(node, scope, owner, top))
                scope, owner = node, node.name if isinstance(node, ast.ClassDef) else owner
            pending += [(child, scope, owner) for child in reversed(list(ast.iter_child_nodes(node)))]
    return Outline(body, blocks, functions, asserts)
