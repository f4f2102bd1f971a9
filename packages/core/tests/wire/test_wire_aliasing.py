from __future__ import annotations

from typing import Any

import torch
from wire_helpers import Frozen, Point, Probe, Settings, travel

from nnsight._wire import Limits


def test_a_value_that_occurs_twice_is_one_value_again() -> None:
    shared: list[Any] = [[1], {"a": 1}, {1}, torch.ones(2), Settings(1), (1, [2]), bytearray(b"a"), Frozen("a")]
    for value in shared:
        first, second = travel([value, value])
        assert first is second


def test_values_are_shared_across_the_names_of_a_dict_of_variables() -> None:
    hidden = torch.zeros(2)
    result = travel({"hidden": hidden, "parts": [hidden, {"again": hidden}]}, limits=Limits())
    result["hidden"].add_(1)
    assert result["parts"][0].tolist() == result["parts"][1]["again"].tolist() == [1, 1]


def test_equal_values_that_are_not_one_stay_apart() -> None:
    first, second = travel([[1], [1]])
    assert first is not second


def test_values_that_contain_themselves_come_back() -> None:
    items: list[Any] = [1]
    items.append(items)
    result = travel(items)
    assert result[1] is result
    entries: dict[str, Any] = {}
    entries["self"] = [entries]
    result = travel(entries)
    assert result["self"][0] is result
    settings = Settings(1)
    settings.parts = [settings, {settings.size: settings}]
    result = travel(settings)
    assert result.parts[0] is result.parts[1][1] is result


def test_a_tuple_that_contains_itself_through_a_list_comes_back() -> None:
    inner: list[Any] = []
    value = (inner, "x")
    inner.append(value)
    result = travel(value)
    assert result[0][0] is result
    result = travel(inner)
    assert result[0][0] is result
    point = Point(1, [])
    point.y.append(point)
    result = travel(point)
    assert result.y[0] is result


def test_a_tuple_in_many_lists_that_contain_it_comes_back() -> None:
    lists: list[list[Any]] = [[] for _ in range(9)]
    value = tuple(lists)
    for entry in lists:
        entry.append(value)
    result = travel(value)
    assert all(entry[0] is result for entry in result)


def test_a_set_whose_element_refers_to_the_set_comes_back() -> None:
    class_with_identity = Probe()
    group = {class_with_identity}
    class_with_identity.hooks.append(group)
    result = travel(group)
    (element,) = result
    assert element.hooks[0] is result


def test_a_key_is_the_value_that_occurs_elsewhere() -> None:
    key = Probe()
    result = travel([key, {key: 1}])
    assert list(result[1]) == [result[0]]


def test_a_tuple_that_is_a_key_and_a_value_comes_back_equal() -> None:
    pair = (1, (2, 3))
    result = travel([pair, {pair: pair, (pair, pair): 1}])
    assert result == [pair, {pair: pair, (pair, pair): 1}]


def test_parameters_that_two_modules_share_stay_shared() -> None:
    probe = Probe()
    probe.decoder.weight = torch.nn.Parameter(torch.ones(4, 8))
    other = torch.nn.Linear(8, 4, bias=False)
    other.weight = probe.decoder.weight
    first, second = travel([probe, other])
    assert first.decoder.weight is second.weight


def test_views_of_one_storage_become_separate_tensors() -> None:
    base = torch.arange(6.0)
    whole, part = travel([base, base[2:4]])
    part.zero_()
    assert whole.tolist() == [0, 1, 2, 3, 4, 5]


def test_a_temporary_value_made_while_encoding_is_not_mistaken_for_another() -> None:
    class Maker:
        tag = "maker"

        def encode(self, value: object, encoder: Any) -> object:
            return [encoder.node([index]) for index in range(50)]

        def decode(self, payload: Any, decoder: Any) -> object:
            return [decoder.value(node) for node in payload]

    from wire_helpers import CODECS

    codecs = CODECS.extended({Settings: Maker()})
    assert travel(Settings(1), codecs=codecs) == [[index] for index in range(50)]
