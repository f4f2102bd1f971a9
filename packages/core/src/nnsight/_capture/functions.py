"""Finding the source of a function that travels."""

from __future__ import annotations

import ast
import inspect
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING

from nnsight._capture.bytecode import Span, same_code
from nnsight._capture.codes import PerCode
from nnsight._capture.compiling import compile_body
from nnsight._capture.derived import source_of
from nnsight._capture.outline import Located, first_line, outline, source_outline
from nnsight._capture.source import FunctionSource, lines_of, parse_function
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
        defined = _defining(source_outline(compiled_from).functions, code)
        if len(defined) == 1:
            return _source(code, compiled_from.text, compiled_from.first_line, defined[0])
    texts = 0
    for text in candidate_texts(code, function.__globals__):
        texts += 1
        found = outline(text)
        if found is None:
            continue
        verified = [each for each in _defining(found.functions, code) if compiles_to(code, each, found, whole=True)]
        if len(verified) > 1:
            verified = [each for each in verified if _is_alone(code, _source(code, text, 1, each))][:1]
            if not verified:
                raise CaptureError(f"{what} cannot be told apart from others on its line; put each on its own line")
        if verified:
            return _source(code, text, 1, verified[0])
    raise source_missing(what, texts)


def _defining(functions: Iterable[Located], code: CodeType) -> list[Located]:
    """The definitions that stand where the code was defined: one, unless lambdas share a line."""
    # The instructions of a lambda lie within its body. A few have no columns.
    spans = [Span(*position) for position in code.co_positions()]
    spans = [span for span in spans if span.exact and span[2:] != (0, 0)]
    defined = [each for each in functions if _defines(each.node, code, spans)]
    # Of lambdas inside each other it is the innermost that contains its instructions.
    return defined[-1:] if spans else defined


def _is_alone(code: CodeType, source: FunctionSource) -> bool:
    """Whether one of several lambdas on a line compiles to the code, which has no columns."""
    node = parse_function(source)
    if not isinstance(node, ast.Lambda):
        return False
    body = ast.copy_location(ast.Return(node), node)
    try:
        wrapper = compile_body(code.co_freevars, [body], source)
    except CaptureError:
        return False
    return any(same_code(code, each, None, ()) for each in wrapper.co_consts if isinstance(each, CodeType))


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
