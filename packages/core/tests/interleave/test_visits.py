"""What one visit hands to its block, and what the model goes on with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from nnsight._capture import BlockSource
from nnsight._envoy import ModelTree
from nnsight._interleave import BlockRun, Interleaver, RowScope
from nnsight._interleave.steps import selected_steps
from nnsight._program import Program
from nnsight.errors import MismatchedValueError


class Layer(nn.Module):
    """Returns what it is given, in the container that it was made for."""

    def __init__(self, container: Callable[[Any], Any]) -> None:
        super().__init__()
        self.container = container

    def forward(self, hidden: torch.Tensor, residual: torch.Tensor) -> Any:
        return self.container((hidden, residual))


class CountingScope(RowScope):
    """Counts the tensors that it copies."""

    copied: list[torch.Tensor]

    def take(self, live: torch.Tensor) -> torch.Tensor:
        self.copied.append(live)
        return super().take(live)


def visit(
    text: str, *, container: Callable[[Any], Any] = tuple, alone: bool = True, **values: Any
) -> tuple[BlockRun, Any, tuple[torch.Tensor, torch.Tensor], list[torch.Tensor]]:
    """Run a block beside one call of a layer: rows 0 and 1 of its three are the request's.

    Returns:
        The run, what the model went on with, the live tensors, and those that were copied.
    """
    tree = ModelTree(nn.Sequential(Layer(container)))
    body = "".join(f"    {line}\n" for line in text.strip().split("\n"))
    program = Program.from_values(
        BlockSource("<test block>", 1, f"with _:\n{body}", 0, "block"), {"layer": tree.envoy()[0], **values}
    )
    run = program.start(program.values, grad=False, read_only=False)
    hub = Interleaver(tree)
    scope = CountingScope(0, 2, 3, alone=alone)
    object.__setattr__(scope, "copied", [])
    with torch.inference_mode():
        hidden, residual = torch.zeros(3, 4), torch.ones(3, 4)
        hub.begin_step({run: scope}, {run: 0})
        output = tree.root[0](hidden, residual)
        hub.end_step()
    run.end()
    return run, output, (hidden, residual), scope.copied


def test_of_a_tuple_only_the_items_that_a_block_reads_are_copied() -> None:
    for text, expected in [
        ("kept = layer.output[0].save()", [0]),
        ("kept = layer.output[-1].save()", [1]),
        ("kept = (layer.output[1] + layer.output[1]).save()", [1]),
        ("kept = (layer.output[1] + layer.output[0]).save()", [1, 0]),
        ("kept = sum(layer.output).save()", [0, 1]),
        ("first = layer.output[0]\nkept = sum(layer.output).save()", [0, 1]),
    ]:
        run, _, live, copied = visit(text)
        assert run.error is None
        assert run.named["kept"].shape == (2, 4)
        assert [[tensor is one for one in live].index(True) for tensor in copied] == expected, text


def test_an_item_read_twice_is_one_tensor_and_is_in_the_whole_value() -> None:
    run, *_ = visit("same = (layer.output[0] is layer.output[-2] is layer.output[0] is layer.output[0]).save()")
    assert run.named["same"] is True
    run, *_ = visit("first = layer.output[0]\nsame = (layer.output[:][0] is first).save()")
    assert run.named["same"] is True


def test_an_edit_of_one_item_lands_and_leaves_the_others_untouched() -> None:
    run, output, (hidden, residual), copied = visit("layer.output[1][:] = 7")
    assert (run.error, run.receipt.edits) == (None, {"0.output": 1})
    assert output[0] is hidden
    assert output[1] is residual
    assert residual[:, 0].tolist() == [7, 7, 1]
    assert hidden[:, 0].tolist() == [0, 0, 0]
    assert len(copied) == 1


def test_an_item_that_is_read_after_another_was_edited_is_the_models_own_value() -> None:
    run, _, (_, residual), _ = visit("layer.output[0][:] = 7\nkept = layer.output[1].save()")
    assert run.named["kept"].tolist() == residual[:2].tolist()


def test_a_read_changes_nothing_and_counts_as_no_edit() -> None:
    run, output, live, _ = visit("kept = layer.output[0].save()")
    assert run.receipt.edits == {}
    assert all(one is other for one, other in zip(output, live, strict=True))


def test_items_of_other_containers_are_read_from_the_whole_value() -> None:
    run, _, _, copied = visit("kept = layer.output[0].save()", container=list)
    assert run.named["kept"].shape == (2, 4)
    assert len(copied) == 2
    run, _, (hidden, _), _ = visit("layer.output[0] = layer.output[1] * 3", container=list)
    assert run.error is None
    assert hidden[:, 0].tolist() == [3, 3, 0]
    run, *_ = visit("kept = layer.output[1].save()", container=lambda pair: pair[0])
    assert run.named["kept"].shape == (4,)


def test_items_of_a_replacement_are_those_of_the_replacement() -> None:
    run, output, _, copied = visit(
        "layer.output = (new, new + 1)\nkept = layer.output[1].save()", new=torch.zeros(2, 4)
    )
    assert run.named["kept"].tolist() == [[1] * 4] * 2
    assert output[1][:, 0].tolist() == [1, 1, 1]
    assert not copied


def test_an_item_that_is_not_there_is_the_blocks_own_error() -> None:
    run, _, _, _ = visit("layer.output[2]")
    assert isinstance(run.error, IndexError)


def test_items_of_other_objects_are_read_as_ever() -> None:
    run, *_ = visit("kept = [box.output[0], box.inputs[-1]].save()", box=Box())
    assert run.named["kept"] == ["first", "last"]


def test_a_replacement_that_does_not_fit_is_refused_where_it_is_assigned() -> None:
    after: list[int] = []
    text = "first = layer.output[0]\nlayer.output = (first, first[:1])\nafter.append(1)"
    run, _, (hidden, _), _ = visit(text, after=after)
    assert isinstance(run.error, MismatchedValueError)
    assert not after
    assert hidden.sum() == 0


def test_an_edited_item_lands_beside_one_that_all_requests_share() -> None:
    run, output, (hidden, _), _ = visit(
        "layer.output[0][:] = 5", container=lambda pair: (pair[0], torch.ones(7)), alone=False
    )
    assert run.error is None
    assert hidden[:, 0].tolist() == [5, 5, 0]
    assert output[1].tolist() == [1] * 7


class Box:
    """Has items under the names of a module's sides."""

    output = ("first",)
    inputs = ("first", "last")


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        (-1, r"tracer\.iter\[-1\] counts from the end, but the number of steps is not known beforehand"),
        ([0, -2], r"tracer\.iter\[\[0, -2\]\] counts from the end"),
        (slice(-3, None), r"tracer\.iter\[-3:\] counts from the end or backwards"),
        (slice(None, None, -1), r"tracer\.iter\[::-1\] counts from the end or backwards"),
        ([2, 1], r"tracer\.iter\[\[2, 1\]\]: steps must increase, since a request goes through each of them once"),
    ],
)
def test_steps_counted_from_the_end_or_backwards_are_refused_with_the_reason(selector: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        selected_steps(selector)


def test_a_call_that_a_block_makes_itself_is_no_visit_of_its_neighbours() -> None:
    tree = ModelTree(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    values = {"first": tree.envoy()[0], "second": tree.envoy()[1]}

    def start(text: str) -> BlockRun:
        body = "".join(f"    {line}\n" for line in text.split("\n"))
        program = Program.from_values(BlockSource("<test block>", 1, f"with _:\n{body}", 0, "block"), values)
        return program.start(values, grad=False, read_only=False)

    waiting = start("found = second.output.save()")
    calling = start("hidden = first.output\ncalled = second(hidden * 100).save()\nown = second.output.save()")
    hub = Interleaver(tree)
    with torch.no_grad():
        hub.begin_step({waiting: RowScope(0, 2, 3), calling: RowScope(2, 3, 3)}, {waiting: 0, calling: 0})
        output = tree.root(torch.randn(3, 4))
        hub.end_step()
    assert torch.equal(waiting.named["found"], output[:2])
    assert waiting.error is None
    assert calling.error is None
    assert torch.equal(calling.named["own"], output[2:])
    assert waiting.receipt.visits == {"1.output": 1}
