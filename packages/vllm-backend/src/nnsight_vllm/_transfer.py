"""Large replies of a worker, handed to the client of the same host in a file in shared memory.

A collective call carries small replies well, and takes about a second for a hundred megabytes.

The client copies what it reads instead of mapping the file into its values. A mapping of any part of a file in memory
keeps all of it, so one small value would hold the whole reply, and it counts against the limit of `/dev/shm`, which
vLLM and NCCL need too. The copies are made by threads while the values are put together.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import secrets
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from nnsight._wire import Buffer, Fetch

Value = TypeVar("Value")

# Replies from this size on go through a file.
LARGE_BYTES: Final = 1 << 20
PREFIX: Final = "nnsight-"

# Large pages pay from here on; see madvise(2).
_HUGE_BYTES: Final = 2 << 20
_MOST_THREADS: Final = 4


def shared_folder() -> Path:
    """Return a folder in memory that both processes see, or the folder for temporary files."""
    memory = Path("/dev/shm")
    return memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir())


def is_shared(path: str) -> bool:
    """Tell whether a path is one that `write_shared` may have made."""
    folder, name = os.path.split(path)
    return folder == str(shared_folder()) and name.startswith(PREFIX)


def write_shared(parts: Iterable[bytes | memoryview]) -> str | None:
    """Write data, given in parts, to a new file that only this user can read.

    Returns:
        The file's path; None when there is no room for it.
    """
    path = shared_folder() / f"{PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        for part in parts:
            left = memoryview(part)
            while left:
                left = left[os.write(descriptor, left) :]
    except BaseException as error:
        remove_shared(str(path))
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return None
        raise
    finally:
        os.close(descriptor)
    return str(path)


def read_shared(path: str, read: Callable[[memoryview, Fetch], Value]) -> Value:
    """Read a file that `write_shared` made and remove it, whatever comes of reading it.

    Args:
        path: The file.
        read: Takes the data, which it must not keep, and a function that makes memory for the bytes between two
            offsets, which are there when `read_shared` returns.
    """
    copies: list[Future[None]] = []
    try:
        with open(path, "rb", buffering=0) as file, ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1)) as pool:
            descriptor = file.fileno()

            def fetch(begin: int, end: int) -> Buffer:
                buffer = _private_memory(end - begin)
                copies.append(pool.submit(_fill, descriptor, buffer, begin))
                return buffer

            # Not closed here: the traceback of an error in `read` still holds views of it.
            mapped = mmap.mmap(descriptor, os.fstat(descriptor).st_size, access=mmap.ACCESS_READ)
            value = read(memoryview(mapped), fetch)
    finally:
        remove_shared(path)
    for copy in copies:
        copy.result()
    return value


def remove_shared(path: str) -> None:
    """Remove a file, if it is still there."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def remove_files_of(process: int) -> None:
    """Remove all files that a process wrote and nobody has fetched."""
    for path in shared_folder().glob(f"{PREFIX}{process}-*"):
        remove_shared(str(path))


def _private_memory(size: int) -> Buffer:
    if size < _HUGE_BYTES:
        return bytearray(size)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # A kernel without large pages refuses the advice.
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _fill(descriptor: int, buffer: Buffer, begin: int) -> None:
    """Fill memory with the bytes of a file from `begin` on."""
    with memoryview(buffer) as whole:
        done = 0
        while done < len(whole):
            with whole[done:] as rest:
                count = os.preadv(descriptor, [rest], begin + done)
            if not count:
                raise EOFError(f"the file of a reply ended {len(whole) - done} bytes early")
            done += count
