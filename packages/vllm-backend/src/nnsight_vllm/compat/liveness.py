"""Noticing that a process of an engine has died, and letting go of callers that wait for it.

vLLM notices by itself too, but a caller of its synchronous client waits on for ever when the engine core is killed, and
so does a collective call: nobody is left who would answer.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing import connection
from typing import Any, Final

_EXIT_CODE_S: Final = 1.0


class DeathWatch:
    """Waits for the death of a process of one engine, in a thread."""

    def __init__(self, llm: Any, workers: Sequence[Mapping[str, Any]], died: Callable[[str], None]) -> None:
        """Begin to watch.

        Args:
            llm: vLLM's engine, whose processes run on this host.
            workers: What each worker said of itself.
            died: Told once, in another thread, who died; callers that wait for the engine are let go afterwards.
        """
        self._died = died
        self._core = getattr(llm, "llm_engine", llm).engine_core
        self._stopped, self._stop = os.pipe()
        # By descriptor: of one process each.
        self._watched: dict[int, Callable[[], str]] = {}
        self._opened: list[int] = []
        self._watch_processes(workers)
        self._thread = threading.Thread(target=self._wait, name="nnsight-death-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Watch no longer; to be called once."""
        os.write(self._stop, b"x")
        self._thread.join()
        for descriptor in (*self._opened, self._stopped, self._stop):
            os.close(descriptor)

    def _watch_processes(self, workers: Sequence[Mapping[str, Any]]) -> None:
        manager = getattr(self._core.resources, "engine_manager", None)
        cores = list(getattr(manager, "processes", ()))
        for process in cores:
            self._watched[process.sentinel] = partial(_how, process)
        known = {process.pid for process in cores}
        for worker in workers:
            pid = worker["process"]
            if pid in known or not hasattr(os, "pidfd_open"):
                continue
            try:
                descriptor = os.pidfd_open(pid)
            except OSError:
                continue
            self._opened.append(descriptor)
            ended = f"its worker of rank {worker['rank']} (process {pid}) ended"
            self._watched[descriptor] = partial(str, ended)

    def _wait(self) -> None:
        ready = connection.wait([*self._watched, self._stopped])
        if self._stopped in ready:
            return
        # The core is told apart from a worker, which it takes with it.
        who = next(text for descriptor, text in self._watched.items() if descriptor in ready)
        self._died(who())
        release_callers(self._core)


def release_callers(core: Any) -> None:
    """Let callers of a synchronous client go that wait for an engine which is dead.

    Source:
        vLLM 0.27.1, v1/engine/core_client.py, SyncMPClient.get_output and call_utility
    """
    import queue

    from vllm.v1.engine.exceptions import EngineDeadError

    outputs = core.outputs_queue
    if not isinstance(outputs, queue.Queue):
        return  # the asynchronous client lets them go itself
    # Before callers are let go: who comes later, and what they call next, is refused instead of waiting.
    core.resources.engine_dead = True
    outputs.put_nowait(EngineDeadError())
    for future in list(core.utility_results.values()):
        with contextlib.suppress(Exception):
            future.set_exception(EngineDeadError())


def _how(process: Any) -> str:
    """Say how the engine core, a child process, ended."""
    deadline = time.monotonic() + _EXIT_CODE_S
    # vLLM waits for the child too, and only one thread is given its exit code, which then has to set it.
    while (code := process.exitcode) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    end = f"ended with exit code {code}"
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            end = f"was killed by {signal.Signals(-code).name}"
    return f"its engine core (process {process.pid}) {end}"
