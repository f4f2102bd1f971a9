"""Two ranks: what every rank holds whole is served as on one rank, what is split is refused by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from hf_reference import HFReference
from nnsight.errors import UnsupportedFeatureError
from nnsight.modeling.vllm import VLLM
from tiny_adapters import make_tiny_adapter, write_merged

pytestmark = pytest.mark.slow

PROMPT, STEPS = "w1 w2 w3 w4 w5", 3


@contextmanager
def two_ranks(repo: Path, **keywords: Any) -> Iterator[Any]:
    """Build an engine of two ranks, a core for each."""
    before = os.environ.get("VLLM_CPU_OMP_THREADS_BIND")
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "0|1"
    try:
        with VLLM(str(repo), dtype="float32", max_model_len=128, tensor_parallel_size=2, **keywords) as model:
            yield model
    finally:
        if before is None:
            del os.environ["VLLM_CPU_OMP_THREADS_BIND"]
        else:
            os.environ["VLLM_CPU_OMP_THREADS_BIND"] = before


@pytest.fixture(scope="module")
def parallel_engine(tiny_qwen3: Path) -> Iterator[Any]:
    with two_ranks(tiny_qwen3) as model:
        yield model


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


@pytest.mark.full
def test_two_ranks_serve_and_edit_requests_with_an_adapter(
    tiny_qwen3: Path, tmp_path: Path, reference: HFReference, greedy: Callable[[int], dict[str, Any]]
) -> None:
    from vllm.lora.request import LoRARequest

    adapter = make_tiny_adapter(tmp_path / "one", tiny_qwen3, seed=1)
    merged = HFReference(write_merged(tmp_path / "one-merged", tiny_qwen3, adapter))
    vector = torch.linspace(-2.0, 2.0, 128)
    add, watch = {1: lambda states: states + vector}, ["model.layers.2.mlp"]
    # Of two slots the last one stays empty, as it has to on a CPU.
    with two_ranks(tiny_qwen3, enable_lora=True, max_loras=2, max_lora_rank=8) as model:
        ids = model.tokenizer.encode(PROMPT)
        expected = [each.generate(ids, STEPS, add, watch=watch) for each in (merged, reference)]
        with model.trace(**greedy(STEPS)) as tracer:
            for lora in (LoRARequest("one", 1, str(adapter)), None):
                with tracer.invoke(PROMPT, lora_request=lora):
                    outputs = list().save()
                    for _ in tracer.iter[:STEPS]:
                        model.model.layers[1].output[0][:] += vector
                        outputs.append(model.model.layers[2].mlp.output)
                    result = tracer.result.save()
    for index, each in enumerate(expected):
        assert list(result[index].outputs[0].token_ids) == each.tokens
        for step in range(STEPS):
            assert (outputs[index][step] - each.outputs["model.layers.2.mlp"][step]).abs().max() < 5e-4
    assert expected[0].tokens != expected[1].tokens
