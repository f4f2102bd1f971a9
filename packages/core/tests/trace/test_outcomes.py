"""What became of a request comes home whole, whatever its block saved."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable

import pytest
import torch
from torch import nn

from nnsight.backends import ModelTree, Outcome, decode_outcome, encode_outcome
from nnsight.errors import UntransferableValueError, WireError
from tests.trace.wired import Wired


class Finished:
    """The output of a request."""

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value


@pytest.fixture
def model() -> Wired:
    torch.manual_seed(0)
    return Wired(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), result_of=Finished)


X = torch.ones(1, 4)


def test_a_saved_result_and_values_saved_twice_are_one_object(model: Wired) -> None:
    with model.trace(X) as tracer:
        hidden = model[0].output.save()
        both = [hidden, hidden].save()
        result = tracer.result.save()
    assert both[0] is both[1] is hidden
    assert result is tracer.result
    assert torch.equal(result.value, model._tree.root(X))


@pytest.mark.parametrize("result_of", [lambda output: output, lambda output: output.tolist(), lambda output: None])
def test_a_result_may_be_of_any_type_and_so_may_other_saves(result_of: Callable[[torch.Tensor], object]) -> None:
    model = Wired(nn.Linear(4, 2), result_of=result_of)
    with model.trace(X) as tracer:
        result, numbers, tensor, nothing = tracer.result, [1, 2], torch.zeros(2), None
        saves = [result, numbers, tensor, nothing].save()
    assert saves[1:2] == [[1, 2]]
    assert torch.equal(saves[2], torch.zeros(2))
    assert saves[0] is tracer.result


def test_each_value_that_cannot_travel_is_left_out_and_the_first_is_named(model: Wired) -> None:
    with pytest.raises(UntransferableValueError, match=r"pair\[0\]") as raised:
        with model.trace(X) as tracer:
            kept = model[0].output.save()
            guard = threading.Lock()
            pair = (guard, 1).save()  # noqa: F841 - refused
            table = {"guard": guard}.save()  # noqa: F841 - refused
    assert set(raised.value.saves) == {"kept"}
    assert kept.shape == (1, 4)
    assert tracer.receipt.visits == {"0.output": 1}


def test_an_error_of_the_block_wins_over_a_value_that_cannot_travel(model: Wired) -> None:
    with pytest.raises(ZeroDivisionError) as raised, model.trace(X):
        guard = threading.Lock().save()  # noqa: F841 - refused
        number = (1).save()  # noqa: F841 - comes home with the error
        1 / 0
    assert set(raised.value.saves) == {"number"}
    assert "1 / 0" in "".join(traceback.format_exception(raised.value))


def test_a_result_that_cannot_travel_is_the_error_of_its_request() -> None:
    model = Wired(nn.Linear(4, 2), result_of=lambda output: threading.Lock())
    with pytest.raises(UntransferableValueError, match="result") as raised, model.trace(X):
        number = (1).save()  # noqa: F841 - comes home with the error
    assert set(raised.value.saves) == {"number"}


def test_a_failure_of_the_model_is_raised_where_the_block_waits_and_is_the_error_of_the_request(model: Wired) -> None:
    with pytest.raises(RuntimeError, match="shapes") as raised, model.trace(torch.ones(1, 5)):
        try:
            model.output.save()
        except RuntimeError as error:
            caught = type(error).__name__.save()  # noqa: F841 - comes home with the error
    assert raised.value.saves == {"caught": "RuntimeError"}


def test_a_module_among_the_saves_is_the_callers_own(model: Wired) -> None:
    with model.trace(X):
        pairs = [(model[0], model[0].output)].save()
    assert pairs[0][0] is model[0]


def test_an_outcome_made_by_hand_travels() -> None:
    tree = ModelTree(nn.Identity())
    outcome = decode_outcome(encode_outcome(Outcome(error=RuntimeError("no room"))), tree)
    assert (type(outcome.error), outcome.error.args) == (RuntimeError, ("no room",))
    assert outcome.saves == {}


def test_bytes_that_are_no_outcome_are_refused(model: Wired) -> None:
    with pytest.raises(WireError):
        decode_outcome(b"NNSW", model._tree)
