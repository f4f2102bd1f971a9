"""Statements that would leave a block are refused, with their place."""

from __future__ import annotations

import ast

import pytest
from capture_support import block_of

from nnsight._capture import BlockSource, compile_block, parse_block
from nnsight.errors import BlockEscapeError, CaptureError

REFUSED = {
    "return": "save the value and return it",
    "return 1": "save the value and return it",
    "if x:\n    return 1": "save the value and return it",
    "yield": "save the value and yield it",
    "x = yield 1": "save the value and yield it",
    "yield from x": "save the values and yield them",
    "await x": "await before or after the block",
    "x = [await y for y in z]": "await before or after the block",
    "async for x in y: pass": "loop before or after the block",
    "x = [y async for y in z]": "loop before or after the block",
    "x = (y async for y in z)": "loop before or after the block",
    "async with x: pass": "enter it around the block",
    "break": "break after the block",
    "continue": "continue after the block",
    "if x:\n    break": "break after the block",
    "for x in y:\n    pass\nelse:\n    break": "break after the block",
    "while x:\n    pass\nelse:\n    continue": "continue after the block",
    "try:\n    pass\nfinally:\n    break": "break after the block",
    "match x:\n    case 1:\n        continue": "continue after the block",
    "with x:\n    return": "save the value and return it",
    "global x": "save the value and assign the variable after the block",
    "nonlocal x": "save the value and assign the variable after the block",
    "from math import *": "import the names that it uses",
    "super().f()": "write super(Class, self)",
    "def f(x=(yield)): pass": "save the value and yield it",
    "@(yield)\ndef f(): pass": "save the value and yield it",
    "class C((yield)): pass": "save the value and yield it",
    "f = lambda x=(yield): x": "save the value and yield it",
}

ALLOWED = [
    "def f(): return 1",
    "def f(): yield 1",
    "def f(): yield from x",
    "async def f():\n    await x\n    async for y in z: pass\n    async with x: pass\n    return [a async for a in b]",
    "for x in y:\n    break",
    "for x in y:\n    if x:\n        continue",
    "while x:\n    for y in z:\n        break\n    else:\n        continue",
    "while x:\n    with y:\n        break",
    "while x:\n    try:\n        break\n    except E:\n        continue",
    "f = lambda: (yield)",
    "class C:\n    def f(self): return super().f()",
    "class C:\n    x = 1\n    for y in z: break",
    "def f():\n    global x\n    x = 1",
    "x = 1\ndef f():\n    nonlocal x\n    x = 2",
    "super(C, self).f()",
    "return_value = 1",
]


@pytest.mark.parametrize("text", REFUSED)
def test_what_crosses_the_edge_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(BlockEscapeError, match="is not possible in a block, because it runs elsewhere") as caught:
        parse_block(block_of(text))
    assert REFUSED[text] in str(caught.value)
    with pytest.raises(BlockEscapeError):
        compile_block(block_of(text), ())


@pytest.mark.parametrize("text", ALLOWED)
def test_what_stays_inside_is_allowed(text: str) -> None:
    assert ast.unparse(parse_block(block_of(text))) == ast.unparse(ast.parse(text))  # type: ignore[arg-type]
    compile_block(block_of(text), ())


def test_the_error_tells_file_line_and_text() -> None:
    source = BlockSource("script.py", 10, "    with m.trace() as t:\n        x = 1\n        return  x\n", 0, "f")
    with pytest.raises(BlockEscapeError) as caught:
        parse_block(source)
    error = caught.value
    assert isinstance(error, CaptureError)
    assert isinstance(error, SyntaxError)
    assert (error.filename, error.lineno, error.offset) == ("script.py", 12, 9)
    assert error.text is not None
    assert error.text.strip() == "return  x"
    assert "script.py, line 12" in str(error)


def test_remaining_items_are_checked_too() -> None:
    source = BlockSource("script.py", 1, "with a, b, (yield): pass\n", 1, "f")
    with pytest.raises(BlockEscapeError):
        parse_block(source)
    source = BlockSource("script.py", 1, "with (yield), a as b, c: pass\n", 1, "f")
    assert ast.unparse(parse_block(source)[0]) == "with c:\n    pass"


@pytest.mark.parametrize("text", ["x = 1\n", "for x in y: pass\n", "with a: pass\n", "async with a, b: pass\n"])
def test_a_source_that_is_no_such_with_statement_is_refused(text: str) -> None:
    with pytest.raises(CaptureError, match="is not a with statement with at least 2 item"):
        parse_block(BlockSource("script.py", 1, text, 1, "f"))
