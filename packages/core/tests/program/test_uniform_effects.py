"""Which programs are known to change every row alike: the proof errs on the side of no."""

from __future__ import annotations

import ast
import textwrap
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from nnsight import NNsight
from nnsight._program import summarize
from nnsight._trace.tracer import Tracer
from nnsight.families import ModelFamily, StandardValue
from nnsight.hookspecs import hookimpl
from nnsight.plugins import plugin_manager

if TYPE_CHECKING:
    from nnsight.events import RootModule


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.mlp(x), x


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 4)
        self.layers = nn.ModuleList(Layer() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = sum(layer(x))
        return x


class Family:
    @hookimpl
    def resolve_standard_names(self, root: RootModule) -> ModelFamily | None:
        if not isinstance(root.module, Network):
            return None
        values = {"resid_post": StandardValue("", "output", 0, plus=1)}
        return ModelFamily("tests", ("Network",), "layers", "embed", "embed", None, values)


@pytest.fixture(scope="module")
def known() -> Any:
    plugin = Family()
    plugin_manager().register(plugin)
    model = NNsight(Network())
    values = {
        "model": model,
        "tracer": Tracer(model, (), {}),
        "v": torch.ones(4),
        "flat": torch.ones(1, 4),
        "matrix": torch.ones(3, 4),
        "mask": torch.tensor([True, False, True, False]),
        "scales": {0: 0.5, 1: 2.0},
        "k": 2,
        "torch": torch,
    }
    assert model._tree.standard.family is not None
    yield values
    plugin_manager().unregister(plugin)


def effects(text: str, values: Any) -> Any:
    return summarize(ast.parse(textwrap.dedent(text)).body, values, frozenset({"logits", "samples"}))


LOCAL = [
    "model.layers[1].output[0][:] += v",
    "model.layers[1].output[0][:] = 0",
    "model.layers[1].output[0][:, 2] = 1.5",
    "model.layers[1].output[0][:, mask] *= 0",
    "model.layers[1].output[0][..., [0, 2]] -= 3",
    "model.layers[1].output[0][:, :k] = 2 * v / 3",
    "model.layers[k].mlp.output[:] *= -k",
    "model.layers[1].mlp.output.zero_()",
    "model.layers[1].output[0].mul_(0.5)",
    "model.layers[1].output[0][:].add_(flat)",
    "model.layers[0].mlp.output *= 2",
    "layer = model.layers[1]\nh = layer.output[0]\nh[:] += v\nh += matrix[1]",
    "for layer in model.layers:\n    layer.output[0][:] += v",
    "for index, layer in enumerate(model.layers[:2]):\n    layer.output[0][:] *= scales[index]",
    "for i in range(0, 3, 2):\n    model.layers[i].output[0][:] += matrix[i]",
    "for i in [0, k]:\n    model.layers[i].resid_post[:] += v",
    "model.get('layers.1').output[0][:] += v",
]


@pytest.mark.parametrize("text", LOCAL)
def test_constant_changes_of_every_row_are_known(text: str, known: Any) -> None:
    alone = effects(text, known)
    assert alone.row_local
    assert not alone.every_row
    everywhere = effects("for _ in tracer.all():\n" + textwrap.indent(text, "    "), known)
    assert everywhere.row_local
    assert everywhere.every_row


@pytest.mark.parametrize("loop", ["tracer.iter", "tracer.iter[:]", "tracer.all()"])
def test_a_loop_over_all_steps_changes_every_row(loop: str, known: Any) -> None:
    text = f"strength = 2.0 * k\nfor _ in {loop}:\n    model.layers[1].output[0][:] += strength * v"
    assert effects(text, known).every_row


@pytest.mark.parametrize(
    "text",
    [
        "for _ in tracer.iter[:3]:\n    model.layers[1].output[0][:] += v",
        "for _ in tracer.iter[[0, 2]]:\n    model.layers[1].output[0][:] += v",
        "model.layers[0].output[0][:] += v\nfor _ in tracer.iter[1:]:\n    model.layers[1].output[0][:] += v",
        "model.layers[0].output[0][:] += v\nfor _ in tracer.all():\n    model.layers[1].output[0][:] += v",
        "for _ in tracer.all():\n    model.embed.output[:] += v",
    ],
)
def test_changes_of_some_steps_or_outside_the_layers_are_local_to_rows_alone(text: str, known: Any) -> None:
    found = effects(text, known)
    assert found.row_local
    assert not found.every_row


@pytest.mark.parametrize(
    "text",
    [
        "model.layers[1].output[0][-1] += v",
        "model.layers[1].output[0][0] += v",
        "model.layers[1].output[0][1:] += v",
        "model.layers[1].output[0][:, 2] += v",
        "model.layers[1].output[0][:] += matrix",
        "model.layers[1].mlp.output[0][:] += v",
        "model.layers[1].output[0] += v",
        "model.layers[1].output[0][:, True] = 0",
        "model.layers[1].input[:] += v",
        "model.layers[1].output[0][:] += model.layers[0].output[0][:]",
        "h = model.layers[0].output[0].save()\nmodel.layers[1].output[0][:] += v",
        "model.layers[1].output[0][:] += v\nx = model.layers[2].output.save()",
        "if k:\n    model.layers[1].output[0][:] += v",
        "for step in tracer.all():\n    model.layers[1].output[0][:] += step",
        "for step in tracer.all():\n    model.layers[step].output[0][:] += v",
        "s = 1.0\nfor _ in tracer.all():\n    model.layers[1].output[0][:] += s\n    s = s * 2",
        "for _ in tracer.all():\n    model.layers[1].output[0][:] += k\n    k = k * 2",
        "h = model.layers[1].output[0]\nfor _ in tracer.all():\n    h[:] += v",
        "model.layers[1].output[0][:] += v\ntracer.stop()",
        "model.logits[:] += 1",
        "model.layers[1].output[0][:] @= v",
        "model.layers[1].output[0][:] += v.to('cpu')",
        "model.layers[1].output[0][:].add_(v, alpha=2)",
        "model.layers[1].source.self_mlp_0.output[:] += v",
        "model.layers[9].output[0][:] += v",
        "model.layers[1].skip(v)",
        "def f():\n    model.layers[1].output[0][:] += v\nf()",
        "range = [1]\nfor i in range(3):\n    model.layers[1].output[0][:] += v",
        "while True:\n    model.layers[1].output[0][:] += v",
        "for i in range(10 ** 9):\n    model.layers[1].output[0][:] += v",
        "for i in range(0, 1000000000):\n    model.layers[1].output[0][:] += v",
        "model.layers[1].output",
        "pass",
    ],
)
def test_all_others_are_not_known(text: str, known: Any) -> None:
    assert not effects(text, known).row_local
    assert not effects(text, known).every_row


def test_an_item_of_what_may_be_a_tensor_is_a_row(known: Any) -> None:
    class Undeclared(Network):
        """Its layers do not say what they return."""

        def __init__(self) -> None:
            super().__init__()
            for layer in self.layers:
                layer.forward = lambda x, layer=layer: (layer.mlp(x), x)

    values = {**known, "model": NNsight(Undeclared())}
    assert not effects("model.layers[1].output[0][:] += v", values).row_local
    assert effects("model.layers[1].mlp.output[:] += v", values).row_local
