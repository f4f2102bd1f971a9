"""The frame of a message: a mark, a version, a header and the tensors' bytes."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import msgspec

from nnsight._wire.header import check_header
from nnsight.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nnsight._wire.limits import Limits

MAGIC = b"NNSW"
VERSION = 1

_FRAME = struct.Struct("<4sHxxQ")
_ALIGNMENT = 8
_LEVELS_PER_VALUE = 4


def pack(header: object, payload: Iterable[bytes | memoryview]) -> list[bytes | memoryview]:
    """Put a header tree before the tensors' bytes.

    Args:
        header: A plain tree.
        payload: The parts of the tensors' bytes.

    Returns:
        The parts of the message, in order.
    """
    encoded = msgspec.msgpack.encode(header)
    padding = b"\0" * (-len(encoded) % _ALIGNMENT)
    return [_FRAME.pack(MAGIC, VERSION, len(encoded)), encoded, padding, *payload]


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
