"""Where a block reads is told from its source, or it is told that it cannot be."""

from __future__ import annotations

import ast
import textwrap
from typing import Any

import pytest
from torch import nn

from nnsight._envoy import ModelTree
from nnsight._program.static_reads import static_outputs, static_places


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Identity()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.norm = nn.Identity()


def _values() -> dict[str, Any]:
    model = ModelTree(Model(), values=("logits",)).envoy()
    return {
        "model": model,
        "layers": list(model.layers),
        "pair": (model.norm, model.layers[0]),
        "by_name": {"first": model.layers[0], "norm": model.norm},
        "kept": [],
        "path": "norm",
        "which": True,
        "helper": lambda value: value,
    }


EVERY = {f"layers.{number}": None for number in range(3)}
OUTPUTS: dict[str, dict[str, set[int] | None]] = {
    "model.norm.output": {"norm": None},
    "layers[1].output[0]": {"layers.1": {0}},
    "model.layers[2].output[1]\nmodel.layers[2].output[0]": {"layers.2": {0, 1}},
    "model.layers[2].output[1]\nmodel.layers[2].output": {"layers.2": None},
    "model.layers[-1].output[-1]": {"layers.2": None},
    "model.layers[0].output[True]": {"layers.0": None},
    "pair[0].output": {"norm": None},
    "by_name['first'].output": {"layers.0": None, "norm": None},
    "model.layers[which].output": EVERY,
    "kept.append(model.norm.output)": {"norm": None},
    "helper(model.norm.output)": {"norm": None},
    "model.get('layers.0.inner.output')": {"layers.0.inner": None},
    "model.layers[1].get('output')": {"layers.1": None},
    "model.get('layers.0').output": {"layers.0": None},
    "model.get('layers.0')": {},
    "model.logits": {},
    "x = model.layers[0] if which else model.norm\nx.output": {"layers.0": None, "norm": None},
    "x = model.norm\nx = model.layers[1]\nx.output": {"layers.1": None, "norm": None},
    "x: object = model.norm\nx.output": {"norm": None},
    "(x := model.norm)\nx.output": {"norm": None},
    "a, b = model.norm, model.layers[0]\na.output\nb.output": {"layers.0": None, "norm": None},
    "for layer in model.layers: layer.output": EVERY,
    "for layer in model.layers[1:]: layer.output": EVERY,
    "for layer in layers: layer.output[0]": {path: {0} for path in EVERY},
    "for layer in reversed(layers): layer.output": EVERY,
    "for layer in list(model.layers): layer.inner.output": {f"layers.{number}.inner": None for number in range(3)},
    "for layer in [model.norm, layers[0]]: layer.output": {"layers.0": None, "norm": None},
    "for layer in (model.norm, layers[0]): layer.output": {"layers.0": None, "norm": None},
    "for layer in by_name: by_name[layer].output": {"layers.0": None, "norm": None},
    "for number, layer in enumerate(layers): layer.output": EVERY,
    "for one, other in zip(layers, pair): other.output": {"layers.0": None, "norm": None},
    "[layer.output for layer in layers]": EVERY,
}


@pytest.mark.parametrize("text", OUTPUTS)
def test_outputs_that_a_block_may_read_are_told(text: str) -> None:
    statements = ast.parse(textwrap.dedent(text)).body
    expected = {path: None if items is None else frozenset(items) for path, items in OUTPUTS[text].items()}
    assert static_outputs(statements, _values()) == expected
    assert static_places(statements, _values()) == tuple(sorted((path, "output") for path in expected))


# Where the places are told, but there is more than outputs to it.
MORE: dict[str, tuple[tuple[str, str], ...]] = {
    "model.norm.input": (("norm", "input"),),
    "model.layers[0].inputs[0]": (("layers.0", "inputs"),),
    "model.norm(model.layers[0].output)": (("layers.0", "output"),),
    "model.layers[0].inner(kept)": (),
    "pair[0](kept)": (),
    "x = model.norm\nx(kept)": (),
}


@pytest.mark.parametrize("text", MORE)
def test_a_block_that_does_more_than_read_outputs_is_told_from_one_that_does_not(text: str) -> None:
    statements = ast.parse(text).body
    assert static_outputs(statements, _values()) is None
    assert static_places(statements, _values()) == MORE[text]


UNPROVEN = [
    "getattr(model, 'norm').output",
    "next(iter(layers)).output",
    "model.layers[0].source",
    "model.norm.skip(kept)",
    "model._modules",
    "helper(model.norm).output",
    "unknown.output",
    "path.output",
    "model.get(path).output",
    "model.get",
    "read = model.get",
    "layers.append(model.norm)",
    "by_name.update(norm=model.layers[1])",
    "x = x\nx.output",
    "x = helper\nx.output",
    "x = model.norm\nx += 1\nx.output",
    "import os as layer\nlayer.output",
    "import os.path\nos.output",
    "with helper(1) as layer: layer.output",
    "for layer in by_name.values(): layer.output",
    "for layer in helper(layers): layer.output",
    "list = helper\nfor layer in list(layers): layer.output",
    "for a, b, c in zip(layers, pair): a.output",
    "zip = helper\nfor a, b in zip(layers, pair): a.output",
    "try: pass\nexcept ValueError as layer: layer.output",
    "match path:\n    case {'a': 1, **rest}: rest.output",
    "match path:\n    case [*rest]: rest.output",
    "def layer(): pass\nlayer.output",
    "class layer: pass\nlayer.output",
    "(lambda layer: layer.output)(model.norm)",
    "a, b = pair\na.output",
    "chosen = [layers[0], model.norm]\nfor layer in chosen: layer.output",
    "model.nothing.output",
    "model.layers[7].output",
]


@pytest.mark.parametrize("text", UNPROVEN)
def test_what_cannot_be_told_is_said_to_be_so(text: str) -> None:
    statements = ast.parse(text).body
    values = _values() | ({"zip": lambda *lists: []} if text.startswith("zip") else {})
    assert static_places(statements, values) is None
    assert static_outputs(statements, values) is None
