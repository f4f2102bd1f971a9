"""What is saved in functions, under other names of `save`, and in containers above the invokes."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn

import nnsight
from nnsight import NNsight
from nnsight.errors import ConflictingChangesWarning

SCALE = 2


@pytest.fixture
def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


# Saves in functions ------------------------------------------------------------------------------------------------


def total_of(states: torch.Tensor) -> Any:
    return keep_total(states * SCALE)


def keep_total(states: torch.Tensor) -> Any:
    return float(states.detach().sum()).save()  # type: ignore[attr-defined]


def norms(states: torch.Tensor, depth: int) -> None:
    states.detach().norm().save()  # type: ignore[attr-defined]
    if depth:
        norms(states, depth - 1)


class Probe:
    """Saves in its methods."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def apply(self, states: torch.Tensor) -> torch.Tensor:
        return (states * self.factor).save()  # type: ignore[attr-defined]

    def keep(self, states: torch.Tensor) -> int:
        return nnsight.save(states.numel())


def test_helpers_of_helpers_methods_partials_and_recursive_functions_save(network: nn.Sequential) -> None:
    model, probe = NNsight(network), Probe(3.0)
    apply = probe.apply
    inverse = functools.partial(Probe(-1.0).apply)
    with model.trace(torch.ones(1, 4)) as tracer:
        states = model[0].output.save()
        total = total_of(states)
        tripled = apply(states)
        kept = probe.keep(states)
        negative = inverse(states)
        norms(states, 2)
    assert total == pytest.approx(float(states.detach().sum()) * 2)
    assert torch.equal(tripled, states * 3)
    assert torch.equal(negative, -states)
    assert kept == 8
    norm = pytest.approx(float(states.detach().norm()))
    assert [float(each) for each in tracer.saves["states.detach().norm()"]] == [norm] * 3


def test_a_save_in_a_method_that_is_looked_up_on_its_object_says_what_to_write(network: nn.Sequential) -> None:
    model, probe = NNsight(network), Probe(3.0)
    with pytest.raises(AttributeError, match="save") as raised, model.trace(torch.ones(1, 4)):
        probe.apply(model[0].output)
    assert any("write nnsight.save(value) there" in note for note in raised.value.__notes__)


def test_functions_and_the_block_share_copies_of_what_they_use(network: nn.Sequential) -> None:
    model = NNsight(network)
    seen: list[int] = []

    def note(number: int) -> Any:
        seen.append(number)
        return len(seen).save()  # type: ignore[attr-defined]

    with model.trace(torch.ones(1, 4)):
        first = note(1)
        size = len(seen).save()
    assert (first, size, seen) == (1, 1, [])


def test_what_a_function_adds_to_its_saved_variable_comes_home(network: nn.Sequential) -> None:
    model = NNsight(network)

    def block(model: Any) -> None:
        count = (0).save()  # type: ignore[attr-defined]
        total = (0.0).save()  # type: ignore[attr-defined]
        for layer in model:
            count += 1
            total += layer.output.detach().numel()

    tracer = model.run(torch.ones(1, 4), block)
    assert (tracer.saves["count"], tracer.saves["total"]) == (3, 18.0)


def test_a_save_of_a_name_that_is_deleted_comes_home(network: nn.Sequential) -> None:
    model = NNsight(network)
    with model.trace(torch.ones(1, 4)) as tracer:
        gone = model[0].output.save()
        del gone
    assert tracer.saves["gone"].shape == (1, 8)


def test_save_is_known_by_any_name(network: nn.Sequential) -> None:
    import nnsight as sight
    from nnsight import save as keep

    def count(states: torch.Tensor) -> None:
        number = keep(len(states))  # noqa: F841 - comes home under its name

    def again(states: torch.Tensor) -> None:
        from nnsight import save as put

        put(states.ndim)

    model = NNsight(network)
    with model.trace(torch.ones(3, 4)) as tracer:
        states = keep(model[0].output)
        two = keep(2)
        three = sight.save(3)
        keep(len(states) + 1)
        count(states)
        again(states)
    assert (two, three, states.shape) == (2, 3, (3, 8))
    assert {name: tracer.saves[name] for name in ("number", "len(states) + 1", "states.ndim")} == {
        "number": 3,
        "len(states) + 1": 4,
        "states.ndim": 2,
    }


# Containers saved above the invokes --------------------------------------------------------------------------------


def test_places_that_several_invokes_assign_are_warned_of(network: nn.Sequential) -> None:
    model, x = NNsight(network), torch.ones(1, 4)
    with pytest.warns(ConflictingChangesWarning) as warned, model.trace() as tracer:
        counts, slots = {"all": 0, "inner": [None]}.save(), [None, None].save()
        for index in range(2):
            with tracer.invoke(x):
                counts["all"] += 1
                counts["inner"][0] = index
                slots[index] = index
    messages = [str(each.message) for each in warned]
    assert [message.split(",")[0] for message in messages] == [
        "2 invokes assigned counts['all']",
        "2 invokes assigned counts['inner'][0]",
    ]
    assert warned[0].filename == __file__
    assert (counts, slots) == ({"all": 1, "inner": [1]}, [0, 1])


def test_equal_values_for_a_new_place_are_no_conflict_and_aliases_change_once(network: nn.Sequential) -> None:
    model, x = NNsight(network), torch.ones(1, 4)
    with model.trace() as tracer:
        table, seen = {}.save(), list().save()
        other = seen
        for _ in range(2):
            with tracer.invoke(x):
                table["done"] = True
                other.append(len(seen))
    assert table == {"done": True}
    assert seen == [0, 0]
