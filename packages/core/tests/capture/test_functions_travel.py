"""Finding the source of a function, and compiling it again."""

from __future__ import annotations

import functools
import linecache
import operator
from types import FunctionType
from typing import TYPE_CHECKING, Any

import pytest
from capture_support import Result, Run, block_of, run_block

from nnsight._capture import FunctionSource, compile_function, find_function
from nnsight.errors import CaptureError

if TYPE_CHECKING:
    from collections.abc import Callable


def travel(function: Any, result: Result | None = None, **names: Any) -> Any:
    """Take a function apart and put it together again, as a receiver would."""
    source = find_function(function)
    source = FunctionSource(*(getattr(source, name) for name in source.__dataclass_fields__))
    code = compile_function(source, function.__code__.co_freevars)
    make = FunctionType(code, {**(result or Result()).helpers(), **names})
    copy = make(*(cell.cell_contents for cell in function.__closure__ or ()))
    copy.__defaults__, copy.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    return copy


def decorate(function: Any) -> Any:
    return function


def plain(a: int, b: int = 2, /, c: int = 3, *args: int, d: int, e: int = 5, **kwargs: int) -> Any:
    """A text."""
    return a, b, c, args, d, e, kwargs


def test_a_plain_function_travels() -> None:
    copy = travel(plain)
    assert copy(1, d=4) == (1, 2, 3, (), 4, 5, {})
    assert copy(1, 20, 30, 40, d=4, f=6) == (1, 20, 30, (40,), 4, 5, {"f": 6})
    assert copy.__doc__ == "A text."
    assert (copy.__name__, copy.__qualname__) == ("plain", "plain")
    assert copy.__code__.co_filename == __file__
    assert copy.__code__.co_firstlineno == plain.__code__.co_firstlineno
    assert {line for *_, line in copy.__code__.co_lines()} == {line for *_, line in plain.__code__.co_lines()}


@decorate
@functools.lru_cache
def cached() -> int:
    return 5


@decorate
@decorate
def decorated(x: int) -> int:
    return x + 1


def test_decorators_are_left_out() -> None:
    source = find_function(decorated)
    assert source.text == "def decorated(x: int) -> int:\n    return x + 1\n"
    assert source.first_line == decorated.__code__.co_firstlineno + 2
    assert travel(decorated)(1) == 2
    assert find_function(cached.__wrapped__).text == "def cached() -> int:\n    return 5\n"


def test_what_a_decorator_puts_in_the_place_of_a_function_is_what_travels() -> None:
    def double(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: int) -> Any:
            return 2 * function(*args)

        return wrapper

    @double
    def add(x: int) -> int:
        return x + 1

    assert find_function(add).name == "wrapper"
    assert travel(add)(1) == 4


def test_closures_work() -> None:
    factor = 3

    def outer(x: int) -> int:
        def inner(y: int) -> int:
            return y * factor

        return inner(x) + 1

    assert travel(outer)(2) == 7


def test_recursion_works() -> None:
    def factorial(n: int) -> int:
        return n * factorial(n - 1) if n else 1

    source = find_function(factorial)
    make = FunctionType(compile_function(source, ("factorial",)), Result().helpers())
    assert make(None)(5) == 120


def test_lambdas_travel() -> None:
    # fmt: off
    one, two = lambda x: x + 1, lambda x: x + 2
    nested = lambda x: (lambda y: x + y)  # noqa: E731
    spanning = (lambda x, y=5:  # noqa: E731
        x +
        y)
    unicode = ("äöü", lambda: "äöü")[1]; either = lambda x: x or 7  # noqa: E731
    chosen = lambda x: 1 if x else 2  # noqa: E731
    # fmt: on
    assert (travel(one)(1), travel(two)(1)) == (2, 3)
    five, six, five_again = lambda: 5, lambda: 6, lambda: 5
    assert (travel(five)(), travel(six)(), travel(five_again)()) == (5, 6, 5)
    assert travel(nested)(1)(2) == 3
    assert travel(nested(1))(2) == 3
    assert travel(spanning)(1) == 6
    assert (travel(unicode)(), travel(either)(0), travel(chosen)(0)) == ("äöü", 7, 2)
    source = find_function(spanning)
    assert source.text.count("\n") == 3
    copy = travel(spanning)
    assert set(copy.__code__.co_positions()) == set(spanning.__code__.co_positions())
    assert copy.__qualname__ == "<lambda>"


def test_a_lambda_in_a_call_or_a_decorator_is_found() -> None:
    def keep(function: Any) -> Any:
        return lambda other: function

    @keep(lambda x: x * 5)
    def replaced() -> None:
        pass

    assert travel(replaced)(2) == 10
    assert [travel(each)(1) for each in map(decorate, [lambda x: x, lambda x: -x])] == [1, -1]


def test_a_lambda_in_an_assert_is_found() -> None:
    kept = []
    assert kept.append(lambda x: x + 4) is None
    assert travel(kept[0])(1) == 5


class Holder:
    __secret = 7

    def method(self, x: int) -> int:
        return self.__secret + x

    @classmethod
    def of_class(cls) -> int:
        return cls.__secret

    @staticmethod
    def of_nothing() -> int:
        return Holder.__secret

    def with_super(self) -> Any:
        return super().__repr__()


def test_methods_travel() -> None:
    assert find_function(Holder().method).text.startswith("    def method")
    assert find_function(Holder.of_class).name == "of_class"
    assert travel(Holder.method)(Holder(), 1) == 8
    assert travel(Holder.of_class.__func__)(Holder) == 7  # type: ignore[attr-defined]
    assert travel(Holder.of_nothing, Holder=Holder)() == 7
    assert travel(Holder.with_super)(Holder()).startswith("<")


def test_generators_travel() -> None:
    def generate(n: int) -> Any:
        yield from range(n)

    assert list(travel(generate)(3)) == [0, 1, 2]


def test_saves_in_a_function_are_bound_to_no_name_of_the_block() -> None:
    def function(x: Any) -> Any:
        y = x.save()
        return [z.save() for z in (1, 2)] + [y]

    result = Result()
    assert travel(function, result)(5) == [1, 2, 5]
    assert result.saves == [((), "y", 5), ((), "z", 1), ((), "z", 2)]
    result = Result()
    assert travel(lambda x: x.save(), result)(5) == 5
    assert result.saves == [((), "x", 5)]


def test_annotations_and_defaults_are_not_evaluated_again() -> None:
    text = "def function(x: undefined = default(), *, y: undefined = default()) -> undefined:\n    return x, y\n"
    source = FunctionSource("<annotated>", 1, text, "function", 0, 15)
    function = FunctionType(compile_function(source), {})()
    function.__defaults__, function.__kwdefaults__ = (1,), {"y": 2}
    assert function() == (1, 2)


async def coroutine() -> None:
    pass


async def async_generator() -> Any:
    yield 1


@pytest.mark.parametrize("function", [coroutine, async_generator])
def test_async_functions_are_refused(function: Any) -> None:
    with pytest.raises(CaptureError, match="is an async function"):
        find_function(function)


@pytest.mark.parametrize("value", [len, operator.itemgetter(1), functools.partial(plain), Holder, 5, "".join])
def test_what_is_no_python_function_is_refused(value: Any) -> None:
    with pytest.raises(CaptureError, match="is not a function written in Python"):
        find_function(value)


def test_functions_compiled_here_are_found_again() -> None:
    result = run_block(
        block_of(
            "def f(x):\n    return x.save() + 1\ng, h = lambda: f(1), lambda: f(2)\nclass C:\n    def m(self): return 5"
        ),
        {},
    )
    variables = result.variables
    assert find_function(variables["f"]).text == "    def f(x):\n        return x.save() + 1\n"
    inner = Result()
    assert travel(variables["f"], inner)(4) == 5
    assert [save[2] for save in inner.saves] == [4]
    assert travel(variables["g"], f=lambda x: x)() == 2
    assert travel(variables["h"], f=lambda x: x)() == 3
    assert travel(variables["C"].m)(None) == 5
    twice = travel(travel(decorated))
    assert twice(1) == 2
    assert travel(travel(lambda: 5))() == 5
    assert travel(travel(Holder.method))(Holder(), 1) == 8


def test_a_function_defined_in_a_block_and_the_block_agree() -> None:
    with Run() as run:

        def function(x: Any) -> Any:
            return x + 1

        y = function(1).save()
    assert y == 2
    assert [save[:2] for save in run.saves] == [(("y",), "y")]


def test_a_function_of_the_same_line_with_another_text_is_found() -> None:
    functions: list[Callable[[], int]] = []
    for number in range(3):
        text = f"def function():\n    return {number}\n"
        linecache.cache["<function cell>"] = (len(text), None, text.splitlines(True), "<function cell>")
        namespace: dict[str, Any] = {}
        exec(compile(text, "<function cell>", "exec"), namespace)
        functions.append(namespace["function"])
        assert travel(functions[-1])() == number


@pytest.mark.parametrize(
    ("text", "name"), [("x = 1\n", "function"), ("async def function(): pass\n", "function"), ("x\n", "<lambda>")]
)
def test_a_source_that_is_no_function_is_refused(text: str, name: str) -> None:
    with pytest.raises(CaptureError, match="is not a function"):
        compile_function(FunctionSource("<text>", 1, text, name, 0, 1))
