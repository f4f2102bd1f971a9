"""Compiling a captured block or function, with its own file name and line numbers."""

from __future__ import annotations

import ast
import functools
import linecache
import threading
from types import CodeType
from typing import TYPE_CHECKING

from nnsight._capture.bytecode import nested_codes
from nnsight._capture.counting import rewrite_loops
from nnsight._capture.derived import register_source
from nnsight._capture.items import rewrite_items
from nnsight._capture.mangling import mangle_names
from nnsight._capture.parsing import parse_body
from nnsight._capture.saves import LOCALS, SaveNames, rewrite_saves
from nnsight._capture.source import BlockSource, FunctionSource, compile_quietly, parse_function
from nnsight.errors import CaptureError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_PLACEHOLDER = "__nnsight_code__"
_SAVE_NAMES = SaveNames()
_MAXIMUM_REGISTERED = 256

_registered: dict[str, list[str]] = {}
_registered_lock = threading.Lock()


def compile_block(
    source: BlockSource, parameters: Sequence[str], known: SaveNames = _SAVE_NAMES, *, counts: bool = False
) -> CodeType:
    """Compile a block to the code of a function.

    Run it with `types.FunctionType(code, run_globals)(*values)`. The globals have to provide the helpers that are named
    in `nnsight._capture.saves` and `nnsight._capture.items`; the function returns the result of `__nnsight_locals__`,
    which is called without arguments from the block's own frame.

    Args:
        source: The source of the block.
        parameters: The names of the variables that the block gets from around it, in the order of the arguments.
        known: The names that `nnsight.save` goes by in the block.
        counts: Whether its loops and functions count; the globals then have to provide the helpers that are named in
            `nnsight._capture.counting` too.

    Returns:
        Code of the same file name, lines and function name as the block, with its saves and reads of items rewritten.

    Raises:
        BlockEscapeError: A statement of the body would leave the block.
        CaptureError: The text is not a `with` statement.
    """
    code = _compile_block(source, tuple(parameters), known, counts)
    register_lines(source.filename, source.first_line, source.text)
    return code


def compile_function(
    source: FunctionSource, free_names: Sequence[str] = (), known: SaveNames = _SAVE_NAMES, *, counts: bool = False
) -> CodeType:
    """Compile a function that travels to the code of a wrapper that makes it.

    The function's free variables become the parameters of the wrapper, so that its closure works as before:

    ```python
    make = types.FunctionType(compile_function(source, function.__code__.co_freevars), run_globals)
    copy = make(*(cell.cell_contents for cell in function.__closure__ or ()))
    copy.__defaults__, copy.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    ```

    Values of defaults are not evaluated again, they have to be set as above. Decorators and annotations are left out.
    A nested function that calls itself finds its copy, whatever is passed for its own name.

    Args:
        source: The source of the function.
        free_names: The names of its free variables, in the order of the wrapper's arguments.
        known: The names that `nnsight.save` goes by in the function.
        counts: Whether it, its loops and functions count, as those of a block.

    Returns:
        The code of the wrapper. The function inside it has its own file name, lines and name, and is rewritten
        like a block.

    Raises:
        CaptureError: The text is not a function.
    """
    code = _compile_function(source, tuple(free_names), known, counts)
    register_lines(source.filename, source.first_line, source.text)
    return code


def register_lines(filename: str, first_line: int, text: str) -> None:
    """Let tracebacks show lines of a file that does not exist in this process."""
    known = _registered.get(filename)
    # What `linecache` finds by itself is left alone.
    if known is None and linecache.getlines(filename):
        return
    lines = [line + "\n" for line in text.removesuffix("\n").split("\n")]
    start, end = first_line - 1, first_line - 1 + len(lines)
    if known is not None and known[start:end] == lines and filename in linecache.cache:
        return
    with _registered_lock:
        merged = list(_registered.pop(filename, []))
        merged += ["\n"] * (end - len(merged))
        merged[start:end] = lines
        _registered[filename] = merged
        # An entry without a time of change is not checked against the disk.
        linecache.cache[filename] = (sum(map(len, merged)), None, merged, filename)
        while len(_registered) > _MAXIMUM_REGISTERED:
            oldest = next(iter(_registered))
            entry = linecache.cache.get(oldest)
            if entry is not None and len(entry) == 4 and entry[2] is _registered[oldest]:
                del linecache.cache[oldest]
            del _registered[oldest]


@functools.lru_cache(maxsize=512)
def _compile_block(source: BlockSource, parameters: tuple[str, ...], known: SaveNames, counts: bool) -> CodeType:
    statements = rewrite_items(rewrite_saves(parse_body(source), own_scope=True, known=known))
    if counts:
        statements = rewrite_loops(statements)
    last = statements[-1]
    finish = ast.Return(ast.Call(ast.Name(LOCALS, ast.Load()), [], []))
    _place(ast.walk(finish), last.end_lineno or last.lineno, last.end_col_offset or 0)
    # The name of the block may be one that no definition can have, such as `<module>`.
    name = source.function_name
    code = compile_body(parameters, [*statements, finish], source)
    code = _renamed(code, f"{_PLACEHOLDER}.<locals>.", "" if name.startswith("<") else f"{name}.<locals>.")
    code = code.replace(co_name=name, co_qualname=name)
    register_source(code, source)
    return code


@functools.lru_cache(maxsize=512)
def _compile_function(source: FunctionSource, free_names: tuple[str, ...], known: SaveNames, counts: bool) -> CodeType:
    node = parse_function(source)
    statement = node if isinstance(node, ast.FunctionDef) else ast.copy_location(ast.Expr(node), node)
    statements = rewrite_items(rewrite_saves([statement], own_scope=False, known=known))
    if counts:
        statements = rewrite_loops(statements)
    made = statements[0].value if isinstance(statements[0], ast.Expr) else statements[0]
    return compile_definition(made if isinstance(made, ast.FunctionDef | ast.Lambda) else node, source, free_names)


def compile_definition(
    node: ast.FunctionDef | ast.Lambda, source: FunctionSource, free_names: Sequence[str]
) -> CodeType:
    """Compile the syntax tree of a function to the code of a wrapper that makes it. See `compile_function`.

    Args:
        node: The function, which is changed.
        source: What it was parsed from.
        free_names: The names of its free variables, in the order of the wrapper's arguments.

    Raises:
        CaptureError: The function needs the code around it.
    """
    if source.class_name:
        mangle_names([node], source.class_name)
    arguments = node.args
    # The values travel by themselves; only their number counts here.
    arguments.defaults = [ast.copy_location(ast.Constant(None), default) for default in arguments.defaults]
    arguments.kw_defaults = [
        default and ast.copy_location(ast.Constant(None), default) for default in arguments.kw_defaults
    ]
    body: list[ast.stmt] = []
    if isinstance(node, ast.Lambda):
        made: ast.expr = node
    else:
        node.decorator_list, node.returns = [], None
        for argument in ast.walk(arguments):
            if isinstance(argument, ast.arg):
                argument.annotation = None
        body = [node]
        made = ast.Name(node.name, ast.Load())
        _place([made], node.lineno, node.col_offset)
    finish = ast.Return(made)
    _place([finish], node.lineno, node.col_offset)
    code = _renamed(compile_body(free_names, [*body, finish], source), f"{_PLACEHOLDER}.<locals>.", "")
    register_source(code, source)
    return code


def compile_body(parameters: Sequence[str], body: list[ast.stmt], source: BlockSource | FunctionSource) -> CodeType:
    """Compile the code of a function with these parameters and statements.

    Args:
        parameters: The names of the parameters.
        body: The statements, which have positions.
        source: What they were parsed from.

    Returns:
        The code of the function.

    Raises:
        CaptureError: The statements need the code around them.
    """
    arguments = ast.arguments(
        posonlyargs=[],
        args=[ast.arg(parameter) for parameter in parameters],
        kwonlyargs=[],
        kw_defaults=[],
        defaults=[],
    )
    definition = ast.FunctionDef(name=_PLACEHOLDER, args=arguments, body=body, decorator_list=[], returns=None)
    if "type_params" in definition._fields:
        # Python 3.12 wants a list here.
        setattr(definition, "type_params", [])  # noqa: B010 - the attribute is unknown to older versions
    _place([definition, *arguments.args], source.first_line, 0)
    try:
        module = compile_quietly(ast.Module([definition], []), source.filename, "exec", source.flags)
    except SyntaxError as error:
        raise CaptureError(
            f"the code at {source.filename}:{source.first_line} cannot be compiled apart from the code around it: "
            f"{error.msg} (line {error.lineno})"
        ) from error
    return next(code for code in nested_codes(module) if code.co_name == _PLACEHOLDER)


def _place(nodes: Iterable[ast.AST], line: int, column: int) -> None:
    for node in nodes:
        if isinstance(node, ast.expr | ast.stmt | ast.arg):
            node.lineno, node.end_lineno, node.col_offset, node.end_col_offset = line, line, column, column


def _renamed(code: CodeType, old: str, new: str) -> CodeType:
    """Replace the beginning of the qualified names of everything defined in a code object."""
    constants: list[object] = []
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            constants.append(_renamed(constant, old, new))
        elif isinstance(constant, str) and constant.startswith(old):
            # A class body stores its own qualified name.
            constants.append(new + constant.removeprefix(old))
        else:
            constants.append(constant)
    return code.replace(co_consts=tuple(constants), co_qualname=new + code.co_qualname.removeprefix(old))
