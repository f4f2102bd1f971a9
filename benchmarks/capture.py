"""What capturing a block costs before anything runs: its body skipped, its program built, and written to travel.

    python -m benchmarks.capture [--rounds 15] [--times 300] [--json FILE]

The model runs nothing, so what is left of a trace is the caller's part of it. A block of ten lines is captured again
and again, as in a loop of the user's; the first time, which reads the file and the syntax tree, is told apart. By turns
with it the same block is captured with its layers in variables of their own instead of the name `model`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.pairing import interval, measure_turns
from benchmarks.report import Report
from nnsight import NNsight
from nnsight._trace import Outcome, Request
from nnsight._trace.shipping import write_programs


class Idle(NNsight):
    """Takes the requests of a trace and runs none of them."""

    writes = False

    def _execute(self, requests: Sequence[Request]) -> list[Outcome]:
        if self.writes:
            write_programs([request.program for request in requests])
        return [Outcome() for _ in requests]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--times", type=int, default=300)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)

    model = Idle(nn.Sequential(*[nn.Linear(4, 4) for _ in range(8)]))
    began = time.thread_time()
    _by_model(model)
    first = time.thread_time() - began

    def times(block: Callable[[Any], None], *, writes: bool) -> Callable[[int], None]:
        def run(number: int) -> None:
            type(model).writes = writes
            for _ in range(options.times):
                block(model)

        return run

    things = [times(_by_model, writes=False), times(_by_layers, writes=False), times(_by_model, writes=True)]
    by_model, by_layers, written = (
        [each / options.times * 1e6 for each in seconds]
        for seconds in measure_turns(things, options.rounds, time.thread_time)
    )
    report = Report("a block of ten lines, captured by the caller", options.json)
    report.add("the first time", interval([first * 1e6]), "us")
    report.add("again", interval(by_model), "us", "<= 1000")
    report.add("again, and written to travel", interval(written), "us", "<= 1000")
    difference = [one - other for one, other in zip(by_model, by_layers, strict=True)]
    report.add("what naming the model adds", interval(difference), "us", "<= 0")


def _by_model(model: Any) -> None:
    x = torch.ones(2, 4)
    with model.trace(x) as tracer:
        kept = list().save()
        for step in tracer.iter[:2]:
            first = model[0].output
            second = model[1].output
            mean = (first + second).mean(-1)
            kept.append(mean)
            if step == 0:
                kept.append(model[2].output[0])
            last = model[7].output.save()
            kept.append(last.shape[0])


def _by_layers(model: Any) -> None:
    x = torch.ones(2, 4)
    layer_0, layer_1, layer_2, layer_7 = model[0], model[1], model[2], model[7]
    with model.trace(x) as tracer:
        kept = list().save()
        for step in tracer.iter[:2]:
            first = layer_0.output
            second = layer_1.output
            mean = (first + second).mean(-1)
            kept.append(mean)
            if step == 0:
                kept.append(layer_2.output[0])
            last = layer_7.output.save()
            kept.append(last.shape[0])


if __name__ == "__main__":
    main()
