"""A model offers no method that changes one of its modules, in a block or outside."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from nnsight import NNsight
from nnsight._envoy.shared import CHANGING
from nnsight.errors import UnknownLocationError, UnsupportedFeatureError

STATES = torch.ones(2, 4)


class Mixed(nn.Module):
    """Has methods and data under names that modules have too, and holds modules past the tree."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.named = nn.ModuleDict({"a": nn.Linear(4, 4)})
        self.last = [self.layers[1]]
        self.type = "mixed"
        object.__setattr__(self, "first", self.layers[0])

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.layers[1](self.layers[0](states))

    def doubled(self, states: torch.Tensor) -> torch.Tensor:
        return states * 2

    def update(self, states: torch.Tensor) -> torch.Tensor:
        return states + 1

    def half(self) -> Any:
        return super().half()


CHANGES: dict[str, Callable[[Any], object]] = {
    "half": lambda layer: layer.half(),
    "to": lambda layer: layer.to(torch.float64),
    "cuda": lambda layer: layer.cuda(),
    "load_state_dict": lambda layer: layer.load_state_dict({}),
    "requires_grad_": lambda layer: layer.requires_grad_(False),
    "train": lambda layer: layer.train(),
    "eval": lambda layer: layer.eval(),
    "register_forward_hook": lambda layer: layer.register_forward_hook(print),
    "register_parameter": lambda layer: layer.register_parameter("extra", None),
    "apply": lambda layer: layer.apply(print),
    "zero_grad": lambda layer: layer.zero_grad(),
    "_apply": lambda layer: layer._apply(lambda tensor: tensor * 2),
    "getattr": lambda layer: getattr(layer, "ha" + "lf")(),
    "of the class": lambda layer: nn.Module.half(layer),
}


@pytest.fixture
def model() -> NNsight:
    torch.manual_seed(1)
    return NNsight(Mixed())


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("inside", [True, False])
def test_methods_that_change_a_module_are_refused_by_name(model: NNsight, change: str, inside: bool) -> None:
    before = copy.deepcopy(model._module.state_dict())
    with pytest.raises(UnsupportedFeatureError, match=r"layers\.0\.\w+\(\) was called: it changes the module itself.*"):
        if inside:
            with model.trace(STATES):
                layer = model.layers[0]
                CHANGES[change](layer)
        else:
            CHANGES[change](model.layers[0])
    after = model._module.state_dict()
    assert all(torch.equal(before[name], after[name]) and before[name].dtype == after[name].dtype for name in before)
    assert model._module.training
    assert model._module.layers[0].weight.requires_grad
    assert not model._module.layers[0]._forward_hooks


def test_the_message_says_what_to_do(model: NNsight) -> None:
    with pytest.raises(UnsupportedFeatureError, match=r"the model\.half\(\) was called.*NNsight\(module\.half\(\)\)"):
        model.half()
    assert repr(model.layers[0].half) == "layers.0.half()"


def test_what_changes_a_list_or_dict_of_modules_is_refused(model: NNsight) -> None:
    for change in ("append", "extend", "insert", "pop"):
        with pytest.raises(UnsupportedFeatureError, match=rf"layers\.{change}\(\)"):
            getattr(model.layers, change)(nn.Linear(4, 4))
    for change in ("clear", "pop", "update"):
        with pytest.raises(UnsupportedFeatureError, match=rf"named\.{change}\(\)"):
            getattr(model.named, change)({})
    assert len(model._module.layers) == 2


def test_every_public_method_of_a_module_is_refused_or_known_to_tell() -> None:
    telling = {
        *("buffers", "children", "extra_repr", "forward", "get_buffer", "get_extra_state", "get_parameter"),
        *("get_submodule", "modules", "named_buffers", "named_children", "named_modules", "named_parameters"),
        *("parameters", "state_dict"),
    }
    # Other packages put methods of their own there once they are imported.
    methods = {name: getattr(nn.Module, name) for name in dir(nn.Module) if not name.startswith("_")}
    public = {name for name, each in methods.items() if callable(each) and each.__module__.startswith("torch.")}
    assert public - CHANGING == telling & public


def test_attributes_weights_and_methods_that_compute_go_on_working(model: NNsight) -> None:
    assert model.type == "mixed"
    assert model.layers[0].in_features == 4
    assert len(list(model.layers[0].named_parameters())) == 2
    assert set(model.layers[0].state_dict()) == {"weight", "bias"}
    with torch.no_grad(), model.trace(STATES):
        layer = model.layers[0]
        row = layer.weight[3].save()
        wide = layer.weight.double().save()
        doubled = model.doubled(STATES).save()
        updated = model.update(STATES).save()
    assert torch.equal(row, model._module.layers[0].weight[3])
    assert wide.dtype == torch.float64
    assert torch.equal(doubled, STATES * 2)
    assert torch.equal(updated, STATES + 1)


def test_a_module_that_is_kept_as_a_plain_attribute_is_its_envoy(model: NNsight) -> None:
    assert model.first is model.layers[0]
    with pytest.raises(UnsupportedFeatureError, match=r"layers\.0\.half\(\)"):
        model.first.half()


def test_where_weights_and_hooks_are_kept_is_read_and_not_written(model: NNsight) -> None:
    layer = model.layers[0]
    assert layer._parameters["weight"] is model._module.layers[0].weight
    with pytest.raises(TypeError, match="mappingproxy"):
        nn.Module.register_forward_hook(layer, print)
    with pytest.raises(TypeError, match="mappingproxy"):
        layer._parameters["weight"] = None
    with pytest.raises(UnknownLocationError, match="cannot be assigned"):
        layer.training = False


def test_methods_that_lead_to_modules_lead_to_their_envoys(model: NNsight) -> None:
    layers = [model.layers[0], model.layers[1]]
    assert list(model.layers.children()) == layers
    assert list(model.layers.modules()) == [model.layers, *layers]
    assert list(model.layers.named_children()) == [("0", layers[0]), ("1", layers[1])]
    named = dict(model.named_modules(prefix="net"))
    assert named["net.layers.1"] is layers[1]
    assert named["net"] is model.envoy
    assert model.get_submodule("layers.1") is layers[1]
    with pytest.raises(UnsupportedFeatureError, match=r"layers\.half\(\)"), model.trace(STATES):
        for layer in model.layers.modules():
            layer.half()
    assert model.layers[0].weight.dtype == torch.float32
    with model.trace(STATES):
        outputs = list().save()
        for name, layer in model.layers.named_children():
            outputs.append((name, layer.output))
    assert [name for name, _ in outputs] == ["0", "1"]
    assert outputs[0][1].shape == (STATES.shape[0], model.layers[0].out_features)
