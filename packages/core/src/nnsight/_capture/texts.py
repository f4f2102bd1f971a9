"""Every place that may hold the source text of a running code object."""

from __future__ import annotations

import linecache
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import CodeType


def candidate_texts(code: CodeType, module_globals: Mapping[str, Any]) -> Iterator[str]:
    r"""Give the texts that may be the source of `code`, each once, the likeliest first.

    None of them is trusted: a file may have changed since it was imported, and several snippets share one made-up
    file name. The caller compares each text with the running code.

    Args:
        code: The running code object.
        module_globals: The globals that it runs with.

    Yields:
        A whole source text with `\n` as its line end.
    """
    seen: set[str] = set()
    for provider in (_cached, _refreshed, _by_code, _from_loader, _module_file, _command_line, _timed_cells):
        for text in provider(code, module_globals):
            unified = text.replace("\r\n", "\n").replace("\r", "\n")
            if unified and unified not in seen:
                seen.add(unified)
                yield unified


def _cached(code: CodeType, module_globals: Mapping[str, Any]) -> Iterator[str]:
    # The cached text comes first even when the file is newer: it may be the text that the code was made from.
    yield "".join(linecache.getlines(code.co_filename, dict(module_globals)))


def _refreshed(code: CodeType, module_globals: Mapping[str, Any]) -> Iterator[str]:
    linecache.checkcache(code.co_filename)
    yield "".join(linecache.getlines(code.co_filename, dict(module_globals)))


def _by_code(code: CodeType, module_globals: Mapping[str, Any]) -> Iterator[str]:
    # Later versions of Python keep the text of interactive input and of `-c` by code object.
    lookup = getattr(linecache, "_getlines_from_code", None)
    if lookup is not None:
        yield "".join(lookup(code))


def _from_loader(code: CodeType, module_globals: Mapping[str, Any]) -> Iterator[str]:
    get_source = getattr(module_globals.get("__loader__"), "get_source", None)
    name = module_globals.get("__name__")
    if get_source is None or not isinstance(name, str):
        return
    try:
        text = get_source(name)
    except (ImportError, OSError, SyntaxError, UnicodeError):
        return
    if isinstance(text, str):
        yield text


def _module_file(code: CodeType, module_globals: Mapping[str, Any]) -> Iterator[str]:
    # A code object that was compiled with a relative file name stays findable after a change of directory.
    path = module_globals.get("__file__")
    if isinstance(path, str) and os.path.basename(path) == os.path.basename(code.co_filename):
        yield "".join(linecache.getlines(path))


def _command_line(code: CodeType, module_globals: Mapping[str, Any]) -> Iterator[str]:
    if code.co_filename != "<string>":
        return
    arguments = iter(sys.orig_argv[1:])
    for argument in arguments:
        if not argument.startswith("-") or argument.startswith("--"):
            return
        for index, letter in enumerate(argument[1:], start=2):
            # These options take the rest of the argument, or the next one.
            if letter in "cmWX":
                value = argument[index:] or next(arguments, "")
                if letter == "c":
                    yield value + "\n"
                if letter in "cm":
                    return
                break


def _timed_cells(code: CodeType, module_globals: Mapping[str, Any]) -> Iterator[str]:
    # IPython's `%%time` compiles the rest of its cell under a made-up name that no cache knows.
    if code.co_filename != "<timed exec>":
        return
    try:
        shell = module_globals["get_ipython"]()
        cells = list(shell.history_manager.input_hist_raw)
        for cell in reversed(cells):
            magic, _, rest = cell.lstrip().partition("\n")
            if magic.startswith("%%time"):
                yield shell.transform_cell(rest)
    except (AttributeError, KeyError, SyntaxError, TypeError):
        return
