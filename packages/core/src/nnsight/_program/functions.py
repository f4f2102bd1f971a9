"""Functions that travel by source: compiled anew where they arrive, with what they refer to."""

from __future__ import annotations

import builtins
import functools
import sys
import sysconfig
from dataclasses import astuple
from functools import lru_cache
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from nnsight._capture import FunctionSource, compile_function, counting_helpers, find_function
from nnsight._program.saves import block_helpers, save, save_names
from nnsight.errors import WireError
from nnsight.plugins import load_object

if TYPE_CHECKING:
    from nnsight._interleave import Budget
    from nnsight._wire import Decoder, Encoder


def is_installed(function: FunctionType) -> bool:
    """Tell whether a function can be imported by name from an installed package or the standard library."""
    module = sys.modules.get(function.__module__ or "")
    found: Any = module
    for part in function.__qualname__.split("."):
        found = getattr(found, part, None)
    file = getattr(module, "__file__", None)
    if found is not function or file is None:
        return False
    # Our own package is on every side, also where it runs from a checkout.
    return file.startswith(_library_folders()) or function.__module__.partition(".")[0] == "nnsight"


@lru_cache(maxsize=1)
def _library_folders() -> tuple[str, ...]:
    return tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def global_names(code: CodeType) -> set[str]:
    """Return the names that a function and the functions inside it look up as globals or attributes."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= global_names(constant)
    return names


def global_values(function: FunctionType) -> dict[str, object]:
    """Return what a function and the functions inside it may look up as globals, in the order of the names."""
    own = function.__globals__
    return {name: own[name] for name in sorted(global_names(function.__code__)) if name in own}


def closure_values(function: FunctionType) -> dict[str, object]:
    """Return the variables of the scopes around a function that it uses, as far as they are bound."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in cells if _is_filled(cell)}


def reaches_save(value: object, seen: set[int] | None = None) -> bool:
    """Tell whether something may be saved in a function, or in one that it refers to, so that it is compiled anew."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return False
    seen.add(id(value))
    if isinstance(value, functools.partial):
        return any(reaches_save(each, seen) for each in (value.func, *value.args, *value.keywords.values()))
    if isinstance(value, MethodType):
        return reaches_save(value.__func__, seen)
    if type(value) is not FunctionType or is_installed(value):
        return False
    if "save" in global_names(value.__code__):
        return True
    used = [*global_values(value).values(), *closure_values(value).values(), *(value.__defaults__ or ())]
    return any(each is save for each in used) or any(
        reaches_save(each, seen) for each in [*used, *(value.__kwdefaults__ or {}).values()]
    )


class FunctionCodec:
    """Send an installed function by name, any other as its source with its closure, defaults and globals."""

    tag = "nnsight.function"

    def __init__(self, budget: Budget | None = None) -> None:
        """Let functions that are read count for a budget."""
        steps = None if budget is None else budget.steps
        self._counting = {} if steps is None else counting_helpers(steps.counts)

    def encode(self, value: Any, encoder: Encoder) -> object:
        """Describe a function.

        Raises:
            SourceNotFoundError: The function has no source text.
            UntransferableValueError: Something that it refers to cannot travel.
        """
        if is_installed(value):
            return ["name", value.__module__, value.__qualname__]
        code = value.__code__
        free = {name: other for name, other in closure_values(value).items() if other is not value}
        names = global_values(value)
        recursive = sorted(name for name, other in names.items() if other is value)
        return [
            "source",
            list(astuple(find_function(value))),
            list(code.co_freevars),
            encoder.node(free, f"{value.__name__}'s closure"),
            encoder.node({name: other for name, other in names.items() if other is not value}, "globals"),
            encoder.node(value.__defaults__, "defaults"),
            encoder.node(value.__kwdefaults__, "keyword defaults"),
            recursive,
        ]

    def decode(self, payload: Any, decoder: Decoder) -> object:
        """Import the function, or compile it and give it what it refers to."""
        if not decoder.limits.allow_objects:
            raise WireError("the message carries a function, which this receiver does not accept")
        if payload[0] == "name":
            return load_object(f"{payload[1]}:{payload[2]}")
        _, source_fields, free_names, free_node, names_node, defaults_node, keywords_node, recursive = payload
        source = FunctionSource(*source_fields)
        free: Any = decoder.value(free_node)
        names: Any = decoder.value(names_node)
        namespace: dict[str, Any] = {
            "__builtins__": builtins,
            "__name__": "__nnsight_function__",
            **names,
            **block_helpers(),
            **self._counting,
        }
        known = save_names({**names, **free})
        code = compile_function(source, tuple(free_names), known, counts=bool(self._counting))
        make = FunctionType(code, namespace)
        function: Any = make(*[free.get(name) for name in free_names])
        function.__defaults__ = decoder.value(defaults_node)
        function.__kwdefaults__ = decoder.value(keywords_node)
        namespace.update(dict.fromkeys(recursive, function))
        return function


class MethodCodec:
    """Send a bound method as its object and its name, and one in which something is saved with its source."""

    tag = "nnsight.method"

    def encode(self, value: object, encoder: Encoder) -> object:
        """Describe a method."""
        assert isinstance(value, MethodType)
        function = encoder.node(value.__func__, ".__func__") if reaches_save(value) else None
        return [encoder.node(value.__self__, "__self__"), value.__name__, function]

    def decode(self, payload: Any, decoder: Decoder) -> object:
        """Look the method up on its object, or bind its function to it."""
        owner_node, name, function_node = payload
        owner = decoder.value(owner_node)
        if function_node is None:
            return getattr(owner, name)
        function: Any = decoder.value(function_node)
        return MethodType(function, owner)


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - an empty cell raises
    except ValueError:
        return False
    return True
