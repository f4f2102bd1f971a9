"""Modules, classes, functions and methods, by their names."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from typing import TYPE_CHECKING, cast

import numpy as np

from nnsight._wire.checks import fields, part
from nnsight._wire.encoder import describe_type
from nnsight._wire.naming import find_by_name, import_by_name
from nnsight.errors import WireError

if TYPE_CHECKING:
    from nnsight._wire.decoder import Decoder
    from nnsight._wire.encoder import Encoder
    from nnsight._wire.table import CodecTable

_DESCRIPTORS = (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType)
_FUNCTIONS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    *_DESCRIPTORS,
    np.ufunc,
    type(np.sum),
    type(functools.lru_cache(len)),
)
_BOUND = (types.MethodType, types.BuiltinMethodType, types.MethodWrapperType)
# Where functions and classes in C are found whose own names lead nowhere.
_SEARCHED_FIRST = ("builtins", "types", "math", "operator", "torch", "torch.nn.functional", "torch.special", "numpy")
_MOVE = "Move its definition to a module that both processes can import, or write it inside the block."


def locate(value: object) -> tuple[str, str] | None:
    """Find the module and the qualified name by which importing gives this very object.

    Args:
        value: A class, function or method.

    Returns:
        The module's name and the qualified name; None when no name leads to the object.
    """
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    home = getattr(getattr(value, "__objclass__", value), "__module__", None)
    bound_to = getattr(value, "__self__", None)
    if isinstance(bound_to, types.ModuleType):
        home = bound_to.__name__
    elif isinstance(value, _BOUND) and bound_to is not None:
        home = type(bound_to).__module__
    if not isinstance(name, str) or home == "__main__":
        return None
    if isinstance(home, str):
        if "<" not in name and find_by_name(home, name) is value:
            return home, name
        for place in (home, "types"):
            module = sys.modules.get(place)
            for entry, found in list(vars(module).items()) if isinstance(module, types.ModuleType) else ():
                if found is value:
                    return place, entry
    if isinstance(value, types.FunctionType) or bound_to is not None:
        return None
    return _search(value, name.rpartition(".")[2])


def _search(value: object, name: str) -> tuple[str, str] | None:
    for candidate in (*_SEARCHED_FIRST, *sorted(sys.modules)):
        module = sys.modules.get(candidate)
        if candidate != "__main__" and isinstance(module, types.ModuleType) and vars(module).get(name) is value:
            return candidate, name
    return None


def is_method(value: object) -> bool:
    """Say whether a value is a method bound to an object, and not the function of a module.

    Args:
        value: Any value.
    """
    if not isinstance(value, _BOUND) or isinstance(value.__self__, types.ModuleType | types.NoneType):
        return False
    return locate(value) is None


class ModuleCodec:
    """Modules, by name."""

    tag = "module"

    def encode(self, value: types.ModuleType, encoder: Encoder) -> object:
        """Write the name."""
        name = value.__name__
        if name == "__main__" or sys.modules.get(name) is not value:
            raise encoder.refusal(value, f"the module {name!r} cannot be imported in another process", _MOVE)
        return name

    def decode(self, payload: object, decoder: Decoder) -> object:
        """Import the module."""
        return import_by_name(part(payload, str), "", decoder.limits)


class NamedCodec:
    """Classes or functions, by module and qualified name."""

    def __init__(self, tag: str, kinds: tuple[type, ...]) -> None:
        """Make a codec.

        Args:
            tag: The tag, which is also the noun in messages.
            kinds: The types of the values.
        """
        self.tag = tag
        self._kinds = kinds

    def encode(self, value: object, encoder: Encoder) -> object:
        """Write the names."""
        located = locate(value)
        if located is None:
            name = getattr(value, "__qualname__", None) or getattr(value, "__name__", "?")
            home = getattr(value, "__module__", None) or "?"
            raise encoder.refusal(value, f"importing `{name}` from {home} does not give this {self.tag}", _MOVE)
        return list(located)

    def decode(self, payload: object, decoder: Decoder) -> object:
        """Import the object."""
        module, name = (part(text, str) for text in fields(payload, 2))
        value = import_by_name(module, name, decoder.limits)
        if not isinstance(value, self._kinds):
            raise WireError(f"{module}:{name} is a {describe_type(type(value))} in this process, not a {self.tag}")
        return value


class MethodCodec:
    """Methods bound to an object or a class."""

    tag = "method"

    def encode(self, value: types.MethodType | types.BuiltinMethodType, encoder: Encoder) -> object:
        """Write the object and the method's name."""
        name = value.__name__
        owner = value.__self__
        try:
            found = bound_method(owner, name)
        except (AttributeError, TypeError):
            found = None
        if found != value:
            raise encoder.refusal(value, f"`{describe_type(type(owner))}` has no method `{name}` that equals it", _MOVE)
        return [encoder.node(owner, ".__self__"), name]

    def decode(self, payload: object, decoder: Decoder) -> object:
        """Bind the method of that name; it is not called."""
        node, name = fields(payload, 2)
        return bound_method(decoder.value(node), part(name, str))


def bound_method(owner: object, name: str) -> object:
    """Bind a method without running code of its class.

    Args:
        owner: The object or class.
        name: The method's name.

    Raises:
        AttributeError: There is no such attribute.
        TypeError: The attribute is no method.
    """
    if isinstance(owner, type):
        member = inspect.getattr_static(owner, name)
        if isinstance(member, classmethod | types.ClassMethodDescriptorType):
            return member.__get__(None, owner)
    else:
        member = inspect.getattr_static(type(owner), name)
        if isinstance(member, (types.FunctionType, *_DESCRIPTORS)):
            return cast("object", member.__get__(owner, type(owner)))
    raise TypeError(f"{name!r} is no method of {describe_type(type(owner))}")


def add_names(table: CodecTable) -> None:
    """Add the codecs of this module to a table.

    Args:
        table: The table.
    """
    table.register(types.ModuleType, ModuleCodec())
    table.register_predicate(lambda value: isinstance(value, type), NamedCodec("class", (type,)))
    table.register_predicate(is_method, MethodCodec())
    callables = (*_FUNCTIONS, *_BOUND)
    table.register_predicate(lambda value: isinstance(value, callables), NamedCodec("function", callables))
