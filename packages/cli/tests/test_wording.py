"""Tokens and numbers as they are shown."""

from __future__ import annotations

import pytest

from nnsight_cli.wording import counted, ordinal, percentage, visible


@pytest.mark.parametrize(
    ("token", "shown"), [(" Paris", "·Paris"), ("\n", "\\n"), ("", "(empty)"), ("ü", "ü"), ("\x1b[0m", "\\x1b[0m")]
)
def test_tokens_show_their_blanks_and_nothing_that_a_terminal_acts_on(token: str, shown: str) -> None:
    assert visible(token) == shown


def test_letters_that_a_font_may_lack_are_escaped() -> None:
    assert visible(" Zürich", ascii_only=True) == "·Z\\xfcrich"


@pytest.mark.parametrize(
    ("value", "shown"), [(0.0, "0.0 %"), (0.00001, "<0.1 %"), (0.7192, "71.9 %"), (1.0, "100.0 %")]
)
def test_small_probabilities_are_not_rounded_to_nothing(value: float, shown: str) -> None:
    assert percentage(value) == shown


def test_numbers_are_counted_and_ordered() -> None:
    assert [ordinal(number) for number in (1, 2, 3, 4, 11, 22)] == ["1st", "2nd", "3rd", "4th", "11th", "22nd"]
    assert (counted(1, "step"), counted(2, "step")) == ("1 step", "2 steps")
