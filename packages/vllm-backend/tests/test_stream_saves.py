"""Saves come home while their block goes on, where a trace asks for it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch

from engine_runners import TOLERANCE
from event_loop import KEYWORDS, PROMPT, Loop, left_in_the_worker
from nnsight.errors import InvalidRequestError, UnsupportedFeatureError
from nnsight_vllm._transfer import LARGE_BYTES, PREFIX, shared_folder

if TYPE_CHECKING:
    from hf_reference import HFReference

pytestmark = pytest.mark.slow

STEPS = 6


def test_what_is_saved_rides_on_the_outputs_of_its_steps_and_all_of_it_on_the_last(
    streaming: Loop, reference: HFReference
) -> None:
    model = streaming.model
    expected = reference.generate(model.tokenizer.encode(PROMPT), STEPS)

    async def main() -> None:
        with model.trace(PROMPT, max_tokens=STEPS, stream_saves=True, **KEYWORDS) as tracer:
            import time

            ids, total = list().save(), torch.zeros(()).save()
            by_step = {}.save()
            for step in tracer.iter[:STEPS]:
                last = sum(model.model.layers[2].output)[-1].save()
                total += 1
                ids.append(model.samples.item())
                by_step[step] = last.sum()
                time.sleep(0.02)
        heard: dict[str, list[Any]] = {}
        finished = None
        async for output in tracer.backend:
            if output.finished:
                finished = output
            for name, value in {} if output.finished else output.saves.items():
                heard.setdefault(name, []).append(value)
        assert finished is not None
        assert finished.saves["ids"] == list(finished.outputs[0].token_ids) == expected.tokens
        assert finished.saves["total"] == STEPS
        assert sorted(finished.saves["by_step"]) == list(range(STEPS))
        # The outputs before had the same, a part at a time, as it was then.
        streamed = [each for part in heard["ids"] for each in part]
        assert len(streamed) > 1
        assert streamed == expected.tokens[: len(streamed)]
        assert len(heard["ids"]) > 1
        steps = [step for part in heard["by_step"] for step in part]
        assert steps == list(range(len(steps)))
        assert [int(value) for value in heard["total"]] == sorted({int(value) for value in heard["total"]})
        for value in heard["last"]:
            assert any(torch.allclose(value, of_step[2][-1], atol=TOLERANCE) for of_step in expected.streams)
        assert await left_in_the_worker(model) == 0

    streaming.run(main())


def test_invokes_stream_their_own_saves_and_only_where_they_ask(streaming: Loop) -> None:
    model = streaming.model

    async def main() -> None:
        with model.trace(max_tokens=STEPS, **KEYWORDS) as tracer:
            for streams in (True, False):
                with tracer.invoke(PROMPT, stream_saves=streams):
                    import time

                    steps = list().save()
                    for step in tracer.iter[:STEPS]:
                        model.logits
                        steps.append(step)
                        time.sleep(0.02)
        seen: list[int] = []
        async for output in tracer.backend:
            if output.finished:
                assert output.saves["steps"] == list(range(STEPS))
            elif output.invoke:
                assert not hasattr(output, "saves")
            else:
                seen += output.saves.get("steps", [])
        assert seen
        assert seen == list(range(len(seen)))

    streaming.run(main())


def test_an_error_ends_the_stream_after_what_was_saved_before_it(streaming: Loop) -> None:
    model = streaming.model

    async def main() -> None:
        with model.trace(PROMPT, max_tokens=STEPS, stream_saves=True, **KEYWORDS) as tracer:
            import time

            kept = list().save()
            for step in tracer.iter[:STEPS]:
                model.logits
                kept.append(step)
                kept.append(object)
                time.sleep(0.02)
                assert step < 3, "enough"
        with pytest.raises(AssertionError, match="enough") as raised:
            await tracer.backend
        assert raised.value.saves["kept"][::2] == [0, 1, 2, 3]  # type: ignore[attr-defined]

    streaming.run(main())


def test_a_stream_that_is_left_early_leaves_no_large_value_behind(streaming: Loop) -> None:
    model = streaming.model
    rows = LARGE_BYTES // 512

    async def main() -> None:
        with model.trace(PROMPT, max_tokens=100, stream_saves=True, **KEYWORDS) as tracer:
            states = list().save()
            for _ in tracer.iter[:100]:
                states.append(model.model.layers[0].output[0][-1:].repeat(2 * rows, 1))
        outputs = tracer.backend.__aiter__()
        async for output in outputs:
            if output.saves:
                assert output.saves["states"][0].shape == (2 * rows, 128)
                break
        await outputs.aclose()
        await model.generate(PROMPT, max_tokens=2, **KEYWORDS)
        assert await left_in_the_worker(model) == 0
        workers = [worker["process"] for worker in model._engine.workers]
        deadline = time.monotonic() + 10
        while left := [path for pid in workers for path in shared_folder().glob(f"{PREFIX}{pid}-*")]:
            # A thread of the worker may be writing one still, which goes when its message gets here.
            assert time.monotonic() < deadline, left
            await asyncio.sleep(0.05)

    streaming.run(main())


def test_an_engine_without_streams_refuses_to_stream_saves(engine: Any) -> None:
    with pytest.raises(UnsupportedFeatureError, match="mode='async'"):
        engine.trace(PROMPT, stream_saves=True, max_tokens=1)
    with pytest.raises(InvalidRequestError, match="stream_saves=3"):
        engine.trace(PROMPT, stream_saves=3, max_tokens=1)
    with engine.trace(PROMPT, stream_saves=False, max_tokens=1):
        logits = engine.logits.save()
    assert logits.shape[0] == 1
