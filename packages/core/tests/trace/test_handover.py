"""Invokes that need values of others run after them, all others at once, and the values stay where the model is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from nnsight._wire.codecs.tensors import TensorCodec
from nnsight.errors import OutsideTraceError, UntransferableValueError
from tests.trace.wired import Wired


@pytest.fixture
def model() -> Wired:
    return Wired(nn.Sequential(nn.Linear(4, 4), nn.Tanh()))


ONES = torch.ones(1, 4)


def test_invokes_that_need_nothing_of_each_other_run_at_once(model: Wired) -> None:
    scale = 2
    with model.trace() as tracer:
        for index in range(4):
            with tracer.invoke(ONES * index):
                hidden = model[0].output * scale
                again = hidden.save()
    assert model.batches == [4]
    assert len(again) == 4


def test_invokes_run_in_as_few_batches_as_their_needs_allow(model: Wired) -> None:
    with model.trace() as tracer:
        with tracer.invoke(ONES):
            first = model[0].output
        with tracer.invoke(ONES * 2):
            second = model[0].output
        with tracer.invoke(ONES):
            both = model[0].output + first + second
        with tracer.invoke(ONES):
            apart = model[0].output.save()
        with tracer.invoke(ONES):
            model[0].output
            last = (both - 2 * first).save()
    assert model.batches == [3, 1, 1]
    assert torch.allclose(last, model._tree.root[0](ONES * 2))
    assert torch.equal(apart, model._tree.root[0](ONES))


def test_only_names_that_a_later_invoke_needs_come_with_the_outcome(model: Wired) -> None:
    with model.trace() as tracer:
        with tracer.invoke(ONES):
            large = torch.zeros(1 << 16)
            small = model[0].output.sum().item()
        with tracer.invoke(ONES):
            model[0].output
            twice = (2 * small).save()
    assert max(model.sizes) < 1 << 12
    assert twice == pytest.approx(2 * model._tree.root[0](ONES).sum().item())
    assert "large" not in locals()


def test_a_handed_tensor_goes_to_the_device_that_it_came_from(model: Wired, monkeypatch: pytest.MonkeyPatch) -> None:
    write = TensorCodec.encode

    def write_as_from_a_gpu(self: TensorCodec, value: torch.Tensor, encoder: Any) -> object:
        return [*write(self, value, encoder), 0, "cuda:1"]  # type: ignore[misc]

    monkeypatch.setattr(TensorCodec, "encode", write_as_from_a_gpu)
    with model.trace() as tracer:
        with tracer.invoke(ONES):
            hidden = model[0].output
        assert model.devices == []
        with tracer.invoke(ONES):
            gap = (model[0].output - hidden).abs().max().item().save()
    assert gap == 0
    assert model.devices == ["cuda:1"]


def test_the_trace_may_pass_a_variable_on_under_another_name(model: Wired) -> None:
    with model.trace() as tracer:
        with tracer.invoke(ONES):
            hidden = model[0].output
        first = hidden
        with tracer.invoke(ONES * 3):
            hidden = model[0].output
        with tracer.invoke(ONES):
            model[0].output
            difference = (hidden - first).save()
    root = model._tree.root[0]
    assert torch.allclose(difference, root(ONES * 3) - root(ONES))


def test_a_value_in_a_container_of_the_trace_is_refused_with_its_name(model: Wired) -> None:
    with pytest.raises(UntransferableValueError, match="`hidden` of invoke 0"):
        with model.trace() as tracer:
            kept = []
            with tracer.invoke(ONES):
                hidden = model[0].output
            kept.append(hidden)
            with tracer.invoke(ONES):
                model[0].output
                total = sum(kept).save()  # noqa: F841 - refused


def test_a_value_cannot_be_saved_before_its_invoke_has_run(model: Wired) -> None:
    with pytest.raises(OutsideTraceError, match="save it in its invoke"):
        with model.trace() as tracer:
            with tracer.invoke(ONES):
                hidden = model[0].output
            hidden.save()


def test_a_handed_value_that_cannot_travel_is_the_error_of_its_own_invoke(model: Wired) -> None:
    with pytest.raises(UntransferableValueError, match="lock") as raised:
        with model.trace() as tracer:
            with tracer.invoke(ONES):
                import threading

                model[0].output
                lock = threading.Lock()
            with tracer.invoke(ONES):
                model[0].output
                locked = lock.locked().save()  # noqa: F841 - never bound
    assert any("`lock` of invoke 0" in note for note in raised.value.__notes__)


def test_variables_outside_keep_what_they_held(model: Wired) -> None:
    hidden = "mine"
    with model.trace() as tracer:
        with tracer.invoke(ONES):
            hidden = model[0].output
        with tracer.invoke(ONES):
            total = (model[0].output + hidden).save()
    assert hidden == "mine"
    assert total.shape == (1, 4)
