"""What an op will call, told before it runs."""

from __future__ import annotations

import ast
import builtins
import inspect
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Final

from torch import nn

if TYPE_CHECKING:
    from nnsight._source.naming import Op
    from nnsight._source.running import RunningFunction

UNKNOWN: Final = object()


def called_by(op: Op, running: RunningFunction) -> object:
    """Return what an op of a function calls, or `UNKNOWN` where only running it tells.

    Nothing of the model's own is executed: no properties, no calls, no subscripts.
    """
    if op.function is None:
        return UNKNOWN
    names: list[str] = []
    node = op.function
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    value = _name(node.id, running) if isinstance(node, ast.Name) else UNKNOWN
    for name in reversed(names):
        if value is UNKNOWN:
            break
        value = _attribute(value, name)
    return value


def _name(name: str, running: RunningFunction) -> object:
    function = running.function
    code = function.__code__
    if name in code.co_varnames or name in code.co_cellvars:
        first = code.co_varnames[0] if code.co_argcount else None
        return running.owner if name == first and running.owner is not None else UNKNOWN
    if name in code.co_freevars:
        try:
            return (function.__closure__ or ())[code.co_freevars.index(name)].cell_contents
        except ValueError:
            return UNKNOWN
    return function.__globals__.get(name, getattr(builtins, name, UNKNOWN))


def _attribute(value: Any, name: str) -> object:
    if isinstance(value, nn.Module):
        for table in (value._modules, value.__dict__):
            if name in table:
                return table[name]
    if isinstance(value, ModuleType | type):
        return getattr(value, name, UNKNOWN)
    found = inspect.getattr_static(value, name, UNKNOWN)
    if name in getattr(value, "__dict__", {}):
        return found
    if isinstance(found, FunctionType):
        return MethodType(found, value)
    return found.__func__ if isinstance(found, staticmethod) else UNKNOWN
