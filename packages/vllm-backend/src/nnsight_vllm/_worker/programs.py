"""The programs that a worker has read, so that requests of one trace, and of later ones, read theirs once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from nnsight._trace.shipping import Template, TemplateReader
from nnsight.errors import WireError
from nnsight_vllm._transfer import is_shared

if TYPE_CHECKING:
    import torch

    from nnsight._envoy import ModelTree

# Of programs whose requests are all over, so many are kept, and none that is larger.
_MOST_KEPT: Final = 64
_LARGEST_KEPT: Final = 1 << 16


class ProgramShelf:
    """Templates by what they travelled as: their bytes, or the file that they lie in.

    A template stays for as long as a request of it lives, and the latest small ones stay longer.
    """

    def __init__(self, tree: Callable[[], ModelTree], device_of: Callable[[str], torch.device]) -> None:
        """Read programs of one model.

        Args:
            tree: Gives the modules of the model, which is loaded when the first program comes.
            device_of: Where tensors go, by the device that they came from.
        """
        self._tree = tree
        self._device_of = device_of
        self._living: WeakValueDictionary[bytes | str, Template] = WeakValueDictionary()
        self._kept: OrderedDict[bytes, Template] = OrderedDict()

    def template(self, program: bytes | str) -> Template:
        """Return the template of a request.

        Args:
            program: Its bytes, or the path of the file in shared memory that it lies in.

        Raises:
            WireError: It cannot be read.
        """
        found = self._living.get(program)
        if found is None:
            found = self._living[program] = self._reader.read(_contents(program))
        if isinstance(program, bytes) and len(program) <= _LARGEST_KEPT:
            self._kept[program] = found
            self._kept.move_to_end(program)
            if len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
        return found

    def __len__(self) -> int:
        """Count the templates that are there."""
        return len(self._living)

    @cached_property
    def _reader(self) -> TemplateReader:
        return TemplateReader(self._tree(), self._device_of)


def _contents(program: bytes | str) -> bytes:
    if isinstance(program, bytes):
        return program
    if not is_shared(program):
        raise WireError(f"the program lies in {program!r}, which is no file that nnsight shares")
    try:
        return Path(program).read_bytes()
    except OSError as error:
        raise WireError(f"the program of the request is gone: {error}") from error
