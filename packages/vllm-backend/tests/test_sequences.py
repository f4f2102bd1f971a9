"""A request of several sequences runs its block beside each, and each brings its own values home."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from engine_runners import TOLERANCE
from nnsight.errors import ConflictingChangesWarning, LoopEndedEarlyWarning, UnsupportedFeatureError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hf_reference import HFReference

pytestmark = pytest.mark.slow

PROMPT, OTHER = "w1 w2 w3 w4 w5", "w7 w8"
RANDOM: dict[str, Any] = {"temperature": 1.0, "ignore_eos": True}


@pytest.fixture(autouse=True)
def _nothing_is_left_behind(engine: Any) -> Iterator[None]:
    yield
    # One more request brings the worker the word that others are gone.
    engine.generate(PROMPT, max_tokens=1)
    assert set(engine.vllm_entrypoint.collective_rpc("nnsight_discard", args=(b"\x90",))) == {b"0"}
    assert not engine._engine.mailbox._expected


@pytest.mark.parametrize("seed", [None, 7])
def test_each_sequence_brings_its_own_values_home(engine: Any, reference: HFReference, seed: int | None) -> None:
    with engine.trace(PROMPT, n=3, max_tokens=4, seed=seed, **RANDOM) as tracer:
        ids, states = list().save(), list().save()
        for _ in tracer.iter[:4]:
            states.append(sum(engine.model.layers[2].output)[-1])
            ids.append(engine.samples.item())
        engine.lm_head.weight.shape[0].save()
    result = tracer.result
    tokens = [list(completion.token_ids) for completion in result.outputs]
    assert ids == tokens
    assert len({tuple(each) for each in tokens}) == 3
    for index, completion in enumerate(result.outputs):
        assert completion.saves["ids"] == tokens[index]
        assert completion.receipt.visits["samples"] == 4
        prompt = [*engine.tokenizer.encode(PROMPT), *tokens[index][:3]]
        expected = reference.generate(prompt, 1).streams[0][2][-4:]
        assert (torch.stack(states[index]) - expected).abs().max() < TOLERANCE
    assert result.saves["ids"] == tracer.saves["ids"] == tokens
    assert tracer.saves["engine.lm_head.weight.shape[0]"] == [512] * 3
    assert tracer.receipt == result.receipt == [completion.receipt for completion in result.outputs]


def test_sequences_of_several_invokes_come_home_as_a_list_of_each(engine: Any) -> None:
    with engine.trace(max_tokens=1, **RANDOM) as tracer:
        with tracer.invoke(PROMPT, n=2):
            rows = engine.model.layers[0].output[0].shape[0].save()
            both = engine.samples.item().save()
        with tracer.invoke(OTHER):
            rows = engine.model.layers[0].output[0].shape[0].save()
        with tracer.invoke(OTHER, n=3):
            rows = engine.model.layers[0].output[0].shape[0].save()
    assert rows == [[5, 5], 2, [2, 2, 2]]
    assert both == [completion.token_ids[0] for completion in tracer.result[0].outputs]
    assert [isinstance(receipt, list) for receipt in tracer.receipt] == [True, False, True]


def test_every_sequence_is_handed_the_whole_finished_output(engine: Any) -> None:
    with engine.trace(PROMPT, n=3, max_tokens=2, **RANDOM) as tracer:
        large = engine.model.layers[0].output[0].repeat(1000, 1).save()
        whole = tracer.result.save()
        count = len(whole.outputs).save()
    assert count == [3] * 3
    assert all(each is tracer.result for each in whole)
    assert [tuple(each.shape) for each in large] == [(5000, 128)] * 3


def test_an_error_of_one_sequence_is_its_own(engine: Any) -> None:
    # vLLM gives each sequence of a seeded request the seed of its own: seed + index.
    seeded = {"seed": 7, "max_tokens": 2, **RANDOM}
    firsts = [each.token_ids[0] for each in engine.generate(PROMPT, n=3, **seeded).outputs]
    assert firsts.count(firsts[1]) == 1
    unlucky = firsts[1]
    with pytest.raises(ValueError, match="unlucky") as raised, engine.trace(PROMPT, n=3, **seeded) as tracer:
        first = engine.samples.item().save()
        if first == unlucky:
            raise ValueError("unlucky")
        after = "ran".save()
    assert first == firsts
    assert raised.value.saves["after"] == after == ["ran", "ran"]  # type: ignore[attr-defined]
    assert any("sequence 1" in note and "2 ran well" in note for note in raised.value.__notes__)
    assert [len(each.token_ids) for each in tracer.result.outputs] == [2, 1, 2]


def test_a_sequence_that_its_block_stops_ends_alone(engine: Any) -> None:
    seeded = {"seed": 7, "max_tokens": 5, **RANDOM}
    firsts = [each.token_ids[0] for each in engine.generate(PROMPT, n=3, **seeded).outputs]
    chosen = firsts[2]
    with engine.trace(PROMPT, n=3, **seeded) as tracer:
        first = engine.samples.item().save()
        if first == chosen:
            tracer.stop()
    assert first == firsts
    assert [len(each.token_ids) for each in tracer.result.outputs] == [1 if each == chosen else 5 for each in firsts]


def test_an_edit_reaches_every_sequence(engine: Any) -> None:
    with engine.trace(PROMPT, n=3, max_tokens=2, **RANDOM) as tracer:
        for _ in tracer.iter[:2]:
            engine.logits[0, 77] = 1e4
    assert [list(each.token_ids) for each in tracer.result.outputs] == [[77, 77]] * 3


def test_a_later_invoke_is_handed_the_values_of_all_sequences(engine: Any, greedy: Callable[[int], Any]) -> None:
    with engine.trace(**greedy(1)) as tracer:
        with tracer.invoke(PROMPT, n=3, temperature=1.0, seed=3):
            row = engine.model.layers[0].output[0][-1]
            token = engine.samples.item()
        with tracer.invoke(OTHER):
            engine.model.layers[0].output[0][-1] = torch.stack(row).mean(0)
            handed = token.save()
            patched = engine.model.layers[0].output[0][-1].save()
    assert handed == [each.token_ids[0] for each in tracer.result[0].outputs]
    assert patched.shape == (128,)


def test_a_container_saved_outside_collects_from_every_sequence(engine: Any) -> None:
    with engine.trace(max_tokens=1, **RANDOM) as tracer:
        tokens = list().save()
        with tracer.invoke(PROMPT, n=3):
            tokens.append(engine.samples.item())
        with tracer.invoke(OTHER):
            tokens.append(engine.samples.item())
    assert tokens == [each.token_ids[0] for result in tracer.result for each in result.outputs]


def test_an_assignment_that_sequences_make_to_one_place_is_warned_about(engine: Any) -> None:
    with pytest.warns(ConflictingChangesWarning, match="3 blocks assigned found"):
        with engine.trace(max_tokens=1, **RANDOM) as tracer:
            found = dict().save()
            with tracer.invoke(PROMPT, n=3):
                found["row"] = engine.model.layers[0].output[0][-1]
    assert found["row"].shape == (128,)


def test_a_loop_that_outruns_a_sequence_is_warned_about(engine: Any) -> None:
    with pytest.warns(LoopEndedEarlyWarning), engine.trace(PROMPT, n=2, max_tokens=2, **RANDOM) as tracer:
        for _ in tracer.iter[:3]:
            last = engine.samples.item().save()
    assert last == [each.token_ids[-1] for each in tracer.result.outputs]


def test_sequences_that_a_stop_string_ends_bring_their_values_home(engine: Any) -> None:
    words = [f"w{index}" for index in range(0, 509, 4)]
    with engine.trace(PROMPT, n=4, seed=5, max_tokens=20, stop=words, **RANDOM) as tracer:
        count = 0
        for _ in tracer.all():
            engine.samples
            count += 1
        count.save()
    lengths = [len(each.token_ids) for each in tracer.result.outputs]
    assert len(set(lengths)) > 1
    assert {each.finish_reason for each in tracer.result.outputs} == {"stop"}
    # The frontend sees the word when the engine may have gone on.
    assert all(length <= seen <= 20 for seen, length in zip(count, lengths, strict=True))


def test_more_sequences_than_the_engine_runs_at_once_take_turns(engine: Any) -> None:
    with engine.trace(PROMPT, n=40, max_tokens=1, **RANDOM) as tracer:
        token = engine.samples.item().save()
    assert token == [each.token_ids[0] for each in tracer.result.outputs]


@pytest.mark.parametrize(
    ("keyword", "value", "words"),
    [
        ("use_beam_search", True, "beam search"),
        ("beam_width", 4, "beam search"),
        ("best_of", 3, "cumulative_logprob"),
        ("pooling_params", object(), "pooling"),
    ],
)
def test_other_ways_of_decoding_are_refused_by_name(engine: Any, keyword: str, value: object, words: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match=words):
        engine.trace(PROMPT, **{keyword: value})
