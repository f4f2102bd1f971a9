"""Messages to values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from nnsight._wire.buffer_reader import BufferReader
from nnsight._wire.checks import fields, items_of, part
from nnsight._wire.limits import Limits
from nnsight._wire.message import unpack
from nnsight.errors import NNsightError, WireError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nnsight._wire.buffer_reader import Fetch
    from nnsight._wire.table import CodecTable

_DIRECT = frozenset({type(None), bool, int, float, str, bytes})
_UNALIASED_KEYS = frozenset({"tuple", "frozenset"})
_MISSING = object()


class Decoder:
    """A decoding under way, as the codecs see it.

    Attributes:
        codecs: The codecs in use.
        limits: What is accepted.
        buffers: Where codecs take tensors and arrays from.
    """

    def __init__(self, codecs: CodecTable, limits: Limits, definitions: list[object], buffers: BufferReader) -> None:
        """Begin a decoding.

        Args:
            codecs: The codecs to use.
            limits: What is accepted.
            definitions: The nodes of the values that occur more than once.
            buffers: The tensors' bytes.
        """
        self.codecs = codecs
        self.limits = limits
        self.buffers = buffers
        self._definitions = definitions
        self._values: dict[int, object] = {}
        self._building: int | None = None
        self._depth = 0
        self._key_depth = 0
        self._steps_left = limits.max_nodes

    def value(self, node: object) -> object:
        """Read a value from its node. A codec reads each node once.

        Args:
            node: What `Encoder.node` returned, after its travel.

        Raises:
            WireError: The node is not valid.
        """
        if type(node) is not list:
            if type(node) in _DIRECT:
                return node
            raise WireError(f"the message has a {type(node).__name__} where a value belongs")
        self._steps_left -= 1
        if len(node) != 2 or type(node[0]) is not str or self._steps_left < 0:
            self.count(0)
            raise WireError("the message has a value without a tag")
        tag, payload = node
        return self._referenced(part(payload, int)) if tag == "ref" else self._read(tag, payload)

    def key(self, node: object) -> object:
        """Read a value that will be hashed, written by `Encoder.key`.

        Args:
            node: What `Encoder.key` returned, after its travel.

        Raises:
            WireError: The node is not valid.
        """
        self._key_depth += 1
        try:
            return self.value(node)
        finally:
            self._key_depth -= 1

    def remember(self, value: object) -> None:
        """Say which value is being read, before the values inside it are read, so that they may refer to it.

        Args:
            value: The value, not yet filled.
        """
        if self._building is not None:
            # The first one stays: a value that holds itself may be made once more while its parts are read.
            self._values.setdefault(self._building, value)

    def count(self, steps: int) -> None:
        """Count steps of decoding against the limit.

        Args:
            steps: How many.

        Raises:
            WireError: The limit is reached.
        """
        self._steps_left -= steps
        if self._steps_left < 0:
            raise WireError(f"the message takes more than {self.limits.max_nodes} steps to read")

    def _referenced(self, index: int) -> object:
        value = self._values.get(index, _MISSING)
        if value is _MISSING or self._key_depth:
            if not 0 <= index < len(self._definitions):
                raise WireError(f"the message refers to value {index} of {len(self._definitions)}")
            tag, payload = fields(self._definitions[index], 2)
            # A key made of references to keys would take a time exponential in the message to hash.
            if self._key_depth and tag in _UNALIASED_KEYS:
                raise WireError("a key of the message refers to a tuple or frozenset instead of holding it")
            if value is _MISSING:
                value = self._read(part(tag, str), payload, index)
                # A value that cannot be made before its parts may have been made while reading a part that holds it.
                value = self._values.setdefault(index, value)
        return value

    def _read(self, tag: str, payload: object, building: int | None = None) -> object:
        codec = self.codecs.for_tag(tag)
        if codec is None:
            raise WireError(f"the message has a value of the unknown kind {tag[:80]!r}")
        outer = self._building
        self._depth += 1
        try:
            if self._depth > self.limits.max_depth:
                raise WireError(f"the message is nested deeper than {self.limits.max_depth} values")
            self._building = building
            return codec.decode(payload, self)
        finally:
            self._depth -= 1
            self._building = outer


def decode(
    data: bytes | memoryview,
    *,
    codecs: CodecTable,
    limits: Limits = Limits(),  # noqa: B008 - it is immutable
    device_of: Callable[[str], torch.device] | None = None,
    fetch: Fetch | None = None,
) -> object:
    """Read a value from a message, which may be hostile.

    Args:
        data: The message.
        codecs: The codecs to use.
        limits: What is accepted.
        device_of: Which device a tensor goes to, by the text of the device it came from; the CPU when it is None. A
            copy to a GPU may be under way when this returns, on the current stream.
        fetch: Makes the memory of tensors, filled with the message's bytes between two offsets; it may fill it later
            where `device_of` is None. The bytes are copied from `data` when it is None.

    Returns:
        The value. No two of its tensors and arrays share bytes; small tensors share blocks of memory.

    Raises:
        WireError: The bytes are no message of this version, break a limit, or name what does not exist here.
    """
    try:
        header, payload = unpack(data, limits)
        root, definitions = fields(header, 2)
        with torch.inference_mode(mode=False), torch.no_grad():
            buffers = BufferReader(payload, memoryview(data).nbytes - len(payload), device_of=device_of, fetch=fetch)
            return Decoder(codecs, limits, items_of(definitions), buffers).value(root)
    except NNsightError:
        raise
    except Exception as error:
        raise WireError(f"the message cannot be read: {type(error).__name__}: {error}") from error
