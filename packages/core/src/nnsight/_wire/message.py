"""The frame of a message: a mark, a version, a header and the tensors' bytes."""

from __future__ import annotations

import io
import struct
from typing import TYPE_CHECKING

import msgspec

from nnsight._wire.header import check_header
from nnsight.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nnsight._wire.buffer_writer import BufferWriter
    from nnsight._wire.limits import Limits

MAGIC = b"NNSW"
VERSION = 1

_FRAME = struct.Struct("<4sHxxQ")
_ALIGNMENT = 8
_LEVELS_PER_VALUE = 4


class Parts:
    """A message that is written part by part, so that its receiver says where to.

    Attributes:
        size: The bytes of the whole message.
    """

    def __init__(self, head: bytes, payload: Callable[[], Iterator[bytes | memoryview]], payload_size: int) -> None:
        """Hold what the parts are made of.

        Args:
            head: The first part.
            payload: Makes the parts that follow it.
            payload_size: Their bytes.
        """
        self.size = len(head) + payload_size
        self._head = head
        self._payload = payload

    def __iter__(self) -> Iterator[bytes | memoryview]:
        """Make the parts in order; each is valid until the next is asked for."""
        yield self._head
        yield from self._payload()

    def joined(self) -> bytes:
        """Return the message in one piece."""
        whole = io.BytesIO()
        for part in self:
            whole.write(part)
        return whole.getvalue()


def pack(header: object, buffers: BufferWriter) -> Parts:
    """Put a header tree before the tensors' bytes.

    Args:
        header: A plain tree, in which the places of tensors and arrays are complete.
        buffers: The tensors and arrays, finished.
    """
    encoded = msgspec.msgpack.encode(header)
    padding = b"\0" * (-len(encoded) % _ALIGNMENT)
    frame = _FRAME.pack(MAGIC, VERSION, len(encoded))
    return Parts(frame + encoded + padding + buffers.header, buffers.parts, buffers.size)


def unpack(data: bytes | memoryview, limits: Limits) -> tuple[object, memoryview]:
    """Split a message into its header tree and the tensors' bytes.

    Args:
        data: The message.
        limits: What is accepted.

    Raises:
        WireError: The bytes are no message of this version, or break a limit.
    """
    view = memoryview(data).cast("B")
    size = len(view)
    if size > limits.max_bytes:
        raise WireError(f"the message has {size} bytes; the limit is {limits.max_bytes}")
    if size < _FRAME.size:
        raise WireError(f"the message has {size} bytes, fewer than its frame of {_FRAME.size}")
    magic, version, length = _FRAME.unpack_from(view)
    if magic != MAGIC:
        raise WireError(f"the bytes are no nnsight message: they begin with {bytes(view[:4])!r}, not {MAGIC!r}")
    if version != VERSION:
        raise WireError(f"the message is of version {version}; this process reads version {VERSION}")
    if length > size - _FRAME.size:
        raise WireError(f"the message declares a header of {length} bytes and has {size - _FRAME.size}")
    end = _FRAME.size + length
    header = bytes(view[_FRAME.size : end])
    check_header(header, max_depth=_LEVELS_PER_VALUE * limits.max_depth, max_items=limits.max_nodes)
    return msgspec.msgpack.decode(header), view[end + (-length % _ALIGNMENT) :]
