"""Give a block that runs in this process its own view of the values that it names."""

from __future__ import annotations

import functools
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from nnsight._capture import compile_function, counting_helpers, find_function
from nnsight._program import (
    Pending,
    block_helpers,
    closure_values,
    global_values,
    is_installed,
    reaches_save,
    save_names,
)
from nnsight._trace.block_tracer import BlockTracer
from nnsight._trace.edit import EditTracer
from nnsight._trace.model import TracedModel
from nnsight._trace.tracer import Invoker, Tracer
from nnsight.errors import SourceNotFoundError

if TYPE_CHECKING:
    from nnsight._interleave.budget import StepBudget


def localize(value: Any, seen: dict[Any, Any], steps: StepBudget | None = None) -> Any:
    """Copy containers, so that an append of one block never shows in another's, and stand in for models and tracers.

    Functions in which something is saved, by themselves or by a function that they call, are compiled anew, so that
    `x.save()` works in them as it does in the block. With a step budget, all are whose source is at
    hand. They are given copies of what they refer to, as in an engine.

    Args:
        value: A value that a block names.
        seen: What became of the values before it, by identity; the same for all values of one block.
        steps: What the loops and calls of functions count for.
    """
    if id(value) in seen:
        return seen[id(value)]
    kind = type(value)
    if kind is list:
        copied: Any = seen.setdefault(id(value), [])
        copied.extend(localize(item, seen, steps) for item in value)
        return copied
    if kind is dict:
        copied = seen.setdefault(id(value), {})
        copied.update({key: localize(item, seen, steps) for key, item in value.items()})
        return copied
    if kind is set:
        return seen.setdefault(id(value), set(value))
    if kind is tuple:
        return tuple(localize(item, seen, steps) for item in value)
    if isinstance(value, Pending):
        raise value.refusal()
    if isinstance(value, TracedModel):
        return value.envoy
    if isinstance(value, Tracer | Invoker | EditTracer):
        return BlockTracer()
    if kind is functools.partial and _is_recompiled(value, steps):
        own = functools.partial(
            localize(value.func, seen, steps),
            *localize(value.args, seen, steps),
            **localize(value.keywords, seen, steps),
        )
        vars(own).update(vars(value))
        return own
    if kind is MethodType and _is_recompiled(value, steps):
        return MethodType(localize(value.__func__, seen, steps), value.__self__)
    if kind is FunctionType and _is_recompiled(value, steps):
        return _recompiled(value, seen, steps)
    return value


def _is_recompiled(value: Any, steps: StepBudget | None) -> bool:
    if reaches_save(value):
        return True
    function = value.func if isinstance(value, functools.partial) else getattr(value, "__func__", value)
    return steps is not None and type(function) is FunctionType and not is_installed(function)


def _recompiled(function: FunctionType, seen: dict[Any, Any], steps: StepBudget | None) -> FunctionType:
    try:
        source = find_function(function)
    except SourceNotFoundError:
        return function
    names, free = global_values(function), closure_values(function)
    # Functions of one module share their globals, so that they find each other's copies.
    helpers = block_helpers() if steps is None else {**block_helpers(), **counting_helpers(steps.counts)}
    namespace = seen.setdefault(("globals", id(function.__globals__)), {**function.__globals__, **helpers})
    free_names = function.__code__.co_freevars
    code = compile_function(source, free_names, save_names({**names, **free}), counts=steps is not None)
    make = FunctionType(code, namespace)
    own: FunctionType = make(*[None] * len(free_names))
    seen[id(function)] = own
    for name, cell in zip(own.__code__.co_freevars, own.__closure__ or (), strict=True):
        if name in free and free[name] is not function:
            cell.cell_contents = localize(free[name], seen, steps)
    namespace.update({name: localize(value, seen, steps) for name, value in names.items()})
    own.__defaults__ = localize(function.__defaults__, seen, steps)
    own.__kwdefaults__ = localize(function.__kwdefaults__, seen, steps)
    own.__qualname__ = function.__qualname__
    vars(own).update(vars(function))
    return own
