"""Ops and skips of requests that share a batch, without an engine around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from nnsight import NNsight
from nnsight._envoy import Envoy, ModelTree
from nnsight._interleave import Interleaver, RowScope
from nnsight._interleave.run import BlockRun
from nnsight.errors import MismatchedValueError, OutOfOrderError, UnsupportedFeatureError
from tests.source.forwards import SIZE, Decorated, Wrapping, double


class Counting(nn.Module):
    """Counts its calls, as a module with a cache would notice them."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        self.calls += 1
        return torch.neg(x), None


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.child = Counting()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        alias = x
        out, _ = self.child(alias)
        return torch.add(out, x)


Body = Callable[[Envoy], object]


def run_batch(tree: ModelTree, x: torch.Tensor, *bodies: Body | None, hub: Interleaver | None = None) -> torch.Tensor:
    """Run one step in which each body owns one row of `x`; None is a request without a block."""
    hub = hub or Interleaver(tree)
    runs: dict[BlockRun, Any] = {}
    for index, body in enumerate(bodies):
        if body is not None:
            run = BlockRun(lambda run, body=body: body(tree.envoy()))
            runs[run] = RowScope(index, index + 1, len(bodies), alone=len(bodies) == 1)
    with torch.inference_mode():
        hub.begin_step(runs, dict.fromkeys(runs, 0))
        out = tree.root(x)
        hub.end_step()
    for run in runs:
        run.end()
        if run.error is not None:
            raise run.error
    return out


@pytest.fixture
def x() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(3, SIZE)


def test_an_edited_op_leaves_other_names_of_its_memory_alone(x: torch.Tensor) -> None:
    tree = ModelTree(Wrapping(nn.Identity()))

    def body(model: Envoy) -> None:
        model.source.alias_0.output[:] = 5

    out = run_batch(tree, x.clone(), None, body, None)
    expected = x + x
    expected[1] = 5 + x[1]
    assert torch.equal(out, expected)


def test_each_request_is_handed_its_rows_of_an_op(x: torch.Tensor) -> None:
    tree = ModelTree(Wrapping(Decorated()))
    seen: dict[int, torch.Tensor] = {}

    def reader(row: int) -> Body:
        def body(model: Envoy) -> None:
            seen[row] = model.child.source.double_0.source.torch_relu_0.input

        return body

    run_batch(tree, x, reader(0), None, reader(2))
    assert sorted(seen) == [0, 2]
    assert all(torch.equal(seen[row], x[row : row + 1] * 3) for row in seen)


@pytest.mark.parametrize("of_op", [False, True])
def test_a_skip_among_neighbours_calls_the_module_for_them(of_op: bool, x: torch.Tensor) -> None:
    tree = ModelTree(Around())

    def body(model: Envoy) -> None:
        (model.source.self_child_0 if of_op else model.child).skip((torch.ones(1, SIZE), None))

    expected = x * 0
    expected[1] = x[1] + 1
    hub = Interleaver(tree)
    # The second time what the call returns is known, but the neighbours' part of it is not.
    for _ in range(2):
        out = run_batch(tree, x, None, body, None, hub=hub)
        assert torch.equal(out, expected)
    assert tree.root.child.calls == 2


@pytest.mark.parametrize("of_op", [False, True])
def test_a_skip_alone_does_not_call_the_module_once_its_values_are_known(of_op: bool, x: torch.Tensor) -> None:
    tree = ModelTree(Around())
    hub = Interleaver(tree)
    row = x[:1]

    def body(model: Envoy) -> None:
        (model.source.self_child_0 if of_op else model.child).skip((torch.ones(1, SIZE), None))

    for _ in range(3):
        assert torch.equal(run_batch(tree, row, body, hub=hub), row + 1)
    assert tree.root.child.calls == 1


def test_a_value_that_does_not_fit_leaves_the_models_own(x: torch.Tensor) -> None:
    tree = ModelTree(Around())
    hub = Interleaver(tree)
    seen = []

    def body(model: Envoy) -> None:
        try:
            model.child.skip(torch.ones(1, SIZE))
        except MismatchedValueError as error:
            seen.append(str(error))

    for _ in range(2):
        assert torch.equal(run_batch(tree, x[:1], body, hub=hub), x[:1] * 0)
    assert all("child.skip holds a tuple of 2 values" in each for each in seen)
    assert tree.root.child.calls == 2


@pytest.mark.parametrize("of_op", [False, True])
def test_a_skipped_module_that_keeps_state_is_called_all_the_same(of_op: bool, x: torch.Tensor) -> None:
    tree = ModelTree(Around(), keeps_state=lambda module: any(isinstance(each, Counting) for each in module.modules()))
    hub = Interleaver(tree)

    def body(model: Envoy) -> None:
        (model.source.self_child_0 if of_op else model.child).skip((torch.ones(1, SIZE), None))

    for _ in range(3):
        assert torch.equal(run_batch(tree, x[:1], body, hub=hub), x[:1] + 1)
    assert tree.root.child.calls == 3


def test_in_process_a_skipped_module_is_not_called_and_anything_goes(x: torch.Tensor) -> None:
    module = Around()
    model = NNsight(module)
    with model.trace(x):
        given = model.child.input
        model.child.skip((given * 0 + 2, "anything"))
        kept = model.child.output.save()
    assert torch.equal(kept[0], torch.full_like(x, 2))
    assert kept[1] == "anything"
    assert module.child.calls == 0
    with model.trace(x) as tracer:
        model.skip("nothing at all")
    assert tracer.result == "nothing at all"
    assert tracer.receipt.visits == {"skip": 1}


def test_a_second_skip_of_one_call_is_out_of_order(x: torch.Tensor) -> None:
    model = NNsight(Around())
    with pytest.raises(OutOfOrderError, match=r"child\.skip"), model.trace(x):
        model.child.skip((x, None))
        model.child.skip((x, None))


def test_what_a_block_does_to_a_skipped_value_later_stays_its_own(x: torch.Tensor) -> None:
    model = NNsight(Around())
    with model.trace(x) as tracer:
        value = torch.zeros(3, SIZE)
        model.child.skip((value, None))
        value += 100
        model.child.output
    assert torch.equal(tracer.result, x)


def test_ops_between_shares_of_a_tensor_parallel_layer_are_refused() -> None:
    both = frozenset({"input", "inputs", "output"})
    tree = ModelTree(nn.Sequential(Wrapping(nn.Linear(SIZE, SIZE))), sharded={"0.child": both})

    def inside(model: Envoy) -> None:
        model[0].source.alias_0.output

    with pytest.raises(UnsupportedFeatureError, match="tensor-parallel"):
        run_batch(tree, torch.zeros(1, SIZE), inside)


def test_a_wait_inside_a_function_is_forgotten_at_the_end_of_its_step(x: torch.Tensor) -> None:
    tree = ModelTree(Wrapping(Decorated()))
    hub = Interleaver(tree)

    def never(model: Envoy) -> None:
        model.child.source.double_0.source.torch_relu_0.output
        with pytest.raises(OutOfOrderError):
            model.child.source.double_0.source.scaled_0.output

    run_batch(tree, x, never, None, None, hub=hub)
    out = run_batch(tree, x, None, None, None, hub=hub)
    assert torch.equal(out, double(x, factor=3) + x)
    assert all("forward" not in module.__dict__ for module in tree.root.modules())
