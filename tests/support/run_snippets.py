"""Run pages of the documentation, one engine shared by all of them: `run_snippets.py ROOT REPLIES`.

Reads one page after the other from standard input, and answers each with one line of JSON on the file descriptor
REPLIES: what went wrong, or null.

A page runs as a notebook would: its namespace is the main module, which no spawned process runs again. `VLLM(...)` in
it is the real class; only the engine behind it is started once for all models with the same arguments, and outlives
their `shutdown()`.
"""

from __future__ import annotations

import contextlib
import io
import json
import linecache
import os
import sys
import traceback
import types
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from doc_snippets import Snippet, matches, snippets_of

_MOST_ENGINES = 2


class SharedEngine:
    """One model's hold on an engine that others use too."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def shutdown(self) -> None:
        """Let go of the engine, which stays for others."""


class EnginePool:
    """Stands in for the class of an engine: starts one, or finds the one that runs already."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._running: dict[str, Any] = {}

    def __call__(self, repo: str, keywords: Mapping[str, Any]) -> SharedEngine:
        key = json.dumps([str(repo), keywords], sort_keys=True, default=repr)
        if key not in self._running:
            while len(self._running) >= _MOST_ENGINES:
                self._running.pop(next(iter(self._running))).shutdown()
            self._running[key] = self._kind(repo, keywords)
        return SharedEngine(self._running[key])

    def shutdown(self) -> None:
        """End every engine."""
        for engine in self._running.values():
            engine.shutdown()


def run_page(page: Path, root: Path) -> str | None:
    """Run the blocks of a page; return a description of the first failure."""
    main = types.ModuleType("__main__")
    before = sys.modules["__main__"]
    sys.modules["__main__"] = main
    try:
        for snippet in snippets_of(page, root):
            problem = None if snippet.skipped else _run(snippet, vars(main))
            if problem is not None:
                return f"{page}, line {snippet.line}: {problem}"
    finally:
        sys.modules["__main__"] = before
    return None


def _run(snippet: Snippet, namespace: dict[str, Any]) -> str | None:
    from nnsight.errors import NNsightWarning

    filename = f"<{snippet.page}:{snippet.line}>"
    linecache.cache[filename] = (len(snippet.code), None, snippet.code.splitlines(keepends=True), filename)
    printed = io.StringIO()
    raised = ""
    trace = ""
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(printed):
        warnings.simplefilter("always")
        try:
            exec(compile(snippet.code, filename, "exec"), namespace)
        except Exception as error:  # noqa: BLE001 - whatever a page does wrong is reported
            raised, trace = type(error).__name__, traceback.format_exc()
    warned = {type(item.message).__name__ for item in caught if isinstance(item.message, NNsightWarning)}
    if raised != snippet.raises:
        return f"raised {raised or 'nothing'}, expected {snippet.raises or 'nothing'}\n{trace}"
    if warned != ({snippet.warns} if snippet.warns else set()):
        return f"warned {sorted(warned)}, expected {snippet.warns or 'nothing'}"
    if snippet.prints is not None and not matches(snippet.prints, printed.getvalue()):
        return f"printed\n{printed.getvalue()}\nexpected\n{snippet.prints}"
    return None


def main() -> None:
    """Serve pages until standard input ends."""
    root, replies = Path(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(replies, False)
    os.environ["VLLM_LOGGING_STREAM"] = "ext://sys.stderr"  # what a block prints is compared
    from nnsight_vllm._client import eager

    pool: Any = EnginePool(eager.EagerEngine)
    eager.EagerEngine = pool
    try:
        for line in sys.stdin:
            problem = run_page(Path(line.rstrip("\n")), root)
            os.write(replies, (json.dumps(problem) + "\n").encode())
    finally:
        pool.shutdown()


if __name__ == "__main__":
    main()
