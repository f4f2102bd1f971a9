"""Many callers of one engine at once, for minutes: every answer is right, and nothing is left behind.

`nox -s soak` runs it for half an hour; `--soak-seconds` says for how long.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import torch

from engine_runners import TOLERANCE, EngineRunner
from nnsight.modeling.vllm import VLLM
from nnsight_vllm._transfer import PREFIX, shared_folder

if TYPE_CHECKING:
    from hf_reference import Generation, HFReference

pytestmark = pytest.mark.slow

DEFAULT_RUNNERS = ("v1",)
NUM_CLIENTS, LONGEST = 16, 24
HIDDEN, LAYERS = 128, 4
VECTOR = torch.linspace(-1.0, 1.0, HIDDEN)
# An edit is installed, and most requests run without it.
KEYWORDS: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True, "edits": []}
PROMPTS = [
    " ".join(f"w{(start + 3 * index) % 400}" for index in range(count))
    for start, count in ((1, 3), (2, 17), (3, 32), (5, 33), (1, 64), (7, 40))
]


@pytest.fixture(scope="module")
def model(tiny_qwen3: Path, runner: EngineRunner) -> Iterator[Any]:
    """An asynchronous engine whose cache holds a few of the callers' requests."""
    with runner.building():
        model = VLLM(
            str(tiny_qwen3),
            mode="async",
            dispatch=True,
            dtype="float32",
            max_model_len=128,
            max_num_seqs=16,
            block_size=16,
            num_gpu_blocks_override=30,
            enable_chunked_prefill=True,
            max_num_batched_tokens=96,
            **runner.keywords,
        )
    yield model
    model.shutdown()


class Callers:
    """What the callers do, and what they should get."""

    def __init__(self, model: Any, plain: list[Generation], edited: list[Generation]) -> None:
        self.model = model
        self.plain = plain
        self.edited = edited
        self.counts: Counter[str] = Counter()
        self.recomputed = 0

    async def call(self, number: int, deadline: float) -> None:
        """Make one request after the other until the deadline."""
        choose = random.Random(number)
        kinds: list[Callable[[random.Random, int, int], Coroutine[Any, Any, None]]] = [
            self.generate,
            self.generate_edited,
            self.read,
            self.add,
            self.add_freely,
            self.fail,
            self.stop,
            self.leave,
            self.cancel,
            self.several,
        ]
        while time.monotonic() < deadline:
            kind = choose.choice(kinds)
            await kind(choose, choose.randrange(len(PROMPTS)), choose.choice((2, 8, LONGEST)))
            self.counts[kind.__name__] += 1

    async def generate(self, choose: random.Random, which: int, steps: int) -> None:
        output = await self.model.generate(PROMPTS[which], max_tokens=steps, **KEYWORDS)
        assert list(output.outputs[0].token_ids) == self.plain[which].tokens[:steps]

    async def generate_edited(self, choose: random.Random, which: int, steps: int) -> None:
        keywords = {**KEYWORDS, "edits": choose.choice((["add"], None)), "max_tokens": steps}
        output = await self.model.generate(PROMPTS[which], **keywords)
        assert list(output.outputs[0].token_ids) == self.edited[which].tokens[:steps]

    async def read(self, choose: random.Random, which: int, steps: int) -> None:
        model = self.model
        with model.trace(PROMPTS[which], max_tokens=steps, **KEYWORDS) as tracer:
            states = list().save()
            for _ in tracer.iter[:steps]:
                for layer in model.model.layers:
                    states.append(sum(layer.output))
        last = await tracer.backend
        assert list(last.outputs[0].token_ids) == self.plain[which].tokens[:steps]
        assert len(last.saves["states"]) == steps * LAYERS
        for number, found in enumerate(last.saves["states"]):
            step, layer = divmod(number, LAYERS)
            assert (found - self.plain[which].streams[step][layer]).abs().max() < TOLERANCE
        self.recomputed += last.receipt.recomputed

    async def add(self, choose: random.Random, which: int, steps: int) -> None:
        model = self.model
        with model.trace(PROMPTS[which], max_tokens=steps, **KEYWORDS) as tracer:
            for _ in tracer.iter[:]:
                model.model.layers[1].output[0][:] += VECTOR
        last = await tracer.backend
        assert list(last.outputs[0].token_ids) == self.edited[which].tokens[:steps]

    async def add_freely(self, choose: random.Random, which: int, steps: int) -> None:
        model = self.model
        with model.trace(PROMPTS[which], max_tokens=steps, **KEYWORDS) as tracer:
            for step in tracer.iter[:steps]:
                model.model.layers[1].output[0][:] += VECTOR * float(step >= 0)
                states = sum(model.model.layers[2].output).save()  # noqa: F841 - comes home
        last = await tracer.backend
        assert list(last.outputs[0].token_ids) == self.edited[which].tokens[:steps]
        assert (last.saves["states"] - self.edited[which].streams[steps - 1][2]).abs().max() < TOLERANCE
        self.recomputed += last.receipt.recomputed

    async def fail(self, choose: random.Random, which: int, steps: int) -> None:
        model = self.model
        with model.trace(PROMPTS[which], max_tokens=steps, **KEYWORDS) as tracer:
            for step in tracer.iter[:]:
                before = model.model.layers[0].output[0].save()  # noqa: F841 - comes home
                1 / (1 - step)
        with pytest.raises(ZeroDivisionError) as raised:
            await tracer.backend
        assert len(raised.value.saves["before"]) == 1  # type: ignore[attr-defined]

    async def stop(self, choose: random.Random, which: int, steps: int) -> None:
        model = self.model
        with model.trace(PROMPTS[which], max_tokens=steps, **KEYWORDS) as tracer:
            for step in tracer.iter[:]:
                token = model.samples.save()  # noqa: F841 - comes home
                if step == 1:
                    tracer.stop()
        last = await tracer.backend
        assert list(last.outputs[0].token_ids) == self.plain[which].tokens[:2]

    async def leave(self, choose: random.Random, which: int, steps: int) -> None:
        model = self.model
        with model.trace(PROMPTS[which], max_tokens=steps, **KEYWORDS) as tracer:
            states = list().save()
            for _ in tracer.iter[:]:
                states.append(model.model.layers[3].output[0])
        stream = tracer.backend.__aiter__()
        async for _ in stream:
            break
        await stream.aclose()

    async def cancel(self, choose: random.Random, which: int, steps: int) -> None:
        model = self.model
        with model.trace(PROMPTS[which], max_tokens=steps, **KEYWORDS) as tracer:
            for _ in tracer.iter[:]:
                model.logits[0, 0] -= 1.0

        async def wait() -> Any:
            return await tracer.backend

        task = asyncio.ensure_future(wait())
        await asyncio.sleep(choose.random() * 0.2)
        task.cancel()
        await asyncio.wait([task])

    async def several(self, choose: random.Random, which: int, steps: int) -> None:
        model = self.model
        keywords = {"temperature": 1.0, "top_k": 1, "ignore_eos": True, "n": 2, "max_tokens": steps, "edits": []}
        with model.trace(PROMPTS[which], **keywords) as tracer:
            for _ in tracer.iter[:]:
                state = sum(model.model.layers[3].output)[-1].save()  # noqa: F841 - comes home
        last = await tracer.backend
        for completion in last.outputs:
            assert list(completion.token_ids) == self.plain[which].tokens[:steps]
            expected = self.plain[which].streams[steps - 1][3][-1]
            assert (completion.saves["state"] - expected).abs().max() < TOLERANCE


def test_every_answer_is_right_and_nothing_is_left(
    model: Any, reference: HFReference, pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = float(pytestconfig.getoption("--soak-seconds"))
    ids = [model.tokenizer.encode(prompt) for prompt in PROMPTS]
    plain = [reference.generate(each, LONGEST) for each in ids]
    edited = [reference.generate(each, LONGEST, {1: lambda states: states + VECTOR}) for each in ids]
    with model.edit(name="add") as (tracer, _):
        for _ in tracer.iter[:]:
            model.model.layers[1].output[0][:] += VECTOR
    callers = Callers(model, plain, edited)
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]

    async def run(seconds: float) -> None:
        deadline = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            for number in range(NUM_CLIENTS):
                group.create_task(callers.call(number, deadline))

    async def main() -> tuple[list[int], list[int], int]:
        await run(seconds / 4)
        before = [process.memory_info().rss for process in processes]
        await run(3 * seconds / 4)
        after = [process.memory_info().rss for process in processes]
        # One more request brings the worker the word that the others are gone.
        await model.generate(PROMPTS[0], max_tokens=2, **KEYWORDS)
        (left, *_) = await model.vllm_entrypoint.collective_rpc("nnsight_discard", args=(b"\x90",))
        return before, after, int(left)

    before, after, left = asyncio.run(main())
    workers = [worker["process"] for worker in model._engine.workers]
    files = [path for pid in workers for path in shared_folder().glob(f"{PREFIX}{pid}-*")]
    growth = [
        f"{(later - first) / 2**20:+.1f} of {first / 2**20:.0f} MiB" for first, later in zip(before, after, strict=True)
    ]
    with capsys.disabled():
        print(
            f"\n{seconds:.0f} s, {callers.counts.total()} requests {dict(callers.counts)}, "
            f"{callers.recomputed} rows computed again; memory of each process: {', '.join(growth)}"
        )
    assert left == 0
    assert files == []
    assert callers.recomputed > 0
    assert all(later < first * 1.05 + 16 * 2**20 for first, later in zip(before, after, strict=True)), growth
