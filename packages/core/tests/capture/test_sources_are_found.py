"""Where the text of a block comes from, and that no other text is ever taken for it."""

from __future__ import annotations

import ast
import contextlib
import doctest
import gc
import importlib
import inspect
import itertools
import linecache
import os
import re
import sys
import types
import warnings
import weakref
import zipfile
from typing import TYPE_CHECKING, Any

import pytest
from capture_support import Capture, Run

from nnsight._capture import BodySkipper, find_block, find_function, finding, functions
from nnsight._capture.bytecode import instructions, nested_codes
from nnsight._capture.leaving import find_exit
from nnsight._capture.outline import outline
from nnsight._capture.verification import compiles_to
from nnsight.errors import CaptureError, SourceNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

numbers = itertools.count()


def execute(text: str, filename: str, **names: Any) -> dict[str, Any]:
    namespace = {"Capture": Capture, "Run": Run, **names}
    exec(compile(text, filename, "exec"), namespace)
    return namespace


def register(text: str, filename: str) -> None:
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Write and import a module of a new name."""

    def load(text: str, name: str | None = None) -> Any:
        name = name or f"captured_module_{next(numbers)}"
        (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        return importlib.import_module(name)

    monkeypatch.syspath_prepend(str(tmp_path))
    return load


def test_text_that_was_registered_in_linecache_is_found() -> None:
    text = "with Capture() as block:\n    x = 1\n"
    register(text, "<registered>")
    assert execute(text, "<registered>")["block"].block.text == text


def test_a_file_is_found_when_it_is_executed_by_hand(tmp_path: Path) -> None:
    text = "with Capture() as block:\n    x = 1\n"
    path = tmp_path / "script.py"
    path.write_text(text)
    assert execute(text, str(path))["block"].body == "x = 1"


def test_text_without_a_source_is_refused() -> None:
    with pytest.raises(SourceNotFoundError, match="no source text exists for the block at <nowhere>:1"):
        execute("with Capture() as block:\n    x = 1\n", "<nowhere>")


def test_the_error_says_what_to_do_and_is_honest_about_functions() -> None:
    with pytest.raises(SourceNotFoundError, match="neither of blocks nor of functions"):
        execute("with Capture() as block:\n    x = 1\n", "<nowhere>")
    namespace = execute("def function(): pass\n", "<nowhere>")
    with pytest.raises(SourceNotFoundError, match="the function function at <nowhere>:1"):
        find_function(namespace["function"])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("value - 1", "value + 1"),
        ("value - 1", "value - 2"),
        ("value - 1", "other - 1"),
        ("value.a", "value.b"),
        ("value(key=1)", "value(kez=1)"),
        ("[value for value in (1, 2)]", "[value for value in (1, 3)]"),
        ("lambda: value", "lambda: valve"),
        ("1", "1.0"),
        ("1", "True"),
        ("0.0", "-0.0"),
        ("value and other", "value or other"),
        ("value < other", "value > other"),
        ("value", "(value, value)"),
        ("'text'", "b'text'"),
        ("value[1:2]", "value[1:3]"),
        ("f'{value!r}'", "f'{value!s}'"),
        ("f'{value:1}'", "f'{value:2}'"),
    ],
)
def test_a_file_that_has_changed_since_it_was_loaded_is_refused(tmp_path: Path, before: str, after: str) -> None:
    text = (
        "def function(value, other, valve=None):\n    with Capture() as block:\n        result = {}\n    return block\n"
    )
    path = tmp_path / "script.py"
    path.write_text(text.format(before))
    namespace = execute(text.format(before), str(path))
    path.write_text(text.format(after))
    with pytest.raises(SourceNotFoundError, match="its file has changed since it was loaded"):
        namespace["function"](1, 2)
    with pytest.raises(SourceNotFoundError, match="its file has changed since it was loaded"):
        find_function(namespace["function"])
    path.write_text(text.format(before))
    assert namespace["function"](1, 2).skipped
    assert find_function(namespace["function"]).text.startswith("def function")


def test_lines_inserted_above_a_block_are_noticed(load: Callable[..., Any], tmp_path: Path) -> None:
    text = "def function(Capture):\n    with Capture() as block:\n        x = 1\n    return block\n"
    module = load(text)
    path = tmp_path / f"{module.__name__}.py"
    path.write_text("# a new line\n" + text)
    with pytest.raises(SourceNotFoundError):
        module.function(Capture)


def test_a_change_elsewhere_in_the_file_does_not_matter(load: Callable[..., Any], tmp_path: Path) -> None:
    text = "def function(Capture):\n    with Capture() as block:\n        x = 1\n    return block\n"
    module = load(text)
    (tmp_path / f"{module.__name__}.py").write_text(text + "\n\nx = 5\n")
    assert module.function(Capture).body == "x = 1"


def test_a_file_that_changes_after_the_first_capture_does_not_matter(load: Callable[..., Any], tmp_path: Path) -> None:
    text = "def function(Capture):\n    with Capture() as block:\n        x = {}\n    return block\n"
    module = load(text.format(1))
    assert module.function(Capture).body == "x = 1"
    (tmp_path / f"{module.__name__}.py").write_text(text.format(2))
    linecache.checkcache()
    assert module.function(Capture).body == "x = 1"


def test_a_cached_text_that_is_older_than_the_file_is_used_if_it_is_what_runs(tmp_path: Path) -> None:
    text = "def function():\n    with Capture() as block:\n        x = {}\n    return block\n"
    path = tmp_path / "script.py"
    path.write_text(text.format(1))
    namespace = execute(text.format(1), str(path))
    linecache.getlines(str(path))
    path.write_text(text.format(22))
    assert namespace["function"]().body == "x = 1"


def test_a_reloaded_module_runs_its_new_text(load: Callable[..., Any], tmp_path: Path) -> None:
    text = "def function(Capture):\n    with Capture() as block:\n        x = {}\n    return block\n"
    module = load(text.format(1))
    assert module.function(Capture).body == "x = 1"
    path = tmp_path / f"{module.__name__}.py"
    path.write_text(text.format(222))
    os.utime(path, (1e9, 1e9))
    importlib.reload(module)
    assert module.function(Capture).body == "x = 222"


def test_the_same_file_name_and_line_with_a_new_text_gives_the_new_block() -> None:
    text = "with Capture() as block:\n    x = {}\n"
    blocks = []
    for number in range(5):
        register(text.format(number), "<cell>")
        blocks.append(execute(text.format(number), "<cell>")["block"].body)
    assert blocks == [f"x = {number}" for number in range(5)]


def test_equal_code_under_another_file_name_is_not_mixed_up() -> None:
    text = "with Capture() as block:\n    x = 1\n"
    register(text, "<one>")
    register(text, "<two>")
    one, two = execute(text, "<one>")["block"].block, execute(text, "<two>")["block"].block
    assert (one.filename, two.filename) == ("<one>", "<two>")


def test_a_loader_can_give_the_text(tmp_path: Path) -> None:
    text = "def function(Capture):\n    with Capture() as block:\n        x = 1\n    return block\n"
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("zipped_module.py", text)
    sys.path.insert(0, str(tmp_path / "archive.zip"))
    try:
        import zipped_module  # type: ignore[import-not-found]

        assert zipped_module.function(Capture).body == "x = 1"
    finally:
        sys.path.remove(str(tmp_path / "archive.zip"))

    class Loader:
        def get_source(self, name: str) -> str:
            return text

    namespace = execute(text, "<loaded>", __loader__=Loader(), __name__="anything")
    assert namespace["function"](Capture).body == "x = 1"


def test_a_relative_file_name_is_found_after_a_change_of_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "def function():\n    with Capture() as block:\n        x = 1\n    return block\n"
    path = tmp_path / "relative_script.py"
    path.write_text(text)
    namespace = execute(text, "relative_script.py", __file__=str(path))
    assert namespace["function"]().body == "x = 1"


def test_other_line_ends_and_form_feeds_are_no_problem(tmp_path: Path) -> None:
    text = "a = '\x0c \u2028'\r\n\x0cwith Capture() as block:\r\n    x = '\u2028'\r\n    y = 'äöü'; z = 1\r\n"
    register(text, "<line ends>")
    block = execute(text, "<line ends>")["block"]
    assert block.block.text == "\x0cwith Capture() as block:\n    x = '\u2028'\n    y = 'äöü'; z = 1\n"
    path = tmp_path / "latin.py"
    path.write_bytes("# coding: latin-1\nwith Capture() as block: x = 'äöü'; y = 1\n".encode("latin-1"))
    namespace = {"Capture": Capture}
    exec(compile(path.read_bytes(), str(path), "exec"), namespace)
    assert namespace["block"].body == "x = 'äöü'\ny = 1"  # type: ignore[attr-defined]


def test_tabs_and_blocks_at_the_end_of_a_text_without_line_end_are_found() -> None:
    text = "if True:\n\twith Capture() as block:\n\t\tx = 1\n\t\tif x:\n\t\t\ty = 2"
    register(text, "<tabs>")
    assert execute(text, "<tabs>")["block"].body == "x = 1\nif x:\n    y = 2"


def test_text_compiled_for_a_prompt_is_found() -> None:
    text = "with Capture() as block:\n    block.x\n    block.y\n"
    register(text, "<prompt>")
    namespace = {"Capture": Capture}
    exec(compile(text, "<prompt>", "single"), namespace)
    assert namespace["block"].body == "block.x\nblock.y"  # type: ignore[attr-defined]


def test_examples_of_doctest_are_found() -> None:
    text = """
    >>> with Capture() as block:
    ...     x = 1
    >>> block.body
    'x = 1'
    >>> def function():
    ...     with Capture() as block:
    ...         x = 2
    ...     return block.body
    >>> function()
    'x = 2'
    """
    test = doctest.DocTestParser().get_doctest(text, {"Capture": Capture}, "example", None, 0)
    result = doctest.DocTestRunner(verbose=False).run(test)
    assert (result.attempted, result.failed) == (4, 0)


def test_a_module_that_pytest_has_rewritten_is_found() -> None:
    # This module is one. The statements of the block include what pytest rewrites.
    with Capture() as block:
        assert block.value == 1, "message"
        x = [y for y in (1, 2) if y]
        if x:
            assert x

        def function() -> None:
            assert x
            x.append(1)

    assert block.skipped
    assert block.block.text.count("assert") == 3


def test_rewritten_functions_are_found() -> None:
    def function(value: int) -> int:
        assert value > 0
        return value + 1

    assert find_function(function).text.count("assert value > 0") == 1


@pytest.mark.parametrize("rewritten", [False, True])
@pytest.mark.parametrize("module", ["tempfile", "logging", "subprocess", "zipfile", "unittest.mock", "http.client"])
def test_every_with_statement_and_function_of_a_real_module_is_recognized(module: str, rewritten: bool) -> None:
    text = inspect.getsource(importlib.import_module(module))
    if rewritten:
        rewrite = pytest.importorskip("_pytest.assertion.rewrite")
        # Asserts between the statements, as in tests.
        lines = text.split("\n")
        for line in sorted({node.lineno for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)})[::-1]:
            start = re.match(r" +(return|with|for|raise)\b", lines[line - 1])
            if start is not None:
                lines.insert(line - 1, start[0].removesuffix(start[1]) + "assert [True] == [True]")
        text = "\n".join(lines)
        tree = ast.parse(text)
        rewrite.rewrite_asserts(tree, text.encode())
        code = compile(tree, "<module>", "exec", dont_inherit=True)
    else:
        code = compile(text, "<module>", "exec", dont_inherit=True)
    found = outline(text)
    assert found is not None
    recognized = 0
    for each in nested_codes(code):
        listing = instructions(each)
        blocks = [block for block in found.blocks if finding._in_scope(block, each)]
        for index in range(len(listing)):
            if finding._entering(listing, index) == "with":
                [(block, node, item)] = finding._matches(blocks, listing, index)
                assert compiles_to(each, block, found, whole=False), listing[index].span
                assert find_exit(each, listing, index, node, item)
                recognized += 1
        if each.co_flags & inspect.CO_OPTIMIZED and not each.co_name.startswith("<"):
            for function in functions._defining(found.functions, each)[:1]:
                assert compiles_to(each, function, found, whole=True), each.co_qualname
                recognized += 1
    assert recognized > 20


def test_future_annotations_are_noted() -> None:
    text = "with Capture() as block:\n    def f(x: Unknown): pass\n"
    register(text, "<without>")
    assert execute_without_flags(text, "<without>")["block"].block.flags == 0
    text = "from __future__ import annotations\n" + text
    register(text, "<with>")
    assert execute_without_flags(text, "<with>")["block"].block.flags != 0


def execute_without_flags(text: str, filename: str) -> dict[str, Any]:
    namespace = {"Capture": Capture}
    exec(compile(text, filename, "exec", dont_inherit=True), namespace)
    return namespace


def test_warnings_of_the_compiler_are_not_repeated() -> None:
    text = "with Capture() as block:\n    x = '\\d'\n    y = 1 is 1\n"
    register(text, "<warned>")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        code = compile(text, "<warned>", "exec")
    namespace: dict[str, Any] = {"Capture": Capture}
    exec(code, namespace)
    assert namespace["block"].block.text == text
    assert namespace["block"].body == "x = '\\\\d'\ny = 1 is 1"


def test_text_that_cannot_be_parsed_is_passed_over() -> None:
    text = "with Capture() as block:\n    x = 1\n"
    register("this is not Python\n", "<broken>")
    with pytest.raises(SourceNotFoundError, match="is not what is running"):
        execute(text, "<broken>")


def test_entering_by_a_call_is_refused() -> None:
    with contextlib.ExitStack() as stack, pytest.raises(CaptureError, match=r"use|instead of ExitStack"):
        stack.enter_context(Capture())
    with pytest.raises(CaptureError, match="enter it by `with"):
        Capture().__enter__()
    enter = Capture().__enter__
    with pytest.raises(CaptureError, match="enter it by `with"):
        list(map(lambda _: enter(), [1]))


def test_async_with_is_refused() -> None:
    class Async:
        def __aenter__(self) -> Any:
            return find_block(sys._getframe(1))

        async def __aexit__(self, *exc: object) -> None:
            raise AssertionError

    async def work() -> None:
        async with Async():
            pass

    with pytest.raises(CaptureError, match="use a plain `with` statement"):
        work().send(None)


def test_a_wrapping_context_manager_is_captured_where_it_is_written() -> None:
    class Wrapper:
        def __enter__(self) -> Any:
            frame = sys._getframe(1)
            self.skipper = BodySkipper(frame, find_block(frame))
            self.skipper.start()
            return self

        def __exit__(self, *exc: Any) -> bool:
            return self.skipper.finish(*exc)

    with Wrapper() as value:
        raise AssertionError
    assert isinstance(value, Wrapper)


def test_the_text_given_by_dash_c_is_found(run_python: Callable[..., str]) -> None:
    text = (
        "from capture_support import Capture\n"
        "with Capture() as one: x = 1\n"
        "def function():\n"
        "    with Capture() as two:\n"
        "        y = 2\n"
        "    return two\n"
        "print(one.body, function().body)"
    )
    assert run_python("-c", text) == "x = 1 y = 2"
    assert run_python("-W", "error", "-Xdev", "-Ic" if False else "-Bc", text, "-c", "argument") == "x = 1 y = 2"


def test_standard_input_has_no_source(run_python: Callable[..., str]) -> None:
    text = (
        "from capture_support import Capture\n"
        "try:\n"
        "    with Capture() as block:\n"
        "        x = 1\n"
        "except OSError as error:\n"
        "    print('refused', type(error).__name__)\n"
    )
    assert run_python("-", input=text) == "refused SourceNotFoundError"


def test_code_without_columns_is_found(run_python: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import contextlib\n"
        "from capture_support import Capture\n"
        "from nnsight._capture import find_function\n"
        "with contextlib.nullcontext(5) as five, Capture() as one, print('ran'):\n"
        "    print('ran')\n"
        "with Capture() as two: print('ran')\n"
        "def function():\n"
        "    with (\n"
        "        contextlib.nullcontext(),\n"
        "        Capture() as three,\n"
        "    ):\n"
        "        print('ran')\n"
        "    return three\n"
        "three = function()\n"
        "print(five, one.block.item, two.block.item, three.block.item)\n"
        "print(two.body, '|', three.body, '|', find_function(function).text.count('Capture'))\n"
        "table = {}\n"
        "with Capture() as table['four']:\n"
        "    print('ran')\n"
        "try:\n"
        "    with Capture() as table['five']: print('ran')\n"
        "except Exception as error:\n"
        "    print(error)\n"
        "one_lambda = lambda: 5\n"
        "print(find_function(one_lambda).text)\n"
        "def function(z):\n"
        "    return lambda x: x + 1, lambda x: x + 2, lambda y: y + z, lambda y: (lambda x: x + y)\n"
        "for each in (*function(5), function(5)[-1](1)):\n"
        "    print(find_function(each).column)\n"
    )
    lines = run_python("-X", "no_debug_ranges", str(tmp_path / "script.py")).split("\n")
    assert lines == [
        "5 1 0 1",
        "print('ran') | print('ran') | 1",
        f"the body of the block at {tmp_path}/script.py:21 cannot be told apart from what it binds after `as`, because "
        "Python keeps no columns here (no_debug_ranges); put the body on a line of its own",
        "one_lambda = lambda: 5",
        "",
        *["11", "28", "45", "62", "73"],
    ]


IMPORTING = """
from __future__ import annotations
import math, os.path as path
try:
    from os import sep
    import json as data
except ImportError:
    pass
{}
if True:
    with Capture() as importing:
        import zlib; zlib.crc32(); math.sqrt(1)
def function():
    with Capture() as block:
        math.sqrt(1); path.join("a"); sep.join("a"); math.pi.real(); unknown.call()
        data.loads("1"); data \
            .loads(
                math
                .sqrt(2)
            )
    return block
with Capture() as block:
    math.sqrt(1); path.join("a"); sep.join("a"); math.pi.real(); unknown.call()
    data.loads("1"); data \
        .loads(
            math
            .sqrt(2)
        )
"""


def test_calls_of_imported_modules_are_compared(load: Callable[..., Any]) -> None:
    module = load(IMPORTING.format("from capture_support import Capture"))
    assert module.importing.skipped
    assert module.block.skipped
    assert module.function().skipped
    assert find_function(module.function).text.startswith("def function")


@pytest.mark.filterwarnings("default")
def test_calls_of_imported_modules_in_a_cell_are_compared(shell: Any) -> None:
    shell.run_cell(IMPORTING.format("")).raise_error()
    assert shell.user_ns["block"].skipped
    assert shell.user_ns["function"]().skipped


def test_calls_of_imported_modules_in_statements_compiled_alone_are_compared() -> None:
    register(IMPORTING.format(""), "<statements>")
    namespace: dict[str, Any] = {"Capture": Capture}
    for statement in ast.parse(IMPORTING.format("")).body:
        exec(compile(ast.Interactive([statement]), "<statements>", "single", dont_inherit=True), namespace)
    assert namespace["function"]().skipped


def test_optimized_code_is_found(run_python: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "optimized.py").write_text(
        "from capture_support import Capture\n"
        "def function():\n"
        "    'docstring'\n"
        "    with Capture() as block:\n"
        "        assert False\n"
        "    with Capture() as other:\n"
        "        assert False\n"
        "        def inner():\n"
        "            'docstring'\n"
        "            assert inner\n"
        "    return block.skipped, other.skipped\n"
    )
    assert run_python("-OO", "-c", "import optimized; print(optimized.function())") == "(True, True)"


def test_compiled_files_are_compared_with_their_source(run_python: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "cached.py").write_text(
        "from capture_support import Capture\n"
        "def function():\n"
        "    with Capture() as block:\n"
        "        x = {1, 2} | {'a': (1, 2.0, None, ...)}.keys() | frozenset({'a', 'b', 'c', 'd'})\n"
        "        y = x in {'a', 'b', 'c', 'd', 1, 2, (3, 4)}\n"
        "    return block.skipped\n"
    )
    for _ in range(3):
        assert run_python("-c", "import cached; print(cached.function())") == "True"


@pytest.fixture
def shell() -> Iterator[Any]:
    interactiveshell = pytest.importorskip("IPython.core.interactiveshell")
    shell = interactiveshell.InteractiveShell.instance()
    shell.user_ns.update(Capture=Capture, Run=Run)
    yield shell
    interactiveshell.InteractiveShell.clear_instance()


@pytest.mark.filterwarnings("default")
def test_cells_of_ipython_are_found(shell: Any) -> None:
    def cell(text: str) -> Any:
        result = shell.run_cell(text, store_history=True)
        result.raise_error()
        return result.result

    assert cell("with Capture() as block:\n    x = 1\nblock.body") == "x = 1"
    assert cell("with Capture() as block:\n    x = 2\nblock.body") == "x = 2"
    assert cell("%matplotlib --list\nwith Capture() as block: x = 3\n!true\nblock.body") == "x = 3"
    cell("def function():\n    with Capture() as block:\n        x = 4\n    return block.body")
    assert cell("function()") == "x = 4"
    assert cell("with Run() as block:\n    y = (4).save()\ny") == 4
    cell("import asyncio\nawait asyncio.sleep(0)\nwith Capture() as block:\n    x = 5")
    assert cell("block.body") == "x = 5"


@pytest.mark.filterwarnings("default")
def test_timed_cells_of_ipython_are_found(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def cell(text: str) -> Any:
        result = shell.run_cell(text, store_history=True)
        result.raise_error()
        return result.result

    cell("%%time\nwith Capture() as block:\n    x = 1\n    y = 2")
    assert cell("block.body") == "x = 1\ny = 2"
    cell("%%time\ndef function():\n    with Capture() as block:\n        x = 3\n    return block.body\nz = 1")
    cell("%%time\nwith Capture() as block:\n    x = 4")
    assert cell("function(), block.body") == ("x = 3", "x = 4")
    cell("%%capture\nwith Capture() as block:\n    x = 5")
    assert cell("block.body") == "x = 5"


@pytest.mark.filterwarnings("default")
def test_cells_of_a_notebook_are_found(run_python: Callable[..., str], tmp_path: Path) -> None:
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    (tmp_path / "run_notebook.py").write_text(
        "import nbformat, nbclient, sys\n"
        "cells = [\n"
        "    'from capture_support import Capture, Run',\n"
        "    'with Run() as block:\\n    x = (1 + 1).save()',\n"
        "    'x',\n"
        "    'def function(y):\\n    with Run() as block:\\n        z = (y * 2).save()\\n    return z',\n"
        "    'function(21)',\n"
        "    'with Run() as block: x = (3).save()',\n"
        "    'x',\n"
        "    '%%time\\nwith Run() as block:\\n    w = (5).save()',\n"
        "    'w',\n"
        "]\n"
        "notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])\n"
        "client = nbclient.NotebookClient(notebook, timeout=100, kernel_name='python3')\n"
        "client.execute()\n"
        "for number in (2, 4, 6, 8):\n"
        "    print(notebook.cells[number].outputs[0].data['text/plain'])\n"
    )
    assert run_python("run_notebook.py").split("\n") == ["2", "42", "3", "5"]


def test_many_captures_keep_nothing_alive() -> None:
    text = "with Capture() as block:\n    x = {}\n"

    def once(number: int) -> None:
        register(text.format(number % 7), "<leak>")
        namespace = execute(text.format(number % 7), "<leak>")
        assert namespace["block"].skipped

    assert_flat(once, 600, 2000)


def test_ten_thousand_entries_of_one_block_keep_nothing_alive() -> None:
    def once(number: int) -> None:
        with Run() as block:
            value = [number].save()  # type: ignore[attr-defined]
        assert block.skipped
        assert value == [number]

    assert_flat(once, 500, 10_000)


def assert_flat(once: Callable[[int], None], warm_up: int, times: int) -> None:
    def count() -> int:
        gc.collect()
        return len(gc.get_objects())

    for number in range(warm_up):
        once(number)
    before = count()
    for number in range(times):
        once(number)
    assert count() - before < 50


def test_code_objects_are_not_kept_alive() -> None:
    text = "with Capture() as block:\n    x = 1\n"
    register(text, "<weak>")
    code: Any = compile(text, "<weak>", "exec")
    reference = weakref.ref(code)
    exec(code, {"Capture": Capture})
    del code
    gc.collect()
    assert reference() is None


def test_a_frame_is_let_go_after_its_block() -> None:
    class Big:
        pass

    def function() -> Any:
        big = Big()
        reference = weakref.ref(big)
        with Run() as block:
            value = (1).save()  # type: ignore[attr-defined]
        del big
        # Even the copy of the variables that older versions of Python make is gone.
        assert reference() is None
        assert (block.skipped, value) == (True, 1)
        return weakref.ref(block)

    gc.disable()
    try:
        assert function()() is None
    finally:
        gc.enable()


def test_a_copy_of_the_variables_that_the_user_holds_stays_as_it_is() -> None:
    def function() -> Any:
        before = 5
        variables = locals()
        with Run() as block:
            value = (before + 1).save()  # type: ignore[attr-defined]
        return variables, value, block

    variables, value, _ = function()
    assert variables["before"] == 5
    assert value == 6


def test_a_module_object_without_file_is_no_problem() -> None:
    module = types.ModuleType("made_up")
    module.__dict__.update(Capture=Capture)
    with pytest.raises(SourceNotFoundError):
        exec(compile("with Capture() as block:\n    x = 1\n", "made_up.py", "exec"), module.__dict__)
