"""A program that is sent as read-only changes nothing, and one that changes something is never sent as read-only."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nnsight.errors import ReadOnlyError
from tests.properties.effects_programs import (
    ALIASES,
    CHANGES,
    READS,
    ROWS,
    SURROUNDINGS,
    WIDTH,
    WRITES,
    Network,
    Watched,
)
from tests.properties.generated import FEW, MANY, indent, run_module

torch.manual_seed(3)
NETWORK = Network()
STATES = torch.randn(ROWS, WIDTH)
with torch.no_grad():
    UNTRACED = NETWORK(STATES)
WEIGHTS = copy.deepcopy(NETWORK.state_dict())

reads = st.lists(st.integers(0, len(READS) - 1), max_size=5).map(sorted)
writes = st.one_of(
    st.sampled_from(WRITES), st.tuples(st.sampled_from(ALIASES), st.sampled_from(CHANGES)).map("\n".join)
)
# Statements around a part of a block: what stands before it and after it.
WRAPPINGS = [
    ("if flag:", ""),
    ("for number in range(1):", ""),
    ("try:", "finally:\n    pass"),
    ("with torch.no_grad():", ""),
    ("while True:", "    break"),
]


class Trace:
    """What a block did, with and without being held to its summary."""

    def __init__(self, body: str, *, enforced: bool) -> None:
        model = Watched(NETWORK, enforced=enforced)
        names = {"model": model, "states": STATES, "ROWS": ROWS, "WIDTH": WIDTH}
        text = f"with model.trace(states) as tracer:\n{indent(body)}\n"
        self.text = text
        self.error: BaseException | None = None
        with torch.no_grad():
            try:
                run_module(text, **{**SURROUNDINGS, **names})
            except Exception as error:  # noqa: BLE001 - told by the checks
                self.error = error
        self.read_only = model._programs[0].effects.read_only
        self.unknown = model._programs[0].effects.unknown
        self.edits = model._outcomes[0].receipt.edits
        self.result: Any = model._outcomes[0].result

    @property
    def wrote(self) -> bool:
        return bool(self.edits) or not torch.equal(self.result, UNTRACED)


def check(body: str) -> Trace:
    """Run a block both ways, and hold it to the promise."""
    free = Trace(body, enforced=False)
    assert all(torch.equal(WEIGHTS[name], value) for name, value in NETWORK.state_dict().items()), free.text
    assert free.error is None, f"{free.text}\n{free.error!r}"
    if free.wrote:
        assert not free.read_only, free.text
    if free.read_only:
        held = Trace(body, enforced=True)
        assert not isinstance(held.error, ReadOnlyError), free.text
        assert held.error is None, free.text
        assert torch.equal(held.result, UNTRACED)
    return free


def wrapped(body: str, wrapping: tuple[str, str] | None) -> str:
    return body if wrapping is None else f"{wrapping[0]}\n{indent(body)}\n{wrapping[1]}"


@st.composite
def mixed_blocks(draw: Any) -> tuple[str, bool]:
    """Blocks that read here and there, and may write."""
    before, write = draw(reads), draw(st.one_of(st.none(), writes))
    parts = [READS[index] for index in before]
    if write is not None:
        parts.append(write)
    return "\n".join(
        wrapped(part, draw(st.sampled_from([None, *WRAPPINGS]))) for part in parts
    ) or "pass", write is not None


def _blocks_keep_their_promise(block: tuple[str, bool]) -> None:
    body, writes_something = block
    found = check(body)
    assert found.wrote == writes_something, found.text


test_read_only_blocks_change_nothing_and_blocks_that_write_are_seen = settings(FEW, max_examples=60)(
    given(mixed_blocks())(_blocks_keep_their_promise)
)
test_many_read_only_blocks_change_nothing_and_blocks_that_write_are_seen = pytest.mark.full(
    MANY(given(mixed_blocks())(_blocks_keep_their_promise))
)


@pytest.mark.parametrize("change", [*CHANGES, *WRITES])
def test_every_way_to_write_is_seen(change: str) -> None:
    body = change if change in WRITES else f"h = model.layers[1].output\n{change}"
    found = check(body)
    assert found.wrote, found.text


@pytest.mark.parametrize("alias", ALIASES)
def test_every_name_of_a_value_is_followed(alias: str) -> None:
    for change in ("h += 1", "h[0] = 1", "h.mul_(2)"):
        found = check(f"{alias}\n{change}")
        assert found.wrote, found.text


@pytest.mark.full
@pytest.mark.parametrize("alias", ALIASES)
def test_every_name_is_followed_to_every_way_to_write(alias: str) -> None:
    for change in CHANGES:
        found = check(f"{alias}\n{change}")
        assert found.wrote, found.text


@pytest.mark.parametrize("read", READS)
def test_every_way_to_read_is_seen_to_change_nothing(read: str) -> None:
    found = check(read)
    assert found.read_only, (found.text, found.unknown)


@pytest.mark.parametrize("method", ["half()", "to(torch.float64)", "double()", "type(torch.float64)"])
def test_a_method_that_changes_the_weights_is_seen(method: str) -> None:
    model = Watched(copy.deepcopy(NETWORK), enforced=False)
    text = f"with model.trace(states):\n    kept = model.layers[1].{method}\n"
    with torch.no_grad(), contextlib.suppress(RuntimeError):  # the layers' types no longer fit each other
        run_module(text, model=model, states=STATES, torch=torch)
    assert not model._programs[0].effects.read_only
