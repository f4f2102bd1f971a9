"""Telling whether a source text is what a running code object was compiled from."""

from __future__ import annotations
import __future__

import ast
from typing import TYPE_CHECKING

from nnsight._capture.bytecode import Span, nested_codes, same_code
from nnsight._capture.source import compile_quietly
from nnsight.errors import SourceNotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

    from nnsight._capture.outline import Located, Outline

# The only `from __future__` import that still changes how code is compiled.
FUTURE_FLAGS = __future__.annotations.compiler_flag


def compiles_to(code: CodeType, located: Located, found: Outline, whole: bool) -> bool:
    """Whether a text compiles to the running code.

    The text is compiled again and compared instruction by instruction, with positions, names and constants: after an
    edit of the file even one changed operator is noticed.

    Args:
        code: The running code.
        located: A `with` statement in it, or the function that it is the code of.
        found: What else the text contains.
        whole: Whether to compare all of the code, instead of the `with` statement only.

    Returns:
        Whether the text is the source of the code.
    """
    within = None if whole else Span.of(located.node)
    # pytest rewrites the `assert` statements of a module, and nothing else.
    ignored = [Span.of(each) for each in found.asserts if not Span.of(located.node).inside(Span.of(each))]
    at_top = located.scope is None and not whole
    for reference in _compilations(located.top, found, code.co_flags & FUTURE_FLAGS):
        for candidate in [reference] if at_top else nested_codes(reference):
            named = candidate.co_name == code.co_name and candidate.co_firstlineno == code.co_firstlineno
            if (at_top or named) and same_code(code, candidate, within, ignored):
                return True
    return False


def _compilations(top: ast.stmt | ast.expr, found: Outline, flags: int) -> Iterator[CodeType]:
    """Compile a top-level statement in every way in which it may have been compiled."""
    # The names that a module imports or uses at its top level decide about instructions elsewhere in it, so a
    # statement of a file is compiled together with the others.
    if flags not in found.compiled:
        found.compiled[flags] = _compile(ast.Module(list(found.body), []), "exec", flags)
    yield from found.compiled[flags]
    if isinstance(top, ast.stmt):
        # Notebooks and prompts compile it alone, and prompts so that the values of its expressions are printed.
        yield from _compile(ast.Module([top], []), "exec", flags)
        yield from _compile(ast.Interactive([top]), "single", flags)


def _compile(tree: ast.Module | ast.Interactive, mode: str, flags: int) -> tuple[CodeType, ...]:
    try:
        return (compile_quietly(tree, "<source>", mode, flags | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT),)
    except (SyntaxError, ValueError, RecursionError):
        return ()


def source_missing(what: str, texts: int) -> SourceNotFoundError:
    """The error for code whose source was not found.

    Args:
        what: What was looked for, and where it is.
        texts: How many texts were found that are not its source.

    Returns:
        The error to raise.
    """
    if texts:
        return SourceNotFoundError(
            f"the source text found for {what} is not what is running: its file has changed since it was loaded, or "
            "an import hook rewrites it; load it again (in a notebook, restart the kernel)"
        )
    return SourceNotFoundError(
        f"no source text exists for {what}; write it in a file, a notebook or IPython. Python's own prompt keeps no "
        "source before Python 3.13, neither of blocks nor of functions, and text run by exec() has none unless "
        "it is registered in `linecache`"
    )
