"""A receipt says what a block was served, what it changed and what it asked for in vain."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from nnsight import NNsight
from nnsight.backends import Receipt
from nnsight.errors import WireError


@pytest.fixture
def model() -> Any:
    torch.manual_seed(0)
    return NNsight(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)))


X = torch.ones(1, 4)


def test_a_receipt_prints_as_a_table(model: Any) -> None:
    with model.trace(X) as tracer:
        model[0].output[:] += 1
        late = model[1].output
        model[2].input
        late += 1
    lines = str(tracer.receipt).split("\n")
    assert lines[0].split() == ["steps", "1", "(1", "eager)"]
    assert any(line.startswith("in the block") for line in lines)
    assert any(line.startswith("remark") and "1.output was changed in place" in line for line in lines)
    table = lines[lines.index("") + 1 :]
    assert [line.split() for line in table] == [
        ["location", "visits", "edits", "recorded"],
        ["0.output", "1", "1", "0"],
        ["1.output", "1", "0", "0"],
        ["2.input", "1", "0", "0"],
    ]
    assert repr(tracer.receipt).startswith("<Receipt: 1 step, 3 visits of 3 locations, 1 edit, 1 remark, ")


def test_what_a_cache_asked_for_and_never_got_is_untouched(model: Any) -> None:
    class Forked(nn.Module):
        """Calls one of its two branches."""

        def __init__(self) -> None:
            super().__init__()
            self.taken, self.left = nn.Linear(4, 4), nn.Linear(4, 4)
            self.both = nn.ModuleList([self.taken])

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            return self.taken(value)

    forked: Any = NNsight(Forked())
    with forked.trace(X) as tracer:
        cache = tracer.cache([forked.taken, forked.left])
    assert list(cache) == ["taken"]
    assert tracer.receipt.untouched == ("left.output",)
    assert tracer.receipt.recorded == {"taken.output": 1}


def test_an_error_leaves_what_its_block_waited_for_untouched(model: Any) -> None:
    with pytest.raises(RuntimeError), model.trace(torch.ones(1, 3)) as tracer:
        model[2].output.save()
    assert tracer.receipt.untouched == ("2.output",)


def test_a_receipt_travels_whole() -> None:
    receipt = Receipt(steps=2, visits={"a": 1}, tiers={"eager": 2}, rows=5, untouched=("b",), bytes_home=3)
    again = Receipt.from_dict(receipt.as_dict())
    assert again == receipt
    again.visits["a"] = 7
    assert receipt.visits == {"a": 1}
    with pytest.raises(WireError, match="no receipt"):
        Receipt.from_dict({"steps": "two"})
