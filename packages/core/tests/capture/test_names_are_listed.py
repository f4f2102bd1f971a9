"""Which names a block reads from around it, and which it binds."""

from __future__ import annotations

import ast
import inspect
import symtable
import sys
from typing import Any

import pytest
from capture_support import block_of

from nnsight._capture import BlockSource, block_names, parse_block


def names(text: str) -> tuple[str, str]:
    found = block_names(parse_block(block_of(text)))
    return " ".join(sorted(found.loaded)), " ".join(sorted(found.bound))


CASES = {
    "x = y": ("y", "x"),
    "x = x + 1": ("x", "x"),
    "x += y": ("x y", "x"),
    "x.a += y": ("x y", ""),
    "x[i] = y": ("i x y", ""),
    "x: T = y": ("y", "x"),
    "x: T": ("x", "x"),
    "x.a: T = y": ("x y", ""),
    "a, (b, *c) = d": ("d", "a b c"),
    "a = b = c": ("c", "a b"),
    "(x := y)": ("y", "x"),
    "for x in y: z": ("y z", "x"),
    "for x.a, y in z: pass": ("x z", "y"),
    "with x as y, z as (u, v): w": ("w x z", "u v y"),
    "import a, b.c, d.e as f": ("", "a b f"),
    "from a import b, c as d": ("", "b d"),
    "def f(a, b=c, *d, e=g, **h): return a + i": ("c g i", "f"),
    "def f(a: T) -> R: pass": ("R T", "f"),
    "@d\ndef f(): f()": ("d f", "f"),
    "async def f(): await x": ("x", "f"),
    "@d\nclass C(B, metaclass=M):\n    a = b\n    def f(self): return a": ("B M a b d", "C"),
    "class C:\n    a = 1\n    b = a": ("a", "C"),
    "class C:\n    a: T = 1": ("T", "C"),
    "class C:\n    def f(self): return __class__": ("__class__", "C"),
    "try: pass\nexcept E as e: e": ("E e", "e"),
    "try: pass\nexcept* E as e: pass": ("E", "e"),
    "del x": ("x", "x"),
    "del x.a, y[0]": ("x y", ""),
    "[x for x in y]": ("y", ""),
    "[x for y in x if y]": ("x", ""),
    "[(x := y) for y in z]": ("z", "x"),
    "[[(x := y) for y in z] for z in w]": ("w", "x"),
    "[x for x in y for z in x.a if z]": ("y", ""),
    "[y for x in y for y in x]": ("y", ""),
    "{x: y for x, y in z}": ("z", ""),
    "{x for x in x}": ("x", ""),
    "f(x for x in y)": ("f y", ""),
    "lambda x, y=z: x + w": ("w z", ""),
    "lambda: (x := y)": ("y", ""),
    "lambda: [x for x in y]": ("y", ""),
    "match x:\n    case C(a, b=c) if d: pass": ("C d x", "a c"),
    "match x:\n    case [a, *b]: pass\n    case {'k': c, **d}: pass\n    case e.f | 1: pass": ("e x", "a b c d"),
    "match x:\n    case _: pass": ("x", ""),
    "match x:\n    case (1 | 2) as a: pass": ("x", "a"),
    "x = 1\ndef f():\n    nonlocal x\n    x = 2": ("x", "f x"),
    "def f():\n    nonlocal x\n    x = 2": ("x", "f x"),
    "def f():\n    x = 1\n    def g():\n        nonlocal x\n        x = 2": ("", "f"),
    "def f():\n    global x\n    x = 2": ("x", "f"),
    "def f():\n    x = 1\n    def g():\n        global x\n        return x": ("x", "f"),
    "def f():\n    a = 1\n    def g(): return a + b": ("b", "f"),
    "f'{x!r:{y}}'": ("x y", ""),
    "x.y.z(w)": ("w x", ""),
    "print(x)": ("print x", ""),
    "x = [1]\nx.append(y)": ("x y", "x"),
    "if a:\n    b = 1\nelse:\n    c = 1": ("a", "b c"),
}


@pytest.mark.parametrize("text", CASES)
def test_loaded_and_bound_names_are_listed(text: str) -> None:
    assert names(text) == CASES[text]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="needs the syntax of Python 3.12")
def test_type_parameters_are_names_of_their_own() -> None:
    assert names("def f[T: B](x: T) -> U: return T") == ("B U", "f")
    assert names("class C[T](D[T]):\n    x: T") == ("D", "C")
    assert names("type A[T] = list[T] | U") == ("U list", "A")


def test_private_names_are_those_that_python_stores() -> None:
    text = (
        "with block:\n    __x = self.__y\n    __z.__w__(__v=__x)\n    def __f(__a): return __a\n"
        "    class D:\n        def g(self): return __h\n    import __m\n    from n import __o as __p, __q\n"
    )
    found = block_names(parse_block(BlockSource("script.py", 1, text, 0, "method", "__Class")))
    assert found.bound == {"_Class__x", "_Class__f", "D", "_Class__m", "_Class__p", "_Class__q"}
    assert {"_Class__x", "_Class__z", "self"} <= found.loaded


def test_names_of_equal_blocks_are_computed_once() -> None:
    statements = parse_block(block_of("x = y"))
    assert block_names(statements) is block_names(parse_block(block_of("x = y")))
    assert block_names(list(statements)) == block_names(statements)


class _Relaxed(ast.NodeVisitor):
    """Names that `block_names` lists although the compiler does not need them."""

    def __init__(self) -> None:
        self.allowed: set[str] = set()
        self.comprehended: set[str] = set()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.allowed |= {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.allowed |= {each.id for each in ast.walk(node.target) if isinstance(each, ast.Name)}
        self.generic_visit(node)

    def visit_Delete(self, node: ast.Delete) -> None:
        self.allowed |= {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.allowed |= {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        self.generic_visit(node)

    def generic_visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            # From Python 3.12 on the names in these look like names of the function.
            self.comprehended |= {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        super().generic_visit(node)


def _needed(table: symtable.SymbolTable) -> set[str]:
    """The names that a nested scope looks up outside itself, as the compiler sees it."""
    own = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global() or symbol.is_free()}
    local = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_local()}
    inner = {name for child in table.get_children() for name in _needed(child)}
    return own | (inner if table.get_type() == "class" else inner - local)


@pytest.mark.parametrize("module", ["argparse", "inspect", "typing", "dataclasses", "ast", "asyncio.base_events"])
def test_the_names_of_real_functions_are_those_of_the_compiler(module: str) -> None:
    source = inspect.getsource(__import__(module, fromlist=["x"]))
    compared = 0
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef):
            continue
        body = node.body
        if any(isinstance(each, ast.Global | ast.Nonlocal) for each in ast.walk(node)):
            continue
        text = "def block():\n" + "\n".join(
            "    " + line for statement in body for line in ast.unparse(statement).split("\n")
        )
        if '"""' in text or "\\n" in text:
            body = [each for each in body if not isinstance(each, ast.Expr)] or [ast.Pass()]
            text = "def block():\n" + "\n".join(
                "    " + line for statement in body for line in ast.unparse(statement).split("\n")
            )
        [function] = symtable.symtable(text, "f", "exec").get_children()
        relaxed = _Relaxed()
        for statement in body:
            relaxed.visit(statement)
        found = block_names(body)
        symbols: list[Any] = list(function.get_symbols())
        bound = {each.get_name() for each in symbols if each.is_local()}
        loaded = {each.get_name() for each in symbols if each.is_referenced()}
        loaded |= {name for child in function.get_children() for name in _needed(child)}
        # `super()` in a function refers to this.
        loaded.discard("__class__")
        assert found.bound <= bound, node.name
        assert bound - found.bound <= relaxed.comprehended, node.name
        assert loaded - found.loaded <= relaxed.allowed | relaxed.comprehended, node.name
        assert found.loaded - loaded <= relaxed.allowed | relaxed.comprehended, node.name
        compared += 1
    assert compared > 15
