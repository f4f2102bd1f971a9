"""Values of several requests in one message are read as if each had travelled by itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nnsight._interleave import Receipt
from nnsight._trace import EditResult, Outcome
from nnsight._trace.bunches import BunchWriter, read_bunch
from nnsight.errors import UntransferableValueError, WireError


class Key:
    """A key of a dict, which cannot be one where it is read."""

    at_home = False

    def __hash__(self) -> int:
        if Key.at_home:
            raise OSError("not here")
        return 1


def _travelled(*requests: list[dict[str, Any]], result: object = None) -> list[Any]:
    writer = BunchWriter(result)
    for parts in requests:
        writer.add(parts)
    return read_bunch(writer.finish().joined(), result)


def test_each_request_has_its_own_values() -> None:
    row, shared = torch.arange(3.0), [1, 2]
    first = [{"row": row, "list": shared, "same": shared}, {}, {"λ": "text"}]
    second = [{"row": row, "list": shared}, {"label": [row, 2.5]}]
    one, other, nothing = _travelled(first, second, [])
    assert [sorted(part) for part in one] == [["list", "row", "same"], [], ["λ"]]
    assert torch.equal(one[0]["row"], row)
    assert torch.equal(other[1]["label"][0], row)
    assert nothing == []
    # What is one object for a request is one at home, and no two requests share any.
    assert one[0]["list"] is one[0]["same"]
    assert one[0]["list"] is not other[0]["list"]
    assert other[0]["row"] is other[1]["label"][0]
    one[0]["row"].zero_()
    assert torch.equal(other[0]["row"], row)


def test_a_part_counts_its_own_bytes() -> None:
    writer = BunchWriter()
    large, none, small = writer.add([{"rows": torch.zeros(100, 4)}, {}, {"row": torch.zeros(4)}])
    assert 1600 < large < 1700
    assert none == 0
    assert 16 < small < 100
    assert writer.num_bytes == 1616


def test_a_request_whose_values_cannot_travel_is_not_taken_in() -> None:
    writer = BunchWriter()
    writer.add([{"before": 1}])
    with pytest.raises(UntransferableValueError, match="generator"):
        writer.add([{"kept": torch.zeros(2), "generator": (each for each in ())}])
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(UntransferableValueError, match="nested"):
        writer.add([{"nested": nested}])
    writer.add([{"after": 2}])
    assert read_bunch(writer.finish().joined()) == [[{"before": 1}], [{"after": 2}]]


def test_what_is_wrong_with_one_request_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = BunchWriter()
    for parts in ({"a": 1}, {"b": {Key(): 2}}, {"c": 3}):
        writer.add([parts])
    monkeypatch.setattr(Key, "at_home", True)
    first, wrong, last = read_bunch(writer.finish().joined())
    assert (first, last) == ([{"a": 1}], [{"c": 3}])
    assert isinstance(wrong, WireError)
    assert "not here" in str(wrong)


def test_the_result_of_a_request_does_not_travel_with_it() -> None:
    result = object()
    ((values,),) = _travelled([{"kept": [result]}], result=result)
    assert values["kept"][0] is result


def test_other_messages_are_refused() -> None:
    from nnsight._trace.messages import block_codecs
    from nnsight._wire import encode

    with pytest.raises(WireError, match="no values of requests"):
        read_bunch(encode({"a": 1}, codecs=block_codecs(), name="value"))


def test_a_name_that_several_edits_saved_is_found_at_each_alone() -> None:
    edits = {
        name: EditResult({**dict.fromkeys(names, name), "own": name}, Receipt())
        for name, names in {"a": ["one", "both"], "b": ["both", "all"], "c": ["all", "last"], "d": ["all"]}.items()
    }
    alone = Outcome({"kept": 1}, {"label": 2})
    assert alone.all_saves == {"label": 2, "kept": 1}
    assert Outcome({"kept": 1, "own": 0}, edits=edits).all_saves == {"kept": 1, "own": 0, "one": "a", "last": "c"}


def test_what_parts_of_a_prompt_did_is_added_up() -> None:
    whole = Receipt(visits={"a": 1}, rows=3, warnings=("slow",), seconds=1.0)
    whole.include(
        Receipt(visits={"a": 1, "b": 2}, edits={"b": 1}, untouched=("c",), warnings=("slow", "late"), seconds=0.5)
    )
    assert (whole.visits, whole.edits, whole.rows, whole.untouched) == ({"a": 2, "b": 2}, {"b": 1}, 3, ("c",))
    assert (whole.warnings, whole.seconds) == (("slow", "late"), 1.5)
    whole.include(Receipt(rows=2))
    assert whole.rows == 5
    unknown = Receipt()
    unknown.include(Receipt())
    assert unknown.rows is None
