"""Which steps of a request an index selects."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, SupportsIndex


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
                f"tracer.iter[{_spell(selector)}] counts from the end or backwards, but the number of steps is "
                "not known beforehand; use non-negative bounds and a positive stride"
            )
        return (range(start, stop, stride), True) if stop is not None else (range(start, 1 << 62, stride), False)
    try:
        steps: Sequence[int] = (_integer(selector),)
    except TypeError:
        if not isinstance(selector, Iterable) or isinstance(selector, str | bytes):
            raise
        steps = tuple([_integer(step) for step in selector])
    spelled = steps[0] if isinstance(selector, SupportsIndex) else list(steps)
    if any(step < 0 for step in steps):
        raise ValueError(
            f"tracer.iter[{spelled}] counts from the end, but the number of steps is not known beforehand; count from "
            "the prompt, which is step 0"
        )
    if any(a >= b for a, b in pairwise(steps)):
        raise ValueError(f"tracer.iter[{spelled}]: steps must increase, since a request goes through each of them once")
    return steps, True


def _spell(selector: slice) -> str:
    parts = ["" if part is None else str(part) for part in (selector.start, selector.stop, selector.step)]
    return ":".join(parts if parts[2] else parts[:2])


def _integer(value: Any) -> int:
    """Return a step as an integer, whatever kind of integer it is, such as numpy's."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise TypeError(f"tracer.iter takes an integer, a slice or a list of integers, not {value!r}") from None
