"""Turning the saves of a block into calls that know the variables they are bound to."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Sequence

SAVE_METHOD = "__nnsight_save_method__"
SAVE_CALL = "__nnsight_save_call__"
LOCALS = "__nnsight_locals__"

# What a save is bound to: the plain variables, and a text that describes it.
_Target = tuple[tuple[str, ...], str]


def rewrite_saves(statements: Sequence[ast.stmt], own_scope: bool) -> list[ast.stmt]:
    """Rewrite every `.save()`, `nnsight.save(...)` and `save(...)`, in place where possible.

    Args:
        statements: The statements of a block or of a function.
        own_scope: Whether the variables that they bind are those of the block.

    Returns:
        The statements to compile.
    """
    rewriter = _SaveRewriter(own_scope)
    return [rewriter.visit(statement) for statement in statements]


class _SaveRewriter(ast.NodeTransformer):
    def __init__(self, own_scope: bool) -> None:
        self._own_scope = own_scope
        # Filled by the statement around a save, by the identity of the save's node.
        self._targets: dict[int, _Target] = {}

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self._bind(node.targets, node.value)
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is not None:
            self._bind([node.target], node.value)
        return self.generic_visit(node)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.AST:
        if id(node) not in self._targets:
            self._bind([node.target], node.value)
        return self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        saved = _saved_value(node.value)
        if isinstance(saved, ast.Name):
            self._bind([saved], node.value)
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        saved = _saved_value(node)
        if saved is None:
            return self.generic_visit(node)
        # Whatever is not bound to a variable or a place is known by its expression.
        names, label = self._targets.pop(id(node), ((), _label(saved)))
        function = node.func
        self.generic_visit(node)
        method = isinstance(function, ast.Attribute) and not _is_nnsight(function.value)
        first: ast.expr = function.value if method and isinstance(function, ast.Attribute) else node.func
        details: list[ast.expr] = [ast.Constant(cast("Any", names)), ast.Constant(label)]
        helper = ast.Name(SAVE_METHOD if method else SAVE_CALL, ast.Load())
        ast.copy_location(helper, function)
        for detail in details:
            ast.copy_location(detail, function)
        node.func = helper
        node.args = [first, *details, *node.args]
        return node

    def _bind(self, targets: Sequence[ast.expr], value: ast.expr) -> None:
        """Note what the saves in `value` are bound to, if it is a save or shows its saves one by one."""
        if isinstance(value, ast.NamedExpr):
            # `x = (y := value.save())` binds both.
            self._targets[id(value)] = ((), "")
            self._bind([*targets, value.target], value.value)
        elif isinstance(value, ast.IfExp):
            self._bind(targets, value.body)
            self._bind(targets, value.orelse)
        elif _saved_value(value) is not None:
            names = tuple(dict.fromkeys(target.id for target in targets if isinstance(target, ast.Name)))
            label = names[0] if names else _label(targets[0])
            self._targets[id(value)] = (names if self._own_scope else (), label)
        elif isinstance(value, ast.Tuple | ast.List):
            for index, element in enumerate(value.elts):
                parts = [part for target in targets for part in _element(target, value, index)]
                if parts:
                    self._bind(parts, element)

    def _visit_definition(self, node: ast.AST) -> ast.AST:
        # Decorators, defaults and bases belong to the scope around a definition.
        own_scope = self._own_scope
        for name, value in ast.iter_fields(node):
            children = value if isinstance(value, list) else [value]
            self._own_scope = own_scope and name != "body"
            visited = [self.visit(child) if isinstance(child, ast.AST) else child for child in children]
            setattr(node, name, visited if isinstance(value, list) else visited[0])
        self._own_scope = own_scope
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._visit_definition(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._visit_definition(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return self._visit_definition(node)

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return self._visit_definition(node)


def _element(target: ast.expr, value: ast.Tuple | ast.List, index: int) -> list[ast.expr]:
    """The part of a tuple target that takes one element of a tuple value."""
    if not isinstance(target, ast.Tuple | ast.List):
        return []
    if any(isinstance(element, ast.Starred) for element in [*value.elts, *target.elts]):
        return []
    return [target.elts[index]] if len(target.elts) == len(value.elts) else []


def _saved_value(node: ast.expr) -> ast.expr | None:
    """What a call saves, None if the call is no save."""
    if not isinstance(node, ast.Call):
        return None
    function = node.func
    if isinstance(function, ast.Attribute) and function.attr == "save":
        if not _is_nnsight(function.value):
            return function.value
    elif not isinstance(function, ast.Name) or function.id != "save":
        return None
    return node.args[0] if node.args else function


def _is_nnsight(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "nnsight"


def _label(node: ast.expr) -> str:
    return ast.unparse(node)
