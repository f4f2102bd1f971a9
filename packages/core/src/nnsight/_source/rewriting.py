"""The syntax tree of a function, rewritten so that every op passes through a callable."""

from __future__ import annotations

import ast
import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType
from typing import Any

from nnsight._capture import FunctionSource, compile_definition, find_function, parse_function
from nnsight._capture.codes import PerCode
from nnsight._source.naming import Op, call_name, is_frame_call, is_plain, target_name
from nnsight.errors import UnsupportedFeatureError

# Ends in underscores, so that classes do not mangle it.
_OPS = "__nnsight_ops__"
_GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


@dataclass(frozen=True)
class Rewritten:
    """A function's code in which each op is handed to a callable.

    Attributes:
        source: The text of the function.
        ops: Its ops, in the order in which Python comes to them.
        code: The code. Its free variables are those of the function, and the callables.
    """

    source: FunctionSource
    ops: tuple[Op, ...]
    code: CodeType


_rewritten: PerCode[Rewritten] = PerCode()


def rewrite(function: FunctionType) -> Rewritten:
    """Rewrite a function, once for each code.

    Raises:
        SourceNotFoundError: The function has no source text, or not the one that runs.
        UnsupportedFeatureError: The function is a generator.
    """
    code = function.__code__
    known = _rewritten.get(code)
    return known if known is not None else _rewritten.set(code, _rewrite(function))


def with_ops(function: FunctionType, rewritten: Rewritten, callables: Sequence[Callable[..., Any]]) -> FunctionType:
    """Make a copy of a function whose ops pass through `callables`, in order.

    A call is handed over as `callable(function, *args, **kwargs)`, the value of an assignment as `callable(value)`;
    the function goes on with what is returned.
    """
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    cells[_OPS] = CellType(tuple(callables))
    closure = tuple(cells[name] for name in rewritten.code.co_freevars)
    made = FunctionType(rewritten.code, function.__globals__, function.__name__, function.__defaults__, closure)
    made.__kwdefaults__ = function.__kwdefaults__
    made.__qualname__ = function.__qualname__
    return made


def _rewrite(function: FunctionType) -> Rewritten:
    if function.__code__.co_flags & _GENERATORS:
        raise UnsupportedFeatureError(
            f"{function.__qualname__} is a generator or async function, whose ops cannot be read; read what the "
            "functions that it calls are given and return"
        )
    source = find_function(function)
    node = copy.deepcopy(parse_function(source))
    rewriter = _Rewriter()
    if isinstance(node, ast.Lambda):
        node.body = rewriter.visit(node.body)
    else:
        node.body = rewriter.statements(node.body)
    if rewriter.ops:
        wrapper = compile_definition(node, source, (*function.__code__.co_freevars, _OPS))
        code = next(each for each in wrapper.co_consts if isinstance(each, CodeType))
    else:
        code = function.__code__
    return Rewritten(source, tuple(rewriter.ops), code)


class _Rewriter(ast.NodeTransformer):
    """Visits expressions in the order in which they are evaluated, which is the order of the ops."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self._counts: dict[str, int] = {}
        self._loops = 0

    def statements(self, body: list[ast.stmt]) -> list[ast.stmt]:
        found: list[ast.stmt] = []
        for statement in body:
            made = self.visit(statement)
            found.extend(made if isinstance(made, list) else [made])
        return found

    def _op(self, base: str, node: ast.expr, line: int, text: str, function: ast.expr | None = None) -> ast.Subscript:
        """Count an op, and return the expression that stands for its callable."""
        occurrence = self._counts.get(base, 0)
        self._counts[base] = occurrence + 1
        is_call = isinstance(node, ast.Call)
        self.ops.append(Op(f"{base}_{occurrence}", line, text, is_call, self._loops > 0, function))
        slot = ast.Subscript(ast.Name(_OPS, ast.Load()), ast.Constant(len(self.ops) - 1), ast.Load())
        for each in (slot, slot.value, slot.slice):
            ast.copy_location(each, node)
        return slot

    def visit_Call(self, node: ast.Call) -> ast.expr:
        text, line = ast.unparse(node), node.func.end_lineno or node.lineno
        base, function = call_name(node), copy.deepcopy(node.func) if is_plain(node.func) else None
        self.generic_visit(node)
        if is_frame_call(node):
            return node
        slot = self._op(base, node, line, text, function)
        return ast.copy_location(ast.Call(slot, [node.func, *node.args], node.keywords), node)

    def _value(self, value: ast.expr, base: str, line: int) -> ast.expr:
        """Visit the value of an assignment, which is an op of its own unless it is a call."""
        text = ast.unparse(value)
        is_op = not isinstance(value, ast.Call | ast.Await | ast.Yield | ast.YieldFrom)
        visited: ast.expr = self.visit(value)
        if not is_op:
            return visited
        return ast.copy_location(ast.Call(self._op(base, value, line, text), [visited], []), value)

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        node.value = self._value(node.value, target_name(node.targets[0]), node.lineno)
        node.targets = [self.visit(target) for target in node.targets]
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        # Annotations of variables are not evaluated.
        if node.value is not None:
            node.value = self._value(node.value, target_name(node.target), node.lineno)
        node.target = self.visit(node.target)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AugAssign | list[ast.stmt]:
        text = ast.unparse(node)
        node.target = self.visit(node.target)
        node.value = self.visit(node.value)
        if not isinstance(node.target, ast.Name):
            # Its target would have to be evaluated again to be read.
            return node
        read = ast.copy_location(ast.Name(node.target.id, ast.Load()), node)
        slot = self._op(node.target.id, read, node.lineno, text)
        written = ast.copy_location(ast.Name(node.target.id, ast.Store()), node)
        after = ast.Assign([written], ast.copy_location(ast.Call(slot, [read], []), node))
        return [node, ast.copy_location(after, node)]

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.NamedExpr:
        node.value = self._value(node.value, target_name(node.target), node.lineno)
        return node

    # Loops ----------------------------------------------------------------------------------------------------------

    def visit_For(self, node: ast.For) -> ast.For:
        node.iter = self.visit(node.iter)
        self._loops += 1
        node.target = self.visit(node.target)
        node.body = self.statements(node.body)
        self._loops -= 1
        node.orelse = self.statements(node.orelse)
        return node

    def visit_While(self, node: ast.While) -> ast.While:
        self._loops += 1
        node.test = self.visit(node.test)
        node.body = self.statements(node.body)
        self._loops -= 1
        node.orelse = self.statements(node.orelse)
        return node

    def _comprehension(self, node: Any, parts: Sequence[str]) -> Any:
        for index, generator in enumerate(node.generators):
            # Only the first sequence is evaluated once.
            self._loops += index > 0
            generator.iter = self.visit(generator.iter)
            self._loops += index == 0
            generator.target = self.visit(generator.target)
            generator.ifs = [self.visit(condition) for condition in generator.ifs]
            self._loops -= index > 0
        for part in parts:
            setattr(node, part, self.visit(getattr(node, part)))
        self._loops -= 1
        return node

    def visit_ListComp(self, node: ast.ListComp) -> ast.expr:
        return self._comprehension(node, ["elt"])  # type: ignore[no-any-return]

    def visit_SetComp(self, node: ast.SetComp) -> ast.expr:
        return self._comprehension(node, ["elt"])  # type: ignore[no-any-return]

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> ast.expr:
        return self._comprehension(node, ["elt"])  # type: ignore[no-any-return]

    def visit_DictComp(self, node: ast.DictComp) -> ast.expr:
        return self._comprehension(node, ["key", "value"])  # type: ignore[no-any-return]

    # What is left as it is ------------------------------------------------------------------------------------------

    def _leave(self, node: Any) -> Any:
        return node

    # Their bodies run later, or never. The texts in an f-string have no positions of their own before Python 3.12.
    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = visit_ClassDef = visit_JoinedStr = _leave
