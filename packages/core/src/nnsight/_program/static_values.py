"""What is known of a value before a block runs: modules, tensors of the model by place, and kinds of constants."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_origin

import numpy as np
import torch
from torch import nn

from nnsight._envoy import Envoy
from nnsight._envoy.envoy import is_standard_module, module_of, path_of
from nnsight._source import forward_of
from nnsight.families import VALUE_NAMES

if TYPE_CHECKING:
    from nnsight._envoy import ModelTree


class Unproven(Exception):
    """Nothing is known of this."""


class Scalar:
    """The kind of a number, which is the same for every element."""


class Row:
    """The kind of a vector, which is the same for every row."""


Kind = type[Scalar] | type[Row]


@dataclass(frozen=True)
class TensorPlace:
    """A tensor of the model, by where it is read.

    Attributes:
        inside_layer: Whether it is inside one of the model's layers, which run for every token.
        module: The module whose output it is, or is in.
        whole: Whether it is all of the output.
    """

    inside_layer: bool
    module: nn.Module
    whole: bool


def output_place(envoy: Envoy) -> TensorPlace:
    """Return the place of a module's output."""
    tree: ModelTree = envoy._tree
    if path_of(envoy) in tree.standard.read_as_values:
        raise Unproven
    return TensorPlace(_inside_layer(envoy), module_of(envoy), whole=True)


def item_place(place: TensorPlace, index: object) -> TensorPlace:
    """Return the place of an item of an output that is known to be a tuple.

    Raises:
        Unproven: The output may be a tensor, of which the item would be a row.
    """
    if type(index) is not int or not place.whole or not _returns_tuple(place.module):
        raise Unproven
    return TensorPlace(place.inside_layer, place.module, whole=False)


def static_child(envoy: Envoy, name: str) -> object:
    """Return a module below another, or the place of a layer's standard value.

    Raises:
        Unproven: It is something else.
    """
    if name in envoy._tree.children(path_of(envoy)) or is_standard_module(envoy, name):
        child = getattr(envoy, name)
        if isinstance(child, Envoy):
            return child
    elif name in VALUE_NAMES and envoy._standard_location(name) is not None:
        return TensorPlace(_inside_layer(envoy), module_of(envoy), whole=False)
    raise Unproven


def static_member(envoy: Envoy, path: str) -> Envoy:
    """Return a module by its path from another."""
    for name in path.split("."):
        found = static_child(envoy, name)
        if not isinstance(found, Envoy):
            raise Unproven
        envoy = found
    return envoy


def static_items(owner: object, index: object) -> object:
    """Return an item of a sequence of modules or of a constant collection; without an index, all modules."""
    if isinstance(owner, Envoy):
        module = module_of(owner)
        if not isinstance(module, nn.ModuleList | nn.Sequential):
            raise Unproven
        if index is None:
            return list(owner)
        if type(index) is not int or not -len(module) <= index < len(module):
            raise Unproven
        return owner[index]
    if isinstance(owner, list | tuple | range | torch.Tensor | np.ndarray) and type(index) is int:
        if isinstance(owner, torch.Tensor | np.ndarray) and owner.ndim == 0:
            raise Unproven
        if not -len(owner) <= index < len(owner):
            raise Unproven
        return owner[index]
    if isinstance(owner, Mapping) and type(index) in (int, str) and index in owner:
        return owner[index]
    raise Unproven


def constant_kind(value: object) -> Kind:
    """Return the kind of a constant.

    Raises:
        Unproven: It may differ from row to row, or is no number at all.
    """
    if value is Scalar or isinstance(value, int | float | np.generic):
        return Scalar
    if value is Row:
        return Row
    if isinstance(value, torch.Tensor | np.ndarray):
        if all(size == 1 for size in value.shape):
            return Scalar
        if all(size == 1 for size in value.shape[:-1]):
            return Row
    raise Unproven


def joined(one: Kind, other: Kind) -> Kind:
    """Return the kind of what is computed from two constants."""
    return Row if Row in (one, other) else Scalar


def columns_kind(value: object) -> Kind:
    """Tell whether an index of columns selects one of them or several."""
    if isinstance(value, bool):
        raise Unproven
    if type(value) is int:
        return Scalar
    if isinstance(value, list | tuple | range) and all(type(each) is int for each in value):
        return Row
    if isinstance(value, torch.Tensor | np.ndarray) and value.ndim <= 1:
        whole = (torch.bool, torch.int64, torch.int32, np.dtype("bool"), np.dtype("int64"), np.dtype("int32"))
        if value.dtype in whole and not (value.ndim == 0 and value.dtype in (torch.bool, np.dtype("bool"))):
            return Row if value.ndim else Scalar
    raise Unproven


def _returns_tuple(module: nn.Module) -> bool:
    """Tell whether a module's forward is declared to return a tuple, and nothing else."""
    try:
        declared = inspect.signature(forward_of(module)).return_annotation
    except (TypeError, ValueError):
        return False
    if isinstance(declared, str):
        text = declared.strip()
        opened = text.lower().removeprefix("typing.").startswith("tuple[")
        return opened and _closes_at_end(text)
    return declared is tuple or get_origin(declared) is tuple


def _closes_at_end(text: str) -> bool:
    """Tell whether the first bracket of a text is closed by its last character."""
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "[") - (character == "]")
        if character == "]" and depth == 0:
            return position == len(text) - 1
    return False


def _inside_layer(envoy: Envoy) -> bool:
    family = envoy._tree.standard.family
    return (
        family is not None and f"{path_of(envoy)}.".startswith(f"{family.layers}.") and path_of(envoy) != family.layers
    )
