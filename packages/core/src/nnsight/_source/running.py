"""Which function really runs where a module's forward, or any callable, is called."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import CellType, FunctionType, MethodType
from typing import Any

from torch import nn

from nnsight._capture import find_function, parse_function
from nnsight.errors import CaptureError, SourceNotFoundError, UnsupportedFeatureError


@dataclass(frozen=True)
class RunningFunction:
    """The function behind a callable.

    Attributes:
        function: The function, without its decorators.
        owner: The object that it is a method of, or None.
        replaced: Gives the callable with another function in the place of this one.
    """

    function: FunctionType
    owner: object
    replaced: Callable[[FunctionType], Callable[..., Any]]


def forward_of(module: nn.Module) -> Callable[..., Any]:
    """Return a module's own forward, also while another one stands in for it."""
    forward: Callable[..., Any] = module.forward
    owner = getattr(forward, "__self__", None)
    for stand_in in (forward, owner if owner is not module else None):
        forward = getattr(stand_in, "nnsight_original", forward)
    return forward


def running_function(called: object, what: str) -> RunningFunction:
    """Find the function that runs when `called` is called.

    Decorators made with `functools.wraps` are looked through, and so is a method that does nothing but hand its
    arguments on to another method of its object.

    Args:
        called: A function, a method, or what a decorator made of one.
        what: What it is, for messages.

    Raises:
        SourceNotFoundError: It is not written in Python, a decorator hides what is, or the module has no forward.
        UnsupportedFeatureError: It is compiled.
    """
    if isinstance(called, nn.Module):
        raise UnsupportedFeatureError(
            f"{what} calls a {type(called).__name__}, which is a module: look inside that module by its own path, with "
            "its own .source"
        )
    if getattr(called, "_torchdynamo_orig_callable", None) is not None and not getattr(
        called, "_torchdynamo_disable", False
    ):
        raise UnsupportedFeatureError(
            f"{what} is compiled by torch.compile, and compiled code has no ops to stop at; build the model without it"
        )
    if isinstance(called, MethodType):
        return _method(called, what)
    wrapped = getattr(called, "__wrapped__", None)
    if wrapped is not None:
        return _decorated(called, wrapped, what)
    if isinstance(called, functools.partial):
        inner = running_function(called.func, what)
        given, named = called.args, called.keywords
        return RunningFunction(
            inner.function, inner.owner, lambda other: functools.partial(inner.replaced(other), *given, **named)
        )
    if not isinstance(called, FunctionType):
        raise _no_source(called, what)
    return RunningFunction(called, None, lambda other: other)


def _method(method: MethodType, what: str) -> RunningFunction:
    owner = method.__self__
    if method.__name__ == "_forward_unimplemented":
        raise SourceNotFoundError(f"{what} is a {type(owner).__name__}, which has no forward: it is never called")
    inner = running_function(method.__func__, what)
    next_name = _handed_on_to(inner.function)
    if next_name is None or getattr(owner, next_name, None) is None:
        return RunningFunction(inner.function, owner, lambda other: MethodType(inner.replaced(other), owner))
    last = running_function(getattr(owner, next_name), what)

    def replaced(other: FunctionType) -> Callable[..., Any]:
        target = last.replaced(other)

        def hand_on(_: object, *args: Any, **kwargs: Any) -> Any:
            return target(*args, **kwargs)

        return MethodType(inner.replaced(hand_on), owner)  # type: ignore[arg-type]

    return RunningFunction(last.function, last.owner or owner, replaced)


def _decorated(called: Any, wrapped: Any, what: str) -> RunningFunction:
    inner = running_function(wrapped, what)
    cell = _cell_with(called, wrapped) if isinstance(called, FunctionType) else None
    if cell is not None:
        return RunningFunction(
            inner.function, inner.owner, lambda other: _with_cell(called, cell, inner.replaced(other))
        )
    # Such as what `accelerate` does to a module that it moves: the original is kept as an attribute of the module.
    attributes: dict[str, Any] = getattr(inner.owner, "__dict__", {})
    kept = next((name for name, value in attributes.items() if _same(value, wrapped)), None)
    if kept is not None:
        return RunningFunction(
            inner.function, inner.owner, lambda other: _with_attribute(called, attributes, kept, inner.replaced(other))
        )
    raise SourceNotFoundError(
        f"{what} is decorated by something that hides the function below it, so nothing can be put in "
        "its place; read what the modules in it are given and return"
    )


def _cell_with(function: FunctionType, value: object) -> CellType | None:
    return next((cell for cell in function.__closure__ or () if _holds(cell, value)), None)


def _with_cell(wrapper: FunctionType, replaced: CellType, value: object) -> FunctionType:
    closure = tuple(CellType(value) if cell is replaced else cell for cell in wrapper.__closure__ or ())
    made = FunctionType(wrapper.__code__, wrapper.__globals__, wrapper.__name__, wrapper.__defaults__, closure)
    made.__kwdefaults__ = wrapper.__kwdefaults__
    made.__dict__.update(wrapper.__dict__)
    return made


def _with_attribute(
    called: Callable[..., Any], attributes: dict[str, Any], name: str, value: object
) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        before = attributes[name]
        attributes[name] = value
        try:
            return called(*args, **kwargs)
        finally:
            attributes[name] = before

    return call


def _holds(cell: CellType, value: object) -> bool:
    try:
        held = cell.cell_contents
    except ValueError:
        return False
    return _same(held, value)


def _same(one: object, other: object) -> bool:
    # Methods are made anew whenever they are looked up.
    return one is other or (isinstance(one, MethodType) and one == other)


def _handed_on_to(function: FunctionType) -> str | None:
    """Return the name of a method that a method hands all its arguments on to, or None where it does more."""
    if "__wrapped__" in function.__dict__ or len(function.__code__.co_names) != 1:
        return None
    try:
        node = parse_function(find_function(function))
    except CaptureError:
        return None
    if isinstance(node, ast.Lambda) or not node.args.args:
        return None
    body = [each for each in node.body if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))]
    if len(body) != 1 or not isinstance(body[0], ast.Return) or not isinstance(body[0].value, ast.Call):
        return None
    arguments, call = node.args, body[0].value
    if arguments.vararg is None or arguments.kwarg is None or len(arguments.args) != 1 or arguments.kwonlyargs:
        return None
    first, (name,) = arguments.args[0].arg, function.__code__.co_names
    wanted = f"{first}.{name}(*{arguments.vararg.arg}, **{arguments.kwarg.arg})"
    return name if ast.unparse(call) == wanted else None


def _no_source(called: object, what: str) -> SourceNotFoundError:
    name = getattr(called, "__name__", None) or type(called).__name__
    return SourceNotFoundError(
        f"{what} calls {name}, which is implemented in C or C++, or is an object with a call of its own, and has no "
        "Python source to look into; read its .input and .output instead"
    )
