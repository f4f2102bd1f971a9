"""A logit lens as a picture: a row per layer, a column per rank, coloured by probability."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image, ImageDraw, ImageFont

from nnsight_cli.wording import ordinal, percentage, visible

if TYPE_CHECKING:
    from nnsight_cli.demonstration import Guess, Reading

_Colour = tuple[int, int, int]

_SCALE = 2  # drawn large, so that it stays sharp on dense screens
_CELL = (148, 44)
_GAP = 4
_MARGIN = 36
_LABELS = 96
_TITLE = 96
_FOOT = 64
_RAMP = (  # from pale to dark, evenly in lightness
    (244, 247, 251),
    (205, 222, 239),
    (148, 189, 222),
    (83, 147, 199),
    (33, 100, 165),
    (9, 48, 102),
)
_INK, _FAINT, _MARK = (23, 32, 46), (102, 114, 131), (224, 122, 31)


def draw_lens(reading: Reading, path: Path) -> None:
    """Draw a logit lens and write it as a PNG.

    Args:
        reading: What to draw; the cells of the token that the model says in the end are framed.
        path: Where to write it.
    """
    columns = max(len(row) for row in reading.layers)
    width = 2 * _MARGIN + _LABELS + columns * (_CELL[0] + _GAP) - _GAP
    top = _MARGIN + _TITLE
    height = top + len(reading.layers) * (_CELL[1] + _GAP) + _FOOT + _MARGIN
    canvas = _Canvas(width, height)
    answer = reading.layers[-1][0]

    canvas.text((_MARGIN, _MARGIN), "What each layer would say next", size=24)
    canvas.text((_MARGIN, _MARGIN + 34), f"“{reading.prompt} …”", size=16, colour=_FAINT)
    for rank in range(columns):
        centre = _MARGIN + _LABELS + rank * (_CELL[0] + _GAP) + _CELL[0] // 2
        canvas.text((centre, top - 10), ordinal(rank + 1), size=13, colour=_FAINT, anchor="ms")
    for index, row in enumerate(reading.layers):
        y = top + index * (_CELL[1] + _GAP)
        canvas.text((_MARGIN, y + _CELL[1] // 2), f"layer {index}", size=15, anchor="lm")
        for rank, guess in enumerate(row):
            x = _MARGIN + _LABELS + rank * (_CELL[0] + _GAP)
            _draw_cell(canvas, x, y, guess, framed=guess.token_id == answer.token_id)
    _draw_foot(canvas, top + len(reading.layers) * (_CELL[1] + _GAP) + 18, width, answer)
    canvas.image.save(path, format="PNG", optimize=True)


def _draw_cell(canvas: _Canvas, x: int, y: int, guess: Guess, *, framed: bool) -> None:
    fill = _shade(guess.probability)
    ink = _INK if _luminance(fill) > 0.4 else (255, 255, 255)
    canvas.box((x, y, x + _CELL[0], y + _CELL[1]), fill, _MARK if framed else None)
    middle = y + _CELL[1] // 2
    canvas.text(
        (x + 12, middle), visible(guess.token, ascii_only=True), size=16, colour=ink, anchor="lm", width=_CELL[0] - 66
    )
    canvas.text((x + _CELL[0] - 10, middle), percentage(guess.probability), size=12, colour=ink, anchor="rm")


def _draw_foot(canvas: _Canvas, y: int, width: int, answer: Guess) -> None:
    bar, height = 160, 12
    for step in range(bar):
        canvas.box((_MARGIN + _LABELS + step, y, _MARGIN + _LABELS + step + 1, y + height), _shade(step / (bar - 1)))
    canvas.text((_MARGIN, y + height // 2), "probability", size=13, colour=_FAINT, anchor="lm")
    for value, x in (("0 %", 0), ("100 %", bar)):
        canvas.text((_MARGIN + _LABELS + x, y + height + 16), value, size=12, colour=_FAINT, anchor="ms")
    x = _MARGIN + _LABELS + bar + 40
    canvas.box((x, y - 2, x + 26, y + height + 2), (255, 255, 255), _MARK)
    text = f"{visible(answer.token, ascii_only=True)}, the model's answer"
    canvas.text((x + 36, y + height // 2), text, size=13, colour=_FAINT, anchor="lm")
    canvas.text((width - _MARGIN, y + height // 2), "nnsight demo", size=13, colour=_FAINT, anchor="rm")


class _Canvas:
    """Draws at twice the size that it is asked for."""

    def __init__(self, width: int, height: int) -> None:
        """Make an empty picture."""
        self.image = Image.new("RGB", (width * _SCALE, height * _SCALE), (255, 255, 255))
        self._draw = ImageDraw.Draw(self.image)

    def box(self, corners: Sequence[int], fill: _Colour, frame: _Colour | None = None) -> None:
        """Fill a rectangle, and frame it."""
        left, top, right, bottom = (value * _SCALE for value in corners)
        self._draw.rectangle((left, top, right - 1, bottom - 1), fill=fill, outline=frame, width=2 * _SCALE)

    def text(
        self,
        at: tuple[int, int],
        text: str,
        *,
        size: int,
        colour: _Colour = _INK,
        anchor: str = "la",
        width: int | None = None,
    ) -> None:
        """Write a line, cut where it would be wider than `width`."""
        font = ImageFont.load_default(size * _SCALE)
        if width is not None and self._draw.textlength(text, font=font) > width * _SCALE:
            while text and self._draw.textlength(f"{text}…", font=font) > width * _SCALE:
                text = text[:-1]
            text = f"{text}…"
        self._draw.text((at[0] * _SCALE, at[1] * _SCALE), text, fill=colour, font=font, anchor=anchor)


def _shade(probability: float) -> _Colour:
    """Return the colour of a probability."""
    place = min(max(probability, 0.0), 1.0) * (len(_RAMP) - 1)
    low = min(int(place), len(_RAMP) - 2)
    red, green, blue = (round(a + (b - a) * (place - low)) for a, b in zip(_RAMP[low], _RAMP[low + 1], strict=True))
    return red, green, blue


def _luminance(colour: _Colour) -> float:
    red, green, blue = (value / 255 for value in colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
