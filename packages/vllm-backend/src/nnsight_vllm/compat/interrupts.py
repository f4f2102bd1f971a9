"""Ctrl-C is for the caller: a terminal and a notebook send it to the processes of the engine too, which would end."""

from __future__ import annotations

import multiprocessing
import signal
import threading


def outlive_interrupts() -> None:
    """Let this process of an engine ignore SIGINT, as far as it is not the caller's own.

    The caller aborts its requests and goes on, or ends and shuts the engine down.

    Source:
        vLLM 0.27.1, v1/engine/core.py, EngineCoreProc.run_engine_core, and v1/executor/multiproc_executor.py,
        WorkerProc.worker_main, whose handlers end their processes
    """
    if multiprocessing.parent_process() is None or threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
