"""A backend may run a block several times for one request: what each run saved comes home in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from nnsight.backends import (
    Interleaver,
    ModelTree,
    Outcome,
    Request,
    TracedModel,
    WholeScope,
    decode_program,
    encode_program,
    finish_run,
    join_sequences,
)
from nnsight.errors import ConflictingChangesWarning, HandoverError


class Several(TracedModel):
    """Forwards of `x`, `x + 1`, `x + 2` and so on, one for each sequence of a request."""

    backend_name = "several"

    def __init__(self) -> None:
        self._tree = ModelTree(nn.Sequential(nn.Identity(), nn.Identity()))

    def _prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return args[0], kwargs.get("n", 1)

    def _execute(self, requests: Sequence[Request]) -> list[Outcome]:
        outcomes = []
        for request in requests:
            data, (first, count) = encode_program(request.program), request.prepared
            result = [first + number for number in range(count)]
            sequences = [self._run(data, torch.tensor([float(value)]), result) for value in result]
            outcomes.append(join_sequences(sequences, result) if count > 1 else sequences[0])
        return outcomes

    def _run(self, data: bytes, value: torch.Tensor, result: object) -> Outcome:
        program = decode_program(data, self._tree)
        run = program.start(program.values, grad=False, read_only=False)
        interleaver = Interleaver(self._tree)
        interleaver.begin_step({run: WholeScope()}, {run: 0})
        try:
            self._tree.root(value)
        finally:
            interleaver.end_step()
        return finish_run(run, program, result=result)


@pytest.fixture
def model() -> Several:
    return Several()


def test_a_name_holds_a_list_of_what_the_sequences_saved(model: Several) -> None:
    with model.trace(10, n=3) as tracer:
        value = int(model[0].output.item()).save()
        if value > 10:
            later = (value + 1).save()
        model[1].output.item().save()
        whole = tracer.result.save()
    assert value == [10, 11, 12]
    assert later == [12, 13]
    assert whole == [[10, 11, 12]] * 3
    assert tracer.saves == {
        "value": value, "later": later, "whole": whole, "model[1].output.item()": [10.0, 11.0, 12.0]
    }  # fmt: skip
    assert tracer.result == [10, 11, 12]
    assert [receipt.visits["0.output"] for receipt in tracer.receipt] == [1, 1, 1]


def test_invokes_with_several_sequences_give_a_list_of_each(model: Several) -> None:
    with model.trace() as tracer:
        with tracer.invoke(1, n=2):
            value = int(model[0].output.item()).save()
            alone = value.save()
        with tracer.invoke(5):
            value = int(model[0].output.item()).save()
    assert value == [[1, 2], 5]
    assert alone == [1, 2]
    assert [type(receipt) is list for receipt in tracer.receipt] == [True, False]


def test_a_later_invoke_is_handed_a_list(model: Several) -> None:
    with model.trace() as tracer:
        with tracer.invoke(1, n=3):
            value = model[0].output
            if int(value.item()) > 1:
                rare = value
        with tracer.invoke(5):
            total = int((model[0].output + sum(value)).item()).save()
    assert total == 11
    with pytest.raises(HandoverError, match="`rare` of invoke 0, which ended without binding it"):
        with model.trace() as tracer:
            with tracer.invoke(1, n=3):
                value = model[0].output
                if int(value.item()) > 1:
                    rare = value
            with tracer.invoke(5):
                len(rare).save()


def test_an_error_of_one_sequence_leaves_the_others_alone_and_says_which(model: Several) -> None:
    with pytest.raises(KeyError, match="mine") as raised, model.trace() as tracer:
        with tracer.invoke(1, n=3):
            value = int(model[0].output.item()).save()
            if value == 2:
                raise KeyError("mine")
            after = value.save()
        with tracer.invoke(7):
            model[0].output
    assert (value, after) == ([1, 2, 3], [1, 3])
    (note,) = raised.value.__notes__
    assert note == "raised in sequence 1 of invoke 0; of the 4 blocks, 3 ran well and were delivered"
    with pytest.raises(KeyError) as raised, model.trace(1, n=2):
        raise KeyError(int(model[0].output.item()))
    assert raised.value.__notes__ == [
        "raised in sequence 0; of the 2 blocks, 0 ran well and were delivered",
        "sequence 1 failed too: KeyError: 2",
    ]


def test_containers_collect_from_every_sequence_and_conflicts_are_warned_of(model: Several) -> None:
    with pytest.warns(ConflictingChangesWarning, match=r"3 blocks assigned found\['last'\]"):
        with model.trace() as tracer:
            values, found = list().save(), dict().save()
            with tracer.invoke(1, n=3):
                values.append(int(model[0].output.item()))
                found["last"] = values[-1]
    assert values == [1, 2, 3]
    assert found == {"last": 3}


def test_a_session_sees_lists_too(model: Several) -> None:
    with model.session() as session:
        with model.trace(1, n=2):
            value = int(model[0].output.item())
        doubled = [2 * each for each in value]
    assert doubled == [2, 4]
    assert session.saves["value"] == [1, 2]
    assert model.run(1, lambda model: int(model[1].output.item()), n=2).value == [1, 2]
