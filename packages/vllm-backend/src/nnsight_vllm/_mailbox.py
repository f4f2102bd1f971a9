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
from concurrent.futures import TimeoutError as FutureTimeoutError
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


class Delivery:
    """What somebody expects for requests of theirs: one thing to wait for, however many they are.

    Attributes:
        found: The messages that have come, by key.
        complete: Done with `found` once all have.
    """

    def __init__(self, num_keys: int) -> None:
        """Expect so many messages."""
        self.found: dict[str, Message] = {}
        self.complete: Future[dict[str, Message]] = Future()
        self._num_keys = num_keys
        if not num_keys:
            self.complete.set_result(self.found)

    def take(self, key: str, message: Message) -> bool:
        """Take in a message, and tell whether anybody still wants it."""
        if self.complete.cancelled():
            return False
        self.found[key] = message
        if len(self.found) == self._num_keys and self.complete.set_running_or_notify_cancel():
            self.complete.set_result(self.found)
        return True

    def fail(self, error: BaseException) -> None:
        """Tell whoever waits that no more will come."""
        if not self.complete.done() and self.complete.set_running_or_notify_cancel():
            self.complete.set_exception(error)

    def wait(self, patience_s: float) -> dict[str, Message]:
        """Return the messages once all are here, or none has come for so long.

        Raises:
            Exception: What was told to whoever waits.
        """
        before = -1
        while len(self.found) > before:
            before = len(self.found)
            with contextlib.suppress(FutureTimeoutError):
                return self.complete.result(patience_s)
        return self.found.copy()


def news_key(key: str) -> str:
    """Return what messages are posted under that tell of a request under way."""
    return f"+{key}"


def is_own(address: str) -> bool:
    """Tell whether this very process opened a mailbox, so that nothing has to be posted to it."""
    return _opened.get(address) == os.getpid()


class Mailbox:
    """The caller's end: what was posted, by key."""

    def __init__(
        self,
        dropped: Callable[[bytes], None] = lambda message: None,
        read_ahead: Callable[[bytes], object] = lambda message: None,
    ) -> None:
        """Open a mailbox.

        Args:
            dropped: Told of each message that none of those whom it is for expects any more.
            read_ahead: Reads an expected message while its requests' caller still waits for others, in the mailbox's
                thread; None where that has to be left to whoever asks for it.
        """
        self._folder = tempfile.mkdtemp(prefix="nnsight-")
        self.address = f"ipc://{self._folder}/mailbox"
        _opened[self.address] = os.getpid()
        self._dropped = dropped
        self._read_ahead = read_ahead
        self._lock = threading.Lock()
        self._expected: dict[bytes, Delivery] = {}
        self._listening: dict[bytes, deque[Message]] = {}
        self._announced: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PULL)
        self._socket.set_hwm(0)
        self._socket.bind(self.address)
        self._thread = threading.Thread(target=self._receive, name="nnsight-mailbox", daemon=True)
        self._thread.start()

    def expect(self, keys: Sequence[str]) -> Delivery:
        """Expect a message for each key; to be called before anything can post one."""
        delivery = Delivery(len(keys))
        with self._lock:
            self._expected.update({key.encode(): delivery for key in keys})
        return delivery

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
        """Expect messages no longer; whoever waits for one of them is not told of the others either."""
        with self._lock:
            for key in keys:
                self._listening.pop(news_key(key).encode(), None)
                delivery = self._expected.pop(key.encode(), None)
                if delivery is not None:
                    delivery.complete.cancel()

    def fail(self, error: BaseException) -> None:
        """Let everything that is expected fail, since its senders are gone."""
        for delivery in self._give_up():
            delivery.fail(error)

    def close(self) -> None:
        """Close the mailbox, and let what is still expected be cancelled."""
        if self._thread.is_alive():
            # The socket belongs to its thread, which ends when it is told to through the socket itself.
            with contextlib.closing(self._context.socket(zmq.PUSH)) as sender:
                sender.connect(self.address)
                sender.send_multipart([_STOP, _STOP])
            self._thread.join()
        for delivery in self._give_up():
            delivery.complete.cancel()
        self._context.destroy(linger=0)
        _opened.pop(self.address, None)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _give_up(self) -> set[Delivery]:
        """Expect nothing more, and return what was expected."""
        with self._lock:
            expected, self._expected = set(self._expected.values()), {}
        return expected

    def _receive(self) -> None:
        with contextlib.closing(self._socket):
            while True:
                keys, data = self._socket.recv_multipart()
                if keys == _STOP:
                    return
                if keys == ANNOUNCEMENT.encode():
                    self._announced.put(data)
                    continue
                message = Message(data)
                if self._hand_out(keys.split(_BETWEEN_KEYS), message):
                    # An error is raised to whoever asks.
                    with contextlib.suppress(Exception):
                        message.read(self._read_ahead)

    def _hand_out(self, keys: Iterable[bytes], message: Message) -> bool:
        """Give a message to those whom it is for, and tell whether anybody expected it."""
        expected = heard_of = False
        with self._lock:
            for key in keys:
                delivery = self._expected.pop(key, None)
                if delivery is not None and delivery.take(key.decode(), message):
                    expected = True
                heard = self._listening.get(key)
                if heard is not None:
                    heard.append(message)
                    heard_of = True
        if not (expected or heard_of):
            self._dropped(message.data)
        return expected


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
