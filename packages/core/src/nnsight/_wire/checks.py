"""Checks of the parts of a message, for the decoding side of codecs."""

from __future__ import annotations

from typing import TypeVar

from nnsight.errors import WireError

PartT = TypeVar("PartT")


def part(value: object, kind: type[PartT]) -> PartT:
    """Return a part of a message, which must be of this exact type.

    Args:
        value: The part.
        kind: `str`, `int`, `bytes`, `bool`, `float` or `list`.

    Raises:
        WireError: The part is of another type.
    """
    if type(value) is not kind:
        raise WireError(f"a part of the message is {type(value).__name__} where {kind.__name__} belongs")
    return value


def fields(value: object, least: int, most: int | None = None) -> list[object]:
    """Return a list of a message, which must have this many items.

    Args:
        value: The list.
        least: The fewest items.
        most: The most items; as many as `least` when it is None.

    Raises:
        WireError: The value is no list, or has another length.
    """
    items: list[object] = part(value, list)
    if not least <= len(items) <= (least if most is None else most):
        raise WireError(f"a part of the message has {len(items)} items where {least} belong")
    return items


def items_of(value: object) -> list[object]:
    """Return a list of a message, of any length.

    Args:
        value: The list.

    Raises:
        WireError: The value is no list.
    """
    return part(value, list)
