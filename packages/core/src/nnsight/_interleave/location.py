"""Where a value of the model can be read or written."""

from __future__ import annotations

from dataclasses import dataclass

SIDES = ("input", "inputs", "output")


@dataclass(frozen=True, slots=True, eq=False)
class Location:
    """One side of one module, or a value of the request such as its logits.

    Each envoy makes its locations once, so they are compared by identity.

    Attributes:
        path: Dotted path of the module from the root, `""` for the root itself, or the name of a value.
        side: `"input"` (first positional argument), `"inputs"` (all arguments), `"output"`, or `"value"`.
    """

    path: str
    side: str

    def __str__(self) -> str:
        """Spell the location as a block does, without the name of the model."""
        if self.side == "value":
            return self.path
        return f"{self.path}.{self.side}" if self.path else self.side
