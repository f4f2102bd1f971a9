"""Extra names of modules: in the tree, in blocks, and on their way to another process."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

from nnsight import NNsight
from nnsight.backends import ModelTree
from nnsight.errors import InvalidRequestError, UnknownLocationError
from tests.trace.wired import Wired


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn = nn.Linear(4, 4)
        self.mlp = nn.Tanh()

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return value + self.mlp(self.self_attn(value))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict({"h": nn.ModuleList(Layer() for _ in range(3))})

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        for layer in self.transformer["h"]:
            value = layer(value)
        return value


RENAMES = {"transformer.h": "layers", "transformer.h.*.self_attn": "transformer.h.*.attn"}
ONES = torch.ones(1, 4)


@pytest.fixture(params=["here", "in another process"])
def model(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(0)
    return NNsight(Network(), rename=RENAMES) if request.param == "here" else Wired(Network(), renames=RENAMES)


def test_an_alias_leads_to_the_module_itself(model: Any) -> None:
    assert model.layers[1] is model.transformer.h[1]
    assert model.get("layers.1.attn") is model.transformer.h[1].self_attn
    assert model.layers[-1].attn is model.get("transformer.h.2.self_attn")
    assert {"layers", "transformer"} <= set(dir(model))
    assert "attn" in dir(model.layers[0])


def test_an_alias_names_locations_in_a_block(model: Any) -> None:
    with model.trace(ONES) as tracer:
        first = model.layers[0].attn.output.save()
        model.layers[1].attn.output[:] = 0
        second = model.get("layers.1.output").save()
        given = model.get("layers.2").input.save()
    root = model._tree.root.transformer["h"]
    assert torch.equal(first, root[0].self_attn(ONES))
    assert torch.equal(second, given)
    assert tracer.receipt.edits == {"transformer.h.1.self_attn.output": 1}


def test_an_alias_leads_to_ops(model: Any) -> None:
    with model.trace(ONES):
        called = model.layers[0].source.self_mlp_0.output.save()
        inner = model.layers[1].attn.source.F_linear_0.output.save()
        outer = model.layers[1].self_attn.output.save()
    assert torch.equal(
        called, model._tree.root.transformer["h"][0].mlp(model._tree.root.transformer["h"][0].self_attn(ONES))
    )
    assert torch.equal(inner, outer)


def test_an_alias_names_modules_of_a_cache(model: Any) -> None:
    with model.trace(ONES) as tracer:
        by_pattern = tracer.cache("layers.*.attn")
        by_path = tracer.cache(["layers.2", model.layers[0].attn])
    assert list(by_pattern) == [f"transformer.h.{index}.self_attn" for index in range(3)]
    assert sorted(by_path) == ["transformer.h.0.self_attn", "transformer.h.2"]


def test_a_block_that_reads_by_alias_is_understood_as_one_that_reads_by_path(model: Any) -> None:
    with model.trace(ONES):
        mine = model.layers[0].attn(ONES).save()
        model.transformer.h[0].self_attn(ONES)
        theirs = model.layers[0].attn.output.save()
    assert torch.equal(mine, theirs)


def test_aliases_are_shown_in_the_tree() -> None:
    model = NNsight(Network(), rename=RENAMES)
    assert repr(model).endswith(
        "\n  (layers): same as transformer.h\n  (transformer.h.*.attn): same as transformer.h.*.self_attn\n)"
    )
    assert repr(model.layers[0]).endswith("\n  (attn): same as transformer.h.0.self_attn\n)")
    assert repr(NNsight(nn.Linear(1, 1))) == repr(nn.Linear(1, 1))


@pytest.mark.parametrize(
    ("renames", "error", "message"),
    [
        ({"transformer.h": "transformer"}, InvalidRequestError, "the model has a 'transformer' already"),
        ({"transformer.h": "trace"}, InvalidRequestError, "the model has a 'trace' already"),
        ({"transformer.h": "forward"}, InvalidRequestError, "the model has a 'forward' already"),
        (
            {"transformer.h.*.mlp": "transformer.h.*.output"},
            InvalidRequestError,
            "h.0 has a 'output' already",
        ),
        ({"transformer.h.0": "x", "transformer.h.1": "x"}, InvalidRequestError, "the model has a 'x' already"),
        ({"transformer.h.*": "x"}, InvalidRequestError, "same number of `*`"),
        ({"transformer.h": "a b"}, InvalidRequestError, "'a b' is no name"),
        ({"transformer.x": "layers"}, UnknownLocationError, "nearest: transformer"),
        ({"transformer.h": "nowhere.layers"}, UnknownLocationError, "has no 'nowhere'"),
    ],
)
def test_an_alias_that_is_taken_or_leads_nowhere_is_refused(
    renames: dict[str, str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        NNsight(Network(), rename=renames)


def test_an_unknown_name_offers_aliases_too() -> None:
    with pytest.raises(UnknownLocationError, match="nearest: layers"):
        _ = NNsight(Network(), rename=RENAMES).layer


def test_programs_of_many_models_with_other_names_keep_the_memory_of_a_worker_bounded() -> None:
    tree = ModelTree(Network())
    views = [tree.with_renames({"transformer.h": f"name{index}"}) for index in range(100)]
    assert views[-1] is tree.with_renames({"transformer.h": "name99"})
    assert len(tree._views) <= 32
    assert views[0].envoy("name0.1")._path == "transformer.h.1"
