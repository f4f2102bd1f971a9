"""The worker as its client sees it."""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import astuple
from typing import TYPE_CHECKING

from nnsight.errors import EngineError
from nnsight_example_backend.channel import Channel

if TYPE_CHECKING:
    from nnsight_example_backend.engine import Prompt

_PATIENCE_S = 10


class WorkerProcess:
    """A running worker."""

    def __init__(self, seed: int) -> None:
        """Start the worker; it is ready once it answers its first batch."""
        ours, theirs = socket.socketpair()
        self._channel = Channel(ours)
        with theirs:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "nnsight_example_backend.worker", str(theirs.fileno()), str(seed)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # Blocks name functions and classes by their module, which has to be found there as here.
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                # An interrupt from the terminal is for the client, which then ends the worker itself.
                start_new_session=True,
            )

    def run(
        self, prompts: Sequence[Prompt], names: Sequence[Sequence[str]], programs: Sequence[Sequence[bytes]]
    ) -> list[bytes]:
        """Run requests as one batch, and return the outcome of each as the engine wrote it.

        Args:
            prompts: Their inputs.
            names: The names of their edits.
            programs: The programs of their edits and then their own.

        Raises:
            EngineError: The worker ended before it answered.
        """
        try:
            batch = [[*astuple(prompt), list(each)] for prompt, each in zip(prompts, names, strict=True)]
            self._channel.send(json.dumps(batch).encode())
            for program in itertools.chain.from_iterable(programs):
                self._channel.send(program)
            return [self._channel.receive() for _ in prompts]
        except EOFError as error:
            status = self._child.wait(_PATIENCE_S)
            raise EngineError(
                f"the worker ended with exit status {status} while it ran {len(prompts)} request(s); its own messages "
                "are above, and the next trace starts another"
            ) from error

    def close(self) -> None:
        """End the worker, whatever it is doing."""
        self._channel.close()
        self._child.kill()
        self._child.wait()
