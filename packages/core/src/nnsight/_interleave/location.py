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
    """One side of one module, or a value of the request such as its logits.

    Each envoy makes its locations once, so they are compared by identity.

    Attributes:
        path: Dotted path of the module from the root, `""` for the root itself, or the name of a value.
        side: `"input"` (first positional argument), `"inputs"` (all arguments), `"output"`, or `"value"`.
        standard: What it is at the side of the module, where it is a standard value.
        name: How a block spells it, without the name of the model.
    """

    path: str
    side: str
    standard: Standard | None = field(default=None, kw_only=True, repr=False)
    name: str = field(init=False)

    def __post_init__(self) -> None:
        """Spell the location once: it is asked for at every visit."""
        name = self.path
        if self.side != "value":
            name = f"{self.path}.{self.side}" if self.path else self.side
        if self.standard is not None:
            name = self.standard.name
        object.__setattr__(self, "name", name)

    def __str__(self) -> str:
        """Spell the location as a block does, without the name of the model."""
        return self.name

    @property
    def place(self) -> Location:
        """The location that is waited for; several standard values may be computed from one."""
        return self if self.standard is None else self.standard.place
