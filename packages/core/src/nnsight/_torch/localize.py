"""Give a block that runs in this process its own view of the values that it names."""

from __future__ import annotations

from types import CodeType, FunctionType
from typing import Any

from nnsight._capture import compile_function, find_function
from nnsight._program import block_helpers, is_installed
from nnsight._trace.block_tracer import BlockTracer
from nnsight._trace.model import TracedModel
from nnsight._trace.tracer import Invoker, Tracer
from nnsight.errors import SourceNotFoundError


def localize(value: Any, seen: dict[int, Any] | None = None) -> Any:
    """Copy containers, so that an append of one block never shows in another's, and stand in for models and tracers.

    Functions that were not installed are compiled anew, so that `x.save()` works in them as it does in the block.
    """
    seen = {} if seen is None else seen
    if id(value) in seen:
        return seen[id(value)]
    kind = type(value)
    if kind is list:
        copied: Any = seen.setdefault(id(value), [])
        copied.extend(localize(item, seen) for item in value)
        return copied
    if kind is dict:
        copied = seen.setdefault(id(value), {})
        copied.update({key: localize(item, seen) for key, item in value.items()})
        return copied
    if kind is set:
        return set(value)
    if kind is tuple:
        return tuple(localize(item, seen) for item in value)
    if isinstance(value, TracedModel):
        return value.envoy
    if isinstance(value, Tracer | Invoker):
        return BlockTracer()
    if kind is FunctionType and not is_installed(value) and _mentions_save(value.__code__):
        return _recompiled(value)
    return value


def _mentions_save(code: CodeType) -> bool:
    return "save" in code.co_names or any(_mentions_save(c) for c in code.co_consts if isinstance(c, CodeType))


def _recompiled(function: FunctionType) -> FunctionType:
    try:
        source = find_function(function)
    except SourceNotFoundError:
        return function
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    namespace = {**function.__globals__, **block_helpers()}
    make = FunctionType(compile_function(source, tuple(cells)), namespace)
    code = make(*[None] * len(cells)).__code__
    closure = tuple(cells[name] for name in code.co_freevars)
    again = FunctionType(code, namespace, function.__name__, function.__defaults__, closure)
    again.__kwdefaults__ = function.__kwdefaults__
    return again
