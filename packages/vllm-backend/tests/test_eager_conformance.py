"""The eager engine keeps every promise of a block, against Transformers on the same checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from engine_runners import TOLERANCE
from nnsight.testing import ProcessConformance, Reference, Subject

if TYPE_CHECKING:
    from hf_reference import HFReference

LAYERS, HIDDEN = 4, 128
SEVERAL_RANKS = True


def add(layer: Any, vector: torch.Tensor) -> None:
    states = layer.output[0]
    states[:] += vector.to(states.device)


def replace(layer: Any, states: torch.Tensor) -> None:
    layer.output = (states, torch.zeros_like(states))


@pytest.fixture(scope="module")
def subject(engine: Any, reference: HFReference) -> Subject:
    def run(prompt: tuple[Any, ...], steps: int, edits: Any) -> Reference:
        ids = engine.tokenizer.encode(prompt[0])
        found = reference.generate(ids, steps, edits)
        return Reference(found.streams, found.tokens)

    return Subject(
        model=engine,
        prompts=[("w1 w2 w3",), ("w9 w8 w7 w6 w5",), ("w100 w200",)],
        lengths=[3, 5, 2],
        layers=[f"model.layers.{index}" for index in range(LAYERS)],
        hidden_size=HIDDEN,
        keywords=lambda steps: {"temperature": 0.0, "max_tokens": steps, "ignore_eos": True},
        stream=sum,
        add=add,
        replace=replace,
        reference=run,
        tokens=lambda result: list(result.outputs[0].token_ids),
        tolerance=TOLERANCE,
    )


class TestEagerConformance(ProcessConformance):
    """vLLM's `LLM`, on each of its model runners."""
