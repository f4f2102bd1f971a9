"""Standard values that one visit hands out: tensors of the location's value, and sums with one of them.

A sum is a tensor of the block's own. When the block changed it, the change is folded into the location's value: the
tensor there becomes the sum less what was added to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from nnsight._interleave.structure import describe
from nnsight.errors import UnsupportedFeatureError
from nnsight.families import Argument

if TYPE_CHECKING:
    from nnsight._interleave.location import Location

Tensor = torch.Tensor


@dataclass(slots=True)
class Sum:
    """One sum that was handed out.

    Attributes:
        location: The standard value.
        tensor: The sum.
        version: The tensor's version when it was in agreement with its terms.
        terms: What was added up.
        versions: The versions of the terms then.
        handed: Whether the block was handed it, rather than brought it.
    """

    location: Location
    tensor: Tensor
    version: int
    terms: tuple[Any, Any]
    versions: tuple[int, int]
    handed: bool

    @classmethod
    def of(cls, location: Location, tensor: Tensor, terms: tuple[Any, Any], *, handed: bool) -> Sum:
        """Note a sum in agreement with its terms."""
        versions = (version_of(terms[0]), version_of(terms[1]))
        return cls(location, tensor, version_of(tensor), terms, versions, handed)

    def is_changed(self) -> bool:
        """Tell whether the block changed the sum."""
        return version_of(self.tensor) != self.version

    def is_sum_of(self, terms: tuple[Any, Any]) -> bool:
        """Tell whether these are the terms, as they were."""
        same = self.terms[0] is terms[0] and self.terms[1] is terms[1]
        return same and self.versions == (version_of(terms[0]), version_of(terms[1]))


def version_of(value: object) -> int:
    """Return how often a tensor was changed in place; 0 for what does not count."""
    return value._version if isinstance(value, Tensor) and not value.is_inference() else 0


def outside_inference(make: Callable[[], Tensor]) -> Tensor:
    """Make a tensor that counts its versions, in the block's own grad mode."""
    if not torch.is_inference_mode_enabled():
        return make()
    with torch.inference_mode(mode=False), torch.set_grad_enabled(torch.is_grad_enabled()):
        return make()


def select(value: Any, part: int | Argument, where: str) -> Any:
    """Return one item of a value, where a lone tensor is its own item 0, or one argument of a call.

    Args:
        value: An output or input, or with an argument `(positional, keywords)`.
        part: Which one.
        where: How a block spells it.

    Raises:
        UnsupportedFeatureError: There is no such part.
    """
    if isinstance(part, Argument):
        args, kwargs = value
        return args[part.position] if part.position < len(args) else kwargs.get(part.name)
    if isinstance(value, Tensor | int | float) and part == 0:
        return value
    if isinstance(value, tuple | list) and part < len(value):
        return value[part]
    raise UnsupportedFeatureError(
        f"{where} is to be found in {describe(value)}, as item {part}, which it has not: the family of the model does "
        "not fit this model; read the outputs and inputs of its modules instead"
    )


def replaced(value: Any, part: int | Argument, new: object) -> Any:
    """Return a value like `value` with another tensor in one place."""
    if isinstance(part, Argument):
        args, kwargs = value
        if part.position < len(args):
            return replaced(args, part.position, new), kwargs
        return args, {**kwargs, part.name: new}
    if isinstance(value, tuple | list):
        items = [new if index == part else item for index, item in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    return new
