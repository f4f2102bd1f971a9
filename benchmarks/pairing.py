"""Two things measured by turns in one process tree, so that whatever else the machine does hits both."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_RESAMPLES = 2000


@dataclass(frozen=True)
class Interval:
    """A median with its 95 % interval, from the bootstrap.

    Attributes:
        median: The median.
        low: Lower end of the interval.
        high: Upper end.
    """

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        """Write it as `median [low, high]`."""
        return f"{self.median:.4g} [{self.low:.4g}, {self.high:.4g}]"


def interval(values: Sequence[float]) -> Interval:
    """Return the median of values with its 95 % interval."""
    generator = random.Random(0)
    medians = sorted(statistics.median(generator.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    return Interval(statistics.median(values), medians[int(0.025 * _RESAMPLES)], medians[int(0.975 * _RESAMPLES) - 1])


@dataclass(frozen=True)
class Pair:
    """Seconds of two things, measured by turns.

    Attributes:
        base: Seconds of the first, one per round.
        other: Seconds of the second, one per round.
    """

    base: Sequence[float]
    other: Sequence[float]

    def speed_ratio(self) -> Interval:
        """Return the second's speed as a share of the first's: 1 is as fast, 0.5 half as fast."""
        return interval([one / two for one, two in zip(self.base, self.other, strict=True)])

    def difference(self) -> Interval:
        """Return by how many seconds the second takes longer."""
        return interval([two - one for one, two in zip(self.base, self.other, strict=True)])


def measure_pair(base: Callable[[int], object], other: Callable[[int], object], rounds: int) -> Pair:
    """Run two things by turns, the first of each round alternating, after one unmeasured round.

    Args:
        base: The first; takes the number of the round, so that prompts differ.
        other: The second.
        rounds: Measured rounds.
    """
    return Pair(*measure_turns([base, other], rounds))


def measure_turns(
    things: Sequence[Callable[[int], object]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> list[list[float]]:
    """Run things by turns, every other round in the opposite order, after one unmeasured round.

    Args:
        things: Each takes the number of the round, so that prompts differ.
        rounds: Measured rounds.
        clock: What tells the time, in seconds.

    Returns:
        The seconds of each thing, one per round.
    """
    for thing in things:
        thing(0)
    seconds: list[list[float]] = [[] for _ in things]
    for number in range(1, rounds + 1):
        order = range(len(things)) if number % 2 else reversed(range(len(things)))
        for which in order:
            began = clock()
            things[which](number)
            seconds[which].append(clock() - began)
    return seconds


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope of the least-squares line through points."""
    mean_x = statistics.fmean(x for x, _ in points)
    mean_y = statistics.fmean(y for _, y in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)


def slope_interval(series: Sequence[Sequence[tuple[float, float]]]) -> Interval:
    """Return the slope over rounds, each of which measured every point once."""
    return interval([slope(points) for points in series])
