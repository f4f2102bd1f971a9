"""What a block saved since somebody last looked is told once, as it was then."""

from __future__ import annotations

from typing import Any

import torch

from nnsight._program.streaming import News, StreamedBook


def test_a_value_is_told_each_time_that_it_is_saved() -> None:
    book = StreamedBook()
    book.mark(1, ("token",), "token")
    assert book.take_news().saves == {"token": 1}
    assert not book.take_news()
    book.mark(1, ("token",), "token")
    assert book.take_news().saves == {"token": 1}


def test_what_grows_is_told_by_what_was_added() -> None:
    book = StreamedBook()
    items: list[Any] = []
    table: dict[str, Any] = {"old": 1, "nested": []}
    seen: set[int] = set()
    for name, value in (("items", items), ("table", table), ("seen", seen)):
        book.mark(value, (name,), name)
    assert book.take_news().saves == {"table": {"old": 1, "nested": []}}
    items += [1, 2]
    table["new"] = 3
    table["nested"].append(4)
    seen.add(5)
    news = book.take_news().saves
    assert news == {"items": [1, 2], "table": {"new": 3, "nested": [4]}, "seen": {5}}
    items.append(6)
    # What was told is a copy.
    assert news["items"] == [1, 2]
    assert book.take_news().saves == {"items": [6]}
    assert not book.take_news()


def test_what_was_told_never_changes_afterwards() -> None:
    book = StreamedBook()
    total = torch.zeros(2)
    pair = (total, [total])
    book.mark(total, ("total",), "total")
    book.mark(pair, ("pair",), "pair")
    told = book.take_news().saves
    total += 1
    assert told["total"].sum() == 0  # type: ignore[attr-defined]
    assert told["pair"][0].sum() == told["pair"][1][0].sum() == 0  # type: ignore[index]
    assert book.collect({})[0]["total"].sum() == 2  # type: ignore[attr-defined]


def test_saves_without_a_name_are_told_under_their_text() -> None:
    book = StreamedBook()
    book.mark(1, (), "f(x)")
    book.mark(2, (), "f(x)")
    assert book.take_news().saves == {"f(x)": [1, 2]}
    book.mark(3, (), "f(x)")
    assert book.take_news().saves == {"f(x)": 3}


def test_another_container_of_the_same_name_begins_anew() -> None:
    book = StreamedBook()
    for items in ([1], [2, 3]):
        book.mark(items, ("items",), "items")
        assert book.take_news().saves == {"items": items}
        items.append(4)
        assert book.take_news().saves == {"items": [4]}


def test_news_that_arrives_together_is_one_piece() -> None:
    book = StreamedBook()
    items: list[int] = [0]
    news = News()
    for number in range(3):
        book.mark(items, ("items",), "items")
        book.mark(number, ("number",), "number")
        items.append(number)
        news.add(book.take_news())
    assert news.saves == {"items": [0, 0, 1, 2], "number": 2}
