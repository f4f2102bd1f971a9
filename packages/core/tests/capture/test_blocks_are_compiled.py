"""The code that a block is compiled to."""

from __future__ import annotations

import ast
import gc
import linecache
import pickle
import traceback
from types import FunctionType
from typing import TYPE_CHECKING, Any

import pytest
from capture_support import Capture, Result, Run, block_of, run_block, run_text

from nnsight._capture import BlockSource, compile_block, compiling, parse_block
from nnsight.errors import CaptureError

if TYPE_CHECKING:
    from pathlib import Path


def test_the_code_takes_parameters_and_returns_its_variables() -> None:
    result = run_text("z = x + y\nx = 5", x=1, y=2)
    assert result.variables == {"x": 5, "y": 2, "z": 3}


def test_other_names_are_globals_of_the_run() -> None:
    result = Result()
    code = compile_block(block_of("y = x\nz = len([1])"), ())
    assert FunctionType(code, {**result.helpers(), "x": 5})() == {"y": 5, "z": 1}


def test_file_name_function_name_and_lines_are_those_of_the_block() -> None:
    source = BlockSource("script.py", 40, "    with m as t:\n        x = 1\n\n        y = 2\n", 0, "function")
    code = compile_block(source, ())
    assert (code.co_filename, code.co_name, code.co_firstlineno) == ("script.py", "function", 40)
    assert {line for *_, line in code.co_lines() if line} == {40, 41, 43}
    assert compile_block(BlockSource("s.py", 1, "with m: x = 1\n", 0, "<module>"), ()).co_name == "<module>"


def test_columns_are_those_of_the_file() -> None:
    source = BlockSource("script.py", 40, "    with m as t:\n        x = value.save()\n", 0, "function")
    positions = set(compile_block(source, ("value",)).co_positions())
    assert (41, 41, 12, 24) in positions
    assert (41, 41, 12, 17) in positions


def test_a_body_on_the_header_line_and_text_across_lines_keep_their_meaning() -> None:
    source = BlockSource("script.py", 7, "    with m as t: x = '''\n  text'''; y = 1\n", 0, "function")
    assert run_block(source, {}).variables == {"x": "\n  text", "y": 1}


def test_remaining_items_run_with_the_body() -> None:
    class Context:
        def __enter__(self) -> int:
            return 5

        def __exit__(self, *exc: object) -> None:
            return None

    source = BlockSource("script.py", 7, "with m as t, c as a, c as b: x = a + b\n", 0, "function")
    assert run_block(source, {"c": Context()}).variables["x"] == 10
    source = BlockSource("script.py", 7, "with m as t, n as s, c as b: x = b\n", 1, "function")
    assert source.target == "s"
    assert run_block(source, {"c": Context()}).variables["x"] == 5


def test_nested_functions_classes_and_comprehensions_see_the_variables_of_the_block() -> None:
    text = (
        "total = 0\n"
        "def add(number):\n"
        "    nonlocal total\n"
        "    total += number * factor\n"
        "[add(number) for number in (1, 2)]\n"
        "class C:\n"
        "    value = total\n"
        "    def method(self): return self.value + total\n"
        "result = C().method()\n"
        "names = add.__qualname__, C.__qualname__, C.method.__qualname__\n"
    )
    result = run_text(text, factor=10)
    assert result.variables["result"] == 60
    assert result.variables["names"] == ("add", "C", "C.method")
    source = BlockSource("s.py", 1, "with m:\n    def f(): pass\n    class C: pass\n", 0, "function")
    variables = run_block(source, {}).variables
    assert variables["f"].__qualname__ == "function.<locals>.f"
    assert variables["C"].__qualname__ == "function.<locals>.C"


def test_a_nonlocal_variable_of_an_enclosing_function_can_be_a_parameter() -> None:
    text = "def add():\n    nonlocal count\n    count += 1\nadd()\nadd()"
    assert run_text(text, count=5).variables["count"] == 7
    with pytest.raises(CaptureError, match="cannot be compiled apart from the code around it: no binding for nonlocal"):
        compile_block(block_of(text), ())


def test_deleted_variables_and_those_of_except_clauses_are_unbound() -> None:
    text = "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    kept = str(error)\ndel x"
    assert run_text(text, x=1).variables == {"kept": "division by zero"}


def test_private_names_of_a_class_work() -> None:
    class Holder:
        def __init__(self) -> None:
            self.__secret = 5

        def method(self) -> Any:
            __local = 1
            with Run() as run:
                __local = self.__secret.save()  # type: ignore[attr-defined]

                def __function(__argument: int) -> int:
                    return __argument + __local

                __result = __function(1).save()  # type: ignore[attr-defined]
            return __local, __result, [name for name, *_ in run.saves]

    assert Holder().method() == (5, 6, [("_Holder__local",), ("_Holder__result",)])


def test_annotations_follow_the_future_import_of_the_file() -> None:
    source = BlockSource("script.py", 1, "with m:\n    def f(x: Unknown): pass\n    y: Unknown = 1\n", 0, "f")
    with Capture() as block:
        pass
    assert block.block.flags != 0
    future = BlockSource(*(*source.__dict__.values(),)[:6], block.block.flags)
    assert run_block(future, {}).variables["f"].__annotations__ == {"x": "Unknown"}
    assert run_block(future, {}).variables["y"] == 1


def test_tracebacks_show_the_lines_of_the_user() -> None:
    def function() -> None:
        value = 0
        with Run() as run:
            run.x = 1
            run.y = 1 / value
        del run

    with pytest.raises(ZeroDivisionError) as caught:
        function()
    text = "".join(traceback.format_exception(caught.value))
    assert f'File "{__file__}", line {function.__code__.co_firstlineno + 4}, in function' in text
    assert "run.y = 1 / value" in text


def test_tracebacks_show_lines_of_files_that_do_not_exist_here() -> None:
    name = "/nowhere/script.py"
    linecache.cache.pop(name, None)
    first = BlockSource(name, 10, "    with m as t:\n        x = 1\n        y = x / 0\n", 0, "function")
    second = BlockSource(name, 20, "    with m as t:\n        raise ValueError\n", 0, "function")
    for source, line in ((first, "y = x / 0"), (second, "raise ValueError"), (first, "y = x / 0")):
        with pytest.raises((ZeroDivisionError, ValueError)) as caught:
            run_block(source, {})
        linecache.checkcache()
        assert line in "".join(traceback.format_exception(caught.value))
    assert linecache.getline(name, 21) == "        raise ValueError\n"
    assert linecache.getline(name, 1) == "\n"


def test_registered_lines_are_bounded_and_leave_real_files_alone(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text("# another text\n")
    compile_block(BlockSource(str(path), 1, "with m: x = 1\n", 0, "f"), ())
    assert linecache.getline(str(path), 1) == "# another text\n"
    before = len(linecache.cache)
    for number in range(1000):
        compile_block(BlockSource(f"<made up {number}>", 1, "with m: x = 1\n", 0, "f"), ())
    assert len(linecache.cache) - before <= 256
    assert linecache.getline("<made up 999>", 1) == "with m: x = 1\n"
    assert len(compiling._registered) <= 256


def test_equal_sources_are_compiled_once() -> None:
    one, two = block_of("x = 1"), block_of("x = 1")
    assert compile_block(one, ("y",)) is compile_block(two, ("y",))
    assert compile_block(one, ("y",)) is not compile_block(two, ())
    assert parse_block(one) is parse_block(two)


def test_compiled_blocks_are_bounded() -> None:
    gc.collect()
    for number in range(600):
        compile_block(block_of(f"x = {number}"), ())
    before = len(gc.get_objects())
    for number in range(600, 1800):
        compile_block(block_of(f"x = {number}"), ())
    gc.collect()
    assert len(gc.get_objects()) - before < 200


def test_a_source_travels_as_plain_values() -> None:
    with Capture() as block:
        x = 1
        del x
    values = [getattr(block.block, name) for name in block.block.__dataclass_fields__]
    assert {type(value) for value in values} == {str, int}
    assert BlockSource(*values) == block.block
    assert hash(BlockSource(*values)) == hash(block.block)
    assert pickle.loads(pickle.dumps(block.block)) == block.block


def test_warnings_of_the_compiler_are_not_repeated() -> None:
    run_text("x = '\\d'\ny = 1 is 1")


def test_blocks_inside_a_compiled_block_are_captured_as_well() -> None:
    ran: list[int] = []

    class Outer(Capture):
        def leave(self, frame: Any) -> None:
            values = {"Capture": Capture, "Run": Run, "ran": ran, "outer": self}
            self.variables = run_block(self.block, values).variables

    def function() -> Any:
        with Outer() as outer:
            inner = []
            for number in range(3):
                with Capture() as one:
                    ran.append(number)
                with Run() as two:
                    x = (number + 1).save()  # type: ignore[attr-defined]
                    y = len([x.save() for _ in range(2)]).save()  # type: ignore[attr-defined]
                inner.append((one, two, x))

            def nested() -> Any:
                # fmt: off
                with Capture() as three: ran.append(3)
                # fmt: on
                return three

            inner.append((nested(), y))
        return outer

    for _ in range(2):
        variables = function().variables
        assert ran == []
        assert [x for *_, x in variables["inner"][:3]] == [1, 2, 3]
        one, two, _ = variables["inner"][0]
        three, y = variables["inner"][3]
        assert y == 2
        assert one.body == "ran.append(number)"
        assert two.body == "x = (number + 1).save()\ny = len([x.save() for _ in range(2)]).save()"
        assert three.body == "ran.append(3)"
        line = function.__code__.co_firstlineno
        assert (one.block.first_line, one.block.function_name) == (line + 4, "function")
        assert one.block.filename == __file__
        assert one.block.text.startswith("                with Capture() as one:\n")
        assert (three.block.first_line, three.block.function_name) == (line + 13, "nested")


def test_reads_of_one_item_by_number_are_handed_over_as_such() -> None:
    from nnsight._capture.items import READ_ITEM, rewrite_items

    for text, rewritten in [
        ("x.output[0]", f"{READ_ITEM}(x, 'output', 0)"),
        ("x.y.inputs[-1][0]", f"{READ_ITEM}(x.y, 'inputs', -1)[0]"),
        ("x.output[0][:] += 1", f"{READ_ITEM}(x, 'output', 0)[:] += 1"),
        ("f(x.output[1].output[0])", f"f({READ_ITEM}({READ_ITEM}(x, 'output', 1), 'output', 0))"),
        ("lambda: x.output[0]", f"lambda: {READ_ITEM}(x, 'output', 0)"),
        *[(text, text) for text in ("x.output[0] = 1", "x.output[i]", "x.output[0:1]", "x.output[True]", "output[0]")],
        *[(text, text) for text in ("x.input[0]", "x.output[0] += 1", "del x.output[0]", "x.output['a']")],
    ]:
        assert ast.unparse(ast.Module(rewrite_items(ast.parse(text).body), [])) == rewritten
