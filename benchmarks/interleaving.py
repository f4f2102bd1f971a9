"""What the interleaver itself costs, without an engine: a step with a block, a visit of a module, and a visit of an op.

    python -m benchmarks.interleaving [--rounds 15] [--layers 32] [--steps 128] [--device cpu] [--json FILE]

A stack of modules that do nothing stands in for a model, so what is measured is ours alone: the CPU time of the thread,
which other programs on the machine disturb less than the clock on the wall.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.pairing import interval, slope
from benchmarks.report import Report
from nnsight._capture import BlockSource
from nnsight._envoy import ModelTree
from nnsight._interleave import Interleaver, RowScope
from nnsight._program import Program
from nnsight._trace import BlockTracer

HIDDEN = 4096
_BLOCK = """with _:
    kept = list().save()
    for _ in tracer.iter[:steps]:
        for layer in layers:
            kept.append(layer.{value}[0])
"""


class Layer(nn.Module):
    """Hands on what it is given, as a fused-residual layer does."""

    def forward(self, hidden: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return both parts of the residual stream, [rows, hidden] each."""
        both = hidden, residual
        return both  # noqa: RET504 - an op to visit


class Stack(nn.Module):
    """Layers one after the other."""

    def __init__(self, count: int) -> None:
        """Make so many layers."""
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(count))

    def forward(self, hidden: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """Run every layer."""
        for layer in self.layers:
            hidden, residual = layer(hidden, residual)
        return hidden


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--device", default="cpu", help="where the rows are: a copy there is a launch")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)

    tree = ModelTree(Stack(options.layers))
    counts = (0, options.layers // 4, options.layers)
    per_step, per_visit, per_op = [], [], []
    for _ in range(options.rounds + 1):
        plain = _seconds(tree, None, options)
        points = [(count * options.steps, _seconds(tree, count, options)) for count in counts]
        of_ops = [(count * options.steps, _seconds(tree, count, options, "source.both_0.output")) for count in counts]
        per_step.append((points[0][1] - plain) / options.steps * 1e6)
        per_visit.append(slope(points) * 1e6)
        per_op.append(slope(of_ops) * 1e6)
    report = Report(f"interleaver, one request, rows of 4096 bf16 on {options.device}", options.json)
    report.add("a step with a block that asks for nothing in it", interval(per_step[1:]), "us", "<= 60")
    report.add("a visit with its copy", interval(per_visit[1:]), "us", "<= 40")
    report.add("a visit of an op with its copy", interval(per_op[1:]), "us", "<= 60")


def _seconds(tree: ModelTree, num_read: int | None, options: argparse.Namespace, value: str = "output") -> float:
    """Run all steps with a block that reads a value of so many layers in each, or without a block."""
    hub, steps = Interleaver(tree), options.steps
    run: Any = None
    if num_read is not None:
        layers = [tree.envoy().layers[index] for index in range(num_read)]
        source = BlockSource("<benchmark>", 1, _BLOCK.format(value=value), 0, "block")
        program = Program.from_values(source, {"tracer": BlockTracer(), "layers": layers, "steps": steps})
        run = program.start(program.values, grad=False, read_only=True)
    with torch.inference_mode():
        hidden, residual = torch.zeros(2, 1, HIDDEN, dtype=torch.bfloat16, device=options.device).unbind()
        began = time.thread_time()
        for step in range(steps):
            if run is not None:
                hub.begin_step({run: RowScope(0, 1, 1, alone=True)}, {run: step})
            tree.root(hidden, residual)
            if run is not None:
                hub.end_step()
        seconds = time.thread_time() - began
    if run is not None:
        run.end()
    return seconds


if __name__ == "__main__":
    main()
