"""Where a value of the model can be read or written."""

from __future__ import annotations

from dataclasses import dataclass, field

SIDES = ("input", "inputs", "output")


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
        name: How a block spells it, without the name of the model.
    """

    path: str
    side: str
    ops: tuple[str, ...] = ()
    repeats: bool = False
    name: str = field(init=False)

    def __post_init__(self) -> None:
        """Spell the location once: it is asked for at every visit."""
        parts = [self.path, *(part for op in self.ops for part in ("source", op))]
        if self.side != "value":
            parts.append(self.side)
        object.__setattr__(self, "name", ".".join(part for part in parts if part))

    def __str__(self) -> str:
        """Spell the location as a block does, without the name of the model."""
        return self.name
