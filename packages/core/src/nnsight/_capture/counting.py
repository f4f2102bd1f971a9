"""Counting the iterations of loops and the calls of functions in code that is compiled anew.

Clocks differ from rank to rank and counts do not, so that a block of an engine of several ranks ends at the same place
in each. What counts is C code all the way, until a budget is spent: a `for` and a comprehension take their items
through `itertools.compress`, of which the second argument is an iterator that yields True and counts; a `while` and a
function take one value of it with `next`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from typing import Final

COUNTS: Final = "__nnsight_counts__"
COUNTED: Final = "__nnsight_counted__"
COUNT: Final = "__nnsight_count__"


def counting_helpers(counts: Iterator[bool]) -> Mapping[str, object]:
    """Return what code that counts refers to, by name.

    Args:
        counts: Yields True for each iteration and call, and raises when there have been too many.
    """
    return {COUNTS: counts, COUNTED: compress, COUNT: next}


def rewrite_loops(statements: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Make loops, comprehensions and functions count, in place where possible.

    Args:
        statements: The statements of a block or of a function.

    Returns:
        The statements to compile.
    """
    rewriter = _LoopRewriter()
    return [rewriter.visit(statement) for statement in statements]


class _LoopRewriter(ast.NodeTransformer):
    def visit_For(self, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        node.iter = _counted(node.iter)
        return node

    def visit_AsyncFor(self, node: ast.AsyncFor) -> ast.AST:
        self.generic_visit(node)
        node.body.insert(0, ast.copy_location(ast.Expr(_count(node.iter)), node.iter))
        return node

    def visit_While(self, node: ast.While) -> ast.AST:
        self.generic_visit(node)
        node.test = _counting_first(node.test)
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        self.generic_visit(node)
        if node.is_async:
            node.ifs.insert(0, _count(node.iter))
        else:
            node.iter = _counted(node.iter)
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        self.generic_visit(node)
        node.body = _counting_first(node.body)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._visit_function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._visit_function(node)

    def _visit_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        documented = ast.get_docstring(node, clean=False) is not None
        self.generic_visit(node)
        # At the place of the definition, whose line a traceback shows.
        count = _count(node)
        node.body.insert(1 if documented else 0, ast.copy_location(ast.Expr(count), count))
        return node


def _counted(iterable: ast.expr) -> ast.expr:
    call = ast.Call(_name(COUNTED, iterable), [iterable, _name(COUNTS, iterable)], [])
    return ast.copy_location(call, iterable)


def _counting_first(expression: ast.expr) -> ast.expr:
    return ast.copy_location(ast.BoolOp(ast.And(), [_count(expression), expression]), expression)


def _count(place: ast.expr | ast.stmt) -> ast.expr:
    call = ast.Call(_name(COUNT, place), [_name(COUNTS, place)], [])
    call.lineno = call.end_lineno = place.lineno
    call.col_offset = call.end_col_offset = place.col_offset
    return call


def _name(name: str, place: ast.expr | ast.stmt) -> ast.Name:
    node = ast.Name(name, ast.Load())
    node.lineno = node.end_lineno = place.lineno
    node.col_offset = node.end_col_offset = place.col_offset
    return node
