"""Messages between the two processes: a length, and that many bytes."""

from __future__ import annotations

import socket
import struct

_LENGTH = struct.Struct(">Q")


class Channel:
    """One end of a socket."""

    def __init__(self, connection: socket.socket) -> None:
        """Use a connected socket."""
        self._connection = connection

    def send(self, data: bytes) -> None:
        """Send one message.

        Raises:
            EOFError: The other process is gone.
        """
        try:
            self._connection.sendall(_LENGTH.pack(len(data)))
            self._connection.sendall(data)
        except ConnectionError as error:
            raise EOFError("the other process closed the connection") from error

    def receive(self) -> bytes:
        """Wait for one message.

        Raises:
            EOFError: The other process is gone.
        """
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        return self._read(length)

    def close(self) -> None:
        """Close this end; the other one reads no further message."""
        self._connection.close()

    def _read(self, length: int) -> bytes:
        data = bytearray(length)
        view = memoryview(data)
        while view:
            try:
                count = self._connection.recv_into(view)
            except ConnectionError as error:
                raise EOFError("the other process closed the connection") from error
            if not count:
                raise EOFError("the other process closed the connection")
            view = view[count:]
        return bytes(data)
