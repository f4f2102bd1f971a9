"""The bytes of tensors and arrays: one flat safetensors entry per dtype."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple, cast

import msgspec
import torch

from nnsight._wire.checks import fields, part
from nnsight.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Tensors are joined on their device up to this many bytes, so that a large set needs little memory there.
BATCH_BYTES = 64 << 20
# On the CPU, only small tensors are joined before they are copied into the message.
SMALL_BYTES = 4 << 10
MOST_DIMENSIONS = 64
BYTES_ENTRY = "bytes"

_LENGTH_BYTES = 8
_JSON_LIMIT = 1 << 16
_CPU = torch.device("cpu")


class EntryKind(NamedTuple):
    """How the elements of a dtype are written.

    Attributes:
        dtype: The elements' dtype.
        stored: The safetensors name of the dtype that they are written as.
        itemsize: The bytes of an element.
        parts: How many stored elements an element takes.
    """

    dtype: torch.dtype
    stored: str
    itemsize: int
    parts: int


def _entry_kinds() -> dict[str, EntryKind]:
    stored = {
        "bool": "BOOL",
        "uint8": "U8",
        "int8": "I8",
        "uint16": "U16",
        "int16": "I16",
        "uint32": "U32",
        "int32": "I32",
        "uint64": "U64",
        "int64": "I64",
        "float16": "F16",
        "bfloat16": "BF16",
        "float32": "F32",
        "float64": "F64",
        "float8_e4m3fn": "F8_E4M3",
        "float8_e5m2": "F8_E5M2",
        # Safetensors has no name for these that every supported version of it knows.
        "float8_e4m3fnuz": "U8",
        "float8_e5m2fnuz": "U8",
        "float8_e8m0fnu": "U8",
        "complex64": "F32",
        "complex128": "F64",
    }
    kinds = {}
    for name, code in stored.items():
        dtype = getattr(torch, name, None)
        if isinstance(dtype, torch.dtype):
            kinds[name] = EntryKind(dtype, code, dtype.itemsize, 2 if dtype.is_complex else 1)
    return kinds


ENTRY_KINDS = _entry_kinds()
ENTRY_NAMES = {kind.dtype: name for name, kind in ENTRY_KINDS.items()}
# Joining tensors of these is not implemented on every device; their bits are joined as those of another dtype.
_JOINED_AS = {
    kind.dtype: {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[kind.itemsize]
    for name, kind in ENTRY_KINDS.items()
    if name.startswith("float8") or name in ("uint16", "uint32", "uint64")
}


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    """An entry of a safetensors header."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class _Group:
    """The tensors of one dtype and device, and the places that tell where they are."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self.places: list[list[object]] = []


class BufferWriter:
    """Collects tensors and arrays, and writes them together."""

    def __init__(self) -> None:
        """Begin without tensors."""
        self._groups: defaultdict[tuple[str, torch.device], _Group] = defaultdict(_Group)
        self._raw: list[bytes | memoryview] = []
        self._raw_size = 0

    def add(self, tensor: torch.Tensor) -> list[object]:
        """Take in a dense tensor of a dtype in `ENTRY_NAMES`.

        Args:
            tensor: The tensor.

        Returns:
            Its place, which is complete after `finish`.
        """
        name = ENTRY_NAMES[tensor.dtype]
        # Its offset is known at the end, once the tensors of each dtype and device are together.
        place: list[object] = [name, 0, list(tensor.shape)]
        group = self._groups[name, tensor.device]
        group.tensors.append(tensor)
        group.places.append(place)
        return place

    def add_bytes(self, data: bytes | memoryview) -> list[object]:
        """Take in bytes, such as those of an array.

        Args:
            data: The bytes; a view of single bytes.

        Returns:
            Their place.
        """
        place: list[object] = [self._raw_size, len(data)]
        self._raw.append(data)
        self._raw_size += len(data)
        return place

    def finish(self) -> list[bytes | memoryview]:
        """Copy the tensors to the CPU, complete their places, and write everything.

        Returns:
            The parts of a safetensors file; none when nothing was taken in.
        """
        by_name: defaultdict[str, list[_Group]] = defaultdict(list)
        for (name, _), group in self._groups.items():
            by_name[name].append(group)
        if not by_name and not self._raw:
            return []
        header: dict[str, dict[str, object]] = {}
        parts: list[bytes | memoryview] = []
        begin = 0
        # Entries of larger elements come first, so that every entry is aligned.
        for name in sorted(by_name, key=lambda name: -ENTRY_KINDS[name].itemsize):
            kind = ENTRY_KINDS[name]
            count = 0
            for group in by_name[name]:
                for tensor, place in zip(group.tensors, group.places, strict=True):
                    place[1] = count
                    count += tensor.numel()
                with torch.no_grad():
                    parts.extend(_on_cpu(batch) for batch in _batches(group.tensors, kind) if batch)
            end = begin + count * kind.itemsize
            shape = [count] if kind.parts == 1 else [count, kind.parts]
            header[name] = {"dtype": kind.stored, "shape": shape, "data_offsets": [begin, end]}
            begin = end
        if self._raw:
            end = begin + self._raw_size
            header[BYTES_ENTRY] = {"dtype": "U8", "shape": [self._raw_size], "data_offsets": [begin, end]}
            parts.extend(self._raw)
        text = msgspec.json.encode(header)
        text += b" " * (-len(text) % _LENGTH_BYTES)
        return [len(text).to_bytes(_LENGTH_BYTES, "little"), text, *parts]


def _batches(tensors: list[torch.Tensor], kind: EntryKind) -> Iterator[list[torch.Tensor]]:
    """Flatten tensors of one device and dtype, and gather those that are copied together."""
    batch: list[torch.Tensor] = []
    batch_bytes = 0
    most_bytes = SMALL_BYTES if tensors[0].device == _CPU else BATCH_BYTES
    joined_as = _JOINED_AS.get(kind.dtype)
    for tensor in tensors:
        flat = tensor.reshape(-1)
        if kind.parts > 1:
            flat = flat.resolve_conj()
        if flat.is_neg():
            flat = flat.resolve_neg()
        if joined_as is not None:
            flat = flat.view(joined_as)
        size = flat.numel() * kind.itemsize
        if (batch and batch_bytes + size > BATCH_BYTES) or size > most_bytes:
            yield batch
            batch, batch_bytes = [], 0
        if size > most_bytes:
            yield [flat]
        elif size:
            batch.append(flat)
            batch_bytes += size
    yield batch


def _on_cpu(batch: list[torch.Tensor]) -> memoryview:
    """Copy the elements of a batch to the CPU, if they are elsewhere."""
    joined = torch.cat(batch) if len(batch) > 1 else batch[0]
    if joined.device != _CPU:
        joined = joined.to(_CPU)
    # One element of an expanded tensor may have any stride.
    return joined.contiguous().view(torch.uint8).numpy().data


class _Source:
    """An entry that tensors or arrays are read from."""

    def __init__(self, dtype: torch.dtype, itemsize: int, data: memoryview) -> None:
        self.dtype = dtype
        self.itemsize = itemsize
        self._data = data
        # Each element is read once, so that few bytes cannot become many tensors.
        self._left = len(data)

    def take(self, begin: int, length: int) -> memoryview:
        """Return bytes of the entry, each of them once."""
        self._left -= length
        if begin < 0 or length < 0 or self._left < 0 or begin + length > len(self._data):
            raise WireError("a tensor or array of the message lies outside the bytes there are, or on those of another")
        return self._data[begin : begin + length]


class BufferReader:
    """Reads tensors and arrays from the bytes of a message, which may be hostile.

    Every tensor and array gets memory of its own: one that is kept holds no memory of the others.
    """

    def __init__(self, payload: memoryview, device_of: Callable[[str], torch.device] | None = None) -> None:
        """Begin.

        Args:
            payload: A safetensors file, or nothing.
            device_of: Which device a tensor goes to, by the text of the device it came from.

        Raises:
            WireError: The bytes are neither.
        """
        self.device_of = device_of
        self._sources: dict[str, _Source] = {}
        self._raw = _Source(torch.uint8, 1, memoryview(b""))
        for name, data in _entries(payload):
            if name == BYTES_ENTRY:
                self._raw = _Source(torch.uint8, 1, data)
            else:
                kind = ENTRY_KINDS[name]
                self._sources[name] = _Source(kind.dtype, kind.itemsize, data)

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
        dtype, itemsize = source.dtype, source.itemsize
        sizes = cast("list[int]", fields(shape, 0, MOST_DIMENSIONS))
        for size in sizes:
            if type(size) is not int or size < 0:
                raise WireError("a tensor of the message has a size that is no whole number")
        length = math.prod(sizes) * itemsize
        if not length:
            return torch.empty(sizes, dtype=dtype, device=_CPU)
        data = source.take(part(offset, int) * itemsize, length)
        # A view, unlike a tensor that is given its shape in place, would remember that gradients were off.
        return torch.frombuffer(bytearray(data), dtype=dtype).resize_(sizes)

    def raw(self, place: object) -> memoryview:
        """Return bytes, which the caller copies.

        Args:
            place: What `BufferWriter.add_bytes` returned, after its travel.

        Raises:
            WireError: The place is not valid.
        """
        begin, length = (part(field, int) for field in fields(place, 2))
        return self._raw.take(begin, length)


def _entries(payload: memoryview) -> list[tuple[str, memoryview]]:
    """Split a safetensors file into the bytes of its entries."""
    if not len(payload):
        return []
    size = len(payload)
    length = int.from_bytes(payload[:_LENGTH_BYTES], "little")
    start = _LENGTH_BYTES + length
    if start > size or length > _JSON_LIMIT:
        raise WireError("the message's tensors are truncated")
    header: dict[str, _Entry] = msgspec.json.decode(payload[_LENGTH_BYTES:start], type=dict[str, _Entry])
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
        entries.append((name, payload[begin:end]))
        position = end
    if position != size:
        raise WireError("bytes follow the message's tensors")
    return entries
