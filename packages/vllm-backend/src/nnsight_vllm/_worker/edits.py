"""The edits that a worker was sent: each is read once, and started anew beside every request that runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from nnsight._interleave import Budget
from nnsight._program.containers import own_copies
from nnsight._program.failures import describe_error
from nnsight.errors import EngineError, InvalidRequestError
from nnsight_vllm._edits import TravellingEdit

if TYPE_CHECKING:
    from nnsight._program import Program


@dataclass(frozen=True)
class InstalledEdit:
    """One edit.

    Attributes:
        name: What its user calls it.
        program: Its block.
        budget: What its functions count for, whichever request calls them.
    """

    name: str
    program: Program
    budget: Budget

    def begin(self, limits: Mapping[str, int | None]) -> tuple[dict[str, object], Budget]:
        """Return the values and the budget of a run: runs share the count of steps, and each holds its own bytes."""
        budget = Budget(byte_budget=limits.get("byte_budget"))
        budget.steps = self.budget.steps
        return self.values(), budget

    def values(self) -> dict[str, object]:
        """Return the values of a run, whose containers no other run is given."""
        return own_copies(self.program.values)


class InstalledEdits:
    """The edits of a worker, by key."""

    def __init__(self, read: Callable[[bytes], tuple[Program, Budget]]) -> None:
        """Hold edits whose programs `read` reads."""
        self._read = read
        self._edits: dict[str, InstalledEdit] = {}

    def install(self, data: bytes) -> bytes:
        """Read an edit.

        Args:
            data: A `TravellingEdit`, written.

        Returns:
            Nothing, or why its program could not be read, as `describe_error` tells it, in msgpack.
        """
        edit = TravellingEdit.read(data)
        try:
            self._edits[edit.key] = InstalledEdit(edit.name, *self._read(edit.program))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told to whoever installs the edit
            return msgspec.msgpack.encode(describe_error(error))
        return b""

    def forget(self, data: bytes) -> bytes:
        """Forget edits that no request will ask for.

        Args:
            data: Their keys in msgpack.

        Returns:
            How many edits are left.
        """
        for key in msgspec.msgpack.decode(data):
            self._edits.pop(key, None)
        return str(len(self._edits)).encode()

    def find(self, keys: Sequence[str] | None) -> list[InstalledEdit]:
        """Return edits by their keys, in order.

        Raises:
            EngineError: Our part of the engine core never saw the request, so nothing was decided for it.
            InvalidRequestError: One of the edits was cleared.
        """
        if keys is None:
            raise EngineError(
                "the request did not pass through nnsight's part of the engine core, which keeps what it changes out "
                "of the prefix cache; the core must load the entry point vllm.general_plugins: if VLLM_PLUGINS is set "
                "it must include 'nnsight'"
            )
        gone = [key for key in keys if key not in self._edits]
        if gone:
            raise InvalidRequestError(
                f"{len(gone)} of the edits that were chosen for the request are cleared; choose edits of model.edits"
            )
        return [self._edits[key] for key in keys]
