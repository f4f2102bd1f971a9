"""Where a value of the model can be read or written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nnsight.families import StandardValue

SIDES = ("input", "inputs", "output")


@dataclass(frozen=True, eq=False)
class Standard:
    """What makes a location a standard value.

    Attributes:
        layer: Path of the layer.
        name: How a block spells the value, such as `model.layers.3.resid_post`.
        value: How it is computed and written.
        place: The location that it is computed from.
    """

    layer: str
    name: str
    value: StandardValue
    place: Location


@dataclass(frozen=True, eq=False)
class Location:
    """One side of one module or of an op in it, or a value of the request such as its logits.

    Each envoy makes its locations once, so they are compared by identity.

    Attributes:
        path: Dotted path of the module from the root, `""` for the root itself, or the name of a value.
        side: `"input"` (first positional argument), `"inputs"` (all arguments), `"output"`, `"skip"` (before it runs,
            to put a value in its place), or `"value"`.
        ops: The op in the module's forward, then the op in the function which that one calls, and so on.
        repeats: Whether it may be reached several times in one call of the module, so that each read waits anew.
        standard: What it is at the side of the module, where it is a standard value.
        name: How a block spells it, without the name of the model.
        place: The location that is waited for; several standard values may be computed from one.
    """

    path: str
    side: str
    ops: tuple[str, ...] = ()
    repeats: bool = False
    standard: Standard | None = field(default=None, kw_only=True, repr=False)
    name: str = field(init=False)
    place: Location = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Spell the location once: it is asked for at every visit."""
        parts = [self.path, *(part for op in self.ops for part in ("source", op))]
        if self.side != "value":
            parts.append(self.side)
        name = ".".join(part for part in parts if part)
        if self.standard is not None:
            name = self.standard.name
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "place", self if self.standard is None else self.standard.place)

    def __str__(self) -> str:
        """Spell the location as a block does, without the name of the model."""
        return self.name
