"""Standard names are found wherever names are, real names win, and what has none says so."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from transformers import LlamaForCausalLM

from nnsight import NNsight
from nnsight._program import summarize
from nnsight.errors import OutOfOrderError, OutsideTraceError, UnknownLocationError

if TYPE_CHECKING:
    from tests.standard_names.fused import FusedDecoder

IDS = torch.tensor([[5, 6, 7]])


def test_paths_lead_to_standard_names(model: NNsight) -> None:
    assert model.get("layers.3.mlp") is model.model.layers[3].mlp
    assert model.get("embed") is model.model.embed_tokens
    assert model.layers is model.model.layers
    assert (model.final_norm, model.unembed) == (model.model.norm, model.lm_head)
    with torch.no_grad(), model.trace(IDS):
        by_path = model.get("model.layers.2.resid_post").save()
        short = model.get("layers.2.resid_post").save()
    assert torch.equal(by_path, short)


def test_completion_and_the_printed_tree_name_them(model: NNsight) -> None:
    assert {"layers", "embed", "final_norm", "unembed"} <= set(dir(model))
    assert {"resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post"} <= set(dir(model.layers[0]))
    assert "resid_post" not in dir(model.model)
    assert str(model).splitlines()[-1] == (
        "standard names: layers = model.layers, embed = model.embed_tokens, final_norm = model.norm, "
        "unembed = lm_head; in each layer resid_pre, attn_out, resid_mid, mlp_out, resid_post"
    )
    assert str(model.layers[0]).endswith("standard names: resid_pre, attn_out, resid_mid, mlp_out, resid_post")
    assert "standard names" not in str(model.model)


def test_a_real_attribute_of_the_same_name_wins(llama: LlamaForCausalLM) -> None:
    class Own(LlamaForCausalLM):
        embed = "my own"

    own = Own(llama.config)
    own.unembed = nn.Linear(2, 3)
    own.model.layers[0].mlp_out = nn.Identity()
    own.model.layers[1].attn_out = "my own too"
    model = NNsight(own)
    assert model.embed == "my own"
    assert model.unembed.out_features == 3
    assert model.final_norm is model.model.norm
    with torch.no_grad(), model.trace(IDS):
        kept = model.layers[0].mlp_out(torch.ones(2)).save()
        named = model.layers[1].attn_out.save()
        post = model.layers[1].resid_post.save()
    assert kept.tolist() == [1.0, 1.0]
    assert named == "my own too"
    assert post.shape == (1, 3, 128)


def test_an_unknown_family_is_refused_with_its_class_and_the_hook() -> None:
    model = NNsight(nn.Sequential(nn.Linear(2, 2)))
    for name in ("layers", "embed"):
        with pytest.raises(
            UnknownLocationError, match=rf"'{name}' is a standard name.*Sequential.*resolve_standard_names"
        ):
            getattr(model, name)
    with pytest.raises(UnknownLocationError, match=r"'resid_post'.*Sequential"), model.trace(torch.ones(1, 2)):
        model[0].resid_post.save()
    with pytest.raises(UnknownLocationError, match=r"'resid_post'.*Sequential"), model.trace(torch.ones(1, 2)):
        model[0].resid_post = torch.zeros(1, 2)
    assert not hasattr(model, "unembed")


def test_a_value_of_a_layer_is_refused_elsewhere(model: NNsight) -> None:
    with pytest.raises(UnknownLocationError, match=r"model\.norm is no layer.*model\.layers\[i\]\.resid_post"):
        model.final_norm.resid_post
    with pytest.raises(UnknownLocationError, match="no layer"):
        model.resid_pre


def test_a_plugin_names_the_values_of_a_model_of_its_own(fused: FusedDecoder) -> None:
    model = NNsight(fused)
    with torch.no_grad(), model.trace(torch.ones(2, 4)) as tracer:
        states = model.layers[2].resid_mid
        states += 1
        after = (model.layers[2].resid_post - states).save()
    assert after.shape == (2, 4)
    assert tracer.receipt.edits == {"blocks.2.resid_mid": 1}
    with pytest.raises(UnknownLocationError, match="FusedDecoder has no unembed"):
        model.unembed


def test_values_exist_in_blocks_alone_and_in_their_order(model: NNsight) -> None:
    with pytest.raises(OutsideTraceError):
        model.layers[0].resid_post
    with pytest.raises(OutOfOrderError) as raised, torch.no_grad(), model.trace(IDS):
        model.layers[1].mlp_out
        model.layers[1].resid_mid
    assert "model.layers.1.resid_mid was asked for after model.layers.1.mlp_out" in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        "h = model.layers[0].resid_post.save()",
        "lens = model.unembed(model.final_norm(model.layers[1].resid_mid)).argmax(-1)",
        "for layer in model.layers:\n    hs.append(layer.resid_pre)",
    ],
)
def test_programs_that_only_read_standard_values_are_read_only(model: NNsight, text: str) -> None:
    assert summary(model, "hs = list().save()\n" + text).read_only


@pytest.mark.parametrize(
    "text",
    [
        "model.layers[0].resid_post[:, 3] += 1",
        "model.layers[0].resid_post = v",
        "h = model.layers[0].attn_out\nh += 1",
        "model.layers[0].resid_mid += 1",
        "model.layers[0].mlp_out.mul_(2)",
    ],
)
def test_programs_that_write_standard_values_are_not(model: NNsight, text: str) -> None:
    assert not summary(model, text).read_only


def test_the_summary_names_standard_values_as_written(model: NNsight) -> None:
    found = summary(model, "h = model.layers[0].resid_mid\nmodel.layers[1].resid_post = h")
    assert found.reads == ("model.layers[0].resid_mid",)
    assert found.writes == ("model.layers[1].resid_post",)


def summary(model: NNsight, text: str) -> Any:
    return summarize(ast.parse(text).body, {"model": model, "v": torch.ones(1)}, model._tree.location_names)
