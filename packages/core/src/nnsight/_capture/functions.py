"""Finding the source of a function that travels."""

from __future__ import annotations

import ast
import inspect
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING

from nnsight._capture.bytecode import Span
from nnsight._capture.codes import PerCode
from nnsight._capture.derived import source_of
from nnsight._capture.outline import Located, first_line, outline, source_outline
from nnsight._capture.source import FunctionSource, lines_of
from nnsight._capture.texts import candidate_texts
from nnsight._capture.verification import FUTURE_FLAGS, compiles_to, source_missing
from nnsight.errors import CaptureError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_found: PerCode[FunctionSource] = PerCode()


def find_function(function: object) -> FunctionSource:
    """Find the source of a function, without its decorators.

    A function that a decorator has replaced is taken as it is: the source is that of the replacement.

    Args:
        function: A function, a lambda or a method.

    Returns:
        The source of its definition.

    Raises:
        SourceNotFoundError: There is no source text, or none that the function was compiled from.
        CaptureError: The object is not a function written in Python, or it is an async function.
    """
    if isinstance(function, MethodType):
        function = function.__func__
    if not isinstance(function, FunctionType):
        raise CaptureError(f"{function!r} is not a function written in Python; pass a def, a lambda or a method")
    code = function.__code__
    known = _found.get(code)
    return known if known is not None else _found.set(code, _find_new(function, code))


def _find_new(function: FunctionType, code: CodeType) -> FunctionSource:
    what = f"the function {function.__qualname__} at {code.co_filename}:{code.co_firstlineno}"
    if code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        raise CaptureError(f"{what} is an async function; pass a plain one")
    compiled_from = source_of(code)
    if compiled_from is not None:
        defined = _defining(source_outline(compiled_from).functions, code, what)
        if len(defined) == 1:
            return _source(code, compiled_from.text, compiled_from.first_line, defined[0])
    texts = 0
    for text in candidate_texts(code, function.__globals__):
        texts += 1
        found = outline(text)
        if found is None:
            continue
        for located in _defining(found.functions, code, what):
            if compiles_to(code, located, found, whole=True):
                return _source(code, text, 1, located)
    raise source_missing(what, texts)


def _defining(functions: Iterable[Located], code: CodeType, what: str) -> list[Located]:
    """The definition that stands where the code was defined, or nothing."""
    # The instructions of a lambda lie within its body. A few have no position of their own.
    spans = [Span(*position) for position in code.co_positions()]
    spans = [span for span in spans if span.exact and span[2:] != (0, 0)]
    defined = [each for each in functions if _defines(each.node, code, spans)]
    if len(defined) > 1 and not spans:
        raise CaptureError(f"{what} cannot be told apart from others on its line; put each on a line of its own")
    # Of lambdas inside each other it is the innermost that contains its instructions.
    return defined[-1:]


def _defines(node: ast.AST, code: CodeType, spans: Sequence[Span]) -> bool:
    if isinstance(node, ast.FunctionDef):
        # Code compiled by this package starts at `def`, other code at the first decorator.
        return node.name == code.co_name and code.co_firstlineno in (first_line(node), node.lineno)
    if not isinstance(node, ast.Lambda) or code.co_name != "<lambda>" or node.lineno != code.co_firstlineno:
        return False
    return all(span.inside(Span.of(node.body)) for span in spans)


def _source(code: CodeType, text: str, text_line: int, located: Located) -> FunctionSource:
    node, before = located.node, text_line - 1
    return FunctionSource(
        filename=code.co_filename,
        first_line=node.lineno,
        text=lines_of(text, node.lineno - before, (node.end_lineno or node.lineno) - before),
        name=code.co_name,
        column=node.col_offset,
        end_column=node.end_col_offset or 0,
        class_name=located.class_name,
        flags=code.co_flags & FUTURE_FLAGS,
    )
