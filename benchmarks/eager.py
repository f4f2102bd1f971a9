"""The eager engine against plain vLLM in eager mode on the same model runner.

    python -m benchmarks.eager MODEL [--rounds 7] [--prompt 512] [--new 128] [--json FILE] [--dummy] ...

Ratios are our speed as a share of plain vLLM's. Costs per step and per visit are what a traced request takes longer
than an untraced one on the same engine, per token, and the slope over the number of layers that are read.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks.pairing import Interval, Pair, interval, measure_pair, slope
from benchmarks.report import Report
from benchmarks.workloads import Workload, Workloads


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--dummy", action="store_true", help="random weights: speed is real, text is not")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--memory", type=float, default=0.35, help="share of the device's memory for each engine")
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--only", default="", help="only ratios whose name contains this; several with commas")
    parser.add_argument("--skip-ratios", action="store_true", help="only the costs per step and visit")
    parser.add_argument("--skip-costs", action="store_true", help="only the ratios to plain vLLM")
    options = parser.parse_args()

    keywords: dict[str, Any] = {
        "dtype": options.dtype,
        "max_model_len": options.max_model_len,
        "gpu_memory_utilization": options.memory,
        "enable_prefix_caching": False,
        "max_num_seqs": 64,
    }
    if options.dummy:
        keywords["load_format"] = "dummy"
    from nnsight.modeling.vllm import VLLM

    with VLLM(options.model, dispatch=True, **keywords) as model:
        settings = {setting.name: setting.value for setting in model.settings}
        report = Report(f"eager engine, {settings['model runner']} model runner", options.json)
        vocabulary = min(model.model.embed_tokens.org_vocab_size, 128000) - 1
        workloads = Workloads(model, prompt_tokens=options.prompt, new_tokens=options.new, vocabulary=vocabulary)
        if not options.skip_ratios:
            _ratios(report, workloads, _plain_engine(options.model, keywords), options)
        if not options.skip_costs:
            _costs(report, workloads, options.rounds)


def _plain_engine(repo: str, keywords: dict[str, Any]) -> Any:
    """Build plain vLLM in eager mode; the environment chose its runner as it chose ours."""
    from vllm import LLM

    return LLM(repo, enforce_eager=True, **keywords)


def _ratios(report: Report, workloads: Workloads, plain_llm: Any, options: argparse.Namespace) -> None:
    rounds, wanted = options.rounds, options.only.split(",")
    plain = workloads.plain(plain_llm)
    rows: list[tuple[str, Workload, str]] = [
        ("nothing traced", workloads.untraced, ">= 0.99"),
        ("empty trace", workloads.empty, ">= 0.97"),
        ("read one layer every step", workloads.read_middle, ">= 0.93"),
        ("read every layer every step", workloads.read(len(workloads.model.model.layers)), ">= 0.75"),
        ("add a vector at one layer every step", workloads.steer, ""),
        ("override the sampled id every step", workloads.override, ""),
    ]
    for name, workload, target in rows:
        if not any(part in name for part in wanted):
            continue
        pair = measure_pair(plain, workload, rounds)
        report.add(name, pair.speed_ratio(), "of plain", target)
        if name == "nothing traced":
            report.add("plain vLLM eager", _rate(pair, workloads.new_tokens), "tok/s")
    name = "8 at once, read one layer every step"
    if not any(part in name for part in wanted):
        return
    eight = measure_pair(workloads.plain(plain_llm, 8), workloads.read_middle_concurrently(8), max(3, rounds // 2))
    report.add(name, eight.speed_ratio(), "of plain")


def _rate(pair: Pair, tokens: int) -> Interval:
    return interval([tokens / seconds for seconds in pair.base])


def _costs(report: Report, workloads: Workloads, rounds: int) -> None:
    """Measure what a traced step and a visit cost, in microseconds."""
    steps = workloads.new_tokens
    pair = measure_pair(workloads.untraced, workloads.empty, rounds)
    per_step = [difference / steps * 1e6 for difference in _differences(pair)]
    report.add("empty trace, per step", interval(per_step), "us", "<= 60")
    count = len(workloads.model.model.layers)
    few, many = max(1, count // 4), count
    points = measure_pair(workloads.read(few), workloads.read(many), rounds)
    slopes = [
        slope([(few * steps, one), (many * steps, other)]) * 1e6
        for one, other in zip(points.base, points.other, strict=True)
    ]
    report.add(f"a read with its copy, per visit ({few} to {many} layers)", interval(slopes), "us", "<= 40")


def _differences(pair: Pair) -> list[float]:
    return [other - base for base, other in zip(pair.base, pair.other, strict=True)]


if __name__ == "__main__":
    main()
