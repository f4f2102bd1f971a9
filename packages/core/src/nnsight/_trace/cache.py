"""What `tracer.cache(...)` returns: the recorded calls of modules, by path."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from nnsight._interleave.recording import Withheld
from nnsight._interleave.visit import MISSING
from nnsight.errors import UnknownLocationError, UntransferableValueError

if TYPE_CHECKING:
    import torch

    from nnsight._interleave.recording import RecordedCall


class CachedModule:
    """The recorded calls of one module, and of those below it.

    `output`, `input` and `inputs` are those of its call, or a list of them where it was called more than once, as it is
    in a request of several steps; `steps[k]` has those of step `k` alone. A module below it is an attribute or an item:
    `cache.model.layers[3].mlp` is `cache["model.layers.3.mlp"]`. A module whose name is one of these words is reached
    by its path.
    """

    def __init__(self, calls: dict[str, list[RecordedCall]], path: str = "", step: int | None = None) -> None:
        """Look at the calls below a path, of one step or of all."""
        self._calls = calls
        self._path = path
        self._step = step

    @property
    def output(self) -> Any:
        """What the module returned."""
        return self._values("output")

    @property
    def inputs(self) -> Any:
        """What the module was given, as `(positional, keywords)`."""
        return self._values("inputs")

    @property
    def input(self) -> Any:
        """The module's first argument; None where it was given none."""
        return self._values("inputs", lambda inputs: next(iter((*inputs[0], *inputs[1].values())), None))

    @property
    def steps(self) -> dict[int, CachedModule]:
        """The steps in which something of the module, or below it, was recorded."""
        found = {call.step for path in self._below() for call in self._own_calls(path)}
        return {step: CachedModule(self._calls, self._path, step) for step in sorted(found)}

    def keys(self) -> list[str]:
        """Return the full paths of the modules that were called, itself and below, in the order of their calls."""
        return [path for path in self._below() if self._own_calls(path)]

    def __getattr__(self, name: str) -> CachedModule:
        """Return a module below."""
        if name in ("output", "input", "inputs"):
            # The property of that name has found nothing.
            raise self._missing("output" if name == "output" else "inputs")
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, path: str | int) -> CachedModule:
        """Return a module below, by its path from here or its number in a list of modules."""
        if isinstance(path, int) and path < 0:
            numbers = [int(name) for name in self._children() if name.isdecimal()]
            path = max(numbers, default=-1) + 1 + path
        full = f"{self._path}.{path}" if self._path else str(path)
        if not any(_is_below(other, full) for other in self._calls):
            nearest = difflib.get_close_matches(full, self._calls, n=3, cutoff=0.5)
            hint = (
                f"nearest: {', '.join(nearest)}" if nearest else f"it has: {', '.join(list(self._calls)[:8]) or 'none'}"
            )
            raise UnknownLocationError(
                f"the cache has no call of {full!r}; {hint}; a cache has the modules that it was asked for and that "
                "were called after `tracer.cache()`"
            )
        return CachedModule(self._calls, full, self._step)

    def __contains__(self, path: object) -> bool:
        """Tell whether a module of that path from here was recorded."""
        full = f"{self._path}.{path}" if self._path else path
        return full in self._calls

    def __iter__(self) -> Iterator[str]:
        """Iterate over `keys()`."""
        return iter(self.keys())

    def __len__(self) -> int:
        """Count the modules."""
        return len(self.keys())

    def __bool__(self) -> bool:
        """Count as true, also while nothing is recorded."""
        return True

    def __dir__(self) -> list[str]:
        """List the modules below for completion."""
        return sorted({*object.__dir__(self), *self._children()})

    def __repr__(self) -> str:
        """Say what was recorded."""
        steps = len(self.steps)
        return f"<{type(self).__name__} of {self._path or 'the model'}: {len(self)} module(s), {steps} step(s)>"

    def _values(self, side: str, part: Callable[[Any], Any] = lambda value: value) -> Any:
        values = [getattr(call, side) for call in self._own_calls(self._path)]
        values = [value for value in values if value is not MISSING]
        if not values:
            raise self._missing(side)
        withheld = next((value for value in values if isinstance(value, Withheld)), None)
        if withheld is not None:
            raise UntransferableValueError(f"{self._path}.{side} was recorded, but {withheld.reason}")
        values = [part(value) for value in values]
        return values[0] if len(values) == 1 else values

    def _missing(self, side: str) -> UnknownLocationError:
        where = f"{self._path}.{side}" if self._path else side
        if not self._own_calls(self._path):
            return UnknownLocationError(f"the cache has no {where}: no call of the module was recorded")
        return UnknownLocationError(f"the cache has no {where}; ask for it with tracer.cache(include_{side}=True)")

    def _own_calls(self, path: str) -> list[RecordedCall]:
        return [call for call in self._calls.get(path, ()) if self._step is None or call.step == self._step]

    def _below(self) -> list[str]:
        return [path for path in self._calls if _is_below(path, self._path)]

    def _children(self) -> list[str]:
        start = len(self._path) + 1 if self._path else 0
        return list(dict.fromkeys(path[start:].partition(".")[0] for path in self._below() if len(path) > start))


class Cache(CachedModule):
    """The calls that `tracer.cache(...)` recorded: `cache["model.layers.3"].output`; see `CachedModule`."""


def _is_below(path: str, other: str) -> bool:
    return not other or path == other or path.startswith(f"{other}.")


def converter(
    device: torch.device | str | None, dtype: torch.dtype | None, *, detach: bool
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return what brings each recorded tensor into the form that was asked for."""

    def convert(tensor: torch.Tensor) -> torch.Tensor:
        if detach:
            tensor = tensor.detach()
        kind = dtype if tensor.is_floating_point() else None
        return tensor if device is None and kind is None else tensor.to(device=device, dtype=kind)

    return convert
