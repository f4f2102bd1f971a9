"""Standard names mean in an engine what Transformers computes, in each family."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from engine_runners import TOLERANCE, EngineRunner
from nnsight.errors import UnknownLocationError, UnsupportedFeatureError
from nnsight.modeling.vllm import VLLM
from stream_reference import FAMILIES, NAMES, Addition, StreamReference
from tiny_models import make_tiny_model

pytestmark = pytest.mark.slow

# Token ids: Transformers gives some families a tokenizer that has not the words of the tiny checkpoints.
IDS, STEPS, LAYERS = [4, 5, 6, 7, 8], 3, 4
VECTOR = torch.linspace(-2.0, 2.0, 128)
# An engine of its own each; the others differ from these in what is inside attention and MLP.
ALWAYS = ("llama", "qwen3", "gpt2", "gemma3")
# Each family is an engine of its own.
DEFAULT_RUNNERS = ("v1",)
# vLLM's kernels for experts take bfloat16 alone on CPUs with AMX.
IN_BFLOAT16 = ("qwen2_moe", "qwen3_moe")
BFLOAT16_TOLERANCE = 0.1
Greedy = Callable[[int], dict[str, Any]]


@dataclass(frozen=True)
class Pair:
    """A checkpoint in an engine and in Transformers."""

    family: str
    model: VLLM
    reference: StreamReference

    @property
    def exact(self) -> bool:
        return self.family not in IN_BFLOAT16

    def close(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        limit = TOLERANCE if self.exact else BFLOAT16_TOLERANCE
        return one.shape == other.shape and float((one.float() - other.float()).abs().max()) < limit


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=[] if name in ALWAYS else [pytest.mark.full]) for name in FAMILIES],
)
def pair(
    request: pytest.FixtureRequest, runner: EngineRunner, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    folder: Path = make_tiny_model(tmp_path_factory.mktemp(request.param), request.param)
    with runner.building():
        dtype = "bfloat16" if request.param in IN_BFLOAT16 else "float32"
        keywords = {"dtype": dtype, "max_model_len": 128, "max_num_seqs": 8, **runner.keywords}
        model = VLLM(str(folder), dispatch=True, **keywords)
    with model:
        yield Pair(request.param, model, StreamReference(folder, request.param))


def test_every_value_of_every_layer_equals_transformers_in_prompt_and_decode(pair: Pair, greedy: Greedy) -> None:
    model = pair.model
    with model.trace(IDS, **greedy(STEPS)) as tracer:
        found = list().save()
        for _ in tracer.iter[:STEPS]:
            for layer in model.layers:
                found.append((layer.resid_pre, layer.attn_out, layer.resid_mid, layer.mlp_out, layer.resid_post))
        result = tracer.result.save()
    tokens = list(result.outputs[0].token_ids)
    expected = pair.reference.generate(IDS, STEPS, tokens=tokens)
    assert tokens == expected.tokens or not pair.exact
    assert len(found) == STEPS * LAYERS
    for position, values in enumerate(found):
        step, layer = divmod(position, LAYERS)
        for name, value in zip(NAMES, values, strict=True):
            assert pair.close(value, expected.layers[step][layer][name]), (step, layer, name)
        pre, attn, mid, mlp, post = values
        assert pair.close(pre + attn, mid)
        assert pair.close(mid + mlp, post)


@pytest.mark.parametrize("name", NAMES)
def test_a_write_has_the_effect_of_the_same_write_in_transformers(pair: Pair, greedy: Greedy, name: str) -> None:
    model = pair.model
    with model.trace(**greedy(STEPS)) as tracer:
        with tracer.invoke(IDS):
            after, last = list().save(), list().save()
            for _ in tracer.iter[:STEPS]:
                states = getattr(model.layers[1], name)
                states += VECTOR.to(states.device)
                after.append(model.layers[2].resid_mid)
                last.append(model.unembed.output)
            edited = tracer.result.save()
        with tracer.invoke(IDS):
            assigned = list().save()
            for _ in tracer.iter[:1]:
                setattr(model.layers[1], name, getattr(model.layers[1], name) + VECTOR)
                assigned.append(model.layers[2].resid_mid)
        with tracer.invoke(IDS):
            untouched = list().save()
            for _ in tracer.iter[:1]:
                untouched.append(model.layers[2].resid_mid)
    tokens = list(edited.outputs[0].token_ids)
    expected = pair.reference.generate(IDS, STEPS, Addition(1, name, VECTOR), tokens=tokens)
    plain = pair.reference.generate(IDS, 1)
    assert tokens == expected.tokens or not pair.exact
    for step in range(STEPS):
        assert pair.close(after[step], expected.layers[step][2]["resid_mid"]), step
        assert pair.close(last[step], expected.logits[step][-1:]), step
    assert pair.close(assigned[0], expected.layers[0][2]["resid_mid"])
    assert pair.close(untouched[0], plain.layers[0][2]["resid_mid"])
    assert tracer.receipt[0].edits == {f"{model.layers._path}.1.{name}": STEPS}


def test_the_unembedding_reads_as_the_logits_and_gives_a_logit_lens(pair: Pair, greedy: Greedy) -> None:
    model, hf = pair.model, pair.reference.model
    expected = pair.reference.generate(IDS, 1)
    with model.trace(IDS, **greedy(1)) as tracer:
        embedded = model.embed.output.save()
        lens = list().save()
        for layer in model.layers:
            lens.append(model.unembed(model.final_norm(layer.resid_post)))
        logits = model.unembed.output.save()
    assert pair.close(logits, expected.logits[0][-1:])
    assert pair.close(lens[-1], expected.unembedded[0])
    norm = hf.get_submodule(model.final_norm._path)
    with torch.no_grad():
        for index, one in enumerate(lens):
            stream = expected.layers[0][index]["resid_post"]
            assert pair.close(one, hf.get_output_embeddings()(norm(stream)))
    assert embedded.shape == (len(IDS), 128)
    assert tracer.receipt.visits["logits"] == 1
    assert tracer.receipt.edits == {}


def test_an_edit_of_the_unembedding_is_what_the_sampler_is_given(pair: Pair, greedy: Greedy) -> None:
    model = pair.model
    with model.trace(IDS, **greedy(1)) as tracer:
        model.unembed.output[0, 77] = 1e4
        result = tracer.result.save()
    assert list(result.outputs[0].token_ids) == [77]
    with pytest.raises(UnsupportedFeatureError, match=r"\.input is never computed"), model.trace(IDS, **greedy(1)):
        model.unembed.input.save()


def test_names_are_known_without_an_engine(tmp_path: Path) -> None:
    model = VLLM(str(make_tiny_model(tmp_path, "gemma2", num_hidden_layers=3)))
    assert len(model.layers) == 3
    assert "resid_mid" in dir(model.layers[1])
    assert model.get("layers.1") is model.model.layers[1]
    assert (model.embed._path, model.unembed._path) == ("model.embed_tokens", "unembed")
    assert str(model).splitlines()[-1].startswith("standard names: layers = model.layers, embed = model.embed_tokens")
    with pytest.raises(UnknownLocationError, match="is no layer"):
        model.final_norm.resid_post
    assert not model.dispatched
