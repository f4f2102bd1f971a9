"""Which modules a block looks into with `.source`, told before it runs."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import FunctionType, MethodType

from nnsight._envoy import Envoy, ModelTree, Source, SourceOp
from nnsight._envoy.envoy import is_standard_module, path_of
from nnsight._program.functions import global_names
from nnsight.families import MODULE_NAMES

ANY = "*"


def modules_looked_into(statements: Sequence[ast.stmt], values: Mapping[str, object]) -> tuple[str, ...]:
    """Return the last names of the modules whose `.source` a block may ask for; `"*"` where they cannot be told.

    Args:
        statements: The block.
        values: What the names bound outside it refer to.

    Raises:
        UnknownLocationError: There is no such module.
    """
    constant = _constant(statements, values)
    found: set[str] = set()
    for value in values.values():
        if isinstance(value, Source | SourceOp):
            found.add(value._path.rpartition(".")[2])
        elif isinstance(value, MethodType | FunctionType) and _mentions_source(value):
            found.add(ANY)
    for node in _nodes(statements):
        if isinstance(node, ast.Attribute) and node.attr == "source":
            found.add(_last_name(node.value, constant))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "source" in node.value.split("."):
            # What `get` is given, or a part of it.
            before = node.value.split(".")[: node.value.split(".").index("source")]
            found.add(_unless_standard(before[-1]) if before and before[-1] else ANY)
    for tree in _trees(values):
        # What is named by an alias is known by its own name where it runs.
        aliases = {(name, real) for names in tree.aliases.values() for name, real in names.items()}
        found |= {real.rpartition(".")[2] for name, real in aliases if name in found}
    return (ANY,) if ANY in found else tuple(sorted(found))


def _trees(values: Mapping[str, object]) -> list[ModelTree]:
    envoys = [
        getattr(value, "envoy", None) if getattr(type(value), "stands_in", False) else value
        for value in values.values()
    ]
    return [envoy._tree for envoy in envoys if isinstance(envoy, Envoy)]


@lru_cache(maxsize=256)
def looks_into(names: tuple[str, ...]) -> Callable[[str], bool] | None:
    """Return what tells for the last name of a module's path whether its ops may be asked for."""
    if not names:
        return None
    if ANY in names:
        return lambda name: True
    return frozenset(names).__contains__


def check_ops(statements: Sequence[ast.stmt], values: Mapping[str, object]) -> None:
    """Look up the ops that a block names from a module known beforehand.

    Args:
        statements: The block.
        values: What the names bound outside it refer to.

    Raises:
        UnknownLocationError: There is no such op; the message lists those that there are.
        SourceNotFoundError: What is looked into is not written in Python.
    """
    constant = _constant(statements, values)
    for node in _nodes(statements):
        if isinstance(node, ast.Attribute) and _follows_source(node.value):
            _resolve(node, constant)


def _constant(statements: Sequence[ast.stmt], values: Mapping[str, object]) -> dict[str, object]:
    """Return the names that mean the same all through the block."""
    bound = {
        node.id for node in _nodes(statements) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
    }
    bound |= {node.arg for node in _nodes(statements) if isinstance(node, ast.arg)}
    return {name: value for name, value in values.items() if name not in bound}


def _nodes(statements: Sequence[ast.stmt]) -> list[ast.AST]:
    return [node for statement in statements for node in ast.walk(statement)]


def _follows_source(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "source"


def _resolve(node: ast.expr, values: Mapping[str, object]) -> Envoy | Source | SourceOp | None:
    """Return the stand-in that an expression leads to, or None where it cannot be told."""
    if isinstance(node, ast.Name):
        value = values.get(node.id)
        if getattr(type(value), "stands_in", False):
            value = getattr(value, "envoy", None)
        return value if isinstance(value, Envoy | Source | SourceOp) else None
    if isinstance(node, ast.Attribute):
        owner = _resolve(node.value, values)
        if isinstance(owner, Source):
            found: object = getattr(owner, node.attr)
        elif isinstance(owner, SourceOp):
            found = owner.source if node.attr == "source" else None
        elif isinstance(owner, Envoy) and (node.attr == "source" or _is_child(owner, node.attr)):
            found = getattr(owner, node.attr)
        else:
            return None
        return found if isinstance(found, Envoy | Source | SourceOp) else None
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        owner = _resolve(node.value, values)
        index = node.slice.value
        return owner[index] if isinstance(owner, Envoy) and isinstance(index, int | str) else None
    return None


def _is_child(owner: Envoy, name: str) -> bool:
    return name in owner._tree.children(owner._path) or is_standard_module(owner, name)


def _last_name(node: ast.expr, values: Mapping[str, object]) -> str:
    known = _resolve(node, values)
    if isinstance(known, Envoy):
        return path_of(known).rpartition(".")[2]
    # The ops of an op are asked for while its module runs, which the beginning of the chain names.
    while isinstance(node, ast.Attribute) and _follows_source(node.value):
        assert isinstance(node.value, ast.Attribute)
        node = node.value.value
    return _unless_standard(node.attr) if isinstance(node, ast.Attribute) else ANY


def _unless_standard(name: str) -> str:
    # What it stands for goes by another name.
    return ANY if name in MODULE_NAMES else name


def _mentions_source(function: FunctionType | MethodType) -> bool:
    return "source" in global_names(function.__code__)
