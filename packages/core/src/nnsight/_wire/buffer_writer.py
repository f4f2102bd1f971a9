"""Gathering tensors and arrays, and writing their bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import torch

from nnsight._wire.buffers import BYTES_ENTRY, ENTRY_KINDS, ENTRY_NAMES, JOINED_AS, LENGTH_BYTES, OWN_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# Small tensors of the CPU are joined up to this many bytes, which fit into a core's cache.
CPU_BATCH_BYTES = 1 << 20
# Tensors elsewhere are joined on their device up to this many bytes, so that a large set needs little memory there.
DEVICE_BATCH_BYTES = 4 << 20

_CPU = torch.device("cpu")


class _Group:
    """The tensors of one dtype and device.

    Attributes:
        device: The device.
        count: The elements of the small tensors.
        places: The places of the small tensors, whose offsets count from the first of them.
        large: The large tensors with their places. They come after the small ones of the dtype, so that a reader finds
            those side by side.
        taken: The bytes of all of them.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.device = device
        self.count = 0
        self.places: list[list[object]] = []
        self.large: list[tuple[list[object], torch.Tensor]] = []
        self.taken = 0
        self._name = ENTRY_NAMES[dtype]
        self._itemsize = dtype.itemsize
        self._joined_as = JOINED_AS.get(dtype)
        self._unusual = dtype.is_complex or self._joined_as is not None
        self._batches: list[list[torch.Tensor]] = []
        self._most = CPU_BATCH_BYTES if device == _CPU else DEVICE_BATCH_BYTES
        self._batch_bytes = self._most
        # Most tensors are shaped like the one before them, and share what is worked out of a shape.
        self._shape: torch.Size | None = None
        self._sizes: list[int] = []
        self._numel = self._size = 0

    def add(self, tensor: torch.Tensor) -> list[object]:
        """Take in a tensor and return its place."""
        shape = tensor.shape
        if shape != self._shape:
            self._shape = shape
            self._sizes = list(shape)
            self._numel = tensor.numel()
            self._size = self._numel * self._itemsize
        place: list[object] = [self._name, self.count, self._sizes]
        size = self._size
        if not size:
            return place
        self.taken += size
        if self._unusual or tensor.is_neg():
            tensor = self._as_stored(tensor)
        if size >= OWN_BYTES:
            self.large.append((place, tensor))
            return place
        self.places.append(place)
        self.count += self._numel
        self._batch_bytes += size
        if self._batch_bytes > self._most:
            self._batches.append([tensor])
            self._batch_bytes = size
        else:
            self._batches[-1].append(tensor)
        return place

    def parts_of_small(self) -> Iterator[memoryview]:
        """Copy the small tensors to the CPU."""
        flat = map(_flat_bytes, self._batches)
        if self.device.type == "cuda" and len(self._batches) > 1:
            return _through_pinned(flat)
        return (batch.to(_CPU).numpy().data for batch in flat)

    def parts_of_large(self) -> Iterator[memoryview]:
        """Copy the large tensors to the CPU."""
        flat = (_flat_bytes([tensor]) for _, tensor in self.large)
        if self.device.type == "cuda":
            return _through_pinned(flat)
        return (tensor.to(_CPU).numpy().data for tensor in flat)

    @torch.no_grad()
    def _as_stored(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor with the bits of another, which can be joined with its like on every device."""
        plain = tensor.resolve_conj().resolve_neg()
        return plain if self._joined_as is None else plain.view(self._joined_as)


class BufferWriter:
    """Collects tensors and arrays, and writes them together as a safetensors file.

    Attributes:
        header: The file's header after `finish`; empty when nothing was taken in.
        size: The bytes of the data that follow it.
        taken: The bytes of the tensors and arrays that were taken in so far.
    """

    def __init__(self) -> None:
        """Begin without tensors."""
        self.header = b""
        self.size = 0
        self.taken = 0
        self._groups: dict[tuple[torch.dtype, torch.device], _Group] = {}
        self._device_texts: dict[torch.device, str] = {}
        self._raw: list[bytes | memoryview] = []
        self._raw_size = 0

    def add(self, tensor: torch.Tensor) -> list[object]:
        """Take in a dense tensor of a dtype in `ENTRY_NAMES`.

        Args:
            tensor: The tensor.

        Returns:
            Its place, which is complete after `finish`.
        """
        key = tensor.dtype, tensor.device
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(*key)
        before = group.taken
        place = group.add(tensor)
        self.taken += group.taken - before
        return place

    def device_text(self, device: torch.device) -> str:
        """Return the text of a device, which takes long to make."""
        text = self._device_texts.get(device)
        if text is None:
            text = self._device_texts[device] = str(device)
        return text

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
        self.taken += len(data)
        return place

    def finish(self) -> None:
        """Complete the places, the header and the size."""
        header: dict[str, dict[str, object]] = {}
        begin = 0
        for name, groups in self._by_name().items():
            kind = ENTRY_KINDS[name]
            count = 0
            for group in groups:
                for place in group.places if count else ():
                    place[1] += count  # type: ignore[operator]
                count += group.count
            for group in groups:
                for place, tensor in group.large:
                    place[1] = count
                    count += tensor.numel()
            end = begin + count * kind.itemsize
            shape = [count] if kind.parts == 1 else [count, kind.parts]
            header[name] = {"dtype": kind.stored, "shape": shape, "data_offsets": [begin, end]}
            begin = end
        if self._raw:
            end = begin + self._raw_size
            header[BYTES_ENTRY] = {"dtype": "U8", "shape": [self._raw_size], "data_offsets": [begin, end]}
            begin = end
        self.size = begin
        if header:
            text = msgspec.json.encode(header)
            text += b" " * (-len(text) % LENGTH_BYTES)
            self.header = len(text).to_bytes(LENGTH_BYTES, "little") + text

    def parts(self) -> Iterator[bytes | memoryview]:
        """Write the data, after `finish`; each part is valid until the next is asked for."""
        for groups in self._by_name().values():
            for group in groups:
                yield from group.parts_of_small()
            for group in groups:
                yield from group.parts_of_large()
        yield from self._raw

    def _by_name(self) -> dict[str, list[_Group]]:
        """Gather the groups of each dtype. Those of larger elements come first, so that every entry is aligned."""
        found: dict[str, list[_Group]] = {}
        for (dtype, _), group in sorted(self._groups.items(), key=lambda item: -item[0][0].itemsize):
            found.setdefault(ENTRY_NAMES[dtype], []).append(group)
        return found


@torch.no_grad()
def _flat_bytes(batch: list[torch.Tensor]) -> torch.Tensor:
    """Join tensors of one dtype, and return their bytes."""
    flat = batch[0].reshape(-1) if len(batch) == 1 else torch._utils._flatten_dense_tensors(batch)  # type: ignore[no-untyped-call]
    if flat.stride(0) != 1:
        # A single element may have any stride and counts as contiguous all the same.
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8)


def _through_pinned(flat: Iterable[torch.Tensor]) -> Iterator[memoryview]:
    """Copy bytes from a GPU through two pinned buffers: one is filled while the other is read."""
    buffers = [torch.empty(DEVICE_BATCH_BYTES, dtype=torch.uint8, device=_CPU, pin_memory=True) for _ in range(2)]
    under_way: tuple[torch.cuda.Event, torch.Tensor] | None = None
    number = 0
    for tensor in flat:
        for piece in torch.split(tensor, DEVICE_BATCH_BYTES):
            buffer = buffers[number % 2][: piece.numel()]
            buffer.copy_(piece, non_blocking=True)
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(torch.cuda.current_stream(piece.device))
            if under_way is not None:
                under_way[0].synchronize()
                yield under_way[1].numpy().data
            under_way = copied, buffer
            number += 1
    if under_way is not None:
        under_way[0].synchronize()
        yield under_way[1].numpy().data
