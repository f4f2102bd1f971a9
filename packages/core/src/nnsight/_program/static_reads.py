"""Where a program reads the model, told before it runs: a proof from the syntax tree that errs on the side of no.

Each expression that a value is read from must lead to modules of the tree, whichever of them it is when the block
runs; an index that is not known stands for every item.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

from nnsight._envoy import Envoy
from nnsight._envoy.envoy import path_of
from nnsight._interleave.location import SIDES
from nnsight._program.static_values import Unproven, static_child, static_items, static_member
from nnsight.families import VALUE_NAMES, LayerArgument

Place = tuple[str, str]

# What may read elsewhere, or later than where it stands.
_OPAQUE = frozenset({"source", "skip", "cache"})
_OPAQUE_CALLS = frozenset({"getattr", "eval", "exec", "vars", "map", "filter", "iter", "next"})
# Methods of a list or dict of modules that leave it as it is.
_LOOKING = frozenset({"index", "count", "copy", "items", "values", "keys"})


def static_places(statements: Sequence[ast.stmt], values: Mapping[str, object]) -> tuple[Place, ...] | None:
    """Return every place that a block may read a value of a module from: its path and its side.

    Args:
        statements: The block.
        values: What the names bound outside it refer to.

    Returns:
        The places, more than it reads where branches or unknown indices leave that open; None where it cannot be told.
    """
    try:
        return tuple(sorted({place for place, _ in _Reader(statements, values).reads()}))
    except Unproven:
        return None


def static_outputs(
    statements: Sequence[ast.stmt], values: Mapping[str, object]
) -> dict[str, frozenset[int] | None] | None:
    """Return every module whose output a block may read, where it reads nothing else of modules and calls none.

    Args:
        statements: The block.
        values: What the names bound outside it refer to.

    Returns:
        By path, the items that it may ask for of an output that is a tuple, None for all of them; None for a block of
        which this cannot be told, or that does more.
    """
    try:
        reader = _Reader(statements, values)
        reader.refuse_calls_of_modules()
        found: dict[str, frozenset[int] | None] = {}
        for (path, side), item in reader.reads():
            if side != "output":
                return None
            known = found.get(path, frozenset())
            found[path] = None if known is None or item is None else known | {item}
        return found
    except Unproven:
        return None


class _Reader:
    def __init__(self, statements: Sequence[ast.stmt], values: Mapping[str, object]) -> None:
        self._values = values
        self._nodes = [node for statement in statements for node in ast.walk(statement)]
        # What a name is bound to: an expression, or an item of one; None where that is not known.
        self._bindings: dict[str, list[tuple[ast.expr, bool] | None]] = {}
        told: set[ast.AST] = set()
        for node in self._nodes:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self._bind(target, node.value, told)
            elif isinstance(node, ast.NamedExpr | ast.AnnAssign) and node.value is not None:
                self._bind(node.target, node.value, told)
            elif isinstance(node, ast.For | ast.comprehension):
                self._bind_items(node.target, node.iter, told)
        for node in self._nodes:
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load) and node not in told:
                self._note(node.id, None)
            for name in _other_bindings(node):
                self._note(name, None)
        self._under_way: set[str] = set()

    def reads(self) -> Iterator[tuple[Place, int | None]]:
        """Yield all places, each with the item that is asked for there, or None for the whole value.

        Raises:
            Unproven: One cannot be told.
        """
        items: dict[ast.expr, int] = {}
        for node in self._nodes:
            match node:
                case ast.Subscript(ast.Attribute(_, name) as value, ast.Constant(int() as index)) if (
                    name in SIDES and isinstance(node.ctx, ast.Load) and not isinstance(index, bool)
                ):
                    items[value] = index
        for node in self._nodes:
            match node:
                case ast.Name(name) if name in _OPAQUE_CALLS:
                    raise Unproven
                case ast.Attribute(_, name) if name in _OPAQUE or name.startswith("_"):
                    raise Unproven
                case ast.Call(ast.Attribute(ast.Name(name), method)) if self._holds_modules(name, method):
                    raise Unproven
                case ast.Call(ast.Attribute(owner, "get"), [ast.Constant(str() as path)], []):
                    yield from ((place, None) for place in self._of_path(owner, path))
                case ast.Attribute(_, "get"):
                    if not self._is_call_by_path(node):
                        raise Unproven
                case ast.Attribute(owner, name) if name in SIDES or name in VALUE_NAMES:
                    for envoy in self._envoys(owner):
                        yield from ((place, items.get(node)) for place in _place(envoy, name))

    def refuse_calls_of_modules(self) -> None:
        """Refuse a block that may call a module by itself.

        Raises:
            Unproven: It may.
        """
        for node in self._nodes:
            if not isinstance(node, ast.Call):
                continue
            function = node.func
            if isinstance(function, ast.Attribute):
                if function.attr == "get":
                    continue
                if self._may_be_module(function):
                    raise Unproven
            elif not isinstance(function, ast.Name) or function.id in self._bindings or self._may_be_module(function):
                raise Unproven

    def _may_be_module(self, node: ast.expr) -> bool:
        try:
            return bool(self._envoys(node))
        except Unproven:
            return False

    def _of_path(self, owner: ast.expr, path: str) -> set[Place]:
        before, _, last = path.rpartition(".")
        if last not in SIDES and last not in VALUE_NAMES:
            return set()
        found: set[Place] = set()
        for envoy in self._envoys(owner):
            found |= _place(static_member(envoy, before) if before else envoy, last)
        return found

    def _is_call_by_path(self, attribute: ast.Attribute) -> bool:
        return any(
            isinstance(node, ast.Call)
            and node.func is attribute
            and len(node.args) == 1
            and isinstance(node.args[0], ast.Constant)
            and isinstance(node.args[0].value, str)
            for node in self._nodes
        )

    # What expressions lead to ---------------------------------------------------------------------------------------

    def _envoys(self, node: ast.expr) -> list[Envoy]:
        """Return the modules that an expression may lead to.

        Raises:
            Unproven: It may lead to something else.
        """
        match node:
            case ast.Name(name):
                return self._named(name)
            case ast.Attribute(owner, name):
                return [_envoy(static_child(envoy, name)) for envoy in self._envoys(owner)]
            case ast.Subscript(ast.Name(name), ast.Constant(int() as index)) if self._is_sequence(name):
                return [_envoy(item) for item in self._values[name][index : index + 1]]  # type: ignore[index]
            case ast.Subscript(owner, ast.Constant(int() as index)):
                return [_envoy(static_items(envoy, index)) for envoy in self._envoys(owner)]
            case ast.Subscript(owner, ast.UnaryOp(ast.USub(), ast.Constant(int() as index))):
                return [_envoy(static_items(envoy, -index)) for envoy in self._envoys(owner)]
            case ast.Subscript(owner, _):
                return self._items(owner)
            case ast.Call(ast.Attribute(owner, "get"), [ast.Constant(str() as path)], []):
                return [static_member(envoy, path) for envoy in self._envoys(owner)]
            case ast.IfExp(_, body, other):
                return [*self._envoys(body), *self._envoys(other)]
        raise Unproven

    def _named(self, name: str) -> list[Envoy]:
        found: list[Envoy] = []
        if name in self._values:
            value = self._values[name]
            if getattr(type(value), "stands_in", False):
                value = getattr(value, "envoy", None)
            found.append(_envoy(value))
        elif name not in self._bindings:
            raise Unproven
        if name in self._under_way:
            raise Unproven
        self._under_way.add(name)
        for binding in self._bindings.get(name, ()):
            if binding is None:
                raise Unproven
            expression, of_items = binding
            found += self._items(expression) if of_items else self._envoys(expression)
        self._under_way.discard(name)
        return found

    def _items(self, node: ast.expr) -> list[Envoy]:
        """Return the modules that the items of an expression may be."""
        match node:
            case ast.List(elements) | ast.Tuple(elements):
                return [envoy for element in elements for envoy in self._envoys(element)]
            case ast.Call(ast.Name("reversed" | "list" | "tuple" | "sorted" as name), [argument], []):
                if name in self._values or name in self._bindings:
                    raise Unproven
                return self._items(argument)
            case ast.Subscript(owner, ast.Slice()):
                return self._items(owner)
            case ast.Name(name) if self._is_sequence(name):
                return [_envoy(item) for item in self._values[name]]  # type: ignore[attr-defined]
            case ast.Name(name) if isinstance(value := self._values.get(name), dict) and name not in self._bindings:
                return [_envoy(item) for item in value.values()]
        found: list[Envoy] = []
        for envoy in self._envoys(node):
            items = static_items(envoy, None)
            assert isinstance(items, list)
            found += [_envoy(item) for item in items]
        return found

    # Names ----------------------------------------------------------------------------------------------------------

    def _note(self, name: str, binding: tuple[ast.expr, bool] | None) -> None:
        self._bindings.setdefault(name, []).append(binding)

    def _bind(self, target: ast.expr, value: ast.expr, told: set[ast.AST]) -> None:
        if isinstance(target, ast.Name):
            told.add(target)
            self._note(target.id, (value, False))
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            for each, part in zip(target.elts, value.elts, strict=True):
                self._bind(each, part, told)

    def _bind_items(self, target: ast.expr, iterable: ast.expr, told: set[ast.AST]) -> None:
        if isinstance(target, ast.Name):
            told.add(target)
            self._note(target.id, (iterable, True))
            return
        match target, iterable:
            case ast.Tuple([_, second]), ast.Call(ast.Name("enumerate"), [argument, *_]) if self._is_free("enumerate"):
                self._bind_items(second, argument, told)
            case ast.Tuple(targets), ast.Call(ast.Name("zip"), arguments) if len(targets) == len(arguments):
                if self._is_free("zip"):
                    for each, argument in zip(targets, arguments, strict=True):
                        self._bind_items(each, argument, told)

    def _holds_modules(self, name: str, method: str) -> bool:
        """Tell whether a method may change which modules a container of them holds."""
        value = self._values.get(name)
        if method in _LOOKING or not isinstance(value, list | dict | set):
            return False
        return any(isinstance(item, Envoy) for item in (value.values() if isinstance(value, dict) else value))

    def _is_sequence(self, name: str) -> bool:
        return isinstance(self._values.get(name), list | tuple) and name not in self._bindings

    def _is_free(self, name: str) -> bool:
        return name not in self._values


def _other_bindings(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node binds without a name of its own in the tree."""
    if isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar | ast.ClassDef | ast.FunctionDef):
        if node.name is not None:
            yield node.name
    elif isinstance(node, ast.MatchMapping) and node.rest is not None:
        yield node.rest
    elif isinstance(node, ast.alias):
        yield node.asname or node.name.partition(".")[0]


def _envoy(value: object) -> Envoy:
    if not isinstance(value, Envoy):
        raise Unproven
    return value


def _place(envoy: Envoy, name: str) -> set[Place]:
    if path_of(envoy) in envoy._tree.standard.read_as_values:
        # It is a value of the request, which is there when the prompt is.
        return set()
    if name in SIDES:
        location = envoy._location(name)
        return {(location.path, location.side)}
    standard = envoy._standard_location(name)
    if standard is None or standard.standard is None or isinstance(standard.standard.value.plus, LayerArgument):
        raise Unproven
    place = standard.place
    return {(place.path, place.side)}
