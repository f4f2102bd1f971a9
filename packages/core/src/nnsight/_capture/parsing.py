"""From the text of a block to the statements of its body."""

from __future__ import annotations

import ast
import functools
from typing import TYPE_CHECKING, Any, NoReturn

from nnsight._capture.mangling import mangle_names
from nnsight._capture.names import Body
from nnsight._capture.source import BlockSource, parse_statement
from nnsight.errors import BlockEscapeError

if TYPE_CHECKING:
    from collections.abc import Sequence

_Loop = (ast.For, ast.While)
_Comprehension = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def parse_block(source: BlockSource) -> list[ast.stmt]:
    """Parse the body of a block.

    Blocks of equal source share their nodes, so they must not be changed. Private names (`__name`) inside a class
    are already replaced by the names that Python stores them under.

    Args:
        source: The source of the block.

    Returns:
        The statements of the body with the line numbers of the file. The `with` items after the entered one become
        a `with` statement around the body.

    Raises:
        BlockEscapeError: A statement of the body would leave the block, or needs the code around it.
        CaptureError: The text is not a `with` statement.
    """
    return _shared_body(source)


@functools.lru_cache(maxsize=512)
def _shared_body(source: BlockSource) -> Body:
    return Body(parse_body(source))


def parse_body(source: BlockSource) -> list[ast.stmt]:
    """Parse the body of a block to nodes that the caller may change. See `parse_block`."""
    statement = parse_statement(source)
    body = statement.body
    rest = statement.items[source.item + 1 :]
    if rest:
        # `with A, B: body` means `with A: with B: body`.
        inner = ast.copy_location(ast.With(items=rest, body=body), statement)
        inner.lineno, inner.col_offset = rest[0].context_expr.lineno, rest[0].context_expr.col_offset
        body = [inner]
    _EscapeCheck(source).check(body)
    if source.class_name:
        mangle_names(body, source.class_name)
    return body


class _EscapeCheck(ast.NodeVisitor):
    """Refuses what crosses the edge of a block. Nested functions and classes are scopes of their own."""

    def __init__(self, source: BlockSource) -> None:
        self._source = source
        self._loops = 0

    def check(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            self.visit(statement)

    def _refuse(self, node: ast.stmt | ast.expr, what: str, hint: str) -> NoReturn:
        source = self._source
        lines = source.text.split("\n")
        index = node.lineno - source.first_line
        text = lines[index] if 0 <= index < len(lines) else ""
        raise BlockEscapeError(
            f"{what} in a block, because it runs elsewhere; {hint}",
            (source.filename, node.lineno, node.col_offset + 1, text, node.end_lineno, (node.end_col_offset or 0) + 1),
        )

    def visit_Return(self, node: ast.Return) -> None:
        self._refuse(node, "`return` is not possible", "save the value and return it after the block")

    def visit_Yield(self, node: ast.Yield) -> None:
        self._refuse(node, "`yield` is not possible", "save the value and yield it after the block")

    def visit_YieldFrom(self, node: ast.YieldFrom) -> None:
        self._refuse(node, "`yield from` is not possible", "save the values and yield them after the block")

    def visit_Await(self, node: ast.Await) -> None:
        self._refuse(node, "`await` is not possible", "await before or after the block")

    def visit_AsyncFor(self, node: ast.AsyncFor) -> None:
        self._refuse(node, "`async for` is not possible", "loop before or after the block")

    def visit_AsyncWith(self, node: ast.AsyncWith) -> None:
        self._refuse(node, "`async with` is not possible", "enter it around the block")

    def visit_Global(self, node: ast.Global) -> None:
        self._refuse(node, "`global` is not possible", "save the value and assign the variable after the block")

    def visit_Nonlocal(self, node: ast.Nonlocal) -> None:
        self._refuse(node, "`nonlocal` is not possible", "save the value and assign the variable after the block")

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if any(name.name == "*" for name in node.names):
            self._refuse(node, "`import *` is not possible", "import the names that it uses")

    def visit_Break(self, node: ast.Break) -> None:
        if not self._loops:
            self._refuse(node, "`break` of a loop around it is not possible", "break after the block")

    def visit_Continue(self, node: ast.Continue) -> None:
        if not self._loops:
            self._refuse(node, "`continue` of a loop around it is not possible", "continue after the block")

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args and not node.keywords:
            self._refuse(node, "`super()` without arguments is not possible", "write super(Class, self)")
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        if node.is_async:
            self._refuse(node.iter, "`async for` is not possible", "loop before or after the block")
        self.generic_visit(node)

    def visit_For(self, node: ast.For) -> None:
        self._visit_loop(node, [node.target, node.iter])

    def visit_While(self, node: ast.While) -> None:
        self._visit_loop(node, [node.test])

    def _visit_loop(self, node: ast.For | ast.While, header: Sequence[ast.expr]) -> None:
        for expression in header:
            self.visit(expression)
        self._loops += 1
        self.check(node.body)
        self._loops -= 1
        # A `break` in the `else` of a loop belongs to the loop outside.
        self.check(node.orelse)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._visit_all([*node.decorator_list, node.args, node.returns])

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.visit(node.args)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._visit_all([*node.decorator_list, *node.bases, *node.keywords])

    def _visit_all(self, nodes: Sequence[Any]) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)
