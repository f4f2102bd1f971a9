"""The names that a block reads before it binds them itself, in the order of its text."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from nnsight._capture.names import block_names


def names_read_first(statements: Sequence[ast.stmt]) -> frozenset[str]:
    """List the names that a block reads, somewhere, before the first place that binds them.

    A loop counts as run and a branch as taken: what stands above in the text is bound.

    Args:
        statements: The body of the block, as `parse_block` gives it.
    """
    reader = _Reader()
    reader.visit_all(statements)
    return frozenset(reader.first)


class _Reader:
    def __init__(self) -> None:
        self.first: set[str] = set()
        self._bound: set[str] = set()

    def visit_all(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            self._visit(statement)

    def _visit(self, statement: ast.stmt) -> None:
        match statement:
            case ast.If() | ast.While():
                self._evaluate(statement.test)
                self.visit_all([*statement.body, *statement.orelse])
            case ast.For() | ast.AsyncFor():
                self._evaluate(statement.iter)
                self._evaluate(statement.target)
                self.visit_all([*statement.body, *statement.orelse])
            case ast.With() | ast.AsyncWith():
                for item in statement.items:
                    self._evaluate(item.context_expr)
                    if item.optional_vars is not None:
                        self._evaluate(item.optional_vars)
                self.visit_all(statement.body)
            case ast.Try() | ast.TryStar():
                self.visit_all(statement.body)
                for handler in statement.handlers:
                    if handler.type is not None:
                        self._evaluate(handler.type)
                    if handler.name is not None:
                        self._bound.add(handler.name)
                    self.visit_all(handler.body)
                self.visit_all([*statement.orelse, *statement.finalbody])
            case ast.Match():
                self._evaluate(statement.subject)
                for case in statement.cases:
                    only = ast.match_case(pattern=case.pattern, body=[ast.Pass()])
                    self._note(ast.Match(subject=ast.Constant(value=None), cases=[only]))
                    if case.guard is not None:
                        self._evaluate(case.guard)
                    self.visit_all(case.body)
            case _:
                self._note(statement)

    def _evaluate(self, expression: ast.expr) -> None:
        self._note(ast.Expr(value=expression))

    def _note(self, statement: ast.stmt) -> None:
        names = block_names([statement])
        self.first |= names.loaded - self._bound
        self._bound |= names.bound
