"""The locations of a module tree, repeated layers folded into one line each."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

SIDES = ("input", "inputs", "output")


@dataclass
class Line:
    """Modules of one kind whose paths differ in their numbers alone.

    Attributes:
        path: The path that they share, with `*` for what differs.
        kind: Their class.
        side: What of them is meant, such as `"output"`; empty for the modules themselves.
        paths: The path of each.
    """

    path: str
    kind: str
    side: str = ""
    paths: list[str] = field(default_factory=list)

    @property
    def location(self) -> str:
        """The path with its side, as `model.get` takes it; with `*`, as `taps` takes it."""
        return f"{self.path}.{self.side}" if self.side else self.path

    @property
    def numbers(self) -> str:
        """Which numbers stand for the first `*`, such as `0-31`; empty for a path without one."""
        if "*" not in self.path:
            return ""
        place = self.path.split(".").index("*")
        return spans(sorted({int(path.split(".")[place]) for path in self.paths}))


def listing(modules: Iterable[tuple[str, str]], *, pattern: str | None = None, fold: bool = True) -> list[Line]:
    """List modules, or what of them a pattern picks.

    Args:
        modules: Path and class of each.
        pattern: A glob over locations in which `*` matches within one part of a path: `model.layers.*.mlp` picks
            modules, `model.layers.*.mlp.output` or `*.*.3.*.output` one side of them.
        fold: Write modules whose paths differ in their numbers alone as one line.

    Returns:
        Lines in the order of the tree.
    """
    lines: dict[tuple[str, str, str], Line] = {}
    for path, kind, side in _picked(modules, pattern):
        shared = _without_numbers(path) if fold else path
        line = lines.setdefault((shared, kind, side), Line(shared, kind, side))
        line.paths.append(path)
    for line in lines.values():
        if len(line.paths) == 1:
            line.path = line.paths[0]
    return list(lines.values())


def spans(numbers: Iterable[int]) -> str:
    """Write sorted numbers as spans: `0-3, 7`."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def matches(location: str, pattern: str) -> bool:
    """Tell whether a glob picks a location; `*` matches within one part of a path."""
    parts, globs = location.split("."), pattern.split(".")
    return len(parts) == len(globs) and all(map(fnmatch.fnmatchcase, parts, globs))


def _picked(modules: Iterable[tuple[str, str]], pattern: str | None) -> Iterator[tuple[str, str, str]]:
    for path, kind in modules:
        if not path:
            continue
        if pattern is None or matches(path, pattern):
            yield path, kind, ""
        elif pattern is not None:
            yield from ((path, kind, side) for side in SIDES if matches(f"{path}.{side}", pattern))


def _without_numbers(path: str) -> str:
    return ".".join("*" if part.isdecimal() else part for part in path.split("."))
