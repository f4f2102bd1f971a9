"""What a block reads and writes, told from its source.

The summary is conservative: a program counts as read-only only where every statement is of a form that is known to
change nothing of the model. It decides what may be shared between requests, and is enforced when the program runs.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from types import ModuleType

from nnsight._envoy import Envoy
from nnsight._envoy.envoy import is_standard_module, module_of
from nnsight._envoy.shared import CHANGING, KEPT_INSIDE
from nnsight._interleave.location import SIDES
from nnsight._program import harmless
from nnsight._program.inspected import modules_looked_into
from nnsight._program.reached import Reached, arguments_of, names_of_modules
from nnsight._program.static_reads import Place, static_places
from nnsight._program.uniform import Uniform, prove_uniform
from nnsight.families import VALUE_NAMES

_CONTAINERS = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
_CONTAINER_CALLS = frozenset({"list", "dict", "set"})
# Builtins that call a function which they are given.
_CALLERS = frozenset({"map", "filter", "iter", "sorted", "min", "max"})
_HARMLESS_IMPORTS = frozenset({"math", "time", "nnsight"})
# What an envoy offers by itself, beside the modules below it.
_ENVOY_METHODS = frozenset({"get", "save", "skip"})


@dataclass(frozen=True)
class Effects:
    """The effect summary of one program.

    Attributes:
        reads: Locations that the source names, as written.
        writes: Locations that the source assigns, changes in place or skips, as written.
        unknown: Why the program might change more than `writes` says; empty for a program that is understood.
        looks_into: Last names of the modules whose `.source` the program may ask for, or `"*"` for any.
        row_local: Whether all that it does is to change every row of a prompt alike, by constants, at locations that
            are known beforehand: a prompt may be computed in several parts beside it.
        every_row: Whether it does so at every step, inside the model's layers: what the model computes for a token
            beside it follows from the tokens up to that one, for all requests alike.
        places: Path and side of every place that a read-only program may read a module at; None where that cannot be
            told before it runs.
    """

    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    looks_into: tuple[str, ...] = ()
    row_local: bool = False
    every_row: bool = False
    places: tuple[Place, ...] | None = None

    @property
    def read_only(self) -> bool:
        """Whether the program is known to change nothing."""
        return not self.writes and not self.unknown

    @property
    def follows_pieces(self) -> bool:
        """Whether the prompt may be computed in several parts beside the program."""
        return self.row_local or (self.read_only and self.places is not None)


def summarize(statements: Sequence[ast.stmt], values: Mapping[str, object], names: frozenset[str]) -> Effects:
    """Summarize what a block does to the model.

    Args:
        statements: The block.
        values: What the names bound outside it refer to.
        names: Names of the request's own values, such as `logits`.
    """
    walker = _Walker(values, frozenset({*SIDES, *names}), _bindings(statements))
    walker.find_modules(statements)
    for statement in statements:
        walker.visit(statement)
    walker.let_go()
    changes = bool(walker.writes or walker.unknown)
    uniform = prove_uniform(statements, values) if changes else Uniform()
    return Effects(
        tuple(sorted(walker.reads)),
        tuple(sorted(walker.writes)),
        tuple(dict.fromkeys(walker.unknown)),
        modules_looked_into(statements, values),
        uniform.row_local,
        uniform.every_row,
        None if changes else static_places(statements, values),
    )


def _bindings(statements: Sequence[ast.stmt]) -> dict[str, set[str]]:
    """Tell what the names that a block binds are bound to, wherever in it: `fresh`, `function` or `other` things.

    Numbers, texts and new containers are fresh: to change them changes nothing of the model.
    """
    kinds: dict[str, set[str]] = {}
    told: set[ast.AST] = set()

    def bind(name: str | None, kind: str) -> None:
        if name is not None:
            kinds.setdefault(name, set()).add(kind)

    nodes = [node for statement in statements for node in ast.walk(statement)]
    shadowed = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    for node in nodes:
        if isinstance(node, ast.Assign) and _is_fresh(node.value, shadowed):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    told.add(target)
                    bind(target.id, "fresh")
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            # What a number becomes by it is new, and a container stays one.
            told.add(node.target)
        elif isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Store) and node not in told:
                bind(node.id, "other")
        elif isinstance(node, ast.FunctionDef):
            bind(node.name, "function")
        elif isinstance(node, ast.arg):
            bind(node.arg, "other")
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar | ast.ClassDef):
            bind(node.name, "other")
        elif isinstance(node, ast.MatchMapping):
            bind(node.rest, "other")
        elif isinstance(node, ast.alias):
            bind(node.asname or node.name.partition(".")[0], "other")
    return kinds


def _is_fresh(value: ast.expr, shadowed: set[str]) -> bool:
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "save":
        value = value.func.value
    if isinstance(value, (ast.Constant, *_CONTAINERS)):
        return True
    called = value.func if isinstance(value, ast.Call) else None
    return isinstance(called, ast.Name) and called.id in _CONTAINER_CALLS - shadowed


class _Walker(ast.NodeVisitor):
    def __init__(
        self, values: Mapping[str, object], locations: frozenset[str], bindings: Mapping[str, set[str]]
    ) -> None:
        self._values = {name: value for name, value in values.items() if name not in bindings}
        self._envoys = [envoy for value in values.values() if isinstance(envoy := _envoy_of(value), Envoy)]
        self._outside = values
        self._module_names: dict[Envoy, frozenset[str]] = {}
        self._locations = locations
        self._bound = frozenset(bindings)
        self._fresh = frozenset(name for name, kinds in bindings.items() if kinds == {"fresh"})
        self._functions = frozenset(name for name, kinds in bindings.items() if kinds == {"function"})
        self.reads: set[str] = set()
        self.writes: set[str] = set()
        self.unknown: list[str] = []
        self._reached = Reached(frozenset(), self._may_lead_to_module, self._locations)

    def find_modules(self, statements: Sequence[ast.stmt]) -> None:
        """Find the names that the block may bind to modules."""
        self._reached.names |= names_of_modules(statements, self._may_lead_to_module, self._locations)

    def let_go(self) -> None:
        """Part from what leads back here: the two would keep each other until the garbage collector comes by."""
        del self._reached

    # Names and places -----------------------------------------------------------------------------------------------

    def visit_Name(self, node: ast.Name) -> None:
        if not isinstance(node.ctx, ast.Load):
            return
        # A name that the block binds too begins with its value from outside.
        value = self._outside.get(node.id)
        if not harmless.is_harmless(value) or node.id in harmless.UNSAFE_BUILTINS:
            # Whoever is given it may call it.
            self._note(node, f"uses {node.id}")

    def visit_Attribute(self, node: ast.Attribute) -> None:
        name = node.attr
        if name in self._locations:
            (self.reads if isinstance(node.ctx, ast.Load) else self.writes).add(ast.unparse(node))
        elif name == "skip":
            self.writes.add(ast.unparse(node))
        elif not isinstance(node.ctx, ast.Load):
            self._note(node, "sets an attribute")
        if name.endswith("__"):
            if name not in harmless.SAFE_DUNDERS:
                self._note(node, f"names .{name}")
        elif name.endswith("_"):
            self._note(node, f"names .{name}")
        elif name in KEPT_INSIDE or self._holds_modules(name):
            # It leads to modules and weights past the model.
            self._note(node, f"uses .{name}")
        if self._is_object(node.value):
            assert isinstance(node.value, ast.Name)
            if not harmless.attribute_is_data(self._values[node.value.id], name):
                self._note(node, f"uses {ast.unparse(node)}")
            return
        value = self._value_at_root(node)
        if isinstance(value, ModuleType) and (name == "ops" or name in harmless.CHANGES_ARGUMENTS):
            self._note(node, f"uses {ast.unparse(node)}")
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if not isinstance(node.ctx, ast.Load):
            location = self._location_below(node)
            if location is not None:
                self.writes.add(location)
            elif not (isinstance(node.value, ast.Name) and node.value.id in self._fresh):
                self._note(node, f"sets {ast.unparse(node)}")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        target = node.target
        # `hs[0] += v` changes the tensor in the slot, whatever holds it.
        if not (isinstance(target, ast.Name) and target.id in self._fresh):
            self._note(node, f"changes {ast.unparse(target)} in place")
        if isinstance(target, ast.Attribute) and target.attr in self._locations:
            self.reads.add(ast.unparse(target))
        self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._note(node, "defines a class")

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._imported(node, alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self._imported(node, node.module or ".")

    def _imported(self, node: ast.stmt, module: str) -> None:
        if module.partition(".")[0] not in _HARMLESS_IMPORTS:
            self._note(node, f"imports {module}")

    # Calls ----------------------------------------------------------------------------------------------------------

    def visit_Call(self, node: ast.Call) -> None:
        function = node.func
        self._arguments(node)
        if isinstance(function, ast.Name):
            self._named_call(node, function)
        elif isinstance(function, ast.Attribute):
            self._method_call(node, function)
        elif not isinstance(function, ast.Lambda) and not self._leads_to_envoy(function):
            self._note(function, f"calls {ast.unparse(function)}")
        self.generic_visit(node)

    def _arguments(self, node: ast.Call) -> None:
        function = node.func
        own = isinstance(function, ast.Name) and function.id in self._functions | harmless.SAFE_BUILTINS - self._bound
        for keyword in node.keywords:
            if keyword.arg in {"out", "inplace"}:
                self._note(node, f"passes {keyword.arg}=")
            elif keyword.arg is None and not own:
                self._note(node, "passes keywords that its source does not show")
        if any(isinstance(arg, ast.Constant) and arg.value is True for arg in node.args):
            self._note(node, "passes True, which may ask for a change in place")
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        place = None if name in self._functions else harmless.place_of_inplace(name)
        if place is not None and (len(node.args) > place or any(isinstance(arg, ast.Starred) for arg in node.args)):
            self._note(node, f"may ask {name} for a change in place")

    def _named_call(self, node: ast.Call, function: ast.Name) -> None:
        name = function.id
        if name in self._functions and name not in self._outside:
            return
        builtin = getattr(builtins, name, None)
        if name in self._bound:
            safe = False
        elif name in self._values:
            value = self._values[name]
            safe = isinstance(value, Envoy) or (harmless.is_safe_function(value) and builtin is None)
        else:
            safe = name in harmless.SAFE_BUILTINS or name == "save"
        if not safe:
            self._note(function, f"calls {name}")
        elif name == "getattr":
            self._attribute_by_name(node)
        elif name in _CALLERS:
            self._function_handed_on(node, name)

    def _attribute_by_name(self, node: ast.Call) -> None:
        asked = node.args[1] if len(node.args) > 1 else None
        if not (isinstance(asked, ast.Constant) and isinstance(asked.value, str)):
            self._note(node, "gets an attribute whose name its source does not show")
            return
        self.visit_Attribute(ast.copy_location(ast.Attribute(node.args[0], asked.value, ast.Load()), node))

    def _function_handed_on(self, node: ast.Call, name: str) -> None:
        if name in {"map", "filter"} or (name == "iter" and len(node.args) > 1):
            handed = node.args[:1]
        else:
            handed = [keyword.value for keyword in node.keywords if keyword.arg == "key"]
        for function in handed:
            if not self._is_known_function(function):
                self._note(node, f"has {name} call {ast.unparse(function)}")

    def _is_known_function(self, function: ast.expr) -> bool:
        if isinstance(function, ast.Lambda) or (isinstance(function, ast.Constant) and function.value is None):
            return True
        if isinstance(function, ast.Name):
            name = function.id
            if name in self._functions:
                return True
            if name in self._values:
                value = self._values[name]
                return harmless.is_safe_function(value) and harmless.place_of_inplace(name) is None
            return name in harmless.SAFE_BUILTINS - _CALLERS - {"getattr"} and name not in self._bound
        value = self._value_at_root(function)
        in_module = isinstance(value, ModuleType) and value.__name__ in {"torch", "math"}
        return in_module and isinstance(function, ast.Attribute) and harmless.place_of_inplace(function.attr) is None

    def _method_call(self, node: ast.Call, function: ast.Attribute) -> None:
        name, receiver, value = function.attr, function.value, self._value_at_root(function)
        if isinstance(value, ModuleType):
            if value.__name__.partition(".")[0] not in harmless.SAFE_MODULES:
                self._note(function, f"calls {ast.unparse(function)}")
            elif self._reached.any_holds(arguments_of(node)):
                # `torch.nn.Module.half(layer)` and the like change what they are given.
                self._note(function, f"gives a module to {ast.unparse(function)}")
        elif name in harmless.CHANGES_ARGUMENTS and not self._leads_to_envoy(function):
            self._note(function, f"calls .{name}")
        elif name in harmless.EXCHANGING_METHODS:
            known = self._fresh | self._values.keys()
            if not (isinstance(receiver, ast.Name) and receiver.id in known):
                self._note(function, f"calls .{name}")
        elif name != "skip" and name not in harmless.SAFE_METHODS and not self._leads_to_envoy(function):
            self._note(function, f"calls .{name}")
        elif name not in _ENVOY_METHODS and self._leads_to_envoy(receiver) and not self._leads_to_envoy(function):
            # A method of the module itself, such as `half`, which changes it for everybody.
            self._note(function, f"calls {ast.unparse(function)}")
        elif name in CHANGING and self._reached.holds(receiver) and not self._leads_to_envoy(function):
            self._note(function, f"calls {ast.unparse(function)}, which may be of a module")

    # --------------------------------------------------------------------------------------------------------------

    def _value_at_root(self, node: ast.expr) -> object:
        while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
            node = node.func if isinstance(node, ast.Call) else node.value
        return self._values.get(node.id) if isinstance(node, ast.Name) else None

    def _is_object(self, node: ast.expr) -> bool:
        """Tell whether an expression names an object from outside that has code of its own."""
        if not isinstance(node, ast.Name) or node.id not in self._values:
            return False
        value = self._values[node.id]
        return not (callable(value) or harmless.is_harmless(value)) or isinstance(value, type)

    def _location_below(self, node: ast.expr) -> str | None:
        while isinstance(node, ast.Subscript | ast.Attribute):
            if isinstance(node, ast.Attribute) and node.attr in self._locations:
                return ast.unparse(node)
            node = node.value
        return None

    def _leads_to_envoy(self, node: ast.expr) -> bool:
        """Tell whether attribute and index access from an envoy leads to another envoy."""
        steps, root = self._steps(node)
        if not isinstance(root, Envoy) or any(step in SIDES or step in VALUE_NAMES for step in steps):
            return False
        return not steps or steps[0] == "get" or self._is_module_name(root, steps[0])

    def _may_lead_to_module(self, node: ast.expr, names: Set[str]) -> bool:
        """Tell whether attribute and index access from a model, or from one of these names, may lead to a module."""
        steps, root = self._steps(node)
        if isinstance(root, Envoy):
            return self._leads_to_envoy(node)
        while isinstance(node, ast.Attribute | ast.Subscript):
            node = node.value
        if not (isinstance(node, ast.Name) and node.id in names) or any(step in self._locations for step in steps):
            return False
        return not steps or any(self._is_module_name(envoy, steps[0]) for envoy in self._envoys)

    def _steps(self, node: ast.expr) -> tuple[list[str], object]:
        """Return the attributes by which an expression leads on, the last one first, and what it begins with."""
        steps: list[str] = []
        while isinstance(node, ast.Attribute | ast.Subscript):
            if isinstance(node, ast.Attribute):
                steps.append(node.attr)
            node = node.value
        root = self._values.get(node.id) if isinstance(node, ast.Name) else None
        return steps, _envoy_of(root)

    def _is_module_name(self, root: Envoy, name: str) -> bool:
        names = self._module_names.get(root)
        if names is None:
            names = self._module_names[root] = _module_names(root)
        return name in names or is_standard_module(root, name)

    def _holds_modules(self, name: str) -> bool:
        return any(name in envoy._tree.holders_of_modules for envoy in self._envoys)

    def _note(self, node: ast.AST, what: str) -> None:
        self.unknown.append(f"line {getattr(node, 'lineno', 0)} {what}")


def _envoy_of(value: object) -> object:
    return getattr(value, "envoy", None) if harmless.stands_in(value) else value


def _module_names(root: Envoy) -> frozenset[str]:
    """Return the last names of the modules below an envoy, and of the extra names of its model."""
    own = (path.rpartition(".")[2] for path, _ in module_of(root).named_modules(remove_duplicate=False))
    return frozenset(own).union(*root._tree.aliases.values())
