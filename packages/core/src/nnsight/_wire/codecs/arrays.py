"""NumPy arrays, scalars and dtypes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from nnsight._wire.checks import fields, part
from nnsight.errors import WireError

if TYPE_CHECKING:
    import numpy.typing as npt

    from nnsight._wire.decoder import Decoder
    from nnsight._wire.encoder import Encoder
    from nnsight._wire.table import CodecTable

_DTYPE = re.compile(r"[<>|=][biufcSUVmM][0-9]{1,9}(\[[0-9]{0,9}[A-Za-z]{1,2}\])?")
_MOST_DIMENSIONS = 64


def write_dtype(value: object, dtype: np.dtype[Any], encoder: Encoder) -> str:
    """Write the dtype of an array or scalar, or refuse it.

    Args:
        value: The array, scalar or dtype that is being encoded.
        dtype: Its dtype.
        encoder: The encoding under way.

    Raises:
        UntransferableValueError: The dtype cannot travel.
    """
    if dtype.hasobject:
        raise encoder.refusal(value, "its elements are Python objects", "Turn it into a list of plain values.")
    text = dtype.str
    if dtype.names is not None or not _DTYPE.fullmatch(text) or np.dtype(text) != dtype:
        raise encoder.refusal(value, f"its dtype {dtype} has no short name", "Convert it with `.astype(...)` first.")
    return text


def read_dtype(text: object) -> np.dtype[Any]:
    """Read a dtype.

    Args:
        text: What `write_dtype` returned, after its travel.

    Raises:
        WireError: It is none that `write_dtype` returns.
    """
    if not _DTYPE.fullmatch(part(text, str)):
        raise WireError("the message has an array of an unknown dtype")
    return np.dtype(part(text, str))


class ArrayCodec:
    """Arrays, in C order."""

    tag = "numpy.array"

    def encode(self, value: npt.NDArray[Any], encoder: Encoder) -> object:
        """Write the dtype, the shape, and where the bytes are."""
        if type(value) is not np.ndarray:
            raise encoder.refusal(value, "it is an array of a class of its own", "Pass `numpy.asarray(...)` of it.")
        dtype = write_dtype(value, value.dtype, encoder)
        if not value.itemsize:
            raise encoder.refusal(value, f"elements of dtype {value.dtype} have no bytes", "Pass its shape instead.")
        data = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data if value.nbytes else memoryview(b"")
        return [dtype, list(value.shape), encoder.buffers.add_bytes(data)]

    def decode(self, payload: object, decoder: Decoder) -> npt.NDArray[Any]:
        """Read the bytes into an array of their dtype and shape."""
        dtype_text, shape, place = fields(payload, 3)
        dtype = read_dtype(dtype_text)
        sizes = [part(size, int) for size in fields(shape, 0, _MOST_DIMENSIONS)]
        if not dtype.itemsize or any(size < 0 for size in sizes):
            raise WireError("the message has an array whose elements have no bytes, or of a negative size")
        return np.ndarray(sizes, dtype, bytearray(decoder.buffers.raw(place)))


class ArrayScalarCodec:
    """Scalars."""

    tag = "numpy.scalar"

    def encode(self, value: np.generic, encoder: Encoder) -> object:
        """Write the dtype and the bytes."""
        return [write_dtype(value, value.dtype, encoder), value.tobytes()]

    def decode(self, payload: object, decoder: Decoder) -> object:
        """Read the bytes."""
        dtype, data = fields(payload, 2)
        return cast("object", np.ndarray((), read_dtype(dtype), bytearray(part(data, bytes)))[()])


class DtypeCodec:
    """Dtypes."""

    tag = "numpy.dtype"

    def encode(self, value: np.dtype[Any], encoder: Encoder) -> object:
        """Write the name."""
        return write_dtype(value, value, encoder)

    def decode(self, payload: object, decoder: Decoder) -> np.dtype[Any]:
        """Look the name up."""
        return read_dtype(payload)


def add_arrays(table: CodecTable) -> None:
    """Add the codecs of this module to a table.

    Args:
        table: The table.
    """
    table.register(np.ndarray, ArrayCodec())
    table.register(np.generic, ArrayScalarCodec())
    table.register(np.dtype, DtypeCodec())
