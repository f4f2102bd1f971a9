"""Every kind of statement of a forward has its ops, and does what it does without them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from nnsight import NNsight
from nnsight.errors import SourceNotFoundError, UnsupportedFeatureError

STATES = torch.ones(2, 3)


def doubled(states: torch.Tensor) -> torch.Tensor:
    return states * 2


def make_closure() -> Any:
    def inner(states: torch.Tensor) -> torch.Tensor:
        return doubled(states) + 1

    return inner


class Statements(nn.Module):
    """A forward with each kind of statement that has expressions."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.total = 0.0

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        first: torch.Tensor = torch.neg(states)
        second: torch.Tensor
        second = torch.abs(first)
        second += torch.ones_like(second)
        self.total += float(second.sum())
        for _ in range(2):
            second = torch.relu(second)
        else:
            second = torch.clone(second)
        while self.count < 1:
            self.count += 1
            second = torch.square(second)
        else:
            self.count = 0
        if (third := torch.exp(first)) is not None:
            second = second + third
        rows = [torch.sin(row) for row in second if row is not None for _ in range(1)]
        names = {str(float(row.sum())) for row in rows}
        table = {index: torch.cos(row) for index, row in enumerate(rows)}
        total = sum(float(torch.sum(value)) for value in table.values())
        return torch.stack(rows) + total + len(names)


@pytest.mark.parametrize(
    "name",
    "torch_neg_0 torch_abs_0 second_0 torch_relu_0 torch_clone_0 torch_square_0 torch_exp_0 torch_sin_0 torch_cos_0 "
    "torch_sum_0 torch_stack_0".split(),
)
def test_each_statement_has_its_op_and_runs_as_without_it(name: str) -> None:
    expected = Statements()(STATES)
    model = NNsight(Statements())
    assert name in dir(model.source)
    with torch.no_grad(), model.trace(STATES) as tracer:
        value = getattr(model.source, name).output.save()
        result = tracer.result.save()
    assert isinstance(value, torch.Tensor)
    assert torch.equal(result, expected)


class Calls(nn.Module):
    """A forward that calls functions of many origins."""

    class Tools:
        @staticmethod
        def static(states: torch.Tensor) -> torch.Tensor:
            return torch.abs(states)

        def method(self, states: torch.Tensor) -> torch.Tensor:
            return torch.neg(states)

    def __init__(self) -> None:
        super().__init__()
        self.tools = self.Tools()
        self.inner = nn.Linear(3, 3)
        self.closure = make_closure()
        self.fast = torch.compile(doubled, backend="eager")

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        states = self.tools.static(self.tools.method(states))
        chosen = self.closure
        states = self.closure(states) + len(states)
        return chosen(states) + self.inner(states)


def test_functions_are_followed_wherever_they_come_from() -> None:
    model = NNsight(Calls())
    source = model.source
    assert "torch_abs_0" in dir(source.self_tools_static_0.source)
    assert "torch_neg_0" in dir(source.self_tools_method_0.source)
    assert "doubled_0" in dir(source.self_closure_0.source)
    assert "F_linear_0" in dir(source.self_inner_0.source)
    assert "which function is called is known only when it runs" in repr(source.chosen_1.source)
    assert dir(source.self_closure_0.source.doubled_0.source) == []
    with pytest.raises(SourceNotFoundError, match="implemented in C"):
        source.len_0.source
    with torch.no_grad(), model.trace(STATES):
        inside = source.self_closure_0.source.doubled_0.output.save()
    assert torch.equal(inside, 2 * STATES)


def test_compiled_functions_are_refused_by_name() -> None:
    class Compiled(Calls):
        def forward(self, states: torch.Tensor) -> torch.Tensor:
            return self.fast(states)

    with pytest.raises(UnsupportedFeatureError, match=r"compiled by torch\.compile"):
        NNsight(Compiled()).source.self_fast_0.source
