from __future__ import annotations

import collections
import datetime
import decimal
import functools
import math
import operator
import pathlib
import uuid
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_helpers import TRUSTING, travel

from nnsight._wire import Limits

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.text(st.characters(codec=None)),
    st.binary(),
    st.complex_numbers(allow_nan=False),
    st.builds(slice, st.integers(), st.none(), st.integers()),
    st.builds(range, st.integers(-9, 9), st.integers(-9, 9), st.integers(1, 9)),
    st.just(...),
    st.decimals(allow_nan=False),
    st.datetimes(timezones=st.none() | st.just(datetime.UTC)),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.uuids(),
)
hashables = st.recursive(
    scalars.filter(lambda value: not isinstance(value, slice)),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=5,
)
trees = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(hashables, inner, max_size=4),
        st.dictionaries(hashables, inner, max_size=4).map(collections.OrderedDict),
        st.lists(inner, max_size=4).map(collections.deque),
        st.sets(hashables, max_size=4),
    ),
    max_leaves=20,
)


def same(one: Any, other: Any) -> bool:
    """Compare values with their types, which `==` ignores."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return same(list(one.items()), list(other.items()))
    if isinstance(one, list | tuple | collections.deque):
        return len(one) == len(other) and all(same(left, right) for left, right in zip(one, other, strict=True))
    if isinstance(one, float):
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    return bool(one == other)


@settings(max_examples=300, deadline=None)
@given(trees)
def test_any_tree_of_plain_values_comes_back_equal_and_of_the_same_types(value: object) -> None:
    assert same(travel(value, limits=Limits()), value)


@pytest.mark.parametrize("value", [math.inf, -math.inf, -0.0, 5e-324])
def test_unusual_floats_come_back(value: float) -> None:
    assert same(travel([value, value]), [value, value])
    assert same(travel(value), value)


def test_nan_comes_back_alone_in_a_list_and_as_a_part_of_a_complex_number() -> None:
    assert math.isnan(travel(math.nan))
    assert math.isnan(travel([1, math.nan, 2**70])[1])
    assert travel([math.nan, 2**70])[1] == 2**70
    assert math.isnan(travel(complex(1, math.nan)).imag)


@pytest.mark.parametrize("value", [2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**500, -(10**500), 255, -128])
def test_integers_of_every_size_come_back(value: int) -> None:
    assert travel(value) == value
    assert travel([value, 1.5]) == [value, 1.5]
    assert travel([value]) == [value]
    assert travel({value: value}) == {value: value}


def test_bytes_of_every_length_come_back() -> None:
    for length in (0, 1, 1 << 16, (1 << 16) + 1, 1 << 20):
        value = bytes(length)
        result = travel([value, bytearray(value), {value: 1}, value], limits=Limits())
        assert result == [value, value, {value: 1}, value]
        assert type(result[0]) is bytes


def test_text_with_lone_surrogates_comes_back() -> None:
    assert travel("a\ud800b") == "a\ud800b"
    assert travel({"\udfff": 1}) == {"\udfff": 1}


def test_the_order_of_a_dict_and_the_types_of_its_keys_are_kept() -> None:
    value = {"b": 1, 1.5: 2, None: 3, (1, ("a", frozenset({2}))): 4, b"a": 5, True: 6}
    assert list(travel(value).items()) == list(value.items())


def test_relatives_of_dict_and_list_come_back() -> None:
    counted = travel(collections.Counter("aab"))
    assert type(counted) is collections.Counter
    assert counted == {"a": 2, "b": 1}
    grouped = travel(collections.defaultdict(list, a=[1]))
    grouped["b"].append(2)
    assert grouped == {"a": [1], "b": [2]}
    queue = travel(collections.deque([1, 2, 3], maxlen=3))
    queue.append(4)
    assert list(queue) == [2, 3, 4]
    assert travel(bytearray(b"ab")) == bytearray(b"ab")


def test_times_keep_their_zone_and_fold() -> None:
    zone = datetime.timezone(datetime.timedelta(hours=2), "summer")
    value = datetime.datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=zone, fold=1)
    result = travel(value)
    assert (result, result.fold, result.tzname()) == (value, 1, "summer")
    assert travel(datetime.UTC) is datetime.UTC
    assert travel(datetime.time(1, tzinfo=zone)).tzname() == "summer"


def test_paths_identifiers_and_decimals_come_back() -> None:
    values = [pathlib.Path("/a/b"), pathlib.PureWindowsPath("c:/x"), uuid.UUID(int=7), decimal.Decimal("1.10")]
    result = travel(values, limits=Limits())
    assert result == values
    assert str(result[3]) == "1.10"


def test_descriptions_of_tensors_come_back() -> None:
    values = [
        torch.float32,
        torch.float8_e4m3fn,
        torch.Size([2, 3]),
        torch.device("cuda:1"),
        torch.device("cpu"),
        torch.strided,
        torch.channels_last,
    ]
    result = travel(values, limits=Limits())
    assert result == values
    assert [type(value) for value in result] == [type(value) for value in values]


def test_partial_functions_come_back() -> None:
    value = functools.partial(operator.add, 2)
    value.note = "kept"  # type: ignore[attr-defined]
    result = travel([value, functools.partial(int, base=2)])
    assert result[0](3) == 5
    assert result[0].note == "kept"
    assert result[1]("11") == 3


def test_plain_values_need_no_permission() -> None:
    value = {"a": [1, (2.0, "x")], "b": torch.ones(2)}
    assert travel(value, limits=Limits())["a"] == travel(value, limits=TRUSTING)["a"] == [1, (2.0, "x")]
