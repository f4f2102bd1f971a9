"""What a block changed in containers that were saved outside it, and how the changes of several blocks merge.

A change is plain data: `["same"]`, `["set", value]`, `["list", {index: change}, [appended, ...]]`,
`["dict", [[key, change], ...], [removed key, ...]]` or `["add", [element, ...]]` for a set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_MISSING = object()


def snapshot(value: object) -> Any:
    """Copy nested lists, dicts and sets, sharing everything else."""
    if type(value) is list:
        return [snapshot(item) for item in value]
    if type(value) is dict:
        return {key: snapshot(item) for key, item in value.items()}
    if type(value) is set:
        return set(value)
    return value


def own_copies(values: Mapping[str, object]) -> dict[str, Any]:
    """Copy the lists, dicts, sets and tuples among values, and share everything else.

    What is one container in several places stays one.
    """
    seen: dict[int, Any] = {}
    return {name: _own_copy(value, seen) for name, value in values.items()}


def _own_copy(value: Any, seen: dict[int, Any]) -> Any:
    kind = type(value)
    if kind not in (list, dict, set, tuple):
        return value
    if id(value) not in seen:
        if kind is tuple:
            return tuple(_own_copy(item, seen) for item in value)
        copied = seen[id(value)] = kind()
        if kind is list:
            copied.extend(_own_copy(item, seen) for item in value)
        elif kind is dict:
            copied.update({key: _own_copy(item, seen) for key, item in value.items()})
        else:
            copied.update(value)
    return seen[id(value)]


def difference(before: Any, after: Any) -> list[Any]:
    """Describe how a container differs from its snapshot, comparing what is not a container by identity."""
    if type(before) is list and type(after) is list and len(after) >= len(before):
        changed = {
            index: change
            for index, (one, other) in enumerate(zip(before, after, strict=False))
            if (change := difference(one, other)) != ["same"]
        }
        appended = after[len(before) :]
        return ["list", changed, appended] if changed or appended else ["same"]
    if type(before) is dict and type(after) is dict:
        items = [
            [key, change]
            for key, item in after.items()
            if (change := difference(before[key], item) if key in before else ["set", item]) != ["same"]
        ]
        removed = [key for key in before if key not in after]
        return ["dict", items, removed] if items or removed else ["same"]
    if type(before) is set and type(after) is set and before <= after:
        return ["add", list(after - before)] if after - before else ["same"]
    return ["same"] if before is after else ["set", after]


def apply(container: Any, change: list[Any]) -> Any:
    """Change a container in place, and return it or what takes its place."""
    kind = change[0]
    if kind == "set":
        new = change[1]
        if type(container) is list and type(new) is list:
            container[:] = new
            return container
        return new
    if kind == "list":
        for index, inner in change[1].items():
            container[index] = apply(container[index], inner)
        container.extend(change[2])
    elif kind == "dict":
        for key, inner in change[1]:
            container[key] = apply(container.get(key), inner)
        for key in change[2]:
            container.pop(key, None)
    elif kind == "add":
        container.update(change[1])
    return container


def conflicts(name: str, container: object, changes: Sequence[list[Any]]) -> dict[str, int]:
    """Find the places of a container that several blocks assigned, so that only the last assignment is left.

    Equal values that take the place of nothing are no conflict. Equal numbers that take the place of a number are: they
    may be counts that each block raised by itself.

    Args:
        name: How the container is spelled.
        container: The container as it was before.
        changes: What each block changed.

    Returns:
        How many blocks assigned each such place, by how it is spelled.
    """
    assigned: dict[str, list[object]] = {}
    before: dict[str, object] = {}
    for change in changes:
        _list_assigned(name, container, change, assigned, before)
    return {
        place: len(values)
        for place, values in assigned.items()
        if len(values) > 1 and not (_all_equal(values) and _is_nothing(before[place]))
    }


def _list_assigned(
    place: str, container: Any, change: list[Any], assigned: dict[str, list[object]], before: dict[str, object]
) -> None:
    kind = change[0]
    if kind == "set":
        assigned.setdefault(place, []).append(change[1])
        before[place] = container
    elif kind == "list":
        for index, inner in change[1].items():
            _list_assigned(f"{place}[{index}]", container[index], inner, assigned, before)
    elif kind == "dict":
        for key, inner in change[1]:
            _list_assigned(f"{place}[{key!r}]", container.get(key, _MISSING), inner, assigned, before)


def _is_nothing(value: object) -> bool:
    return value is _MISSING or value is None or isinstance(value, bool)


def _all_equal(values: Sequence[object]) -> bool:
    first = values[0]
    plain = bool | int | float | complex | str | bytes | None
    return all(value is first or (isinstance(value, plain) and value == first) for value in values)
