"""Which steps of a request an index selects."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any


def selected_steps(selector: object) -> tuple[Sequence[int] | range, bool]:
    """Turn the index of `tracer.iter[...]` into steps, and say whether they are bounded.

    Raises:
        TypeError: The index is no integer, slice or list of integers.
        ValueError: A step is negative, or the steps do not increase.
    """
    if isinstance(selector, slice):
        parts = [None if part is None else _integer(part) for part in (selector.start, selector.stop, selector.step)]
        start, stop, stride = parts[0] or 0, parts[1], 1 if parts[2] is None else parts[2]
        if start < 0 or (stop is not None and stop < 0) or stride < 1:
            raise ValueError(
                f"tracer.iter[{start}:{stop}:{stride}] counts from the end or backwards, but the number of steps is "
                "not known beforehand; use non-negative bounds and a positive stride"
            )
        return (range(start, stop, stride), True) if stop is not None else (range(start, 1 << 62, stride), False)
    try:
        steps: Sequence[int] = (_integer(selector),)
    except TypeError:
        if not isinstance(selector, Iterable) or isinstance(selector, str | bytes):
            raise
        steps = tuple([_integer(step) for step in selector])
    if any(step < 0 for step in steps) or any(a >= b for a, b in pairwise(steps)):
        raise ValueError(f"tracer.iter[{list(steps)}]: steps must be non-negative and increase")
    return steps, True


def _integer(value: Any) -> int:
    """Return a step as an integer, whatever kind of integer it is, such as numpy's."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise TypeError(f"tracer.iter takes an integer, a slice or a list of integers, not {value!r}") from None
