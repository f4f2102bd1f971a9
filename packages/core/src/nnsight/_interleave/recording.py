"""Calls of modules that are recorded for a request while its block goes on, or is over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from nnsight._interleave.structure import map_tensors
from nnsight._interleave.visit import MISSING

if TYPE_CHECKING:
    from nnsight._interleave.budget import ByteBudget
    from nnsight._interleave.interleaver import Tree
    from nnsight._interleave.receipt import Receipt
    from nnsight._interleave.scope import Scope


@dataclass(frozen=True, slots=True)
class Withheld:
    """What takes the place of a recorded value that could not travel home.

    Attributes:
        reason: Why it could not.
    """

    reason: str


@dataclass(slots=True)
class RecordedCall:
    """One call of a module; what was not recorded is `MISSING`.

    Attributes:
        step: The step that it was made in.
        inputs: Its arguments, `(positional, keywords)`.
        output: What it returned.
    """

    step: int
    inputs: Any = MISSING
    output: Any = MISSING


class Recording:
    """What is recorded for one request, from its registration to the end of the request.

    Attributes:
        paths: The modules.
        calls: Their calls, in order.
    """

    def __init__(
        self,
        paths: Sequence[str],
        *,
        inputs: bool,
        output: bool,
        convert: Callable[[torch.Tensor], torch.Tensor],
        path_of: Callable[[nn.Module], str | None],
        receipt: Receipt,
        budget: ByteBudget | None = None,
    ) -> None:
        """Prepare to record.

        Args:
            paths: The modules.
            inputs: Whether what they are given is recorded.
            output: Whether what they return is recorded.
            convert: Applied to each tensor once it is the request's own.
            path_of: Finds the path of a module, which stands for it among arguments.
            receipt: Where records are counted.
            budget: What recorded tensors count for.
        """
        self.paths = tuple(paths)
        self.calls: dict[str, list[RecordedCall]] = {}
        self._inputs = inputs
        self._output = output
        self._convert = convert
        self._path_of = path_of
        self._receipt = receipt
        self._budget = budget

    def begin_call(self, path: str, step: int, arguments: tuple[Any, Any], scope: Scope) -> None:
        """Record what a module is given."""
        if self._inputs:
            args, kwargs = arguments
            named = {name: self._plain(value) for name, value in kwargs.items()}
            own = self._own((tuple(map(self._plain, args)), named), scope)
            self.calls.setdefault(path, []).append(RecordedCall(step, inputs=own))
            self._count(f"{path}.inputs" if path else "inputs")

    def end_call(self, path: str, step: int, output: object, scope: Scope) -> None:
        """Record what a module returns."""
        if not self._output:
            return
        own = self._own(output, scope)
        calls = self.calls.setdefault(path, [])
        # Of a module that calls itself, the inner call ends first.
        open_call = next((call for call in reversed(calls) if call.step == step and call.output is MISSING), None)
        if open_call is None:
            calls.append(RecordedCall(step, output=own))
        else:
            open_call.output = own
        self._count(f"{path}.output" if path else "output")

    def note_untouched(self, tree: Tree) -> None:
        """Note on the receipt which calls never came; a container of modules has none."""
        sides = [side for side, asked in (("inputs", self._inputs), ("output", self._output)) if asked]
        for path in self.paths:
            if type(tree.module(path)).forward is nn.Module.forward:
                continue
            for side in sides:
                where = f"{path}.{side}" if path else side
                if where not in self._receipt.recorded:
                    self._receipt.note_untouched(where)

    def _plain(self, argument: object) -> object:
        return self._path_of(argument) if isinstance(argument, nn.Module) else argument

    def _own(self, live: object, scope: Scope) -> object:
        def copy(tensor: torch.Tensor) -> object:
            own = self._convert(scope.take(tensor))
            if self._budget is not None:
                self._budget.note(own)
            return own

        # What is made in inference mode cannot be used with gradients afterwards.
        with torch.inference_mode(mode=False), torch.set_grad_enabled(torch.is_grad_enabled()):
            own = map_tensors(live, copy)
        if self._budget is not None:
            self._budget.refuse_overrun()
        return own

    def _count(self, where: str) -> None:
        recorded = self._receipt.recorded
        recorded[where] = recorded.get(where, 0) + 1
