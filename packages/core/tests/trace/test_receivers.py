"""A receiver refuses what its side of a trace has no use for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nnsight import NNsight
from nnsight._trace.block_tracer import BlockTracer
from nnsight._trace.messages import EnvoyCodec, PendingCodec, ResultCodec, SourceCodec, TracerCodec
from nnsight.backends import ModelTree, Outcome, decode_program, encode_outcome
from nnsight.errors import InvalidRequestError, UnsupportedFeatureError, WireError
from tests.trace.wired import Wired

MODEL = NNsight(torch.nn.Linear(2, 2))


def test_modules_and_ops_are_refused_by_a_receiver_without_a_model() -> None:
    decoder: Any = None
    with pytest.raises(WireError, match="names a module, which this receiver has not"):
        EnvoyCodec().decode("0", decoder)
    with pytest.raises(WireError, match="names an op of a module"):
        SourceCodec().decode("source.F_linear_0", decoder)
    with pytest.raises(WireError, match="not there yet"):
        PendingCodec().decode(None, decoder)
    assert isinstance(TracerCodec().decode([], decoder), BlockTracer)


def test_an_outcome_is_refused_as_a_program() -> None:
    tree = ModelTree(torch.nn.Linear(2, 2))
    outcome = encode_outcome(Outcome(error=RuntimeError("no room")))
    with pytest.raises(WireError, match="no program of this version"):
        decode_program(outcome, tree)


def test_the_output_of_another_request_is_refused() -> None:
    class Encoder:
        def refusal(self, value: object, reason: str) -> Exception:
            return ValueError(reason)

    codec = ResultCodec("mine")
    encoder: Any = Encoder()
    assert codec.encode("mine", encoder) is None
    with pytest.raises(ValueError, match="of another request"):
        codec.encode(object(), encoder)


class Tools:
    """Travels with its methods."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def scaled(self, states: torch.Tensor) -> torch.Tensor:
        return states * self.factor

    def kept(self, states: torch.Tensor) -> Any:
        return (states * self.factor).save()  # type: ignore[attr-defined]


def test_methods_travel_with_their_objects() -> None:
    model, tools = Wired(torch.nn.Linear(2, 2)), Tools(3)
    scaled, kept = tools.scaled, tools.kept
    with model.trace(torch.ones(1, 2)):
        states = model.output
        one = scaled(states).save()
        other = kept(states)
    assert torch.equal(one, other)


def test_sessions_of_one_model_do_not_nest() -> None:
    with MODEL.session():
        with pytest.raises(InvalidRequestError, match="do not nest"):
            with MODEL.session():
                pass


def test_a_session_whose_source_is_not_found_opens_and_ends() -> None:
    names: dict[str, Any] = {"model": MODEL}
    exec("session = model.session()\nsession.__enter__()", names)
    with pytest.raises(InvalidRequestError, match="do not nest"), MODEL.session():
        pass
    names["session"].__exit__(None, None, None)
    with MODEL.session(), MODEL.trace(torch.ones(1, 2)):
        kept = MODEL.output.save()
    assert kept.shape == (1, 2)


def test_a_pattern_leaves_out_modules_that_cannot_be_read_and_a_name_is_refused() -> None:
    relu = torch.nn.ReLU()
    model = NNsight(torch.nn.Sequential(torch.nn.Linear(2, 2), relu, torch.nn.Linear(2, 2), relu))
    with model.trace(torch.ones(1, 2)) as tracer:
        cache = tracer.cache("*")
    assert set(cache) == {"0", "2"}
    assert any("left out 1, 3" in warning for warning in tracer.receipt.warnings)
    with pytest.raises(UnsupportedFeatureError, match="calls cannot be told apart"), model.trace(torch.ones(1, 2)):
        tracer.cache("1")
    with pytest.raises(InvalidRequestError, match="is no module"), model.trace(torch.ones(1, 2)):
        tracer.cache([3])
    with model.trace(torch.ones(1, 2)) as tracer:
        whole = tracer.cache(model)
    assert list(whole) == [""]


def test_the_whole_models_own_output_is_read_and_assigned() -> None:
    with torch.no_grad(), MODEL.trace(torch.ones(1, 2)) as tracer:
        MODEL.input = MODEL.input * 2
        before = MODEL.output.save()
        MODEL.output = before + 1
        result = tracer.result.save()
    assert torch.equal(result, before + 1)
    assert bool(MODEL)
