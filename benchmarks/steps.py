"""What a visit costs inside the engine, from steps that lie beside each other.

    python -m benchmarks.steps MODEL [--rounds 7] [--new 128] [--requests 1] [--json FILE] [--dummy] ...

In two steps of a request a block visits layers, in the next two it does nothing, and so on. Steps with visits are
compared with those just before them, so that what the machine does meanwhile hits both: that tells a visit of some
microseconds from the noise of a step that takes thousands, which runs of whole requests do not. The clock is read in
the block, where the model runs, and counts until the next step begins there. The first of two steps with visits is told
apart from the second, since values may be read ahead where a block read them in the step before.

A neighbour's wait is how much longer a step takes that it shares with a request that keeps the outputs of every layer.
What a step with visits costs once is in the figures too, shared by the layers: 32 of them tell more than 4.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.engines import add_engine_options, engine_keywords
from benchmarks.pairing import interval
from benchmarks.report import Report
from benchmarks.workloads import Workloads

Marks = list[list[float]]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--prompt", type=int, default=16)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--requests", type=int, default=1, help="how many are in the batch, each with such a block")
    parser.add_argument("--json", type=Path)
    add_engine_options(parser, max_model_len=2048)
    options = parser.parse_args()

    keywords = engine_keywords(options, max_num_seqs=64)
    from nnsight.modeling.vllm import VLLM

    with VLLM(options.model, dispatch=True, **keywords) as model:
        settings = {setting.name: setting.value for setting in model.settings}
        requests = options.requests
        report = Report(f"visits in the engine, {settings['model runner']}, {requests} request(s)", options.json)
        vocabulary = min(model.model.embed_tokens.org_vocab_size, 128000) - 1
        work = Workloads(model, prompt_tokens=options.prompt, new_tokens=options.new, vocabulary=vocabulary)
        visits = len(model.model.layers) * requests
        for name, alternate in _ALTERNATIONS.items():
            alternate(work, requests, 0)
            marks = [each for number in range(1, options.rounds + 1) for each in alternate(work, requests, number)]
            resting, *working = _durations(marks)
            if name == "a read":
                report.add("a step without visits", interval([each * 1e6 for each in resting]), "us")
            for which, seconds in zip(("first step", "next step"), working, strict=True):
                more = [(after - before) / visits * 1e6 for before, after in zip(resting, seconds, strict=True)]
                target = _AIMS.get(name, "") if which == "next step" else ""
                report.add(f"{name}, per visit, {which}", interval(more), "us", target)


def _durations(marks: Marks) -> tuple[list[float], list[float], list[float]]:
    """Return the seconds of each last step without visits, and of the two with visits that follow it.

    Args:
        marks: When each step of a request began, by request. Step 0 is the prompt.
    """
    found: tuple[list[float], list[float], list[float]] = ([], [], [])
    for begun in marks:
        for step in range(5, len(begun) - 3, 4):
            for number, seconds in enumerate(found):
                seconds.append(begun[step + number + 1] - begun[step + number])
    return found


# The three share their loops by shape alone: a helper that the block calls would be part of what is measured.


def _read(work: Workloads, requests: int, number: int) -> Marks:
    """Read every layer in two of four steps, and keep nothing."""
    layers, steps = list(work.model.model.layers), work.new_tokens
    with work.model.trace(**work.keywords) as tracer:
        marks = [[] for _ in range(requests)].save()  # type: ignore[attr-defined]
        for index in range(requests):
            with tracer.invoke(work.prompt(number * 1000 + index)):
                for step in tracer.iter[:steps]:
                    marks[index].append(time.perf_counter())
                    if step % 4 > 1:
                        for layer in layers:
                            layer.output[0]
    return marks[:1]


def _keep(work: Workloads, requests: int, number: int, *, neighbours: int = 0) -> Marks:
    """Read every layer in two of four steps, and keep all of it, beside neighbours that share each step."""
    layers, steps = list(work.model.model.layers), work.new_tokens
    with work.model.trace(**work.keywords) as tracer:
        marks = [[] for _ in range(requests)].save()  # type: ignore[attr-defined]
        kept = [[] for _ in range(requests)].save()  # type: ignore[attr-defined]
        for index in range(neighbours):
            with tracer.invoke(work.prompt(number * 1000 + requests + index)):
                pass
        for index in range(requests):
            with tracer.invoke(work.prompt(number * 1000 + index)):
                for step in tracer.iter[:steps]:
                    marks[index].append(time.perf_counter())
                    if step % 4 > 1:
                        for layer in layers:
                            kept[index].append(layer.output[0])
    assert len(kept[0]) == steps // 4 * 2 * len(layers)
    return marks[:1]


def _edit(work: Workloads, requests: int, number: int) -> Marks:
    """Change every layer in two of four steps."""
    layers, steps = list(work.model.model.layers), work.new_tokens
    with work.model.trace(**work.keywords) as tracer:
        marks = [[] for _ in range(requests)].save()  # type: ignore[attr-defined]
        for index in range(requests):
            with tracer.invoke(work.prompt(number * 1000 + index)):
                for step in tracer.iter[:steps]:
                    marks[index].append(time.perf_counter())
                    if step % 4 > 1:
                        for layer in layers:
                            layer.output[0][:] += 0.01
    return marks[:1]


_ALTERNATIONS: dict[str, Callable[[Workloads, int, int], Marks]] = {
    "a read": _read,
    "a read that is kept": _keep,
    "an edit in place": _edit,
    "a neighbour's wait": partial(_keep, neighbours=1),
}
# What is aimed at in a step after one with the same visits.
_AIMS = {"a read": "<= 40", "a neighbour's wait": "<= 20"}


if __name__ == "__main__":
    main()
