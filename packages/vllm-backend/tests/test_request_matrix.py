"""Whatever an engine does with requests, and however they are asked for, each gives what it gives alone.

Every setting of an engine is crossed with every kind of block; the default run takes settings in which each value of
each part of a setting comes up, `nox -s full` all of them.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from engine_runners import RUNNERS, TOLERANCE
from nnsight.modeling.vllm import VLLM

if TYPE_CHECKING:
    from hf_reference import Generation, HFReference

pytestmark = pytest.mark.slow

HIDDEN, LAYERS, STEPS = 128, 4, 50
# With as many tokens in a step at most, the second prompt of two would be split.
BUDGET = 64
VECTOR = torch.linspace(-1.0, 1.0, HIDDEN)


def words(count: int, first: int) -> str:
    """Return a prompt of so many tokens."""
    return " ".join(f"w{(first + 7 * index) % 400}" for index in range(count))


COMPANION, TARGET = words(50, 1), words(60, 2)
# Sampling that always takes the likeliest token, and that vLLM lets have several sequences.
KEYWORDS: dict[str, Any] = {"temperature": 1.0, "top_k": 1, "max_tokens": STEPS, "ignore_eos": True}


@dataclass(frozen=True)
class Setting:
    """How an engine is built.

    Attributes:
        runner: Name of the model runner.
        asynchronous: Whether requests are streamed.
        cached: Whether it has a prefix cache.
        chunked: Whether it splits prompts.
        tight: Whether its cache holds one of two requests only.
    """

    runner: str
    asynchronous: bool
    cached: bool
    chunked: bool
    tight: bool

    @property
    def name(self) -> str:
        """The setting as the id of a test."""
        parts = {
            "stream": self.asynchronous,
            "cache": self.cached,
            "chunks": self.chunked,
            "tight": self.tight,
        }
        return "-".join([self.runner, *(part for part, chosen in parts.items() if chosen)])


SETTINGS = [Setting(*each) for each in itertools.product(("v1", "v2-async"), *[(False, True)] * 4)]
DEFAULT_SETTINGS = {"v1-stream-cache-chunks-tight", "v2-async-cache-tight"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    chosen = metafunc.config.getoption("--vllm-runner")
    settings = [
        pytest.param(setting, id=setting.name, marks=() if setting.name in DEFAULT_SETTINGS else pytest.mark.full)
        for setting in SETTINGS
        if not chosen or setting.runner in chosen
    ]
    metafunc.parametrize("setting", settings, indirect=True, scope="module")


class Engine:
    """An engine, and the loop that it belongs to where it is asynchronous."""

    def __init__(self, model: Any, setting: Setting) -> None:
        self.model = model
        self.setting = setting
        self._loop = asyncio.new_event_loop() if setting.asynchronous else None

    def finish(self, tracer: Any) -> None:
        """Run what a trace was given."""
        if self._loop is not None:
            self._loop.run_until_complete(_awaited(tracer.backend))

    def generate(self, prompts: list[str], **keywords: Any) -> Any:
        """Run requests without blocks."""
        found = self.model.generate(prompts, **keywords)
        return found if self._loop is None else self._loop.run_until_complete(_awaited(found))

    def num_left(self) -> int:
        """Count the requests that a worker keeps anything of."""
        if self._loop is None:
            reply = self.model.vllm_entrypoint.collective_rpc("nnsight_discard", args=(b"\x90",))[0]
        else:
            calling = self.model.vllm_entrypoint.collective_rpc("nnsight_discard", args=(b"\x90",))
            reply = self._loop.run_until_complete(_awaited(calling))[0]
        return int(reply)

    def close(self) -> None:
        """Shut the engine down."""
        self.model.shutdown()
        if self._loop is not None:
            self._loop.run_until_complete(asyncio.sleep(0))
            self._loop.close()


async def _awaited(work: Any) -> Any:
    return await asyncio.wait_for(work if asyncio.iscoroutine(work) else _wrapped(work), 300)


async def _wrapped(work: Any) -> Any:
    return await work


@pytest.fixture(scope="module")
def setting(request: pytest.FixtureRequest) -> Setting:
    chosen: Setting = request.param
    return chosen


@pytest.fixture(scope="module")
def engine(tiny_qwen3: Path, setting: Setting) -> Iterator[Engine]:
    runner = RUNNERS[setting.runner]
    keywords: dict[str, Any] = {"mode": "async"} if setting.asynchronous else {}
    if setting.chunked:
        keywords |= {"enable_chunked_prefill": True, "max_num_batched_tokens": BUDGET}
    # 13 blocks of 16 tokens for requests: of two that end with 110 and 100 tokens, one does not fit.
    blocks = {"block_size": 16, "num_gpu_blocks_override": 14 if setting.tight else 200}
    with runner.building():
        model = VLLM(
            str(tiny_qwen3),
            dispatch=True,
            dtype="float32",
            max_model_len=128,
            max_num_seqs=8,
            enable_prefix_caching=setting.cached,
            **blocks,
            **keywords,
            **runner.keywords,
        )
    engine = Engine(model, setting)
    try:
        yield engine
    finally:
        engine.close()


@pytest.fixture(scope="module")
def expected(reference: HFReference, engine: Engine) -> dict[str, Generation]:
    """What Transformers generates, as it is and with the vector added at layer 1."""
    ids = engine.model.tokenizer.encode(TARGET)
    edited = {1: lambda states: states + VECTOR}
    return {"plain": reference.generate(ids, STEPS), "edited": reference.generate(ids, STEPS, edited)}


Kind = Callable[[Engine, int, "dict[str, Generation]"], None]


def plain(engine: Engine, n: int, expected: dict[str, Generation]) -> None:
    _, target = engine.generate([COMPANION, TARGET], n=n, **KEYWORDS)
    assert [list(each.token_ids) for each in target.outputs] == [expected["plain"].tokens] * n


def read(engine: Engine, n: int, expected: dict[str, Generation]) -> None:
    model = engine.model
    with model.trace(**KEYWORDS) as tracer:
        with tracer.invoke(COMPANION):
            pass
        with tracer.invoke(TARGET, n=n):
            states = list().save()
            for _ in tracer.iter[:STEPS]:
                for layer in model.model.layers:
                    states.append(sum(layer.output))
    engine.finish(tracer)
    check(engine, tracer, n, expected["plain"])
    for sequence in several(tracer.saves["states"], n):
        for number, found in enumerate(sequence):
            step, layer = divmod(number, LAYERS)
            assert (found - expected["plain"].streams[step][layer]).abs().max() < TOLERANCE


def constant_edit(engine: Engine, n: int, expected: dict[str, Generation]) -> None:
    model = engine.model
    with model.trace(**KEYWORDS) as tracer:
        with tracer.invoke(COMPANION):
            pass
        with tracer.invoke(TARGET, n=n):
            for _ in tracer.iter[:]:
                model.model.layers[1].output[0][:] += VECTOR
    engine.finish(tracer)
    check(engine, tracer, n, expected["edited"])


def free_edit(engine: Engine, n: int, expected: dict[str, Generation]) -> None:
    model = engine.model
    with model.trace(**KEYWORDS) as tracer:
        with tracer.invoke(COMPANION):
            pass
        with tracer.invoke(TARGET, n=n):
            states = list().save()
            for step in tracer.iter[:STEPS]:
                # The same at every step, but not seen to be.
                model.model.layers[1].output[0][:] += VECTOR * float(step >= 0)
                states.append(sum(model.model.layers[3].output))
    engine.finish(tracer)
    check(engine, tracer, n, expected["edited"])
    for sequence in several(tracer.saves["states"], n):
        for step, found in enumerate(sequence):
            assert (found - expected["edited"].streams[step][3]).abs().max() < TOLERANCE


def engine_edit(engine: Engine, n: int, expected: dict[str, Generation]) -> None:
    model = engine.model
    with model.edit(name="add") as (tracer, edit):
        for _ in tracer.iter[:]:
            model.model.layers[1].output[0][:] += VECTOR
    try:
        _, target = engine.generate([COMPANION, TARGET], n=n, **KEYWORDS)
        _, unedited = engine.generate([COMPANION, TARGET], n=n, edits=[], **KEYWORDS)
    finally:
        edit.clear()
    assert [list(each.token_ids) for each in target.outputs] == [expected["edited"].tokens] * n
    assert [list(each.token_ids) for each in unedited.outputs] == [expected["plain"].tokens] * n


def check(engine: Engine, tracer: Any, n: int, expected: Generation) -> None:
    """Check the tokens of the second invoke, and that an engine that is short of cache preempted it."""
    target = tracer.result[1]
    assert [list(each.token_ids) for each in target.outputs] == [expected.tokens] * n
    receipts = several(tracer.receipt[1], n)
    assert all(receipt.steps == STEPS for receipt in receipts)
    if engine.setting.tight:
        assert any(receipt.recomputed for receipt in receipts)
    else:
        assert not any(receipt.recomputed for receipt in receipts)


def several(values: Any, n: int) -> list[Any]:
    """Return what each sequence gave."""
    return [values] if n == 1 else list(values)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("kind", [plain, read, constant_edit, free_edit, engine_edit], ids=lambda kind: kind.__name__)
def test_it_gives_what_it_gives_alone(engine: Engine, kind: Kind, n: int, expected: dict[str, Generation]) -> None:
    # The second time, an engine with a prefix cache has what the first left in it.
    for _ in range(2):
        kind(engine, n, expected)
    plain(engine, 1, expected)
    assert engine.num_left() == 0
