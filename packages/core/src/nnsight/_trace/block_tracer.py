"""The tracer as a running block sees it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from nnsight._envoy.selection import Module, selected_paths
from nnsight._interleave.recording import Recording
from nnsight._interleave.steps import selected_steps
from nnsight._interleave.turns import StopBlock, current_run
from nnsight._trace.cache import Cache, converter
from nnsight.errors import InvalidRequestError, OutsideTraceError, UnsupportedFeatureError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from nnsight._envoy import ModelTree
    from nnsight._interleave.run import BlockRun


def in_block() -> bool:
    """Tell whether a block is running here."""
    try:
        current_run()
    except OutsideTraceError:
        return False
    return True


class StepIterator:
    """Steps of the request, one after the other: `for step in tracer.iter[:3]`."""

    def __init__(self, run: BlockRun, selector: object, label: str) -> None:
        """Iterate over the steps that `selector` picks."""
        self._run = run
        self._steps, self._bounded = selected_steps(selector)
        self._label = label

    def __iter__(self) -> Iterator[int]:
        """Wait for each step in turn; a request that ends first ends the loop."""
        if self._run.loop is not None:
            raise UnsupportedFeatureError(
                f"{self._label} stands inside the loop over {self._run.loop}: a request goes through its steps once, "
                "so loops over them do not nest; write one loop, and tell its steps apart by their number"
            )
        self._run.loop = self._label
        try:
            yield from self._walk()
        finally:
            self._run.loop = None

    def _walk(self) -> Iterator[int]:
        for done, step in enumerate(self._steps):
            if not self._run.wait_for_step(step):
                if self._bounded:
                    self._run.receipt.note_early_loop(
                        f"{self._label} asked for {len(self._steps)} steps, but the request ran "
                        f"{self._run.step + 1}, so the loop ended after {done}"
                    )
                return
            yield step


class StepSelector:
    """`tracer.iter[...]`."""

    def __init__(self, run: BlockRun) -> None:
        """Select steps of a run."""
        self._run = run

    def __getitem__(self, selector: object) -> StepIterator:
        """Select steps by a slice, an integer or a list of integers."""
        return StepIterator(self._run, selector, f"tracer.iter[{_spell(selector)}]")

    def __iter__(self) -> Iterator[int]:
        """Iterate over every step."""
        return iter(self[:])


class BlockTracer:
    """Steps, the result and the end of the request, inside its block."""

    def __init__(self, tree: ModelTree | None = None) -> None:
        """Name modules as `tree` does, or as the model does that runs."""
        self._tree = tree

    @property
    def iter(self) -> StepSelector:
        """Select steps: `tracer.iter[:n]`, `[k]`, `[a:b:c]` or `[[0, 2]]`. The prompt is step 0."""
        return StepSelector(current_run())

    def all(self) -> StepIterator:
        """Iterate over every step of the request."""
        return StepIterator(current_run(), slice(None), "tracer.all()")

    @property
    def result(self) -> object:
        """The finished output of the request; waits for its end."""
        return current_run().wait_for_result()

    def cache(
        self,
        modules: Module | Iterable[Module] | None = None,
        *,
        include_inputs: bool = False,
        include_output: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        detach: bool = True,
    ) -> Cache:
        """Record every call of modules from here to the end of the request, while the block goes on.

        What is recorded is what the model goes on with: after the edits that blocks make there. The cache comes home
        without a save, under the variable that it is bound to.

        Args:
            modules: Modules, paths, or patterns in which `*` stands for one part of a path; None for every module.
            include_inputs: Record what they are given.
            include_output: Record what they return.
            device: Where recorded tensors go at once; None leaves them where they are, and those of an engine arrive
                on the CPU in the end.
            dtype: What recorded floating-point tensors are turned into.
            detach: Cut recorded tensors off from gradients, which only the in-process backend has.

        Raises:
            UnknownLocationError: A path or pattern names no module.
            UnsupportedFeatureError: A module that is named by itself cannot be read.
            InvalidRequestError: Neither inputs nor outputs are asked for.
        """
        run = current_run()
        sides = [side for side, asked in (("inputs", include_inputs), ("output", include_output)) if asked]
        if not sides:
            raise InvalidRequestError(
                "tracer.cache() was asked for neither inputs nor outputs; leave out include_output=False, or give "
                "include_inputs=True"
            )
        paths, left_out = selected_paths(self._tree or run.tree, modules, sides)
        if left_out:
            run.receipt.warn(
                f"tracer.cache() left out {', '.join(left_out)}: their values are split over ranks or their calls "
                "cannot be told apart"
            )

        def path_of(module: nn.Module) -> str | None:
            found: str | None = run.tree.path_below(module, "")
            return found

        convert = converter(device, dtype, detach=detach)
        recording = Recording(
            paths,
            inputs=include_inputs,
            output=include_output,
            convert=convert,
            path_of=path_of,
            receipt=run.receipt,
            budget=None if run.budget is None else run.budget.bytes,
        )
        run.recordings.append(recording)
        cache = Cache(recording.calls)
        run.saves.mark(cache, (), "tracer.cache()")
        return cache

    def stop(self) -> None:
        """End the block and its request here; what was saved comes home."""
        current_run()
        raise StopBlock


def _spell(selector: object) -> str:
    if not isinstance(selector, slice):
        return repr(selector)
    parts = ["" if part is None else str(part) for part in (selector.start, selector.stop, selector.step)]
    return ":".join(parts[:2] if not parts[2] else parts)
