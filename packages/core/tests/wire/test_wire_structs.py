"""Objects of msgspec's classes travel by their fields, and no code of theirs runs."""

from __future__ import annotations

from typing import Any

import pytest
from wire_helpers import CODECS, TRUSTING, Adapter, FixedAdapter, NamedAdapter, Overseer, message, travel

from nnsight._wire import decode, encode
from nnsight.backends import Receipt
from nnsight.errors import UntransferableValueError, WireError


def test_fields_and_attributes_arrive() -> None:
    value = NamedAdapter("one", rank=4, parts=[1, "two"], note="fine")
    value.more = 3  # type: ignore[attr-defined]
    found: Any = travel(value)
    assert type(found) is NamedAdapter
    assert found == value
    assert found.more == 3
    assert found.parts is not value.parts
    found.rank = 5
    assert repr(found) == "NamedAdapter(label='one', rank=5, parts=[1, 'two'], note='fine')"


def test_a_receipt_travels_as_any_other_value() -> None:
    receipt = Receipt(steps=2, visits={"a": 1}, warnings=("slow",), rows=3)
    found: Any = travel([receipt, receipt])
    assert found[0] == receipt
    assert found[0] is found[1]


def test_no_code_of_the_class_runs() -> None:
    value = FixedAdapter("one", parts=[1])
    Adapter.made.clear()
    found: Any = travel(value)
    assert found == value
    assert type(found) is FixedAdapter
    assert Adapter.made == []
    with pytest.raises(AttributeError, match="immutable"):
        found.label = "two"


def test_one_may_hold_itself() -> None:
    value = Adapter("one")
    value.parts = [value]
    found: Any = travel(value)
    assert found.parts[0] is found


def test_a_class_that_runs_code_for_others_is_refused() -> None:
    with pytest.raises(UntransferableValueError, match="runs code of its own when another derives from it"):
        encode(Overseer("one"), codecs=CODECS)


@pytest.mark.parametrize(
    "node",
    [
        ["struct", [["class", ["wire_helpers", "Adapter"]], ["label", "one"], []]],
        ["struct", [["class", ["wire_helpers", "Adapter"]], ["rank", 1, "label", "one", "parts", ["list", []]], []]],
        ["struct", [["class", ["wire_helpers", "Adapter"]], ["label", "one", "rank", 1, "parts", None], ["a", 1]]],
        ["struct", [["class", ["wire_helpers", "Overseer"]], ["label", "one"], []]],
        ["struct", [["class", ["wire_helpers", "Settings"]], ["size", 1], []]],
        ["struct", [1, [], []]],
    ],
    ids=lambda node: repr(node)[:60],
)
def test_a_message_that_does_not_fit_the_class_is_an_error(node: object) -> None:
    with pytest.raises(WireError):
        decode(message(node), codecs=CODECS, limits=TRUSTING)
