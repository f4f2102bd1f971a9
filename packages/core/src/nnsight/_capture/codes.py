"""Facts about code objects, kept exactly as long as the code objects."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from types import CodeType

Value = TypeVar("Value")


class PerCode(Generic[Value]):
    """A weak mapping from code objects to values, by identity.

    Code objects compare by content, which is slow, and says nothing about where they came from: cells that were run
    again, or files with the same lines, can give equal ones.
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[CodeType], Value]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, code: CodeType) -> Value | None:
        """The value of a code object, or None."""
        entry = self._entries.get(id(code))
        return entry[1] if entry is not None and entry[0]() is code else None

    def set(self, code: CodeType, value: Value) -> Value:
        """Store the value of a code object, and return it."""
        key, entries = id(code), self._entries

        def forget(reference: weakref.ref[CodeType]) -> None:
            # The number may already belong to another code object.
            entry = entries.get(key)
            if entry is not None and entry[0] is reference:
                del entries[key]

        entries[key] = (weakref.ref(code, forget), value)
        return value
