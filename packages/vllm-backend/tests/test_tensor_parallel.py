"""Two ranks: what every rank holds whole is served as on one rank, what is split is refused by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from nnsight.errors import UnsupportedFeatureError
from nnsight.modeling.vllm import VLLM

if TYPE_CHECKING:
    from hf_reference import HFReference

pytestmark = pytest.mark.slow

PROMPT, STEPS = "w1 w2 w3 w4 w5", 3


@pytest.fixture(scope="module")
def parallel_engine(tiny_qwen3: Path) -> Iterator[Any]:
    before = os.environ.get("VLLM_CPU_OMP_THREADS_BIND")
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "0|1"
    try:
        with VLLM(str(tiny_qwen3), dtype="float32", max_model_len=128, tensor_parallel_size=2) as model:
            yield model
    finally:
        if before is None:
            del os.environ["VLLM_CPU_OMP_THREADS_BIND"]
        else:
            os.environ["VLLM_CPU_OMP_THREADS_BIND"] = before


def test_two_ranks_serve_and_edit_what_one_does(
    parallel_engine: Any, reference: HFReference, greedy: Callable[[int], dict[str, Any]]
) -> None:
    ids = parallel_engine.tokenizer.encode(PROMPT)
    vector = torch.linspace(-2.0, 2.0, 128)
    expected = reference.generate(ids, STEPS, {1: lambda states: states + vector}, watch=["model.layers.2.mlp"])
    with parallel_engine.trace(PROMPT, **greedy(STEPS)) as tracer:
        streams, outputs, logits = list().save(), list().save(), list().save()
        for _ in tracer.iter[:STEPS]:
            parallel_engine.model.layers[1].output[0][:] += vector
            outputs.append(parallel_engine.model.layers[2].mlp.output)
            streams.append(sum(parallel_engine.model.layers[3].output))
            logits.append(parallel_engine.logits)
        result = tracer.result.save()
    assert list(result.outputs[0].token_ids) == expected.tokens
    for step in range(STEPS):
        assert (streams[step] - expected.streams[step][3]).abs().max() < 1e-4
        assert (outputs[step] - expected.outputs["model.layers.2.mlp"][step]).abs().max() < 1e-4
        assert (logits[step][0] - expected.logits[step]).abs().max() < 1e-4


def test_a_value_that_is_split_over_the_ranks_is_refused_by_name(
    parallel_engine: Any, greedy: Callable[[int], dict[str, Any]]
) -> None:
    with (
        pytest.raises(UnsupportedFeatureError, match=r"qkv_proj\.output is split"),
        parallel_engine.trace(PROMPT, **greedy(1)),
    ):
        parallel_engine.model.layers[0].self_attn.qkv_proj.output.save()
