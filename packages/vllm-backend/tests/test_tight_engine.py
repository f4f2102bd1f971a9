"""An engine that is short of cache, and of room in a step: prompts are split, and requests preempted.

Whatever happens to a request, it gives what it gives when nothing disturbs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from engine_runners import TOLERANCE, EngineRunner
from nnsight import hookimpl
from nnsight.errors import InvalidRequestError, PluginAnswerError, UnsupportedFeatureError
from nnsight.events import PrefillPolicy, PromptFacts
from nnsight.plugins import plugin_manager

if TYPE_CHECKING:
    from hf_reference import HFReference

pytestmark = pytest.mark.slow

STEPS = 40
HIDDEN = 128
BUDGET = 96


def words(count: int, first: int) -> str:
    """Return a prompt of so many tokens."""
    return " ".join(f"w{(first + 7 * index) % 400}" for index in range(count))


PROMPTS = (words(80, 1), words(80, 2))
LONG = words(110, 3)
VECTOR = torch.full((128,), 0.5)
KEYWORDS = {"temperature": 0.0, "max_tokens": STEPS, "ignore_eos": True}
SHORT = {"temperature": 0.0, "max_tokens": 3, "ignore_eos": True}


@pytest.fixture(scope="module")
def tight(tiny_qwen3: Path, runner: EngineRunner) -> Iterator[Any]:
    """An engine whose cache holds one request of 120 tokens, but not two, and that computes `BUDGET` in a step."""
    from nnsight.modeling.vllm import VLLM

    with runner.building():
        cache = {"block_size": 16, "num_gpu_blocks_override": 14}
        steps = {"enable_chunked_prefill": True, "max_num_batched_tokens": BUDGET, "max_num_seqs": 4}
        keywords = {"dtype": "float32", "max_model_len": 128, **cache, **steps, **runner.keywords}
        model = VLLM(str(tiny_qwen3), dispatch=True, **keywords)
    with model:
        yield model


def run(model: Any, prompts: tuple[str, ...], block: Callable[[Any, Any], Any]) -> tuple[list[Any], list[Any], Any]:
    """Run one block beside each prompt; return what it returned, the tokens, and the receipts."""
    with model.trace(**KEYWORDS) as tracer:
        for prompt in prompts:
            with tracer.invoke(prompt):
                found = block(model, tracer)
                values = found.save()
                results = tracer.result.save()
    several = len(prompts) > 1
    values, results = (values, results) if several else ([values], [results])
    return values, [list(result.outputs[0].token_ids) for result in results], tracer.receipt


def read(model: Any, tracer: Any) -> Any:
    states = list()
    for _ in tracer.iter[:STEPS]:
        states.append([sum(model.model.layers[1].output)[-1], sum(model.model.layers[3].output)[-1]])
    return states


def steer(model: Any, tracer: Any) -> Any:
    states = list()
    for step in tracer.iter[:STEPS]:
        if step in (0, 3, 20):
            # A change that the block makes by the number of the step, in several parts of a value.
            output = model.model.layers[1].output
            output[0][-1] += VECTOR * (step + 1)
            output[1][:] *= 0.5
        if step == 5:
            model.model.layers[2].mlp.output = torch.zeros_like(model.model.layers[2].mlp.output)
        if step == 7:
            model.model.layers[2].mlp.skip(torch.full((1, 128), 0.25))
        if step == 9:
            model.model.layers[2].mlp.input[:] += 1.0
        if step == 11:
            model.model.layers[2].source.self_mlp_0.output[:] -= 0.5
        if step == 13:
            model.model.layers[2].resid_post[:] += VECTOR
        states.append(sum(model.model.layers[3].output)[-1])
        if step == 15:
            model.logits[0, 23] = 1000.0
        if step == 17:
            model.samples = 17
    return states


@pytest.mark.parametrize("block", [read, steer], ids=["reads", "edits"])
def test_a_preempted_request_gives_what_it_gives_alone(tight: Any, block: Callable[[Any, Any], Any]) -> None:
    alone = [run(tight, (prompt,), block) for prompt in PROMPTS]
    assert all(receipt.recomputed == 0 for _, _, (receipt,) in alone)
    values, tokens, receipts = run(tight, PROMPTS, block)
    assert any(receipt.recomputed > 0 for receipt in receipts)
    assert not any(receipt.warnings for receipt in receipts)
    for index, (expected, ids, (receipt,)) in enumerate(alone):
        assert tokens[index] == ids[0]
        assert receipts[index].visits == receipt.visits
        assert receipts[index].edits == receipt.edits
        assert receipts[index].steps == receipt.steps == STEPS
        assert len(values[index]) == STEPS
        for one, other in zip(values[index], expected[0], strict=True):
            for mine, its in zip(*([one], [other]) if isinstance(one, torch.Tensor) else (one, other), strict=True):
                assert (mine - its).abs().max() < TOLERANCE


# Prompts in several parts ---------------------------------------------------------------------------------------------


def test_a_block_that_reads_sees_the_whole_of_a_prompt_that_is_split(tight: Any, reference: HFReference) -> None:
    model = tight
    expected = reference.generate(model.tokenizer.encode(LONG), 3)
    with model.trace(LONG, **SHORT) as tracer:
        states, inputs = list().save(), list().save()
        for _ in tracer.iter[:3]:
            for layer in model.model.layers:
                inputs.append(layer.input)
                states.append(sum(layer.output))
        logits = model.logits.save()
        result = tracer.result.save()
    assert list(result.outputs[0].token_ids) == expected.tokens
    assert [len(each) for each in states] == [110] * 4 + [1] * 8
    for number, found in enumerate(states):
        assert (found - expected.streams[number // 4][number % 4]).abs().max() < TOLERANCE
    assert inputs[0].shape == (110,)
    assert logits.shape == (1, 512)
    assert tracer.receipt.visits["model.layers.3.output"] == 3


def test_a_change_of_every_row_lands_once_in_each_part_of_a_prompt(tight: Any, reference: HFReference) -> None:
    model = tight
    vector = torch.linspace(-1.0, 1.0, HIDDEN)
    expected = reference.generate(model.tokenizer.encode(LONG), 3, {1: lambda states: states + vector})
    with model.trace(LONG, **SHORT) as tracer:
        for _ in tracer.iter[:]:
            model.model.layers[1].output[0][:] += vector
    assert list(tracer.result.outputs[0].token_ids) == expected.tokens
    assert tracer.receipt.steps == 3


def test_logprobs_of_a_prompt_that_is_split_are_those_that_the_block_left(tight: Any) -> None:
    model = tight
    keywords = {**SHORT, "prompt_logprobs": 1}

    def logprobs(output: Any) -> torch.Tensor:
        ids = output.prompt_token_ids
        return torch.tensor([each[ids[index]].logprob for index, each in enumerate(output.prompt_logprobs) if each])

    plain = logprobs(model.generate(LONG, **keywords))
    assert plain.shape == (109,)
    with model.trace(LONG, **keywords) as tracer:
        states = model.model.layers[1].output[0].save()
    assert states.shape == (110, HIDDEN)
    assert torch.allclose(logprobs(tracer.result), plain, atol=1e-4)
    with model.trace(LONG, **keywords) as tracer:
        for _ in tracer.iter[:]:
            model.model.layers[1].output[0][:] += VECTOR
    steered = logprobs(tracer.result)
    with model.edit():
        for _ in tracer.all():
            model.model.layers[1].output[0][:] += VECTOR
    by_edit = logprobs(model.generate(LONG, **keywords))
    model.clear_edits()
    assert torch.allclose(steered, by_edit, atol=1e-4)
    assert ((steered - plain).abs() > 1e-3).all()
    assert torch.allclose(logprobs(model.generate(LONG, **keywords)), plain, atol=1e-4)


def test_a_prompt_that_must_be_whole_and_fits_no_step_is_refused(tight: Any) -> None:
    model = tight
    with (
        pytest.raises(InvalidRequestError, match=f"110 tokens .* {BUDGET} .*max_num_batched_tokens"),
        model.trace(LONG, **SHORT),
    ):
        model.model.layers[1].output[0][-1] += 1.0
    with model.trace(LONG, **SHORT):
        first = model.model.layers[1].output[0].save()
    assert first.shape == (110, HIDDEN)


def test_prompts_that_must_be_whole_are_whole_beside_others_that_are_split(tight: Any, reference: HFReference) -> None:
    model = tight
    prompts = [words(40, 5), words(BUDGET, 6), words(60, 7), words(70, 8)]
    expected = [reference.generate(model.tokenizer.encode(prompt), 6) for prompt in prompts]
    with model.trace(temperature=0.0, max_tokens=6, ignore_eos=True) as tracer:
        for number, prompt in enumerate(prompts):
            with tracer.invoke(prompt):
                found = list().save()
                for step in tracer.iter[:6]:
                    layer = model.model.layers[2 if number % 2 else 3]
                    output = layer.output
                    # Not known beforehand to change nothing, so the prompt has to be whole.
                    output[0][-1] += 0.0 * step
                    found.append(sum(output))
                results = tracer.result.save()
    for number, (result, states) in enumerate(zip(results, found, strict=True)):
        assert list(result.outputs[0].token_ids) == expected[number].tokens
        for step, state in enumerate(states):
            assert (state - expected[number].streams[step][2 if number % 2 else 3]).abs().max() < TOLERANCE


def test_room_is_made_for_a_whole_prompt_beside_running_requests(tight: Any, reference: HFReference) -> None:
    model = tight
    prompts = [words(3, 9), words(BUDGET, 10)]
    expected = [reference.generate(model.tokenizer.encode(prompt), 8) for prompt in prompts]
    with model.trace(temperature=0.0, max_tokens=8, ignore_eos=True) as tracer:
        for prompt in prompts:
            with tracer.invoke(prompt):
                states = model.model.layers[1].output[0]
                states[-1] *= 1.0
                length = len(states).save()
                results = tracer.result.save()
    assert length == [3, BUDGET]
    assert [list(result.outputs[0].token_ids) for result in results] == [each.tokens for each in expected]


# A plugin that decides otherwise --------------------------------------------------------------------------------------


class Decider:
    """Answers for all prompts alike, and remembers what it was asked."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[PromptFacts] = []

    @hookimpl
    def resolve_prefill_policy(self, facts: PromptFacts) -> Any:
        self.asked.append(facts)
        return self.answer


@pytest.fixture
def decided(request: pytest.FixtureRequest) -> Iterator[Decider]:
    plugin = Decider(request.param)
    plugin_manager().register(plugin)
    yield plugin
    plugin_manager().unregister(plugin)


@pytest.mark.parametrize("decided", [None], indirect=True, ids=["leaves it to others"])
def test_a_plugin_is_asked_once_for_equal_facts(tight: Any, decided: Decider) -> None:
    model = tight
    with model.trace(**SHORT) as tracer:
        for prompt in (words(40, 5), words(40, 6), words(50, 7)):
            with tracer.invoke(prompt):
                model.model.layers[0].output[0].save()
        with tracer.invoke(words(40, 8)):
            model.model.layers[0].output[0][-1] += 1.0
    facts = {"step_budget": BUDGET, "splits_prompts": True}
    reads = {**facts, "read_only": True, "follows_pieces": True}
    changes = {**facts, "read_only": False, "follows_pieces": False}
    assert decided.asked == [PromptFacts(40, **reads), PromptFacts(50, **reads), PromptFacts(40, **changes)]


@pytest.mark.parametrize("decided", [PrefillPolicy("refused", "long prompts run at night")], indirect=True)
def test_a_prompt_that_a_plugin_refuses_is_refused_with_its_reason(tight: Any, decided: Decider) -> None:
    model = tight
    with pytest.raises(InvalidRequestError, match="long prompts run at night"), model.trace(words(40, 5), **SHORT):
        model.model.layers[0].output[0].save()
    with model.edit():
        model.model.layers[0].output[0].save()
    with pytest.raises(InvalidRequestError, match="long prompts run at night"):
        model.generate(words(40, 5), **SHORT)
    model.clear_edits()
    # Without a block there is nothing to decide.
    assert len(model.generate(LONG, **SHORT).outputs[0].token_ids) == 3
    assert len(decided.asked) == 2


@pytest.mark.parametrize("decided", [PrefillPolicy("split", "room for others first")], indirect=True)
def test_a_prompt_that_a_plugin_splits_is_an_error_of_a_block_that_cannot_follow(tight: Any, decided: Decider) -> None:
    model = tight
    with pytest.raises(UnsupportedFeatureError, match="split over several steps"), model.trace(LONG, **SHORT):
        model.model.layers[0].output[0][-1] += 1.0
    with model.trace(LONG, **SHORT):
        first = model.model.layers[1].output[0].save()
    assert first.shape == (110, HIDDEN)
    assert len(decided.asked) == 2


@pytest.mark.parametrize("decided", ["refused"], indirect=True)
def test_a_prompt_is_not_run_on_an_answer_that_is_no_policy(tight: Any, decided: Decider) -> None:
    model = tight
    with pytest.raises(PluginAnswerError, match="'refused', which is no PrefillPolicy"), model.trace(LONG, **SHORT):
        model.model.layers[0].output[0].save()
    assert len(decided.asked) == 1
    assert len(model.generate(LONG, **SHORT).outputs[0].token_ids) == 3
