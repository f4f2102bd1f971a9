"""Tokens and numbers as they are shown."""

from __future__ import annotations

_BLANK = "·"


def visible(token: str, *, ascii_only: bool = False) -> str:
    """Spell a token so that it can be told from others: a dot for each blank, escapes for what cannot be seen.

    Args:
        token: The text of the token.
        ascii_only: Escape letters beyond ASCII too, for fonts that lack them.
    """
    spelled = "".join(_spell(letter, ascii_only=ascii_only) for letter in token)
    return spelled or "(empty)"


def _spell(letter: str, *, ascii_only: bool) -> str:
    if letter == " ":
        return _BLANK
    seen = letter.isprintable() and (letter.isascii() or not ascii_only)
    return letter if seen else letter.encode("unicode_escape").decode()


def percentage(probability: float) -> str:
    """Write a probability as a percentage; a small one is not rounded to nothing."""
    if 0 < probability < 0.0005:
        return "<0.1 %"
    return f"{probability:.1%}".replace("%", " %")


def ordinal(number: int) -> str:
    """Write `1st`, `2nd`, `3rd`, `4th`, ..."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def counted(number: int, what: str) -> str:
    """Write `1 step`, `2 steps`, ..."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
