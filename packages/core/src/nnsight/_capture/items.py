"""Turning reads of one item of a value, such as `layer.output[0]`, into calls that say which item is meant.

What a block reads is copied for it. A decoder layer of vLLM returns two tensors of which a block often uses one; where
the source shows which, the other need not be copied.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

READ_ITEM = "__nnsight_read_item__"
_SIDES = frozenset({"output", "inputs"})


def rewrite_items(statements: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Rewrite every `X.output[N]` and `X.inputs[N]` that is read, where N is a number, in place where possible.

    Args:
        statements: The statements of a block or of a function.

    Returns:
        The statements to compile.
    """
    rewriter = _ItemRewriter()
    return [rewriter.visit(statement) for statement in statements]


class _ItemRewriter(ast.NodeTransformer):
    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        owner, index = node.value, _number(node.slice)
        if index is None or not isinstance(node.ctx, ast.Load):
            return node
        if not isinstance(owner, ast.Attribute) or owner.attr not in _SIDES:
            return node
        call = ast.Call(
            ast.copy_location(ast.Name(READ_ITEM, ast.Load()), owner),
            [
                owner.value,
                ast.copy_location(ast.Constant(owner.attr), owner),
                ast.copy_location(ast.Constant(index), node.slice),
            ],
            [],
        )
        return ast.copy_location(call, node)


def _number(node: ast.expr) -> int | None:
    """Return a whole number that is written out, or None."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        number = _number(node.operand)
        return None if number is None else -number
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    return None
