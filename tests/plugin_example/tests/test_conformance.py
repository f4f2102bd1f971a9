"""The backend keeps every promise of a block, against the same network without a cache, a batch or another process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from nnsight.testing import LayerOps, ProcessConformance, Reference, Subject
from nnsight_example_backend.network import HIDDEN, LAYERS, Span, build_network

SEED = 3


def stream(output: torch.Tensor) -> torch.Tensor:
    return output


def add(layer: Any, vector: torch.Tensor) -> None:
    layer.output[:] += vector


def replace(layer: Any, states: torch.Tensor) -> None:
    layer.output = states


def reference(prompt: tuple[Any, ...], steps: int, edits: Mapping[int, Any]) -> Reference:
    """Generate by computing the whole sequence anew at every step."""
    network = build_network(SEED)
    found: list[torch.Tensor] = []

    def keep(index: int) -> Any:
        def hook(module: torch.nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
            output = edits[index](output) if index in edits else output
            found.append(output)
            return output

        return hook

    for index, layer in enumerate(network.layers):
        layer.register_forward_hook(keep(index))
    ids, streams, tokens = list(prompt[0]), [], []
    for step in range(steps):
        found.clear()
        network.enter([Span(0, len(ids))])
        with torch.no_grad():
            logits = network(torch.tensor(ids), torch.arange(len(ids)))
        streams.append([states if step == 0 else states[-1:] for states in found])
        tokens.append(int(logits[-1].argmax()))
        ids.append(tokens[-1])
    return Reference(streams, tokens)


@pytest.fixture(scope="module")
def subject(model: Any) -> Subject:
    return Subject(
        model=model,
        prompts=[([1, 2, 3],), ([4, 5, 6, 7, 8],), ([9, 10],)],
        lengths=[3, 5, 2],
        layers=[f"layers.{index}" for index in range(LAYERS)],
        hidden_size=HIDDEN,
        keywords=lambda steps: {"steps": steps},
        stream=stream,
        add=add,
        replace=replace,
        ops=LayerOps(child="mlp", inner="mlp.up", call="self_mlp_0", nested=("mlp", "activate_0", "torch_tanh_0")),
        reference=reference,
        tokens=lambda result: result.tokens,
        standard_names=False,
    )


class TestConformance(ProcessConformance):
    """The whole suite, and what holds besides where blocks run in another process."""
