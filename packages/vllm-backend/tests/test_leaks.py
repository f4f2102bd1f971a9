"""Traced requests leave nothing behind, in the worker and in the caller's process."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import psutil
import pytest

from census import Census
from nnsight_vllm._transfer import LARGE_BYTES, PREFIX, shared_folder

pytestmark = [pytest.mark.slow, pytest.mark.full]

PROMPT = "w1 w2 w3 w4 w5"
GREEDY: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}
NO_KEYS = b"\x90"


def small(engine: Any) -> None:
    with engine.trace(PROMPT, max_tokens=2, **GREEDY) as tracer:
        kept = [].save()
        for _ in tracer.iter[:2]:
            kept.append(engine.model.layers[1].output[0])
    assert len(kept) == 2


def edit_and_result(engine: Any) -> None:
    with engine.trace(PROMPT, max_tokens=2, **GREEDY) as tracer:
        engine.model.layers[1].output[0][:] += 0.5
        result = tracer.result.save()
    assert result.outputs


def invokes(engine: Any) -> None:
    with engine.trace(max_tokens=1, **GREEDY) as tracer:
        for _ in range(3):
            with tracer.invoke(PROMPT):
                logits = engine.logits.save()
    assert len(logits) == 3


def large(engine: Any) -> None:
    with engine.trace(PROMPT, max_tokens=1, **GREEDY):
        states = engine.model.layers[0].output[0].repeat(1000, 1).save()
    assert states.nbytes >= 2 * LARGE_BYTES


def large_with_result(engine: Any) -> None:
    with engine.trace(PROMPT, max_tokens=1, **GREEDY) as tracer:
        states = engine.model.layers[0].output[0].repeat(1000, 1).save()
        tracer.result.save()
    assert states.nbytes >= 2 * LARGE_BYTES


def large_failing(engine: Any) -> None:
    with contextlib.suppress(KeyError), engine.trace(PROMPT, max_tokens=20, **GREEDY):
        engine.model.layers[0].output[0].repeat(1000, 1).save()
        raise KeyError("mine")


def failing(engine: Any) -> None:
    with contextlib.suppress(RuntimeError), engine.trace(PROMPT, max_tokens=1, **GREEDY):
        engine.model.layers[2].output
        engine.model.layers[0].output


def misfit(engine: Any) -> None:
    with contextlib.suppress(ValueError), engine.trace(PROMPT, max_tokens=1, **GREEDY):
        engine.model.layers[2].mlp.output = engine.model.layers[2].mlp.output[:1]


def stopped(engine: Any) -> None:
    with engine.trace(PROMPT, max_tokens=20, **GREEDY) as tracer:
        engine.logits.save()
        tracer.stop()


def unsendable(engine: Any) -> None:
    with contextlib.suppress(TypeError), engine.trace(PROMPT, max_tokens=1, **GREEDY):
        kept = (number for number in range(3)).save()  # noqa: F841


SMALL = [small, edit_and_result, invokes, failing, misfit, stopped, unsendable]
LARGE = [large, large_with_result, large_failing]


@dataclass(frozen=True)
class Held:
    """What both processes hold, apart from memory."""

    client: Census
    worker_descriptors: int
    worker_threads: int
    shared_files: frozenset[str]
    traced_requests: int
    expected_outcomes: int

    @classmethod
    def by(cls, engine: Any) -> Held:
        worker = _worker(engine)
        files = frozenset(path.name for path in shared_folder().glob(f"{PREFIX}{worker.pid}-*"))
        left = engine.vllm_entrypoint.collective_rpc("nnsight_discard", args=(NO_KEYS,))
        expected = len(engine._engine.mailbox._expected)
        return cls(Census.take(), worker.num_fds(), worker.num_threads(), files, int(left[0]), expected)


def _worker(engine: Any) -> psutil.Process:
    return psutil.Process(engine._engine.workers[0]["process"])


@pytest.mark.parametrize("kinds", [SMALL, LARGE], ids=["small", "large"])
def test_traces_leave_nothing_behind_in_either_process(engine: Any, kinds: list[Any]) -> None:
    warm, rounds = (100, 1600) if kinds is SMALL else (60, 400)
    for index in range(warm):
        kinds[index % len(kinds)](engine)
    engine.generate(PROMPT, max_tokens=1)
    before, memory = Held.by(engine), _worker(engine).memory_info().rss
    for index in range(rounds):
        kinds[index % len(kinds)](engine)
    engine.generate(PROMPT, max_tokens=1)
    after = Held.by(engine)
    assert (after.traced_requests, after.expected_outcomes, after.shared_files) == (0, 0, frozenset())
    assert not after.client.more_than(before.client)
    assert after.worker_descriptors <= before.worker_descriptors
    assert after.worker_threads <= before.worker_threads
    assert _worker(engine).memory_info().rss < 1.02 * memory
