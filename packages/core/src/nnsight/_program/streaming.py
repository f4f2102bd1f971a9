"""What a block saved since somebody last looked, while it goes on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import torch

from nnsight._interleave.structure import map_tensors
from nnsight._program.containers import difference, snapshot
from nnsight._program.saves import SaveBook

_CONTAINERS: Final = (list, dict, set)


@dataclass
class News:
    """What came since the last look, as copies.

    Attributes:
        values: Values that were saved, by variable or source text.
        additions: What was added to saved containers, by variable: the items appended to a list, the entries of a dict
            that are new or hold something else, the elements added to a set.
    """

    values: dict[str, object] = field(default_factory=dict)
    additions: dict[str, Any] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Tell whether there is anything."""
        return bool(self.values or self.additions)

    def add(self, later: News) -> None:
        """Take in what came after."""
        for name, value in later.values.items():
            self.additions.pop(name, None)
            self.values[name] = value
        for name, added in later.additions.items():
            mine = self.values if name in self.values else self.additions
            known = mine.get(name)
            if isinstance(known, list) and isinstance(added, list):
                known.extend(added)
            elif isinstance(known, dict | set) and type(known) is type(added):
                known.update(added)
            else:
                mine[name] = added

    @property
    def saves(self) -> dict[str, object]:
        """Everything, by variable or source text."""
        return {**self.values, **self.additions}


class StreamedBook(SaveBook):
    """The saves of a block, with a note of those that nobody has looked at yet."""

    def __init__(self) -> None:
        """Begin with nothing saved."""
        super().__init__()
        self._marked: dict[str, object] = {}
        self._labelled: dict[str, list[object]] = {}
        self._growing: dict[str, tuple[Any, Any]] = {}

    def mark(self, value: object, names: tuple[str, ...], label: str) -> None:
        """Save a value; see `SaveBook.mark`."""
        super().mark(value, names, label)
        for name in names:
            self._marked[name] = value
        if not names:
            self._labelled.setdefault(label, []).append(value)

    def take_news(self) -> News:
        """Return what came since this was called last.

        Raises:
            UnsupportedFeatureError: A saved value cannot be copied.
        """
        news = News()
        marked, self._marked = self._marked, {}
        labelled, self._labelled = self._labelled, {}
        for name, value in marked.items():
            if type(value) not in _CONTAINERS:
                self._growing.pop(name, None)
                news.values[name] = _copied(value)
            elif self._growing.get(name, (None,))[0] is not value:
                self._growing[name] = (value, snapshot(value))
                if value:
                    news.values[name] = _copied(value)
        for label, values in labelled.items():
            # A save that turned out to be bound to a variable is not kept under its text.
            kept = [value for value in values if any(value is one for one in self._unnamed.get(label, ()))]
            if kept:
                news.values[label] = _copied(kept[0] if len(kept) == 1 else kept)
        for name, (container, before) in self._growing.items():
            added = _added(before, container)
            if added:
                news.additions[name] = _copied(added)
                self._growing[name] = (container, snapshot(container))
        return news


def _added(before: Any, after: Any) -> Any:
    if isinstance(after, list):
        return after[len(before) :]
    if isinstance(after, set):
        return after - before
    return {key: item for key, item in after.items() if key not in before or difference(before[key], item) != ["same"]}


def _copied(value: object) -> Any:
    with torch.no_grad():
        return map_tensors(value, torch.clone)
