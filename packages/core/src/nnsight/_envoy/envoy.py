"""The stand-in for one module of a model, inside a block and outside."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, cast, overload

from torch import nn

from nnsight._envoy.aliases import with_alias_lines
from nnsight._envoy.shared import RefusedMethod, changes_module, leads_to_modules, read_only
from nnsight._envoy.sides import Sides
from nnsight._envoy.source import Source
from nnsight._interleave.location import SIDES, Location
from nnsight._interleave.turns import current_run
from nnsight._source import forward_of
from nnsight.errors import OutsideTraceError, UnknownLocationError, UnsupportedFeatureError

if TYPE_CHECKING:
    from nnsight._envoy.tree import ModelTree


class Envoy(Sides):
    """One module: its inputs and outputs inside a block, and its children and weights anywhere.

    `envoy.output`, `envoy.input` and `envoy.inputs` wait for the module's next call and return the block's own copy of
    the value; assigning one replaces it in the model. `envoy.skip(value)` puts a value in the place of the call, and
    `envoy.source` leads to the calls and assignments inside the module's forward. Layers of a known family have
    standard values besides, such as `layer.resid_post`. Everything else is looked up on the module: children come back
    as envoys, from `children()` and the like too, other attributes as they are. Methods that change the module for
    every request, such as `half`, refuse to be called. A child whose name an envoy has itself (such as `output`) is
    reached with `model.get("path.to.output")`.
    """

    __slots__ = ("_checked", "_children", "_locations", "_module", "_path", "_source", "_standard", "_tree")
    _checked: dict[str, Location]
    _children: dict[str, Envoy]
    _locations: dict[str, Location]
    _module: nn.Module
    _path: str
    _source: tuple[object, Source] | None
    _standard: dict[str, Location]
    _tree: ModelTree

    def __init__(self, tree: ModelTree, path: str, module: nn.Module) -> None:
        """Stand for `module` at `path`; made by the tree."""
        set_slot = object.__setattr__
        set_slot(self, "_tree", tree)
        set_slot(self, "_path", path)
        set_slot(self, "_module", module)
        set_slot(self, "_children", {})
        set_slot(self, "_standard", {})
        set_slot(self, "_locations", {side: Location(path, side) for side in (*SIDES, "skip")})
        # Where its sides are served, once that was looked up: a model's tree stays what it is.
        set_slot(self, "_checked", {})
        set_slot(self, "_source", None)

    @property
    def source(self) -> Source:
        """The calls and assignments of the module's forward, as ops; printing it shows them beside their lines.

        Raises:
            SourceNotFoundError: The forward is not written in Python.
        """
        forward = forward_of(self._module)
        # Methods are made anew whenever they are looked up, and others may have put another forward in place.
        if self._source is None or self._source[0] != forward:
            object.__setattr__(self, "_source", (forward, Source.of_forward(self._tree, self._path, forward)))
        assert self._source is not None
        return self._source[1]

    def skip(self, value: object) -> None:
        """Put `value` in the place of the module's next call, for this request alone.

        The call is not made, unless other requests of the batch need it, or it keeps something for later steps, such
        as keys and values.

        Raises:
            MismatchedValueError: The value does not fit what the module returns.
            OutOfOrderError: The module has been called already.
            UnsupportedFeatureError: The engine never calls the module.
        """
        self._tree.check(self._path, "skip")
        current_run().skip(self._locations["skip"], value)

    def _location(self, side: str) -> Location:
        location = self._checked.get(side)
        if location is None:
            self._tree.check(self._path, side)
            # Of a module that is never called only the output is left by now.
            value = self._tree.standard.read_as_values.get(self._path)
            location = self._checked[side] = self._locations[side] if value is None else value
        return location

    def get(self, path: str) -> Any:
        """Return what a dotted path names: an envoy, an op, or a value where the path ends in `.output` or the like.

        Raises:
            UnknownLocationError: Nothing below this module has that path.
        """
        full = f"{self._path}.{path}" if self._path else path
        parent, _, leaf = full.rpartition(".")
        module, names = self._tree.split_source(full)
        if names is not None:
            return reduce(getattr, names, self._tree.envoy(module).source)
        if full not in self._tree and (leaf in SIDES or leaf in self._tree.standard.value_names):
            return getattr(self._tree.envoy(parent), leaf)
        if path in self._tree.values and not self._path:
            return getattr(self, path)
        return self._tree.envoy(full)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module ad hoc on values of the block's own; nothing of the running forward changes.

        Raises:
            OutsideTraceError: No block is executing.
        """
        current_run()
        return self._tree.call(self._module, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        """Look up a child, a value of the request, a helper of the backend, or an attribute of the module."""
        child = self._children.get(name)
        if child is not None:
            return child
        location = self._standard.get(name)
        if location is not None:
            return current_run().read(location)
        module = self._module
        if name in module._modules and module._modules[name] is not None:
            child = self._tree.envoy(f"{self._path}.{name}" if self._path else name)
            self._children[name] = child
            return child
        alias = self._tree.aliases.get(self._path, {}).get(name)
        if alias is not None:
            return self._tree.envoy(alias)
        if name in {"values", "items"} and isinstance(module, nn.ModuleDict):
            children = {key: getattr(self, key) for key in module}
            return getattr(children, name)
        if not self._path:
            location = self._tree.values.get(name)
            if location is not None:
                return current_run().read(location)
            if name in self._tree.helpers:
                return self._tree.helpers[name]()
        if name.startswith("__"):
            raise AttributeError(name)
        if name in {"trace", "run", "generate", "session", "edit", "clear_edits"} and not hasattr(module, name):
            raise UnsupportedFeatureError(
                f"model.{name} was called inside a block: traces do not nest; end this one, and use what it saved in "
                "another"
            )
        try:
            found = getattr(module, name)
        except AttributeError:
            pass
        else:
            if changes_module(module, name):
                return RefusedMethod(self._path, name)
            if leads_to_modules(module, name):
                return partial(self._led_to, name, found)
            return self._standing_in(name, found)
        location = self._standard_location(name)
        if location is not None:
            return current_run().read(location)
        if not self._path and name in self._tree.standard.modules:
            child = self._children[name] = self._tree.envoy(name)
            return child
        raise self._tree.unknown(name, self._path)

    def _standing_in(self, name: str, found: object) -> object:
        """Return an attribute of the module as a block may have it: a module of the tree as its envoy."""
        path = self._tree.path_below(found, self._path) if isinstance(found, nn.Module) else None
        return read_only(name, found) if path is None else self._tree.envoy(path)

    def _led_to(self, name: str, method: Callable[..., Any], *args: Any, **kwargs: Any) -> object:
        """Call a method that hands out modules, and hand out their envoys: one, all, or all with their names."""
        found = method(*args, **kwargs)
        if isinstance(found, nn.Module):
            return self._standing_in_below(name, found)
        return (
            (each[0], self._standing_in_below(name, each[1]))
            if isinstance(each, tuple)
            else self._standing_in_below(name, each)
            for each in found
        )

    def _standing_in_below(self, name: str, module: nn.Module) -> object:
        return self if module is self._module else self._standing_in(name, module)

    def _standard_location(self, name: str) -> Location | None:
        location = self._standard.get(name)
        if location is None and name in self._tree.standard.value_names and not hasattr(self._module, name):
            location = self._tree.standard.location(self._path, name)
            if location is not None:
                self._standard[name] = location
        return location

    def __setattr__(self, name: str, value: object) -> None:
        """Assign an input, output, standard value or value of the request; nothing else of a model can be assigned."""
        if name in SIDES:
            object.__setattr__(self, name, value)
            return
        location = self._standard_location(name) if self._path else self._tree.values.get(name)
        if location is None:
            refusal = self._tree.standard.refusal(self._path, name)
            if refusal is not None and name not in self._tree.standard.modules and not hasattr(self._module, name):
                raise UnknownLocationError(refusal)
            raise UnknownLocationError(
                f"{self._path or 'the model'}.{name} cannot be assigned; a block assigns "
                f"{', '.join([*SIDES, *self._tree.values])}, and changes anything else in place"
            )
        current_run().write(location, value)

    @overload
    def __getitem__(self, index: int | str) -> Envoy: ...
    @overload
    def __getitem__(self, index: slice) -> list[Envoy]: ...
    def __getitem__(self, index: int | str | slice) -> Envoy | list[Envoy]:
        """Index a module list, sequence or dict."""
        if isinstance(index, slice):
            return list(self)[index]
        if isinstance(index, str):
            return cast("Envoy", getattr(self, index))
        count = len(self)
        index = operator.index(index)
        if isinstance(self._module, nn.ModuleDict):
            raise UnknownLocationError(
                f"{self._path or 'the model'}[{index}]: its modules have names: {', '.join(self._module)}"
            )
        if not -count <= index < count:
            raise UnknownLocationError(
                f"{self._path or 'the model'}[{index}]: it has {count} modules, from 0 to {count - 1}"
            )
        return cast("Envoy", getattr(self, str(index % count)))

    def __len__(self) -> int:
        """Count the modules of a module list, sequence or dict."""
        if not isinstance(self._module, nn.ModuleList | nn.Sequential | nn.ModuleDict):
            raise TypeError(f"{self._path or 'the model'} is a {type(self._module).__name__}, which has no length")
        return len(self._module)

    def __bool__(self) -> bool:
        """Count as true, whatever the module's length."""
        return True

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the modules of a module list or sequence, or over the names in a module dict."""
        count = len(self)
        if isinstance(self._module, nn.ModuleDict):
            yield from self._module
            return
        for position in range(count):
            yield self[position]

    def __repr__(self) -> str:
        """Print the module that the envoy stands for, and the standard names that it has."""
        shown = self._tree.aliases.get(self._path, {}) if self._path else _by_alias(self._tree.renames)
        printed = with_alias_lines(repr(self._module), shown)
        summary = self._tree.standard.summary(self._path)
        return f"{printed}\n{summary}" if summary else printed

    def __dir__(self) -> list[str]:
        """List children and attributes for completion."""
        names = {*object.__dir__(self), *self._tree.children(self._path), *dir(self._module)}
        names.update(self._tree.standard.names_at(self._path))
        return sorted(names | (set() if self._path else {*self._tree.values, *self._tree.helpers}))

    def __reduce__(self) -> Any:
        """Refuse to be pickled: an envoy travels by its path."""
        raise OutsideTraceError(f"the envoy of {self._path or 'the model'} cannot be pickled; name it inside a block")


def read_item(owner: Any, side: str, index: int) -> Any:
    """Return `owner.output[index]` or `owner.inputs[index]`; of a module's or an op's, other items are not copied."""
    if isinstance(owner, Sides):
        return current_run().read_item(owner._location(side), index)
    return getattr(owner, side)[index]


def _by_alias(renames: Mapping[str, str]) -> dict[str, str]:
    return {alias: real for real, alias in renames.items()}


def path_of(envoy: Envoy) -> str:
    """Return the dotted path of an envoy."""
    return envoy._path


def module_of(envoy: Envoy) -> nn.Module:
    """Return the module that an envoy stands for, of which the methods and the class are its own."""
    return envoy._module


def is_standard_module(envoy: Envoy, name: str) -> bool:
    """Tell whether a name is a standard one that leads from an envoy to another."""
    return not envoy._path and name in envoy._tree.standard.modules and not hasattr(envoy._module, name)
