"""Requests with a LoRA adapter are traced as those without: their values are those of the adapted model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch

from engine_runners import TOLERANCE
from hf_reference import Generation, HFReference
from nnsight.errors import UnknownLocationError, UnsupportedFeatureError
from nnsight.modeling.vllm import VLLM
from nnsight_vllm.compat.versions import runs_on_cpu
from tiny_adapters import make_tiny_adapter, write_merged

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from engine_runners import EngineRunner

pytestmark = pytest.mark.slow
DEFAULT_RUNNERS = ("v1",)
# The adapted products of the CPU's kernels are summed in another order; those of a GPU know no float32, and in bfloat16
# the likeliest token may be another one, so that later steps would have nothing to compare. Transformers' own logits,
# with these adapters beside weights in bfloat16, are off by up to 6 % of the largest one. The limit is twice that: the
# adapters differ from each other, and from the base model, by as much as the logits themselves.
DTYPE, LIMIT, STEPS = ("float32", 5 * TOLERANCE, 3) if runs_on_cpu() else ("bfloat16", 0.12, 1)

PROMPT = "w1 w2 w3 w4 w5"
GREEDY: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}
LAYER = "model.layers.1"
WATCHED = [f"{LAYER}.self_attn", f"{LAYER}.mlp", *(f"{LAYER}.self_attn.{name}_proj" for name in "qkv")]


@dataclass
class Adapted:
    """An engine with two adapters, and each model that a request may run on in Transformers.

    Attributes:
        model: The traced model.
        requests: What asks for an adapter, by name; None for the base model.
        references: The models, likewise.
    """

    model: Any
    requests: dict[str | None, Any]
    references: dict[str | None, HFReference]


@pytest.fixture(scope="module")
def adapted(tiny_qwen3: Path, runner: EngineRunner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Adapted]:
    from vllm.lora.request import LoRARequest

    folder = tmp_path_factory.mktemp("adapters")
    requests: dict[str | None, Any] = {None: None}
    references = {None: HFReference(tiny_qwen3)}
    for number, name in enumerate(("one", "two"), start=1):
        adapter = make_tiny_adapter(folder / name, tiny_qwen3, seed=number)
        requests[name] = LoRARequest(name, number, str(adapter))
        references[name] = HFReference(write_merged(folder / f"{name}-merged", tiny_qwen3, adapter))
    with runner.building():
        keywords = {"dtype": DTYPE, "max_model_len": 128, "max_num_seqs": 8, "block_size": 32, **runner.keywords}
        # On a CPU, vLLM gives base requests in a batch with adapted ones what is in the last slot, which stays empty.
        lora = {"enable_lora": True, "max_loras": 3, "max_lora_rank": 8}
        model = VLLM(str(tiny_qwen3), dispatch=True, **lora, **keywords)
    with model:
        yield Adapted(model, requests, references)


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    # Rounding to bfloat16 is relative to the number.
    limit = LIMIT if DTYPE == "float32" else LIMIT * max(1.0, float(other.abs().max()))
    return one.shape == other.shape and float((one.float() - other).abs().max()) < limit


def says(output: Any, expected: Generation) -> bool:
    """Tell whether a request generated the likeliest tokens, in bfloat16 those that are as likely but for rounding."""
    tokens = list(output.outputs[0].token_ids)
    if DTYPE == "float32":
        return tokens == expected.tokens
    logits = expected.logits[0]
    return len(tokens) == 1 and float(logits.max() - logits[tokens[0]]) < LIMIT * float(logits.abs().max())


def test_base_and_adapted_requests_of_one_batch_read_their_own_values(adapted: Adapted) -> None:
    model = adapted.model
    names = [None, "one", "two", None, "one"]
    with model.trace(max_tokens=STEPS, logprobs=1, **GREEDY) as tracer:
        for name in names:
            with tracer.invoke(PROMPT, lora_request=adapted.requests[name]):
                projected, outputs, logits = list().save(), list().save(), list().save()
                for _ in tracer.iter[:STEPS]:
                    layer = model.model.layers[1]
                    projected.append(layer.self_attn.qkv_proj.output[0])
                    outputs.append((layer.self_attn.output, layer.mlp.output))
                    logits.append(model.logits[0])
    for index, name in enumerate(names):
        expected = adapted.references[name].generate(model.tokenizer.encode(PROMPT), STEPS, watch=WATCHED)
        assert says(tracer.result[index], expected)
        for step in range(STEPS):
            parts = [expected.outputs[f"{LAYER}.self_attn.{part}_proj"][step] for part in "qkv"]
            assert close(projected[index][step], torch.cat(parts, -1))
            assert close(outputs[index][step][0], expected.outputs[f"{LAYER}.self_attn"][step])
            assert close(outputs[index][step][1], expected.outputs[f"{LAYER}.mlp"][step])
            assert close(logits[index][step], expected.logits[step])


def test_a_block_reads_the_result_of_an_adapted_request(adapted: Adapted) -> None:
    model, adapter = adapted.model, adapted.requests["one"]
    with model.trace(PROMPT, max_tokens=STEPS, lora_request=adapter, **GREEDY) as tracer:
        model.logits
        tokens = list(tracer.result.outputs[0].token_ids).save()
        asked = tracer.result.lora_request.save()
        result = tracer.result.save()
    assert says(result, adapted.references["one"].generate(model.tokenizer.encode(PROMPT), STEPS))
    assert tokens == list(result.outputs[0].token_ids)
    assert (type(asked), asked) == (type(adapter), adapter)


def test_an_adapter_of_a_trace_is_that_of_its_invokes_but_for_their_own(adapted: Adapted) -> None:
    model = adapted.model
    own = [{}, {"lora_request": adapted.requests["two"]}, {"lora_request": None}]
    with model.trace(max_tokens=STEPS, lora_request=adapted.requests["one"], **GREEDY) as tracer:
        for keywords in own:
            with tracer.invoke(PROMPT, **keywords):
                model.logits
    ids = model.tokenizer.encode(PROMPT)
    for result, name in zip(tracer.result, ["one", "two", None], strict=True):
        assert says(result, adapted.references[name].generate(ids, STEPS))
    with model.trace(PROMPT, max_tokens=STEPS, lora_request=adapted.requests["two"], **GREEDY) as tracer:
        model.logits
    assert says(tracer.result, adapted.references["two"].generate(ids, STEPS))


def test_edits_of_a_layer_with_an_adapter_land_for_their_request_alone(adapted: Adapted) -> None:
    model, ids = adapted.model, adapted.model.tokenizer.encode(PROMPT)
    vector = torch.linspace(-2.0, 2.0, 128)
    with model.trace(max_tokens=STEPS, lora_request=adapted.requests["one"], **GREEDY) as tracer:
        with tracer.invoke(PROMPT):
            for _ in tracer.iter[:STEPS]:
                model.model.layers[1].mlp.down_proj.output[0][:] += vector
        with tracer.invoke(PROMPT):
            for _ in tracer.iter[:STEPS]:
                model.model.layers[1].mlp.down_proj.input = 0
                emptied = model.model.layers[1].mlp.down_proj.output[0].save()
        with tracer.invoke(PROMPT):
            model.logits
    steered, _, plain = tracer.result
    reference = adapted.references["one"]
    assert says(steered, reference.generate(ids, STEPS, edits={1: lambda states: states + vector}))
    assert says(plain, reference.generate(ids, STEPS))
    assert float(emptied.abs().max()) == 0.0


def test_ops_of_a_layer_with_an_adapter_are_named_here_as_in_the_worker(adapted: Adapted) -> None:
    model = adapted.model
    projection = model.model.layers[1].self_attn.qkv_proj
    assert "WithLoRA.forward" in repr(projection.source)
    assert "WithLoRA.apply" in repr(projection.source.self_apply_0.source)
    with pytest.raises(UnknownLocationError, match="self_apply_0"):
        projection.source.self_quant_method_apply_0.output
    for name in (None, "one"):
        expected = adapted.references[name].generate(model.tokenizer.encode(PROMPT), 1, watch=WATCHED)
        with model.trace(PROMPT, max_tokens=1, lora_request=adapted.requests[name], **GREEDY):
            applied = projection.source.self_apply_0.output.save()
            whole = projection.output[0].save()
        assert torch.equal(applied, whole)
        assert close(whole, torch.cat([expected.outputs[f"{LAYER}.self_attn.{part}_proj"][0] for part in "qkv"], -1))


def test_modules_have_the_same_paths_here_as_in_the_worker(adapted: Adapted) -> None:
    model = adapted.model
    with model.trace(PROMPT, max_tokens=1, **GREEDY):
        there = repr(model.model.layers[0]).save()
    assert there == repr(model.model.layers[0])
    assert "base_layer" in there


def test_a_logit_lens_runs_beside_an_adapted_request(adapted: Adapted) -> None:
    model, reference = adapted.model, adapted.references["one"]
    expected = reference.generate(model.tokenizer.encode(PROMPT), 1)
    with model.trace(PROMPT, max_tokens=1, lora_request=adapted.requests["one"], **GREEDY):
        lens = model.lm_head(model.model.norm(sum(model.model.layers[2].output)[-1:])).save()
    hf = reference.model
    with torch.no_grad():
        assert close(lens, hf.lm_head(hf.model.norm(expected.streams[0][2][-1:])))


def test_a_layer_with_an_adapter_is_not_called_ad_hoc_but_its_base_layer_is(adapted: Adapted) -> None:
    model = adapted.model
    keywords = {"max_tokens": 1, "lora_request": adapted.requests["one"], **GREEDY}
    for path in ("model.layers.0.mlp", "model.layers.0.self_attn.o_proj", "model.embed_tokens"):
        with pytest.raises(UnsupportedFeatureError, match="base_layer"), model.trace(PROMPT, **keywords):
            model.get(path)(model.model.embed_tokens.output)
    with model.trace(PROMPT, **keywords):
        given = model.model.layers[0].mlp.gate_up_proj.input.save()
        base = model.model.layers[0].mlp.gate_up_proj.base_layer(given)[0].save()
    mlp = adapted.references[None].model.model.layers[0].mlp
    with torch.no_grad():
        assert close(base, torch.cat([mlp.gate_proj(given.float()), mlp.up_proj(given.float())], -1))


def test_cached_prefixes_of_adapters_and_of_edits_are_kept_apart(adapted: Adapted) -> None:
    model = adapted.model
    prompt = list(range(10, 100))
    for name in ("one", None, "two"):
        with model.trace(prompt, max_tokens=STEPS, lora_request=adapted.requests[name], **GREEDY):
            model.model.layers[0].output[0][:] += 5.0
        with model.trace(prompt, max_tokens=STEPS, lora_request=adapted.requests[name], **GREEDY) as tracer:
            rows = model.model.layers[0].output[0].shape[0].save()
        assert rows == 90
        expected = adapted.references[name].generate(prompt, STEPS)
        assert says(tracer.result, expected)
        for _ in range(2):
            plain = model.generate(prompt, max_tokens=STEPS, lora_request=adapted.requests[name], **GREEDY)
            assert says(plain, expected)
        assert plain.num_cached_tokens >= 64


def test_sequences_of_an_adapted_request_are_adapted(adapted: Adapted) -> None:
    model = adapted.model
    keywords = {"max_tokens": 2, "n": 3, "seed": 3, "temperature": 1.0, "ignore_eos": True}
    plain = model.generate(PROMPT, lora_request=adapted.requests["two"], **keywords)
    with model.trace(PROMPT, lora_request=adapted.requests["two"], **keywords) as tracer:
        logits = model.logits[0].save()
    expected = adapted.references["two"].generate(model.tokenizer.encode(PROMPT), 1).logits[0]
    assert all(close(each, expected) for each in logits)
    assert [each.token_ids for each in tracer.result.outputs] == [each.token_ids for each in plain.outputs]
