"""What `tracer.cache()` records, and how it is looked up."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn

from nnsight import Cache, NNsight
from nnsight._trace.messages import decode_values, encode_values
from nnsight.errors import OutsideTraceError, UnknownLocationError, UnsupportedFeatureError, UntransferableValueError


class Layer(nn.Module):
    def __init__(self, shared: nn.Module) -> None:
        super().__init__()
        self.own = nn.Linear(4, 4)
        self.shared = shared

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return self.shared(self.own(value)) + self.shared(value)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        shared = nn.Tanh()
        self.layers = nn.ModuleList(Layer(shared) for _ in range(3))
        self.unused = nn.Linear(4, 4)

    def forward(self, value: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        for layer in self.layers:
            value = layer(value)
        return value * scale


@pytest.fixture
def model() -> Any:
    torch.manual_seed(0)
    return NNsight(Network())


ONES = torch.ones(2, 4)


def test_a_module_that_several_parents_share_is_recorded_under_the_one_that_calls_it(model: Any) -> None:
    with model.trace(ONES) as tracer:
        cache = tracer.cache(["layers.1.shared", "layers.1"], include_inputs=True)
        own = model.layers[1].own.output.save()
    first, second = cache["layers.1.shared"].input
    assert torch.equal(first, own)
    assert torch.equal(second, cache["layers.1"].input)
    assert len(cache["layers.1.shared"].output) == 2


def test_only_modules_that_were_asked_for_are_replaced_and_only_during_the_trace(model: Any) -> None:
    replaced = {}

    def look() -> None:
        replaced.update({path: "forward" in vars(module) for path, module in model._module.named_modules()})

    model._module.layers[2].own.register_forward_hook(lambda *args: look())
    with model.trace(ONES) as tracer:
        cache = tracer.cache(["layers.0", "layers.2"])
    assert len(cache) == 2
    # The root's is replaced by every trace, to count steps.
    assert {path for path, is_replaced in replaced.items() if is_replaced} == {"", "layers.0", "layers.2"}
    look()
    assert not any(replaced.values())


def test_modules_that_are_not_called_are_not_in_a_cache(model: Any) -> None:
    with model.trace(ONES) as tracer:
        cache = tracer.cache()
    assert "unused" not in cache
    assert "" in cache
    assert torch.equal(cache.output, tracer.result)
    with pytest.raises(UnknownLocationError, match="no call of 'unused'"):
        _ = cache.unused
    with pytest.raises(UnknownLocationError, match=r"no call of 'layers\.0.owm'; nearest: layers.0.own"):
        _ = cache.layers[0].owm
    with pytest.raises(UnknownLocationError, match=r"no layers\.output: no call of the module was recorded"):
        _ = cache.layers.output


def test_a_skipped_module_is_recorded_with_what_takes_its_place(model: Any) -> None:
    with model.trace(ONES) as tracer:
        cache = tracer.cache(["layers.0", "layers.0.own"])
        model.layers[0].skip(torch.zeros(2, 4))
    assert torch.equal(cache["layers.0"].output, torch.zeros(2, 4))
    assert "layers.0.own" not in cache


def test_keywords_are_inputs_too(model: Any) -> None:
    with model.trace(ONES, scale=3.0) as tracer:
        cache = tracer.cache(model, include_inputs=True)
    assert cache.inputs[1] == {"scale": 3.0}
    assert torch.equal(cache.input, ONES)


def test_recorded_tensors_may_keep_their_gradients(model: Any) -> None:
    with model.trace(ONES) as tracer:
        whole = tracer.cache("layers.1", detach=False)
        cut = tracer.cache("layers.1")
        half = tracer.cache("layers.1", dtype=torch.float16, device="cpu")
    assert whole["layers.1"].output.requires_grad
    assert not cut["layers.1"].output.requires_grad
    assert half["layers.1"].output.dtype == torch.float16


def test_a_block_that_fails_keeps_what_was_recorded_before(model: Any) -> None:
    with pytest.raises(ZeroDivisionError) as raised, model.trace(ONES) as tracer:
        cache = tracer.cache("layers.*")  # noqa: F841 - comes home with the error
        1 / (model.layers[1].output is None)
    assert list(raised.value.saves["cache"]) == ["layers.0"]  # type: ignore[attr-defined]


def test_a_value_that_cannot_be_copied_is_the_error_of_the_request_that_records_it() -> None:
    class Odd:
        __slots__ = ("value",)

        def __init__(self, value: torch.Tensor) -> None:
            self.value = {frozenset([(value,)])}

    class Wrap(nn.Module):
        def forward(self, value: torch.Tensor) -> Odd:
            return Odd(value)

    with pytest.raises(UnsupportedFeatureError), NNsight(nn.Sequential(Wrap())).trace(ONES) as tracer:
        tracer.cache()


def test_a_cache_travels(model: Any) -> None:
    with model.trace(ONES) as tracer:
        cache = tracer.cache(include_inputs=True)
    assert isinstance(cache, Cache)
    parts = encode_values({"cache": cache, "layer": cache.layers[1]})
    read = decode_values(parts.joined())
    assert list(read["cache"]) == list(cache)
    assert torch.equal(read["cache"].layers[1].output, cache["layers.1"].output)
    assert torch.equal(read["layer"].own.input, cache["layers.1.own"].input)
    assert repr(cache) == repr(read["cache"]) == "<Cache of the model: 10 module(s), 1 step(s)>"


def test_a_recorded_value_that_cannot_travel_is_withheld_alone() -> None:
    class Given(nn.Module):
        def forward(self, value: torch.Tensor, lock: Any, helper: nn.Module) -> torch.Tensor:
            return value + 1

    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.given, self.helper = Given(), nn.Tanh()

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            return self.given(self.given(value, None, self.helper), threading.Lock(), self.helper)

    with NNsight(Around()).trace(ONES) as tracer:
        cache = tracer.cache("given", include_inputs=True)
    read = decode_values(encode_values({"cache": cache}).joined())["cache"]
    again = decode_values(encode_values({"cache": read}).joined())["cache"]
    for found in (read, again):
        assert [output.sum().item() for output in found.given.output] == [16, 24]
        with pytest.raises(UntransferableValueError, match=r"given\.inputs was recorded, but .*lock.* cannot travel"):
            _ = found.given.inputs
    assert cache.given.inputs[0][0][2] == "helper"


def test_a_cache_is_asked_for_in_a_block(model: Any) -> None:
    with pytest.raises(OutsideTraceError, match="use it in the block"), model.trace() as tracer:
        tracer.cache()


def test_numbers_lead_to_modules_from_either_end(model: Any) -> None:
    with model.trace(ONES) as tracer:
        cache = tracer.cache("layers.*")
    assert cache.layers[-1].output is cache["layers.2"].output
    assert {"0", "1", "2"} <= set(dir(cache.layers))
