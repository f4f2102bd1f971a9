"""Turning the saves of a block into calls that know the variables they are bound to."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Sequence

SAVE_METHOD = "__nnsight_save_method__"
SAVE_CALL = "__nnsight_save_call__"
SAVE_AUGMENTED = "__nnsight_save_augmented__"
SAVE_BOUND = "__nnsight_save_bound__"
SAVE_RETURNED = "__nnsight_save_returned__"
LOCALS = "__nnsight_locals__"

# What a save is bound to: the plain variables, and a text that describes it.
_Target = tuple[tuple[str, ...], str]


@dataclass(frozen=True, slots=True)
class SaveNames:
    """The names that `nnsight.save` goes by in a block or function.

    Attributes:
        functions: Names of the function itself.
        modules: Names of the module that has it.
    """

    functions: frozenset[str] = frozenset({"save"})
    modules: frozenset[str] = frozenset({"nnsight"})

    def with_imports(self, statements: Sequence[ast.stmt]) -> SaveNames:
        """Add the names that statements import it under."""
        functions, modules = set(self.functions), set(self.modules)
        for node in [each for statement in statements for each in ast.walk(statement)]:
            if isinstance(node, ast.Import):
                modules |= {each.asname or each.name for each in node.names if each.name == "nnsight"}
            elif isinstance(node, ast.ImportFrom) and node.module == "nnsight" and not node.level:
                functions |= {each.asname or each.name for each in node.names if each.name == "save"}
        return SaveNames(frozenset(functions), frozenset(modules))


def rewrite_saves(statements: Sequence[ast.stmt], own_scope: bool, known: SaveNames) -> list[ast.stmt]:
    """Rewrite every `.save()`, `nnsight.save(...)` and `save(...)`, in place where possible.

    What may give a saved value another name is rewritten too: `x += y` where `x` is saved, a saved value that a
    function returns, and the variable of a block that such a call is bound to.

    Args:
        statements: The statements of a block or of a function.
        own_scope: Whether the variables that they bind are those of the block.
        known: The names that `nnsight.save` goes by in them.

    Returns:
        The statements to compile.
    """
    rewriter = _SaveRewriter(own_scope, known.with_imports(statements))
    saved = _SavedNames(rewriter)
    for statement in statements:
        saved.visit(statement)
    rewriter.saved_names = frozenset(saved.names)
    return [rewriter.visit(statement) for statement in statements]


class _SavedNames(ast.NodeVisitor):
    """Finds the variables that are bound to a save, or saved as they are."""

    def __init__(self, rewriter: _SaveRewriter) -> None:
        self._rewriter = rewriter
        self.names: set[str] = set()

    def visit_Assign(self, node: ast.Assign) -> None:
        self._bind(node.targets, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._bind([node.target], node.value)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self._bind([node.target], node.value)

    def visit_Call(self, node: ast.Call) -> None:
        saved = self._rewriter.saved_value(node)
        if isinstance(saved, ast.Name):
            self.names.add(saved.id)
        self.generic_visit(node)

    def _bind(self, targets: Sequence[ast.expr], value: ast.expr | None) -> None:
        if value is not None:
            if any(self._rewriter.saved_value(node) is not None for node in ast.walk(value)):
                for target in targets:
                    self.names |= {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}
            self.visit(value)


class _SaveRewriter(ast.NodeTransformer):
    def __init__(self, own_scope: bool, known: SaveNames) -> None:
        self._own_scope = own_scope
        self._known = known
        self.saved_names: frozenset[str] = frozenset()
        # Filled by the statement around a save, by the identity of the save's node.
        self._targets: dict[int, _Target] = {}
        # The variables that other calls are bound to, in the same way.
        self._bound: dict[int, tuple[str, ...]] = {}

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
        saved = self.saved_value(node.value)
        if isinstance(saved, ast.Name):
            self._bind([saved], node.value)
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        saved = self.saved_value(node)
        if saved is None:
            bound = self._bound.pop(id(node), ())
            self.generic_visit(node)
            if not bound:
                return node
            end = (node.end_lineno, node.end_col_offset)
            return _helper_call(SAVE_BOUND, node, [node, _constant(bound), _constant(end)])
        # Whatever is not bound to a variable or a place is known by its expression.
        names, label = self._targets.pop(id(node), ((), _label(saved)))
        function = node.func
        self.generic_visit(node)
        method = isinstance(function, ast.Attribute) and not self._is_nnsight(function.value)
        first: ast.expr = function.value if method and isinstance(function, ast.Attribute) else node.func
        details: list[ast.expr] = [_constant(names), _constant(label)]
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
        elif self.saved_value(value) is not None:
            names = tuple(dict.fromkeys(target.id for target in targets if isinstance(target, ast.Name)))
            label = names[0] if names else _label(targets[0])
            self._targets[id(value)] = (names if self._own_scope else (), label)
        elif isinstance(value, ast.Tuple | ast.List):
            for index, element in enumerate(value.elts):
                parts = [part for target in targets for part in _element(target, value, index)]
                if parts:
                    self._bind(parts, element)
        elif isinstance(value, ast.Call) and self._own_scope:
            self._bound[id(value)] = tuple(target.id for target in targets if isinstance(target, ast.Name))

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        target = node.target
        if not isinstance(target, ast.Name) or target.id not in self.saved_names:
            return self.generic_visit(node)
        old = ast.copy_location(ast.Name(target.id, ast.Load()), target)
        operator = _constant(type(node.op).__name__)
        details = [_constant(target.id), _constant(self._own_scope), operator]
        value = _helper_call(SAVE_AUGMENTED, node, [*details, old, self.visit(node.value)])
        return ast.copy_location(ast.Assign([target], value), node)

    def visit_Return(self, node: ast.Return) -> ast.AST:
        if node.value is not None and not self._own_scope:
            node.value = self._returned(node.value)
        return self.generic_visit(node)

    def _returned(self, value: ast.expr) -> ast.expr:
        labels = tuple(_label(saved) for saved in self._returned_saves(value))
        return _helper_call(SAVE_RETURNED, value, [value, _constant(labels)]) if labels else value

    def _returned_saves(self, value: ast.expr) -> list[ast.expr]:
        if isinstance(value, ast.IfExp):
            return [*self._returned_saves(value.body), *self._returned_saves(value.orelse)]
        if isinstance(value, ast.NamedExpr):
            return [value.target] if value.target.id in self.saved_names else []
        if isinstance(value, ast.Name):
            return [value] if value.id in self.saved_names else []
        saved = self.saved_value(value)
        return [] if saved is None else [saved]

    def saved_value(self, node: ast.AST) -> ast.expr | None:
        """What a call saves, None if the node is no save."""
        if not isinstance(node, ast.Call):
            return None
        function = node.func
        if isinstance(function, ast.Attribute) and function.attr == "save":
            if not self._is_nnsight(function.value):
                return function.value
        elif not isinstance(function, ast.Name) or function.id not in self._known.functions:
            return None
        return node.args[0] if node.args else function

    def _is_nnsight(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id in self._known.modules

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
        node.body = self._returned(node.body)
        return self._visit_definition(node)


def _element(target: ast.expr, value: ast.Tuple | ast.List, index: int) -> list[ast.expr]:
    """The part of a tuple target that takes one element of a tuple value."""
    if not isinstance(target, ast.Tuple | ast.List):
        return []
    if any(isinstance(element, ast.Starred) for element in [*value.elts, *target.elts]):
        return []
    return [target.elts[index]] if len(target.elts) == len(value.elts) else []


def _helper_call(name: str, place: ast.expr | ast.stmt, arguments: list[ast.expr]) -> ast.Call:
    call = ast.Call(ast.Name(name, ast.Load()), arguments, [])
    for node in (call, call.func, *arguments):
        if not hasattr(node, "lineno"):
            ast.copy_location(node, place)
    return call


def _constant(value: object) -> ast.Constant:
    return ast.Constant(cast("Any", value))


def _label(node: ast.expr) -> str:
    return ast.unparse(node)
