"""Which values of a block come home, and under which names."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TypeVar

from nnsight._envoy import Envoy, read_item
from nnsight._interleave.run import current_run
from nnsight.errors import InvalidRequestError, OutsideTraceError

Value = TypeVar("Value")

# Equal values of these types are one object, so that marking one would mark variables that were never saved.
_INTERNED = (type(None), bool, int, float, complex, str, bytes, tuple, frozenset, type(Ellipsis), type, type(len))


class SaveBook:
    """The saves of one block."""

    def __init__(self) -> None:
        """Begin with nothing saved."""
        self._names: dict[str, None] = {}
        self._objects: dict[int, object] = {}
        self._unnamed: dict[str, list[object]] = {}

    def mark(self, value: object, names: tuple[str, ...], label: str) -> None:
        """Save `value` under the variables that it is being bound to, or under a label.

        Raises:
            InvalidRequestError: The value is a module's stand-in rather than a value.
        """
        if isinstance(value, Envoy):
            raise InvalidRequestError(
                f"{label} is a module, which cannot be saved; save a value of it, such as {label}.output.save()"
            )
        for name in names:
            self._names[name] = None
        if not isinstance(value, _INTERNED):
            self._objects[id(value)] = value
        if not names:
            self._unnamed.setdefault(label, []).append(value)

    def has(self, value: object) -> bool:
        """Tell whether this very object was saved."""
        return id(value) in self._objects

    def collect(self, variables: Mapping[str, object]) -> tuple[dict[str, object], dict[str, object]]:
        """Return what comes home: saved variables with their last value, and saves bound to no name by their label.

        Args:
            variables: The block's variables when it ended.
        """
        saved = {name: variables[name] for name in self._names if name in variables}
        for name, value in variables.items():
            if name not in saved and not name.startswith("__nnsight") and self._holds(value):
                saved[name] = value
        reachable: set[int] = set()
        for value in saved.values():
            _walk(value, reachable)
        unnamed: dict[str, object] = {}
        for label, values in self._unnamed.items():
            kept = [value for value in values if isinstance(value, _INTERNED) or id(value) not in reachable]
            if kept:
                unnamed[label] = kept[0] if len(kept) == 1 else kept
        return saved, unnamed

    def _holds(self, value: object) -> bool:
        """Tell whether a value was saved, or is a collection of nothing but saved values."""
        if id(value) in self._objects:
            return True
        if type(value) is dict:
            value = list(value.values())
        return isinstance(value, list | tuple) and bool(value) and all(self._holds(item) for item in value)


def _walk(value: object, seen: set[int]) -> None:
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, list | tuple | set | frozenset):
        for item in value:
            _walk(item, seen)
    elif isinstance(value, dict):
        for item in value.values():
            _walk(item, seen)


_client = threading.local()


class client_saves:  # noqa: N801 - reads as a statement
    """Collect the saves of code that runs in the caller's process, around the invokes of a trace."""

    def __init__(self, book: SaveBook) -> None:
        """Collect into `book`."""
        self._book = book
        self._outer: SaveBook | None = None

    def __enter__(self) -> SaveBook:
        """Begin collecting."""
        self._outer = getattr(_client, "book", None)
        _client.book = self._book
        return self._book

    def __exit__(self, *exc: object) -> None:
        """Stop collecting."""
        _client.book = self._outer


def _book(what: str) -> SaveBook:
    try:
        found: SaveBook | None = current_run().saves
    except OutsideTraceError:
        found = getattr(_client, "book", None)
    if found is None:
        raise OutsideTraceError(f"{what} was called outside a block; values are saved inside one")
    return found


def save(value: Value) -> Value:
    """Bring a value home from a block, and return it.

    `x.save()` inside a block means the same. The value comes home under the variable that it is bound to; one that is
    bound to no variable is on `tracer.saves` under its source text.

    Raises:
        OutsideTraceError: No block is executing.
    """
    _book("nnsight.save").mark(value, (), "save")
    return value


def _save_method(value: object, names: tuple[str, ...], label: str, *args: object, **kwargs: object) -> object:
    if args or kwargs or (hasattr(type(value), "save") and not isinstance(value, Envoy)):
        return value.save(*args, **kwargs)  # type: ignore[attr-defined]
    _book(f"{label}.save()").mark(value, names, label)
    return value


def _save_call(
    function: Callable[..., object], names: tuple[str, ...], label: str, *args: object, **kwargs: object
) -> object:
    if function is not save or len(args) != 1 or kwargs:
        return function(*args, **kwargs)
    _book(f"save({label})").mark(args[0], names, label)
    return args[0]


def block_helpers() -> dict[str, object]:
    """Return the functions that rewritten code calls, by the names that it calls them by."""
    return {
        "__nnsight_save_method__": _save_method,
        "__nnsight_save_call__": _save_call,
        "__nnsight_read_item__": read_item,
        "__nnsight_locals__": locals,
    }
