"""Recognise a script that would start its engine again in every process that the engine spawns."""

from __future__ import annotations

import ast
import linecache
import multiprocessing
import sys
from types import FrameType, ModuleType

from nnsight.errors import MissingMainGuardError
from nnsight_vllm.compat.public import spawns

_ADVICE = """put the code that builds the engine under a main guard:

    def main():
        model = VLLM(...)
        ...

    if __name__ == "__main__":
        main()
"""


def refuse_unguarded_script() -> None:
    """Refuse to build an engine at the top level of a script, where spawned processes would build it again.

    Does nothing where vLLM forks its processes.

    Raises:
        MissingMainGuardError: The running script has no main guard around the engine.
    """
    if not spawns():
        return
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise MissingMainGuardError(f"a spawned process runs the main module again and came to its engine: {_ADVICE}")
    main = sys.modules.get("__main__")
    frame = _top_level_frame(main)
    if main is None or frame is None or not _is_run_again(main):
        return
    line = frame.f_lineno
    if not _is_guarded("".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals)), line):
        raise MissingMainGuardError(
            f"{frame.f_code.co_filename}, line {line}, builds an engine at the top level of the script. vLLM starts "
            f"its processes by spawning here, and each of them would run the script again; {_ADVICE}"
        )


def _top_level_frame(main: ModuleType | None) -> FrameType | None:
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if main is not None and frame.f_globals is vars(main) and frame.f_code.co_name == "<module>":
            return frame
        frame = frame.f_back
    return None


def _is_run_again(main: ModuleType) -> bool:
    """Tell whether multiprocessing would run the main module again in a spawned process."""
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return not spec.name.endswith("__main__")
    return getattr(main, "__file__", None) is not None and not hasattr(sys, "ps1") and "ipykernel" not in sys.modules


def _is_guarded(text: str, line: int) -> bool:
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return True
    for statement in tree.body:
        if statement.lineno <= line <= (statement.end_lineno or statement.lineno):
            names = (
                {node.id for node in ast.walk(statement.test) if isinstance(node, ast.Name)}
                if isinstance(statement, ast.If)
                else set()
            )
            return "__name__" in names
    return True
