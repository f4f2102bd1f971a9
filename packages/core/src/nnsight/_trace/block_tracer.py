"""The tracer as a running block sees it."""

from __future__ import annotations

from collections.abc import Iterator

from nnsight._interleave.run import BlockRun, StopBlock, current_run
from nnsight._interleave.steps import selected_steps
from nnsight.errors import OutsideTraceError


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
        for done, step in enumerate(self._steps):
            if not self._run.wait_for_step(step):
                if self._bounded:
                    self._run.receipt.early_loops.append(
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

    def stop(self) -> None:
        """End the block and its request here; what was saved comes home."""
        current_run()
        raise StopBlock


def _spell(selector: object) -> str:
    if not isinstance(selector, slice):
        return repr(selector)
    parts = ["" if part is None else str(part) for part in (selector.start, selector.stop, selector.step)]
    return ":".join(parts[:2] if not parts[2] else parts)
