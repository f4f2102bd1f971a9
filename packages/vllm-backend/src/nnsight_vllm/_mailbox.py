"""How workers send home what their requests saved: by messages, past the engine and without a collective call.

A collective call reaches every worker between two steps and waits for all of them, so one for each finished request
would hold up everybody's. A worker posts outcomes when it sees requests end, which vLLM tells it in the step after,
and a thread of the worker does the copying and the writing: one message for all that ended together. The messages go
through a socket in a folder that only this user can enter; large values stay in shared memory (`_transfer`), and the
message says where.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, TypeVar

import zmq

Content = TypeVar("Content")

# Leads workers of an engine that is being built to its mailbox.
ADDRESS_VARIABLE: Final = "NNSIGHT_MAILBOX"
# What a worker posts about itself when it starts.
ANNOUNCEMENT: Final = "worker"
# The outcome of a block that waits for the finished output of its request, which only the caller has.
WAITS_FOR_RESULT: Final = b""

# The mailboxes that were opened, by the process that did it; a forked process inherits the list.
_opened: dict[str, int] = {}

_STOP: Final = b""
_BETWEEN_KEYS: Final = b" "
# How long a closing worker tries to hand over what it has posted.
_LINGER_MS: Final = 1000


class Message:
    """What a worker posted, for one request or for several.

    Attributes:
        data: The bytes of it.
    """

    def __init__(self, data: bytes) -> None:
        """Hold what was posted."""
        self.data = data
        self._content: Any = None
        self._error: Exception | None = None
        self._lock = threading.Lock()

    def read(self, reader: Callable[[bytes], Content]) -> Content:
        """Return what a reader makes of the bytes, which it is given once, by whoever asks first."""
        with self._lock:
            if self._error is None and self._content is None:
                try:
                    self._content = reader(self.data)
                except Exception as error:  # noqa: BLE001 - raised to everybody who asks
                    self._error = error
            if self._error is not None:
                raise self._error
            found: Content = self._content
            return found


def news_key(key: str) -> str:
    """Return what messages are posted under that tell of a request under way."""
    return f"+{key}"


def is_own(address: str) -> bool:
    """Tell whether this very process opened a mailbox, so that nothing has to be posted to it."""
    return _opened.get(address) == os.getpid()


class Mailbox:
    """The caller's end: what was posted, by key."""

    def __init__(self, dropped: Callable[[bytes], None] = lambda message: None) -> None:
        """Open a mailbox.

        Args:
            dropped: Told of each message that none of those whom it is for expects any more.
        """
        self._folder = tempfile.mkdtemp(prefix="nnsight-")
        self.address = f"ipc://{self._folder}/mailbox"
        _opened[self.address] = os.getpid()
        self._dropped = dropped
        self._lock = threading.Lock()
        self._expected: dict[bytes, Future[Message]] = {}
        self._listening: dict[bytes, deque[Message]] = {}
        self._announced: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PULL)
        self._socket.set_hwm(0)
        self._socket.bind(self.address)
        self._thread = threading.Thread(target=self._receive, name="nnsight-mailbox", daemon=True)
        self._thread.start()

    def expect(self, key: str) -> Future[Message]:
        """Return the future of a message; to be called before anything can post it."""
        future: Future[Message] = Future()
        with self._lock:
            self._expected[key.encode()] = future
        return future

    def listen(self, key: str) -> deque[Message]:
        """Return where messages are put that tell of a request under way, as they come; `forget` ends it."""
        heard: deque[Message] = deque()
        with self._lock:
            self._listening[news_key(key).encode()] = heard
        return heard

    def announcements(self, count: int, timeout_s: float) -> list[bytes]:
        """Return what so many workers have posted about themselves; fewer where time runs out."""
        found: list[bytes] = []
        deadline = time.monotonic() + timeout_s
        with contextlib.suppress(queue.Empty):
            while len(found) < count:
                found.append(self._announced.get(timeout=max(0.0, deadline - time.monotonic())))
        return found

    def forget(self, keys: Iterable[str]) -> None:
        """Expect messages no longer."""
        with self._lock:
            for key in keys:
                self._listening.pop(news_key(key).encode(), None)
                future = self._expected.pop(key.encode(), None)
                if future is not None:
                    future.cancel()

    def fail(self, error: BaseException) -> None:
        """Let everything that is expected fail, since its senders are gone."""
        with self._lock:
            expected, self._expected = list(self._expected.values()), {}
        for future in expected:
            if future.set_running_or_notify_cancel():
                future.set_exception(error)

    def close(self) -> None:
        """Close the mailbox, and let what is still expected be cancelled."""
        if self._thread.is_alive():
            # The socket belongs to its thread, which ends when it is told to through the socket itself.
            with contextlib.closing(self._context.socket(zmq.PUSH)) as sender:
                sender.connect(self.address)
                sender.send_multipart([_STOP, _STOP])
            self._thread.join()
        with self._lock:
            expected, self._expected = list(self._expected.values()), {}
        for future in expected:
            future.cancel()
        self._context.destroy(linger=0)
        _opened.pop(self.address, None)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _receive(self) -> None:
        with contextlib.closing(self._socket):
            while True:
                keys, data = self._socket.recv_multipart()
                if keys == _STOP:
                    return
                if keys == ANNOUNCEMENT.encode():
                    self._announced.put(data)
                    continue
                self._hand_out(keys.split(_BETWEEN_KEYS), Message(data))

    def _hand_out(self, keys: Iterable[bytes], message: Message) -> None:
        wanted = False
        with self._lock:
            found = [self._expected.pop(key, None) for key in keys]
            for key in keys:
                heard = self._listening.get(key)
                if heard is not None:
                    heard.append(message)
                    wanted = True
        for future in found:
            if future is not None and future.set_running_or_notify_cancel():
                future.set_result(message)
                wanted = True
        if not wanted:
            self._dropped(message.data)


class Postbox:
    """A worker's end; a thread of its own makes the messages and sends them."""

    def __init__(self, address: str, prepare: Callable[[], None] = lambda: None) -> None:
        """Lead to a mailbox; nothing is opened before the first message.

        Args:
            address: Of the mailbox.
            prepare: Called once in the thread that makes the messages.
        """
        self._address = address
        self._prepare = prepare
        self._queue: queue.SimpleQueue[Callable[[], Iterable[tuple[Sequence[str], bytes]]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def reachable(self) -> bool:
        """Whether the mailbox is on this host and still open."""
        return Path(self._address.removeprefix("ipc://")).exists()

    def post(self, key: str, data: bytes) -> None:
        """Send a message."""
        self.post_each(lambda: [([key], data)])

    def post_each(self, make: Callable[[], Iterable[tuple[Sequence[str], bytes]]]) -> None:
        """Send messages.

        Args:
            make: Makes the messages, each with the keys that it is for, in another thread; it must not raise.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._send, name="nnsight-postbox", daemon=True)
            self._thread.start()
        self._queue.put(make)

    def close(self) -> None:
        """Send what was posted, for a second at most, and end."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(timeout=2 * _LINGER_MS / 1000)
            self._thread = None

    def _send(self) -> None:
        self._prepare()
        with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
            socket.set_hwm(0)
            socket.setsockopt(zmq.LINGER, _LINGER_MS)
            socket.connect(self._address)
            while (make := self._queue.get()) is not None:
                for keys, data in make():
                    socket.send_multipart([_BETWEEN_KEYS.join(key.encode() for key in keys), data], copy=False)
