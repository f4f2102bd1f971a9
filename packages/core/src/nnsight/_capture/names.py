"""The names that a block reads from around it, and those that it binds."""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True)
class BlockNames:
    """The names of a block.

    Attributes:
        loaded: Every name that the block reads, deletes or updates in its own scope, or that it or anything nested in
            it looks up outside itself.
        bound: Every name that the block's own scope binds or deletes. A name bound by `except ... as` is unbound
            again when its handler ends.
    """

    loaded: frozenset[str]
    bound: frozenset[str]


def block_names(statements: Sequence[ast.stmt]) -> BlockNames:
    """List the names of a block.

    Args:
        statements: The body of the block, as `parse_block` gives it.

    Returns:
        The names. A name can be in both sets.
    """
    return statements.names if isinstance(statements, Body) else _names(statements)


class Body(list[ast.stmt]):
    """The statements of a block, which nobody changes."""

    @functools.cached_property
    def names(self) -> BlockNames:
        """The names of the block."""
        return _names(self)


def _names(statements: Iterable[ast.stmt]) -> BlockNames:
    scope = _Scope("function")
    visitor = _NameVisitor(scope)
    for statement in statements:
        visitor.visit(statement)
    rebound = _rebound(scope.children)
    return BlockNames(
        frozenset(scope.read | scope.outer() | scope.global_names() | rebound), frozenset(scope.bound | rebound)
    )


@dataclass
class _Scope:
    kind: str
    read: set[str] = field(default_factory=set)
    bound: set[str] = field(default_factory=set)
    declared_global: set[str] = field(default_factory=set)
    declared_nonlocal: set[str] = field(default_factory=set)
    children: list[_Scope] = field(default_factory=list)

    def free(self) -> set[str]:
        """The names that this scope looks up in the scopes around it."""
        wanted = self.read - self.declared_global
        if self.kind == "class":
            # A class body looks a name up outside until it has bound it, and its functions never see its names.
            return self.declared_nonlocal | wanted | self.outer()
        return self.declared_nonlocal | ((wanted | self.outer()) - (self.bound - self.declared_nonlocal))

    def outer(self) -> set[str]:
        """The names that nested scopes look up in the scopes around them."""
        return {name for child in self.children for name in child.free()}

    def global_names(self) -> set[str]:
        """The names that this scope and nested ones declare global, past all scopes in between."""
        return self.declared_global.union(*(child.global_names() for child in self.children))


def _rebound(scopes: Iterable[_Scope]) -> set[str]:
    """The variables of the block that nested functions rebind by `nonlocal`."""
    result: set[str] = set()
    for scope in scopes:
        inner = _rebound(scope.children)
        if scope.kind != "class":
            inner -= scope.bound - scope.declared_nonlocal
        result |= inner | scope.declared_nonlocal
    return result


class _NameVisitor(ast.NodeVisitor):
    def __init__(self, scope: _Scope, parent: _NameVisitor | None = None) -> None:
        self._scope = scope
        self._parent = parent

    def _nested(self, kind: str) -> _NameVisitor:
        scope = _Scope(kind)
        self._scope.children.append(scope)
        return _NameVisitor(scope, self)

    def _visit_all(self, nodes: Iterable[Any]) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._scope.read.add(node.id)
        else:
            self._scope.bound.add(node.id)
        if isinstance(node.ctx, ast.Del):
            self._scope.read.add(node.id)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self._scope.read.add(node.target.id)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        # Functions, and so blocks, never evaluate the annotations of their variables.
        if self._scope.kind == "class":
            self.visit(node.annotation)
        elif isinstance(node.target, ast.Name) and node.value is None:
            # `x: int` makes a variable of the block out of one that it may only read.
            self._scope.read.add(node.target.id)
        self._visit_all([node.value, node.target])

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        visitor = self
        while visitor._scope.kind == "comprehension" and visitor._parent is not None:
            visitor = visitor._parent
        visitor.visit(node.target)

    def visit_Global(self, node: ast.Global) -> None:
        self._scope.declared_global.update(node.names)

    def visit_Nonlocal(self, node: ast.Nonlocal) -> None:
        self._scope.declared_nonlocal.update(node.names)

    def visit_Import(self, node: ast.Import) -> None:
        self._scope.bound.update(alias.asname or alias.name.partition(".")[0] for alias in node.names)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self._scope.bound.update(alias.asname or alias.name for alias in node.names)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        self._bind(node.name)
        self.generic_visit(node)

    def visit_MatchAs(self, node: ast.MatchAs | ast.MatchStar) -> None:
        self._bind(node.name)
        self.generic_visit(node)

    def visit_MatchStar(self, node: ast.MatchStar) -> None:
        self.visit_MatchAs(node)

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        self._bind(node.rest)
        self.generic_visit(node)

    def _bind(self, name: str | None) -> None:
        if name is not None:
            self._scope.bound.add(name)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._bind(node.name)
        self._visit_all(node.decorator_list)
        self._visit_all([*node.args.defaults, *node.args.kw_defaults])
        outer = self._type_parameters(node)
        arguments = _arguments(node.args)
        outer._visit_all([*(argument.annotation for argument in arguments), node.returns])
        inner = outer._nested("function")
        inner._scope.bound.update(argument.arg for argument in arguments)
        inner._visit_all(node.body)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._visit_all([*node.args.defaults, *node.args.kw_defaults])
        inner = self._nested("function")
        inner._scope.bound.update(argument.arg for argument in _arguments(node.args))
        inner.visit(node.body)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._bind(node.name)
        self._visit_all(node.decorator_list)
        outer = self._type_parameters(node)
        outer._visit_all([*node.bases, *node.keywords])
        outer._nested("class")._visit_all(node.body)

    def visit_TypeAlias(self, node: ast.AST) -> None:
        """Visit the `type` statement of Python 3.12 and later."""
        fields = dict(ast.iter_fields(node))
        self.visit(fields["name"])
        self._type_parameters(node)._nested("function").visit(fields["value"])

    def _type_parameters(self, node: ast.AST) -> _NameVisitor:
        parameters = getattr(node, "type_params", None)
        if not parameters:
            return self
        outer = self._nested("function")
        for parameter in parameters:
            outer._bind(parameter.name)
            outer._visit_all([getattr(parameter, "bound", None), getattr(parameter, "default_value", None)])
        return outer

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> None:
        self._visit_comprehension(node.generators, [node.elt])

    def visit_SetComp(self, node: ast.SetComp) -> None:
        self.visit_ListComp(node)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> None:
        self.visit_ListComp(node)

    def visit_DictComp(self, node: ast.DictComp) -> None:
        self._visit_comprehension(node.generators, [node.key, node.value])

    def _visit_comprehension(self, generators: Sequence[ast.comprehension], results: Sequence[ast.expr]) -> None:
        # The first iterable is evaluated outside the comprehension.
        self.visit(generators[0].iter)
        inner = self._nested("comprehension")
        for index, generator in enumerate(generators):
            inner.visit(generator.target)
            inner._visit_all([generator.iter] if index else [])
            inner._visit_all(generator.ifs)
        inner._visit_all(results)


def _arguments(arguments: ast.arguments) -> list[ast.arg]:
    every = [*arguments.posonlyargs, *arguments.args, arguments.vararg, *arguments.kwonlyargs, arguments.kwarg]
    return [argument for argument in every if argument is not None]
