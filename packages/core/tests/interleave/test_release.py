"""What a block kept goes with its run, without a garbage collection: it may be gigabytes on a GPU."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from nnsight._capture import BlockSource
from nnsight._envoy import ModelTree
from nnsight._interleave import Budget, Interleaver, WholeScope
from nnsight._program import Program
from nnsight._trace import BlockTracer

BLOCKS = {
    "ends": "kept = layer.output.save()",
    "loops": "kept = [].save()\nfor _ in tracer.iter[:3]:\n    kept.append(layer.output)",
    "fails": "kept = layer.output.save()\nraise KeyError(kept)",
    "fails in a function": "kept = layer.output.save()\n(lambda value: value[99])(kept)",
    "stops": "kept = layer.output.save()\ntracer.stop()",
    "misfits": "kept = layer.output.save()\nlayer.output = kept[:1]\nlayer.output",
    "waits for ever": "kept = layer.output.save()\nlayer.input",
    "never begins": "for _ in tracer.iter[5:]:\n    layer.output",
}


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("begins", [True, False], ids=["begun", "not begun"])
@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_a_run_that_is_over_leads_nowhere_in_a_circle(block: str, begins: bool) -> None:
    tree = ModelTree(nn.Sequential(nn.Linear(4, 4)))
    body = "".join(f"    {line}\n" for line in block.split("\n"))
    source = BlockSource("<test block>", 1, f"with _:\n{body}", 0, "block")
    program = Program.from_values(source, {"layer": tree.envoy()[0], "tracer": BlockTracer()})
    run = program.start(
        program.values, grad=False, read_only=False, budget=Budget(step_budget=1000, byte_budget=1 << 20)
    )
    hub = Interleaver(tree)
    if begins:
        hub.begin_step({run: WholeScope()}, {run: 0})
        with torch.no_grad():
            tree.root(torch.ones(2, 4))
        hub.end_step()
    run.end()
    run.close()
    run.release()
    kept = [weakref.ref(value) for value in run.named.values() if isinstance(value, torch.Tensor)]
    over = weakref.ref(run)
    hub.disarm()
    del run, hub
    assert over() is None
    assert not any(each() is not None for each in kept)
