"""In each family of Transformers a standard name means what plain torch hooks find."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nnsight import NNsight
from stream_reference import FAMILIES, NAMES, Addition, StreamReference
from tiny_models import make_tiny_model

IDS, LAYERS, STEPS = [5, 6, 7, 8, 9], 4, 3
VECTOR = torch.linspace(-2.0, 2.0, 128)


@pytest.fixture(scope="module", params=FAMILIES)
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> StreamReference:
    folder = tmp_path_factory.mktemp(request.param)
    return StreamReference(make_tiny_model(folder, request.param), request.param)


@pytest.fixture(scope="module")
def model(reference: StreamReference) -> NNsight:
    return NNsight(reference.model)


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and float((one - other).abs().max()) < 1e-4


def generation(steps: int) -> dict[str, Any]:
    return {"method": "generate", "max_new_tokens": steps, "min_new_tokens": steps, "do_sample": False}


def test_every_value_of_every_layer_and_step_is_the_one_that_hooks_find(
    model: NNsight, reference: StreamReference
) -> None:
    expected = reference.generate(IDS, STEPS)
    with torch.no_grad(), model.trace(torch.tensor([IDS]), **generation(STEPS)) as tracer:
        found = list().save()
        for _ in tracer.iter[:STEPS]:
            for layer in model.layers:
                found.append((layer.resid_pre, layer.attn_out, layer.resid_mid, layer.mlp_out, layer.resid_post))
    for position, values in enumerate(found):
        step, layer = divmod(position, LAYERS)
        for name, value in zip(NAMES, values, strict=True):
            assert close(value[0], expected.layers[step][layer][name]), (step, layer, name)
        pre, attn, mid, mlp, post = values
        assert close(pre + attn, mid)
        assert close(mid + mlp, post)
    assert len(found) == STEPS * LAYERS


@pytest.mark.parametrize("name", NAMES)
def test_a_write_reaches_everything_that_follows(model: NNsight, reference: StreamReference, name: str) -> None:
    expected = reference.generate(IDS, 1, Addition(1, name, VECTOR))
    layers = model.layers
    with torch.no_grad(), model.trace(torch.tensor([IDS])):
        states = getattr(layers[1], name)
        states += VECTOR
        after = layers[1].resid_post.save()
        following = layers[2].resid_mid.save()
        edited = model.unembed.output.save()
    with torch.no_grad(), model.trace(torch.tensor([IDS])):
        setattr(layers[1], name, getattr(layers[1], name) + VECTOR)
        assigned = model.unembed.output.save()
    with torch.no_grad(), model.trace(torch.tensor([IDS])):
        for position in range(len(IDS)):
            getattr(layers[1], name)[:, position] += VECTOR
        sliced = model.unembed.output.save()
    assert close(after[0], expected.layers[0][1]["resid_post"])
    assert close(following[0], expected.layers[0][2]["resid_mid"])
    for logits in (edited, assigned, sliced):
        assert close(logits[0], expected.unembedded[0])


def test_the_modules_around_the_layers_have_names(model: NNsight, reference: StreamReference) -> None:
    hf = reference.model
    with torch.no_grad(), model.trace(torch.tensor([IDS])):
        embedded = model.embed.output.save()
        last = model.layers[-1].resid_post.save()
        normed = model.final_norm.output.save()
        logits = model.unembed.output.save()
    with torch.no_grad():
        assert torch.equal(embedded, hf.get_input_embeddings()(torch.tensor([IDS])))
        assert torch.equal(logits, hf.get_output_embeddings()(normed))
    assert normed.shape == last.shape
    assert len(model.layers) == len(list(model.layers)) == LAYERS
    assert [len(model.layers[1:]), len(model.layers[:-1])] == [3, 3]


def test_a_logit_lens_on_the_last_layer_gives_the_logits(model: NNsight) -> None:
    with torch.no_grad(), model.trace(torch.tensor([IDS])) as tracer:
        lens = model.unembed(model.final_norm(model.layers[-1].resid_post)).save()
        logits = model.unembed.output.save()
    assert close(lens, logits)
    assert tracer.receipt.edits == {}
