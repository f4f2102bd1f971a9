"""Rows that a block changed are written again where they are computed again."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
import torch
from torch import nn

from nnsight._capture import BlockSource
from nnsight._envoy import ModelTree
from nnsight._interleave import BlockRun, Interleaver, RowLog, RowScope, replays
from nnsight._interleave.location import Location
from nnsight._program import Program
from nnsight._trace import BlockTracer
from nnsight.errors import MismatchedValueError, UnsupportedFeatureError

PROMPT, NEW, WIDTH = 3, 2, 4
TOKENS = PROMPT + NEW


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Identity()

    def forward(self, hidden: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inner(hidden * 2 + 1), residual + hidden


class Model(nn.Module):
    """Every row is computed by itself, so it is the same whenever it is."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.shape = "as it is"

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        residual = torch.zeros_like(hidden)
        for number, layer in enumerate(self.layers):
            if number != 1 or self.shape != "skips a layer":
                hidden, residual = layer(hidden, residual)
        return hidden + residual


class Engine:
    """Runs a model for one request of a batch, whose rows are in the middle."""

    def __init__(self, text: str) -> None:
        self.root = Model()
        self.tree = ModelTree(self.root, values=("logits",))
        self.hub = Interleaver(self.tree)
        source = BlockSource(
            "<test block>", 1, "with _:\n" + textwrap.indent(textwrap.dedent(text), "    "), 0, "block"
        )
        values: dict[str, Any] = {
            "layers": list(self.tree.envoy().layers),
            "model": self.tree.envoy(),
            "tracer": BlockTracer(),
            "torch": torch,
        }
        program = Program.from_values(source, values)
        self.run = program.start(program.values, grad=False, read_only=False)
        self.log = self.run.log = RowLog()
        self.inputs = torch.arange(TOKENS * WIDTH, dtype=torch.float32).reshape(TOKENS, WIDTH)
        self.neighbour = torch.full((2, WIDTH), 7.0)

    def forward(self, scopes: dict[BlockRun, int], first: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute rows of the request between those of others; return its outputs and its logits."""
        rows = torch.cat([self.neighbour[:1], self.inputs[first : first + count], self.neighbour[1:]])
        own = RowScope(1, 1 + count, count + 2)
        with torch.inference_mode():
            self.hub.begin_step(dict.fromkeys(scopes, own), scopes)
            output = self.root(rows)
            logits = torch.stack([output[0], output[count], output[-1]])
            self.hub.offer("logits", logits, dict.fromkeys(scopes, RowScope(1, 2, 3)))
            self.hub.end_step()
            alone = self.root(self.neighbour)
        assert torch.equal(output[[0, -1]], alone)
        assert torch.equal(logits[[0, -1]], alone)
        return output[1:-1].clone(), logits[1].clone()

    def generate(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the block beside the prompt and each new token."""
        outputs = []
        for step, (first, count) in enumerate([(0, PROMPT), *((PROMPT + number, 1) for number in range(NEW))]):
            self.log.position = first
            output, logits = self.forward({self.run: step}, first, count)
            outputs.append(output)
            assert self.run.error is None
        return torch.cat(outputs), logits

    def again(self, first: int, count: int) -> tuple[torch.Tensor, torch.Tensor, list[Exception]]:
        """Compute rows again, without the block."""
        failures: list[Exception] = []
        last = first + count == TOKENS
        stand_ins = replays(self.log, first, count, failures.append, samples=last)
        return (*self.forward(dict.fromkeys(stand_ins, 0), first, count), failures)


CHANGES = {
    "a part of a tuple in place": """
        for step in tracer.iter[:]:
            layers[0].output[0][-1] += step + 1
            layers[1].output[1][:] *= 0.5
    """,
    "whole values": """
        for step in tracer.iter[:]:
            layers[0].inner.output = layers[0].inner.output * (step + 2)
            layers[2].output = (layers[2].output[0] + 1, layers[2].output[1] - step)
    """,
    "inputs": """
        for step in tracer.iter[:]:
            layers[1].input[:] += step + 1
    """,
    "a skipped module, and its output after that": """
        for step in tracer.iter[:]:
            layers[1].inner.skip(torch.full((3 if step == 0 else 1, 4), float(step)))
            layers[1].inner.output[:] += 1
    """,
    "ops": """
        for step in tracer.iter[:]:
            layers[1].source.self_inner_0.output[:] -= step + 1
    """,
    "logits": """
        for step in tracer.iter[:]:
            layers[2].output[0][:] += step
            model.logits[:] += 10 * step
    """,
    "some steps alone": """
        for step in tracer.iter[:]:
            if step == 1:
                layers[0].output[0][:] = 3
    """,
    "nothing": """
        for step in tracer.iter[:]:
            layers[0].output
    """,
}


@pytest.mark.parametrize("text", CHANGES.values(), ids=CHANGES)
def test_rows_that_are_computed_again_are_as_the_block_left_them(text: str) -> None:
    engine = Engine(text)
    outputs, logits = engine.generate()
    assert engine.log.problem is None
    for first, count in ((0, TOKENS), (0, 2), (1, 3), (2, 3), (4, 1)):
        found, last, failures = engine.again(first, count)
        assert failures == []
        assert torch.equal(found, outputs[first : first + count])
        if first + count == TOKENS:
            assert torch.equal(last, logits)
    # Whatever was written again is kept as it was.
    assert torch.equal(engine.again(0, TOKENS)[0], outputs)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("for step in tracer.iter[:]:\n    layers[0].output[0][:] += 1", "changed more than 0 MiB of rows"),
        (
            "for step in tracer.iter[:]:\n    layers[0].inner.skip(torch.zeros(3 if step == 0 else 1, 4))\n"
            "    layers[0].inner.output[:] += 1",
            "changed more than 0 MiB of rows",
        ),
    ],
)
def test_more_than_is_kept_cannot_be_written_again(text: str, problem: str) -> None:
    engine = Engine(text)
    engine.log = engine.run.log = RowLog(limit=10)
    engine.generate()
    assert problem in (engine.log.problem or "")
    assert replays(engine.log, 0, TOKENS, pytest.fail, samples=True) == []


def _noted(log: RowLog, location: Location, own: torch.Tensor, total: int) -> None:
    log.noting(location, RowScope(0, 1, total), lambda live, own, where: own)(own, own, f"{location.name}[0]")


def test_what_is_not_one_row_per_token_cannot_be_written_again() -> None:
    log = RowLog()
    _noted(log, Location("a", "output"), torch.zeros(3, 2), 4)
    assert log.problem == "a.output was changed in a value that is not one row per token"


def test_a_place_that_was_changed_twice_in_a_step_cannot_be_written_again() -> None:
    log = RowLog()
    _noted(log, Location("a", "output"), torch.zeros(4, 2), 4)
    assert log.problem is None
    _noted(log, Location("a", "output"), torch.ones(4, 2), 4)
    assert log.problem == "a.output was changed several times in one step"
    # One problem is enough.
    _noted(log, Location("b", "output"), torch.zeros(3, 2), 4)
    assert log.problem == "a.output was changed several times in one step"


def test_a_place_that_is_not_reached_again_is_an_error_of_its_request() -> None:
    engine = Engine(CHANGES["a part of a tuple in place"])
    engine.generate()
    engine.root.shape = "skips a layer"
    _, _, (failure,) = engine.again(0, TOKENS)
    assert isinstance(failure, UnsupportedFeatureError)
    assert "layers.1.output was changed earlier, but is not reached now" in str(failure)


@pytest.mark.parametrize(("part", "message"), [("[7]", r"has no \[7\] now"), ("", "holds no tensor")])
def test_a_part_that_is_gone_is_an_error_of_its_request(part: str, message: str) -> None:
    engine = Engine(CHANGES["nothing"])
    plain, _ = engine.generate()
    engine.log.noting(Location("layers.0", "output"), RowScope(0, 1, 1), lambda live, own, where: own)(
        torch.zeros(1, WIDTH), torch.zeros(1, WIDTH), f"layers.0.output{part}"
    )
    found, _, (failure,) = engine.again(4, 1)
    assert isinstance(failure, MismatchedValueError)
    with pytest.raises(MismatchedValueError, match=message):
        raise failure
    assert torch.equal(found, plain[4:])
