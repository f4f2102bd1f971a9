"""The source text of a block or a function, as plain values that can travel between processes."""

from __future__ import annotations

import ast
import functools
import threading
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nnsight.errors import CaptureError

if TYPE_CHECKING:
    from types import CodeType

_WARNINGS_LOCK = threading.Lock()


@dataclass(frozen=True)
class BlockSource:
    """The `with` statement around one block.

    Attributes:
        filename: The file of the running code, as in `code.co_filename`.
        first_line: The line of that file on which the statement starts.
        text: The whole lines of the statement, header and body, exactly as in the file.
        item: The index of the `with` item that was entered. Later items belong to the body.
        function_name: The name of the code around the statement, `<module>` at the top level.
        class_name: The class whose private names (`__name`) the block uses, or an empty string.
        flags: The compiler flags of the `from __future__` imports of the file.
    """

    filename: str
    first_line: int
    text: str
    item: int
    function_name: str
    class_name: str = ""
    flags: int = 0

    @functools.cached_property
    def target(self) -> str | None:
        """The name after `as` in the entered item, or None if there is none or it is not a plain name."""
        variables = parse_statement(self).items[self.item].optional_vars
        return variables.id if isinstance(variables, ast.Name) else None


@dataclass(frozen=True)
class FunctionSource:
    """A function without its decorators.

    Attributes:
        filename: The file of the running code, as in `code.co_filename`.
        first_line: The line of `def`, or the line on which the lambda starts.
        text: The whole lines of the function, exactly as in the file.
        name: The function's name, `<lambda>` for a lambda.
        column: The column (in UTF-8 bytes) of `def` or `lambda` in the first line.
        end_column: The column (in UTF-8 bytes) after the function in the last line.
        class_name: The class whose private names (`__name`) the function uses, or an empty string.
        flags: The compiler flags of the `from __future__` imports of the file.
    """

    filename: str
    first_line: int
    text: str
    name: str
    column: int
    end_column: int
    class_name: str = ""
    flags: int = 0


def parse_quietly(text: str) -> ast.Module:
    """Parse text without repeating the warnings that its own compilation has already given."""
    # The filters of `warnings` are shared by all threads, so only one of ours may change them at a time.
    with _WARNINGS_LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


def compile_quietly(tree: ast.Module | ast.Interactive, filename: str, mode: str, flags: int) -> CodeType:
    """Compile a tree without repeating the warnings that its own compilation has already given."""
    with _WARNINGS_LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        code: CodeType = compile(tree, filename, mode, flags=flags, dont_inherit=True)
        return code


def parse_statement(source: BlockSource) -> ast.With:
    """Parse the `with` statement of a block, with the line numbers of its file.

    Raises:
        CaptureError: The text is not one `with` statement with that many items.
    """
    statement = _parse_lines(source.text, source.first_line)
    if not isinstance(statement, ast.With) or not 0 <= source.item < len(statement.items):
        raise CaptureError(
            f"the source of the block at {source.filename}:{source.first_line} is not a with statement "
            f"with at least {source.item + 1} item(s)"
        )
    return statement


def parse_function(source: FunctionSource) -> ast.FunctionDef | ast.Lambda:
    """Parse a travelling function, with the line numbers of its file.

    Raises:
        CaptureError: The text is not one function.
    """
    is_lambda = source.name == "<lambda>"
    node = _parse_lambda(source) if is_lambda else _parse_lines(source.text, source.first_line)
    if not isinstance(node, ast.FunctionDef | ast.Lambda):
        raise CaptureError(f"the source of {source.name} at {source.filename}:{source.first_line} is not a function")
    return node


def lines_of(text: str, first: int, last: int) -> str:
    """Take lines `first` to `last`, counted from 1 and both included, with their line ends."""
    # `str.splitlines` also splits at form feeds and Unicode separators, which are no line ends to Python.
    return "".join(line + "\n" for line in text.split("\n")[first - 1 : last])


def _parse_lines(text: str, first_line: int) -> ast.stmt:
    # An indented statement is put under a header instead of being dedented: dedenting would change the text of
    # the strings that span lines.
    indented = text[:1].isspace()
    tree = parse_quietly("if 1:\n" + text if indented else text)
    ast.increment_lineno(tree, first_line - (2 if indented else 1))
    statement = tree.body[0]
    if indented and isinstance(statement, ast.If):
        statement = statement.body[0]
    return statement


def _parse_lambda(source: FunctionSource) -> ast.expr:
    encoded = [line.encode() for line in source.text.removesuffix("\n").split("\n")]
    encoded[-1] = encoded[-1][: source.end_column]
    encoded[0] = encoded[0][source.column :]
    tree = parse_quietly("(" + b"\n".join(encoded).decode() + ")")
    for node in ast.walk(tree):
        if isinstance(node, ast.expr | ast.keyword | ast.arg):
            if node.lineno == 1:
                node.col_offset += source.column - 1
            if node.end_lineno == 1 and node.end_col_offset is not None:
                node.end_col_offset += source.column - 1
    ast.increment_lineno(tree, source.first_line - 1)
    statement = tree.body[0]
    if not isinstance(statement, ast.Expr):
        raise CaptureError(f"the source at {source.filename}:{source.first_line} is not a lambda")
    return statement.value
