"""`nnsight locations`, and how it folds a tree."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nnsight_cli import demo_model_path
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


@pytest.mark.slow
def test_the_tree_of_a_model_is_printed_without_an_engine(command: Any) -> None:
    process = command("locations", str(demo_model_path()))
    assert process.returncode == 0, process.stderr
    assert "model.layers.*.self_attn.qkv_proj" in process.stdout
    assert "0-7" in process.stdout
    assert "Qwen3DecoderLayer" in process.stdout
    assert "INFO" not in process.stdout + process.stderr


@pytest.mark.slow
def test_a_filter_is_applied_to_the_tree_of_a_model(command: Any) -> None:
    process = command("locations", str(demo_model_path()), "--filter", "model.layers.*.output", "--json")
    (line,) = json.loads(process.stdout)
    assert line["location"] == "model.layers.*.output"
    assert line["modules"] == [f"model.layers.{index}" for index in range(8)]


@pytest.mark.slow
def test_a_filter_that_picks_nothing_is_an_error(command: Any) -> None:
    process = command("locations", str(demo_model_path()), "--filter", "nothing.like.this")
    assert process.returncode == 2
    assert "picks none" in process.stderr
