"""Which event loop an asynchronous engine's requests share, what its end leaves, and who is told of a shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nnsight.errors import EngineError, InvalidRequestError
from nnsight.modeling.vllm import VLLM
from tiny_models import make_tiny_model

pytestmark = pytest.mark.slow

PROMPT = "w1 w2 w3"
GREEDY: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}
LONG: dict[str, Any] = {**GREEDY, "max_tokens": 2000}
AT_ONCE = 30.0


@contextlib.contextmanager
def engine(checkpoint: Path, mode: str) -> Iterator[Any]:
    model: Any = VLLM(str(checkpoint), mode=mode, dispatch=True, dtype="float32", max_model_len=2048)
    try:
        yield model
    finally:
        model.shutdown()


@pytest.fixture(scope="module")
def long_qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose requests last."""
    return make_tiny_model(tmp_path_factory.mktemp("long"), max_position_embeddings=2048)


def opened(model: Any) -> Any:
    """A long trace that nobody has awaited yet."""
    with model.trace(PROMPT, **LONG) as tracer:
        tokens = [].save()
        for _ in tracer.iter[:]:
            tokens.append(model.samples.item())
    return tracer.backend


async def drain(stream: Any) -> Any:
    return await stream


async def short(model: Any) -> int:
    with model.trace(PROMPT, max_tokens=3, **GREEDY) as tracer:
        tokens = [].save()
        for _ in tracer.iter[:3]:
            tokens.append(model.samples.item())
    return len((await tracer.backend).saves["tokens"])


def within(seconds: float, main: Any) -> Any:
    """Run a coroutine in an event loop of its own, which has to end in time."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(asyncio.run(main)), daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "the event loop did not end"
    return found[0]


def test_loops_follow_each_other_and_a_shutdown_ends_what_runs(long_qwen3: Path) -> None:
    with engine(long_qwen3, "async") as model:

        async def leaving() -> list[asyncio.Task[Any]]:
            tasks = [asyncio.ensure_future(drain(opened(model))) for _ in range(2)]
            tasks.append(asyncio.ensure_future(model.generate(PROMPT, **LONG)))
            await asyncio.sleep(0.5)
            assert not any(task.done() for task in tasks)
            return tasks

        # A loop that ends under its streams ends them, and the next one has the engine as ever.
        assert all(task.cancelled() for task in within(AT_ONCE, leaving()))
        assert within(AT_ONCE, short(model)) == 3

        async def unfinished() -> int:
            (left, *_) = await model.vllm_entrypoint.collective_rpc("nnsight_discard", args=(b"\x90",))
            return int(left)

        async def two() -> tuple[int, int]:
            return await short(model), await unfinished()

        assert within(AT_ONCE, two()) == (3, 0)

        async def crowded() -> None:
            running = asyncio.ensure_future(drain(opened(model)))
            await asyncio.sleep(0.5)
            with pytest.raises(InvalidRequestError, match="in another event loop"):
                await asyncio.to_thread(asyncio.run, short(model))
            assert not running.done()
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            assert await short(model) == 3

        within(AT_ONCE, crowded())

        async def shut() -> list[Any]:
            tasks = [asyncio.ensure_future(drain(opened(model))), asyncio.ensure_future(model.generate(PROMPT, **LONG))]
            await asyncio.sleep(0.5)
            model.shutdown()
            return await asyncio.gather(*tasks, return_exceptions=True)

        for error in within(AT_ONCE, shut()):
            assert isinstance(error, EngineError)
            assert "was shut down" in str(error)


@pytest.mark.parametrize("traced", [True, False])
def test_a_shutdown_from_another_thread_is_no_end_of_a_request(long_qwen3: Path, traced: bool) -> None:
    with engine(long_qwen3, "sync") as model:
        raised: list[BaseException] = []

        def run() -> None:
            try:
                if traced:
                    opened(model)
                else:
                    model.generate(PROMPT, **LONG)
            except BaseException as error:  # noqa: BLE001 - looked at below
                raised.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        time.sleep(1.0)
        model.shutdown()
        thread.join(AT_ONCE)
        assert not thread.is_alive()
        assert [type(error) for error in raised] == [EngineError]
        assert "was shut down" in str(raised[0])
