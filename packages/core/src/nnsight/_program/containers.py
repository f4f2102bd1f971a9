"""What a block changed in containers that were saved outside it, and how the changes of several blocks merge.

A change is plain data: `["same"]`, `["set", value]`, `["list", {index: change}, [appended, ...]]`,
`["dict", [[key, change], ...], [removed key, ...]]` or `["add", [element, ...]]` for a set.
"""

from __future__ import annotations

from typing import Any


def snapshot(value: object) -> Any:
    """Copy nested lists, dicts and sets, sharing everything else."""
    if type(value) is list:
        return [snapshot(item) for item in value]
    if type(value) is dict:
        return {key: snapshot(item) for key, item in value.items()}
    if type(value) is set:
        return set(value)
    return value


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
