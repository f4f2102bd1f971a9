"""Reading the bytes of tensors and arrays, which may be hostile."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable
from typing import cast

import msgspec
import torch

from nnsight._wire.buffers import BYTES_ENTRY, ENTRY_KINDS, LENGTH_BYTES, MOST_DIMENSIONS, OWN_BYTES, EntryKind
from nnsight._wire.checks import fields, part
from nnsight.errors import WireError

Buffer = bytearray | mmap.mmap
# Takes where bytes of the message begin and end, and returns writable memory of nobody else's that holds them, or will
# when the whole message has been read.
Fetch = Callable[[int, int], Buffer]

# Tensors below `OWN_BYTES` share blocks of this size: making memory for each would take longer than filling it.
BLOCK_BYTES = 4 << 20

_JSON_LIMIT = 1 << 16
_CPU = torch.device("cpu")


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    """An entry of a safetensors header."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class _Source:
    """An entry that tensors or arrays are read from."""

    def __init__(self, kind: EntryKind, span: tuple[int, int], fetch: Fetch) -> None:
        self._dtype = kind.dtype
        self._itemsize = kind.itemsize
        self._start, end = span
        self._size = end - self._start
        self._fetch = fetch
        # Each element is read once, so that few bytes cannot become many tensors.
        self._left = self._size
        self._read_to = 0
        self._block: Buffer = bytearray()
        self._block_begin = self._block_end = 0
        # Most tensors are shaped like the one before them, and share what is worked out of a shape.
        self._shape: object = None
        self._sizes: list[int] = []
        self._count = 0

    def claim(self, begin: int, length: int) -> int:
        """Take bytes of the entry, each of them once, and return where in the message they begin."""
        self._left -= length
        if begin < 0 or length < 0 or self._left < 0 or begin + length > self._size:
            raise WireError("a tensor or array of the message lies outside the bytes there are, or on those of another")
        return self._start + begin

    def tensor(self, offset: int, shape: object) -> torch.Tensor:
        """Read a tensor."""
        if shape != self._shape:
            self._sizes = _sizes(shape)
            self._count = math.prod(self._sizes)
            self._shape = shape
        count, sizes = self._count, self._sizes
        if not count:
            return torch.empty(sizes, dtype=self._dtype, device=_CPU)
        begin, length = offset * self._itemsize, count * self._itemsize
        place = self.claim(begin, length)
        end = begin + length
        if length >= OWN_BYTES or begin < self._read_to:
            # What is not read in order might overlap with what was, and no two values may share memory.
            tensor = torch.frombuffer(self._fetch(place, place + length), dtype=self._dtype)
        else:
            self._read_to = end
            if end > self._block_end:
                reach = min(max(end, begin + BLOCK_BYTES), self._size)
                self._block = self._fetch(place, self._start + reach)
                self._block_begin, self._block_end = begin, reach
            tensor = torch.frombuffer(self._block, dtype=self._dtype, count=count, offset=begin - self._block_begin)
        # A view, unlike a tensor that is given its shape in place, would remember that gradients were off.
        return tensor.resize_(*sizes) if sizes else tensor.resize_(())


class BufferReader:
    """Reads tensors and arrays from the bytes of a message, which may be hostile.

    No two of them share bytes. Small tensors lie together in blocks, so one that is kept holds a block; a tensor of
    `OWN_BYTES` or more has memory of its own, and so has every array.
    """

    def __init__(
        self,
        payload: memoryview,
        offset: int = 0,
        *,
        device_of: Callable[[str], torch.device] | None = None,
        fetch: Fetch | None = None,
    ) -> None:
        """Begin.

        Args:
            payload: A safetensors file, or nothing.
            offset: Where in the message it begins.
            device_of: Which device a tensor goes to, by the text of the device it came from.
            fetch: Makes memory with the message's bytes between two offsets; see `Fetch`. They are copied from the
                payload when it is None.

        Raises:
            WireError: The bytes are neither.
        """
        self.device_of = device_of
        self._payload = payload
        self._offset = offset
        self._fetch = fetch or self._copied
        self._sources: dict[str, _Source] = {}
        self._raw = _Source(ENTRY_KINDS["uint8"], (0, 0), self._fetch)
        for name, begin, end in _entries(payload):
            span = offset + begin, offset + end
            if name == BYTES_ENTRY:
                self._raw = _Source(ENTRY_KINDS["uint8"], span, self._fetch)
            else:
                self._sources[name] = _Source(ENTRY_KINDS[name], span, self._fetch)

    def tensor(self, name: object, offset: object, shape: object) -> torch.Tensor:
        """Read a tensor from the place that `BufferWriter.add` gave it.

        Args:
            name: The name of its dtype.
            offset: How many elements of the dtype come before its own.
            shape: Its sizes.

        Raises:
            WireError: The place is not valid.
        """
        source = self._sources.get(part(name, str))
        if source is None:
            raise WireError(f"the message has no tensors of dtype {name!r}")
        return source.tensor(part(offset, int), shape)

    def raw(self, place: object) -> memoryview:
        """Return bytes, which the caller copies.

        Args:
            place: What `BufferWriter.add_bytes` returned, after its travel.

        Raises:
            WireError: The place is not valid.
        """
        begin, length = (part(field, int) for field in fields(place, 2))
        start = self._raw.claim(begin, length) - self._offset
        return self._payload[start : start + length]

    def _copied(self, begin: int, end: int) -> Buffer:
        return bytearray(self._payload[begin - self._offset : end - self._offset])


def _sizes(shape: object) -> list[int]:
    sizes = cast("list[int]", fields(shape, 0, MOST_DIMENSIONS))
    for size in sizes:
        if type(size) is not int or size < 0:
            raise WireError("a tensor of the message has a size that is no whole number")
    return sizes


def _entries(payload: memoryview) -> list[tuple[str, int, int]]:
    """Return where in a safetensors file each entry begins and ends."""
    if not len(payload):
        return []
    size = len(payload)
    length = int.from_bytes(payload[:LENGTH_BYTES], "little")
    start = LENGTH_BYTES + length
    if start > size or length > _JSON_LIMIT:
        raise WireError("the message's tensors are truncated")
    header: dict[str, _Entry] = msgspec.json.decode(payload[LENGTH_BYTES:start], type=dict[str, _Entry])
    entries = []
    position = start
    for name, entry in header.items():
        begin, end = (start + offset for offset in entry.data_offsets)
        if begin != position or not begin <= end <= size:
            raise WireError("the message's tensors are truncated, or overlap")
        kind = ENTRY_KINDS.get(name)
        stored, itemsize = (kind.stored, kind.itemsize) if kind else ("U8", 1)
        if (kind is None and name != BYTES_ENTRY) or entry.dtype != stored or (end - begin) % itemsize:
            raise WireError(f"the message has tensors of an unknown kind: {name[:80]!r} as {entry.dtype[:80]!r}")
        entries.append((name, begin, end))
        position = end
    if position != size:
        raise WireError("bytes follow the message's tensors")
    return entries
