"""Which names of a block may be bound to modules of the model, told from its source."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence, Set
from typing import Final

# Builtins that hand on what is in what they are given.
_HANDING_ON: Final = frozenset(
    "dict enumerate filter getattr iter list map max min next reversed set sorted tuple zip".split()
)
# Builtins that give it to a function.
_CALLING: Final = frozenset("filter map max min sorted".split())

# Tells whether an expression leads to a module by attributes and indices, from a model or from one of some names.
LeadsToModule = Callable[[ast.expr, Set[str]], bool]


def names_of_modules(
    statements: Sequence[ast.stmt], leads_to_module: LeadsToModule, locations: Set[str]
) -> frozenset[str]:
    """Return the names that a block may bind to a module, or to a container with modules in it.

    Args:
        statements: The block.
        leads_to_module: See above.
        locations: Last names of places that hold values of the request, such as `output`.
    """
    nodes = [node for statement in statements for node in ast.walk(statement)]
    bound = [pair for node in nodes for pair in _pairs(node)]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    parameters = {node.arg for node in nodes if isinstance(node, ast.arg)}
    returned = [node.value for node in nodes if isinstance(node, ast.Return | ast.Yield)]
    functions = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    reached = Reached(set(), leads_to_module, locations)
    found = reached.names
    while True:
        before = len(found)
        for target, value in bound:
            if reached.holds(value):
                found |= _names(target)
        # Which of the block's functions is given a module is not followed, nor which of them returns one.
        if any(_calls_own(call.func, functions) and reached.any_holds(arguments_of(call)) for call in calls):
            found |= parameters
        if reached.any_holds(returned):
            found |= functions
        if len(found) == before:
            return frozenset(found)


def arguments_of(call: ast.Call) -> list[ast.expr]:
    """Return all arguments of a call."""
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _calls_own(function: ast.expr, functions: Set[str]) -> bool:
    if isinstance(function, ast.Name):
        return function.id in functions or function.id in _CALLING
    return isinstance(function, ast.Lambda)


def _pairs(node: ast.AST) -> Iterable[tuple[ast.expr, ast.expr | None]]:
    """Return what a node binds, with what it binds it to or takes it out of."""
    if isinstance(node, ast.Assign):
        return [(target, node.value) for target in node.targets]
    if isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
        return [(node.target, node.value)]
    if isinstance(node, ast.For | ast.comprehension):
        return [(node.target, node.iter)]
    if isinstance(node, ast.withitem) and node.optional_vars is not None:
        return [(node.optional_vars, node.context_expr)]
    if isinstance(node, ast.Match):
        captured = [part.name for part in ast.walk(node) if isinstance(part, ast.MatchAs | ast.MatchStar) and part.name]
        return [(ast.Name(name, ast.Store()), node.subject) for name in captured]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        # `kept.append(layer)`
        return [(node.func.value, argument) for argument in node.args]
    return []


def _names(target: ast.expr) -> set[str]:
    """Return the names that a target binds, or whose containers it changes."""
    if isinstance(target, ast.Tuple | ast.List):
        return {name for each in target.elts for name in _names(each)}
    while isinstance(target, ast.Subscript | ast.Starred):
        target = target.value
    return {target.id} if isinstance(target, ast.Name) else set()


class Reached:
    """Tells whether the value of an expression may be a module, or hold one.

    Attributes:
        names: Names that may be bound to such a value.
    """

    def __init__(self, names: Set[str], leads_to_module: LeadsToModule, locations: Set[str]) -> None:
        """Begin with the names that are known of; see `names_of_modules`."""
        self.names = set(names)
        self._leads_to_module = leads_to_module
        self._locations = locations

    def any_holds(self, nodes: Iterable[ast.expr | None]) -> bool:
        """Tell it of any of several expressions."""
        return any(self.holds(node) for node in nodes)

    def holds(self, node: ast.expr | None) -> bool:
        """Tell whether the value may be a module, or hold one."""
        if isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
            return self._leads_to_module(node, self.names)
        if isinstance(node, ast.Call):
            return self._call_holds(node)
        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp):
            return self.holds(node.elt)
        if isinstance(node, ast.DictComp):
            return self.holds(node.key) or self.holds(node.value)
        if isinstance(node, ast.Lambda):
            return self.holds(node.body)
        if isinstance(node, _MADE_OF_OTHERS):
            return self.any_holds(child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr))
        return False

    def _call_holds(self, call: ast.Call) -> bool:
        function = call.func
        if isinstance(function, ast.Name):
            return function.id in self.names or (function.id in _HANDING_ON and self.any_holds(arguments_of(call)))
        if isinstance(function, ast.Lambda):
            return self.holds(function)
        if not (isinstance(function, ast.Attribute) and self.holds(function.value)):
            return False
        if function.attr == "get":
            path = call.args[0] if call.args else None
            given = path.value.split(".") if isinstance(path, ast.Constant) and isinstance(path.value, str) else [""]
            return given[-1] not in self._locations and "source" not in given
        # What a container of modules is asked for, such as `.copy()`, while a call of a module gives values.
        return not self._leads_to_module(function, self.names)


_MADE_OF_OTHERS = (ast.BoolOp, ast.Dict, ast.IfExp, ast.List, ast.NamedExpr, ast.Set, ast.Starred, ast.Tuple)
