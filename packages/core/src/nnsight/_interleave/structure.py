"""The structure around the tensors of a value: what a module takes or returns, taken apart and put together again.

Tuples, lists, dicts, sets, deques, their subclasses (named tuples, torch's return types, Transformers' outputs),
dataclasses and any other object whose attributes hold tensors are all understood. The kinds that nearly every module
uses, a tensor and a plain tuple of tensors, take a short way, since each visit of a block goes through here.
"""

from __future__ import annotations

import copy
import functools
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from types import BuiltinFunctionType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from nnsight._wire.codecs.objects import attributes_of, slot_members
from nnsight.errors import UnsupportedFeatureError

Tensor = torch.Tensor
_PLAIN = frozenset({tuple, list, dict, set, frozenset, deque})
TensorFunction = Callable[[Tensor], object]

ATOMS = frozenset(
    {type(None), bool, int, float, complex, str, bytes, type(Ellipsis)}
    | {torch.Size, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Generator}
)
# Handed to a module by its caller, and not a value that it computes with: its attributes are left alone.
_OPAQUE = (nn.Module, type, ModuleType, FunctionType, MethodType, BuiltinFunctionType, functools.partial)


def map_tensors(value: object, function: TensorFunction) -> object:
    """Build a value anew around what `function` makes of each tensor in it.

    Containers are new objects; what holds no tensor and is no container is handed on as it is.

    Raises:
        UnsupportedFeatureError: Tensors are in an object that cannot be copied.
    """
    if isinstance(value, Tensor):
        return function(value)
    if type(value) is tuple:
        return tuple([function(item) if isinstance(item, Tensor) else _map(item, function, {}) for item in value])
    return _map(value, function, {})


def _map(value: object, function: TensorFunction, made: dict[int, object]) -> object:
    if isinstance(value, Tensor):
        return function(value)
    kind = type(value)
    if kind in ATOMS:
        return value
    if id(value) in made:
        return made[id(value)]
    if kind is tuple:
        return tuple([_map(item, function, made) for item in value])  # type: ignore[attr-defined]
    if kind is list:
        return [_map(item, function, made) for item in value]  # type: ignore[attr-defined]
    if kind is dict:
        return {key: _map(item, function, made) for key, item in value.items()}  # type: ignore[attr-defined]
    return _map_other(value, function, made)


def _map_other(value: Any, function: TensorFunction, made: dict[int, object]) -> object:
    if not holds_tensor(value):
        return _copied_container(value)
    nested = [item for _, item in parts(value) if not isinstance(item, Tensor) and holds_tensor(item)]
    if nested and isinstance(value, set | frozenset):
        raise _cannot_copy(value, "its elements are not tensors themselves")

    def once(tensor: Tensor) -> object:
        if id(tensor) not in made:
            made[id(tensor)] = function(tensor)
        return made[id(tensor)]

    try:
        own = shell(value)
        # Noted before the parts are made: an object may lead back to itself.
        if own is not None:
            made[id(value)] = own
        mapped = fill(value, own, [_map(item, once, made) for _, item in parts(value)])
    except UnsupportedFeatureError:
        raise
    except Exception as error:
        raise _cannot_copy(value, f"{type(error).__name__}: {error}") from error
    made[id(value)] = mapped
    return mapped


def _copied_container(value: Any) -> object:
    if isinstance(value, tuple | frozenset) or not isinstance(value, list | dict | set | deque):
        return value
    try:
        return copy.copy(value)
    except Exception:  # noqa: BLE001 - a class of its own may do anything, and there is no tensor in it
        return value


def holds_tensor(value: object, seen: set[int] | None = None) -> bool:
    """Tell whether a tensor is anywhere in a value."""
    if isinstance(value, Tensor):
        return True
    if type(value) in ATOMS:
        return False
    seen = set() if seen is None else seen
    if id(value) in seen:
        return False
    seen.add(id(value))
    return any(holds_tensor(item, seen) for _, item in parts(value))


def parts(value: Any) -> list[tuple[str, Any]]:
    """Return what a value holds, each with how a block spells it; nothing for a value that is no container."""
    if isinstance(value, tuple | list | deque):
        found = [(f"[{index}]", item) for index, item in enumerate(value)]
    elif isinstance(value, dict | MappingProxyType):
        found = [(f"[{key!r}]", item) for key, item in value.items()]
    elif isinstance(value, set | frozenset):
        found = [("{}", item) for item in value]
    elif isinstance(value, _OPAQUE):
        return []
    else:
        found = []
    held = {id(item) for _, item in found}
    # An attribute that is an item as well, as in Transformers' outputs, is one place.
    found += [(f".{name}", item) for name, item in _attributes(value) if id(item) not in held or type(item) in ATOMS]
    return found


def _attributes(value: object) -> list[tuple[str, Any]]:
    kind = type(value)
    if kind in _PLAIN:
        return []
    found = list((attributes_of(value) or {}).items())
    for name, member in _slots(kind):
        try:
            found.append((name, member.__get__(value, kind)))
        except AttributeError:
            continue
    return found


_SLOTS: WeakKeyDictionary[type, list[tuple[str, Any]]] = WeakKeyDictionary()


def _slots(kind: type) -> list[tuple[str, Any]]:
    found = _SLOTS.get(kind)
    if found is None:
        found = _SLOTS[kind] = [(name.partition(".")[2], member) for name, member in slot_members(kind).items()]
    return found


def shell(value: Any) -> Any:
    """Return a shallow copy whose parts can be replaced, or None for a kind that is made from its parts.

    Raises:
        TypeError: The value gives itself for its copy.
    """
    if isinstance(value, tuple | frozenset | MappingProxyType) or type(value) is set:
        return None
    own = copy.copy(value)
    if own is value or type(own) is not type(value):
        raise TypeError(f"copy.copy gives {own!r:.80}")
    return own


def fill(value: Any, own: Any, items: list[Any]) -> Any:
    """Put new parts into a shell of a value, in the order of `parts`; make the value where there is no shell."""
    kind = type(value)
    if isinstance(value, tuple):
        # Named tuples are made from their fields one by one by their own constructor, so it is passed over.
        count = len(value)
        first: Iterable[Any] = items[:count]
        own = kind(first) if hasattr(kind, "n_sequence_fields") else tuple.__new__(kind, first)
    elif isinstance(value, list):
        count = len(value)
        list.__setitem__(own, slice(None), items[:count])
    elif isinstance(value, deque):
        count = len(value)
        for index in range(count):
            deque.__setitem__(own, index, items[index])
    elif isinstance(value, MappingProxyType):
        count = len(value)
        own = MappingProxyType(dict(zip(value, items, strict=False)))
    elif isinstance(value, dict):
        count = len(value)
        for key, item in zip(value, items, strict=False):
            dict.__setitem__(own, key, item)
    elif isinstance(value, frozenset):
        count = len(value)
        own = frozenset.__new__(kind, items[:count])
    elif isinstance(value, set):
        count = len(value)
        own = kind(items[:count]) if own is None else own
        set.clear(own)
        set.update(own, items[:count])
    else:
        count = 0
    _fill_attributes(value, own, items, count)
    return own


def _fill_attributes(value: Any, own: Any, items: list[Any], count: int) -> None:
    if type(value) in _PLAIN:
        return
    places = parts(value)
    new = {id(item): made for (_, item), made in zip(places, items, strict=True) if type(item) not in ATOMS}
    own_attributes = attributes_of(own)
    members = dict(_slots(type(value)))
    given = {place[1:]: made for (place, _), made in zip(places[count:], items[count:], strict=True)}
    for name, item in _attributes(value):
        made = given[name] if name in given else new.get(id(item), item)
        if name in members:
            members[name].__set__(own, made)
        elif own_attributes is not None:
            own_attributes[name] = made


def describe(value: object) -> str:
    """Say in a few words what a value is."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)} values"
    if isinstance(value, Mapping):
        kind = "dict" if type(value) is dict else type(value).__name__
        return f"a {kind} with the keys {', '.join(map(repr, value)) or 'none'}"
    return f"a {type(value).__name__}"


def _cannot_copy(value: object, reason: str) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        f"the value holds a {type(value).__module__}.{type(value).__qualname__} with tensors in it, which cannot be "
        f"copied for the block ({reason}); read a part of it instead, such as the output of a module that is called "
        "inside, or `.input` instead of `.inputs`"
    )
