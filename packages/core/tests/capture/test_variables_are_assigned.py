"""Reading and assigning the variables of frames of every kind."""

from __future__ import annotations

import asyncio
import builtins
import sys
from typing import Any

import pytest

from nnsight._capture import MISSING, visible_value, visible_values, write_back
from nnsight.errors import CaptureError

module_variable = 1
declared_variable = 1
write_back(sys._getframe(), {"module_variable": 2, "module_new": 3})
seen_in_module = visible_value(sys._getframe(), "module_variable"), visible_value(sys._getframe(), "missing_name")


def assign(**values: Any) -> None:
    write_back(sys._getframe(1), values)


def see(*names: str) -> tuple[Any, ...]:
    frame = sys._getframe(1)
    return tuple(visible_value(frame, name) for name in names)


def test_variables_of_a_module() -> None:
    assert (module_variable, module_new) == (2, 3)  # type: ignore[name-defined]  # noqa: F821
    assert seen_in_module == (2, MISSING)


def test_local_variables() -> None:
    x: Any = 1
    assign(x=2, later=3)
    assert (x, see("x", "later")) == (2, (2, 3))
    assert later == 3  # noqa: F821
    later: Any = 4  # noqa: F841
    for number in range(3):
        assign(x=number)
        assert x == number


def test_arguments() -> None:
    def function(a: Any, *args: Any, b: Any = 2, **kwargs: Any) -> Any:
        assign(a=10, args=20, b=30, kwargs=40)
        return a, args, b, kwargs

    assert function(1) == (10, 20, 30, 40)


def test_other_local_variables_keep_their_values() -> None:
    x, y, z = 1, [2], 3
    assign(x=10)
    z += 1
    assign(y=20)
    assert (x, y, z) == (10, 20, 4)


def test_variables_shared_with_inner_functions() -> None:
    shared: Any = 1

    def inner() -> Any:
        return shared

    assign(shared=2)
    assert (shared, inner()) == (2, 2)
    assert see("shared") == (2,)


def test_variables_of_enclosing_functions() -> None:
    outer: Any = 1
    untouched = 5

    def inner() -> Any:
        nonlocal outer
        before = see("outer", "untouched")
        assign(outer=2)
        return before, outer, untouched

    assert inner() == ((1, 5), 2, 5)
    assert outer == 2


def test_names_declared_global() -> None:
    def function() -> Any:
        global declared_variable, declared_new
        assign(declared_variable=2, declared_new=3)
        if False:
            declared_variable, declared_new = 0, 0
        return declared_variable, declared_new

    try:
        assert function() == (2, 3)
        assert declared_variable == 2
    finally:
        globals().update(declared_variable=1)
        del globals()["declared_new"]


def test_a_name_that_a_function_only_reads_is_assigned_as_a_global() -> None:
    def function() -> Any:
        assign(module_variable=9)
        return module_variable

    try:
        assert function() == 9
    finally:
        globals().update(module_variable=2)


def test_variables_of_a_class_body() -> None:
    free: Any = 1
    rebound: Any = 1

    class Holder:
        x = 1
        seen = see("x", "free", "module_variable", "len", "missing_name")
        assign(x=2, y=3, free=4)
        nonlocal rebound
        rebound = 5
        assign(rebound=6)
        read = free
        global declared_variable
        declared_variable = 1
        assign(declared_variable=1)

    assert Holder.seen == (1, 1, 2, len, MISSING)
    assert (Holder.x, Holder.y, Holder.read) == (2, 3, 4)  # type: ignore[attr-defined]
    assert (free, rebound) == (4, 6)
    assert "rebound" not in vars(Holder)
    assert "declared_variable" not in vars(Holder)


def test_variables_of_a_class_body_with_a_namespace_of_its_own() -> None:
    class Namespace(dict[str, Any]):
        def __setitem__(self, name: str, value: Any) -> None:
            super().__setitem__(name, ("set", value))

    class Meta(type):
        @classmethod
        def __prepare__(cls, name: str, bases: Any, **kwargs: Any) -> Any:
            return Namespace()

        def __new__(cls, name: str, bases: Any, namespace: Any) -> Any:
            return dict(namespace)

    class Holder(metaclass=Meta):
        assign(x=1)

    assert Holder["x"] == ("set", 1)  # type: ignore[index]


def test_variables_of_executed_text() -> None:
    own: dict[str, Any] = {}
    exec("x = 1\nassign(x=2, y=3)\nseen = see('x', 'assign')", {"assign": assign, "see": see}, own)
    assert (own["x"], own["y"], own["seen"]) == (2, 3, (2, assign))
    text = "global x\nx = 1\nassign(x=2)"
    names: dict[str, Any] = {"assign": assign}
    exec(text, names, own := {})
    assert (names["x"], own) == (2, {})


def test_variables_of_generators_and_coroutines() -> None:
    def generate() -> Any:
        x: Any = 1
        for number in range(3):
            assign(x=number)
            yield x
            x = None

    async def work() -> Any:
        x: Any = 1
        await asyncio.sleep(0)
        assign(x=2)
        await asyncio.sleep(0)
        return x

    assert list(generate()) == [0, 1, 2]
    assert asyncio.run(work()) == 2


def test_the_variables_of_the_right_call_of_a_recursive_function_are_assigned() -> None:
    def function(depth: int) -> Any:
        x: Any = None
        below = function(depth - 1) if depth else []
        assign(x=depth)
        return [*below, x]

    assert function(3) == [0, 1, 2, 3]


def test_names_are_seen_as_the_code_sees_them() -> None:
    len_is = see("len", "module_variable", "missing_name")
    assert len_is == (len, 2, MISSING)
    module_seen = see("sys", "__name__")
    assert module_seen == (sys, __name__)

    def shadowing() -> Any:
        before = see("len", "module_variable")
        len, module_variable = 1, 2
        return before, see("len", "module_variable"), len, module_variable

    assert shadowing()[:2] == ((MISSING, MISSING), (1, 2))


def test_a_variable_of_a_comprehension_does_not_hide_a_global() -> None:
    def function() -> Any:
        numbers = [module_variable for module_variable in (5, 6)]
        seen = see("module_variable")
        return numbers, seen, (lambda: module_variable)()

    assert function() == ([5, 6], (2,), 2)


def test_several_names_are_seen_at_once() -> None:
    x, y = 1, 2
    found = visible_values(sys._getframe(), ["x", "y", "len", "missing_name"])
    assert found == {"x": x, "y": y, "len": len}


def test_variables_can_be_assigned_while_a_debugger_is_active() -> None:
    def function() -> Any:
        x: Any = 1
        assign(x=2)
        y = x
        assign(x=3)
        return x, y

    def trace(frame: Any, event: str, argument: Any) -> Any:
        frame.f_locals
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        result = function()
    finally:
        sys.settrace(before)
    assert result == (3, 2)


def test_a_class_body_that_cannot_reach_its_enclosing_function_is_told_so() -> None:
    # Only code that runs class bodies by itself, like this, comes here.
    def function() -> Any:
        free = 1

        class Holder:
            value = free
            assign(free=2)

        return Holder

    builtin = __build_class__  # type: ignore[name-defined]

    def build(*args: Any, **kwargs: Any) -> Any:
        return builtin(*args, **kwargs)

    builtins.__build_class__ = build  # type: ignore[attr-defined]
    try:
        with pytest.raises(CaptureError, match="the variable free of the function around a class"):
            function()
    finally:
        builtins.__build_class__ = builtin  # type: ignore[attr-defined]
