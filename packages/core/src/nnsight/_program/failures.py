"""Errors of a block on their way home: plain data there, the original exception with the user's own lines here."""

from __future__ import annotations

import ast
import asyncio
import builtins
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Callable
from functools import lru_cache
from types import FrameType, TracebackType
from typing import Any

from nnsight.errors import RequestFailedError
from nnsight.plugins import registered_backends


def describe_error(error: BaseException, codes: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Turn an exception into plain data.

    Args:
        error: The exception, with its traceback.
        codes: Files whose frames are the user's, whatever folder they are in.
    """
    kind = type(error)
    return {
        "type": [kind.__module__, kind.__qualname__],
        "args": [_plain(arg) for arg in error.args],
        "text": _text(str, error),
        "notes": [_text(str, note) for note in getattr(error, "__notes__", ())],
        "frames": user_frames(error.__traceback__, codes),
    }


def _plain(value: object) -> object:
    """Return a value that any message can carry: the value itself, or its spelling."""
    kind = type(value)
    if kind is str:
        return _text(str, value)
    if kind is int and -(2**63) <= value < 2**63:  # type: ignore[operator]
        return value
    return value if kind in (float, bool, bytes, type(None)) else _text(repr, value)


def _text(spell: Callable[[object], str], value: object) -> str:
    try:
        text = spell(value)
    except Exception:  # noqa: BLE001 - a spelling of its own may do anything
        text = f"<{type(value).__name__} that cannot be spelled>"
    return str(text).encode("utf-8", "backslashreplace").decode()


def user_frames(traceback: TracebackType | None, codes: frozenset[str] = frozenset()) -> list[list[Any]]:
    """Return `[file, line, function]` of the frames that are the user's own."""
    frames: list[list[Any]] = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if code.co_filename in codes or not _is_library(code.co_filename):
            frames.append([code.co_filename, traceback.tb_lineno, code.co_name])
        traceback = traceback.tb_next
    return frames


def keep_user_frames(error: BaseException, codes: frozenset[str] = frozenset()) -> BaseException:
    """Cut the frames that are not the user's own out of an exception's traceback, where any are."""
    kept = []
    traceback = error.__traceback__
    while traceback is not None:
        filename = traceback.tb_frame.f_code.co_filename
        if filename in codes or not _is_library(filename):
            kept.append(traceback)
        traceback = traceback.tb_next
    joined: TracebackType | None = None
    for link in reversed(kept):
        joined = TracebackType(joined, link.tb_frame, link.tb_lasti, link.tb_lineno)
    return error.with_traceback(joined) if kept else error


def rebuild_error(data: dict[str, Any]) -> BaseException:
    """Turn `describe_error`'s data back into an exception.

    The type is the original one where it can be rebuilt from plain arguments; it is `RequestFailedError` otherwise.
    """
    error = _rebuild(data) or RequestFailedError(f"the block raised {data['type'][1]}: {data['text']}")
    for note in data["notes"]:
        error.add_note(note)
    return error.with_traceback(traceback_of(data["frames"]))


def traceback_of(frames: list[list[Any]]) -> TracebackType | None:
    """Make a traceback that shows these lines, which ran in another process."""
    traceback: TracebackType | None = None
    for filename, line, name in reversed(frames):
        frame = _frame_at(filename, line, name)
        traceback = TracebackType(traceback, frame, frame.f_lasti, line)
    return traceback


def _frame_at(filename: str, line: int, name: str) -> FrameType:
    """Make a frame of a function of that name, at a real instruction of that line."""
    tree = ast.parse("__frame__ = __here__()")
    for node in ast.walk(tree):
        if isinstance(node, ast.expr | ast.stmt):
            node.lineno = node.end_lineno = line
            # No columns: carets would be put under the user's line by the columns of ours. Nor may the instruction be
            # left out instead, since IPython then searches for it without end.
            node.col_offset = node.end_col_offset = -1
    code = compile(tree, filename, "exec").replace(co_name=name)
    namespace: dict[str, Any] = {"__here__": lambda: sys._getframe(1)}
    exec(code, namespace)  # noqa: S102 - our own line, to have a frame of that name
    frame: FrameType = namespace["__frame__"]
    return frame


def acts_on_its_process(kind: type[BaseException]) -> bool:
    """Tell whether an exception ends the process, the task or the generator that it is raised in.

    Raised at home, one that a block raised would do so there instead of telling what happened to the block.
    """
    return issubclass(kind, SystemExit | KeyboardInterrupt | GeneratorExit | asyncio.CancelledError)


def _rebuild(data: dict[str, Any]) -> BaseException | None:
    module, name = data["type"]
    found: Any = builtins if module == "builtins" else sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and issubclass(found, BaseException)) or acts_on_its_process(found):
        return None
    try:
        error: BaseException = found(*data["args"])
        return error if str(error) == data["text"] else None
    except Exception:  # noqa: BLE001 - a constructor of its own may want anything
        return None


@lru_cache(maxsize=1)
def _backends() -> tuple[str, ...]:
    """Return the folders of the backends' packages, wherever they are installed or checked out."""
    folders = set()
    for factory in registered_backends().values():
        package = factory.partition(":")[0].partition(".")[0]
        try:
            found = importlib.util.find_spec(package)
        except (ImportError, ValueError):
            continue
        folders |= {os.path.abspath(folder) + os.sep for folder in (found and found.submodule_search_locations) or ()}
    return tuple(folders)


_LIBRARIES = tuple(
    {sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    | {os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep}
)


def _is_library(filename: str) -> bool:
    return filename.startswith((*_LIBRARIES, *_backends(), "<frozen")) or filename.endswith(("greenlet.py",))
