"""`nnsight locations`: how it folds a tree, and which standard names it lists."""

from __future__ import annotations

import json
from typing import Any

import pytest
from torch import nn

from nnsight.families import Argument, LayerArgument, ModelFamily, StandardValue
from nnsight_cli import demo_model_path
from nnsight_cli.standard_listing import standard_listing
from nnsight_cli.tree_listing import listing, spans

TREE = [
    ("", "Model"),
    ("embed", "Embedding"),
    *((f"layers.{index}", "Layer" if index != 2 else "OtherLayer") for index in range(4)),
    *((f"layers.{index}.mlp", "MLP") for index in range(4)),
]


def test_layers_of_one_kind_are_one_line_with_their_numbers() -> None:
    lines = listing(TREE)
    assert [(line.location, line.numbers, line.kind) for line in lines] == [
        ("embed", "", "Embedding"),
        ("layers.*", "0-1, 3", "Layer"),
        ("layers.2", "", "OtherLayer"),
        ("layers.*.mlp", "0-3", "MLP"),
    ]


def test_every_layer_has_a_line_of_its_own_when_asked_for() -> None:
    assert [line.location for line in listing(TREE, fold=False)] == [path for path, _ in TREE if path]


def test_a_filter_picks_modules_or_one_side_of_them() -> None:
    assert [line.location for line in listing(TREE, pattern="layers.*.mlp")] == ["layers.*.mlp"]
    assert [line.location for line in listing(TREE, pattern="layers.*.mlp.output")] == ["layers.*.mlp.output"]
    assert [line.location for line in listing(TREE, pattern="layers.3.*put", fold=False)] == [
        "layers.3.input",
        "layers.3.output",
    ]


def test_a_star_stays_within_one_part_of_a_path() -> None:
    assert [line.location for line in listing(TREE, pattern="*", fold=False)] == ["embed"]


def test_numbers_are_written_as_spans() -> None:
    assert spans([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"


class Root(nn.Module):
    """A model with three layers; it has an `embed` of its own, and its second layer a value of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = nn.ModuleList([nn.Linear(1, 1), nn.Linear(1, 1), nn.Linear(1, 1)])
        self.embed = nn.Embedding(2, 1)
        self.stack[1].mlp_out = 1  # type: ignore[assignment]


FAMILY = ModelFamily(
    package="tests",
    classes=("Root",),
    layers="stack",
    embed="embed",
    final_norm="norm",
    unembed="head",
    values={
        "resid_post": StandardValue("", "output", 0, plus=1),
        "resid_pre": StandardValue("", "inputs", Argument(1, "hidden_states"), plus=Argument(2, "residual")),
        "resid_mid": StandardValue("attention", "output", plus=LayerArgument(0, "stream")),
        "mlp_out": StandardValue("mlp", "output"),
    },
    unembed_value="logits",
)
MODULES = dict(Root().named_modules())


def test_standard_names_are_listed_with_what_they_stand_for() -> None:
    lines = standard_listing(MODULES, FAMILY)
    assert [(line.location, line.numbers, line.stands_for) for line in lines] == [
        ("layers", "", "stack"),
        ("final_norm", "", "norm"),
        ("unembed", "", "head, with the output model.logits"),
        ("layers.*.resid_pre", "0-2", "stack.*.inputs: hidden_states + residual"),
        ("layers.*.resid_mid", "0-2", "stack.*.attention.output + the layer's stream"),
        ("layers.*.mlp_out", "0, 2", "stack.*.mlp.output"),
        ("layers.*.resid_post", "0-2", "stack.*.output[0] + [1]"),
    ]
    assert lines[-2].locations == ["layers.0.mlp_out", "layers.2.mlp_out"]


def test_each_layer_has_a_standard_name_of_its_own_when_asked_for() -> None:
    lines = standard_listing(MODULES, FAMILY, pattern="layers.*.mlp_out", fold=False)
    assert [(line.location, line.stands_for) for line in lines] == [
        ("layers.0.mlp_out", "stack.0.mlp.output"),
        ("layers.2.mlp_out", "stack.2.mlp.output"),
    ]


def test_a_filter_picks_standard_names_by_either_path() -> None:
    for pattern in ("layers.2.resid_*", "stack.2.resid_*"):
        lines = standard_listing(MODULES, FAMILY, pattern=pattern)
        assert [line.location for line in lines] == ["layers.2.resid_pre", "layers.2.resid_mid", "layers.2.resid_post"]
    assert [line.location for line in standard_listing(MODULES, FAMILY, pattern="final_*")] == ["final_norm"]


def test_a_model_of_no_known_family_has_no_standard_names() -> None:
    assert standard_listing(MODULES, None) == []


@pytest.mark.slow
def test_the_tree_of_a_model_is_printed_without_an_engine(command: Any) -> None:
    process = command("locations", str(demo_model_path()))
    assert process.returncode == 0, process.stderr
    assert "model.layers.*.self_attn.qkv_proj" in process.stdout
    assert "0-7" in process.stdout
    assert "Qwen3DecoderLayer" in process.stdout
    assert "INFO" not in process.stdout + process.stderr
    modules, _, standard = process.stdout.partition("standard name")
    assert "resid_pre" not in modules
    assert "layers.*.resid_pre" in standard
    assert "model.embed_tokens" in standard


@pytest.mark.slow
def test_a_filter_is_applied_to_the_tree_of_a_model(command: Any) -> None:
    process = command("locations", str(demo_model_path()), "--filter", "model.layers.*.output", "--json")
    document = json.loads(process.stdout)
    (line,) = document["modules"]
    assert document["standard_names"] == []
    assert line["location"] == "model.layers.*.output"
    assert line["modules"] == [f"model.layers.{index}" for index in range(8)]


@pytest.mark.slow
def test_a_filter_that_picks_nothing_is_an_error(command: Any) -> None:
    process = command("locations", str(demo_model_path()), "--filter", "nothing.like.this")
    assert process.returncode == 2
    assert "picks none" in process.stderr
