"""The standard names of a model, and what each stands for in its tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nnsight.families import MODULE_NAMES, VALUE_NAMES, Argument, LayerArgument, StandardValue
from nnsight_cli.tree_listing import matches, spans

if TYPE_CHECKING:
    from torch import nn

    from nnsight.families import ModelFamily


@dataclass
class StandardLine:
    """One standard name, of the model or of several layers.

    Attributes:
        location: The name as `model.get` takes it, with `*` for the number of a layer.
        stands_for: Where it is found in the model's own names.
        locations: The name of each.
        numbers: Which layers have it, such as `0-31`; empty for a name without `*`.
    """

    location: str
    stands_for: str
    locations: list[str]
    numbers: str = ""


def standard_listing(
    modules: Mapping[str, nn.Module], family: ModelFamily | None, *, pattern: str | None = None, fold: bool = True
) -> list[StandardLine]:
    """List the standard names of a model, or those that a pattern picks.

    Args:
        modules: The modules of the tree by path, the root's `""` among them.
        family: Where the model has its standard names; None where that is not known.
        pattern: A glob over their locations, which begin with `layers` or with the path of the layers.
        fold: Write a value of all layers as one line.
    """
    if family is None:
        return []
    lines = []
    for name in MODULE_NAMES:
        path: str | None = getattr(family, name)
        # A module of the model's own with such a name wins.
        if path is not None and not hasattr(modules[""], name) and (pattern is None or matches(name, pattern)):
            lines.append(StandardLine(name, _module(family, name, path), [name]))
    layers = list(_layers(modules, family))
    for name in (name for name in VALUE_NAMES if name in family.values):
        picked = [
            number
            for number in layers
            if not hasattr(modules[f"{family.layers}.{number}"], name)
            and (pattern is None or any(matches(f"{above}.{number}.{name}", pattern) for above in _above(family)))
        ]
        groups = [picked] if fold else [[number] for number in picked]
        for numbers in (group for group in groups if group):
            star = str(numbers[0]) if len(numbers) == 1 else "*"
            found = spelled(family.values[name], f"{family.layers}.{star}")
            names = [f"layers.{number}.{name}" for number in numbers]
            lines.append(StandardLine(f"layers.{star}.{name}", found, names, spans(numbers) if star == "*" else ""))
    return lines


def spelled(value: StandardValue, layer: str) -> str:
    """Say where a standard value of a layer is found: `model.layers.*.output[0] + [1]`."""
    place = f"{layer}.{value.module}" if value.module else layer
    added = "" if value.plus is None else f" + {_part(value.plus)}"
    if isinstance(value.part, Argument):
        return f"{place}.{value.side}: {_part(value.part)}{added}"
    # A lone tensor counts as the first item of a tuple, so that the index alone does not tell which it is.
    alone = value.part == 0 and not isinstance(value.plus, int)
    return f"{place}.{value.side}{'' if alone else _part(value.part)}{added}"


def _part(part: int | Argument) -> str:
    if isinstance(part, int):
        return f"[{part}]"
    return f"the layer's {part.name}" if isinstance(part, LayerArgument) else part.name


def _module(family: ModelFamily, name: str, path: str) -> str:
    if name == "unembed" and family.unembed_value is not None:
        return f"{path}, with the output model.{family.unembed_value}"
    return path


def _layers(modules: Mapping[str, nn.Module], family: ModelFamily) -> Iterator[int]:
    """Return the numbers of the layers."""
    for path in modules:
        above, _, number = path.rpartition(".")
        if above == family.layers and number.isdecimal():
            yield int(number)


def _above(family: ModelFamily) -> tuple[str, str]:
    return "layers", family.layers
