"""What is told of a block is told once, and again where what it rests on has changed."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import nnsight._program.analysis as analysis
from nnsight import NNsight

X = torch.ones(2, 4)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Note each time a block is analysed anew."""
    found: list[Any] = []
    summarize = analysis.summarize

    def noting(*arguments: Any) -> Any:
        found.append(summarize(*arguments))
        return found[-1]

    monkeypatch.setattr(analysis, "summarize", noting)
    return found


def _model() -> Any:
    return NNsight(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))


def test_a_block_that_is_traced_again_is_told_of_once(told: list[Any]) -> None:
    model = _model()
    for scale in range(4):
        with model.trace(X) as tracer:
            row = (model[0].output * 0 + scale).save()
            tracer.stop()
        assert torch.equal(row, torch.full((2, 4), float(scale)))
    assert len(told) == 1


def test_each_model_is_told_of_by_itself(told: list[Any]) -> None:
    for model in (_model(), _model()):
        with model.trace(X):
            row = model[0].output.save()
        assert row.shape == (2, 4)
    assert len(told) == 2


def test_a_name_that_means_something_else_is_told_of_anew(told: list[Any]) -> None:
    model = _model()
    kept: Any
    for kept in ([], model[1], 3, {}, "text"):
        with model.trace(X):
            row = (model[0].output, kept)[0].save()
        assert row.shape == (2, 4)
    assert len(told) == 5


def test_the_layer_that_a_name_means_is_that_of_each_trace() -> None:
    model = _model()
    for layer in (*model, *model):
        with model.trace(X):
            layer.output[:] = 1
            row = layer.output.save()
        assert torch.equal(row, torch.ones(2, 4))


def test_a_function_that_a_block_names_goes_when_the_caller_lets_go() -> None:
    model = _model()

    def make() -> Any:
        held = torch.ones(3)

        def add(value: torch.Tensor) -> torch.Tensor:
            return value + held[0]

        return add

    add = make()
    with model.trace(X):
        row = add(model[0].output).save()
    assert row.shape == (2, 4)
    gone = weakref.ref(add)
    del add
    gc.collect()
    assert gone() is None


def test_a_model_that_met_many_blocks_forgets_the_first(monkeypatch: pytest.MonkeyPatch, told: list[Any]) -> None:
    monkeypatch.setattr(analysis, "_MOST_BLOCKS", 2)
    model = _model()

    def trace(kind: Any) -> None:
        with model.trace(X):
            row = (model[0].output, kind)[0].save()
        assert row.shape == (2, 4)

    for kind in (1, "two", 3.0, "again", 3.0, 1):
        trace(kind)
    assert len(told) == 4
