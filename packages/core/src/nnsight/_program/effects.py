"""What a block reads and writes, told from its source.

The summary is conservative: a program counts as read-only only where every statement is of a form that is known to
change nothing of the model. It decides what may be shared between requests, and is enforced when the program runs.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import BuiltinFunctionType, ModuleType

import torch

from nnsight._envoy import Envoy, Source, SourceOp
from nnsight._interleave.location import SIDES
from nnsight._program.inspected import modules_looked_into
from nnsight._program.saves import save
from nnsight.families import VALUE_NAMES

_SAFE_BUILTINS = frozenset(
    "abs all any bool bytes complex dict divmod enumerate filter float format frozenset getattr hasattr hash id int "
    "isinstance issubclass iter len list map max min next object ord pow print range repr reversed round set slice "
    "sorted str sum super tuple type zip".split()
)
# Functions named in place by torch's own rule end in an underscore; the rest of a tensor's methods make new values.
_SAFE_METHODS = frozenset(
    name
    for kind in (torch.Tensor, list, dict, set, str, bytes, tuple, int, float)
    for name in dir(kind)
    if not name.endswith("_") and name not in {"set_", "apply", "map", "share_memory"}
) | {"save", "stop", "all"}
_SAFE_MODULES = frozenset({"torch", "math", "nnsight", "numpy", "time"})
_CONTAINERS = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
_CONTAINER_CALLS = frozenset({"list", "dict", "set"})


@dataclass(frozen=True)
class Effects:
    """The effect summary of one program.

    Attributes:
        reads: Locations that the source names, as written.
        writes: Locations that the source assigns, changes in place or skips, as written.
        unknown: Why the program might change more than `writes` says; empty for a program that is understood.
        uses_result: Whether the program asks for the finished output.
        looks_into: Last names of the modules whose `.source` the program may ask for, or `"*"` for any.
    """

    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    uses_result: bool = False
    looks_into: tuple[str, ...] = ()

    @property
    def read_only(self) -> bool:
        """Whether the program is known to change nothing."""
        return not self.writes and not self.unknown


def summarize(statements: Sequence[ast.stmt], values: Mapping[str, object], names: frozenset[str]) -> Effects:
    """Summarize what a block does to the model.

    Args:
        statements: The block.
        values: What the names bound outside it refer to.
        names: Names of the request's own values, such as `logits`.
    """
    walker = _Walker(values, frozenset({*SIDES, *names}))
    for statement in statements:
        walker.find_counters(statement)
    for statement in statements:
        walker.visit(statement)
    return Effects(
        tuple(sorted(walker.reads)),
        tuple(sorted(walker.writes)),
        tuple(dict.fromkeys(walker.unknown)),
        walker.uses_result,
        modules_looked_into(statements, values),
    )


class _Walker(ast.NodeVisitor):
    def __init__(self, values: Mapping[str, object], locations: frozenset[str]) -> None:
        self._values = values
        self._locations = locations
        self._containers: set[str] = set()
        self._counters: set[str] = set()
        self._not_counters: set[str] = set()
        self._functions: set[str] = set()
        self.reads: set[str] = set()
        self.writes: set[str] = set()
        self.unknown: list[str] = []
        self.uses_result = False

    def find_counters(self, statement: ast.stmt) -> None:
        """Find names that hold nothing but numbers and text, whatever the order of the statements."""
        constants: set[str] = set()
        others: set[str] = set()
        changed: set[ast.AST] = set()
        for node in ast.walk(statement):
            if isinstance(node, ast.Assign) and isinstance(_without_save(node.value), ast.Constant):
                plain = {target for target in node.targets if isinstance(target, ast.Name)}
                changed |= plain
                constants |= {target.id for target in plain}
            elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                changed.add(node.target)
            elif isinstance(node, ast.arg):
                others.add(node.arg)
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node not in changed:
                others.add(node.id)
        self._not_counters |= others
        self._counters = (self._counters | constants) - self._not_counters

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if node.attr in self._locations:
            (self.reads if isinstance(node.ctx, ast.Load) else self.writes).add(ast.unparse(node))
        elif not isinstance(node.ctx, ast.Load):
            self._note(node, "sets an attribute")
        if node.attr.endswith("_") and not node.attr.endswith("__"):
            self._note(node, f"names .{node.attr}")
        if node.attr == "result":
            self.uses_result = True
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        value = self._values.get(node.id)
        if isinstance(node.ctx, ast.Load) and callable(value) and not self._is_harmless(value):
            # Whoever is given it may call it.
            self._note(node, f"uses {node.id}")

    def _is_harmless(self, value: object) -> bool:
        return isinstance(value, type | ModuleType) or _is_plain(value) or _is_safe_function(value)

    def visit_Assign(self, node: ast.Assign) -> None:
        value = _without_save(node.value)
        for target in node.targets:
            self._target(target)
            if isinstance(target, ast.Name):
                if self._is_container(value):
                    self._containers.add(target.id)
                else:
                    self._containers.discard(target.id)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        target = node.target
        if isinstance(target, ast.Name):
            if target.id not in self._counters and target.id not in self._containers:
                self._note(node, f"changes {target.id} in place")
        else:
            # `hs[0] += v` changes the tensor in the slot, whatever holds it.
            self._note(node, f"changes {ast.unparse(target)} in place")
            self._target(target)
        if isinstance(target, ast.Attribute) and target.attr in self._locations:
            self.reads.add(ast.unparse(target))
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._target(node.target)
        self.generic_visit(node)

    def visit_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if not isinstance(target, ast.Name):
                self._target(target)
        self.generic_visit(node)

    def visit_For(self, node: ast.For) -> None:
        self._target(node.target)
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._functions.add(node.name)
        self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._note(node, "defines a class")

    def visit_Call(self, node: ast.Call) -> None:
        function = node.func
        for keyword in node.keywords:
            if keyword.arg in {"out", "inplace"}:
                self._note(node, f"passes {keyword.arg}=")
        if any(isinstance(arg, ast.Constant) and arg.value is True for arg in node.args):
            self._note(node, "passes True, which may ask for a change in place")
        if isinstance(function, ast.Name):
            self._named_call(function)
        elif isinstance(function, ast.Attribute):
            self._method_call(function)
        elif not isinstance(function, ast.Lambda):
            self._maybe_envoy(function)
        self.generic_visit(node)

    def _named_call(self, function: ast.Name) -> None:
        name = function.id
        if name in self._functions:
            return
        if name in self._values:
            value = self._values[name]
            safe = isinstance(value, Envoy) or value is getattr(builtins, name, self) or _is_safe_function(value)
            if not (safe and (name in _SAFE_BUILTINS or not hasattr(builtins, name))):
                self._note(function, f"calls {name}")
        elif name not in _SAFE_BUILTINS and name != "save":
            self._note(function, f"calls {name}")

    def _method_call(self, function: ast.Attribute) -> None:
        root = _root(function)
        value = self._values.get(root.id) if isinstance(root, ast.Name) else None
        name = function.attr
        if isinstance(value, ModuleType):
            if (
                ".ops." in ast.unparse(function)
                or name.endswith("_")
                or value.__name__.partition(".")[0] not in _SAFE_MODULES
            ):
                self._note(function, f"calls {ast.unparse(function)}")
        elif name == "skip":
            self.writes.add(ast.unparse(function))
        elif name not in _SAFE_METHODS and not _names_envoy(function, value):
            self._note(function, f"calls .{name}")
        elif value is not None and not _is_plain(value):
            self._note(function, f"calls {ast.unparse(function)}")

    def _maybe_envoy(self, function: ast.expr) -> None:
        root = _root(function)
        value = self._values.get(root.id) if isinstance(root, ast.Name) else None
        if not _names_envoy(function, value):
            self._note(function, f"calls {ast.unparse(function)}")

    def _target(self, target: ast.expr) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            for item in target.elts:
                self._target(item)
        elif isinstance(target, ast.Starred):
            self._target(target.value)
        elif isinstance(target, ast.Subscript):
            root = _root(target)
            location = self._location_below(target)
            if location is not None:
                self.writes.add(location)
            elif not (isinstance(root, ast.Name) and root.id in self._containers and target.value is root):
                self._note(target, f"sets {ast.unparse(target)}")

    def _location_below(self, node: ast.expr) -> str | None:
        while isinstance(node, ast.Subscript | ast.Attribute):
            if isinstance(node, ast.Attribute) and node.attr in self._locations:
                return ast.unparse(node)
            node = node.value
        return None

    def _is_container(self, value: ast.expr) -> bool:
        if isinstance(value, _CONTAINERS):
            return True
        called = isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in _CONTAINER_CALLS
        return called and value.func.id not in self._values  # type: ignore[attr-defined]

    def _note(self, node: ast.AST, what: str) -> None:
        self.unknown.append(f"line {getattr(node, 'lineno', 0)} {what}")


def _without_save(value: ast.expr) -> ast.expr:
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "save":
        value = value.func.value
    return value


def _root(node: ast.expr) -> ast.expr:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node


def _names_envoy(node: ast.expr, root: object) -> bool:
    """Tell whether attribute and index access from an envoy leads to another envoy."""
    steps: list[str] = []
    while isinstance(node, ast.Attribute | ast.Subscript):
        if isinstance(node, ast.Attribute):
            steps.append(node.attr)
        node = node.value
    if _stands_in(root):
        root = getattr(root, "envoy", None)
    if not isinstance(root, Envoy) or not isinstance(node, ast.Name):
        return False
    if any(step in SIDES or step in VALUE_NAMES for step in steps):
        return False
    return not steps or steps[0] == "get" or _is_module_name(root, steps[0])


def _is_module_name(root: Envoy, name: str) -> bool:
    from nnsight._envoy.envoy import is_standard_module, module_of

    return is_standard_module(root, name) or any(
        path.rpartition(".")[2] == name for path, _ in module_of(root).named_modules(remove_duplicate=False)
    )


def _is_safe_function(value: object) -> bool:
    name = getattr(value, "__name__", "_")
    module = getattr(value, "__module__", None) or ""
    from_torch = isinstance(value, BuiltinFunctionType) or module.partition(".")[0] in {"torch", "math"}
    return (from_torch and not name.endswith("_")) or value is torch.sum or value is save


def _is_plain(value: object) -> bool:
    plain = (Envoy, Source, SourceOp, torch.Tensor, list, dict, set, str, bytes, tuple, int, float)
    return isinstance(value, plain) or _stands_in(value)


def _stands_in(value: object) -> bool:
    """Tell whether a value is a model or a tracer, which a block sees as an envoy or its own tracer."""
    return bool(getattr(type(value), "stands_in", False))
