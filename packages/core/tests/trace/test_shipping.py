"""What the programs of one trace have in common travels once, and no run sees what another does to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from nnsight._trace.shipping import Shipment, TemplateReader, write_programs
from nnsight.backends import ModelTree, Outcome, Program, Request, TracedModel
from nnsight.errors import UntransferableValueError, WireError


class Shipping(TracedModel):
    """Ships the programs of its traces, and runs none."""

    backend_name = "shipping"

    def __init__(self) -> None:
        self.__dict__["shipments"] = []
        self.__dict__["programs"] = []
        self._tree = ModelTree(nn.Sequential(*(nn.Linear(4, 4) for _ in range(3))))

    def _settable(self) -> frozenset[str]:
        return frozenset({"shipments", "programs"})

    def _prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return args

    def _execute(self, requests: Sequence[Request]) -> list[Outcome]:
        self.programs = [request.program for request in requests]
        self.shipments = write_programs(self.programs)
        return [Outcome() for _ in requests]

    def arrive(self) -> list[tuple[Program, dict[str, object]]]:
        """Return each program where it runs, with the values of its run."""
        reader = TemplateReader(self._tree)
        templates = {shipment.template: reader.read(shipment.template) for shipment in self.shipments}
        return [
            (templates[shipment.template].program, templates[shipment.template].values(shipment.own))
            for shipment in self.shipments
        ]


class Options:
    """Whose attribute may be data, or code."""

    scale: Any = 2.0


@pytest.fixture
def model() -> Shipping:
    return Shipping()


def sizes(shipments: Sequence[Shipment]) -> tuple[int, int]:
    """Return the bytes of distinct templates, and of all that is sent beside them."""
    templates = {id(shipment.template): len(shipment.template) for shipment in shipments}
    return sum(templates.values()), sum(len(shipment.own) for shipment in shipments)


def test_equal_invokes_send_one_program_and_nothing_else(model: Shipping) -> None:
    layer = model[1]
    with model.trace() as tracer:
        for prompt in range(50):
            with tracer.invoke(prompt):
                layer.output[-1].save()
    assert len({id(shipment.template) for shipment in model.shipments}) == 1
    template, own = sizes(model.shipments)
    assert own == 0
    assert template < 1500
    assert len({id(program.effects) for program in model.programs}) == 1


def test_only_the_values_that_differ_are_sent_with_each(model: Shipping) -> None:
    layer, matrix = model[1], torch.randn(1000)
    with model.trace() as tracer:
        for number in range(3):
            vector = torch.full((4,), float(number))
            with tracer.invoke(number):
                (layer.output[-1] @ vector + matrix.sum() + number).save()
    template, own = sizes(model.shipments)
    assert 4000 < template < 6000
    assert own < 3 * 600
    for number, (program, values) in enumerate(model.arrive()):
        assert program.effects == model.programs[number].effects
        assert values.keys() == model.programs[number].values.keys()
        assert values["number"] == number
        assert torch.equal(values["vector"], torch.full((4,), float(number)))  # type: ignore[arg-type]
        assert torch.equal(values["matrix"], matrix)  # type: ignore[arg-type]


def test_naming_the_model_in_a_block_costs_a_few_bytes_whatever_its_size(model: Shipping) -> None:
    layer = model[1]
    with model.trace(0):
        layer.output.save()
    by_layer = sum(sizes(model.shipments))
    with model.trace(0):
        model[1].output.save()
    assert abs(sum(sizes(model.shipments)) - by_layer) < 50


def test_two_blocks_of_one_trace_are_two_programs(model: Shipping) -> None:
    with model.trace() as tracer:
        for number in range(4):
            with tracer.invoke(number):
                model[0].output.save()
            with tracer.invoke(number):
                model[2].output.save()
    assert [shipment.template is model.shipments[0].template for shipment in model.shipments] == [True, False] * 4


def test_each_run_is_given_its_own_copy_of_what_it_could_change(model: Shipping) -> None:
    options, bias = {"scales": [1.0, 2.0]}, torch.zeros(4)
    with model.trace() as tracer:
        for number in range(2):
            with tracer.invoke(number):
                options["scales"].append(3.0)
                model[0].output[:] += bias
    (_, one), (_, other) = model.arrive()
    assert one["options"] == options
    assert one["options"] is not other["options"]
    assert one["options"]["scales"] is not other["options"]["scales"]  # type: ignore[index]
    assert one["bias"] is not other["bias"]
    assert one["bias"].data_ptr() != other["bias"].data_ptr()  # type: ignore[attr-defined]


def test_a_tensor_that_the_block_cannot_change_is_read_once(model: Shipping) -> None:
    matrix = torch.randn(4, 4)
    with model.trace() as tracer:
        for number in range(2):
            with tracer.invoke(number):
                (model[0].output @ matrix).save()
    (_, one), (_, other) = model.arrive()
    assert one["matrix"] is other["matrix"]


@pytest.mark.parametrize("holder", [lambda one: [one], lambda one: {"it": one}])
def test_names_of_one_object_are_names_of_one_object_where_it_runs(model: Shipping, holder: Any) -> None:
    shared, tensor = [1, 2], torch.zeros(3)
    for held, common in ((shared, "shared"), (tensor, "tensor")):
        with model.trace() as tracer:
            for number in range(2):
                own = holder(held)
                with tracer.invoke(number):
                    [shared, tensor, own, number].save()
        for _, values in model.arrive():
            (inner,) = values["own"].values() if isinstance(values["own"], dict) else values["own"]  # type: ignore[misc]
            assert inner is values[common]


def test_one_tensor_under_a_common_and_an_own_name_stays_one(model: Shipping) -> None:
    vectors = [torch.zeros(3), torch.ones(3)]
    first = vectors[0]
    with model.trace() as tracer:
        for vector in vectors:
            with tracer.invoke(0):
                [vector, vectors, first].save()
    (_, one), (_, other) = model.arrive()
    assert one["vector"] is one["vectors"][0] is one["first"]  # type: ignore[index]
    assert other["vector"] is other["vectors"][1]  # type: ignore[index]
    assert other["first"] is other["vectors"][0]  # type: ignore[index]


def test_an_object_that_changes_while_the_trace_is_built_is_looked_at_anew(model: Shipping) -> None:
    options = Options()
    with model.trace() as tracer:
        for number in range(2):
            with tracer.invoke(number):
                (model[0].output * options.scale).save()
            options.scale = print
    known, unknown = (program.effects.read_only for program in model.programs)
    assert known
    assert not unknown


def test_what_is_proven_of_an_edit_follows_its_values_of_each_invoke(model: Shipping) -> None:
    layers = list(model)
    with model.trace() as tracer:
        for place, by in ((0, 2.0), (7, 2.0), (0, torch.ones(4)), (0, torch.ones(3, 4)), (0, 3.0)):
            with tracer.invoke(0):
                layers[place].output[:] += by
    with model.trace() as tracer:
        for by in (2.0, torch.ones(4), torch.ones(3, 4), torch.zeros(4)):
            with tracer.invoke(0):
                model[0].output[:] *= by
    assert [program.effects.row_local for program in model.programs] == [True, True, False, True]


def test_what_cannot_travel_is_refused_by_its_name(model: Shipping) -> None:
    import threading

    guard = threading.Lock()
    with pytest.raises(UntransferableValueError, match="`guard`"):
        with model.trace() as tracer:
            for number in range(2):
                with tracer.invoke(number):
                    [guard, number].save()


def test_bytes_that_are_no_template_are_refused(model: Shipping) -> None:
    with pytest.raises(WireError):
        TemplateReader(model._tree).read(b"NNSW nothing")
