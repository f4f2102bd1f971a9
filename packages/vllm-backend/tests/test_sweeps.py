"""Many prompts in one trace cost one program to send and one message for all that end together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from engine_runners import TOLERANCE
from nnsight.errors import EngineError
from nnsight_vllm._client import eager, outcomes, submission
from nnsight_vllm._transfer import PREFIX, shared_folder

if TYPE_CHECKING:
    from hf_reference import HFReference

pytestmark = pytest.mark.slow

COUNT = 48
KEYWORDS: dict[str, Any] = {"temperature": 0.0, "max_tokens": 1, "ignore_eos": True}


class Traffic:
    """What travels between the caller and the worker."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.programs: list[bytes | str] = []
        self.own: list[bytes] = []
        self.messages: list[Any] = []
        attach, read = submission.attach, outcomes.read_outcome

        def attach_noting(params: Any, **ours: Any) -> None:
            self.programs.append(ours["program"])
            self.own.append(ours["values"])
            attach(params, **ours)

        def read_outcome(message: Any, key: str, result: Any) -> Any:
            self.messages.append(message)
            return read(message, key, result)

        monkeypatch.setattr(submission, "attach", attach_noting)
        monkeypatch.setattr(outcomes, "read_outcome", read_outcome)


@pytest.fixture
def traffic(monkeypatch: pytest.MonkeyPatch) -> Traffic:
    return Traffic(monkeypatch)


def test_a_sweep_sends_one_program_and_collects_a_message_for_each_step(
    engine: Any, reference: HFReference, traffic: Traffic
) -> None:
    layer = engine.model.layers[2]
    with engine.trace(**KEYWORDS) as tracer:
        for number in range(COUNT):
            with tracer.invoke([3 + number]):
                row = sum(layer.output)[-1].save()
    assert len({id(program) for program in traffic.programs}) == 1
    assert len(traffic.programs[0]) < 2000
    assert set(traffic.own) == {b""}
    # The engine runs 32 requests at once, but begins with those that have reached it when it looks.
    assert len({id(message) for message in traffic.messages}) <= COUNT // 2
    for number in (0, 31, 47):
        expected = reference.generate([3 + number], 1).streams[0][2][-1]
        assert (row[number] - expected).abs().max() < TOLERANCE


def test_values_of_each_invoke_reach_it_and_no_other(engine: Any, traffic: Traffic) -> None:
    layer, seen = engine.model.layers[1], ["before"]
    with engine.trace(**KEYWORDS) as tracer:
        for number in range(COUNT):
            vector = torch.full((128,), float(number))
            with tracer.invoke([5]):
                layer.output[0][:] *= 0
                layer.output[0][:] += vector
                seen.append(number)
                found = [layer.output[0][-1, 0].item(), list(seen)].save()
    assert found == [[float(number), ["before", number]] for number in range(COUNT)]
    assert seen == ["before"]
    assert len({id(program) for program in traffic.programs}) == 1
    assert all(0 < len(own) < 2000 for own in traffic.own)


def test_a_large_value_of_all_invokes_travels_once(engine: Any, traffic: Traffic) -> None:
    layer, matrix = engine.model.layers[0], torch.randn(128, 1000)
    with engine.trace(**KEYWORDS) as tracer:
        for number in range(8):
            with tracer.invoke([3 + number]):
                states = layer.output[0][-1].save()
                product = (layer.output[0][-1] @ matrix).save()
    assert all(isinstance(program, str) for program in traffic.programs)
    assert set(traffic.own) == {b""}
    for state, found in zip(states, product, strict=True):
        assert torch.allclose(state @ matrix, found, atol=10 * TOLERANCE)
    assert not {str(path) for path in shared_folder().glob(f"{PREFIX}*")} & set(traffic.programs)


def test_a_value_that_cannot_be_sent_is_the_error_of_its_request_alone(engine: Any) -> None:
    with pytest.raises(TypeError, match="generator") as raised:
        with engine.trace(**KEYWORDS) as tracer:
            for number in range(4):
                with tracer.invoke([3 + number]):
                    kept = number.save()  # noqa: F841 - comes home
                    if number == 2:
                        (each for each in range(3)).save()
    assert raised.value.saves["kept"] == [0, 1, 2, 3]  # type: ignore[attr-defined]
    assert any("raised in invoke 2" in note for note in raised.value.__notes__)


def test_a_result_without_a_receipt_is_an_error(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eager, "PATIENCE_S", 0.2)
    monkeypatch.setattr(submission, "attach", lambda params, **ours: None)
    with pytest.raises(EngineError, match="no receipt"):
        with engine.trace([3, 4], **KEYWORDS):
            engine.logits.save()
