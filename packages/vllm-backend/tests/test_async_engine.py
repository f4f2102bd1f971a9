"""An asynchronous engine streams its traces, and what was saved rides on the finished outputs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import torch
from vllm import SamplingParams

from engine_runners import TOLERANCE
from event_loop import KEYWORDS, PROMPT, Loop, left_in_the_worker
from nnsight.errors import (
    BudgetExceededError,
    InvalidRequestError,
    MismatchedValueError,
    RequestFailedError,
    UntransferableValueError,
    WireError,
)
from nnsight_vllm._transfer import PREFIX, shared_folder
from nnsight_vllm.compat.runners import STOP_REASON
from own_errors import Enough

if TYPE_CHECKING:
    from hf_reference import HFReference

pytestmark = pytest.mark.slow


def test_saves_ride_on_the_finished_output(streaming: Loop, reference: HFReference) -> None:
    model = streaming.model
    expected = reference.generate(model.tokenizer.encode(PROMPT), 4)

    async def main() -> None:
        with model.trace(PROMPT, max_tokens=4, **KEYWORDS) as tracer:
            states = list().save()
            for _ in tracer.iter[:4]:
                states.append(sum(model.model.layers[2].output))
            logits = model.logits.save()  # noqa: F841 - comes home
        last = await tracer.backend
        assert list(last.outputs[0].token_ids) == expected.tokens
        assert last.finished
        assert sorted(last.saves) == ["logits", "states"]
        for step, found in enumerate(last.saves["states"]):
            assert (found - expected.streams[step][2]).abs().max() < TOLERANCE
        assert last.receipt.steps == 4
        assert tracer.saves["logits"].shape == (1, 512)
        assert tracer.result is last

    streaming.run(main())


def test_the_result_reaches_a_helper_that_asks_for_it(streaming: Loop) -> None:
    model = streaming.model

    def final(tracer: Any) -> Any:
        return tracer.result

    async def main() -> None:
        with model.trace(PROMPT, max_tokens=2, **KEYWORDS) as tracer:
            result = final(tracer).save()  # noqa: F841 - comes home
        last = await tracer.backend
        assert last.saves["result"] is last
        assert await left_in_the_worker(model) == 0

    streaming.run(main())


def test_an_invoke_is_given_what_an_earlier_one_bound(streaming: Loop, reference: HFReference) -> None:
    model = streaming.model
    expected = reference.generate(model.tokenizer.encode(PROMPT), 1)

    async def main() -> None:
        with model.trace(max_tokens=1, **KEYWORDS) as tracer:
            with tracer.invoke(PROMPT):
                states = sum(model.model.layers[2].output)
            with tracer.invoke("w7 w8"):
                gap = (sum(model.model.layers[2].output)[-1] - states[-1]).save()  # noqa: F841 - comes home
            with tracer.invoke(PROMPT):
                same = sum(model.model.layers[2].output).save()  # noqa: F841 - comes home
        outputs = await tracer.backend
        assert [output.invoke for output in outputs] == [0, 1, 2]
        assert outputs[0].saves == {}
        other = reference.generate(model.tokenizer.encode("w7 w8"), 1).streams[0][2][-1]
        assert (outputs[1].saves["gap"] - (other - expected.streams[0][2][-1])).abs().max() < TOLERANCE
        assert (outputs[2].saves["same"] - expected.streams[0][2]).abs().max() < TOLERANCE

    streaming.run(main())


def test_an_invoke_whose_value_failed_to_come_is_not_run(streaming: Loop) -> None:
    model = streaming.model

    async def main() -> None:
        with model.trace(max_tokens=1, **KEYWORDS) as tracer:
            with tracer.invoke(PROMPT):
                states = 1 / int(model.logits is None)
            with tracer.invoke("w7 w8"):
                model.logits.save()
                gap = (2 * states).save()  # noqa: F841 - never bound
        with pytest.raises(ZeroDivisionError) as raised:
            await tracer.backend
        assert any("`states` of invoke 0" in note for note in raised.value.__notes__)
        assert await left_in_the_worker(model) == 0

    streaming.run(main())


def test_outputs_stream_as_they_come(streaming: Loop) -> None:
    model = streaming.model

    async def main() -> None:
        with model.trace(PROMPT, max_tokens=6, **KEYWORDS) as tracer:
            ids = list().save()
            for _ in tracer.iter[:6]:
                ids.append(model.samples.item())
        lengths, last = [], None
        async for output in tracer.backend:
            lengths.append(len(output.outputs[0].token_ids))
            assert hasattr(output, "saves") is output.finished
            last = output
        assert lengths == sorted(lengths)
        assert len(lengths) > 1
        assert last is not None
        assert last.saves["ids"] == list(last.outputs[0].token_ids)
        with pytest.raises(InvalidRequestError, match="once"):
            await tracer.backend

    streaming.run(main())


def test_several_invokes_come_back_as_a_list_in_order(streaming: Loop, reference: HFReference) -> None:
    model = streaming.model
    prompts = ["w1 w2", "w9 w8 w7", "w5"]

    async def main() -> None:
        with model.trace(max_tokens=3, **KEYWORDS) as tracer:
            for prompt in prompts:
                with tracer.invoke(prompt):
                    states = model.model.layers[0].output[0].save()  # noqa: F841 - comes home
                    result = tracer.result.save()  # noqa: F841 - comes home
        outputs = await tracer.backend
        assert [output.saves["states"].shape[0] for output in outputs] == [2, 3, 1]
        assert [output.saves["result"] is output for output in outputs] == [True] * 3
        for prompt, output in zip(prompts, outputs, strict=True):
            expected = reference.generate(model.tokenizer.encode(prompt), 3)
            assert list(output.outputs[0].token_ids) == expected.tokens
        assert len(tracer.saves["states"]) == 3

    streaming.run(main())


def test_many_traces_run_at_once_and_one_that_is_steered_leaves_the_others_alone(
    streaming: Loop, reference: HFReference
) -> None:
    model = streaming.model
    expected = reference.generate(model.tokenizer.encode(PROMPT), 5)
    vector = torch.linspace(-4.0, 4.0, 128)

    async def plain() -> Any:
        return await model.generate(PROMPT, max_tokens=5, **KEYWORDS)

    async def read() -> Any:
        with model.trace(PROMPT, max_tokens=5, **KEYWORDS) as tracer:
            states = model.model.layers[1].output[0].save()  # noqa: F841 - comes home
        return await tracer.backend

    async def steered() -> Any:
        with model.trace(PROMPT, max_tokens=5, **KEYWORDS) as tracer:
            for _ in tracer.iter[:5]:
                states = model.model.layers[1].output[0]
                states[:] += vector.to(states.device)
        return await tracer.backend

    async def main() -> None:
        found = await asyncio.gather(*(work() for _ in range(4) for work in (plain, read, steered)))
        tokens = [list(output.outputs[0].token_ids) for output in found]
        assert all(each == expected.tokens for index, each in enumerate(tokens) if index % 3 != 2)
        assert all(each != expected.tokens for each in tokens[2::3])
        assert await left_in_the_worker(model) == 0

    streaming.run(main())


def test_an_error_is_raised_where_the_stream_is_awaited_and_carries_what_was_saved(streaming: Loop) -> None:
    model = streaming.model

    async def main() -> None:
        with model.trace(PROMPT, max_tokens=4, **KEYWORDS) as tracer:
            kept = model.model.layers[0].output[0].save()  # noqa: F841 - comes home
            model.model.layers[1].output = torch.zeros(1, 1)
        with pytest.raises(MismatchedValueError) as raised:
            await tracer.backend
        assert raised.value.saves["kept"].shape == (3, 128)  # type: ignore[attr-defined]
        assert (await model.generate(PROMPT, max_tokens=1, **KEYWORDS)).finished

    streaming.run(main())


@pytest.mark.parametrize("step", [0, 3])
def test_a_stop_ends_the_stream_with_what_was_sampled(streaming: Loop, reference: HFReference, step: int) -> None:
    model = streaming.model
    expected = reference.generate(model.tokenizer.encode(PROMPT), 6).tokens
    beside = reference.generate(model.tokenizer.encode("w7 w8"), 6).tokens

    async def main() -> None:
        with model.trace(min_tokens=6, max_tokens=6, **KEYWORDS) as tracer:
            with tracer.invoke(PROMPT):
                kept = list().save()
                for now in tracer.iter[:6]:
                    kept.append(model.samples.item())
                    if now == step:
                        tracer.stop()
            with tracer.invoke("w7 w8"):
                for _ in tracer.iter[:6]:
                    model.model.layers[0].output
        stopped, other = await tracer.backend
        assert stopped.saves["kept"] == list(stopped.outputs[0].token_ids) == expected[: step + 1]
        assert (stopped.outputs[0].finish_reason, stopped.outputs[0].stop_reason) == ("length", STOP_REASON)
        assert list(other.outputs[0].token_ids) == beside
        plain = await model.generate(PROMPT, max_tokens=step + 1, **KEYWORDS)
        assert stopped.outputs[0].text == plain.outputs[0].text
        assert await left_in_the_worker(model) == 0

    streaming.run(main())


def test_blocks_that_fail_in_any_way_end_their_own_streams_alone(streaming: Loop, reference: HFReference) -> None:
    model = streaming.model
    expected = reference.generate(model.tokenizer.encode(PROMPT), 8).tokens

    async def beside() -> None:
        with model.trace(PROMPT, max_tokens=8, **KEYWORDS) as tracer:
            logits = model.logits.save()  # noqa: F841 - comes home
        last = await tracer.backend
        assert list(last.outputs[0].token_ids) == expected
        assert last.saves["logits"].shape == (1, 512)

    async def leaving() -> None:
        with model.trace(PROMPT, max_tokens=8, **KEYWORDS) as tracer:
            model.logits
            raise SystemExit("enough")
        with pytest.raises(RequestFailedError, match="SystemExit: enough"):
            await tracer.backend

    async def own() -> None:
        with model.trace(PROMPT, max_tokens=8, **KEYWORDS) as tracer:
            model.logits
            raise Enough("of this")
        with pytest.raises(Enough, match="of this"):
            await tracer.backend

    async def endless() -> None:
        with model.trace(PROMPT, max_tokens=8, **KEYWORDS) as tracer:
            while True:
                pass
        with pytest.raises(BudgetExceededError, match="step budget"):
            await tracer.backend

    async def unsendable() -> None:
        with model.trace(PROMPT, max_tokens=8, **KEYWORDS) as tracer:
            kept = model.logits.save()  # noqa: F841 - comes home on the error
            numbers = (number for number in range(3)).save()  # noqa: F841 - cannot travel
        with pytest.raises(UntransferableValueError, match="numbers") as raised:
            await tracer.backend
        assert raised.value.saves["kept"].shape == (1, 512)  # type: ignore[attr-defined]

    async def unknown() -> None:
        with model.trace(PROMPT, max_tokens=8, **KEYWORDS) as tracer:
            model.samples = 512
        with pytest.raises(MismatchedValueError, match="the token 512"):
            await tracer.backend

    async def main() -> None:
        await asyncio.gather(beside(), leaving(), own(), endless(), unsendable(), unknown(), beside())
        assert await left_in_the_worker(model) == 0

    streaming.run(main())


def test_a_stream_that_is_left_early_ends_its_request(streaming: Loop) -> None:
    model = streaming.model

    def text_of(tracer: Any) -> str:
        return tracer.result.outputs[0].text  # type: ignore[no-any-return]

    async def leave(*, wants_result: bool) -> None:
        with model.trace(PROMPT, max_tokens=100, **KEYWORDS) as tracer:
            states = list().save()
            for _ in tracer.iter[:100]:
                states.append(model.model.layers[0].output[0])
            if wants_result:
                text_of(tracer).save()
        stream = tracer.backend.__aiter__()
        async for output in stream:
            assert not output.finished
            break
        await stream.aclose()

    async def cancelled() -> None:
        with model.trace(PROMPT, max_tokens=100, **KEYWORDS) as tracer:
            for _ in tracer.iter[:100]:
                model.logits
        task = asyncio.ensure_future(_await(tracer.backend))
        # A quiet machine makes all the tokens in 0.2 s.
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def main() -> None:
        await leave(wants_result=False)
        await leave(wants_result=True)
        await cancelled()
        # One more request brings the worker the word that the others are gone.
        await model.generate(PROMPT, max_tokens=2, **KEYWORDS)
        assert await left_in_the_worker(model) == 0
        workers = [worker["process"] for worker in model._engine.workers]
        assert not [path for pid in workers for path in shared_folder().glob(f"{PREFIX}{pid}-*")]

    streaming.run(main())


async def _await(backend: Any) -> Any:
    return await backend


def test_generate_takes_one_prompt_or_a_list(streaming: Loop) -> None:
    model = streaming.model

    async def main() -> None:
        one = await model.generate(PROMPT, max_tokens=3, **KEYWORDS)
        many = await model.generate([PROMPT, [5, 6, 7]], max_tokens=3, **KEYWORDS)
        assert list(many[0].outputs[0].token_ids) == list(one.outputs[0].token_ids)
        assert len(many) == 2

    streaming.run(main())


def test_values_of_many_megabytes_come_home(streaming: Loop) -> None:
    model = streaming.model

    async def main() -> None:
        with model.trace(PROMPT, max_tokens=1, **KEYWORDS) as tracer:
            big = model.model.layers[0].output[0].new_ones(2_000_000).save()  # noqa: F841 - comes home
        last = await tracer.backend
        assert last.saves["big"].sum() == 2_000_000

    streaming.run(main())


VECTOR = torch.linspace(-3.0, 3.0, 128)


def steer(model: Any, name: str) -> Any:
    with model.edit(name=name) as (tracer, edit):
        for _ in tracer.all():
            model.model.layers[1].output[0][:] += VECTOR
    return edit


def test_edits_run_beside_every_request_that_is_made_after_them(streaming: Loop, reference: HFReference) -> None:
    model = streaming.model
    ids = model.tokenizer.encode(PROMPT)
    plain = reference.generate(ids, 4).tokens
    steered = reference.generate(ids, 4, {1: lambda states: states + VECTOR}).tokens

    async def main() -> None:
        edit = steer(model, "calm")
        with model.edit(name="probe"):
            first = int(model.model.layers[0].output[0].shape[0]).save()  # noqa: F841 - comes home
        params = SamplingParams(max_tokens=4, **KEYWORDS)
        # Nothing was awaited since, and the engine's own requests are served all the same.
        async for output in model.vllm_entrypoint.generate(PROMPT, params, "own"):
            last = output
        assert list(last.outputs[0].token_ids) == steered
        one, other = await model.generate([PROMPT, "w9 w8"], max_tokens=4, **KEYWORDS)
        assert list(one.outputs[0].token_ids) == steered
        assert [one.saves, other.saves] == [{"first": 3}, {"first": 2}]
        with model.trace(PROMPT, max_tokens=4, **KEYWORDS) as tracer:
            logits = model.logits.save()  # noqa: F841 - comes home
        last = await tracer.backend
        assert list(last.outputs[0].token_ids) == steered
        assert last.saves.keys() == {"first", "logits"}
        assert tracer.saves.keys() == {"logits"}
        assert tracer.edits["probe"].saves == {"first": 3}
        edit.clear()
        with model.trace(PROMPT, max_tokens=4, edits=[], **KEYWORDS) as tracer:
            model.logits.save()
        last = await tracer.backend
        assert list(last.outputs[0].token_ids) == plain
        assert last.edits == {}
        model.clear_edits()
        last = await model.generate(PROMPT, max_tokens=4, **KEYWORDS)
        assert list(last.outputs[0].token_ids) == plain
        assert await left_in_the_worker(model) == 0
        assert await model.vllm_entrypoint.collective_rpc("nnsight_uninstall", args=(b"\x90",)) == [b"0"]


RANDOM: dict[str, Any] = {"temperature": 1.0, "ignore_eos": True}


@pytest.mark.parametrize("kind", ["CUMULATIVE", "DELTA", "FINAL_ONLY"])
def test_sequences_of_one_request_ride_on_its_finished_output(streaming: Loop, kind: str) -> None:
    from vllm.sampling_params import RequestOutputKind

    model = streaming.model

    async def main() -> None:
        with model.trace(
            PROMPT,
            n=3,
            max_tokens=20,
            seed=5,
            stop_token_ids=list(range(0, 500, 9)),
            logprobs=1,
            output_kind=RequestOutputKind[kind],
            **RANDOM,
        ) as tracer:
            ids = list().save()
            for _ in tracer.all():
                ids.append(model.samples.item())
        pieces: dict[int, list[int]] = {index: [] for index in range(3)}
        last: Any = None
        async for output in tracer.backend:
            last = output
            for completion in output.outputs:
                new = list(completion.token_ids)
                pieces[completion.index] = [*pieces[completion.index], *new] if kind == "DELTA" else new
        assert [completion.index for completion in last.outputs] == [0, 1, 2]
        assert len({len(each) for each in pieces.values()}) > 1
        assert last.saves["ids"] == list(pieces.values())
        assert [completion.saves["ids"] for completion in last.outputs] == last.saves["ids"]
        assert [completion.receipt.steps for completion in last.outputs] == [len(each) for each in pieces.values()]
        assert tracer.receipt == last.receipt == [completion.receipt for completion in last.outputs]
        plain = await model.generate(
            PROMPT, n=3, max_tokens=20, seed=5, stop_token_ids=list(range(0, 500, 9)), **RANDOM
        )
        assert [list(completion.token_ids) for completion in plain.outputs] == last.saves["ids"]
        assert await left_in_the_worker(model) == 0

    streaming.run(main())


def test_edits_come_and_go_beside_requests_that_are_under_way(
    streaming: Loop, reference: HFReference, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = streaming.model
    ids, steps = model.tokenizer.encode(PROMPT), 16
    plain = reference.generate(ids, steps).tokens
    steered = reference.generate(ids, steps, {1: lambda states: states + VECTOR}).tokens

    async def main() -> None:
        params, llm = SamplingParams(max_tokens=steps, **KEYWORDS), model.vllm_entrypoint
        add_request, added = llm.add_request, []

        async def counted(*args: Any, **kwargs: Any) -> Any:
            collector = await add_request(*args, **kwargs)
            added.append(collector)
            return collector

        async def last_of(name: str) -> list[int]:
            async for output in llm.generate(PROMPT, params, name):
                last = output
            return list(last.outputs[0].token_ids)

        monkeypatch.setattr(llm, "add_request", counted)
        # More than the engine runs at once, so that some still wait for their turn when the edit comes and goes.
        rounds: list[list[asyncio.Task[list[int]]]] = []
        for number, change in enumerate((None, lambda: steer(model, "calm"), model.clear_edits)):
            if change is not None:
                change()
                # The change is a change beside the round before, all of whose requests are added and under way.
                assert not all([task.done() for task in rounds[-1]])
            rounds.append([asyncio.create_task(last_of(f"{number}-{index}")) for index in range(40)])
            while len(added) < 40 * (number + 1):
                await asyncio.sleep(0.001)
        found = [await asyncio.gather(*each) for each in rounds]
        assert found == [[plain] * 40, [steered] * 40, [plain] * 40]
        assert await left_in_the_worker(model) == 0
        assert await model.vllm_entrypoint.collective_rpc("nnsight_uninstall", args=(b"\x90",)) == [b"0"]

    streaming.run(main())


def test_an_edit_that_no_worker_can_read_fails_the_request_that_brings_it(streaming: Loop) -> None:
    model = streaming.model
    thing = Loop.__new__(Loop)

    async def main() -> None:
        with model.edit(name="unread"):
            print(thing)
        with pytest.raises(WireError, match="Loop"):
            await model.generate(PROMPT, max_tokens=1, **KEYWORDS)
        assert model.edits == ()
        last = await model.generate(PROMPT, max_tokens=1, **KEYWORDS)
        assert last.finished


def test_sequences_wait_for_the_result_are_handed_on_and_are_ended(streaming: Loop) -> None:
    model = streaming.model

    async def main() -> None:
        with model.trace(max_tokens=2, **RANDOM) as tracer:
            with tracer.invoke(PROMPT, n=3):
                row = model.model.layers[0].output[0][-1]
                whole = tracer.result.save()  # noqa: F841 - comes home
            with tracer.invoke("w7 w8"):
                count = len(row).save()  # noqa: F841 - comes home
        first, second = await tracer.backend
        assert all(each is first for each in first.saves["whole"])
        assert [len(each.token_ids) for each in first.outputs] == [2, 2, 2]
        assert second.saves == {"count": 3}
        with model.trace(PROMPT, n=3, max_tokens=100, **RANDOM) as tracer:
            for _ in tracer.all():
                model.logits
        stream = tracer.backend.__aiter__()
        async for _ in stream:
            # vLLM's own name of one sequence, which ends before the others.
            (name,) = [each for each in model.vllm_entrypoint.output_processor.request_states if each.startswith("1_")]
            await model.vllm_entrypoint.abort(name, internal=True)
            break
        async for output in stream:
            last = output
        assert [completion.finish_reason for completion in last.outputs] == ["length", "abort", "length"]
        assert [completion.receipt.steps < 100 for completion in last.outputs] == [False, True, False]
        with model.trace(PROMPT, n=3, max_tokens=100, **RANDOM) as tracer:
            for _ in tracer.all():
                model.logits
        stream = tracer.backend.__aiter__()
        async for _ in stream:
            break
        await stream.aclose()
        await model.generate(PROMPT, max_tokens=2, **KEYWORDS)
        assert await left_in_the_worker(model) == 0
        assert not model._engine.mailbox._expected

    streaming.run(main())
