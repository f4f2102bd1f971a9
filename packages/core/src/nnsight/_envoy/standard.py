"""The standard names of one model: which modules and values they mean in its tree."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from nnsight._interleave.location import Location, Standard
from nnsight.families import MODULE_NAMES, VALUE_NAMES
from nnsight.plugins import find_family

if TYPE_CHECKING:
    from nnsight._envoy.tree import ModelTree
    from nnsight.families import ModelFamily


class StandardNames:
    """Finds standard names in a tree; the family of the model is asked for once, when a name is first needed."""

    def __init__(self, tree: ModelTree) -> None:
        """Serve the names of `tree`."""
        self._tree = tree

    @cached_property
    def family(self) -> ModelFamily | None:
        """Where the model has its standard names, or None where no plugin knows."""
        return find_family(self._tree.root)

    @cached_property
    def modules(self) -> dict[str, str]:
        """The paths that standard names of modules stand for."""
        family = self.family
        if family is None:
            return {}
        found = {name: getattr(family, name) for name in MODULE_NAMES}
        return {name: path for name, path in found.items() if path is not None}

    @cached_property
    def value_names(self) -> frozenset[str]:
        """The names of the values that each layer has."""
        return frozenset(self.family.values) if self.family is not None else frozenset()

    @cached_property
    def read_as_values(self) -> dict[str, Location]:
        """The paths of modules that are never called, with the request's own value that their output is read from."""
        family = self.family
        if family is None or family.unembed is None or family.unembed_value not in self._tree.values:
            return {}
        # An embedding that is the unembedding too keeps its own path for the embedding.
        path = "unembed" if family.unembed == family.embed else family.unembed
        return {path: self._tree.values[family.unembed_value]}

    def real_path(self, path: str) -> str:
        """Return a path that begins with a standard name as the path that it stands for."""
        first, dot, rest = path.partition(".")
        if first not in self.modules or first in self.read_as_values:
            return path
        return self.modules[first] + dot + rest

    def location(self, path: str, name: str) -> Location | None:
        """Make the location of a layer's standard value; None where the module is no layer, or has not that value."""
        family = self.family
        if family is None or name not in family.values or not self.is_layer(path):
            return None
        value = family.values[name]
        below = f"{path}.{value.module}" if value.module else path
        place = self._tree.envoy(below)._location(value.side)
        standard = Standard(path, f"{path}.{name}", value, place)
        return Location(place.path, place.side, standard=standard)

    def is_layer(self, path: str) -> bool:
        """Tell whether a module is one of the layers."""
        return self.family is not None and path.rpartition(".")[0] == self.family.layers

    def names_at(self, path: str) -> list[str]:
        """Return the standard names that a module has."""
        if not path:
            return list(self.modules)
        if self.is_layer(path):
            return [name for name in VALUE_NAMES if name in self.value_names]
        return []

    def summary(self, path: str) -> str:
        """Say in a line what standard names a module has; empty for none."""
        names = self.names_at(path)
        if not names:
            return ""
        if path:
            return f"standard names: {', '.join(names)}"
        values = ", ".join(name for name in VALUE_NAMES if name in self.value_names)
        modules = ", ".join(f"{name} = {real}" for name, real in self.modules.items())
        return f"standard names: {modules}; in each layer {values}"

    def refusal(self, path: str, name: str) -> str | None:
        """Say why a standard name means nothing at a module; None for a name that is none there."""
        root = type(self._tree.root).__name__
        if name not in VALUE_NAMES and (path or name not in MODULE_NAMES):
            return None
        if self.family is None:
            return (
                f"{name!r} is a standard name, but no plugin knows where {root} has the standard names; use the "
                "model's own names (print the model to see its tree), or answer the hook resolve_standard_names for "
                f"{root}: see docs/how-to/standard-names.md"
            )
        if name in MODULE_NAMES:
            return f"{root} has no {name}"
        if name not in self.family.values:
            names = [own for own in VALUE_NAMES if own in self.family.values]
            return f"layers of {root} have no {name}; they have {', '.join(names)}"
        return f"{path or 'the model'} is no layer, and only layers have {name}: write model.layers[i].{name}"
