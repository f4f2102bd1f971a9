"""Reading and assigning the variables of a live frame."""

from __future__ import annotations

import ctypes
import inspect
import sys
from typing import TYPE_CHECKING, Final, NamedTuple

from nnsight._capture.bytecode import instructions, nested_codes
from nnsight._capture.codes import PerCode
from nnsight.errors import CaptureError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import CodeType, FrameType

# From Python 3.13 on (PEP 667) `f_locals` is a view of the variables instead of a copy.
_COPIES = sys.version_info < (3, 13)


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing()
"""What `visible_value` returns for a name that the frame cannot see."""


class _Kinds(NamedTuple):
    """How the code of a frame treats names.

    Attributes:
        function: Whether it is the code of a function, whose variables have fixed places.
        local: The names of its own variables and of those of enclosing functions.
        closure: The names of variables of enclosing functions.
        stored_global: The names that it assigns as globals.
        loaded_global: The names that it, or a function in it, reads as globals.
    """

    function: bool
    local: frozenset[str]
    closure: frozenset[str]
    stored_global: frozenset[str]
    loaded_global: frozenset[str]


_kinds: PerCode[_Kinds] = PerCode()


def visible_value(frame: FrameType, name: str) -> object:
    """Look a name up as the code of a frame would.

    Args:
        frame: A live frame.
        name: The name.

    Returns:
        The value of the local, closure, global or built-in variable, or `MISSING`.
    """
    return visible_values(frame, (name,)).get(name, MISSING)


def visible_values(frame: FrameType, names: Iterable[str]) -> dict[str, object]:
    """Look several names up as the code of a frame would.

    Args:
        frame: A live frame.
        names: The names.

    Returns:
        The values of those that the frame can see, by name.
    """
    kinds = _kinds_of(frame.f_code)
    variables = frame.f_locals
    found: dict[str, object] = {}
    for name in names:
        if name in variables:
            found[name] = variables[name]
        elif not kinds.function and name in kinds.closure:
            outer = _outer_frame(frame)
            value = MISSING if outer is None else visible_value(outer, name)
            if value is not MISSING:
                found[name] = value
        elif kinds.function and name in kinds.local and name not in kinds.loaded_global:
            # An unbound variable does not fall back to a global of the same name.
            continue
        elif name in frame.f_globals:
            found[name] = frame.f_globals[name]
        elif name in frame.f_builtins:
            found[name] = frame.f_builtins[name]
    if kinds.function:
        release_snapshot(frame, variables)
    return found


def write_back(frame: FrameType, values: Mapping[str, object]) -> None:
    """Assign variables of a live frame.

    A name is assigned where the code of the frame itself would: to a local variable, to a variable of an enclosing
    function, to the namespace of a class body, or to a global. A name that a function only reads as a global is
    assigned as a global too.

    Args:
        frame: A live frame.
        values: The values by name.

    Raises:
        CaptureError: The variable of an enclosing function cannot be reached from a class body.
    """
    assign(frame, values)
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        release_snapshot(frame, frame.f_locals)


def assign(frame: FrameType, values: Mapping[str, object]) -> None:
    """Do what `write_back` does, and keep the copies of the variables that a tracing function of the frame uses."""
    variables = frame.f_locals
    if variables is frame.f_globals:
        variables.update(values)
        return
    kinds = _kinds_of(frame.f_code)
    changed = False
    for name, value in values.items():
        if name in kinds.stored_global or (kinds.function and name not in kinds.local):
            frame.f_globals[name] = value
        elif not kinds.function and name in kinds.closure:
            outer = _outer_frame(frame)
            if outer is None:
                raise CaptureError(f"the variable {name} of the function around a class cannot be assigned from here")
            assign(outer, {name: value})
        else:
            variables[name] = value
            changed = True
    if changed and kinds.function and _COPIES:
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))


def release_snapshot(frame: FrameType, snapshot: Mapping[str, object]) -> None:
    """Let go of the copies of variables that reading `f_locals` of a function's frame makes up to Python 3.12.

    They live as long as the frame, and would keep big tensors alive that the function has already dropped. A copy
    that someone else holds, from calling `locals()`, stays as it is.

    Args:
        frame: The frame of a function.
        snapshot: What its `f_locals` gave.
    """
    # The references: the frame's, the caller's, the one here, and the argument of the call.
    if _COPIES and isinstance(snapshot, dict) and sys.getrefcount(snapshot) <= 4:
        snapshot.clear()


def _outer_frame(frame: FrameType) -> FrameType | None:
    """The frame around a class body, in which its closure variables can be reached."""
    outer = frame.f_back
    if outer is None or all(constant is not frame.f_code for constant in outer.f_code.co_consts):
        return None
    return outer


def _kinds_of(code: CodeType) -> _Kinds:
    return _kinds.get(code) or _kinds.set(code, _classify(code))


def _classify(code: CodeType) -> _Kinds:
    stored: set[str] = set()
    loaded: set[str] = set()
    for each in nested_codes(code):
        for instruction in instructions(each):
            if instruction.name == "LOAD_GLOBAL":
                loaded.add(each.co_names[instruction.argument >> 1])
            elif instruction.name in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                name = each.co_names[instruction.argument]
                loaded.add(name)
                if each is code:
                    stored.add(name)
    return _Kinds(
        function=bool(code.co_flags & inspect.CO_OPTIMIZED),
        local=frozenset(code.co_varnames + code.co_cellvars + code.co_freevars),
        closure=frozenset(code.co_freevars),
        stored_global=frozenset(stored),
        loaded_global=frozenset(loaded),
    )
