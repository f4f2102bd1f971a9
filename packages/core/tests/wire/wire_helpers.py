"""Values and shortcuts that the tests of the codec share."""

from __future__ import annotations

import collections
import dataclasses
import enum
import struct
from typing import Any, ClassVar, NamedTuple

import msgspec
import torch

from nnsight._wire import CodecTable, Limits, decode, default_codecs, encode
from nnsight._wire.message import MAGIC, VERSION

CODECS = default_codecs()
TRUSTING = Limits(allow_objects=True)


def travel(value: object, codecs: CodecTable = CODECS, limits: Limits = TRUSTING) -> Any:
    return decode(encode(value, codecs=codecs), codecs=codecs, limits=limits)


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"
    ALSO_RED = "red"  # noqa: PIE796 - an alias


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Level(enum.IntEnum):
    LOW = 1


class Point(NamedTuple):
    x: int
    y: Any = None


@dataclasses.dataclass
class Settings:
    size: int
    parts: list[Any] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    name: str
    inner: tuple[int, ...] = ()


class Slotted:
    __slots__ = ("__secret", "__weakref__", "first")

    def __init__(self, first: object, secret: object) -> None:
        self.first = first
        self.__secret = secret

    @property
    def secret(self) -> object:
        return self.__secret


class SlottedChild(Slotted):
    __slots__ = ("first",)

    def __init__(self) -> None:
        super().__init__("of the child", "kept")
        Slotted.first.__set__(self, "of the parent")  # type: ignore[attr-defined]


class Probe(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = torch.nn.Linear(4, 8)
        self.decoder = torch.nn.Linear(8, 4, bias=False)
        self.register_buffer("mean", torch.ones(4))
        self.hooks: list[Any] = []

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.decoder(torch.relu(self.encoder(hidden - self.mean)))

    @classmethod
    def make(cls) -> Probe:
        return cls()

    @staticmethod
    def double(value: int) -> int:
        return 2 * value


class Loud:
    """Every way in which an object can run code when it is pickled or unpickled."""

    ran: list[str] = []  # noqa: RUF012 - the tests clear it

    def __new__(cls, *args: object) -> Loud:
        cls.ran.append("__new__")
        return super().__new__(cls)

    def __init__(self, value: object = None) -> None:
        self.ran.append("__init__")
        self.value = value

    def __reduce__(self) -> Any:
        self.ran.append("__reduce__")
        raise AssertionError

    def __reduce_ex__(self, protocol: Any) -> Any:
        self.ran.append("__reduce_ex__")
        raise AssertionError

    def __getstate__(self) -> Any:
        self.ran.append("__getstate__")
        raise AssertionError

    def __setstate__(self, state: object) -> None:
        self.ran.append("__setstate__")
        raise AssertionError

    def __setattr__(self, name: str, value: object) -> None:
        self.ran.append("__setattr__")
        super().__setattr__(name, value)

    def __getattribute__(self, name: str) -> Any:
        if name == "__dict__":
            raise AssertionError
        return super().__getattribute__(name)


class Tags(dict[str, Any]):
    def __setitem__(self, key: str, value: object) -> None:
        raise AssertionError

    def items(self) -> Any:
        raise AssertionError


class Ordered(collections.OrderedDict[str, Any]):
    pass


class Stack(list[Any]):
    pass


class Names(set[str]):
    pass


class Text(str):
    note: str


class Steps(int):
    pass


class Pair(tuple[Any, ...]):
    label: str


class OurError(ValueError):
    def __init__(self, message: str, code: int) -> None:
        super().__init__(message, code)
        self.code = code


def module_function(value: int) -> int:
    return value + 1


def make_closure() -> Any:
    def inner() -> None:
        return None

    return inner


assigned_closure = make_closure()


class Ticker:
    """An iterator in Python, whose state is plain."""

    def __init__(self) -> None:
        self.count = 0

    def __iter__(self) -> Ticker:
        return self

    def __next__(self) -> int:
        self.count += 1
        return self.count


class Adapter(msgspec.Struct, omit_defaults=True, array_like=True):
    """Runs code when it is made, as vLLM's requests for an adapter do."""

    made: ClassVar[list[str]] = []
    label: str
    rank: int = 8
    parts: list[Any] = []

    def __post_init__(self) -> None:
        self.made.append(self.label)


class NamedAdapter(Adapter, kw_only=True, dict=True):
    """Has a field more than its base, and attributes."""

    note: str


class FixedAdapter(Adapter, frozen=True, weakref=True):
    """Cannot be changed."""


class Overseer(msgspec.Struct):
    label: str = ""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)


def frame(header: bytes, payload: bytes = b"", version: int = VERSION) -> bytes:
    padding = b"\0" * (-len(header) % 8)
    return struct.pack("<4sHxxQ", MAGIC, version, len(header)) + header + padding + payload


def message(root: object, definitions: object = (), payload: bytes = b"") -> bytes:
    return frame(msgspec.msgpack.encode([root, definitions]), payload)


def safetensors(entries: dict[str, tuple[str, list[int], list[int]]], data: bytes) -> bytes:
    header = msgspec.json.encode(
        {name: {"dtype": dtype, "shape": shape, "data_offsets": ends} for name, (dtype, shape, ends) in entries.items()}
    )
    return len(header).to_bytes(8, "little") + header + data


def nested(levels: int, node: object = None) -> object:
    for _ in range(levels):
        node = ["list", [node]]
    return node
