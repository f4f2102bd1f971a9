"""An edit on its way to an engine: what its core decides by, and the program for the workers."""

from __future__ import annotations

import hashlib
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Final, Literal

import msgspec

if TYPE_CHECKING:
    from nnsight._program import Effects

# Methods of the worker that collective calls reach; the engine core notes them too.
INSTALL: Final = "nnsight_install"
UNINSTALL: Final = "nnsight_uninstall"

# What an edit does to the model: nothing, the same at every row, or anything.
Kind = Literal["reads", "every_row", "free"]


@dataclass(frozen=True)
class TravellingEdit:
    """One edit.

    Attributes:
        key: Tells it apart from all others.
        name: What its user calls it.
        kind: What it does to the model.
        whole: Whether a prompt must be computed in one step beside it.
        fingerprint: The same for programs that do the same: with equal sources and equal values.
        program: The program as it travels.
    """

    key: str
    name: str
    kind: Kind
    whole: bool
    fingerprint: str
    program: bytes

    @classmethod
    def of(cls, key: str, name: str, effects: Effects, program: bytes) -> TravellingEdit:
        """Make an edit of a program and its summary."""
        kind: Kind = "reads" if effects.read_only else "every_row" if effects.every_row else "free"
        return cls(key, name, kind, not effects.follows_pieces, hashlib.sha256(program).hexdigest(), program)

    def written(self) -> bytes:
        """Write it for a collective call."""
        return msgspec.msgpack.encode(astuple(self))

    @classmethod
    def read(cls, data: bytes) -> TravellingEdit:
        """Read what `written` gave."""
        return cls(*msgspec.msgpack.decode(data))
