"""What a worker tells the caller's process of requests: the form of a message."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from nnsight._interleave import Receipt

# Bytes, or a string where it lies in a file; msgspec has no unions of the two.
Place = Any


# There is one for each request, and none of them can refer back to it.
class RequestNote(msgspec.Struct, array_like=True, gc=False):
    """What is told of one request, beside the values that it saved.

    Attributes:
        key: What the caller expects it under.
        receipt: Of the request's own block; empty where it has none.
        error: What ended it early, as `describe_error` tells it.
        exports: Variables that later invokes need, each as a message of its own or the file that it lies in.
        edits: The receipts of the edits beside it, by name, in their order.
    """

    key: str
    receipt: Receipt
    error: dict[str, Any] | None = None
    exports: dict[str, Place] = {}
    edits: tuple[tuple[str, Receipt], ...] = ()


class OutcomeMessage(msgspec.Struct):
    """A message.

    Attributes:
        requests: The requests that it tells of.
        values: What they saved, in the same order, as a `BunchWriter` writes it, or the file that this lies in.
    """

    requests: list[RequestNote]
    values: Place


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final[msgspec.msgpack.Decoder[OutcomeMessage]] = msgspec.msgpack.Decoder(OutcomeMessage)


def write_message(message: OutcomeMessage) -> bytes:
    """Write a message."""
    return _encoder.encode(message)


def read_message(data: bytes) -> OutcomeMessage:
    """Read a message.

    Raises:
        msgspec.ValidationError: The data are none.
    """
    return _decoder.decode(data)
