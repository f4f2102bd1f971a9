"""What becomes of the saves of a block, shown by running it."""

from __future__ import annotations

from typing import Any

import pytest
from capture_support import Module, Run, run_text

# The body, and for each save in the order of its execution the names, the label and the value.
MATRIX: dict[str, list[tuple[tuple[str, ...], str, Any]]] = {
    "x = y.save()": [(("x",), "x", 1)],
    "a = b = y.save()": [(("a", "b"), "a", 1)],
    "a = d['k'] = y.save()": [(("a",), "a", 1)],
    "d['k'] = a = y.save()": [(("a",), "a", 1)],
    "x: int = y.save()": [(("x",), "x", 1)],
    "(x := y.save())": [(("x",), "x", 1)],
    "f(x := y.save())": [(("x",), "x", 1)],
    "z = (x := y.save())": [(("z", "x"), "z", 1)],
    "[(x := v.save()) for v in l]": [(("x",), "x", 1), (("x",), "x", 2)],
    "a, b = y.save(), w.save()": [(("a",), "a", 1), (("b",), "b", 2)],
    "[a, b] = y.save(), w.save()": [(("a",), "a", 1), (("b",), "b", 2)],
    "a, (b, c) = y.save(), (w.save(), w.save())": [(("a",), "a", 1), (("b",), "b", 2), (("c",), "c", 2)],
    "a, b = c, e = y.save(), w.save()": [(("a", "c"), "a", 1), (("b", "e"), "b", 2)],
    "a, d['k'] = y.save(), w.save()": [(("a",), "a", 1), ((), "d['k']", 2)],
    "t = y.save(), w.save()": [((), "y", 1), ((), "w", 2)],
    "a, *b = y.save(), w.save(), w.save()": [((), "y", 1), ((), "w", 2), ((), "w", 2)],
    "a, b = p.save()": [((), "a, b" if False else "(a, b)", (1, 2))],
    "y.save()": [(("y",), "y", 1)],
    "m.a.save()": [((), "m.a", 5)],
    "l[0].save()": [((), "l[0]", 1)],
    "save(y)": [(("y",), "y", 1)],
    "nnsight.save(y)": [(("y",), "y", 1)],
    "x = save(y)": [(("x",), "x", 1)],
    "x = nnsight.save(y)": [(("x",), "x", 1)],
    "x = nnsight.save(m.a)": [(("x",), "x", 5)],
    "f(nnsight.save(m.a))": [((), "m.a", 5)],
    "nnsight.save(m.a + 1)": [((), "m.a + 1", 6)],
    "x = y.save() if y else w.save()": [(("x",), "x", 1)],
    "x = (y.save() if w == 1 else w.save())": [(("x",), "x", 2)],
    "y += w.save()": [((), "w", 2)],
    "d['k'] = y.save()": [((), "d['k']", 1)],
    "m.b = y.save()": [((), "m.b", 1)],
    "d['k']: int = y.save()": [((), "d['k']", 1)],
    "f(m.a.save())": [((), "m.a", 5)],
    "x = f(m.a.save())": [((), "m.a", 5)],
    "x = y.save() + 1": [((), "y", 1)],
    "x = [y.save()]": [((), "y", 1)],
    "[x] = [y.save()]": [(("x",), "x", 1)],
    "x = {'k': y.save()}": [((), "y", 1)],
    "x = [v.save() for v in l]": [((), "v", 1), ((), "v", 2)],
    "l.append(y.save())": [((), "y", 1)],
    "for v in l: v.save()": [(("v",), "v", 1), (("v",), "v", 2)],
    "if y: x = y.save()": [(("x",), "x", 1)],
    "with c(y.save()) as x: pass": [((), "y", 1)],
    "def g():\n    x = y.save()\n    y.save()\ng()": [((), "x", 1), ((), "y", 1)],
    "def g(v=y.save()): pass": [((), "y", 1)],
    "def g(v=(x := y.save())): pass": [(("x",), "x", 1)],
    "g = lambda: y.save()\ng()": [((), "y", 1)],
    "g = lambda: (x := y.save())\ng()": [((), "x", 1)],
    "class C:\n    x = y.save()": [((), "x", 1)],
    "f'{y.save()}'": [((), "y", 1)],
    "x = f(y).save()": [(("x",), "x", 1)],
    "x = f(y.save()).save()": [((), "y", 1), (("x",), "x", 1)],
    "assert y.save()": [((), "y", 1)],
    "match y.save():\n    case x: pass": [((), "y", 1)],
    "x = (\n    m\n    .a\n    .save()\n)": [(("x",), "x", 5)],
}


class Context:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __enter__(self) -> Any:
        return self.value

    def __exit__(self, *exc: object) -> None:
        return None


def values() -> dict[str, Any]:
    return {
        "y": 1,
        "w": 2,
        "l": [1, 2],
        "p": (1, 2),
        "d": {},
        "m": Module(a=5),
        "f": lambda value: value,
        "c": Context,
        "save": "nnsight.save",
        "nnsight": Module(save="nnsight.save"),
    }


@pytest.mark.parametrize("text", MATRIX)
def test_saves_know_what_they_are_bound_to(text: str) -> None:
    assert run_text(text, **values()).saves == MATRIX[text]


def test_a_save_gives_its_value() -> None:
    result = run_text("x = y.save() + w.save()\nd['k'] = z = y.save()", **values())
    assert result.variables["x"] == 3
    assert result.variables["d"] == {"k": 1}


def test_an_object_with_its_own_save_keeps_it() -> None:
    class Figure:
        def save(self, path: str, *, dpi: int) -> Any:
            return path, dpi

    result = run_text("x = figure.save('a.png', dpi=100)", figure=Figure())
    assert (result.variables["x"], result.saves) == (("a.png", 100), [])


def test_a_save_that_is_not_that_of_nnsight_is_called() -> None:
    result = run_text("x = save(1, *[2], a=3, **{'b': 4})", save=lambda *args, **kwargs: (args, kwargs))
    assert (result.variables["x"], result.saves) == (((1, 2), {"a": 3, "b": 4}), [])


def test_arguments_are_evaluated_in_their_order() -> None:
    order: list[int] = []

    def note(number: int) -> Any:
        order.append(number)
        return Module(save=lambda *args, **kwargs: None)

    run_text("note(1).save(note(2), *[note(3)], a=note(4), **{'b': note(5)})", note=note)
    assert order == [1, 2, 3, 4, 5]


def test_attributes_and_other_names_stay_as_they_are() -> None:
    result = run_text("x = m.save\ny = m.saved()\nz = m.x.saves", m=Module(save=1, saved=lambda: 2, x=Module(saves=3)))
    assert (result.variables["x"], result.variables["y"], result.variables["z"]) == (1, 2, 3)
    assert result.saves == []


def test_a_failing_save_is_reported_at_its_own_line() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        run_text("x = 1\ny = (1 / 0).save()")
    assert caught.tb.tb_next is not None
    traceback: Any = caught.tb
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    assert (traceback.tb_frame.f_code.co_filename, traceback.tb_lineno) == ("<test block>", 3)


def test_saves_come_home() -> None:
    items = []
    with Run() as run:
        items = [number.save() for number in (1, 2)]
        x, y = (items[0] + 1).save(), (items[1] + 1).save()
    assert (x, y, items) == (2, 3, [])
    assert [save[:2] for save in run.saves] == [((), "number"), ((), "number"), (("x",), "x"), (("y",), "y")]
