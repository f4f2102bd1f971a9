"""Small immutable values of Python and of PyTorch."""

from __future__ import annotations

import datetime
import decimal
import pathlib
import types
import uuid
from typing import TYPE_CHECKING, Any, cast

import torch

from nnsight._wire.checks import fields, part
from nnsight.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nnsight._wire.decoder import Decoder
    from nnsight._wire.encoder import Encoder
    from nnsight._wire.table import CodecTable


class PartsCodec:
    """Values that are made by a call with a few plain arguments."""

    def __init__(self, tag: str, write: Callable[[Any], list[object]], read: Callable[..., object]) -> None:
        """Make a codec.

        Args:
            tag: The tag.
            write: Takes a value apart.
            read: Makes a value of its parts. It refuses parts of other types.
        """
        self.tag = tag
        self._write = write
        self._read = read

    def encode(self, value: object, encoder: Encoder) -> object:
        """Write the parts."""
        return [encoder.node(item) for item in self._write(value)]

    def decode(self, payload: object, decoder: Decoder) -> object:
        """Make the value of its parts."""
        return self._read(*[decoder.value(node) for node in part(payload, list)])


_RANGE_BITS = 1024


def _write_int(value: int) -> list[object]:
    return [value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)]


def _read_int(data: object) -> int:
    return int.from_bytes(part(data, bytes), "little", signed=True)


def _write_text(value: str) -> list[object]:
    return [value.encode("utf-8", "surrogatepass")]


def _read_text(data: object) -> str:
    return part(data, bytes).decode("utf-8", "surrogatepass")


def _read_complex(real: object, imaginary: object) -> complex:
    return complex(part(real, float), part(imaginary, float))


def _read_range(start: object, stop: object, step: object) -> range:
    bounds = part(start, int), part(stop, int), part(step, int)
    # The length of a range of huge numbers takes long to compute.
    if max(bound.bit_length() for bound in bounds) > _RANGE_BITS:
        raise WireError("the message has a range with huge bounds")
    return range(*bounds)


def _read_slice(start: object, stop: object, step: object) -> slice[object, object, object]:
    return slice(start, stop, step)


def _read_date(year: object, month: object, day: object) -> datetime.date:
    return datetime.date(part(year, int), part(month, int), part(day, int))


def _write_zone(value: datetime.timezone) -> list[object]:
    return [value.utcoffset(None), value.tzname(None)]


def _read_zone(offset: object, name: object) -> datetime.timezone:
    zone = datetime.timezone(part(offset, datetime.timedelta))
    return zone if zone.tzname(None) == name else datetime.timezone(part(offset, datetime.timedelta), part(name, str))


def _write_delta(value: datetime.timedelta) -> list[object]:
    return [value.days, value.seconds, value.microseconds]


def _read_delta(days: object, seconds: object, microseconds: object) -> datetime.timedelta:
    return datetime.timedelta(part(days, int), part(seconds, int), part(microseconds, int))


def _write_clock(value: datetime.time | datetime.datetime) -> list[object]:
    day: list[object] = [value.year, value.month, value.day] if isinstance(value, datetime.datetime) else []
    return [*day, value.hour, value.minute, value.second, value.microsecond, value.fold, value.tzinfo]


def _read_clock(kind: type[datetime.time] | type[datetime.datetime]) -> Callable[..., object]:
    def read(*parts: object) -> object:
        *numbers, fold, zone = parts
        return cast("Any", kind)(*[part(number, int) for number in numbers], fold=part(fold, int), tzinfo=zone)

    return read


_PATHS = (pathlib.PosixPath, pathlib.WindowsPath, pathlib.PurePosixPath, pathlib.PureWindowsPath)


def _read_path(kind: object, text: object) -> pathlib.PurePath:
    for path in _PATHS:
        if path.__name__ == kind:
            return path(part(text, str))
    raise WireError(f"the message has a path of the unknown kind {kind!r}")


def _named(type_: type) -> dict[str, object]:
    return {name: value for name, value in vars(torch).items() if type(value) is type_}


def _write_name(value: object) -> list[object]:
    return [str(value).removeprefix("torch.")]


def _read_name(type_: type) -> Callable[[object], object]:
    values = _named(type_)

    def read(name: object) -> object:
        if name not in values:
            raise WireError(f"this version of PyTorch has no {type_.__name__} of the name {name!r}")
        return values[part(name, str)]

    return read


def _read_size(*sizes: object) -> torch.Size:
    return torch.Size([part(size, int) for size in sizes])


def _read_device(text: object) -> torch.device:
    return torch.device(part(text, str))


class BytesCodec:
    """Bytes that are too many for the tree."""

    tag = "bytes"

    def encode(self, value: bytes, encoder: Encoder) -> object:
        """Write where the bytes are."""
        return encoder.buffers.add_bytes(value)

    def decode(self, payload: object, decoder: Decoder) -> bytes:
        """Read the bytes."""
        return bytes(decoder.buffers.raw(payload))


class ReturnTypeCodec:
    """Named results of PyTorch's functions, such as `torch.topk`."""

    tag = "torch.return_type"

    def encode(self, value: tuple[object, ...], encoder: Encoder) -> object:
        """Write the name and the items."""
        return [type(value).__name__, *[encoder.node(item, index) for index, item in enumerate(value)]]

    def decode(self, payload: object, decoder: Decoder) -> object:
        """Make the result of its items."""
        name, *items = fields(payload, 1, 32)
        kind = vars(torch.return_types).get(part(name, str))
        if not is_return_type(kind):
            raise WireError(f"this version of PyTorch has no result of the name {name!r}")
        return cast("Callable[[list[object]], object]", kind)([decoder.value(item) for item in items])


def is_return_type(kind: object) -> bool:
    """Say whether a class is one of PyTorch's named results.

    Args:
        kind: A class, or anything.
    """
    return isinstance(kind, type) and issubclass(kind, tuple) and kind.__module__ == "torch.return_types"


def add_scalars(table: CodecTable) -> None:
    """Add the codecs of this module to a table.

    Args:
        table: The table.
    """
    parts: list[tuple[type, str, Callable[[Any], list[object]], Callable[..., object]]] = [
        (int, "int", _write_int, _read_int),
        (str, "str", _write_text, _read_text),
        (complex, "complex", lambda value: [value.real, value.imag], _read_complex),
        (bytearray, "bytearray", lambda value: [bytes(value)], lambda data: bytearray(part(data, bytes))),
        (slice, "slice", lambda value: [value.start, value.stop, value.step], _read_slice),
        (range, "range", lambda value: [value.start, value.stop, value.step], _read_range),
        (types.EllipsisType, "ellipsis", lambda _: [], lambda: ...),
        (decimal.Decimal, "decimal", lambda value: [str(value)], lambda text: decimal.Decimal(part(text, str))),
        (uuid.UUID, "uuid", lambda value: [value.bytes], lambda data: uuid.UUID(bytes=part(data, bytes))),
        (datetime.date, "date", lambda value: [value.year, value.month, value.day], _read_date),
        (datetime.timedelta, "timedelta", _write_delta, _read_delta),
        (datetime.timezone, "timezone", _write_zone, _read_zone),
        (datetime.time, "time", _write_clock, _read_clock(datetime.time)),
        (datetime.datetime, "datetime", _write_clock, _read_clock(datetime.datetime)),
        (torch.dtype, "torch.dtype", _write_name, _read_name(torch.dtype)),
        (torch.layout, "torch.layout", _write_name, _read_name(torch.layout)),
        (torch.memory_format, "torch.memory_format", _write_name, _read_name(torch.memory_format)),
        (torch.device, "torch.device", lambda value: [str(value)], _read_device),
        (torch.Size, "torch.Size", list, _read_size),
    ]
    for type_, tag, write, read in parts:
        table.register(type_, PartsCodec(tag, write, read), subclasses=False)
    table.register(bytes, BytesCodec(), subclasses=False)
    path_codec = PartsCodec("path", lambda value: [type(value).__name__, str(value)], _read_path)
    for path in _PATHS:
        table.register(path, path_codec, subclasses=False)
    table.register_predicate(lambda value: is_return_type(type(value)), ReturnTypeCodec())
