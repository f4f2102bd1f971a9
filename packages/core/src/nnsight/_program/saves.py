"""Which values of a block come home, and under which names."""

from __future__ import annotations

import ast
import dis
import linecache
import operator
import sys
import threading
from bisect import bisect
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import islice
from types import CodeType, FrameType, ModuleType
from typing import Any, Final, NamedTuple, TypeVar

from nnsight._capture import SaveNames
from nnsight._capture.items import READ_ITEM
from nnsight._capture.saves import LOCALS, SAVE_AUGMENTED, SAVE_BOUND, SAVE_CALL, SAVE_METHOD, SAVE_RETURNED
from nnsight._envoy import Envoy, read_item
from nnsight._interleave.turns import current_run
from nnsight._program.pending import Pending
from nnsight.errors import InvalidRequestError, OutsideTraceError

Value = TypeVar("Value")

# Equal values of these types are one object, so that marking one would mark variables that were never saved.
_INTERNED = (type(None), bool, int, float, complex, str, bytes, tuple, frozenset, type(Ellipsis), type, type(len))


_MISSING: Final = object()


class _Return(NamedTuple):
    """A saved value that a function has just returned, and the frame that it returned to."""

    value: object
    label: str
    frame: int
    code: CodeType
    offset: int


class SaveBook:
    """The saves of one block.

    A save marks a value. Under the name that it was bound to when it was saved it comes home whatever becomes of the
    variable, unless the variable holds another saved value in the end.
    """

    def __init__(self) -> None:
        """Begin with nothing saved."""
        self._names: dict[str, object] = {}
        self._objects: dict[int, object] = {}
        self._unnamed: dict[str, list[object]] = {}
        self._returned: _Return | None = None

    def mark(self, value: object, names: tuple[str, ...], label: str) -> None:
        """Save `value` under the variables that it is being bound to, or under a label.

        Raises:
            InvalidRequestError: The value is a module's stand-in rather than a value.
            OutsideTraceError: The value is that of an invoke, which has not run yet.
        """
        if isinstance(value, Pending):
            raise value.refusal()
        if isinstance(value, Envoy):
            raise InvalidRequestError(
                f"{label} is a module, which cannot be saved; save a value of it, such as {label}.output.save()"
            )
        for name in names:
            self._names[name] = value
        if not isinstance(value, _INTERNED):
            self._objects[id(value)] = value
        if not names:
            self._unnamed.setdefault(label, []).append(value)

    def augment(self, name: str, own_scope: bool, old: object, new: object) -> None:
        """Note that `x += y` made another value of a variable: it is saved where the one before was."""
        if own_scope:
            if self._names.get(name, _MISSING) is old:
                self.mark(new, (name,), name)
            return
        kept = self._unnamed.get(name, [])
        if kept and kept[-1] is old:
            kept.pop()
            self.mark(new, (), name)

    def note_return(self, value: object, labels: tuple[str, ...], caller: FrameType | None) -> None:
        """Note that a function returns a value that it has saved under one of these labels."""
        label = next((each for each in labels if any(one is value for one in self._unnamed.get(each, ())[-1:])), None)
        while caller is not None and _returns_call(caller.f_code, caller.f_lasti):
            caller = caller.f_back
        if label is not None and caller is not None:
            self._returned = _Return(value, label, id(caller), caller.f_code, caller.f_lasti)

    def bind(self, value: object, names: tuple[str, ...], frame: FrameType, end: tuple[int, int]) -> None:
        """Note that the value of a call that ends at this place in its source is bound to variables."""
        returned, self._returned = self._returned, None
        if returned is None or returned.value is not value or returned.frame != id(frame):
            return
        position = next(islice(returned.code.co_positions(), returned.offset // 2, None), None)
        if position is None or (position[1], position[3]) != end:
            return
        kept = self._unnamed[returned.label]
        kept.pop()
        if not kept:
            del self._unnamed[returned.label]
        self.mark(value, names, names[0])

    def has(self, value: object) -> bool:
        """Tell whether this very object was saved."""
        return id(value) in self._objects

    def values(self) -> list[object]:
        """Return all that is saved so far."""
        return [*self._objects.values(), *self._names.values(), *self._unnamed.values()]

    def collect(self, variables: Mapping[str, object]) -> tuple[dict[str, object], dict[str, object]]:
        """Return what comes home: saved values by variable, and saves bound to no name by their label.

        Args:
            variables: The block's variables when it ended.
        """
        saved = {
            name: variables[name] if name in variables and self._holds(variables[name]) else value
            for name, value in self._names.items()
        }
        for name, value in variables.items():
            if name not in saved and name[:9] != "__nnsight" and self._holds(value):
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


def _open_book() -> SaveBook | None:
    try:
        found: SaveBook | None = current_run().saves
    except OutsideTraceError:
        found = getattr(_client, "book", None)
    return found


def _book(what: str) -> SaveBook:
    found = _open_book()
    if found is None:
        raise OutsideTraceError(f"{what} was called outside a block; values are saved inside one")
    return found


def save(value: Value) -> Value:
    """Bring a value home from a block, and return it.

    `x.save()` inside a block means the same. The value comes home under the variable that it is bound to, also where
    that is bound to something else later. One that is bound to no variable is on `tracer.saves` under its source text.

    Raises:
        OutsideTraceError: No block is executing.
    """
    book = _book("nnsight.save")
    caller = sys._getframe(1)
    label = _label_of_call(caller.f_code, caller.f_lasti)
    book.mark(value, (), label)
    if _returns_call(caller.f_code, caller.f_lasti):
        book.note_return(value, (label,), caller.f_back)
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


def _save_augmented(name: str, own_scope: bool, kind: str, old: Any, value: object) -> object:
    new = _AUGMENTED[kind](old, value)
    book = _open_book()
    if book is not None:
        book.augment(name, own_scope, old, new)
    return new


def _save_returned(value: object, labels: tuple[str, ...]) -> object:
    book = _open_book()
    if book is not None:
        book.note_return(value, labels, sys._getframe(1).f_back)
    return value


def _save_bound(value: object, names: tuple[str, ...], end: tuple[int, int]) -> object:
    book = _open_book()
    if book is not None:
        book.bind(value, names, sys._getframe(1), end)
    return value


# What `x += y` and its like call, by the name that the syntax tree gives their operator.
_AUGMENTED: Final[Mapping[str, Callable[[Any, Any], object]]] = {
    "Add": operator.iadd,
    "Sub": operator.isub,
    "Mult": operator.imul,
    "MatMult": operator.imatmul,
    "Div": operator.itruediv,
    "FloorDiv": operator.ifloordiv,
    "Mod": operator.imod,
    "Pow": operator.ipow,
    "LShift": operator.ilshift,
    "RShift": operator.irshift,
    "BitOr": operator.ior,
    "BitXor": operator.ixor,
    "BitAnd": operator.iand,
}


def block_helpers() -> dict[str, object]:
    """Return the functions that rewritten code calls, by the names that it calls them by."""
    return {
        READ_ITEM: read_item,
        SAVE_METHOD: _save_method,
        SAVE_CALL: _save_call,
        SAVE_AUGMENTED: _save_augmented,
        SAVE_BOUND: _save_bound,
        SAVE_RETURNED: _save_returned,
        LOCALS: locals,
    }


def save_names(values: Mapping[str, object]) -> SaveNames:
    """Return the names that `save` goes by among the values of a block or a function."""
    own = SaveNames()
    modules = {name for name, value in values.items() if isinstance(value, ModuleType) and _has_save(value)}
    functions = {name for name, value in values.items() if value is save}
    return SaveNames(own.functions | functions, own.modules | modules)


def _has_save(module: ModuleType) -> bool:
    return vars(module).get("save") is save


@lru_cache(maxsize=512)
def _returns_call(code: CodeType, offset: int) -> bool:
    """Tell whether what the call at an instruction gives is returned at once."""
    # While a call runs, the offset may be that of one of the caches that follow its instruction.
    instructions = list(dis.get_instructions(code))
    index = bisect([instruction.offset for instruction in instructions], offset)
    calls = instructions[index - 1].opname.startswith("CALL")
    return calls and index < len(instructions) and instructions[index].opname == "RETURN_VALUE"


@lru_cache(maxsize=512)
def _label_of_call(code: CodeType, offset: int) -> str:
    """Spell what the call at an instruction saves, from its source."""
    position = next(islice(code.co_positions(), offset // 2, None), None)
    if position is not None:
        first, last, column, end = position
        if first is not None and last == first and column is not None and end is not None:
            text = linecache.getline(code.co_filename, first).encode()[column:end].decode(errors="replace")
            try:
                tree = ast.parse(text, mode="eval").body
            except SyntaxError:
                tree = None
            if isinstance(tree, ast.Call) and tree.args:
                return ast.unparse(tree.args[0])
    return f"{code.co_qualname}()"
