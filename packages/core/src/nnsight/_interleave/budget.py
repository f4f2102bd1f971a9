"""How much a block may run and hold before its request is ended.

Both are counted in the same way on every rank of an engine: no clock is read, and nothing that depends on what else
runs in the process.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, repeat
from typing import Any, Final
from weakref import ref

import torch

from nnsight.errors import BudgetExceededError, InvalidRequestError

# Counts are handed out in lots of so many, so that nothing of Python runs for each.
_LOT: Final = 4096
# The block's values are looked over after so many copies at least, and then less often the more there are.
_FEW: Final = 8


def check_limit(name: str, limit: object) -> int | None:
    """Return a limit that a caller gave.

    Raises:
        InvalidRequestError: It is neither a whole number above zero nor None.
    """
    if limit is None or (type(limit) is int and limit > 0):
        return limit
    raise InvalidRequestError(f"{name}={limit!r} is no limit; give a whole number above zero, or None for no limit")


class Budget:
    """The limits of one block.

    Attributes:
        steps: Counts iterations and calls; None without a limit.
        bytes: Counts what the block holds; None without a limit.
    """

    __slots__ = ("bytes", "steps")

    def __init__(self, *, step_budget: int | None = None, byte_budget: int | None = None) -> None:
        """Limit a block.

        Args:
            step_budget: How many iterations of loops and calls of functions it may run in each step of its request.
            byte_budget: How many bytes it may hold: copies that it was handed and keeps, and what it saved.
        """
        self.steps = None if step_budget is None else StepBudget(step_budget)
        self.bytes = None if byte_budget is None else ByteBudget(byte_budget)

    def renew(self) -> None:
        """Begin a step of the request."""
        if self.steps is not None:
            self.steps.renew()


class StepBudget:
    """Counts the iterations and calls of one block.

    Attributes:
        limit: How many there may be in each step of the request.
        counts: Yields True for each of them, and raises `BudgetExceededError` for every one too many.
    """

    def __init__(self, limit: int) -> None:
        """Begin with nothing counted."""
        self.limit = limit
        self._lots = _Lots(limit)
        self.counts: Iterator[bool] = chain.from_iterable(self._lots)

    def renew(self) -> None:
        """Begin a step of the request; what is left of a lot stays, so that a step may have some counts more."""
        self._lots.left = self.limit


class _Lots:
    """Yields lots of counts; the last one is endless and raises.

    Attributes:
        left: How many counts are left for this step.
    """

    def __init__(self, limit: int) -> None:
        self.left = limit
        self._limit = limit

    def __iter__(self) -> _Lots:
        return self

    def __next__(self) -> Iterator[bool]:
        lot = min(_LOT, self.left)
        if lot <= 0:
            return _Spent(self)
        self.left -= lot
        return repeat(True, lot)

    def refusal(self) -> BudgetExceededError:
        return BudgetExceededError(
            f"the block ran {self._limit:,} iterations of loops and calls of functions in one step of its request, "
            "which is its step budget: its loop may never end. If it is meant to run on, build the model with a larger "
            f"one, such as step_budget={self._limit * 10}; None sets no limit"
        )


class _Spent:
    """Raises for every count, until the budget is renewed."""

    def __init__(self, lots: _Lots) -> None:
        self._lots = lots

    def __iter__(self) -> _Spent:
        return self

    def __next__(self) -> bool:
        if self._lots.left <= 0:
            raise self._lots.refusal()
        raise StopIteration


class ByteBudget:
    """Counts the memory that one block holds.

    Copies are noted as they are handed out, by weak references, so that what the block lets go of counts no longer, and
    what it saved, which may be a list that grows, is added up from time to time. Both sums may be too large, since a
    copy may be gone or saved: only where they exceed the limit is each piece of memory looked at.

    Attributes:
        limit: How many bytes it may hold.
        saved: Returns the values that the block has saved.
    """

    __slots__ = ("_charged", "_copies", "_slack", "_until_pruned", "_until_sum", "limit", "saved")

    def __init__(self, limit: int) -> None:
        """Begin with nothing held."""
        self.limit = limit
        self.saved: Callable[[], Iterable[object]] = tuple
        # So much is handed out between two close looks at least.
        self._slack = limit // 16
        self._copies: list[ref[torch.Tensor]] = []
        self._charged = 0
        self._until_sum = _FEW
        self._until_pruned = _LOT

    def note(self, copy: torch.Tensor) -> None:
        """Note a copy that the block was handed."""
        self._copies.append(ref(copy))
        self._charged += _size(copy)
        self._until_sum -= 1

    def refuse_overrun(self) -> None:
        """Refuse to go on where the block holds too much.

        Raises:
            BudgetExceededError: It does.
        """
        if self._charged <= self.limit + self._slack and self._until_sum > 0:
            return
        saved = _Sum()
        saved.add(self.saved())
        self._until_sum = _FEW + saved.count
        if self._charged + saved.total <= self.limit:
            if len(self._copies) > self._until_pruned:
                self._prune()
            return
        if self._look() <= self.limit:
            return
        # When garbage is collected depends on all that runs in the process, and must not decide.
        gc.collect()
        if self._look() > self.limit:
            raise BudgetExceededError(
                f"the block holds {_spell(self._charged)} in what it saved and in copies that it keeps, which is more "
                f"than its byte budget of {_spell(self.limit)}. Keep less: save the rows or the layers that you need, "
                "or what you compute from them, and let variables go that are done with; or build the model with a "
                f"larger byte_budget, such as byte_budget={2 * self._charged}; None sets no limit"
            )

    def _prune(self) -> list[torch.Tensor]:
        """Forget copies that are gone, and return the others."""
        alive = [tensor for copy in self._copies if (tensor := copy()) is not None]
        self._copies = [ref(tensor) for tensor in alive]
        self._until_pruned = _LOT + 2 * len(alive)
        return alive

    def _look(self) -> int:
        """Count each piece of memory that is alive once."""
        held = _Held()
        for tensor in self._prune():
            held.add_tensor(tensor)
        held.add(self.saved())
        self._charged = held.total
        self._until_sum = _FEW + held.count + len(self._copies)
        return held.total


class _Sum:
    """The size of values; memory that several of them share counts for each."""

    def __init__(self) -> None:
        self.total = 0
        self.count = 0
        self._seen: set[int] = set()

    def add(self, values: Iterable[object]) -> None:
        """Add values, and what containers among them hold."""
        waiting: list[Any] = list(values)
        seen = self._seen
        while waiting:
            value = waiting.pop()
            self.count += 1
            if isinstance(value, torch.Tensor):
                self.add_tensor(value)
            elif isinstance(value, list | tuple | dict | set | frozenset):
                if id(value) not in seen:
                    seen.add(id(value))
                    waiting.extend(value.values() if isinstance(value, dict) else value)
            elif isinstance(value, str | bytes | bytearray):
                if id(value) not in seen:
                    seen.add(id(value))
                    self.total += len(value)
            elif type(value).__module__ == "numpy" and id(value) not in seen:
                seen.add(id(value))
                self.total += value.nbytes

    def add_tensor(self, tensor: torch.Tensor) -> None:
        """Add the size of a tensor."""
        self.total += _size(tensor)


class _Held(_Sum):
    """The memory behind values, each piece counted once."""

    def __init__(self) -> None:
        super().__init__()
        self._memory: set[tuple[torch.device, int]] = set()

    def add_tensor(self, tensor: torch.Tensor) -> None:
        """Add the memory of a tensor, which other tensors may share."""
        try:
            storage = tensor.untyped_storage()
            size, place = storage.nbytes(), (tensor.device, storage.data_ptr())
        except (NotImplementedError, RuntimeError):
            # Sparse tensors have no one storage, and others no memory.
            return
        if place[1] and place not in self._memory:
            self._memory.add(place)
            self.total += size


def _size(tensor: torch.Tensor) -> int:
    try:
        return tensor.nbytes
    except (NotImplementedError, RuntimeError):
        # Of sparse tensors it is not defined.
        return 0


def _spell(size: int) -> str:
    number = float(size)
    for unit in ("bytes", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "bytes" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} GiB"
