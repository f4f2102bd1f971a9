"""Values of several requests in one message, as if each had travelled by itself.

What costs time is the message, hardly the values in it: the tensors of all requests are joined, and leave a GPU in one
copy. No two requests share an object where the message is read, even if they did where it was written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from nnsight._trace.messages import TRUSTED, block_codecs
from nnsight._wire import Encoder, decode, items_of
from nnsight.errors import NNsightError, UntransferableValueError, WireError

if TYPE_CHECKING:
    from nnsight._wire import Decoder, Fetch, Parts


class BunchWriter:
    """Writes one message."""

    def __init__(self, result: object = None) -> None:
        """Begin without values.

        Args:
            result: The finished output that both sides know, of the only request whose values are added.
        """
        self._encoder = Encoder(block_codecs(result=result), name="")
        self._nodes: list[object] = []

    def add(self, parts: Sequence[Mapping[str, object]]) -> list[int]:
        """Take in the values of one request, which must not change before `finish` has been written.

        Args:
            parts: Values by name, in several parts.

        Returns:
            The bytes that each part takes; what several of them hold counts for the first.

        Raises:
            UntransferableValueError: One of them cannot travel; none is taken in.
        """
        encoder = self._encoder
        nodes: list[object] = []
        sizes = []
        try:
            for part in parts:
                if not part:
                    nodes.append(None)
                    sizes.append(0)
                    continue
                before = encoder.buffers.taken
                node = encoder.node(dict(part))
                nodes.append(node)
                # Offsets are not filled in yet; they take a few bytes more in a large message.
                sizes.append(encoder.buffers.taken - before + len(msgspec.msgpack.encode(node)))
        except RecursionError as error:
            raise UntransferableValueError("a value is nested too deeply to travel between processes") from error
        finally:
            encoder.forget()
        self._nodes.append(nodes)
        return sizes

    @property
    def num_bytes(self) -> int:
        """The bytes of the tensors and arrays so far."""
        return self._encoder.buffers.taken

    def finish(self) -> Parts:
        """Return the message."""
        return self._encoder.finish([_BunchCodec.tag, self._nodes])


class _BunchCodec:
    """Read the values of each request by themselves, so that what is wrong with one is its own."""

    tag = "nnsight.bunch"

    def encode(self, value: Any, encoder: Encoder) -> object:
        """Refuse: a `BunchWriter` writes it."""
        raise NotImplementedError

    def decode(self, payload: Any, decoder: Decoder) -> list[list[Any] | Exception]:
        """Read the values of every request."""
        found: list[list[Any] | Exception] = []
        value = decoder.value
        for node in items_of(payload):
            try:
                found.append([{} if part is None else value(part) for part in items_of(node)])
            except NNsightError as error:
                found.append(error)
            except Exception as error:  # noqa: BLE001 - classes of the user's own may raise anything
                found.append(WireError(f"a saved value cannot be read: {type(error).__name__}: {error}"))
        return found


def read_bunch(
    data: bytes | memoryview, result: object = None, *, fetch: Fetch | None = None
) -> list[list[Any] | Exception]:
    """Read what a `BunchWriter` wrote, in the process of the requests' caller.

    Args:
        data: The message.
        result: The finished output of the only request in it.
        fetch: Makes the memory of tensors; see `nnsight._wire.decode`.

    Returns:
        For each request, in order, its parts, or why they cannot be read.

    Raises:
        WireError: The data are no such message.
    """
    codecs = block_codecs(result=result).extended(readers=[_BunchCodec()])
    found: Any = decode(data, codecs=codecs, limits=TRUSTED, fetch=fetch)
    if not isinstance(found, list):
        raise WireError("the bytes are no values of requests")
    return found
