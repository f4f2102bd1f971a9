"""What the processes of an engine owe their caller: to outlive its Ctrl-C, and never to outlive itself."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from multiprocessing import connection
from multiprocessing.util import Finalize
from typing import Any, Final

from nnsight_vllm._mailbox import ADDRESS_VARIABLE, is_own
from nnsight_vllm._transfer import remove_files_of

# Nobody reads the answers that a longer end would wait for.
_END_S: Final = 30.0


def outlive_interrupts() -> None:
    """Let this process of an engine ignore SIGINT, as far as it is not the caller's own.

    A terminal and a notebook send Ctrl-C to the processes of the engine too. The caller aborts its requests and goes
    on, or ends and shuts the engine down.

    Source:
        vLLM 0.27.1, v1/engine/core.py, EngineCoreProc.run_engine_core, and v1/executor/multiproc_executor.py,
        WorkerProc.worker_main, whose handlers end their processes
    """
    if threading.current_thread() is not threading.main_thread() or not _serves_another_process():
        return
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def end_with_caller() -> None:
    """Let this engine core end when the process that started it has ended, however that was.

    A caller that is killed cannot shut its engine down, which would keep the device's memory for ever. The workers
    notice the end of the core by themselves.

    Source:
        vLLM 0.27.1, v1/engine/core.py, EngineCoreProc.run_engine_core, whose handler of SIGTERM ends the workers too,
        and v1/executor/multiproc_executor.py, WorkerProc.monitor_death_pipe
    """
    parent = multiprocessing.parent_process()
    if parent is not None and _serves_another_process():
        threading.Thread(target=_end_after, args=(parent,), name="nnsight-caller-watch", daemon=True).start()


def leave_no_files() -> None:
    """Let this worker remove, at its end, what it sent to a caller that has not fetched it."""
    if _serves_another_process():
        # Children of multiprocessing do not run what `atexit` was given.
        Finalize(None, remove_files_of, (os.getpid(),), exitpriority=0)


def _serves_another_process() -> bool:
    address = os.environ.get(ADDRESS_VARIABLE)
    return bool(address) and not is_own(str(address)) and multiprocessing.parent_process() is not None


def _end_after(parent: Any) -> None:
    try:
        # The pipe to the parent stays open in other children that it has forked.
        watched = os.pidfd_open(parent.pid)
    except ProcessLookupError:
        pass
    except (AttributeError, OSError):
        connection.wait([parent.sentinel])
    else:
        connection.wait([watched])
        os.close(watched)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_END_S)
    os._exit(1)
