"""Private names of classes: inside `class C`, Python stores `__name` as `_C__name`."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def mangle(name: str, class_name: str) -> str:
    """The name that Python stores `name` under inside a class."""
    stripped = class_name.lstrip("_")
    if not stripped or not name.startswith("__") or name.endswith("__") or "." in name:
        return name
    return f"_{stripped}{name}"


def mangle_names(nodes: Sequence[ast.AST], class_name: str) -> None:
    """Replace the private names of a class in place, so that the nodes can be compiled outside of it.

    The bodies of nested classes are left alone: the compiler replaces their private names by itself.
    """
    visitor = _Mangler(class_name)
    for node in nodes:
        visitor.visit(node)


class _Mangler(ast.NodeVisitor):
    def __init__(self, class_name: str) -> None:
        self._class_name = class_name

    def _mangle(self, name: str) -> str:
        return mangle(name, self._class_name)

    def visit_Name(self, node: ast.Name) -> None:
        node.id = self._mangle(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        node.attr = self._mangle(node.attr)
        self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> None:
        node.arg = self._mangle(node.arg)
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        node.name = self._mangle(node.name)
        self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        node.name = self._mangle(node.name)
        for child in [*node.decorator_list, *node.bases, *node.keywords]:
            self.visit(child)

    def visit_alias(self, node: ast.alias) -> None:
        bound = node.asname or node.name
        if self._mangle(bound) != bound:
            node.asname = self._mangle(bound)

    def visit_Global(self, node: ast.Global | ast.Nonlocal) -> None:
        node.names = [self._mangle(name) for name in node.names]

    def visit_Nonlocal(self, node: ast.Nonlocal) -> None:
        self.visit_Global(node)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        node.name = self._mangle(node.name) if node.name else node.name
        self.generic_visit(node)

    def visit_MatchAs(self, node: ast.MatchAs | ast.MatchStar) -> None:
        node.name = self._mangle(node.name) if node.name else node.name
        self.generic_visit(node)

    def visit_MatchStar(self, node: ast.MatchStar) -> None:
        self.visit_MatchAs(node)

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        node.rest = self._mangle(node.rest) if node.rest else node.rest
        self.generic_visit(node)
