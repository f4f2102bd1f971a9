"""Standard names beside ops, skips and single items of a value."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
import torch

import nnsight
from nnsight import NNsight
from nnsight._interleave.run import BlockRun
from nnsight.backends import ModelTree
from nnsight.errors import UnsupportedFeatureError
from nnsight.families import ModelFamily, find_family
from nnsight.plugins import plugin_manager
from tests.standard_names.fused import FusedDecoder, FusedNorm

if TYPE_CHECKING:
    from nnsight.events import RootModule

STATES = torch.arange(12.0).view(3, 4)


@pytest.fixture(autouse=True)
def _no_grad() -> object:
    with torch.no_grad():
        yield


def test_items_of_a_layers_output_and_its_last_stream_are_read_in_either_order(fused: FusedDecoder) -> None:
    model = NNsight(fused)
    with model.trace(STATES) as tracer:
        hidden = model.layers[1].output[0].save()
        after = model.layers[1].resid_post.save()
        residual = model.layers[1].output[1].save()
        later = model.layers[2].resid_post.save()
        again = model.layers[2].output[1].save()
        also = model.layers[2].output[0].save()
    assert torch.equal(after, hidden + residual)
    assert torch.equal(later, again + also)
    assert tracer.receipt.visits == {
        "blocks.1.output": 1,
        "blocks.1.resid_post": 1,
        "blocks.2.resid_post": 1,
        "blocks.2.output": 1,
    }


def test_an_item_shows_what_was_changed_under_a_standard_name(fused: FusedDecoder) -> None:
    model = NNsight(fused)
    with model.trace(STATES):
        layer = model.layers[1]
        residual = layer.output[1].save()
        states = layer.resid_post
        states += 1
        hidden = layer.output[0].save()
        before = (states * 1).save()
        given = model.layers[2].resid_pre.save()
    assert torch.allclose(hidden + residual, before)
    assert torch.allclose(given, before)


def test_ops_of_modules_with_standard_names_are_looked_into(fused: FusedDecoder) -> None:
    model = NNsight(fused)
    norms = [model.final_norm]
    with model.trace(STATES) as tracer:
        stream = model.layers[2].resid_post.save()
        added = model.final_norm.source.residual_0.output.save()
    with model.trace(STATES):
        inside = model.layers[1].source.self_mix_0.output.save()
        later = model.get("final_norm.source.residual_0").output.save()
    with model.trace(STATES):
        model.layers[2].mix.output
        from_list = norms[0].source.residual_0.output.save()
    with model.trace(STATES):
        attn = model.layers[1].attn_out.save()
    assert torch.allclose(added, stream)
    assert torch.equal(added, later)
    assert torch.equal(added, from_list)
    assert torch.equal(inside, attn)
    assert tracer.receipt.visits == {"blocks.2.resid_post": 1, "norm.source.residual_0.output": 1}


def test_a_standard_value_is_served_inside_a_forward_whose_ops_are_asked_for(fused: FusedDecoder) -> None:
    model = NNsight(fused)
    with model.trace(STATES):
        layer = model.layers[1]
        before = layer.resid_pre.save()
        op = layer.source.self_mix_0.output.save()
        middle = layer.resid_mid.save()
        after = layer.resid_post.save()
    assert torch.allclose(middle, before + op)
    assert not torch.equal(after, middle)


def test_a_layer_that_is_skipped_by_its_standard_name_returns_the_value(fused: FusedDecoder) -> None:
    model = NNsight(fused)
    with model.trace(STATES) as tracer:
        states = model.layers[1].resid_pre
        model.layers[1].skip((states, torch.zeros_like(states)))
        given = model.layers[2].resid_pre.save()
        kept = states.save()
    assert torch.equal(given, kept)
    assert tracer.receipt.edits == {"blocks.1.skip": 1}


class Untied(FusedDecoder):
    """Its norm is a stand-in for an unembedding that the engine never calls."""

    def __init__(self) -> None:
        super().__init__()
        self.head = FusedNorm()


class UntiedPlugin:
    """Answers for it."""

    @nnsight.hookimpl
    def resolve_standard_names(self, root: RootModule) -> ModelFamily | None:
        family = ModelFamily(
            package="tests",
            classes=("Untied",),
            layers="blocks",
            embed="norm",
            final_norm="norm",
            unembed="head",
            unembed_value="logits",
        )
        return find_family([family], root.module)


def test_only_the_output_of_a_module_that_is_never_called_is_served() -> None:
    plugin = UntiedPlugin()
    plugin_manager().register(plugin)
    try:
        head = ModelTree(Untied(), values=("logits",)).envoy().unembed
    finally:
        plugin_manager().unregister(plugin)
    for ask in (
        lambda: head.input,
        lambda: head.inputs,
        lambda: head.skip(STATES),
        lambda: head.source.residual_0.output,
    ):
        run = BlockRun(lambda run, ask=ask: ask())
        run.begin_step(0, None)
        assert isinstance(run.error, UnsupportedFeatureError)
        assert re.match(r"head\.\w+ is never computed.*from logits", str(run.error))
