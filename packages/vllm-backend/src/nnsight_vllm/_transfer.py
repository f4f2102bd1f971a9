"""Large replies of a worker, handed to the client of the same host in a file in shared memory.

A collective call carries small replies well, and takes about a second for a hundred megabytes.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

Value = TypeVar("Value")

# Replies from this size on go through a file.
LARGE_BYTES: Final = 1 << 20
PREFIX: Final = "nnsight-"


def shared_folder() -> Path:
    """Return a folder in memory that both processes see, or the folder for temporary files."""
    memory = Path("/dev/shm")
    return memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir())


def write_shared(parts: Sequence[bytes | memoryview]) -> str:
    """Write data, given in parts, to a new file that only this user can read, and return its path."""
    path = shared_folder() / f"{PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "wb", buffering=1 << 18) as file:
            for part in parts:
                file.write(part)
    except BaseException:
        remove_shared(str(path))
        raise
    return str(path)


def read_shared(path: str, read: Callable[[memoryview], Value]) -> Value:
    """Read a file that `write_shared` made and remove it, whatever comes of reading it.

    Args:
        path: The file.
        read: Takes the data, which is gone when it returns.
    """
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:
                return read(view)
    finally:
        remove_shared(path)


def remove_shared(path: str) -> None:
    """Remove a file, if it is still there."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
