"""The module tree that envoys stand for."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from nnsight._envoy.aliases import aliases_below
from nnsight._envoy.shared import holders_of_modules
from nnsight._envoy.standard import StandardNames
from nnsight._interleave.location import Location
from nnsight.errors import UnknownLocationError, UnsupportedFeatureError

if TYPE_CHECKING:
    from nnsight._envoy.envoy import Envoy

# Programs of so many models with different extra names are served without making them anew.
_MOST_VIEWS = 32


def _call_module(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    # Modules that work in place must not change what the block was handed, and with it the model.
    own = [arg.clone() if isinstance(arg, Tensor) else arg for arg in args]
    named = {name: arg.clone() if isinstance(arg, Tensor) else arg for name, arg in kwargs.items()}
    return module(*own, **named)


class ModelTree:
    """A module and its submodules by dotted path, with the values and helpers that a backend adds to the root.

    Attributes:
        root: The module itself; on the meta device on the side of a client.
        values: Locations of the request's own values, such as `logits`, by name.
        helpers: What else a block may ask the model for, such as `tokenizer`, made when first asked for.
        call: How a module is called ad hoc inside a block.
        keeps_state: Tells whether a call of a module leaves something behind for later steps, such as keys and values.
        sharded: Sides of modules that hold only a share of their value here, by path; they are refused.
        renames: Extra names of modules: the alias of each path.
        aliases: The same, by the path of the module that each is below.
        standard: The standard names of the model.
    """

    def __init__(
        self,
        root: nn.Module,
        *,
        values: Iterable[str] = (),
        helpers: Mapping[str, Callable[[], object]] | None = None,
        call: Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], object] = _call_module,
        keeps_state: Callable[[nn.Module], bool] = lambda module: False,
        sharded: Mapping[str, frozenset[str]] | None = None,
        renames: Mapping[str, str] | None = None,
        reserved: Iterable[str] = (),
    ) -> None:
        """Index the modules below `root`.

        Args:
            root: The module itself.
            values: Names of the request's own values.
            helpers: See above.
            call: See above.
            keeps_state: See above.
            sharded: See above.
            renames: See above; both are whole paths, in which `*` stands for any text without a dot.
            reserved: Names that an alias below the root cannot have.

        Raises:
            UnknownLocationError: A renamed path names no module.
            InvalidRequestError: An alias is taken.
        """
        from nnsight._envoy.envoy import Envoy

        self.root = root
        self.values = {name: Location(name, "value") for name in values}
        self.helpers = dict(helpers or {})
        self.call = call
        self.keeps_state = keeps_state
        self.sharded = dict(sharded or {})
        self.standard = StandardNames(self)
        self._modules: dict[str, nn.Module] = dict(root.named_modules(remove_duplicate=False))
        paths: dict[int, int] = {}
        for module in self._modules.values():
            paths[id(module)] = paths.get(id(module), 0) + 1
        self._shared = {path for path, module in self._modules.items() if paths[id(module)] > 1}
        # Paths of one module whose calls no parent tells apart, by each of them.
        self.ambiguous: dict[str, list[str]] = {}
        together: dict[tuple[int, str], list[str]] = {}
        for path in self._shared:
            together.setdefault((id(self._modules[path]), self.gate(path) or ""), []).append(path)
        for paths_of_one in together.values():
            if len(paths_of_one) > 1:
                self.ambiguous.update(dict.fromkeys(paths_of_one, sorted(paths_of_one)))
        self._envoys: dict[str, Envoy] = {"": Envoy(self, "", root)}
        self._views: dict[tuple[tuple[str, str], ...], ModelTree] = {}
        self.renames: dict[str, str] = dict(renames or {})
        self.aliases: dict[str, dict[str, str]] = {}
        aliases_below(self, self.renames, frozenset(reserved))

    def module(self, path: str) -> nn.Module:
        """Return the module at `path`.

        Raises:
            UnknownLocationError: There is none; the message names the nearest paths.
        """
        module = self._modules.get(path)
        if module is None and path in self.standard.read_as_values:
            module = self._modules.get(self.standard.modules[path])
        if module is None:
            raise self.unknown(path)
        return module

    def children(self, path: str) -> dict[str, str]:
        """Return the paths of a module's children by name, those of aliases too."""
        below = f"{path}." if path else ""
        names = self._modules[path]._modules
        return {**{name: below + name for name in names if below + name in self._modules}, **self.aliases.get(path, {})}

    def real_path(self, path: str) -> str:
        """Return the path of a module that may be spelled with aliases.

        Raises:
            UnknownLocationError: There is no such module.
        """
        if path in self._modules:
            return path
        real = ""
        for name in path.split("."):
            found = self.children(real).get(name)
            if found is None:
                raise self.unknown(path)
            real = found
        return real

    def with_renames(self, renames: Mapping[str, str]) -> ModelTree:
        """Return the same modules with the extra names that a program uses."""
        if dict(renames) == self.renames:
            return self
        key = tuple(renames.items())
        view = self._views.get(key)
        if view is None:
            from nnsight._envoy.envoy import Envoy

            view = copy.copy(self)
            view.renames, view.aliases, view._views = dict(renames), {}, {}
            view._envoys = {"": Envoy(view, "", self.root)}
            view.standard = StandardNames(view)
            aliases_below(view, view.renames, frozenset())
            if len(self._views) >= _MOST_VIEWS:
                self._views.clear()
            self._views[key] = view
        return view

    def gate(self, path: str) -> str | None:
        """Return the nearest parent that tells the calls of a shared module apart; None for a module with one path."""
        if path not in self._shared:
            return None
        while path in self._shared:
            path = path.rpartition(".")[0]
        return path

    def inner_gates(self, path: str) -> list[str]:
        """Return the gates of a shared module's other paths that lie inside the gate of this one.

        A call that comes from inside one of them belongs to its path.
        """
        own = self.gate(path)
        if own is None:
            return []
        module = self._modules[path]
        others = {self.gate(other) or "" for other in self._shared if self._modules[other] is module}
        return sorted(other for other in others if other != own and (not own or other.startswith(f"{own}.")))

    def check(self, path: str, side: str) -> None:
        """Refuse what cannot be served whole and by a module's own call: a side, `"skip"`, or its ops (`"source"`).

        Raises:
            UnsupportedFeatureError: The value is split over ranks, belongs to calls that cannot be told apart, or is
                never computed.
        """
        if self.sharded and self._is_sharded(path, side):
            raise UnsupportedFeatureError(
                f"{path}.{side} is split over the ranks of a tensor-parallel engine, and joining the shares is "
                "not supported yet; read a value that every rank holds whole, such as the block's own input or output, "
                "or use tensor_parallel_size=1"
            )
        if self.ambiguous and path in self.ambiguous:
            raise UnsupportedFeatureError(
                f"{' and '.join(self.ambiguous[path])} are one module, called by one parent, so their "
                "calls cannot be told apart; read what the modules around them are given and return"
            )
        value = self.standard.read_as_values.get(path)
        if value is not None and side != "output":
            raise UnsupportedFeatureError(
                f"{path}.{side} is never computed: the engine takes the weights of this module and does not call it, "
                f"so only {path}.output is served, from {value}; read the output of the final norm instead"
            )

    def _is_sharded(self, path: str, side: str) -> bool:
        if side != "source":
            return ("output" if side == "skip" else side) in self.sharded.get(path, ())
        # Between children that split their work, a forward holds shares.
        return path in self.sharded or any(other.rpartition(".")[0] == path for other in self.sharded)

    def __contains__(self, path: str) -> bool:
        """Tell whether there is a module at `path`, which may begin with a standard name or hold aliases."""
        try:
            return self.real_path(self._real_path(path)) in self._modules
        except UnknownLocationError:
            return False

    def _real_path(self, path: str) -> str:
        return path if path in self._modules else self.standard.real_path(path)

    def envoy(self, path: str = "") -> Envoy:
        """Return the envoy at `path`, which may begin with a standard name, always the same one.

        Raises:
            UnknownLocationError: There is no such module.
        """
        from nnsight._envoy.envoy import Envoy

        envoy = self._envoys.get(path)
        if envoy is None:
            real = self._real_path(path)
            if real not in self.standard.read_as_values:
                real = self.real_path(real)
            if real != path:
                return self.envoy(real)
            envoy = self._envoys[path] = Envoy(self, path, self.module(path))
        return envoy

    def path_below(self, module: nn.Module, path: str) -> str | None:
        """Return the path of `module` below that of another, its only one otherwise, or None if it is not here."""
        found = [other for other, candidate in self._modules.items() if candidate is module]
        below = [other for other in found if not path or other.startswith(f"{path}.")]
        return (below or found or [None])[0]  # type: ignore[list-item]

    def split_source(self, path: str) -> tuple[str, list[str] | None]:
        """Split a dotted path at the first `source` that is no module; the names after it are None without one."""
        parts = path.split(".")
        for index, part in enumerate(parts):
            if part == "source" and ".".join(parts[: index + 1]) not in self:
                return ".".join(parts[:index]), parts[index + 1 :]
        return path, None

    @property
    def location_names(self) -> frozenset[str]:
        """The names of the request's own values, and of the layers' standard values."""
        return frozenset(self.values) | self.standard.value_names

    @cached_property
    def holders_of_modules(self) -> frozenset[str]:
        """The names of attributes that lead to modules past the tree, such as a list of some."""
        return holders_of_modules(self.root)

    def paths(self) -> list[str]:
        """Return the path of every module, the root's `""` first."""
        return list(self._modules)

    def unknown(self, path: str, below: str = "") -> UnknownLocationError:
        """Describe a name that is not in the tree, with the nearest ones that are."""
        full = f"{below}.{path}" if below else path
        aliases = [f"{path}.{name}" if path else name for path, names in self.aliases.items() for name in names]
        candidates = [*self._modules, *self.values, *self.helpers, *aliases]
        nearest = difflib.get_close_matches(full, candidates, n=3, cutoff=0.5)
        if not nearest:
            leaf = full.rpartition(".")[2]
            nearest = [name for name in candidates if name.rpartition(".")[2] == leaf][:3]
        refusal = self.standard.refusal(*full.rpartition(".")[::2])
        if refusal is not None:
            hint = "; nearest: " + ", ".join(nearest) if nearest and self.standard.family is None else ""
            return UnknownLocationError(refusal + hint)
        if nearest:
            hint = "nearest: " + ", ".join(nearest)
        else:
            children = [name for name, _ in self._modules.get(below, self.root).named_children()]
            hint = f"{below or 'the model'} has: " + ", ".join(children[:8])
        name = type(self.root).__name__
        return UnknownLocationError(f"{name} has no {full!r}; {hint}; print the model to see its tree")
