"""Values of a request, arguments that are given by keyword, and how values are called in messages."""

from __future__ import annotations

import collections
from typing import Any

import pytest
import torch

from nnsight import NNsight
from nnsight._interleave import BlockRun, Interleaver
from nnsight._interleave.structure import describe
from nnsight.backends import ModelTree, WholeScope
from nnsight.errors import MismatchedValueError


def test_a_value_that_is_offered_is_read_and_replaced_by_the_request_that_asks_for_it() -> None:
    tree = ModelTree(torch.nn.Linear(2, 2), values=("halved",))
    seen: list[Any] = []

    def block(run: BlockRun) -> None:
        seen.append(tree.envoy().halved)
        tree.envoy().halved = seen[0] * 2

    run, other = BlockRun(block), BlockRun(lambda run: None)
    interleaver = Interleaver(tree)
    interleaver.begin_step({run: WholeScope(), other: WholeScope()}, {run: 0, other: 0})
    assert torch.equal(interleaver.offer("halved", torch.ones(2), {other: WholeScope()}), torch.ones(2))
    assert not seen
    assert torch.equal(interleaver.offer("halved", torch.ones(2), {run: WholeScope()}), 2 * torch.ones(2))
    interleaver.end_step()
    assert run.receipt.edits == {"halved": 1}


class ByKeyword(torch.nn.Module):
    """Calls its child with a keyword alone."""

    def __init__(self) -> None:
        super().__init__()
        self.child = torch.nn.Linear(2, 2)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.child(input=states)


def test_the_first_keyword_is_the_input_of_a_module_that_is_given_no_positional_argument() -> None:
    model = NNsight(ByKeyword())
    with torch.no_grad(), model.trace(torch.ones(1, 2)):
        given = model.child.input.save()
        model.child.input = given * 0
        result = model.output.save()
    assert torch.equal(given, torch.ones(1, 2))
    assert torch.equal(result[0], model._module.child.bias)


def test_what_fails_while_inputs_are_recorded_is_the_error_of_the_request() -> None:
    model = NNsight(torch.nn.Linear(2, 2))
    with pytest.raises((RuntimeError, AssertionError)), model.trace(torch.ones(1, 2)) as tracer:
        tracer.cache(model, include_inputs=True, include_output=False, device="cuda:99")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (torch.ones(2, 3), "a tensor of shape (2, 3)"),
        ((1, 2), "a tuple of 2 values"),
        ([1], "a list of 1 values"),
        ({"a": 1}, "a dict with the keys 'a'"),
        ({}, "a dict with the keys none"),
        (collections.OrderedDict(b=1), "a OrderedDict with the keys 'b'"),
        (None, "a NoneType"),
    ],
)
def test_a_value_is_called_by_its_kind(value: object, words: str) -> None:
    assert describe(value) == words


@pytest.mark.parametrize("value", ["text", None, (1,), {"a": 1}])
def test_what_is_no_tensor_is_refused_in_the_place_of_one(value: object) -> None:
    model = NNsight(torch.nn.Linear(2, 2))
    with pytest.raises(MismatchedValueError, match=r"assign one of the same structure|assign a tensor"):
        with model.trace(torch.ones(1, 2)):
            model.output = value
