"""The bytes of tensors and arrays: one flat safetensors entry per dtype."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, cast

import msgspec
import torch

from nnsight._wire.checks import fields, part
from nnsight.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Callable

# Tensors are joined on their device up to this many bytes, so that a large set needs little memory there.
BATCH_BYTES = 64 << 20
# On the CPU, only small tensors are joined before they are copied into the message.
SMALL_BYTES = 4 << 10
MOST_DIMENSIONS = 64
ARRAYS_ENTRY = "numpy"

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
# Joining tensors of these is not implemented on every device; their bytes are joined instead.
_JOINED_AS_BYTES = frozenset(kind.dtype for name, kind in ENTRY_KINDS.items() if name.startswith("float8"))


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    """An entry of a safetensors header."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class BufferWriter:
    """Collects tensors and arrays, and writes them together."""

    def __init__(self) -> None:
        """Begin without tensors."""
        self._groups: dict[tuple[str, torch.device], list[tuple[torch.Tensor, list[object]]]] = {}
        self._arrays: list[memoryview] = []
        self._array_bytes = 0

    def add(self, tensor: torch.Tensor) -> list[object]:
        """Take in a dense tensor of a dtype in `ENTRY_NAMES`.

        Args:
            tensor: The tensor.

        Returns:
            Its place, which is complete after `finish`.
        """
        place: list[object] = [ENTRY_NAMES[tensor.dtype], 0, list(tensor.shape)]
        self._groups.setdefault((ENTRY_NAMES[tensor.dtype], tensor.device), []).append((tensor, place))
        return place

    def add_bytes(self, data: memoryview) -> list[object]:
        """Take in the bytes of an array.

        Args:
            data: The bytes.

        Returns:
            Their place.
        """
        place: list[object] = [self._array_bytes, len(data)]
        self._arrays.append(data)
        self._array_bytes += len(data)
        return place

    def finish(self) -> list[bytes | memoryview]:
        """Copy the tensors to the CPU, complete their places, and write everything.

        Returns:
            The parts of a safetensors file; none when nothing was taken in.
        """
        by_name: dict[str, list[list[tuple[torch.Tensor, list[object]]]]] = {}
        for (name, _), members in self._groups.items():
            by_name.setdefault(name, []).append(members)
        if not by_name and not self._arrays:
            return []
        header: dict[str, dict[str, object]] = {}
        parts: list[bytes | memoryview] = []
        begin = 0
        # Entries of larger elements come first, so that every entry is aligned.
        for name in sorted(by_name, key=lambda name: -ENTRY_KINDS[name].itemsize):
            kind = ENTRY_KINDS[name]
            count = 0
            for members in by_name[name]:
                for tensor, place in members:
                    place[1] = count
                    count += tensor.numel()
                parts.extend(_joined([tensor for tensor, _ in members], kind))
            end = begin + count * kind.itemsize
            shape = [count] if kind.parts == 1 else [count, kind.parts]
            header[name] = {"dtype": kind.stored, "shape": shape, "data_offsets": [begin, end]}
            begin = end
        if self._arrays:
            end = begin + self._array_bytes
            header[ARRAYS_ENTRY] = {"dtype": "U8", "shape": [self._array_bytes], "data_offsets": [begin, end]}
            parts.extend(self._arrays)
        text = msgspec.json.encode(header)
        text += b" " * (-len(text) % _LENGTH_BYTES)
        return [len(text).to_bytes(_LENGTH_BYTES, "little"), text, *parts]


def _joined(tensors: list[torch.Tensor], kind: EntryKind) -> list[memoryview]:
    """Copy the elements of tensors of one device and dtype to the CPU, in few copies."""
    parts: list[memoryview] = []
    batch: list[torch.Tensor] = []
    batch_bytes = 0
    alone = SMALL_BYTES if tensors[0].device == _CPU else BATCH_BYTES
    with torch.no_grad():
        for tensor in tensors:
            flat = tensor.reshape(-1)
            if kind.parts > 1:
                flat = flat.resolve_conj()
            if flat.is_neg():
                flat = flat.resolve_neg()
            if kind.dtype in _JOINED_AS_BYTES:
                flat = flat.view(torch.uint8)
            size = flat.numel() * kind.itemsize
            if not size:
                continue
            if batch and (size >= alone or batch_bytes + size > BATCH_BYTES):
                parts.append(_on_cpu(batch))
                batch, batch_bytes = [], 0
            batch.append(flat)
            batch_bytes += size
        if batch:
            parts.append(_on_cpu(batch))
    return parts


def _on_cpu(batch: list[torch.Tensor]) -> memoryview:
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

    def take(self, begin: int, length: int) -> bytearray:
        """Copy bytes out of the entry."""
        self._left -= length
        if begin < 0 or length < 0 or self._left < 0 or begin + length > len(self._data):
            raise WireError("a tensor or array of the message lies outside the bytes there are, or on those of another")
        return bytearray(self._data[begin : begin + length])


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
        self._arrays = _Source(torch.uint8, 1, memoryview(b""))
        for name, data in _entries(payload):
            if name == ARRAYS_ENTRY:
                self._arrays = _Source(torch.uint8, 1, data)
            else:
                kind = ENTRY_KINDS[name]
                self._sources[name] = _Source(kind.dtype, kind.itemsize, data)

    def tensor(self, place: list[object]) -> torch.Tensor:
        """Read a tensor.

        Args:
            place: What `BufferWriter.add` returned, after its travel.

        Raises:
            WireError: The place is not valid.
        """
        name, offset, shape = place
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
        return torch.frombuffer(data, dtype=dtype).view(sizes)

    def array_bytes(self, place: list[object]) -> bytearray:
        """Read the bytes of an array.

        Args:
            place: What `BufferWriter.add_bytes` returned, after its travel.

        Raises:
            WireError: The place is not valid.
        """
        begin, length = (part(field, int) for field in fields(place, 2))
        return self._arrays.take(begin, length) if length else bytearray()


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
        if (kind is None and name != ARRAYS_ENTRY) or entry.dtype != stored or (end - begin) % itemsize:
            raise WireError(f"the message has tensors of an unknown kind: {name[:80]!r} as {entry.dtype[:80]!r}")
        entries.append((name, payload[begin:end]))
        position = end
    if position != size:
        raise WireError("bytes follow the message's tensors")
    return entries
