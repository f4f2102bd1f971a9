"""Context managers and runners that the tests of block capture share."""

from __future__ import annotations

import ast
import builtins
import sys
import types
from typing import Any

from nnsight._capture import (
    BlockSource,
    BodySkipper,
    block_names,
    compile_block,
    find_block,
    parse_block,
    visible_values,
    write_back,
)


class Capture:
    """Captures its block and does not run it."""

    block: BlockSource
    entered = False
    skipped = False

    def __enter__(self) -> Capture:
        frame = sys._getframe(1)
        self.block = find_block(frame)
        self._frame = frame
        self._skipper = BodySkipper(frame, self.block)
        self.entered = True
        self._skipper.start()
        return self

    def __exit__(self, exc_type: Any, exc: Any, tb: Any) -> bool:
        frame = self.__dict__.pop("_frame")
        self.skipped = self._skipper.finish(exc_type, exc, tb)
        if self.skipped:
            self.leave(frame)
        return self.skipped

    def leave(self, frame: Any) -> None:
        """Do what follows the capture."""

    @property
    def body(self) -> str:
        return "\n".join(ast.unparse(statement) for statement in parse_block(self.block))


class Run(Capture):
    """Captures its block, runs it apart from its frame, and brings the saved values home."""

    def leave(self, frame: Any) -> None:
        loaded = block_names(parse_block(self.block)).loaded
        values = visible_values(frame, sorted(loaded))
        if self.block.target is not None:
            values[self.block.target] = self
        result = run_block(self.block, values)
        self.saves = result.saves
        write_back(frame, {name: result.variables[name] for names, _, _ in result.saves for name in names})


class Result:
    """What a block did when it ran."""

    def __init__(self) -> None:
        self.saves: list[tuple[tuple[str, ...], str, Any]] = []
        self.variables: dict[str, Any] = {}

    def helpers(self) -> dict[str, Any]:
        def save_method(value: Any, names: tuple[str, ...], label: str, *args: Any, **kwargs: Any) -> Any:
            if hasattr(value, "save"):
                return value.save(*args, **kwargs)
            self.saves.append((names, label, value))
            return value

        def save_call(function: Any, names: tuple[str, ...], label: str, *args: Any, **kwargs: Any) -> Any:
            if function != "nnsight.save":
                return function(*args, **kwargs)
            self.saves.append((names, label, args[0]))
            return args[0]

        return {
            "__builtins__": builtins,
            "__nnsight_save_method__": save_method,
            "__nnsight_save_call__": save_call,
            "__nnsight_read_item__": lambda owner, side, index: getattr(owner, side)[index],
            "__nnsight_save_returned__": lambda value, labels: value,
            "__nnsight_save_bound__": lambda value, names, end: value,
            "__nnsight_save_augmented__": lambda name, own_scope, kind, old, value: old + value,
            "__nnsight_locals__": lambda: dict(sys._getframe(1).f_locals),
        }


def run_block(block: BlockSource, values: dict[str, Any]) -> Result:
    result = Result()
    code = compile_block(block, list(values))
    result.variables = types.FunctionType(code, result.helpers())(*values.values())
    return result


def run_text(text: str, **values: Any) -> Result:
    """Run the body of a block that is given as text."""
    return run_block(block_of(text), values)


def block_of(text: str) -> BlockSource:
    lines = "".join(f"    {line}\n" for line in text.split("\n"))
    return BlockSource("<test block>", 1, f"with block:\n{lines}", 0, "<module>")


class Module:
    """A stand-in for a module of a model."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)
