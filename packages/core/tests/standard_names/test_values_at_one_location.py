"""Several names of one location are asked for in any order, and agree with each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from nnsight.errors import UnsupportedFeatureError

if TYPE_CHECKING:
    from nnsight import NNsight

IDS = torch.tensor([[5, 6, 7]])
VECTOR = torch.linspace(-1.0, 1.0, 128)


@pytest.fixture(autouse=True)
def _no_grad() -> object:
    with torch.no_grad():
        yield


def test_attention_and_the_stream_after_it_are_read_in_either_order_and_with_the_output(model: NNsight) -> None:
    layer = model.layers[2]
    with model.trace(IDS) as tracer:
        attn = layer.attn_out.save()
        mid = layer.resid_mid.save()
        output = layer.self_attn.output.save()
    with model.trace(IDS):
        output_first = layer.self_attn.output[0].save()
        mid_next = layer.resid_mid.save()
        attn_last = layer.attn_out.save()
    assert torch.equal(output[0], attn)
    for one, other in ((output_first, attn), (mid_next, mid), (attn_last, attn)):
        assert torch.equal(one, other)
    assert tracer.receipt.visits == {
        "model.layers.2.attn_out": 1,
        "model.layers.2.resid_mid": 1,
        "model.layers.2.self_attn.output": 1,
    }


def test_the_last_value_of_a_layer_and_the_next_ones_first_are_read_beside_its_output(model: NNsight) -> None:
    with model.trace(IDS):
        mlp = model.layers[0].mlp_out.save()
        post = model.layers[0].resid_post.save()
        output = model.layers[0].output.save()
        pre = model.layers[1].resid_pre.save()
        given = model.layers[1].input.save()
    assert torch.equal(post, output)
    assert torch.equal(post, pre)
    assert torch.equal(pre, given)
    assert mlp.shape == post.shape


def test_a_change_under_one_name_shows_under_the_others(model: NNsight) -> None:
    layer = model.layers[1]
    with model.trace(IDS) as tracer:
        before = (layer.resid_mid * 1).save()
        layer.attn_out[:] += VECTOR
        mid = layer.resid_mid
        after_attention = (mid * 1).save()
        mid += VECTOR
        output = layer.self_attn.output[0].save()
        layer.resid_mid = layer.resid_mid + VECTOR
        attn = layer.attn_out.save()
        after = layer.resid_post.save()
    with model.trace(IDS):
        layer.attn_out += 3 * VECTOR
        expected = layer.resid_post.save()
    plain = attn - 3 * VECTOR
    assert torch.allclose(after_attention, before + VECTOR, atol=1e-5)
    assert torch.allclose(output, plain + 2 * VECTOR, atol=1e-5)
    assert torch.allclose(after, expected, atol=1e-4)
    assert tracer.receipt.edits == {"model.layers.1.resid_mid": 1}


def test_a_kept_value_stays_as_it_was_read(model: NNsight) -> None:
    layer = model.layers[1]
    with model.trace(IDS):
        attn, output = layer.attn_out.save(), layer.self_attn.output.save()
        copy = (attn * 1).save()
        layer.resid_mid = torch.zeros_like(layer.resid_mid)
        middle = layer.resid_mid.save()
        layer.mlp_out
    assert torch.equal(attn, copy)
    assert torch.equal(output[0], copy)
    assert not middle.any()


def test_several_edits_of_one_value_in_one_visit_add_up(model: NNsight) -> None:
    layer = model.layers[1]
    with model.trace(IDS):
        before = (layer.resid_mid * 1).save()
        layer.resid_mid[:, 0] += VECTOR
        layer.resid_mid[:, 1] *= 2
        seen = layer.post_attention_layernorm.input.save()
    assert torch.allclose(seen[:, 0], before[:, 0] + VECTOR, atol=1e-5)
    assert torch.allclose(seen[:, 1], before[:, 1] * 2, atol=1e-5)
    assert torch.allclose(seen[:, 2], before[:, 2], atol=1e-5)


def test_changes_whose_order_cannot_be_told_are_refused(model: NNsight) -> None:
    layer = model.layers[1]
    with (
        pytest.raises(UnsupportedFeatureError, match=r"layers\.1\.resid_mid and another value of .*self_attn\.output"),
        model.trace(IDS),
    ):
        attn, mid = layer.attn_out, layer.resid_mid
        attn += VECTOR
        mid += VECTOR


def test_a_change_of_a_value_that_was_read_again_since_is_refused(model: NNsight) -> None:
    layer = model.layers[1]
    with pytest.raises(UnsupportedFeatureError, match=r"layers\.1\.resid_mid and another value"), model.trace(IDS):
        first = layer.resid_mid
        layer.attn_out[:] += VECTOR
        layer.resid_mid
        first += VECTOR


def test_what_was_assigned_is_the_blocks_own_to_change(model: NNsight) -> None:
    layer = model.layers[1]
    with model.trace(IDS):
        states = layer.resid_mid
        layer.resid_mid = 0
        states += VECTOR
        given = layer.post_attention_layernorm.input.save()
    with model.trace(IDS) as tracer:
        new = torch.zeros(1, 3, 128)
        layer.resid_mid = new
        new += VECTOR
        in_time = layer.post_attention_layernorm.input.save()
        new += VECTOR
    assert given.abs().max() < 1e-5
    assert torch.allclose(in_time, VECTOR.expand(1, 3, 128), atol=1e-5)
    assert tracer.receipt.warnings == ()


def test_an_edit_of_the_layers_input_is_part_of_the_stream_after_attention(model: NNsight) -> None:
    layer = model.layers[1]
    with model.trace(IDS):
        layer.input[:] = 0
        attn = layer.attn_out.save()
        mid = layer.resid_mid.save()
        given = layer.post_attention_layernorm.input.save()
    assert torch.equal(mid, attn)
    assert torch.equal(given, mid)


def test_gradients_flow_through_edits_and_from_reads(model: NNsight) -> None:
    layer = model.layers[1]
    with torch.enable_grad():
        vector = torch.zeros(128, requires_grad=True)
        with model.trace(IDS):
            layer.resid_mid = layer.resid_mid + vector
            loss = model.unembed.output.sum().save()
        loss.backward()
        with model.trace(IDS):
            states = layer.resid_mid
            states += vector
            again = model.unembed.output.sum().save()
        (second,) = torch.autograd.grad(again, vector)
    assert vector.grad is not None
    assert vector.grad.abs().max() > 0
    assert torch.allclose(second, vector.grad, atol=1e-4)
