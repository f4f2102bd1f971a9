"""What the user sees: progress, errors, and nothing of what an engine prints meanwhile."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, TextIO

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from nnsight.errors import EngineError, NNsightError

_TAIL = 20


@dataclass(frozen=True)
class Terminal:
    """Where a command writes.

    Attributes:
        output: What the user asked for.
        progress: What happens meanwhile; on standard error where the output is for programs.
        hidden: What engines print, where it is kept from the user.
    """

    output: Console
    progress: Console
    hidden: IO[bytes] | None = None

    @contextlib.contextmanager
    def step(self, doing: str, done: str) -> Iterator[None]:
        """Show that something is being done, and how long it took.

        Where it fails in the engine, the error carries the end of what the engine printed.

        Args:
            doing: Shown, with a spinner, until it is done.
            done: Shown from then on.
        """
        began = time.perf_counter()
        # Rich's own status would take over sys.stdout, and bring back what quiet_engine hides.
        spinner = Spinner("dots", doing)
        with Live(spinner, console=self.progress, transient=True, redirect_stdout=False, redirect_stderr=False):
            try:
                yield
            except Exception as error:
                if self.hidden is not None and _may_be_explained_by_the_engine(error):
                    _add_tail(error, self.hidden)
                raise
        line = Text.assemble(("✓ ", "green"), done, (f"  {time.perf_counter() - began:.1f} s", "dim"))
        self.progress.print(line)


@contextlib.contextmanager
def quiet_engine(*, verbose: bool = False, for_programs: bool = False) -> Iterator[Terminal]:
    """Keep what engines print away from the user, at the level of the operating system, their processes included.

    Args:
        verbose: Let it through, to standard error.
        for_programs: Whether the output is read by a program, so that progress must not mix with it.

    Yields:
        Where the command itself writes.
    """
    with contextlib.ExitStack() as stack:
        out, err = (stack.enter_context(_kept(stream)) for stream in (sys.stdout, sys.stderr))
        hidden = None if verbose else stack.enter_context(tempfile.TemporaryFile("a+b"))
        stack.enter_context(_redirected(2 if hidden is None else hidden.fileno()))
        yield Terminal(Console(file=out), Console(file=err if for_programs else out), hidden)


def print_error(error: BaseException) -> None:
    """Print an error as its message, with its notes, to standard error."""
    console = Console(stderr=True)
    console.print(Text.assemble(("error: ", "bold red"), str(error)), soft_wrap=True)
    for note in getattr(error, "__notes__", ()):
        console.print(Text(note, "dim"), soft_wrap=True)


@contextlib.contextmanager
def _kept(stream: TextIO) -> Iterator[TextIO]:
    """Give a stream that goes where `stream` goes now, whatever its descriptor is redirected to later."""
    try:
        descriptor = os.dup(stream.fileno())
    except (OSError, ValueError, AttributeError):
        yield stream  # replaced by Python code, so no process of an engine writes to it
        return
    with os.fdopen(descriptor, "w", encoding=stream.encoding, errors=stream.errors) as kept:
        yield kept


@contextlib.contextmanager
def _redirected(target: int) -> Iterator[None]:
    """Let standard output and standard error of this process and its children go to a file descriptor."""
    _flush()
    before = {descriptor: os.dup(descriptor) for descriptor in (1, 2)}
    try:
        for descriptor in before:
            os.dup2(target, descriptor)
        yield
    finally:
        _flush()
        for descriptor, own in before.items():
            os.dup2(own, descriptor)
            os.close(own)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def _may_be_explained_by_the_engine(error: Exception) -> bool:
    return isinstance(error, EngineError) or not isinstance(error, NNsightError)


def _add_tail(error: Exception, hidden: IO[bytes]) -> None:
    _flush()
    hidden.seek(0)
    lines = hidden.read().decode(errors="replace").splitlines()
    if lines:
        error.add_note("\n".join(["the engine printed last (all of it with --verbose):", *lines[-_TAIL:]]))
