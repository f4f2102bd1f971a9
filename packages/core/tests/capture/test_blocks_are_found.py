"""Which statement is captured, and that its body does not run."""

from __future__ import annotations

import asyncio
import contextlib
import linecache
import sys
import threading
from typing import Any

import pytest
from capture_support import Capture, Module, Run

from nnsight._capture import parse_block
from nnsight.errors import CaptureError

ran: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_runs_in_place() -> Any:
    ran.clear()
    yield
    assert ran == []


def passing() -> Any:
    return contextlib.nullcontext(7)


with Capture() as at_module_level:
    ran.append("module")


def test_a_block_at_module_level_is_captured() -> None:
    assert at_module_level.skipped
    assert at_module_level.block.text == 'with Capture() as at_module_level:\n    ran.append("module")\n'
    assert at_module_level.block.function_name == "<module>"
    assert at_module_level.block.target == "at_module_level"
    assert at_module_level.block.filename == __file__


def test_the_text_is_exactly_that_of_the_file() -> None:
    with Capture() as block:  # a comment
        # another one
        ran.append("""
  text""")
    assert block.block.text == (
        '    with Capture() as block:  # a comment\n        # another one\n        ran.append("""\n  text""")\n'
    )
    assert block.body == "ran.append('\\n  text')"


def test_statements_keep_the_line_numbers_of_the_file() -> None:
    with Capture() as block:
        ran.append(1)
        ran.append(2)
    first, second = parse_block(block.block)
    assert (first.lineno, second.lineno) == (block.block.first_line + 1, block.block.first_line + 2)
    assert block.block.first_line == test_statements_keep_the_line_numbers_of_the_file.__code__.co_firstlineno + 1


def test_a_body_on_the_line_of_its_header_is_captured() -> None:
    # fmt: off
    with Capture() as block: ran.append(1); ran.append(2)
    # fmt: on
    assert block.skipped
    assert block.body == "ran.append(1)\nran.append(2)"


def test_a_body_that_starts_with_its_own_target_on_one_line_is_captured() -> None:
    for _ in range(5):
        # fmt: off
        with Capture() as block: block.ran = True
        # fmt: on
        assert block.skipped
        assert not hasattr(block, "ran")


def test_a_block_without_a_target_is_captured() -> None:
    block = Capture()
    with block:
        ran.append(1)
    assert block.skipped
    assert block.block.target is None
    assert block.body == "ran.append(1)"


def test_one_line_without_a_target_is_captured() -> None:
    block = Capture()
    # fmt: off
    with block: ran.append(1)
    # fmt: on
    assert block.skipped


def test_empty_bodies_are_captured() -> None:
    with Capture() as one:
        pass
    # fmt: off
    with Capture() as two: pass
    with Capture() as three: ...
    # fmt: on
    with Capture() as four:
        """Only a text."""
    assert [each.skipped for each in (one, two, three, four)] == [True] * 4
    assert [each.body for each in (one, two, three)] == ["pass", "pass", "..."]


def test_items_before_ours_run_in_place() -> None:
    with passing() as value, Capture() as block:
        ran.append(1)
    assert value == 7
    assert block.block.item == 1
    assert block.block.target == "block"
    assert block.body == "ran.append(1)"


def test_items_after_ours_belong_to_the_body() -> None:
    with Capture() as block, ran.append(1) as value, ran.append(2):  # type: ignore[func-returns-value]
        ran.append(value)
    assert block.block.item == 0
    assert block.body == "with ran.append(1) as value, ran.append(2):\n    ran.append(value)"


def test_an_item_in_the_middle_is_told_apart() -> None:
    with passing(), Capture() as block, ran.append(1):  # type: ignore[func-returns-value]
        ran.append(2)
    assert block.block.item == 1
    assert block.body == "with ran.append(1):\n    ran.append(2)"


def test_headers_may_span_lines() -> None:
    with (
        passing() as value,
        Capture(
            # a comment
        ) as block,
    ):
        ran.append(1)
    assert value == 7
    assert (block.block.item, block.body) == (1, "ran.append(1)")
    assert block.block.text.startswith("    with (\n        passing() as value,\n")


def test_headers_may_be_continued_by_a_backslash() -> None:
    # fmt: off
    with passing() as value, \
            Capture() as block:
        ran.append(value)
    # fmt: on
    assert (block.block.item, block.body) == (1, "ran.append(value)")


def test_the_inner_of_two_nested_blocks_is_never_entered() -> None:
    inner = Capture()
    with Capture() as outer:
        with inner:
            ran.append(1)
    assert outer.skipped
    assert not inner.entered
    assert outer.body == "with inner:\n    ran.append(1)"


def test_a_block_inside_other_with_statements_is_captured() -> None:
    with passing():
        with Capture() as one:
            ran.append(1)
        with passing(), Capture() as two:
            ran.append(2)
    assert (one.body, two.body) == ("ran.append(1)", "ran.append(2)")


def test_neighbouring_blocks_are_told_apart() -> None:
    with Capture() as one:
        ran.append(1)
    with Capture() as two:
        ran.append(2)
    assert (one.body, two.body) == ("ran.append(1)", "ran.append(2)")
    assert two.block.first_line == one.block.first_line + 2


def test_targets_may_be_attributes_subscripts_and_tuples() -> None:
    holder, table = Module(), {}
    with Capture() as holder.block:
        ran.append(1)
    with Capture() as table["block"]:
        ran.append(2)

    assert holder.block.body == "ran.append(1)"
    assert table["block"].body == "ran.append(2)"
    assert holder.block.block.target is None


def test_an_attribute_target_and_its_body_may_share_a_line() -> None:
    holder = Module()
    for _ in range(3):
        # fmt: off
        with Capture() as holder.block: holder.block.ran = ran.append(1)
        # fmt: on
        assert holder.block.skipped


def test_the_target_may_be_a_tuple() -> None:
    class Several(Capture):
        def __iter__(self) -> Any:
            return iter((self, 5))

    for _ in range(3):
        # fmt: off
        with Several() as (block, five): block.ran = five
        # fmt: on
        assert (block.skipped, five) == (True, 5)
        assert block.block.target is None


def test_a_target_may_be_a_variable_of_an_enclosing_function_or_a_global() -> None:
    block: Any = None

    def inner() -> None:
        nonlocal block
        global global_block
        with Capture() as block:
            ran.append(1)
        with Capture() as global_block:
            ran.append(2)

    inner()
    assert block.body == "ran.append(1)"
    assert global_block.body == "ran.append(2)"


global_block: Any = None


def test_an_error_in_the_target_is_not_hidden() -> None:
    class Refuses:
        __slots__ = ()

    with pytest.raises(AttributeError):
        with Capture() as Refuses().block:  # type: ignore[attr-defined]
            ran.append(1)
    with Capture() as block:
        ran.append(1)
    assert block.skipped


def test_any_expression_can_give_the_context_manager() -> None:
    flag = True
    with Capture() if flag else passing() as one:
        ran.append(1)
    with (two := Capture()):
        ran.append(2)
    with {"key": Capture()}["key"] as three:
        ran.append(3)
    # fmt: off
    with (Capture()) as four, passing() if flag else ran.append(4): ran.append(5)
    # fmt: on
    assert [each.body for each in (one, two, three)] == ["ran.append(1)", "ran.append(2)", "ran.append(3)"]
    assert four.body == "with passing() if flag else ran.append(4):\n    ran.append(5)"


def test_the_same_statement_is_left_alone_when_another_manager_is_entered() -> None:
    seen = []
    for manager in (Capture(), passing(), Capture(), passing()):
        with manager as value:
            seen.append(value)
    assert seen == [7, 7]


def test_a_block_in_a_loop_is_captured_each_time() -> None:
    blocks = []
    for _ in range(50):
        with Capture() as block:
            ran.append(1)
        blocks.append(block)
    assert all(each.skipped for each in blocks)
    assert all(each.block is blocks[0].block for each in blocks)


def test_a_block_that_starts_with_a_loop_is_captured() -> None:
    with Capture() as block:
        for _ in range(3):
            ran.append(1)
    with Capture() as other:
        while True:
            ran.append(1)
    assert (block.skipped, other.skipped) == (True, True)


def test_handlers_inside_a_body_do_not_run() -> None:
    with Capture() as one:
        try:
            ran.append(1)
        except BaseException:  # noqa: BLE001
            ran.append(2)
        finally:
            ran.append(3)
    with Capture() as two:
        with passing(), passing():
            ran.append(4)
    # fmt: off
    with Capture() as three, passing(): ran.append(5)
    # fmt: on
    assert [each.skipped for each in (one, two, three)] == [True] * 3


def test_a_body_that_starts_with_try_statements_is_left_without_running_their_handlers() -> None:
    def refuse() -> Any:
        ran.append("refuse")
        return ValueError

    block = Capture()
    for _ in range(3):
        with block:
            try:
                ran.append(1)
            finally:
                ran.append(2)
        with Capture() as named:
            try:
                try:
                    ran.append(3)
                except refuse():
                    ran.append(4)
            except:  # noqa: E722
                ran.append(5)
            else:
                ran.append(6)
        with Capture() as groups:
            try:
                ran.append(7)
            except* ValueError:
                ran.append(8)
        assert (block.skipped, named.skipped, groups.skipped) == (True, True, True)
        assert (named.block.target, groups.block.target) == ("named", "groups")


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="later versions can raise more than once")
def test_python_3_11_refuses_a_try_statement_after_a_target_that_is_no_name() -> None:
    table: dict[str, Any] = {}
    with pytest.raises(CaptureError, match="starts with `try`"):
        with Capture() as table["block"]:
            try:
                ran.append(1)
            finally:
                ran.append(2)


def test_nothing_is_being_handled_after_a_block() -> None:
    with Capture():
        ran.append(1)
    assert sys.exc_info() == (None, None, None)
    with Capture():
        try:
            ran.append(1)
        except BaseException:
            raise
    assert sys.exc_info() == (None, None, None)
    error = ValueError()
    try:
        raise error
    except ValueError:
        with Capture():
            try:
                ran.append(1)
            finally:
                ran.append(2)
        assert sys.exc_info()[1] is error


def test_a_block_in_each_part_of_a_try_statement_is_captured() -> None:
    blocks = []
    for fails in (True, False):
        try:
            with Capture() as block:
                ran.append(1)
            blocks.append(block)
            if fails:
                raise ValueError
        except ValueError:
            with Capture() as block:
                ran.append(2)
            blocks.append(block)
        else:
            with Capture() as block:
                ran.append(3)
            blocks.append(block)
        finally:
            # The compiler makes two copies of this part.
            with Capture() as block:
                ran.append(4)
            blocks.append(block)
    assert [each.body[-2] for each in blocks] == list("124134")


def test_a_match_statement_may_hold_a_block() -> None:
    match 1:
        case 1:
            with Capture() as block:
                ran.append(1)
    assert block.body == "ran.append(1)"


def decorate(function: Any) -> Any:
    return lambda *args: function(*args)


@decorate
@decorate
def decorated() -> Any:
    with Capture() as block:
        ran.append(1)
    return block


def test_a_decorated_function_may_hold_a_block() -> None:
    assert decorated().body == "ran.append(1)"
    assert decorated().block.function_name == "decorated"


class Holder:
    with Capture() as in_class_body:
        ran.append("class")

    __private = 1

    def method(self) -> Any:
        with Capture() as block:
            ran.append(self.__private)
        return block

    @staticmethod
    def static() -> Any:
        with Capture() as block:
            ran.append(1)
        return block

    @property
    def attribute(self) -> Any:
        with Capture() as block:
            ran.append(1)
        return block

    class Inner:
        def method(self) -> Any:
            with Capture() as block:
                ran.append(1)
            return block


def test_classes_may_hold_blocks() -> None:
    assert Holder.in_class_body.body == "ran.append('class')"
    assert Holder.in_class_body.block.function_name == "Holder"
    assert Holder().method().body == "ran.append(self._Holder__private)"
    assert Holder().method().block.class_name == "Holder"
    assert Holder.static().body == "ran.append(1)"
    assert Holder().attribute.body == "ran.append(1)"
    assert Holder.Inner().method().block.class_name == "Inner"


def test_closures_and_recursion_work() -> None:
    def recursive(depth: int) -> list[Any]:
        below = recursive(depth - 1) if depth else []
        with Capture() as block:
            ran.append(depth)
        return [*below, block]

    blocks = recursive(4)
    assert [each.body for each in blocks] == ["ran.append(depth)"] * 5


def test_a_target_that_recurses_into_the_same_code_is_no_problem() -> None:
    class Recursing:
        def __init__(self, depth: int) -> None:
            self.depth = depth

        def __setattr__(self, name: str, value: Any) -> None:
            if name == "block" and self.depth:
                enter(Recursing(self.depth - 1))
            object.__setattr__(self, name, value)

    blocks = []

    def enter(holder: Any) -> None:
        with Capture() as holder.block:
            ran.append(1)
        blocks.append(holder.block)

    enter(Recursing(3))
    assert len(blocks) == 4
    assert all(each.skipped for each in blocks)


def test_generators_may_hold_blocks() -> None:
    def generate() -> Any:
        for _ in range(3):
            with Capture() as block:
                ran.append(1)
            yield block

    first, second = generate(), generate()
    for one, two in zip(first, second, strict=True):
        assert (one.skipped, two.skipped) == (True, True)


def test_coroutines_may_hold_blocks() -> None:
    async def work(number: int) -> Any:
        await asyncio.sleep(0)
        with Run() as block:
            value = (number + 1).save()  # type: ignore[attr-defined]
        await asyncio.sleep(0)
        return block.skipped, value

    async def work_together() -> Any:
        return await asyncio.gather(*(work(number) for number in range(5)))

    assert asyncio.run(work_together()) == [(True, number + 1) for number in range(5)]


def test_threads_in_the_same_code_do_not_disturb_each_other() -> None:
    barrier = threading.Barrier(4)
    results: list[Any] = []

    def work(number: int) -> None:
        barrier.wait()
        for step in range(300):
            with Run() as block:
                value = (number * 1000 + step).save()  # type: ignore[attr-defined]
            results.append((block.skipped, value == number * 1000 + step))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 1200
    assert set(results) == {(True, True)}


def test_a_plain_with_in_another_thread_runs_while_a_block_is_captured() -> None:
    def work(manager: Any, times: int, seen: list[Any]) -> None:
        for _ in range(times):
            with manager() as value:
                seen.append(value)

    seen: list[Any] = []
    captured: list[Any] = []
    threads = [
        threading.Thread(target=work, args=(passing, 2000, seen)),
        threading.Thread(target=work, args=(Capture, 2000, captured)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [7] * 2000
    assert captured == []


def test_a_very_long_function_may_hold_a_block() -> None:
    # Jumps and names beyond 255 need EXTENDED_ARG prefixes, also at the start of the body.
    names = [f"name_{number}" for number in range(400)]
    lines = ["def long(Capture):", *(f"    {name} = 1" for name in names)]
    lines += ["    with Capture() as block:", "        name_399 = name_398 + unknown_function(name_397)"]
    lines += ["    return block, name_399", ""]
    text = "\n".join(lines)
    linecache.cache["<long function>"] = (len(text), None, text.splitlines(True), "<long function>")
    namespace: dict[str, Any] = {}
    exec(compile(text, "<long function>", "exec"), namespace)
    for _ in range(3):
        block, value = namespace["long"](Capture)
        assert block.skipped
        assert value == 1
        assert block.body == "name_399 = name_398 + unknown_function(name_397)"
