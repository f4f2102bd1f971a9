"""What holds for a module traced in this process, besides the conformance suite."""

from __future__ import annotations

import copy
import sys
import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from nnsight import NNsight, save
from nnsight._interleave import BlockRun, Location, RowScope
from nnsight._interleave.steps import selected_steps
from nnsight.errors import (
    InvalidRequestError,
    MismatchedValueError,
    OutOfOrderError,
    OutsideTraceError,
    ReadOnlyError,
    RequestFailedError,
    SharedValueError,
    UnknownLocationError,
    UnsupportedFeatureError,
)


class Shared(nn.Module):
    """Two blocks that share one module."""

    def __init__(self) -> None:
        super().__init__()
        tied = nn.Linear(3, 3)
        self.first = nn.ModuleDict({"own": nn.Linear(3, 3), "tied": tied})
        self.second = nn.ModuleDict({"own": nn.Linear(3, 3), "tied": tied})
        self.blocks = nn.ModuleList([_Block(self.first), _Block(self.second)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class _Block(nn.Module):
    def __init__(self, parts: nn.ModuleDict) -> None:
        super().__init__()
        self.own, self.tied = parts["own"], parts["tied"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.tied(self.own(x))


@pytest.fixture
def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def test_a_module_shared_by_several_parents_is_told_apart_by_its_caller() -> None:
    torch.manual_seed(0)
    module = Shared()
    x = torch.randn(2, 3)
    with torch.no_grad():
        expected = module.blocks[0](x)
        second = module.blocks[1](expected)
    model = NNsight(module)
    with model.trace(x):
        found = model.blocks[1].tied.output.save()
    assert torch.allclose(found, second)


def test_modules_are_as_before_after_a_trace(network: nn.Sequential) -> None:
    model = NNsight(network)
    x = torch.ones(1, 4)
    with model.trace(x):
        model[0].output.save()
    with pytest.raises(ZeroDivisionError), model.trace(x):
        model[0].input
        1 / 0
    assert all("forward" not in module.__dict__ for module in network.modules())


def test_a_forward_replaced_by_somebody_else_is_called_and_kept(network: nn.Sequential) -> None:
    original = network[0].forward
    network[0].forward = lambda x: original(x) + 1  # type: ignore[method-assign]
    model = NNsight(network)
    x = torch.ones(1, 4)
    with model.trace(x):
        found = model[0].output.save()
    assert torch.equal(found, original(x) + 1)
    assert "forward" in network[0].__dict__


def test_gradients_flow_through_reads_and_edits(network: nn.Sequential) -> None:
    model = NNsight(network)
    x = torch.randn(3, 4)
    other = copy.deepcopy(network)
    with model.trace(x):
        model[0].output[:] *= 2.0
        model[2].output.sum().backward()
    other[2](torch.relu(other[0](x) * 2.0)).sum().backward()
    assert torch.allclose(network[0].weight.grad, other[0].weight.grad)


def test_a_block_keeps_its_grad_mode_and_the_model_its_own(network: nn.Sequential) -> None:
    model = NNsight(network)
    with model.trace(torch.ones(1, 4)):
        torch.set_grad_enabled(False)
        hidden = model[0].output
        inside = torch.is_grad_enabled().save()
        result = model.output.requires_grad.save()
        hidden.requires_grad
    assert torch.is_grad_enabled()
    assert inside is False
    assert result is False or result is True


def test_an_untraced_thread_that_calls_the_module_is_left_alone(network: nn.Sequential) -> None:
    model = NNsight(network)
    x = torch.ones(1, 4)
    seen: list[torch.Tensor] = []

    def outside(value: torch.Tensor) -> torch.Tensor:
        thread = threading.Thread(target=lambda: seen.append(network[2](torch.relu(network[0](x)))))
        thread.start()
        thread.join()
        return value

    network[1].register_forward_hook(lambda module, args, output: outside(output))
    with model.trace(x):
        last = model[2].output.save()
    assert torch.equal(seen[0], last)


def test_a_trace_without_input_and_without_invokes_is_refused(network: nn.Sequential) -> None:
    model = NNsight(network)
    with pytest.raises(InvalidRequestError, match="no invoke"), model.trace():
        pass


def test_an_invoke_inside_a_trace_with_an_input_is_refused(network: nn.Sequential) -> None:
    model = NNsight(network)
    with model.trace(torch.ones(1, 4)) as tracer:
        model[0].output.save()
    with pytest.raises(InvalidRequestError, match="invoke was called outside"):
        tracer.invoke(torch.ones(1, 4))


def test_the_tracer_outside_a_block_says_where_its_parts_exist(network: nn.Sequential) -> None:
    tracer = NNsight(network).trace(torch.ones(1, 4))
    for use in (lambda: tracer.iter, tracer.all, tracer.stop, lambda: tracer.result, lambda: tracer.receipt):
        with pytest.raises(OutsideTraceError):
            use()
    with pytest.raises(OutsideTraceError, match=r"nnsight\.save was called outside"):
        save(1)


def test_nothing_but_values_can_be_assigned(network: nn.Sequential) -> None:
    model = NNsight(network)
    with pytest.raises(UnknownLocationError, match="cannot be assigned"):
        model.something = 1
    with pytest.raises(UnknownLocationError, match="cannot be assigned"):
        model[0].weight = 1


def test_a_module_cannot_be_saved_by_itself(network: nn.Sequential) -> None:
    model = NNsight(network)
    with pytest.raises(InvalidRequestError, match="is a module"), model.trace(torch.ones(1, 4)):
        model[0].save()


def test_exit_in_a_block_is_an_error_of_the_request(network: nn.Sequential) -> None:
    model = NNsight(network)
    with pytest.raises(RequestFailedError, match="SystemExit"), model.trace(torch.ones(1, 4)):
        sys.exit(3)


def test_an_error_of_the_model_itself_keeps_its_type_and_the_saves(network: nn.Sequential) -> None:
    def fail(module: nn.Module, args: Any) -> None:
        raise LookupError("of the model")

    network[2].register_forward_pre_hook(fail)
    model = NNsight(network)
    with pytest.raises(LookupError, match="of the model") as raised, model.trace(torch.ones(1, 4)):
        first = model[0].output.save()  # noqa: F841 - comes home with the error
        model[2].output.save()
    assert set(raised.value.saves) == {"first"}  # type: ignore[attr-defined]
    assert "forward" not in network.__dict__


def test_an_error_before_the_block_ran_is_the_errors_of_the_request() -> None:
    run = BlockRun(lambda run: run.read(Location("layer", "output")))
    run.fail(ValueError("before"))
    assert run.finished
    assert str(run.error) == "before"
    assert run.receipt.visits == {}


def test_a_read_only_run_refuses_an_edit_when_it_lands() -> None:
    location = Location("layer", "output")
    run = BlockRun(lambda run: run.read(location).add_(1.0), read_only=True)  # type: ignore[attr-defined]
    live = torch.zeros(2, 3)
    scope = RowScope(0, 2, 2, alone=True)
    run.begin_step(0, scope)
    run.serve(live, scope)
    assert isinstance(run.error, ReadOnlyError)
    assert torch.equal(live, torch.zeros(2, 3))


def test_rows_of_a_request_are_its_own_and_shared_values_cannot_be_edited() -> None:
    location = Location("layer", "output")
    live = torch.zeros(5, 3)
    scope = RowScope(1, 3, 5)
    edits = BlockRun(lambda run: run.read(location).add_(1.0))  # type: ignore[attr-defined]
    edits.begin_step(0, scope)
    edits.serve(live, scope)
    assert live.sum(1).tolist() == [0.0, 3.0, 3.0, 0.0, 0.0]
    shared = BlockRun(lambda run: run.read(location).add_(1.0))  # type: ignore[attr-defined]
    shared.begin_step(0, scope)
    table = torch.zeros(7)
    shared.serve(table, scope)
    assert isinstance(shared.error, SharedValueError)
    assert table.sum() == 0


def test_reads_in_inference_mode_are_served(network: nn.Sequential) -> None:
    model = NNsight(network)
    x = torch.ones(1, 4)
    with torch.inference_mode(), model.trace(x):
        outside = model[0].output.save()
    with model.trace(x):
        with torch.inference_mode():
            inside = model[0].output.save()
            other = model[2].output.save()
    assert torch.equal(outside, inside)
    assert other.shape == (1, 2)


def test_a_mode_of_torch_that_would_reach_the_model_is_refused(network: nn.Sequential) -> None:
    model = NNsight(network)
    with pytest.raises(UnsupportedFeatureError, match="inside a torch mode"), model.trace(torch.ones(1, 4)):
        with torch.device("meta"):
            model[0].output.save()
    with pytest.raises(UnsupportedFeatureError, match="inside a torch mode"), model.trace(torch.ones(1, 4)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            model[0].output.save()


def test_an_item_replaced_in_a_handed_container_lands() -> None:
    class Table(nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"h": x, "r": x * 2}

    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = Table()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            parts = self.table(x)
            return parts["h"] + parts["r"]

    model = NNsight(Root())
    with model.trace(torch.ones(2, 3)) as tracer:
        model.table.output["h"] = torch.zeros(2, 3)
        result = tracer.result.save()
    assert torch.equal(result, torch.full((2, 3), 2.0))
    assert tracer.receipt.edits == {"table.output": 1}


def test_a_module_that_one_parent_calls_under_two_names_is_refused() -> None:
    act = nn.ReLU()
    model = NNsight(nn.Sequential(nn.Linear(2, 2), act, nn.Linear(2, 2), act))
    with pytest.raises(UnsupportedFeatureError, match="1 and 3 are one module"), model.trace(torch.ones(1, 2)):
        model[3].output.save()


def test_an_edit_after_the_model_moved_on_does_not_reach_it(network: nn.Sequential) -> None:
    model = NNsight(network)
    mine = torch.full((1, 8), -3.0)
    with torch.no_grad(), model.trace(torch.ones(1, 4)):
        model[0].output = mine
        mine_inside = model[1].output.save()
    assert torch.equal(mine, torch.full((1, 8), -3.0))
    assert float(mine_inside.abs().max()) == 0.0


def test_collections_of_saves_come_home(network: nn.Sequential) -> None:
    model = NNsight(network)
    with model.trace(torch.ones(1, 4)):
        every = [layer.output.save() for layer in model]
        table = {"shape": 3, "last": every[-1]}
    assert [value.shape[1] for value in every] == [8, 8, 2]
    with pytest.raises(NameError):
        table


def test_collections_of_saves_come_home_with_an_error(network: nn.Sequential) -> None:
    model = NNsight(network)
    with pytest.raises(KeyError, match="mine") as raised, model.trace(torch.ones(1, 4)):
        every = [layer.output.save() for layer in model]  # noqa: F841 - comes home with the error
        raise KeyError("mine")
    assert [value.shape[1] for value in raised.value.saves["every"]] == [8, 8, 2]  # type: ignore[attr-defined]


def test_a_module_that_works_in_place_does_not_change_what_a_block_kept() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
    x = torch.randn(3, 4)
    model = NNsight(module)
    with torch.no_grad():
        linear = module[0](x)
        with model.trace(x):
            kept = model[0].output.save()
        with model.trace(x):
            as_tuple = (model[0].output, 1).save()
    assert torch.equal(kept, linear)
    assert torch.equal(as_tuple[0], linear)
    assert float(linear.min()) < 0


def test_an_invoke_in_a_helper_leaves_other_variables_alone(network: nn.Sequential) -> None:
    model = NNsight(network)

    def helper(tracer: Any, x: torch.Tensor) -> None:
        with tracer.invoke(x):
            hidden = model[0].output.save()  # noqa: F841 - on tracer.saves

    hidden = "mine"
    with model.trace() as tracer:
        helper(tracer, torch.ones(1, 4))
    assert hidden == "mine"
    assert tracer.saves["hidden"].shape == (1, 8)


def test_a_block_that_asks_on_and_on_for_what_is_not_computed_keeps_its_saves(network: nn.Sequential) -> None:
    model = NNsight(network)
    with model.trace(torch.ones(1, 4)):
        misses = 0
        model[2].output
        for _ in range(150):
            try:
                model[0].output
            except OutOfOrderError:
                misses += 1
        misses.save()
    assert misses == 150


def test_two_models_of_one_module_in_two_threads(network: nn.Sequential) -> None:
    found: list[torch.Tensor] = []

    def work() -> None:
        model = NNsight(network)
        for _ in range(20):
            with model.trace(torch.ones(1, 4)):
                hidden = model[0].output.save()
        found.append(hidden)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3


def test_a_tied_module_of_an_inner_parent_is_not_taken_for_the_outer_one() -> None:
    class Inner(nn.Module):
        def __init__(self, tied: nn.Module) -> None:
            super().__init__()
            self.embed = tied

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.embed(x) + 1

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            tied = nn.Linear(3, 3)
            self.inner, self.head = Inner(tied), tied

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.inner(x))

    module = Outer()
    model = NNsight(module)
    x = torch.ones(1, 3)
    with model.trace(x):
        embedded = model.inner.embed.output.save()
        head = model.head.output.save()
    with model.trace(x):
        alone = model.head.output.save()
    expected = module(x)
    assert torch.allclose(embedded, module.head(x))
    assert torch.allclose(head, expected)
    assert torch.allclose(alone, expected)


def test_an_ad_hoc_call_in_place_changes_nothing_of_the_model() -> None:
    model = NNsight(nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True)))
    with model.trace(torch.ones(1, 2)) as tracer:
        hidden = model[0].output
        model[1](hidden).save()
    assert tracer.receipt.edits == {}


# Trees and steps ---------------------------------------------------------------------------------------------------


def test_an_envoy_of_a_module_dict_has_its_names_and_envoys() -> None:
    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.ReLU()})

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.parts["b"](self.parts["a"](x))

    model = NNsight(Root())
    parts = model.parts
    assert list(parts) == list(parts.keys()) == ["a", "b"]
    assert (len(parts), "a" in parts, "c" in parts) == (2, True, False)
    assert list(parts.values()) == [parts["a"], parts["b"]]
    assert dict(parts.items()) == {"a": parts.a, "b": parts.b}
    with pytest.raises(UnknownLocationError, match="its modules have names: a, b"):
        parts[0]
    with model.trace(torch.ones(1, 2)):
        outputs = {name: part.output.save() for name, part in model.parts.items()}
    assert set(outputs) == {"a", "b"}


@pytest.mark.parametrize("selector", [np.int64(2), torch.tensor(2), [np.int32(2)], range(2, 3), slice(np.int64(2), 3)])
def test_integers_of_any_kind_select_steps(selector: Any) -> None:
    assert list(selected_steps(selector)[0]) == [2]


@pytest.mark.parametrize("selector", [True, 1.0, "1", [0, "1"], None, [True]])
def test_what_is_no_integer_selects_no_step(selector: Any) -> None:
    with pytest.raises(TypeError, match="takes an integer"):
        selected_steps(selector)


def test_a_module_is_indexed_by_integers_of_any_kind(network: nn.Sequential) -> None:
    model = NNsight(network)
    assert model[np.int64(1)] is model[1]
    assert model[torch.tensor(-1)] is model[2]


def test_an_input_cannot_be_assigned_where_the_module_is_called_without_arguments() -> None:
    class Constant(nn.Module):
        def forward(self) -> torch.Tensor:
            return torch.ones(2)

    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.constant = Constant()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.constant()

    model = NNsight(Root())
    with pytest.raises(MismatchedValueError, match=r"constant\.input was assigned, but .* without arguments"):
        with model.trace(torch.ones(2)):
            model.constant.input = torch.zeros(2)
    with model.trace(torch.ones(2)):
        nothing = model.constant.input.save()
    assert nothing is None


def test_the_end_of_a_request_is_named_where_a_value_is_asked_for_after_it(network: nn.Sequential) -> None:
    model = NNsight(network)
    with pytest.raises(OutOfOrderError, match="the request is over after 1 step:"):
        with model.trace(torch.ones(1, 4)) as tracer:
            for _ in tracer.iter[:]:
                model[0].output
            model[0].output
