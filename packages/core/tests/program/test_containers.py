"""Changes of containers that were saved outside a block merge in order."""

from __future__ import annotations

from typing import Any

import pytest

from nnsight._program.containers import apply, difference, snapshot


@pytest.mark.parametrize(
    ("start", "change", "expected"),
    [
        ([], lambda value: value.append(1), [1]),
        ([None, None], lambda value: value.__setitem__(1, "b"), [None, "b"]),
        ({}, lambda value: value.update(a=1), {"a": 1}),
        ({"a": 1, "b": 2}, lambda value: value.pop("a"), {"b": 2}),
        ({"inner": [1]}, lambda value: value["inner"].append(2), {"inner": [1, 2]}),
        ([[1], [2]], lambda value: value[0].append(9), [[1, 9], [2]]),
        ({1}, lambda value: value.add(2), {1, 2}),
        ([1, 2, 3], lambda value: value.clear(), []),
    ],
)
def test_a_change_is_described_and_applied(start: Any, change: Any, expected: Any) -> None:
    before, own = snapshot(start), snapshot(start)
    change(own)
    assert apply(start, difference(before, own)) == expected


def test_changes_of_two_blocks_to_different_slots_both_land() -> None:
    shared = [None, None, [0]]
    first, second = snapshot(shared), snapshot(shared)
    first[0], second[1] = "one", "two"
    first[2].append(1)
    changes = [difference(snapshot(shared), first), difference(snapshot(shared), second)]
    for change in changes:
        apply(shared, change)
    assert shared == ["one", "two", [0, 1]]


def test_nothing_changed_is_described_as_the_same() -> None:
    assert difference(snapshot([1, {"a": []}]), [1, {"a": []}]) == ["same"]
