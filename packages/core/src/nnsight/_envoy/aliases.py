"""Extra names of modules, chosen by the user."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from nnsight._interleave.location import SIDES
from nnsight.errors import InvalidRequestError

if TYPE_CHECKING:
    from torch import nn

    from nnsight._envoy.tree import ModelTree

# What an envoy has by itself, besides its sides.
_OWN = frozenset({*SIDES, "source", "skip", "get"})


def matching(tree: ModelTree, pattern: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Find the modules that a pattern names; an alias leads to its module.

    Args:
        tree: The modules.
        pattern: A dotted path; `*` in a part of it stands for any text without a dot.

    Yields:
        The path of each module, and what each `*` stands for.
    """
    found: list[tuple[str, tuple[str, ...]]] = [("", ())]
    for part in pattern.split("."):
        shape = re.compile("(.*)".join(re.escape(text) for text in part.split("*")))
        found = [
            (child, (*stars, *match.groups()))
            for path, stars in found
            for name, child in tree.children(path).items()
            if (match := shape.fullmatch(name))
        ]
    yield from dict(found).items()


def aliases_below(tree: ModelTree, renames: Mapping[str, str], reserved: frozenset[str]) -> dict[str, dict[str, str]]:
    """Return the aliases below each module: the path of what they stand for, by name.

    Args:
        tree: The modules, without aliases.
        renames: The alias of each path. Both are whole paths; each `*` of the alias is what the one of the path is.
        reserved: Names that the root has besides its modules.

    Raises:
        UnknownLocationError: A path names no module, or an alias is below none.
        InvalidRequestError: An alias is no name, is taken, or has another number of `*` than its path.
    """
    below: dict[str, dict[str, str]] = tree.aliases
    for path, alias in renames.items():
        if path.count("*") != alias.count("*"):
            raise _refusal(path, alias, "both need the same number of `*`")
        found = list(matching(tree, path))
        if not found:
            raise tree.unknown(path)
        for real, stars in found:
            filled = iter(stars)
            spelled = re.sub(r"\*", lambda _, filled=filled: next(filled), alias)  # type: ignore[misc]
            parent, _, name = spelled.rpartition(".")
            owner = tree.real_path(parent)
            if not name.isidentifier():
                raise _refusal(path, alias, f"{name!r} is no name")
            if (
                _is_taken(tree.module(owner), name, tree, owner, reserved)
                or below.get(owner, {}).get(name, real) != real
            ):
                raise _refusal(path, alias, f"{owner or 'the model'} has a {name!r} already; choose another name")
            below.setdefault(owner, {})[name] = real
    return below


def _is_taken(module: nn.Module, name: str, tree: ModelTree, owner: str, reserved: frozenset[str]) -> bool:
    of_root = not owner and (name in reserved or name in tree.values or name in tree.helpers)
    return of_root or name in _OWN or hasattr(module, name)


def _refusal(path: str, alias: str, reason: str) -> InvalidRequestError:
    return InvalidRequestError(f"rename={{{path!r}: {alias!r}}}: {reason}")


def with_alias_lines(text: str, aliases: Mapping[str, str]) -> str:
    """Add aliases to what is printed for a module."""
    if not aliases:
        return text
    lines = "".join(f"  ({alias}): same as {real}\n" for alias, real in aliases.items())
    head, bracket, _ = text.rpartition(")")
    return f"{head}{lines}{bracket}" if head.endswith("\n") else f"{text}\n{lines}".rstrip("\n")
