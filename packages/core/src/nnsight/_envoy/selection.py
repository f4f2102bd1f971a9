"""Modules that are named together: by envoy, by path, or by a pattern."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from nnsight._envoy.aliases import matching
from nnsight._envoy.envoy import Envoy, path_of
from nnsight.errors import InvalidRequestError, UnknownLocationError, UnsupportedFeatureError

if TYPE_CHECKING:
    from nnsight._envoy.tree import ModelTree

Module = Envoy | str


def selected_paths(
    tree: ModelTree, modules: Module | Iterable[Module] | None, sides: Iterable[str]
) -> tuple[list[str], list[str]]:
    """List the paths of modules that were named together, in the order of the tree.

    Args:
        tree: The modules.
        modules: Envoys, paths, or patterns in which `*` stands for one part of a path; None for every module.
        sides: What will be read of them.

    Returns:
        The paths, and those that were left out of a pattern since their values cannot be told apart or are not whole.

    Raises:
        UnknownLocationError: A path or pattern names no module.
        UnsupportedFeatureError: A module that was named by itself cannot be read.
        InvalidRequestError: Something else than a module was named.
    """
    sides = tuple(sides)
    if modules is None:
        named = [(path, False) for path in tree.paths()]
    else:
        listed = [modules] if isinstance(modules, Envoy | str) else list(modules)
        named = [found for module in listed for found in _named(tree, module)]
    chosen: set[str] = set()
    left_out: list[str] = []
    for path, by_itself in named:
        try:
            for side in sides:
                tree.check(path, side)
        except UnsupportedFeatureError:
            if by_itself:
                raise
            left_out.append(path)
        else:
            chosen.add(path)
    return [path for path in tree.paths() if path in chosen], left_out


def _named(tree: ModelTree, module: Module) -> list[tuple[str, bool]]:
    if getattr(type(module), "stands_in", False):
        module = module.envoy  # type: ignore[union-attr]
    if isinstance(module, Envoy):
        return [(path_of(module), True)]
    if not isinstance(module, str):
        raise InvalidRequestError(f"{module!r} is no module; give modules, their paths, or patterns such as 'layers.*'")
    if "*" not in module:
        return [(path_of(tree.envoy(module)), True)]
    found = [(path, False) for path, _ in matching(tree, module)]
    if not found:
        raise UnknownLocationError(
            f"{module!r} matches no module; `*` stands for one part of a path, as in 'layers.*.mlp', and the model's "
            f"paths begin with {', '.join(dict.fromkeys(path.partition('.')[0] for path in tree.paths() if path))}"
        )
    return found
