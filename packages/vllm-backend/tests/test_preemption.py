"""Requests that are preempted, and computed again later, give what they give when nothing disturbs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from engine_runners import TOLERANCE, EngineRunner

pytestmark = pytest.mark.slow

STEPS = 40
PROMPTS = ("w1 w2 w3", "w9 w8 w7 w6 w5")
KEYWORDS = {"temperature": 0.0, "max_tokens": STEPS, "ignore_eos": True}


@pytest.fixture(scope="module")
def tight(tiny_qwen3: Path, runner: EngineRunner) -> Iterator[Any]:
    """An engine whose cache holds one request of `STEPS` tokens, but not two."""
    from nnsight.modeling.vllm import VLLM

    with runner.building():
        cache = {"block_size": 16, "num_gpu_blocks_override": 6}
        keywords = {"dtype": "float32", "max_model_len": 64, "max_num_seqs": 4, **cache, **runner.keywords}
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
    vector = torch.full((128,), 0.5)
    for step in tracer.iter[:STEPS]:
        if step in (0, 3, 20):
            # A change that the block makes by the number of the step, in several parts of a value.
            output = model.model.layers[1].output
            output[0][-1] += vector * (step + 1)
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
            model.model.layers[2].resid_post[:] += vector
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
