"""Which steps of a request an index selects."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


def selected_steps(selector: object) -> tuple[Sequence[int] | range, bool]:
    """Turn the index of `tracer.iter[...]` into steps, and say whether they are bounded.

    Raises:
        TypeError: The index is no integer, slice or list of integers.
        ValueError: A step is negative, or the steps do not increase.
    """
    if isinstance(selector, slice):
        start, stop, stride = selector.start or 0, selector.stop, selector.step or 1
        if start < 0 or (stop is not None and stop < 0) or stride < 1:
            raise ValueError(
                f"tracer.iter[{start}:{stop}:{stride}] counts from the end or backwards, but the number of steps is "
                "not known beforehand; use non-negative bounds and a positive stride"
            )
        return (range(start, stop, stride), True) if stop is not None else (range(start, 1 << 62, stride), False)
    if isinstance(selector, int) and not isinstance(selector, bool):
        steps: Sequence[int] = (selector,)
    elif isinstance(selector, list | tuple) and all(isinstance(step, int) for step in selector):
        steps = tuple(selector)
    else:
        raise TypeError(f"tracer.iter takes an integer, a slice or a list of integers, not {selector!r}")
    if any(step < 0 for step in steps) or any(a >= b for a, b in pairwise(steps)):
        raise ValueError(f"tracer.iter[{list(steps)}]: steps must be non-negative and increase")
    return steps, True
