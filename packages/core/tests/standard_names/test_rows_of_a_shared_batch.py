"""Standard values of a stream in two tensors, for several requests in one batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from nnsight._envoy import ModelTree
from nnsight._interleave import BlockRun, Interleaver, RowScope
from nnsight.errors import MismatchedValueError, NNsightError, ReadOnlyError
from tests.standard_names.fused import HIDDEN, LAYERS, FusedDecoder

STATES = torch.arange(5.0 * HIDDEN).reshape(5, HIDDEN) / 10
NAMES = ("resid_pre", "resid_mid", "resid_post")


def forward(network: FusedDecoder, *blocks: Callable[[Any], object], read_only: bool = False) -> Any:
    """Run the network once, in inference mode as an engine does, with blocks for rows 0:2, 2:5, ... of the batch."""
    tree = ModelTree(network)
    runs = [BlockRun(lambda run, block=block: block(tree.envoy()), read_only=read_only) for block in blocks]
    rows = [(0, 2), (2, 5)]
    hub = Interleaver(tree)
    with torch.inference_mode():
        scopes = {run: RowScope(*rows[index], 5) for index, run in enumerate(runs)}
        hub.begin_step(scopes, dict.fromkeys(runs, 0))
        output = network(STATES)
        hub.end_step()
    for run in runs:
        run.end()
    return output, runs


def streams(network: FusedDecoder) -> list[dict[str, torch.Tensor]]:
    """Compute the stream without fused norms."""
    found = []
    stream = STATES
    for block in network.blocks:
        middle = stream + block.mix(stream * 0.5)
        after = middle + block.mlp(middle * 0.5)
        found.append({"resid_pre": stream, "resid_mid": middle, "resid_post": after})
        stream = after
    return found


def test_each_request_reads_its_rows_of_the_sum(fused: FusedDecoder) -> None:
    kept: dict[int, list[list[torch.Tensor]]] = {0: [], 1: []}

    def block(index: int) -> Callable[[Any], None]:
        def read(model: Any) -> None:
            for layer in model.layers:
                kept[index].append([layer.resid_pre, layer.resid_mid, layer.resid_post])

        return read

    _, runs = forward(fused, block(0), block(1))
    assert [run.error for run in runs] == [None, None]
    expected = streams(fused)
    for layer in range(LAYERS):
        for name, one, other in zip(NAMES, kept[0][layer], kept[1][layer], strict=True):
            assert torch.allclose(torch.cat([one, other]), expected[layer][name], atol=1e-5), (layer, name)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("how", ["in place", "assigned", "number"])
def test_a_write_changes_the_rows_of_its_request_alone(fused: FusedDecoder, name: str, how: str) -> None:
    seen = []

    def block(model: Any) -> None:
        layer = model.layers[1]
        if how == "in place":
            states = getattr(layer, name)
            states *= 0
        elif how == "assigned":
            setattr(layer, name, torch.zeros(2, HIDDEN, dtype=torch.float64))
        else:
            setattr(layer, name, 0)
        seen.append(model.layers[2].resid_pre)

    plain, _ = forward(fused)
    output, (run,) = forward(fused, block)
    assert run.error is None
    assert run.receipt.edits == {f"blocks.1.{name}": 1}
    assert torch.equal(output[2:], plain[2:])
    with torch.no_grad():
        middle = torch.zeros(2, HIDDEN) if name != "resid_pre" else fused.blocks[1].mix(torch.zeros(2, HIDDEN))
        after = middle + fused.blocks[1].mlp(middle * 0.5)
    expected = torch.zeros(2, HIDDEN) if name == "resid_post" else after
    assert torch.allclose(seen[0], expected, atol=1e-5)


def test_the_first_layers_stream_has_one_part_alone(fused: FusedDecoder) -> None:
    seen = []

    def block(model: Any) -> None:
        model.layers[0].resid_pre = torch.ones(2, HIDDEN)
        seen.append(model.layers[0].norm.input)

    _, (run,) = forward(fused, block)
    assert run.error is None
    assert torch.equal(seen[0], torch.ones(2, HIDDEN))


def test_a_value_of_another_shape_is_refused_by_its_standard_name(fused: FusedDecoder) -> None:
    def block(model: Any) -> None:
        model.layers[1].resid_mid = torch.zeros(1, HIDDEN)

    _, (run,) = forward(fused, block)
    assert isinstance(run.error, MismatchedValueError)
    assert "blocks.1.resid_mid holds a tensor of shape (2, 4)" in str(run.error)


def test_a_read_only_program_that_edits_is_refused_by_the_standard_name(fused: FusedDecoder) -> None:
    def block(model: Any) -> None:
        states = model.layers[1].resid_mid
        states += 1

    _, (run,) = forward(fused, block, read_only=True)
    assert isinstance(run.error, ReadOnlyError)
    assert "blocks.1.resid_mid" in str(run.error)


def test_a_late_edit_is_noted_under_the_standard_name(fused: FusedDecoder) -> None:
    def block(model: Any) -> None:
        states = model.layers[1].resid_mid
        model.layers[2].resid_pre
        states += 1

    _, (run,) = forward(fused, block)
    run.count_late_edits()
    assert len(run.receipt.warnings) == 1
    assert run.receipt.warnings[0].startswith("blocks.1.resid_mid was changed in place")


def test_a_value_that_the_family_has_not_is_refused_with_those_that_it_has(fused: FusedDecoder) -> None:
    def block(model: Any) -> None:
        model.layers[1].mlp_out

    _, (run,) = forward(fused, block)
    assert isinstance(run.error, NNsightError)
    assert "FusedDecoder have no mlp_out; they have resid_pre, attn_out, resid_mid, resid_post" in str(run.error)
