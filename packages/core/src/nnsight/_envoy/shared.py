"""Methods of a module: those that change it for every request are refused by name, others lead to modules below it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NoReturn

from torch import nn
from torch.nn.modules import container

from nnsight.errors import UnsupportedFeatureError

# What `nn.Module` offers that computes or tells something; of its other methods each changes the module, and so might
# any that a later version of torch adds.
_TELLING: Final = frozenset(
    "buffers children extra_repr forward get_buffer get_extra_state get_parameter get_submodule modules named_buffers "
    "named_children named_modules named_parameters parameters state_dict _get_name _named_members".split()
)
# Those of them that lead to modules.
LEADING: Final = frozenset("children get_submodule modules named_children named_modules".split())
CHANGING: Final = frozenset(
    name
    for name in dir(nn.Module)
    if name not in _TELLING and not name.startswith("__") and callable(getattr(nn.Module, name))
)
# Of torch's containers; modules of other classes may have methods of these names that compute.
CONTAINER_CHANGING: Final = frozenset("append clear extend insert pop popitem setdefault update".split())
# Where modules, weights and hooks are kept: dicts that are the module's own.
KEPT_INSIDE: Final = frozenset(name for name in vars(nn.Module()) if name.startswith("_"))


class RefusedMethod:
    """Stands for a method that changes its module, and refuses to be called."""

    __slots__ = ("__name__", "_path")

    def __init__(self, path: str, name: str) -> None:
        """Stand for the method `name` of the module at `path`."""
        self._path = path
        self.__name__ = name

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        """Refuse.

        Raises:
            UnsupportedFeatureError: Always; the message says what to do instead.
        """
        raise UnsupportedFeatureError(
            f"{self!r} was called: it changes the module itself, for every request and every later trace, so a model "
            "does not offer it; compute with values and weights instead, such as weight.float(), which makes a new "
            "tensor, and change a module of your own before its model is made, such as NNsight(module.half())"
        )

    def __repr__(self) -> str:
        """Name the method as it was asked for."""
        return f"{self._path or 'the model'}.{self.__name__}()"


def changes_module(module: nn.Module, name: str) -> bool:
    """Tell whether an attribute of a module is a method that changes it."""
    if name in CHANGING:
        found = getattr(module, name)
        # A module may hold data, or a class, under such a name: `type` is one of them.
        return callable(found) and not isinstance(found, type)
    if name in CONTAINER_CHANGING:
        home = next((kind for kind in type(module).__mro__ if name in vars(kind)), None)
        return home is not None and home.__module__ == container.__name__
    return False


def leads_to_modules(module: nn.Module, name: str) -> bool:
    """Tell whether an attribute of a module is the method of `nn.Module` that hands out modules below it."""
    return name in LEADING and getattr(type(module), name) is getattr(nn.Module, name)


def read_only(name: str, found: object) -> object:
    """Return an attribute of a module, the dicts in which it keeps its weights and hooks without their methods."""
    return MappingProxyType(found) if name in KEPT_INSIDE and isinstance(found, dict) else found


def holders_of_modules(root: nn.Module) -> frozenset[str]:
    """Return the names of attributes below `root` that lead to modules past the tree, such as a list of some."""
    return frozenset(
        name
        for module in root.modules()
        for name, value in vars(module).items()
        if name not in KEPT_INSIDE and _holds_module(value)
    )


def _holds_module(value: Any) -> bool:
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple | set):
        return isinstance(value, nn.Module)
    return any(isinstance(item, nn.Module) for item in value)
