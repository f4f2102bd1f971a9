"""The in-process backend keeps every promise of a block."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from nnsight import NNsight
from nnsight.testing import BackendConformance, LayerOps, Reference, Subject
from tests.conformance.decoder import HIDDEN, LAYERS, Decoder


def stream(output: torch.Tensor) -> torch.Tensor:
    return output


def add(layer: Any, vector: torch.Tensor) -> None:
    layer.output[:] += vector


def replace(layer: Any, states: torch.Tensor) -> None:
    layer.output = states


@pytest.fixture(scope="module")
def subject() -> Subject:
    torch.manual_seed(0)
    network = Decoder()

    def reference(prompt: tuple[Any, ...], steps: int, edits: Any) -> Reference:
        other = copy.deepcopy(network)
        streams: list[list[torch.Tensor]] = []

        def keep(index: int) -> Any:
            def hook(module: torch.nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
                output = edits[index](output) if index in edits else output
                if index == 0:
                    streams.append([])
                streams[-1].append(output.clone())
                return output

            return hook

        for index, layer in enumerate(other.layers):
            layer.register_forward_hook(keep(index))
        return Reference(streams, other.generate(prompt[0], steps))

    return Subject(
        model=NNsight(network),
        prompts=[(torch.tensor(ids),) for ids in ([1, 2, 3], [4, 5, 6, 7, 8], [9, 10])],
        lengths=[3, 5, 2],
        layers=[f"layers.{index}" for index in range(LAYERS)],
        hidden_size=HIDDEN,
        keywords=lambda steps: {"steps": steps, "method": "generate"},
        stream=stream,
        add=add,
        replace=replace,
        ops=LayerOps("own", "own.source.F_linear_0", "self_own_0", ("", "mix_0", "torch_tanh_0")),
        reference=reference,
        tokens=list,
    )


class TestTorchConformance(BackendConformance):
    """In-process, on a small decoder."""
