"""The in-process backend keeps every promise of a block."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace as replaced
from typing import TYPE_CHECKING, Any

import pytest
import torch

import nnsight
from nnsight import NNsight
from nnsight._trace.shipping import Template, TemplateReader, write_programs
from nnsight.backends import decode_outcome, encode_outcome
from nnsight.families import ModelFamily, StandardValue, find_family
from nnsight.plugins import plugin_manager
from nnsight.testing import BackendConformance, LayerOps, Reference, Subject
from tests.conformance.decoder import HIDDEN, LAYERS, Decoder

if TYPE_CHECKING:
    from nnsight.backends import Outcome, Request
    from nnsight.events import RootModule


def stream(output: torch.Tensor) -> torch.Tensor:
    return output


def add(layer: Any, vector: torch.Tensor) -> None:
    layer.output[:] += vector


def replace(layer: Any, states: torch.Tensor) -> None:
    layer.output = states


FAMILY = ModelFamily(
    package="tests",
    classes=("Decoder",),
    layers="layers",
    embed="embed",
    final_norm="head",
    unembed="head",
    values={"resid_pre": StandardValue("", "input"), "resid_post": StandardValue("", "output")},
)


class DecoderPlugin:
    """Knows where the decoder has the standard names."""

    @nnsight.hookimpl
    def resolve_standard_names(self, root: RootModule) -> ModelFamily | None:
        return find_family([FAMILY], root.module)


@pytest.fixture(scope="module")
def decoder_plugin() -> Iterator[None]:
    plugin = DecoderPlugin()
    plugin_manager().register(plugin)
    yield
    plugin_manager().unregister(plugin)


class Travelling(NNsight):
    """Sends programs and outcomes through bytes, and holds read-only programs to it, as backends with engines do."""

    def _execute(self, requests: Sequence[Request]) -> list[Outcome]:
        reader = TemplateReader(self._tree)
        shipments = write_programs([request.program for request in requests])
        templates = {shipment.template: reader.read(shipment.template) for shipment in shipments}
        arrived = [
            replaced(request, program=_Promised(templates[shipment.template], shipment.own))
            for request, shipment in zip(requests, shipments, strict=True)
        ]
        outcomes = super()._execute(arrived)
        homeward = [
            encode_outcome(outcome, request.program) for outcome, request in zip(outcomes, requests, strict=True)
        ]
        return [decode_outcome(data, self._tree) for data in homeward]


class _Promised:
    def __init__(self, template: Template, own: bytes) -> None:
        self._program = template.program
        self.values = template.values(own)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)

    def start(self, values: Any, **modes: Any) -> Any:
        return self._program.start(values, **{**modes, "read_only": self._program.effects.read_only})


@pytest.fixture(scope="module", params=[NNsight, Travelling], ids=["in-process", "travelling"])
def subject(request: pytest.FixtureRequest, decoder_plugin: None) -> Subject:
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
        model=request.param(network),
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
    """In this process, on a small decoder."""


def test_a_backend_may_have_no_standard_names(subject: Subject) -> None:
    class OtherDecoder(Decoder):
        """No plugin knows it."""

    other = replaced(subject, model=NNsight(OtherDecoder()), standard_names=False)
    BackendConformance().test_the_stream_before_and_after_each_layer_has_a_standard_name(other)
    BackendConformance().test_a_write_under_a_standard_name_has_the_effect_of_the_same_edit(other)
