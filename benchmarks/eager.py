"""The eager engine against plain vLLM in eager mode on the same model runner.

    python -m benchmarks.eager MODEL [--rounds 12] [--prompt 512] [--new 128] [--json FILE] [--dummy] ...

Ratios are our speed as a share of plain vLLM's, each by the faster quarter of its rounds: hosts were seen to run at
half their speed for a second or ten, which hits one workload or the other. Two plain engines run, so that their ratio
tells what the machine alone makes of a ratio of 1.

Costs are what a step of a traced request takes longer than a step of an untraced one on the same engine, and what each
visit adds to it; what a request costs once is left out by comparing long generations with short ones.

`--thread-time` measures the costs by the CPU time of the one thread that does everything then: the engine runs in this
process. What other programs do on the machine counts little, where by the clock on the wall it hides an empty trace.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.engines import add_engine_options, engine_keywords
from benchmarks.pairing import Interval, interval, measure_turns, quartile_ratio
from benchmarks.report import Report
from benchmarks.workloads import Workloads


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--json", type=Path)
    add_engine_options(parser, max_model_len=2048)
    parser.add_argument("--only", default="", help="only ratios whose name contains this; several with commas")
    parser.add_argument("--skip-ratios", action="store_true", help="only the costs per step and visit")
    parser.add_argument("--skip-costs", action="store_true", help="only the ratios to plain vLLM")
    parser.add_argument("--thread-time", action="store_true", help="only the costs, in CPU time of one thread")
    options = parser.parse_args()
    if options.thread_time:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

    keywords = engine_keywords(options, enable_prefix_caching=False, max_num_seqs=64)
    from nnsight.modeling.vllm import VLLM

    with VLLM(options.model, dispatch=True, **keywords) as model:
        settings = {setting.name: setting.value for setting in model.settings}
        report = Report(f"eager engine, {settings['model runner']} model runner", options.json)
        vocabulary = min(model.model.embed_tokens.org_vocab_size, 128000) - 1
        long, short = (
            Workloads(model, prompt_tokens=options.prompt, new_tokens=count, vocabulary=vocabulary)
            for count in (options.new, max(1, options.new // 8))
        )
        if not options.skip_ratios and not options.thread_time:
            plain_llms = [_plain_engine(options.model, keywords) for _ in range(2)]
            _ratios(report, long, plain_llms, options)
        if not options.skip_costs:
            _costs(report, long, short, options)


def _plain_engine(repo: str, keywords: dict[str, Any]) -> Any:
    """Build plain vLLM in eager mode; the environment chose its runner as it chose ours."""
    from vllm import LLM

    return LLM(repo, enforce_eager=True, **keywords)


def _ratios(report: Report, workloads: Workloads, plain_llms: Sequence[Any], options: argparse.Namespace) -> None:
    """Compare speeds; all workloads take turns in every round, so that slow minutes of the machine hit all alike."""
    work, layers = workloads, len(workloads.model.model.layers)
    alone = {
        "nothing traced": (work.untraced, ">= 0.99"),
        "empty trace": (work.empty, ">= 0.97"),
        "read one layer every step": (work.read_middle, ">= 0.93"),
        "read every layer every step": (work.read(layers), ">= 0.75"),
        "add a vector at one layer every step": (work.steer, ""),
        "override the sampled id every step": (work.override, ""),
    }
    together = {"8 at once, read one layer every step": (work.read_middle_concurrently(8), ">= 0.90")}
    for count, rows in ((1, alone), (8, together)):
        chosen = {name: row for name, row in rows.items() if any(part in name for part in options.only.split(","))}
        if not chosen:
            continue
        plain = [work.plain(llm, count) for llm in plain_llms]
        first, second, *others = measure_turns([*plain, *(workload for workload, _ in chosen.values())], options.rounds)
        rate = interval([count * work.new_tokens / seconds for seconds in (*first, *second)])
        report.add(f"plain vLLM eager, {count} at once", rate, "tok/s")
        report.add("one plain engine to the other", quartile_ratio(first, second), "of plain")
        for (name, (_, target)), seconds in zip(chosen.items(), others, strict=True):
            report.add(name, quartile_ratio([*first, *second], seconds), "of plain", target)


def _costs(report: Report, long: Workloads, short: Workloads, options: argparse.Namespace) -> None:
    """Measure what a traced step and a visit cost, in microseconds."""
    layers = len(long.model.model.layers)
    things = [
        thing
        for workloads in (short, long)
        for thing in (
            workloads.untraced,
            workloads.empty,
            workloads.look_at(1),
            workloads.look_at(layers),
            workloads.read(layers),
        )
    ]
    seconds = measure_turns(things, options.rounds, time.thread_time if options.thread_time else time.perf_counter)
    steps = long.new_tokens - short.new_tokens
    # Microseconds that a step takes, one per round.
    half = len(seconds) // 2
    untraced, empty, one, every, kept = (
        [(after - before) / steps * 1e6 for before, after in zip(seconds[index], seconds[index + half], strict=True)]
        for index in range(half)
    )
    report.add("an untraced step", interval(untraced), "us")
    report.add("empty trace, per step", _difference(untraced, empty), "us", "<= 60")
    report.add("read one layer, per step", _difference(untraced, one), "us")
    report.add(f"a read, per visit ({layers} layers)", _difference(one, every, layers - 1), "us", "<= 40")
    report.add("keeping what is read, per visit", _difference(every, kept, layers), "us")


def _difference(base: list[float], other: list[float], parts: int = 1) -> Interval:
    return interval([(two - one) / parts for one, two in zip(base, other, strict=True)])


if __name__ == "__main__":
    main()
