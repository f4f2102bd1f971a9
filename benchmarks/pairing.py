"""Things measured by turns in one process tree, so that whatever else the machine does hits all of them."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_RESAMPLES = 2000


@dataclass(frozen=True)
class Interval:
    """A figure with its 95 % interval, from the bootstrap.

    Attributes:
        median: The figure, a median where nothing else is said.
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
    return _bootstrap(statistics.median, values)


def quartile_ratio(base: Sequence[float], other: Sequence[float]) -> Interval:
    """Return a second thing's speed as a share of a first's, each by the lower quartile of its seconds.

    For machines that run slowly at times: which rounds that hits is chance, and the faster ones are alike.
    """

    def ratio(one: Sequence[float], two: Sequence[float]) -> float:
        return _lower_quartile(one) / _lower_quartile(two)

    return _bootstrap(ratio, base, other)


def _bootstrap(figure: Callable[..., float], *samples: Sequence[float]) -> Interval:
    """Return a figure of samples, with its interval from samples drawn anew from each."""
    generator = random.Random(0)
    drawn = sorted(figure(*[generator.choices(values, k=len(values)) for values in samples]) for _ in range(_RESAMPLES))
    return Interval(figure(*samples), drawn[int(0.025 * _RESAMPLES)], drawn[int(0.975 * _RESAMPLES) - 1])


def _lower_quartile(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=4, method="inclusive")[0]


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
