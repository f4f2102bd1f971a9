"""What a backend is given to run, and what it gives back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nnsight._interleave import Receipt

if TYPE_CHECKING:
    from nnsight._program import Program


@dataclass(frozen=True)
class Request:
    """One invoke: a program and the input that it runs beside.

    Attributes:
        program: The captured block.
        prepared: The input as the backend prepared it, checked.
        binds: Whether what the block saved is bound to the variables around the trace; a block that stands in another
            function than its trace leaves them alone.
    """

    program: Program
    prepared: Any
    binds: bool = True


@dataclass
class Outcome:
    """What became of one request.

    Attributes:
        named: Saved values by variable.
        unnamed: Saved values that were bound to no variable, by their source text.
        changes: Changes of containers that were saved outside the block.
        result: The finished output of the request.
        error: What ended the block or the request early.
        receipt: What was served and changed.
        exports: Variables that later invokes of the trace need; from another process, as it wrote them.
    """

    named: dict[str, object] = field(default_factory=dict)
    unnamed: dict[str, object] = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)
    result: Any = None
    error: BaseException | None = None
    receipt: Receipt = field(default_factory=Receipt)
    exports: dict[str, object] = field(default_factory=dict)

    @property
    def saves(self) -> dict[str, object]:
        """Everything saved, by variable or source text."""
        return {**self.unnamed, **self.named}
