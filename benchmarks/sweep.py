"""A sweep in one trace against plain vLLM: what each prompt costs over generating for it.

    python -m benchmarks.sweep MODEL [--prompts 1024] [--prompt 1] [--rounds 7] [--thread-time] [--profile] ...

Every invoke keeps one row of one layer of a prompt of one token, so what is measured is what a request costs by itself:
capturing its block, sending it, starting it, and bringing home what it saved. Plain vLLM generates for prompts of the
same kind on the same engine. An edit does the same beside requests that are no traces. With longer prompts, what counts
is how many times as long a sweep takes.

`--thread-time` measures the CPU time of the one thread that does everything then, the caller's part and the worker's:
the engine runs in this process. What other programs do on the machine counts little. `--profile` prints where it goes.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.engines import add_engine_options, engine_keywords
from benchmarks.pairing import interval, measure_turns, quartile_ratio
from benchmarks.report import Report

# What is aimed at, in microseconds over plain vLLM with prompts of one token, and in times plain vLLM with others.
_OVER = {"one row each": "<= 200", "one row each, by an edit": "<= 100"}
_TIMES = {"one row each": "<= 1.35"}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--prompts", type=int, default=1024)
    parser.add_argument("--prompt", type=int, default=1, help="tokens of each prompt")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    add_engine_options(parser, max_model_len=128)
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--thread-time", action="store_true", help="CPU time of one thread, the engine's part in it")
    parser.add_argument("--profile", action="store_true", help="print where the CPU time of one sweep goes")
    options = parser.parse_args()
    if options.profile or options.thread_time:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

    keywords = engine_keywords(options, max_num_seqs=options.max_num_seqs)
    from nnsight.modeling.vllm import VLLM

    with VLLM(options.model, dispatch=True, **keywords) as model:
        sweep = Sweep(model, options.prompts, options.prompt)
        if options.profile:
            _profile(sweep.read_one_row)
            return
        settings = {setting.name: setting.value for setting in model.settings}
        title = f"sweep of {options.prompts} prompts of {options.prompt} tokens, {settings['model runner']}"
        report = Report(title, options.json)
        things: dict[str, Callable[[int], object]] = {
            "plain": sweep.plain,
            "empty blocks": sweep.empty,
            "one row each": sweep.read_one_row,
            "one row each, appended to one list": sweep.append_one_row,
            "one row each, a number of its own": sweep.scale_one_row,
            "one row each, by an edit": sweep.edit,
        }
        clock = time.thread_time if options.thread_time else time.perf_counter
        plain, *traced = measure_turns(list(things.values()), options.rounds, clock)
        per_prompt = 1e6 / options.prompts
        report.add("plain vLLM, per prompt", interval([seconds * per_prompt for seconds in plain]), "us")
        report.add("plain vLLM", interval(plain), "s")
        for name, seconds in zip(list(things)[1:], traced, strict=True):
            over = [(other - base) * per_prompt for base, other in zip(plain, seconds, strict=True)]
            report.add(f"{name}, over plain", interval(over), "us", _OVER.get(name, "") if options.prompt == 1 else "")
            times = quartile_ratio(seconds, plain)
            report.add(name, times, "times plain", _TIMES.get(name, "") if options.prompt > 1 else "")


class Sweep:
    """Prompts of one kind, plain and traced."""

    def __init__(self, model: Any, count: int, length: int = 1) -> None:
        """Prepare so many prompts of so many tokens each."""
        self._model = model
        self._count = count
        self._length = length
        self._generator = random.Random(0)
        self._layer = model.model.layers[len(model.model.layers) // 2]
        self._vocabulary = min(len(model.tokenizer), 128000)

    def prompts(self) -> list[list[int]]:
        """Return prompts that were never asked before, since the prefix cache favours whoever repeats one."""
        words = range(3, self._vocabulary)
        return [self._generator.choices(words, k=self._length) for _ in range(self._count)]

    def plain(self, _: int) -> None:
        """Generate without a block."""
        from vllm import SamplingParams

        prompts = [{"prompt_token_ids": prompt} for prompt in self.prompts()]
        outputs = self._model.vllm_entrypoint.generate(prompts, SamplingParams(max_tokens=1), use_tqdm=False)
        assert len(outputs) == self._count

    def empty(self, _: int) -> None:
        """Run blocks that ask for nothing."""
        with self._model.trace(max_tokens=1) as tracer:
            for prompt in self.prompts():
                with tracer.invoke(prompt):
                    pass
        assert len(tracer.receipt) == self._count

    def read_one_row(self, _: int) -> None:
        """Save one row of every prompt."""
        layer = self._layer
        with self._model.trace(max_tokens=1) as tracer:
            for prompt in self.prompts():
                with tracer.invoke(prompt):
                    row = layer.output[0][-1].save()
        assert len(row) == self._count

    def append_one_row(self, _: int) -> None:
        """Append one row of every prompt to a list that stands above."""
        layer = self._layer
        with self._model.trace(max_tokens=1) as tracer:
            rows = list().save()
            for prompt in self.prompts():
                with tracer.invoke(prompt):
                    rows.append(layer.output[0][-1])
        assert len(rows) == self._count

    def scale_one_row(self, _: int) -> None:
        """Save one row of every prompt, each times a number of its own."""
        layer = self._layer
        with self._model.trace(max_tokens=1) as tracer:
            for scale, prompt in enumerate(self.prompts()):
                with tracer.invoke(prompt):
                    row = (layer.output[0][-1] * scale).save()
        assert len(row) == self._count

    def edit(self, _: int) -> None:
        """Save one row of every prompt by an edit, installed before and removed after."""
        layer = self._layer
        with self._model.edit(name="sweep"):
            row = layer.output[0][-1].save()  # noqa: F841
        outputs = self._model.generate(self.prompts(), max_tokens=1)
        self._model.clear_edits()
        assert all(output.saves["row"].ndim == 1 for output in outputs)


def _profile(sweep: Callable[[int], object]) -> None:
    sweep(0)
    profile = cProfile.Profile()
    profile.enable()
    sweep(1)
    profile.disable()
    stats = pstats.Stats(profile)
    stats.sort_stats("cumulative").print_stats(70)
    stats.sort_stats("tottime").print_stats(50)


if __name__ == "__main__":
    main()
