"""The effect summary errs on the side of writes."""

from __future__ import annotations

import ast
import textwrap
from typing import Any

import pytest
import torch

from nnsight import NNsight
from nnsight._program import summarize

MODEL = NNsight(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()))


def summary(text: str, **values: Any) -> Any:
    names = {"model": MODEL, "torch": torch, **values}
    return summarize(ast.parse(textwrap.dedent(text)).body, names, frozenset({"logits", "samples"}))


@pytest.mark.parametrize(
    "text",
    [
        "h = model[0].output.save()",
        "hs = list().save()\nfor _ in range(3):\n    hs.append(model[0].output[0])",
        "x = sum(model[0].output)[-1].argmax(-1).tolist()",
        "count = 0\ncount += 1\nmodel[0].output",
        "d = {}\nd['a'] = model[0].input",
        "best = torch.topk(model[0].output, 2)",
        "y = model[1](model[0].output)",
        "def f(x):\n    return x * 2\nz = f(model[0].output)",
        "print(len(model[0].output))",
        "print(model[0].source)\nx = model[0].source.F_linear_0.output[0]",
    ],
)
def test_programs_that_only_read_are_read_only(text: str) -> None:
    assert summary(text).read_only, summary(text).unknown


@pytest.mark.parametrize(
    "text",
    [
        "model[0].output[0][:] += 1",
        "model[0].output[:, 1] = 0",
        "model[0].output = model[0].output * 2",
        "h = model[0].output\nh += 1",
        "h = model[0].output\nh[0] = 1",
        "model[0].output.mul_(2)",
        "for row in model[0].output:\n    row.zero_()",
        "torch.add(model[0].output, 1, out=model[0].output)",
        "torch.nn.functional.relu(model[0].output, inplace=True)",
        "logits = model.logits\nlogits[0, 3] = 1",
        "helper(model[0].output)",
        "setattr(model[0], 'output', 1)",
        "probe.change(model[0].output)",
        "model[0].output.data.fill_(1)",
        "(lambda t: t.add_(1))(model[0].output)",
        "del model[0].output[0]",
        "x, model[0].output = 1, 2",
        "for model[0].output in [1]:\n    pass",
        "list(map(helper, model[0].output))",
        "hs = list(model[0].output)\nhs[0] += 1",
        "d = {'h': model[0].output}\nd['h'] *= 0",
        "h = 0\nh, r = model[0].output\nh += 1",
        "n = 0\nfor n in model[0].output:\n    n += 1",
        "h = 0\n(h := model[0].output)\nh += 1",
        "h = 0\nif torch:\n    h = model[0].output\nh += 1",
        "torch.nn.functional.relu(model[0].output, True)",
        "torch.ops.vllm.anything(model[0].output)",
        "model[0].skip(torch.zeros(1))",
        "model[0].source.F_linear_0.output = 1",
        "model[0].source.F_linear_0.output[0] += 1",
        "op.skip(0)",
    ],
)
def test_programs_that_write_or_might_are_not(text: str) -> None:
    assert not summary(text, helper=lambda value: value, probe=object()).read_only


def test_reads_and_writes_are_named_as_written() -> None:
    found = summary("a = model[0].output\nmodel[1].input = a\nout = tracer.result.save()")
    assert found.reads == ("model[0].output",)
    assert found.writes == ("model[1].input",)


def test_ops_and_skips_are_named_as_written() -> None:
    found = summary("x = model[0].source.F_linear_0.input\nmodel[0].source.F_linear_0.skip(x)\nmodel[1].skip(x)")
    assert found.reads == ("model[0].source.F_linear_0.input",)
    assert found.writes == ("model[0].source.F_linear_0.skip", "model[1].skip")
    assert not found.unknown


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("model[0].output", ()),
        ("model[0].source.F_linear_0.output", ("0",)),
        ("model.source.input_0.output", ("",)),
        ("for layer in model.layers:\n    layer.attn.source.q_0.output", ("attn",)),
        ("for layer in model.layers:\n    layer.source.q_0.source.p_0.output", ("*",)),
        ("model.layers[1].attn.source.q_0.source.p_0.output", ("attn",)),
        ("model.get('layers.0.attn.source.q_0.output')", ("attn",)),
        ("model.get(f'{path}.source.q_0.output')", ("*",)),
        ("model = other\nmodel.source.q_0.output", ("*",)),
        ("op.output", ("0",)),
        ("helper(model)", ("*",)),
    ],
)
def test_modules_that_may_be_looked_into_are_named(text: str, names: tuple[str, ...]) -> None:
    others = {"op": MODEL[0].source.F_linear_0, "helper": looking, "path": "", "other": 0}
    found = summary(text, **{name: value for name, value in others.items() if name in text})
    assert found.looks_into == names


def looking(model: Any) -> Any:
    return model.layer.source.q_0.output


@pytest.mark.parametrize(
    "text",
    [
        "layer = model[0]\nlayer.half()",
        "layer = model[0]\nalias = layer\nalias.to(torch.float64)",
        "for layer in model:\n    layer.float()",
        "for number, layer in enumerate(model):\n    layer.float()",
        "[layer.half() for layer in model]",
        "[layer.half() for number, layer in enumerate(model)]",
        "layers = [layer for layer in model]\nlayers[0].half()",
        "layers = list(model)\nlayers[0].half()",
        "layers = {'a': model[0]}\nlayers['a'].half()",
        "layers = {name: layer for name, layer in zip('ab', model)}\nlayers['a'].half()",
        "layers = []\nlayers.append(model[0])\nlayers[0].half()",
        "layers = {}\nlayers['a'] = model[0]\nlayers['a'].half()",
        "first, *rest = model\nrest[0].half()",
        "(layer := model[0]).half()",
        "if (layer := model[0]):\n    layer.half()",
        "layer = model[0] if torch else model[1]\nlayer.half()",
        "layer = None or model[0]\nlayer.half()",
        "layer: object = model[0]\nlayer.half()",
        "match model[0]:\n    case layer:\n        layer.half()",
        "with giving(model[0]) as layer:\n    layer.half()",
        "def change(layer):\n    layer.half()\nchange(model[0])",
        "def get():\n    return model[0]\nlayer = get()\nlayer.half()",
        "layer = (lambda: model[0])()\nlayer.half()",
        "(lambda layer: layer.half())(model[0])",
        "list(map(lambda layer: layer.half(), model))",
        "layer = getattr(model, '0')\nlayer.half()",
        "layer = model.get('0')\nlayer.half()",
        "getattr(model[0], 'half')()",
        "half = model[0].half\nhalf()",
        "layer = model[0]\nlayer.requires_grad_(False)",
        "layer = model[0]\nlayer.load_state_dict({})",
        "layer = model[0]\nlayer.register_forward_hook(print)",
        "layer = model[0]\nlayer.train()",
        "torch.nn.Module.half(model[0])",
        "layer = model[0]\ntorch.compile(layer)",
        "held = model._modules['0']\nheld.half()",
        "layer = model[0]\nweights = layer._parameters\nweights['weight'].float()",
        "kept = holding.kept\nkept[0].half()",
    ],
)
def test_methods_that_change_a_module_are_seen_whatever_it_is_called(text: str) -> None:
    network = torch.nn.Sequential(torch.nn.Linear(2, 2))
    network.kept = [torch.nn.Linear(2, 2)]  # type: ignore[assignment]
    assert not summary(text, giving=object, holding=NNsight(network)).read_only


@pytest.mark.parametrize(
    "text",
    [
        "layer = model[0]\nx = layer.weight.float()",
        "layer = model[0]\nx = layer.output.to(torch.float64)",
        "for layer in model:\n    x = layer.weight[0].half() + layer.output.half()",
        "hs = [layer.output for layer in model]\nx = hs[0].float().cpu()",
        "hs = {}\nfor number, layer in enumerate(model):\n    hs[number] = layer.output.cpu()\nx = hs[0].float()",
        "x = model.get('0.output')\ny = x.float()",
        "def flat(x):\n    return x.float()\nfor number, layer in enumerate(model):\n    y = flat(layer.output)",
        "weight = model[0].weight\nx = weight.double() @ weight.double().T",
    ],
)
def test_weights_and_values_are_converted_by_blocks_that_read(text: str) -> None:
    assert summary(text).read_only, summary(text).unknown
