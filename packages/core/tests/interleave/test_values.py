"""What a block is handed is its own, of whatever kind it is, and what it changes lands."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
import torch

from nnsight._interleave import BlockRun, Location, RowScope, Scope, WholeScope
from nnsight.errors import MismatchedValueError, ReadOnlyError, SharedValueError, UnsupportedFeatureError

OUTPUT = Location("layer", "output")
OTHER = Location("other", "output")
ROWS = RowScope(1, 3, 5)

Pair = namedtuple("Pair", ["hidden", "residual"])


@dataclasses.dataclass
class Record:
    hidden: torch.Tensor
    more: dict[str, torch.Tensor]
    count: int = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    hidden: torch.Tensor


class Outputs(OrderedDict[str, Any]):
    """Keeps its items as attributes too, as Transformers' outputs do."""

    def __init__(self, **items: Any) -> None:
        super().__init__(**items)
        self.__dict__.update(items)

    def __reduce__(self) -> Any:
        raise AssertionError("not needed")

    def __copy__(self) -> Outputs:
        return Outputs(**self)


class Cache:
    """An object of the model's own, without a constructor that takes its parts."""

    def __init__(self, one: int, two: int) -> None:
        self.layers = [torch.full((5, 2), float(one + two))]
        self.itself = self


class Uncopyable:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __copy__(self) -> Any:
        raise RuntimeError("one of a kind")


def ones() -> torch.Tensor:
    return torch.ones(5, 2)


def cache() -> Cache:
    return Cache(1, 0)


# A value of each kind, and what finds the tensor in it.
KINDS: dict[str, tuple[Callable[[], Any], Callable[[Any], torch.Tensor]]] = {
    "tensor": (ones, lambda value: value),
    "tuple": (lambda: (ones(), ones()), lambda value: value[0]),
    "list": (lambda: [ones(), 3], lambda value: value[0]),
    "named tuple": (lambda: Pair(ones(), ones()), lambda value: value.hidden),
    "torch return type": (lambda: torch.max(torch.ones(5, 2, 3), -1), lambda value: value.values),
    "topk": (lambda: torch.topk(torch.ones(5, 4), 2), lambda value: value[0]),
    "dict": (lambda: {"h": ones()}, lambda value: value["h"]),
    "ordered dict": (lambda: OrderedDict(h=ones()), lambda value: value["h"]),
    "default dict": (lambda: defaultdict(list, h=ones()), lambda value: value["h"]),
    "dict of integers": (lambda: defaultdict(list, {3: ones()}), lambda value: value[3]),
    "read-only dict": (lambda: MappingProxyType({"h": ones()}), lambda value: value["h"]),
    "model output": (lambda: Outputs(h=ones(), none=None), lambda value: value.h),
    "set": (lambda: {ones()}, lambda value: next(iter(value))),
    "frozen set": (lambda: frozenset([ones()]), lambda value: next(iter(value))),
    "deque": (lambda: deque([ones()], maxlen=2), lambda value: value[0]),
    "dataclass": (lambda: Record(ones(), {"h": ones()}), lambda value: value.more["h"]),
    "frozen dataclass": (lambda: Frozen(ones()), lambda value: value.hidden),
    "namespace": (lambda: SimpleNamespace(h=ones()), lambda value: value.h),
    "object": (cache, lambda value: value.layers[0]),
    "nested": (lambda: ((Pair(ones(), [Frozen(ones())]),), {}), lambda value: value[0][0].residual[0].hidden),
    "nested model output": (lambda: (Outputs(h=(ones(),)),), lambda value: value[0].h[0]),
}


def serve(block: Callable[[BlockRun], Any], live: Any, scope: Scope, **keywords: Any) -> tuple[BlockRun, Any]:
    run = BlockRun(block, **keywords)
    run.begin_step(0, scope)
    return run, run.serve(live, scope)


@pytest.mark.parametrize("scope", [ROWS, WholeScope()], ids=["rows", "whole"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_value_of_any_kind_is_a_copy_of_its_own_kind_and_an_edit_lands(kind: str, scope: Scope) -> None:
    make, find = KINDS[kind]
    live, seen = make(), []
    before = find(live).clone()

    def block(run: BlockRun) -> None:
        own: Any = run.read(OUTPUT)
        seen.append((type(own), find(own).data_ptr(), find(own).shape))
        find(own).add_(1.0)

    pointer = find(live).data_ptr()
    run, landed = serve(block, live, scope)
    assert run.error is None
    assert seen[0][0] is type(live)
    assert seen[0][1] != pointer
    rows = slice(1, 3) if scope is ROWS else slice(None)
    assert torch.equal(find(landed)[rows], before[rows] + 1)
    if scope is ROWS:
        assert torch.equal(find(landed)[:1], before[:1])
    assert type(landed) is type(live)
    assert run.receipt.edits == {"layer.output": 1}


@pytest.mark.parametrize("kind", KINDS)
def test_reading_a_value_of_any_kind_leaves_the_model_its_own_object(kind: str) -> None:
    make, _ = KINDS[kind]
    live = make()
    run, landed = serve(lambda run: run.read(OUTPUT), live, ROWS)
    assert run.error is None
    assert landed is live
    assert run.receipt.edits == {}


@pytest.mark.parametrize(
    ("live", "replace", "find"),
    [
        (lambda: {"h": ones()}, lambda own, new: own.__setitem__("h", new), lambda value: value["h"]),
        (lambda: Outputs(h=ones()), lambda own, new: own.__setitem__("h", new), lambda value: value["h"]),
        (lambda: [ones()], lambda own, new: own.__setitem__(0, new), lambda value: value[0]),
        (lambda: Record(ones(), {}), lambda own, new: setattr(own, "hidden", new), lambda value: value.hidden),
        (cache, lambda own, new: own.layers.__setitem__(0, new), lambda value: value.layers[0]),
        (lambda: ((), {"h": ones()}), lambda own, new: own[1].__setitem__("h", new), lambda value: value[1]["h"]),
    ],
)
def test_a_tensor_that_takes_anothers_place_lands(live: Any, replace: Any, find: Any) -> None:
    run, landed = serve(lambda run: replace(run.read(OUTPUT), torch.zeros(2, 2)), live(), ROWS)
    assert run.error is None
    assert find(landed).sum() == 6.0
    assert run.receipt.edits == {"layer.output": 1}


def test_an_object_of_the_models_own_stays_the_same_object_under_an_edit() -> None:
    live = cache()
    _, landed = serve(lambda run: run.read(OUTPUT).layers[0].zero_(), live, WholeScope())  # type: ignore[attr-defined]
    assert landed is live
    assert live.layers[0].sum() == 0


def test_a_plain_value_replaced_in_a_container_lands() -> None:
    live = ((), {"scale": 2, "x": ones()})
    _, landed = serve(lambda run: run.read(OUTPUT)[1].update(scale=5), live, ROWS)  # type: ignore[index]
    assert landed[1]["scale"] == 5
    assert landed[1]["x"] is live[1]["x"]


def test_an_object_that_cannot_be_copied_is_refused_rather_than_handed_out_live() -> None:
    run, _ = serve(lambda run: run.read(OUTPUT), (ones(), Uncopyable(ones())), ROWS)
    assert isinstance(run.error, UnsupportedFeatureError)
    assert "Uncopyable" in str(run.error)
    assert "one of a kind" in str(run.error)


def test_replaced_elements_of_a_set_are_refused() -> None:
    def block(run: BlockRun) -> None:
        own: Any = run.read(OUTPUT)
        own.clear()
        own.add(torch.zeros(2, 2))

    run, _ = serve(block, {ones()}, ROWS)
    assert isinstance(run.error, MismatchedValueError)
    assert "set" in str(run.error)


def test_modules_and_plain_objects_are_handed_on_as_they_are() -> None:
    module, plain, seen = torch.nn.Linear(2, 2), SimpleNamespace(a=1), []
    serve(lambda run: seen.append(run.read(OUTPUT)), (module, plain, ones()), ROWS)
    assert seen[0][0] is module
    assert seen[0][1] is plain


# Only what changed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("replaced", [False, True])
def test_an_edit_of_one_part_leaves_a_part_that_all_requests_share_alone(replaced: bool) -> None:
    table = torch.zeros(7)

    def block(run: BlockRun) -> None:
        own: Any = run.read(OUTPUT)
        if replaced:
            run.write(OUTPUT, (own[0] + 1.0, own[1]))
        else:
            own[0].add_(1.0)

    live = (torch.zeros(5, 2), table)
    run, _ = serve(block, live, ROWS)
    assert run.error is None
    assert live[0].sum(1).tolist() == [0.0, 2.0, 2.0, 0.0, 0.0]


def test_an_edit_of_the_shared_part_itself_is_refused_by_its_place() -> None:
    run, _ = serve(lambda run: run.read(OUTPUT)[1].add_(1.0), (ones(), torch.zeros(7)), ROWS)  # type: ignore[index]
    assert isinstance(run.error, SharedValueError)
    assert "layer.output[1]" in str(run.error)


def test_parts_that_changed_places_both_land() -> None:
    def block(run: BlockRun) -> None:
        one, other = run.read(OUTPUT)  # type: ignore[misc]
        run.write(OUTPUT, (other, one))

    live = (torch.zeros(5, 2), torch.ones(5, 2))
    serve(block, live, ROWS)
    assert live[0][1:3].sum() == 4
    assert live[1][1:3].sum() == 0


# Edits that do not fit --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ends", [False, True])
def test_an_edit_in_place_that_does_not_fit_names_the_line_of_the_read(ends: bool) -> None:
    def block(run: BlockRun) -> None:
        own: Any = run.read(OUTPUT)
        own.resize_(1, 2)
        if not ends:
            run.read(OTHER)

    run, _ = serve(block, ones(), ROWS)
    assert isinstance(run.error, MismatchedValueError)
    line = block.__code__.co_firstlineno + 1
    assert f"read it at {__file__}:{line}" in str(run.error)
    assert "not the one to blame" in str(run.error)


def test_an_edit_of_a_read_only_program_names_the_line_of_the_read() -> None:
    run, _ = serve(lambda run: run.read(OUTPUT).add_(1.0), ones(), ROWS, read_only=True)  # type: ignore[attr-defined]
    assert isinstance(run.error, ReadOnlyError)
    assert f"read it at {__file__}:" in str(run.error)


def test_an_assignment_of_a_read_only_program_is_refused_at_its_line() -> None:
    after: list[int] = []

    def block(run: BlockRun) -> None:
        run.write(OUTPUT, torch.full((2, 2), 5.0))
        after.append(1)

    live = ones()
    run, _ = serve(block, live, ROWS, read_only=True)
    assert isinstance(run.error, ReadOnlyError)
    assert not after
    assert torch.equal(live, ones())


def test_a_skip_of_a_read_only_program_is_refused_at_its_line() -> None:
    run = BlockRun(lambda run: run.skip(Location("layer", "skip"), ones()), read_only=True)
    run.begin_step(0, ROWS)
    assert isinstance(run.error, ReadOnlyError)


# Edits that come too late -----------------------------------------------------------------------------------------


def late_warnings(block: Callable[[BlockRun], Any], live: Any) -> list[str]:
    run = BlockRun(block)
    run.begin_step(0, ROWS)
    while isinstance(run.wait, Location):
        run.serve(live() if run.wait is OUTPUT else ones(), ROWS)
    run.end_step()
    run.end()
    assert run.error is None
    run.count_late_edits()
    return list(run.receipt.warnings)


def test_a_late_edit_is_noted_when_the_tensor_is_gone_at_the_end() -> None:
    def block(run: BlockRun) -> None:
        own: Any = run.read(OUTPUT)
        run.read(OTHER)
        own.add_(1.0)
        del own

    [warning] = late_warnings(block, ones)
    assert "layer.output was changed in place 1 time(s)" in warning


def test_a_late_edit_through_a_view_is_noted_when_the_tensor_is_gone() -> None:
    def block(run: BlockRun) -> None:
        row = run.read(OUTPUT)[0]  # type: ignore[index]
        run.read(OTHER)
        row[:] = 0

    assert len(late_warnings(block, ones)) == 1


@pytest.mark.parametrize("dropped", [False, True])
def test_an_item_replaced_late_in_a_container_is_noted(dropped: bool) -> None:
    kept = []

    def block(run: BlockRun) -> None:
        own: Any = run.read(OUTPUT)
        run.read(OTHER)
        own[1]["h"] = torch.zeros(2, 2)
        if dropped:
            del own
        else:
            kept.append(own)
        run.read(OUTPUT)

    assert len(late_warnings(block, lambda: ((), {"h": ones()}))) == 1


def test_containers_that_a_block_dropped_are_not_kept_alive() -> None:
    import weakref

    alive: list[int] = []
    references: list[Any] = []

    def block(run: BlockRun) -> None:
        for location in [OUTPUT, OTHER] * 20:
            own: Any = run.read(location)
            references.append(weakref.ref(own[0] if location is OUTPUT else own))
            alive.append(sum(reference() is not None for reference in references))

    late_warnings(block, lambda: [ones()])
    assert max(alive) <= 4


def test_edits_in_time_and_mere_reads_are_not_noted() -> None:
    def block(run: BlockRun) -> None:
        own: Any = run.read(OUTPUT)
        own[0].add_(1.0)
        own[1] = torch.zeros(2, 2)
        run.read(OTHER)
        own[0] + 1

    assert late_warnings(block, lambda: [ones(), ones()]) == []


def test_a_request_that_is_over_says_after_how_many_steps() -> None:
    run = BlockRun(lambda run: [run.wait_for_step(9), run.read(OUTPUT)])
    for step in range(3):
        run.begin_step(step, ROWS)
        run.end_step()
    run.end()
    assert "layer.output was asked for, but the request is over after 3 steps" in str(run.error)
