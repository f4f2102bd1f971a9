"""A block whose values are copied ahead of it cannot tell: what it saves, counts and fails with is the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from weakref import ref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from nnsight._capture import BlockSource
from nnsight._envoy import ModelTree
from nnsight._interleave import BlockRun, Budget, Interleaver, ReadAhead, RowScope
from nnsight._interleave.location import Location
from nnsight._program import Effects, Program
from nnsight._trace import BlockTracer
from nnsight.errors import BudgetExceededError, OutOfOrderError, ReadOnlyError, UnsupportedFeatureError

STEPS = 6


class Layer(nn.Module):
    """Hands on two parts, and changes what it was given afterwards, as fused kernels do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Identity()

    def forward(self, hidden: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made = self.inner(hidden * 2 + 1), residual + hidden
        hidden.zero_()
        residual.fill_(-1)
        return made


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(4))
        self.norm = nn.Identity()

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        residual = torch.zeros_like(hidden)
        for layer in self.layers:
            hidden, residual = layer(hidden, residual)
        return self.norm(hidden + residual)


READS = {
    "every layer": """
        for _ in tracer.iter[:]:
            for layer in layers:
                kept.append(layer.output[0])
    """,
    "whole values": """
        for _ in tracer.iter[:]:
            for layer in layers:
                kept.append(layer.output)
    """,
    "both items, one after the other": """
        for _ in tracer.iter[:]:
            for layer in layers:
                kept.append(layer.output[0])
                kept.append(layer.output[1].sum())
    """,
    "an item from the end": """
        for _ in tracer.iter[:]:
            for layer in layers:
                kept.append(layer.output[-1])
    """,
    "modules inside and after": """
        for _ in tracer.iter[:]:
            kept.append(layers[0].inner.output)
            kept.append(layers[0].output[0])
            kept.append(layers[3].inner.output)
            kept.append(norm.output)
    """,
    "a choice that the values make": """
        for _ in tracer.iter[:]:
            first = layers[0].output[0]
            if first.sum() > 40:
                kept.append(layers[1].output[0])
            else:
                kept.append(layers[3].output[1])
    """,
    "some steps alone": """
        for step in tracer.iter[:]:
            if step != 3:
                for layer in layers:
                    kept.append(layer.output[0])
    """,
    "values of the request after them": """
        for _ in tracer.iter[:]:
            for layer in layers:
                kept.append(layer.output[0])
            kept.append(model.logits)
    """,
    "the end of its request": """
        for step in tracer.iter[:]:
            kept.append(layers[0].output[0])
            kept.append(layers[1].output[0])
            if step == 3:
                tracer.stop()
    """,
    "fewer steps than there are": """
        for step in tracer.iter[:3]:
            for layer in layers:
                kept.append(layer.output[0])
        kept.append(norm.output)
    """,
}
FAILURES = {
    "out of order": """
        for step in tracer.iter[:]:
            kept.append(layers[0].output[0])
            kept.append(layers[2].output[0])
            if step == 3:
                kept.append(layers[1].output[0])
    """,
    "out of order after its loop": """
        for step in tracer.iter[:3]:
            for layer in layers:
                kept.append(layer.output[0])
        kept.append(layers[2].output[0])
    """,
    "an error of its own": """
        for step in tracer.iter[:]:
            for layer in layers:
                kept.append(layer.output[0])
            if step == 3:
                raise KeyError(step)
    """,
}


def _promising(program: Program) -> Program:
    """Let a program say that it changes nothing, as the caller's side tells of one with a tracer of its own."""
    return replace(program, effects=Effects(places=()))


def _run(
    text: str, *, ahead: bool, budget: Budget | None = None, sharded: dict[str, frozenset[str]] | None = None
) -> tuple[BlockRun, int]:
    """Run a block over all steps, the second request of each batch; return how often values were copied ahead of it."""
    torch.manual_seed(0)
    root = Model()
    tree = ModelTree(root, values=("logits",), sharded=sharded)
    model = tree.envoy()
    lines = "".join(f"{line.removeprefix('    ')}\n" for line in text.strip("\n").split("\n"))
    source = BlockSource("<test block>", 1, f"with _:\n    kept = list().save()\n{lines}", 0, "block")
    names = {"model": model, "layers": list(model.layers), "norm": model.norm, "tracer": BlockTracer()}
    program = _promising(Program.from_values(source, names))
    run = program.start(program.values, grad=False, read_only=True, budget=budget, ahead=ahead)
    hub, times = Interleaver(tree), 0
    with torch.inference_mode():
        for step in range(STEPS):
            rows = 6 if step == 0 else 1
            scope = RowScope(2, 2 + rows, 3 + rows)
            hub.begin_step({run: scope}, {run: step})
            times += len(hub._behind)
            hidden = root(torch.arange(4.0 * (3 + rows)).reshape(-1, 4) / 10 + step)
            logits = hidden[-2:] * 2
            hub.offer("logits", logits, {run: RowScope(1, 2, 2)})
            hub.end_step()
    run.end()
    run.close()
    run.count_late_edits()
    return run, times


def _same(one: object, other: object) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)  # type: ignore[arg-type]
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))  # type: ignore[arg-type,call-overload]
    return one == other


def _account(run: BlockRun) -> dict[str, Any]:
    return run.receipt.as_dict() | {"seconds": None}


@pytest.mark.parametrize("text", READS.values(), ids=READS)
def test_a_block_saves_the_same_and_has_the_same_receipt(text: str) -> None:
    beside, never = _run(text, ahead=False)
    behind, times = _run(text, ahead=True)
    assert never == 0
    assert times >= 1
    assert (behind.error, behind.stopped) == (beside.error, beside.stopped)
    assert beside.named["kept"]
    assert _same(behind.named["kept"], beside.named["kept"])
    assert _account(behind) == _account(beside)


@pytest.mark.parametrize("text", FAILURES.values(), ids=FAILURES)
def test_a_block_fails_with_the_same_error_and_keeps_what_it_saved(text: str) -> None:
    beside, _ = _run(text, ahead=False)
    behind, times = _run(text, ahead=True)
    assert times >= 1
    assert type(behind.error) is type(beside.error) is not type(None)
    assert str(behind.error) == str(beside.error)
    assert isinstance(behind.error, OutOfOrderError | KeyError)
    assert _same(behind.named["kept"], beside.named["kept"])


_PLACES = [
    *(f"layers[{index}].{rest}" for index in range(4) for rest in ("output", "output[0]", "output[1]", "inner.output")),
    "norm.output",
    "model.logits",
]
_STATEMENTS = st.builds(
    lambda condition, place: f"{condition}kept.append({place})",
    st.sampled_from(["", "", "", "if step % 2: ", "if step > 2: "]),
    st.sampled_from(_PLACES),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(_STATEMENTS, min_size=2, max_size=7), st.sampled_from(["", "2:", ":4", "1:5"]))
def test_random_blocks_cannot_tell(statements: list[str], steps: str) -> None:
    # Most of them ask in an order that the model does not compute in, which is then the same error.
    ordered = sorted(statements, key=lambda each: _PLACES.index(each.split("kept.append(")[1][:-1]))
    for chosen in (statements, ordered):
        body = "".join(f"            {each}\n" for each in chosen)
        text = f"        for step in tracer.iter[{steps or ':'}]:\n{body}        kept.append('over')\n"
        beside, _ = _run(text, ahead=False)
        behind, _ = _run(text, ahead=True)
        assert (type(behind.error), str(behind.error)) == (type(beside.error), str(beside.error))
        assert _same(behind.named["kept"], beside.named["kept"])
        assert _account(behind) == _account(beside)


@pytest.mark.parametrize(
    "text",
    [
        "for _ in tracer.iter[:]:\n    for layer in layers:\n        kept.append(layer.input)",
        "for _ in tracer.iter[:]:\n    for layer in layers:\n        kept.append(norm(layer.output[0]))",
        "for _ in tracer.iter[:]:\n    layers.reverse()\n    kept.append(layers[0].output[0])",
        "for _ in tracer.iter[:]:\n    kept.append(layers[3].output[0])",
    ],
    ids=["inputs", "calls of modules", "names that change", "one visit in a step"],
)
def test_nothing_is_copied_ahead_of_other_blocks(text: str) -> None:
    lines = "".join(f"        {line}\n" for line in text.split("\n"))
    run, times = _run(lines, ahead=True)
    assert times == 0
    assert run.named["kept"]


PROMISED = {
    "and fails": """
    for _ in tracer.iter[:]:
        for layer in layers:
            change(layer.output[0])
""",
    "and goes on after each refusal": """
    for _ in tracer.iter[:]:
        for layer in layers:
            try:
                kept.append(change(layer.output[0]).sum())
            except Exception as error:
                kept.append(str(error))
""",
    "and ends its request": """
    for step in tracer.iter[:]:
        for layer in layers:
            kept.append(change(layer.output[0]).sum())
            if step == 3:
                tracer.stop()
""",
}


@pytest.mark.parametrize("text", PROMISED.values(), ids=PROMISED)
def test_a_block_that_was_promised_to_change_nothing_is_held_to_it(text: str) -> None:
    beside, behind = (_promised(text, ahead=ahead) for ahead in (False, True))
    kept: Any = behind.named["kept"]
    assert isinstance(behind.error, ReadOnlyError) or any(isinstance(each, str) for each in kept)
    assert (type(behind.error), str(behind.error)) == (type(beside.error), str(beside.error))
    assert _same(kept, beside.named["kept"])
    assert _account(behind) == _account(beside)


def _promised(text: str, *, ahead: bool) -> BlockRun:
    root = Model()
    tree = ModelTree(root)
    layers = list(tree.envoy().layers)
    source = BlockSource("<test block>", 1, f"with _:\n    kept = list().save()\n{text.lstrip(chr(10))}", 0, "block")
    calls = []

    def change(value: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if len(calls) % 11 == 10:
            value.zero_()
        return value

    program = _promising(Program.from_values(source, {"layers": layers, "tracer": BlockTracer(), "change": change}))
    run = program.start(program.values, grad=False, read_only=True)
    if ahead:
        run.plan_ahead = lambda: ReadAhead({f"layers.{index}": frozenset({0}) for index in range(4)})
    hub, times = Interleaver(tree), 0
    with torch.inference_mode():
        for step in range(STEPS):
            hub.begin_step({run: RowScope(0, 1, 1, alone=True)}, {run: step})
            times += len(hub._behind)
            root(torch.ones(1, 4))
            hub.end_step()
    run.end()
    run.close()
    assert bool(times) is ahead
    return run


def test_a_turn_goes_on_through_all_that_was_copied_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    switches = []
    switch = BlockRun._switch
    monkeypatch.setattr(BlockRun, "_switch", lambda run, **how: (switches.append(run.step), switch(run, **how))[1])
    _run(READS["every layer"], ahead=True)
    # The prompt is read beside the model, a turn for each value; a later step has one turn for all, after its first.
    assert [switches.count(step) for step in range(STEPS)] == [5, 2, 2, 2, 2, 3]


def test_a_value_that_is_refused_is_an_error_only_of_a_block_that_asks_for_it() -> None:
    text = """
        for step in tracer.iter[:]:
            kept.append(layers[0].output[0])
            kept.append(layers[1].output[0])
            if step == 4:
                kept.append(layers[2].inner.output)
    """
    run, times = _run(text, ahead=True, sharded={"layers.2.inner": frozenset({"output"})})
    assert times == 0
    assert isinstance(run.error, UnsupportedFeatureError)
    assert len(run.named["kept"]) == 10  # type: ignore[arg-type]


def test_what_is_copied_ahead_counts_for_the_budget_as_it_is_handed_out() -> None:
    text = READS["every layer"]
    run, _ = _run(text, ahead=True, budget=Budget(byte_budget=64))
    assert isinstance(run.error, BudgetExceededError)


def test_a_copy_that_cannot_be_made_is_its_requests_error() -> None:
    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> object:
            return {"a set": {(x,)}}

    root = nn.Sequential(nn.Identity(), nn.Identity())
    tree = ModelTree(root)
    source = BlockSource(
        "<test block>",
        1,
        "with _:\n    for _ in tracer.iter[:]:\n        first.output\n        second.output\n",
        0,
        "block",
    )
    names = {"first": tree.envoy()[0], "second": tree.envoy()[1], "tracer": BlockTracer()}
    program = _promising(Program.from_values(source, names))
    run = program.start(program.values, grad=False, read_only=True, ahead=True)
    hub = Interleaver(tree)
    for step in range(3):
        hub.begin_step({run: RowScope(0, 1, 1)}, {run: step})
        if step == 2:
            assert hub._behind
            root[0].__dict__["forward"].__self__.nnsight_original = Odd().forward
        x: Any = torch.ones(1, 2)
        root[0](x)
        root[1](x)
        hub.end_step()
    assert run.error is not None
    assert "cannot be copied" in str(run.error) or "tensors" in str(run.error)


def _kept_in(ahead: ReadAhead, scope: RowScope, *outputs: object) -> list[Any]:
    """Keep outputs of one module in a step, and return what a block would be served."""
    with torch.inference_mode():
        ahead.begin(scope)
        for output in outputs:
            ahead.keepers["layer"].keep(output)
        kept = [ahead.next_of(Location("layer", "output")) for _ in outputs]
        ahead.end()
    assert ahead.error is None
    return kept


def _rows(total: int, width: int = 3, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(total * width).reshape(total, width).to(dtype)


def test_copies_are_right_whatever_the_step_before_was_like() -> None:
    ahead = ReadAhead({"layer": frozenset({0})})
    steps = [
        (RowScope(0, 1, 1, alone=True), _rows(1)),
        (RowScope(0, 1, 1, alone=True), _rows(1)),
        (RowScope(2, 3, 4), _rows(4)),
        (RowScope(1, 2, 3), _rows(3)),
        (RowScope(1, 3, 3), _rows(3)),
        (RowScope(1, 3, 4), _rows(4)),
        (RowScope(1, 2, 3), _rows(3, width=5)),
        (RowScope(1, 2, 3), _rows(3, width=5, dtype=torch.bfloat16)),
        (RowScope(1, 2, 3), _rows(5, width=3)[::2].T),
        (RowScope(1, 2, 3), torch.tensor(7.0)),
        (RowScope(1, 2, 3), _rows(3)),
        (RowScope(1, 2, 3), _rows(2)),
        (RowScope(1, 2, 3), _rows(3)),
    ]
    for whole in (False, True):
        for scope, live in steps:
            before = live.clone()
            (kept,) = _kept_in(ahead, scope, live if whole else (live, _rows(1)))
            live.zero_()
            own = kept if whole else kept[0]
            assert whole or (len(kept) == 2 and kept[1] is None)
            assert torch.equal(own, scope.take(before))
            assert (own.dtype, own.is_inference(), own.requires_grad) == (before.dtype, False, False)
            # A change of it is told from none.
            version = own._version
            own.add_(1)
            assert own._version == version + 1


def test_a_module_that_runs_twice_in_a_step_is_kept_twice() -> None:
    ahead = ReadAhead({"layer": None})
    for _ in range(3):
        first, second = _kept_in(ahead, RowScope(0, 1, 2), _rows(2), _rows(2) + 10)
        assert torch.equal(second, first + 10)


def test_memory_of_a_step_that_was_left_is_not_used_in_the_next() -> None:
    ahead = ReadAhead({"layer": None})
    _kept_in(ahead, RowScope(0, 1, 4), _rows(4))
    with torch.inference_mode():
        ahead.begin(RowScope(0, 1, 4))
    (kept,) = _kept_in(ahead, RowScope(1, 3, 4), _rows(4))
    assert torch.equal(kept, _rows(4)[1:3])


def test_memory_that_no_output_needed_is_let_go() -> None:
    ahead = ReadAhead({"layer": None})
    _kept_in(ahead, RowScope(0, 1, 2), _rows(2))
    with torch.inference_mode():
        ahead.begin(RowScope(0, 1, 2))
        (made,) = [ref(keeper._target) for keeper in ahead.keepers.values() if keeper._target is not None]
        ahead.end()
    assert made() is None
