"""What a receiver accepts from a message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Limits:
    """What a receiver accepts from a message.

    The defaults accept data only: no module is imported and no class is instantiated by name. A sender that may run
    code here anyway, such as a client's own worker, is read with `allow_objects=True`.

    Attributes:
        max_bytes: The most bytes of a whole message.
        max_depth: The deepest nesting of values.
        max_nodes: The most items of a message's header, and the most steps its decoding may take.
        allow_objects: Whether modules, functions and classes may be named, and objects of those classes made.
        allowed_module: Which module names may be imported when `allow_objects` is set; every one when it is None.
    """

    max_bytes: int = 1 << 34
    max_depth: int = 120
    max_nodes: int = 10_000_000
    allow_objects: bool = False
    allowed_module: Callable[[str], bool] | None = None

    def allows_module(self, name: str) -> bool:
        """Say whether a name of this module may be looked up.

        Args:
            name: A module's dotted name.
        """
        return self.allow_objects and (self.allowed_module is None or self.allowed_module(name))
