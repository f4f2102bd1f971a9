"""What objects of subclasses of builtins hold besides their attributes."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, cast

from nnsight._wire.checks import part
from nnsight._wire.codecs.containers import read_entries, read_items, read_keys, write_entries, write_items, write_keys
from nnsight.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nnsight._wire.decoder import Decoder
    from nnsight._wire.encoder import Encoder

_MAPPINGS = (OrderedDict, dict)
_MUTABLE = (*_MAPPINGS, list, set)
_SCALARS = (int, float, complex, str, bytes)
_BASES = frozenset({*_MUTABLE, *_SCALARS, tuple, frozenset})


def content_base(kind: type) -> type:
    """Find the builtin whose contents the objects of a class hold.

    Args:
        kind: A class.

    Returns:
        The nearest such base; `object` when there is none.
    """
    return next((base for base in kind.__mro__ if base in _BASES), object)


def write_contents(value: Any, base: Any, encoder: Encoder) -> object:
    """Encode the contents of an object, without running code of its class.

    Args:
        value: The object.
        base: Its builtin base.
        encoder: The encoding under way.
    """
    if base in _MAPPINGS:
        return write_entries(base.items(value), encoder)
    if base in (set, frozenset):
        return write_keys(base.__iter__(value), encoder)
    if base in (list, tuple):
        return write_items(list(base.__iter__(value)), encoder)
    exact: dict[type, Callable[[Any], object]] = {
        int: int.__int__,
        float: float.__float__,
        complex: complex.__pos__,
        str: str.__str__,
        bytes: bytes.__bytes__,
    }
    return encoder.node(exact[base](value))


def empty_object(kind: type, base: type, contents: list[object], decoder: Decoder) -> object:
    """Make an object of a class, with its contents if they cannot change later.

    Args:
        kind: The class.
        base: Its builtin base.
        contents: The contents' node, if it has a base.
        decoder: The decoding under way.
    """
    make = cast("Any", base).__new__
    if base is object or base in _MUTABLE:
        return cast("object", make(kind))
    if base is tuple:
        return cast("object", make(kind, read_items(contents[0], decoder)))
    if base is frozenset:
        return cast("object", make(kind, read_keys(contents[0], decoder)))
    return cast("object", make(kind, part(decoder.value(contents[0]), base)))


def fill_object(value: Any, base: Any, contents: object, decoder: Decoder) -> None:
    """Decode contents that may change into an object that `empty_object` made.

    Args:
        value: The object.
        base: Its builtin base.
        contents: The contents' node.
        decoder: The decoding under way.
    """
    if base in _MAPPINGS:
        read_entries(contents, decoder, lambda key, entry: base.__setitem__(value, key, entry))
    elif base is list:
        list.extend(value, read_items(contents, decoder))
    elif base is set:
        set.update(value, read_keys(contents, decoder))
    elif base is object:
        raise WireError("the message has contents for an object that has none")
