"""Ops are found, named and served in forwards of every form."""

from __future__ import annotations

import functools
import inspect
import re
import traceback
from typing import Any

import pytest
import torch
from torch import nn

from nnsight import NNsight
from nnsight.errors import (
    OutOfOrderError,
    OutsideTraceError,
    SourceNotFoundError,
    UnknownLocationError,
    UnsupportedFeatureError,
)
from tests.source import forwards
from tests.source.forwards import (
    SIZE,
    Choosing,
    Decorated,
    Dispatching,
    Flexible,
    Inheriting,
    Looping,
    Seeing,
    Wrapping,
)


@pytest.fixture
def x() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(2, SIZE)


def names_of(module: nn.Module) -> list[str]:
    return re.findall(r"^(\w+) +->", str(NNsight(module).source), re.MULTILINE)


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (Inheriting(), ["super_forward_0", "self___add_0"]),
        (Decorated(), ["double_0"]),
        (Flexible(), ["sum_0", "others_get_0", "torch_abs_0", "torch_sub_0", "neg__0"]),
        (Looping(), ["range_0", "torch_mul_0", "x_0", "torch_neg_0", "parts_0", "pick_0", "pick_1"]),
        (
            Seeing(),
            ["torch_add_0", "set_0", "sorted_0", "a_b_0", "len_0", "a_view_0", "a_view_view_0"],
        ),
        (Dispatching("forward_native"), ["torch_sin_0"]),
        (Dispatching("forward_cpu"), ["torch_sin_0"]),
        (Dispatching("forward_static"), ["torch_cos_0"]),
        (Choosing(), ["function_0", "function_1"]),
        (nn.Linear(2, 2), ["F_linear_0"]),
    ],
)
def test_ops_are_named_after_what_they_call_or_assign(module: nn.Module, names: list[str]) -> None:
    assert names_of(module) == names


def test_a_child_and_an_op_are_the_same_value(x: torch.Tensor) -> None:
    model = NNsight(Wrapping(nn.Linear(SIZE, SIZE)))
    with model.trace(x):
        of_op = model.source.self_child_0.output.save()
    assert torch.equal(of_op, model._module.child(x))


def test_super_private_names_and_defaults_work(x: torch.Tensor) -> None:
    model = NNsight(Inheriting())
    with model.trace(x) as tracer:
        parent = model.source.super_forward_0.output.save()
        added = model.source.self___add_0.source.torch_add_0.inputs.save()
    assert torch.equal(parent, x * 2.0)
    assert added[0][1] == 1.0
    assert torch.equal(tracer.result, x * 2.0 + 1.0)


def test_decorators_around_a_forward_go_on_working(x: torch.Tensor) -> None:
    model = NNsight(Decorated())
    leaf = x.clone().requires_grad_()
    with model.trace(leaf) as tracer:
        scaled = model.source.double_0.source.scaled_0.output.save()
        out = model.source.double_0.output.save()
    assert torch.equal(scaled, x * 3)
    assert not out.requires_grad
    assert not tracer.result.requires_grad
    assert model._module.calls == 1


def test_closures_keep_their_cells(x: torch.Tensor) -> None:
    model = NNsight(forwards.closing_over(0.5)())
    with model.trace(x) as tracer:
        model.source.moved_0.output = x * 0
        out = model.output.save()
    assert torch.equal(out, -x * 0)
    assert torch.equal(tracer.result, out)
    assert torch.equal(model._module(x), -(x + 0.5))


def test_variable_arguments_and_early_returns_work(x: torch.Tensor) -> None:
    model = NNsight(Flexible())
    with model.trace(x, x, shift=2.0) as tracer:
        total = model.source.sum_0.output.save()
        model.source.torch_sub_0.output[:] = 1
    assert torch.equal(total, x + x)
    assert torch.equal(tracer.result, torch.full_like(x, -1))
    with model.trace(x, early=True) as tracer:
        absolute = model.source.torch_abs_0.output.save()
    assert torch.equal(absolute, x.abs())
    with pytest.raises(OutOfOrderError, match=r"source\.torch_abs_0\.output"), model.trace(x):
        model.source.torch_abs_0.output.save()


def test_each_read_of_an_op_in_a_loop_takes_its_next_turn(x: torch.Tensor) -> None:
    model = NNsight(Looping())
    with model.trace(x) as tracer:
        source = model.source
        products, sums = list().save(), list().save()
        for turn in range(3):
            products.append(source.torch_mul_0.output)
            if turn == 1:
                source.x_0.output = source.x_0.output * 0
            else:
                sums.append(source.x_0.output)
        rows = [source.torch_neg_0.output for _ in range(2)].save()
    assert torch.equal(products[0], x)
    assert torch.equal(products[1], (x + 1) * 2)
    assert torch.equal(products[2], x * 0)
    assert torch.equal(torch.stack(rows), torch.full_like(x, -1))
    assert tracer.receipt.visits["source.torch_mul_0.output"] == 3
    with pytest.raises(OutOfOrderError), model.trace(x):
        for _ in range(4):
            source = model.source
            source.torch_mul_0.output


def test_an_op_outside_loops_is_the_same_value_at_each_read(x: torch.Tensor) -> None:
    model = NNsight(Wrapping(nn.ReLU()))
    with model.trace(x):
        same = (model.source.alias_0.output is model.source.alias_0.output).save()
    assert same


def test_calls_that_look_at_their_frame_and_f_strings_are_left_alone(x: torch.Tensor) -> None:
    model = NNsight(Seeing())
    with model.trace(x) as tracer:
        both = model.source.a_b_0.output.save()
        second = model.source.a_view_view_0.output.save()
    assert torch.equal(both[0], x + 1)
    assert torch.equal(second, x + 1)
    assert torch.equal(tracer.result, x + 1)


@pytest.mark.parametrize(("choice", "op"), [("forward_cpu", "torch_sin_0"), ("forward_static", "torch_cos_0")])
def test_the_method_that_a_forward_hands_on_to_is_the_one_looked_into(choice: str, op: str, x: torch.Tensor) -> None:
    model = NNsight(nn.Sequential(Dispatching(choice)))
    with model.trace(x) as tracer:
        seen = getattr(model[0].source, op).output.save()
        getattr(model[0].source, op).output = seen * 2
    assert torch.equal(tracer.result, seen * 2)
    assert "forward" not in model._module[0].__dict__


def test_a_forward_kept_as_an_attribute_is_looked_into(x: torch.Tensor) -> None:
    module = Wrapping(nn.ReLU())
    module._old_forward = module.forward

    def new_forward(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return module._old_forward(*args, **kwargs) * 10

    module.forward = functools.update_wrapper(functools.partial(new_forward, module), module._old_forward)
    before = module._old_forward
    model = NNsight(module)
    with model.trace(x) as tracer:
        model.source.alias_0.output = torch.zeros_like(x)
        out = model.output.save()
    assert torch.equal(out, x * 10)
    assert torch.equal(tracer.result, out)
    assert module._old_forward == before


def test_a_forward_that_was_replaced_is_looked_into_anew(x: torch.Tensor) -> None:
    module = Wrapping(nn.ReLU())
    model = NNsight(module)
    first = model.source
    assert model.source is first
    module.forward = lambda value: torch.neg(torch.abs(value))
    assert dir(model.source) == ["torch_abs_0", "torch_neg_0"]
    with model.trace(x) as tracer:
        positive = model.source.torch_abs_0.output.save()
    assert torch.equal(tracer.result, -positive)


def test_a_function_that_is_chosen_at_run_time_is_looked_into_there(x: torch.Tensor) -> None:
    model = NNsight(Choosing())
    assert "only when it runs" in str(model.source.function_1.source)
    with model.trace(x):
        inside = model.source.function_1.source.torch_relu_0.output.save()
    assert torch.equal(inside, torch.relu(x * 2))
    with pytest.raises(UnknownLocationError, match=r"double has no op 'no_0'.*torch_relu_0"), model.trace(x):
        model.source.function_1.source.no_0.output
    model._module.choice = "tanh"
    with pytest.raises(SourceNotFoundError, match="C or C"), model.trace(x):
        model.source.function_1.source.torch_relu_0.output


def test_a_module_called_by_an_op_is_looked_into_by_its_own_path(x: torch.Tensor) -> None:
    model = NNsight(Wrapping(Decorated()))
    assert model.source.self_child_0.source is model.child.source


def test_a_shared_module_is_told_apart_by_its_caller(x: torch.Tensor) -> None:
    model = NNsight(forwards.Sharing())
    with model.trace(x):
        second = model.two.child.source.double_0.input.save()
    with model.trace(x):
        first = model.one.child.source.double_0.input.save()
        also = model.two.child.source.double_0.input.save()
    assert torch.equal(first, x)
    assert torch.equal(second, also)
    assert not torch.equal(first, second)


def test_a_module_nobody_looks_into_runs_its_own_code(x: torch.Tensor) -> None:
    seen = []

    class Watching(nn.Module):
        def forward(self, value: torch.Tensor) -> torch.Tensor:
            seen.append(inspect.currentframe().f_code is Watching.forward.__code__)
            return torch.neg(value)

    model = NNsight(nn.Sequential(Watching(), Watching()))
    with model.trace(x):
        model[1].source.torch_neg_0.output.save()
    with model.trace(x):
        model[0].output
    assert seen == [True, False, True, True]
    assert all("forward" not in module.__dict__ for module in model._module.modules())


def test_ops_can_be_asked_for_while_their_module_runs(x: torch.Tensor) -> None:
    model = NNsight(nn.Sequential(Wrapping(nn.ReLU())))
    layer = model[0]
    with model.trace(x):
        child = layer.child.output
        after = layer.source.torch_add_0.input.save()
        out = layer.output.save()
    with model.trace(x):
        for block in model:
            child = block.child.output.save()
            again = block.source.self_child_0.output.save()
    assert torch.equal(after, child)
    assert torch.equal(again, child)
    assert torch.equal(out, child + x)


def test_an_error_in_a_forward_shows_its_real_file_and_line(x: torch.Tensor) -> None:
    module = nn.Sequential(forwards.Failing())
    with pytest.raises(RuntimeError) as plain:
        module(x)
    with pytest.raises(RuntimeError) as traced:
        from nnsight._envoy import ModelTree
        from nnsight._interleave import Interleaver, WholeScope
        from nnsight._interleave.run import BlockRun

        tree = ModelTree(module)
        run = BlockRun(lambda run: tree.envoy().get("0.source.torch_neg_0.output"))
        Interleaver(tree).begin_step({run: WholeScope()}, {run: 0})
        module(x)
    frames = [traceback.extract_tb(error.value.__traceback__) for error in (plain, traced)]
    shown = [[(f.filename, f.lineno, f.line) for f in each if f.filename == forwards.__file__] for each in frames]
    assert shown[0] == shown[1]
    assert "does not fit" in shown[0][0][2]


def test_gradients_flow_through_ops(x: torch.Tensor) -> None:
    model = NNsight(Wrapping(nn.Linear(SIZE, SIZE)))
    with model.trace(x):
        value = model.source.self_child_0.output
        model.source.self_child_0.output = value * 2
        loss = model.output.sum().save()
    loss.backward()
    assert torch.allclose(model._module.child.bias.grad, torch.full((SIZE,), 4.0))


# What is refused ----------------------------------------------------------------------------------------------------


def test_generators_are_refused() -> None:
    with pytest.raises(UnsupportedFeatureError, match="generator"):
        NNsight(forwards.Generating()).source


def test_a_function_without_python_source_is_refused_by_name() -> None:
    source = NNsight(Decorated()).source.double_0.source
    with pytest.raises(SourceNotFoundError, match=r"source\.torch_relu_0 calls relu, which is implemented in C"):
        source.torch_relu_0.source


def test_a_container_that_is_never_called_is_refused() -> None:
    with pytest.raises(SourceNotFoundError, match="0 is a ModuleList, which has no forward"):
        NNsight(nn.Sequential(nn.ModuleList())).get("0.source")


def test_compiled_forwards_are_refused() -> None:
    module = Wrapping(nn.ReLU())
    module.forward = torch.compile(module.forward)
    with pytest.raises(UnsupportedFeatureError, match=r"torch\.compile"):
        NNsight(module).source


def test_a_decorator_that_hides_its_function_is_refused() -> None:
    class Hiding:
        def __init__(self, function: Any) -> None:
            self.__wrapped__ = function

        def __call__(self, *args: Any) -> Any:
            return self.__wrapped__(*args)

    module = Wrapping(nn.ReLU())
    module.forward = Hiding(Decorated().forward)
    with pytest.raises(SourceNotFoundError, match="hides"):
        NNsight(module).source


def test_an_assignment_has_no_arguments_and_cannot_be_skipped(x: torch.Tensor) -> None:
    model = NNsight(Wrapping(nn.ReLU()))
    for use in (lambda op: op.input, lambda op: op.skip(1), lambda op: op.source):
        with pytest.raises(UnknownLocationError, match="assignment"), model.trace(x):
            use(model.source.alias_0)


def test_an_op_itself_is_neither_assigned_nor_pickled_nor_read_outside(x: torch.Tensor) -> None:
    import pickle

    model = NNsight(Wrapping(nn.ReLU()))
    with pytest.raises(UnknownLocationError, match=r"assign its \.output"):
        model.source.alias_0 = 1
    with pytest.raises(OutsideTraceError, match="alias_0"):
        pickle.dumps(model.source.alias_0)
    with pytest.raises(OutsideTraceError, match="only inside a block"):
        model.source.alias_0.output
