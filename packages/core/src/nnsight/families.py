"""Families of models: where the standard names are found in models of one architecture.

A plugin answers the hook `resolve_standard_names` with a `ModelFamily`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

MODULE_NAMES = ("layers", "embed", "final_norm", "unembed")
# In the order in which a layer computes them.
VALUE_NAMES = ("resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post")


@dataclass(frozen=True)
class Argument:
    """An argument of a module's call, however the call is written.

    Attributes:
        position: Its position among the positional arguments.
        name: Its keyword.
    """

    position: int
    name: str


@dataclass(frozen=True)
class LayerArgument(Argument):
    """An argument of the layer's own call that is under way."""


@dataclass(frozen=True)
class StandardValue:
    """Where one standard value of a layer is found.

    The value is a tensor at a location, or the sum of that tensor and another, `plus`. A write changes the tensor at
    the location alone: it becomes the new value less `plus`.

    Attributes:
        module: Path of the module below the layer; `""` for the layer itself.
        side: `"input"`, `"inputs"` or `"output"` of the module.
        part: The tensor: an item of a tuple, where a lone tensor counts as item 0, or with `"inputs"` an `Argument`.
        plus: What is added to it: another item or argument of the same location, an argument of the layer's call, or
            None. An argument that is None in a call adds nothing.
    """

    module: str
    side: str
    part: int | Argument = 0
    plus: int | Argument | None = None


@dataclass(frozen=True)
class ModelFamily:
    """Models whose standard names are found in the same places.

    Attributes:
        package: Top-level package of the root modules' classes, such as `"transformers"`.
        classes: Names of these classes.
        layers: Path of the module list that holds the layers.
        embed: Path of the token embedding.
        final_norm: Path of the norm after the last layer.
        unembed: Path of the module that turns hidden states into logits; None for a model without one.
        values: Each layer's standard values by name, of `VALUE_NAMES`, without those that the architecture has not.
        unembed_value: The request's own value that is read as the output of `unembed`, such as `"logits"`, where the
            module itself is never called.
    """

    package: str
    classes: tuple[str, ...]
    layers: str
    embed: str
    final_norm: str
    unembed: str | None
    values: Mapping[str, StandardValue] = field(default_factory=dict)
    unembed_value: str | None = None

    def fits(self, root: nn.Module) -> bool:
        """Tell whether a model belongs to the family by its class, or by the class that a user's own derives from."""
        for kind in type(root).__mro__:
            if kind.__module__.partition(".")[0] == self.package:
                return kind.__name__ in self.classes
        return False


def find_family(families: Iterable[ModelFamily], root: nn.Module) -> ModelFamily | None:
    """Return the first family that a model belongs to."""
    return next((family for family in families if family.fits(root)), None)
