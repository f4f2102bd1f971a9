"""An engine's life: started by the first trace, composed with the caller's own classes, and shut down for good."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import psutil
import pytest

from nnsight.errors import EngineError, InvalidRequestError
from nnsight.modeling.vllm import VLLM

pytestmark = pytest.mark.slow

GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 2, "ignore_eos": True}


def _children() -> set[int]:
    children = psutil.Process().children(recursive=True)
    alive = [child for child in children if child.status() != psutil.STATUS_ZOMBIE]
    return {child.pid for child in alive if "resource_tracker" not in "".join(child.cmdline())}


def test_an_engine_starts_at_the_first_trace_with_the_callers_own_classes_and_leaves_nothing(
    tiny_qwen3: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    support = str(Path(__file__).parents[3] / "tests" / "support")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([support, os.environ.get("PYTHONPATH", "")]))
    before = _children()
    model = VLLM(
        str(tiny_qwen3),
        dtype="float32",
        max_model_len=128,
        enable_chunked_prefill=True,
        max_num_batched_tokens=64,
        worker_cls="custom_classes.OwnWorker",
        scheduler_cls="custom_classes.OwnScheduler",
        additional_config={"mine": 1},
    )
    layer = model.model.layers[1]
    with model.trace("w1 w2", **GREEDY) as tracer:
        states = layer.output[0].save()
    assert model.dispatched
    assert type(model.vllm_entrypoint).__name__ == "LLM"
    assert model.model.layers[1] is layer
    assert states.shape == (2, 128)
    assert tracer.receipt.details["runner"] == "V1"
    assert "VLLM_USE_V2_MODEL_RUNNER" not in os.environ

    llm = model.vllm_entrypoint
    assert llm.collective_rpc("own_method") == ["OwnWorker TracedCPUModelRunner"]
    assert llm.llm_engine.vllm_config.additional_config["mine"] == 1
    assert _children() - before

    # A worker's collections of garbage pass over what it loaded, which would hold up everybody's step.
    with model.trace("w1", temperature=0.0, max_tokens=1):
        frozen = list([gc.get_freeze_count()]).save()
    assert frozen[0] > 100_000

    # A block that fails takes its request out of the scheduler at once, whatever class that is.
    with pytest.raises(KeyError, match="mine"), model.trace("w1 w2", temperature=0.0, max_tokens=60, ignore_eos=True):
        layer.output
        raise KeyError("mine")
    assert llm.collective_rpc("nnsight_discard", args=(b"\x90",)) == [b"0"]

    # With chunked prefill on, a prompt whose block must see it whole is refused where no step can hold it, and two that
    # fill a step each are computed one after the other, whatever class the scheduler is.
    with pytest.raises(InvalidRequestError, match="raise max_num_batched_tokens"), model.trace([5] * 90, **GREEDY):
        layer.output[0][-1] += 1.0
    with model.trace(**GREEDY) as tracer:
        for token in (5, 6):
            with tracer.invoke([token] * 64):
                layer.output[0][-1] += 0.0
                whole = layer.output[0].shape[0].save()
    assert whole == [64, 64]

    engine = model._engine
    model.shutdown()
    assert not model.dispatched
    assert not _children() - before
    with pytest.raises(EngineError, match="shut down"):
        engine.generate([{"prompt_token_ids": [1]}], [None])
