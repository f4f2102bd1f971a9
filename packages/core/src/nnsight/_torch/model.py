"""Trace any PyTorch module in the caller's own process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from nnsight._envoy import ModelTree
from nnsight._interleave import BlockRun, Budget, Interleaver, WholeScope
from nnsight._interleave.budget import check_limit
from nnsight._torch.localize import localize
from nnsight._trace import Outcome, Request, RequestBlocks, TracedModel
from nnsight.errors import InvalidRequestError

if TYPE_CHECKING:
    from nnsight._program import Program

_LOCKS: WeakKeyDictionary[nn.Module, threading.RLock] = WeakKeyDictionary()


@dataclass(frozen=True)
class _Call:
    """One call of the traced module: a method and its arguments."""

    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class _Abandoned(BaseException):
    """Leaves a forward whose block is over."""


class NNsight(TracedModel):
    """Read and change the values of a PyTorch module while it runs in this process.

    ```python
    model = NNsight(module)
    with model.trace(x):
        hidden = model.layer1.output.save()
    ```

    A trace calls the module with the trace's arguments; `method="generate"` calls another method of it, and each call
    of the module's own `forward` within is one step. Gradients flow through what a block reads and writes. Invokes run
    one after the other.
    """

    backend_name = "torch"

    def __init__(
        self,
        module: nn.Module,
        *,
        rename: Mapping[str, str] | None = None,
        step_budget: int | None = None,
        byte_budget: int | None = None,
    ) -> None:
        """Wrap a module, which stays as it is.

        Args:
            module: The module.
            rename: Extra names of modules: an alias for each path, such as `{"transformer.h": "layers"}`.
            step_budget: How many iterations of loops and calls of functions a block may run in each step; None for no
                limit.
            byte_budget: How many bytes a block may hold, in copies that it keeps and in what it saved; None for no
                limit.

        Raises:
            TypeError: `module` is no `torch.nn.Module`.
            UnknownLocationError: A renamed path names no module.
            InvalidRequestError: An alias is taken, or a budget is no number above zero.
        """
        if not isinstance(module, nn.Module):
            raise TypeError(f"NNsight takes a torch.nn.Module, not a {type(module).__name__}")
        self._budgets = {
            "step_budget": check_limit("step_budget", step_budget),
            "byte_budget": check_limit("byte_budget", byte_budget),
        }
        self._module = module
        # Blocks replace the forward of modules on the instance, so one trace of a module runs at a time.
        self._lock = _LOCKS.setdefault(module, threading.RLock())
        self._tree = ModelTree(module, renames=rename, reserved=dir(type(self)))

    def _prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
        kwargs = dict(kwargs)
        method = kwargs.pop("method", "forward")
        if not callable(getattr(self._module, method, None)):
            raise InvalidRequestError(f"{type(self._module).__name__} has no method {method!r} to trace")
        return _Call(method, args, kwargs)

    def _has_input(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        given = {name: value for name, value in kwargs.items() if name != "method"}
        if not args and not given:
            return False
        try:
            signature(getattr(self._module, kwargs.get("method", "forward"))).bind(*args, **given)
        except TypeError:
            # Keywords alone that make no call are those of every invoke.
            return bool(args)
        return True

    def _execute(self, requests: Sequence[Request]) -> list[Outcome]:
        with self._lock:
            return [self._run_one(request) for request in requests]

    def _check_edits(self) -> None:
        """Allow edits."""

    def _run_one(self, request: Request) -> Outcome:
        edits = {edit.name: edit.program for edit in self._edits_of(request)}
        blocks = RequestBlocks(request.program, edits, self._start)
        forward = _Forward(self._tree, self._module, blocks.runs)
        try:
            result = forward.call(request.prepared)
        except _Abandoned:
            return blocks.finish()
        except Exception as error:  # noqa: BLE001 - the model's own failure is the request's error
            return blocks.finish(error=error)
        finally:
            forward.close()
        return blocks.finish(result=result)

    def _start(self, program: Program) -> BlockRun:
        seen: dict[object, object] = {}
        budget = Budget(**self._budgets)
        values = {name: localize(value, seen, budget.steps) for name, value in program.values.items()}
        return program.start(
            values,
            grad=torch.is_grad_enabled(),
            inference=torch.is_inference_mode_enabled(),
            read_only=False,
            budget=budget,
        )


class _Forward:
    """One traced call of the module, in steps."""

    def __init__(self, tree: ModelTree, module: nn.Module, runs: Sequence[BlockRun]) -> None:
        self._tree = tree
        self._module = module
        self._runs = runs
        self._step = 0
        self._interleaver = Interleaver(tree, after_turn=self._abandon_if_over)

    def call(self, call: _Call) -> object:
        """Run the module to its end, beside the blocks, and return what the method returned."""
        prior = self._module.__dict__.get("forward")
        forward = self._module.forward
        self._module.__dict__["forward"] = self._stepper(forward)
        try:
            target = self._module if call.method == "forward" else getattr(self._module, call.method)
            return target(*call.args, **call.kwargs)
        finally:
            self._interleaver.disarm()
            if prior is None:
                self._module.__dict__.pop("forward", None)
            else:
                self._module.__dict__["forward"] = prior

    def close(self) -> None:
        """Let go of the blocks, and of the modules."""
        self._interleaver.close()

    def _stepper(self, forward: Callable[..., object]) -> Callable[..., object]:
        root = self._interleaver.site("")
        root.external = True

        def step(*args: Any, **kwargs: Any) -> object:
            if self._interleaver.is_called_by_a_block():
                return forward(*args, **kwargs)
            scope = WholeScope()
            self._interleaver.begin_step(dict.fromkeys(self._runs, scope), dict.fromkeys(self._runs, self._step))
            self._step += 1
            output = root.around(forward, args, kwargs)
            self._interleaver.end_step()
            return output

        step.nnsight_original = forward  # type: ignore[attr-defined]
        return step

    def _abandon_if_over(self, run: BlockRun) -> None:
        if run.finished and (run.stopped or run.error is not None):
            raise _Abandoned
