from __future__ import annotations

import builtins
import math
import operator
import random
import types
import weakref
from typing import Any

import numpy as np
import pytest
import torch
import wire_helpers
from wire_helpers import (
    CODECS,
    Access,
    Color,
    Frozen,
    Level,
    Loud,
    Names,
    Ordered,
    OurError,
    Pair,
    Point,
    Probe,
    Settings,
    Slotted,
    SlottedChild,
    Stack,
    Steps,
    Tags,
    Text,
    Ticker,
    travel,
)

from nnsight._wire import Limits, decode, encode
from nnsight.errors import UntransferableValueError, WireError


@pytest.mark.parametrize(
    "value",
    [
        math,
        torch.nn.functional,
        int,
        type(None),
        types.FunctionType,
        Probe,
        torch.nn.Linear,
        np.float32,
        len,
        math.sqrt,
        operator.add,
        torch.relu,
        torch.softmax,
        torch.nn.functional.gelu,
        torch.nn.functional.relu,
        torch.nn.functional.max_pool2d,
        torch.linalg.norm,
        torch.Tensor.add,
        str.upper,
        int.__add__,
        np.exp,
        np.sum,
        np.concatenate,
        random.random,
        random.shuffle,
        Probe.forward,
        Probe.double,
        wire_helpers.module_function,
        wire_helpers.assigned_closure,
    ],
    ids=lambda value: getattr(value, "__qualname__", None) or value.__name__,
)
def test_what_can_be_imported_travels_by_name(value: object) -> None:
    result = travel([value])[0]
    assert result is value or result == value
    assert travel({value: 1}) == {value: 1}


def test_bound_methods_travel_with_their_object() -> None:
    probe = Probe()
    method, copy, make, append, items = travel([probe.forward, probe, Probe.make, probe.hooks.append, probe.hooks])
    assert method.__self__ is copy
    assert method.__func__ is Probe.forward
    assert type(make()) is Probe
    append(1)
    assert copy.hooks is items
    assert items == [1]
    assert travel("ab".upper)() == "AB"
    assert travel(dict.fromkeys)("a") == {"a": None}


def test_members_of_enumerations_are_the_members() -> None:
    assert travel(Color.RED) is Color.RED
    assert travel(Color.ALSO_RED) is Color.RED
    assert travel(Access.READ | Access.WRITE) == Access.READ | Access.WRITE
    assert travel({Level.LOW: Color.BLUE}) == {Level.LOW: Color.BLUE}


def test_dataclasses_named_tuples_and_slots_come_back() -> None:
    assert travel(Settings(1, [2])) == Settings(1, [2])
    assert travel(Frozen("a", (1,))) == Frozen("a", (1,))
    assert travel({Frozen("a"): 1}) == {Frozen("a"): 1}
    point = travel(Point(1, [2]))
    assert (type(point), point) == (Point, Point(1, [2]))
    slotted = travel(Slotted(1, "hidden"))
    assert (slotted.first, slotted.secret) == (1, "hidden")
    child = travel(SlottedChild())
    assert (child.first, Slotted.first.__get__(child), child.secret) == (  # type: ignore[attr-defined]
        "of the child",
        "of the parent",
        "kept",
    )


def test_an_unset_slot_stays_unset() -> None:
    assert not hasattr(travel(Slotted.__new__(Slotted)), "first")


def test_subclasses_of_builtins_keep_their_class_contents_and_attributes() -> None:
    tags = Tags(a=1)
    tags.note = [tags]  # type: ignore[attr-defined]
    result = travel(tags)
    assert (type(result), dict.items(result), result.note[0] is result) == (Tags, {"a": 1}.items(), True)
    ordered = travel(Ordered(b=1, a=2))
    assert (type(ordered), list(ordered)) == (Ordered, ["b", "a"])
    stack = Stack([1])
    stack.append(stack)
    result = travel(stack)
    assert (type(result), result[1] is result) == (Stack, True)
    text = Text("abc")
    text.note = "x"
    result = travel(text)
    assert (type(result), result, result.note) == (Text, "abc", "x")
    pair = Pair((1, 2))
    pair.label = "p"
    result = travel({pair: 1})
    assert [(type(key), key, key.label) for key in result] == [(Pair, (1, 2), "p")]
    assert (type(travel(Steps(5))), travel(Steps(5))) == (Steps, 5)
    assert (type(travel(Names("ab"))), travel(Names("ab"))) == (Names, {"a", "b"})


def test_no_method_of_a_class_runs_when_its_objects_travel() -> None:
    value = Loud([1])
    Loud.ran.clear()
    result = travel(value)
    assert Loud.ran == []
    assert result.value == [1]


def test_an_iterator_with_plain_state_travels() -> None:
    ticker = Ticker()
    next(ticker)
    assert next(travel(ticker)) == 2


def test_exceptions_come_back_with_arguments_and_attributes() -> None:
    result = travel(OurError("wrong", 3))
    assert (type(result), result.args, result.code, str(result)) == (OurError, ("wrong", 3), 3, "('wrong', 3)")
    missing = travel(FileNotFoundError(2, "gone", "a.txt"))
    assert (type(missing), missing.errno, missing.filename) == (FileNotFoundError, 2, "a.txt")
    noted = KeyError("k")
    noted.add_note("while reading")
    assert travel(noted).__notes__ == ["while reading"]


def test_exceptions_leave_their_traceback_behind() -> None:
    try:
        raise ValueError("x")
    except ValueError as error:
        result = travel(error)
    assert result.__traceback__ is None


@pytest.mark.parametrize(
    "value",
    [math, int, len, Color.RED, Settings(1), Probe.forward, ValueError("x")],
    ids=["module", "class", "function", "enum", "object", "method", "exception"],
)
def test_names_are_refused_by_a_reader_without_permission(value: object) -> None:
    message = encode([value], codecs=CODECS)
    with pytest.raises(WireError, match="may not import"):
        decode(message, codecs=CODECS)
    with pytest.raises(WireError, match="may not import"):
        decode(message, codecs=CODECS, limits=Limits(allow_objects=True, allowed_module=lambda _: False))


def test_a_reader_may_permit_some_modules_only() -> None:
    limits = Limits(allow_objects=True, allowed_module=lambda name: name == "math")
    assert travel(math.sqrt, limits=limits) is math.sqrt
    with pytest.raises(WireError, match=r"operator:add"):
        travel(operator.add, limits=limits)


def test_a_name_that_is_gone_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    message = encode(wire_helpers.module_function, codecs=CODECS)
    monkeypatch.delattr(wire_helpers, "module_function")
    with pytest.raises(WireError, match=r"wire_helpers:module_function.*cannot be imported here: AttributeError"):
        decode(message, codecs=CODECS, limits=Limits(allow_objects=True))


def test_a_slot_that_is_gone_says_so() -> None:
    message = encode(Slotted(1, 2), codecs=CODECS)
    with pytest.raises(WireError, match="no slot"):
        decode(message.replace(b"1.first", b"1.other"), codecs=CODECS, limits=Limits(allow_objects=True))


def main_function() -> None: ...


def test_functions_that_no_name_leads_to_are_refused_with_their_name() -> None:
    def local() -> None: ...

    class Local:
        pass

    main_function.__module__ = "__main__"
    namesake = types.FunctionType(main_function.__code__, {}, "module_function")
    namesake.__module__, namesake.__qualname__ = "wire_helpers", "module_function"
    for value in [local, lambda: 0, Local, Local(), main_function, namesake, wire_helpers.make_closure()]:
        with pytest.raises(UntransferableValueError, match=r"does not give this (function|class)") as caught:
            encode(value, codecs=CODECS, name="probe")
        assert "Move its definition to a module" in str(caught.value)


def test_the_main_module_is_refused() -> None:
    import __main__

    with pytest.raises(UntransferableValueError, match="'__main__' cannot be imported"):
        encode(__main__, codecs=CODECS)


def test_replaced_builtins_do_not_travel_under_a_false_name(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.len
    monkeypatch.setattr(builtins, "len", lambda value: original(value))
    with pytest.raises(UntransferableValueError):
        encode(builtins.len, codecs=CODECS)


def test_a_module_with_weights_in_a_lazy_class_names_the_parameter() -> None:
    lazy = torch.nn.LazyLinear(2)
    with pytest.raises(UntransferableValueError, match=r"`probe\._parameters\['weight'\]`"):
        encode(lazy, codecs=CODECS, name="probe")


@pytest.mark.parametrize(
    ("model", "size"),
    [
        (torch.nn.LSTM(4, 4, 2), (2, 4)),
        (torch.nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), (1, 2, 4)),
        (torch.nn.Conv1d(4, 2, 1), (1, 4, 3)),
        (torch.nn.BatchNorm1d(4), (2, 4)),
        (torch.nn.ParameterList([torch.ones(2)]), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_modules_of_torch_come_back(model: Any, size: tuple[int, ...] | None) -> None:
    model.eval()
    result = travel(model)
    assert str(result) == str(model)
    for (name, parameter), (other_name, other) in zip(model.named_parameters(), result.named_parameters(), strict=True):
        assert name == other_name
        assert torch.equal(parameter, other)
    if size is not None:
        hidden = torch.randn(size)
        one, two = model(hidden), result(hidden)
        assert torch.equal(one[0], two[0])


def test_namespaces_and_weak_references_come_back() -> None:
    value = types.SimpleNamespace(a=1)
    value.itself = value
    result = travel(value)
    assert (result.a, result.itself is result) == (1, True)
    probe = Probe()
    reference, other = travel([weakref.ref(probe), probe])
    assert reference() is other


def test_sequences_of_modules_come_back() -> None:
    model: Any = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LayerNorm(2), torch.nn.GELU(), torch.nn.Dropout())
    model.eval()
    result = travel(model)
    hidden = torch.randn(1, 2)
    assert torch.equal(result(hidden), model(hidden))
