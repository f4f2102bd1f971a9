"""A trace that is over leaves nothing in circles, which would keep it, and slow its process, until it is collected."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from nnsight import NNsight

X = torch.ones(2, 4)


def _read(model: Any) -> None:
    with model.trace(X):
        first = model[0].output.save()
    assert first.shape == (2, 4)


def _edit(model: Any) -> None:
    with model.trace(X):
        model[0].output[:] = 0
        last = model.output.save()
    assert last.shape == (2, 4)


def _invoke(model: Any) -> None:
    with model.trace() as tracer:
        kept = [].save()
        for _ in range(3):
            with tracer.invoke(X):
                kept.append(model[0].output)
    assert len(kept) == 3


def _hand_over(model: Any) -> None:
    with model.trace() as tracer:
        with tracer.invoke(X):
            first = model[0].output
        with tracer.invoke(X):
            model[0].output = first
            last = model.output.save()
    assert last.shape == (2, 4)


def _loop_and_stop(model: Any) -> None:
    with model.trace(X) as tracer:
        for _ in tracer.iter[:1]:
            row = model[0].output[0].save()
        tracer.stop()
    assert row.shape == (4,)


def _model_edit(model: Any) -> None:
    with model.edit(name="scale"):
        model[0].output = model[0].output * 2
    _read(model)
    model.clear_edits()


@pytest.mark.parametrize("budgets", [{}, {"step_budget": 1000, "byte_budget": 1 << 20}], ids=["unlimited", "limited"])
@pytest.mark.parametrize("traced", [_read, _edit, _invoke, _hand_over, _loop_and_stop, _model_edit])
def test_traces_leave_nothing_to_the_garbage_collector(traced: Callable[[Any], None], budgets: dict[str, int]) -> None:
    model = NNsight(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), **budgets)
    traced(model)
    gc.collect()
    gc.disable()
    try:
        gc.set_debug(gc.DEBUG_SAVEALL)
        for _ in range(10):
            traced(model)
        gc.collect()
        # What happens now and then, such as a cache of Python's own that fills, is not a trace's.
        often = {kind: count for kind, count in Counter(map(type, gc.garbage)).items() if count >= 10}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not often
