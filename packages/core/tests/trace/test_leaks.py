"""Traces leave nothing behind in the process, whatever becomes of them."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import nn

from census import Census, resident_bytes
from nnsight import NNsight

WIDTH = 64


class Network(nn.Module):
    """Layers that are run in several steps."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            states = torch.tanh(layer(states))
        return states

    def steps(self, states: torch.Tensor, count: int) -> torch.Tensor:
        for _ in range(count):
            states = self(states)
        return states


def read_and_edit(model: Any, states: torch.Tensor) -> None:
    with model.trace(states, 3, method="steps") as tracer:
        kept = [].save()
        for _ in tracer.iter[:3]:
            model.layers[1].output[:] += 0.1
            model.layers[2].output = model.layers[2].output * 0.5
            kept.append(model.layers[3].output)
    assert len(kept) == 3


def late_edit(model: Any, states: torch.Tensor) -> None:
    with model.trace(states):
        early = model.layers[0].output
        model.layers[3].output
        early += 1


def op_and_skip(model: Any, states: torch.Tensor) -> None:
    with model.trace(states):
        model.layers[1].source.F_linear_0.output.save()
        model.layers[2].skip(torch.zeros(8, WIDTH))


def gradient(model: Any, states: torch.Tensor) -> None:
    with model.trace(states):
        last = model.layers[3].output.save()
    last.sum().backward()
    model._module.zero_grad(set_to_none=True)


def invokes(model: Any, states: torch.Tensor) -> None:
    with model.trace() as tracer:
        for _ in range(3):
            with tracer.invoke(states):
                large = model.layers[0].output.repeat(100, 1).save()  # noqa: F841


def stopped(model: Any, states: torch.Tensor) -> None:
    with model.trace(states) as tracer:
        model.layers[0].output.save()
        tracer.stop()


def failing(model: Any, states: torch.Tensor) -> None:
    with contextlib.suppress(KeyError), model.trace(states):
        kept = model.layers[0].output.save()  # noqa: F841
        raise KeyError("mine")


def out_of_order(model: Any, states: torch.Tensor) -> None:
    with contextlib.suppress(RuntimeError), model.trace(states):
        model.layers[3].output
        model.layers[0].output


def misfit(model: Any, states: torch.Tensor) -> None:
    with contextlib.suppress(ValueError), model.trace(states):
        model.layers[0].output = torch.zeros(1)


def failing_model(model: Any, states: torch.Tensor) -> None:
    with contextlib.suppress(RuntimeError), model.trace(states[:, :3]):
        model.layers[0].output.save()


def function(model: Any, states: torch.Tensor) -> None:
    assert model.run(states, lambda model: model.layers[0].output.sum()).value is not None


TRACES = [
    read_and_edit,
    late_edit,
    op_and_skip,
    gradient,
    invokes,
    stopped,
    failing,
    out_of_order,
    misfit,
    failing_model,
    function,
]


def run(count: int) -> None:
    """Run so many traces of every kind in turn, on one model."""
    for index in range(count):
        TRACES[index % len(TRACES)](MODEL, STATES)


torch.manual_seed(0)
MODEL = NNsight(Network())
STATES = torch.randn(8, WIDTH)


@pytest.mark.parametrize("trace", TRACES, ids=lambda trace: trace.__name__)
def test_a_hundred_traces_leave_nothing_behind(trace: Any) -> None:
    for _ in range(3):
        trace(MODEL, STATES)
    before = Census.take()
    for _ in range(100):
        trace(MODEL, STATES)
    assert Census.take() == before


def test_models_and_what_was_made_for_them_go_with_them() -> None:
    def one() -> None:
        model = NNsight(Network())
        for trace in TRACES:
            trace(model, STATES)

    one()
    before = Census.take()
    for _ in range(5):
        one()
    assert Census.take() == before


@pytest.mark.full
def test_two_thousand_traces_leave_nothing_behind() -> None:
    run(400)
    before, memory = Census.take(), resident_bytes()
    run(2000)
    assert Census.take() == before
    assert resident_bytes() < 1.02 * memory
