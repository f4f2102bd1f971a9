"""Ops and skips inside the forwards of an engine's own modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch

from nnsight.errors import UnknownLocationError

if TYPE_CHECKING:
    from hf_reference import HFReference

PROMPT = "w1 w2 w3 w4 w5"
Greedy = Callable[[int], dict[str, Any]]


def test_the_source_of_a_forward_is_vllms_own_and_needs_no_engine(engine: Any) -> None:
    listing = str(engine.model.layers[1].self_attn.source)
    assert "model.layers.1.self_attn.source: Qwen3Attention.forward" in listing
    for name in (
        "self_qkv_proj_0",
        "qkv_split_0",
        "self_q_norm_0",
        "self_rotary_emb_0",
        "self_attn_0",
        "self_o_proj_0",
    ):
        assert f"\n{name} " in listing


def test_queries_keys_and_values_are_served_at_every_step(engine: Any, greedy: Greedy) -> None:
    with engine.trace(PROMPT, **greedy(3)) as tracer:
        kept = list().save()
        for _ in tracer.iter[:3]:
            attention = engine.model.layers[1].self_attn
            fused, _ = attention.qkv_proj.output
            queries, keys, values = attention.source.qkv_split_0.output
            rotated, _ = attention.source.self_rotary_emb_0.output
            kept.append((fused, queries, keys, values, rotated, attention.attn.input))
    for step, (fused, queries, keys, values, rotated, into_attention) in enumerate(kept):
        assert torch.equal(torch.cat([queries, keys, values], -1), fused)
        assert torch.equal(rotated, into_attention)
        assert queries.shape == (5 if step == 0 else 1, 128)


def test_zeroed_values_change_the_text_as_zeroing_them_in_the_projection_does(engine: Any, greedy: Greedy) -> None:
    with engine.trace(PROMPT, **greedy(4)) as tracer:
        for _ in tracer.iter[:4]:
            engine.model.layers[0].self_attn.source.qkv_split_0.output[2][:] = 0
        by_op = tracer.result.save()
    with engine.trace(PROMPT, **greedy(4)) as tracer:
        for _ in tracer.iter[:4]:
            engine.model.layers[0].self_attn.qkv_proj.output[0][:, -64:] = 0
        by_module = tracer.result.save()
    with engine.trace(PROMPT, **greedy(4)) as tracer:
        plain = tracer.result.save()
    assert by_op.outputs[0].token_ids == by_module.outputs[0].token_ids
    assert by_op.outputs[0].token_ids != plain.outputs[0].token_ids


def test_a_custom_op_is_looked_into_at_the_method_that_runs_here(engine: Any, greedy: Greedy) -> None:
    activation = engine.model.layers[1].mlp.act_fn
    ops = dir(activation.source)
    assert "self__forward_method_0" not in ops
    last = ops[-1]
    with engine.trace(PROMPT, **greedy(1)):
        value = getattr(activation.source, last).output
        count = getattr(value, "shape", [5])[0].save()
    assert count == 5


def test_an_unknown_op_is_refused_in_the_callers_process_before_an_engine_starts(tiny_qwen3: Any) -> None:
    from nnsight.modeling.vllm import VLLM

    model = VLLM(str(tiny_qwen3), dtype="float32")
    with pytest.raises(UnknownLocationError, match=r"no op 'qkv_splits_0'.*nearest: qkv_split_0"):
        model.model.layers[0].self_attn.source.qkv_splits_0
    assert not model.dispatched


def test_a_skipped_attention_still_writes_its_keys_and_values(
    engine: Any, reference: HFReference, greedy: Greedy
) -> None:
    # Putting the module's own value in its place changes nothing, if its cache is written all the same.
    with engine.trace(PROMPT, **greedy(1)):
        own = engine.model.layers[1].self_attn.output.save()
    with engine.trace(PROMPT, **greedy(3)) as tracer:
        engine.model.layers[1].self_attn.skip(own)
        result = tracer.result.save()
    assert list(result.outputs[0].token_ids) == reference.generate(engine.tokenizer.encode(PROMPT), 3).tokens


def test_a_skip_of_one_request_leaves_staggered_neighbours_their_tokens(
    engine: Any, reference: HFReference, greedy: Greedy
) -> None:
    prompts = [f"w{index} w{index + 1} w{index + 2}" for index in range(10, 26)]
    with engine.trace(**greedy(4)) as tracer:
        with tracer.invoke(PROMPT):
            for _ in tracer.iter[:4]:
                layer = engine.model.layers[2]
                layer.mlp.skip(torch.full_like(layer.mlp.input, 3.0))
        for prompt in prompts:
            with tracer.invoke(prompt):
                results = tracer.result.save()
    for prompt, result in zip(prompts, results, strict=True):
        assert list(result.outputs[0].token_ids) == reference.generate(engine.tokenizer.encode(prompt), 4).tokens
