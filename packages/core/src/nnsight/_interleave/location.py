"""Where a value of the model can be read or written."""

from __future__ import annotations

from dataclasses import dataclass, field

SIDES = ("input", "inputs", "output")


@dataclass(frozen=True, eq=False)
class Location:
    """One side of one module, or a value of the request such as its logits.

    Each envoy makes its locations once, so they are compared by identity.

    Attributes:
        path: Dotted path of the module from the root, `""` for the root itself, or the name of a value.
        side: `"input"` (first positional argument), `"inputs"` (all arguments), `"output"`, or `"value"`.
        name: How a block spells it, without the name of the model.
    """

    path: str
    side: str
    name: str = field(init=False)

    def __post_init__(self) -> None:
        """Spell the location once: it is asked for at every visit."""
        name = self.path
        if self.side != "value":
            name = f"{self.path}.{self.side}" if self.path else self.side
        object.__setattr__(self, "name", name)

    def __str__(self) -> str:
        """Spell the location as a block does, without the name of the model."""
        return self.name
