"""Values that are refused by name."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import io
import multiprocessing.process
import queue
import socket
import subprocess
import threading
import types
import weakref
from typing import TYPE_CHECKING, NoReturn

import torch

from nnsight._wire.encoder import WAYS_OUT, Encoder
from nnsight.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nnsight._wire.decoder import Decoder
    from nnsight._wire.table import CodecTable

_INSIDE = "Make it inside the block, where it is used."
_TAKE = "Turn it into a list first, or make it inside the block."

REFUSED: tuple[tuple[tuple[type, ...], str, str], ...] = (
    ((io.IOBase,), "it is an open file", "Read what you need from it, or open it inside the block."),
    ((socket.socket,), "it is a socket", _INSIDE),
    (
        (type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.Event, threading.Semaphore),
        "it is a lock or another tool of threads",
        _INSIDE,
    ),
    ((threading.Thread,), "it is a thread", _INSIDE),
    ((threading.local, contextvars.ContextVar, contextvars.Context), "it belongs to one thread or task", WAYS_OUT),
    ((multiprocessing.process.BaseProcess, subprocess.Popen), "it is a process", _INSIDE),
    ((queue.Queue, queue.SimpleQueue), "it is a queue between threads", _TAKE),
    ((asyncio.Future, concurrent.futures.Future), "it is a result that is not there yet", "Wait for its result first."),
    ((asyncio.AbstractEventLoop, concurrent.futures.Executor), "it runs other work", _INSIDE),
    ((types.GeneratorType, types.AsyncGeneratorType), "it is a generator", _TAKE),
    ((types.CoroutineType,), "it is a coroutine", "Await it first."),
    (
        (types.FrameType, types.TracebackType, types.CodeType, types.CellType),
        "it is a part of running code",
        WAYS_OUT,
    ),
    ((weakref.ProxyType, weakref.CallableProxyType), "it is a weak proxy", WAYS_OUT),
    ((memoryview,), "it is a view of memory", "Turn it into bytes first."),
    (
        (torch.Generator,),
        "it is a random number generator",
        "Make it inside the block with `torch.Generator().manual_seed(...)`, or pass its `.get_state()`.",
    ),
    ((torch.UntypedStorage, torch.TypedStorage), "it is the memory of a tensor", "Pass the tensor."),
    ((torch.Stream, torch.Event, torch.cuda.Stream, torch.cuda.Event), "it belongs to a device", _INSIDE),
)

_REFUSED_TYPES = tuple(type_ for types_, _, _ in REFUSED for type_ in types_)
_MADE: tuple[Iterator[object], ...] = (
    iter([]),
    reversed([]),
    iter(()),
    iter({}),
    iter({}.values()),
    iter({}.items()),
    iter(set()),
    iter(range(0)),
    iter(range(1 << 70)),
    iter(""),
    iter(b""),
    iter(bytearray()),
    iter(lambda: 0, 0),
    map(str, ()),
    filter(None, ()),
    zip(),
    enumerate(()),
)
_ITERATORS = tuple(type(iterator) for iterator in _MADE)


class RefusedCodec:
    """Values of types that are refused, with the reason."""

    tag = "refused"

    def encode(self, value: object, encoder: Encoder) -> NoReturn:
        """Refuse the value."""
        for types_, reason, advice in REFUSED:
            if isinstance(value, types_):
                raise encoder.refusal(value, reason, advice)
        raise encoder.refusal(value, "it is an iterator", _TAKE)

    def decode(self, payload: object, decoder: Decoder) -> NoReturn:
        """Refuse the message."""
        raise WireError("the message has a value of a kind that is refused")


def add_refusals(table: CodecTable) -> None:
    """Add the codec of this module to a table, before the codecs of other predicates.

    Args:
        table: The table.
    """
    refused = (*_REFUSED_TYPES, *_ITERATORS)
    table.register_predicate(lambda value: isinstance(value, refused), RefusedCodec())
