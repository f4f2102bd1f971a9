"""The Python blocks of the documentation, as they stand in its pages.

A fenced `python` block is run as it is written. The blocks of a page run in order in one namespace. An HTML comment
directly above a block says what else is to be known about it:

    <!-- not run: REASON -->      the block is left out
    <!-- raises: NAME -->         the block ends with an exception of this class
    <!-- warns: NAME -->          the block gives a warning of this class

A `text` block directly below is what the block prints; `...` in it stands for anything.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^`]*)$")
_DIRECTIVE = re.compile(r"^\s*<!-- (?P<kind>not run|raises|warns): (?P<text>\S.*\S) -->\s*$")


@dataclass(frozen=True)
class Snippet:
    """One `python` block.

    Attributes:
        page: The page, relative to the folder of all pages.
        line: Line of the opening fence, from 1.
        code: The block's text.
        skipped: Why it is not run; empty for one that is.
        raises: Name of the exception that it ends with; empty for none.
        warns: Name of the warning that it gives; empty for none.
        prints: What it prints; None where the page does not say.
    """

    page: str
    line: int
    code: str
    skipped: str = ""
    raises: str = ""
    warns: str = ""
    prints: str | None = None


@dataclass(frozen=True)
class _Fence:
    start: int
    end: int
    info: str
    text: str


def snippets_of(page: Path, root: Path) -> list[Snippet]:
    """Return the `python` blocks of a page, in order."""
    lines = page.read_text(encoding="utf-8").splitlines()
    fences = _fences(lines)
    found = []
    for position, fence in enumerate(fences):
        below = fences[position + 1] if position + 1 < len(fences) else None
        if fence.info.split()[:1] != ["python"]:
            continue
        above = next((line for line in reversed(lines[: fence.start]) if line.strip()), "")
        match = _DIRECTIVE.match(above)
        directive = {match["kind"]: match["text"]} if match else {}
        prints = None
        if below is not None and below.info == "text" and not any(map(str.strip, lines[fence.end + 1 : below.start])):
            prints = below.text
        found.append(
            Snippet(
                page.relative_to(root).as_posix(),
                fence.start + 1,
                fence.text,
                directive.get("not run", ""),
                directive.get("raises", ""),
                directive.get("warns", ""),
                prints,
            )
        )
    return found


def _fences(lines: list[str]) -> list[_Fence]:
    found = []
    position = 0
    while position < len(lines):
        match = _FENCE.match(lines[position])
        if match is None:
            position += 1
            continue
        closing = match["indent"] + "```"
        end = next(index for index in range(position + 1, len(lines)) if lines[index].rstrip() == closing)
        text = textwrap.dedent("\n".join(lines[position + 1 : end])) + "\n"
        found.append(_Fence(position, end, match["info"].strip(), text))
        position = end + 1
    return found


def matches(expected: str, seen: str) -> bool:
    """Tell whether printed text is the expected one, `...` standing for anything."""
    pattern = ".*?".join(re.escape(part) for part in expected.strip().split("..."))
    return re.fullmatch(pattern, "\n".join(line.rstrip() for line in seen.strip().splitlines()), re.DOTALL) is not None
