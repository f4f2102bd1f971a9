"""What this backend promises besides the conformance suite."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import pytest
import torch

from nnsight.errors import EngineError, InvalidRequestError, MismatchedValueError, UntransferableValueError
from nnsight.plugins import find_engine, load_object, registered_backends

PROMPT = [1, 2, 3]


def test_the_backend_is_registered_by_the_entry_point() -> None:
    assert registered_backends()["example"] == "nnsight_example_backend.model:ExampleModel"
    assert load_object(find_engine("example", "process").factory).__name__ == "WorkerProcess"


def test_blocks_run_in_another_process(model: Any) -> None:
    with model.trace(PROMPT):
        process = os.getpid().save()
    assert process != os.getpid()


def test_the_weights_are_in_the_worker_alone(model: Any) -> None:
    assert model.head.weight.is_meta
    with model.trace(PROMPT):
        states = model.norm.output.save()
        logits = model.logits.save()
        again = model.head(states[-1:]).save()
    assert not logits.is_meta
    assert torch.allclose(logits, again, atol=1e-5)


def test_logits_and_samples_can_be_edited_in_one_request_of_a_batch(model: Any) -> None:
    with model.trace(PROMPT, steps=2) as tracer:
        plain = tracer.result.save()
    with model.trace(steps=2) as tracer:
        with tracer.invoke(PROMPT):
            model.logits[:, 7] = 1e6
            for _ in tracer.iter[1]:
                model.samples = torch.tensor([11])
            edited = tracer.result.save()
        with tracer.invoke(PROMPT):
            other = tracer.result.save()
    assert edited.tokens == [7, 11]
    assert other.tokens == plain.tokens


def test_a_saved_result_is_the_result_of_the_trace(model: Any) -> None:
    with model.trace(PROMPT, steps=2) as tracer:
        result = tracer.result.save()
    assert result is tracer.result
    assert result.prompt == PROMPT


def test_a_stopped_request_has_what_it_generated(model: Any) -> None:
    with model.trace(PROMPT, steps=9) as tracer:
        for step in tracer.iter[:]:
            if step == 2:
                tracer.stop()
    assert len(tracer.result.tokens) == 3  # those of steps 0 and 1, and of the step under way


def test_a_saved_value_that_cannot_travel_is_named_and_the_others_come_home(model: Any) -> None:
    with pytest.raises(UntransferableValueError, match=r"threading\.Lock") as raised, model.trace(PROMPT):
        (3).save()
        threading.Lock().save()
    assert raised.value.saves == {"3": 3}


def test_a_sample_that_is_no_token_ends_its_request_alone(model: Any) -> None:
    with pytest.raises(MismatchedValueError, match="64"), model.trace(steps=2) as tracer:
        with tracer.invoke(PROMPT):
            model.samples = torch.tensor([64])
        with tracer.invoke(PROMPT):
            result = tracer.result.save()
    assert len(result.tokens) == 2


def test_a_failure_of_the_network_is_the_error_of_its_requests(model: Any) -> None:
    with pytest.raises(IndexError), model.trace(PROMPT) as tracer:
        "early".save()
        model.tokens.input = torch.tensor([1, 2, 10**6])
    assert tracer.saves == {"'early'": "early"}


def test_after_the_death_of_a_worker_the_next_trace_starts_another(model: Any) -> None:
    with pytest.raises(EngineError, match="exit status 9"), model.trace(PROMPT):
        os._exit(9)
    with model.trace(PROMPT) as tracer:
        result = tracer.result.save()
    assert len(result.tokens) == 1


def test_after_an_interrupt_the_next_trace_starts_another_worker(model: Any) -> None:
    client = os.getpid()
    with pytest.raises(KeyboardInterrupt), model.trace(PROMPT):
        os.kill(client, signal.SIGINT)
        time.sleep(3600)
    with model.trace(PROMPT) as tracer:
        result = tracer.result.save()
    assert len(result.tokens) == 1


@pytest.mark.parametrize(
    ("prompt", "keywords", "shown"),
    [
        ("text", {}, "'text'"),
        ([], {}, r"\[\]"),
        ([64], {}, r"\[64\]"),
        (PROMPT, {"steps": 0}, "steps=0"),
        (PROMPT, {"temperature": 1.0}, "temperature=1.0"),
    ],
)
def test_an_input_that_cannot_be_run_is_refused_with_the_value(
    model: Any, prompt: Any, keywords: dict[str, Any], shown: str
) -> None:
    with pytest.raises(InvalidRequestError, match=shown):
        model.trace(prompt, **keywords)
