"""The eager engine keeps every promise of a block, against Transformers on the same checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from engine_runners import TOLERANCE, EngineRunner
from nnsight.testing import LayerOps, ProcessConformance, Reference, Subject

if TYPE_CHECKING:
    from hf_reference import HFReference

LAYERS, HIDDEN = 4, 128
SEVERAL_RANKS = True


def add(layer: Any, vector: torch.Tensor) -> None:
    states = layer.output[0]
    states[:] += vector.to(states.device)


def replace(layer: Any, states: torch.Tensor) -> None:
    layer.output = (states, torch.zeros_like(states))


# Ops whose values every rank holds whole.
WHOLE_OPS = LayerOps(
    child="mlp",
    inner="mlp.down_proj",
    call="self_mlp_0",
    nested=("", "self_input_layernorm_1", "ir_ops_fused_add_rms_norm_maybe_inplace_0"),
)


def split_ops(engine: Any) -> LayerOps:
    """Return ops whose values are split over the ranks where there are several."""
    apply = engine.model.layers[0].self_attn.qkv_proj.source.self_quant_method_apply_0.source
    (name,) = {"dispatch_unquantized_gemm_1", "self__gemm_impl_0"} & set(dir(apply))
    return LayerOps(
        child="mlp",
        inner="mlp.act_fn",
        call="self_mlp_0",
        nested=("self_attn.qkv_proj", "self_quant_method_apply_0", name),
    )


@pytest.fixture(scope="module")
def subject(engine: Any, runner: EngineRunner, reference: HFReference) -> Subject:
    def run(prompt: tuple[Any, ...], steps: int, edits: Any) -> Reference:
        ids = engine.tokenizer.encode(prompt[0])
        found = reference.generate(ids, steps, edits)
        return Reference(found.streams, found.tokens)

    return Subject(
        model=engine,
        prompts=[("w1 w2 w3",), ("w9 w8 w7 w6 w5",), ("w100 w200",)],
        lengths=[3, 5, 2],
        layers=[f"model.layers.{index}" for index in range(LAYERS)],
        hidden_size=HIDDEN,
        keywords=lambda steps: {"temperature": 0.0, "max_tokens": steps, "ignore_eos": True},
        stream=sum,
        add=add,
        replace=replace,
        ops=split_ops(engine) if runner.ranks == 1 else WHOLE_OPS,
        reference=run,
        tokens=lambda result: list(result.outputs[0].token_ids),
        tolerance=TOLERANCE,
    )


class TestEagerConformance(ProcessConformance):
    """vLLM's `LLM`, on each of its model runners."""
