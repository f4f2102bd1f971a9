"""Which event loop the requests of an asynchronous engine share, and what becomes of them when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from nnsight.errors import InvalidRequestError


def enter_loop(llm: Any) -> None:
    """Let an engine's requests run in the event loop that runs now, if no other is in use.

    vLLM's readers of an engine's outputs are tasks that it starts once, and those of a loop that is over are over too.

    Raises:
        InvalidRequestError: Another event loop has requests of the engine, or may have them again.

    Source:
        vLLM 0.27.1, v1/engine/async_llm.py, AsyncLLM._run_output_handler, and v1/engine/core_client.py,
        AsyncMPClient._ensure_output_queue_task and DPAsyncMPClient._ensure_stats_update_task; sockets follow by
        themselves, see zmq.asyncio.
    """
    running = asyncio.get_running_loop()
    for holder, name, task in _readers(llm):
        loop = task.get_loop()
        if loop is running and not task.cancelled():
            continue
        if loop is not running and not loop.is_closed():
            raise InvalidRequestError(
                "the engine's requests run in another event loop, which is not closed yet. Make all requests of an "
                "engine in one loop, such as one asyncio.run for all of them, or close that loop first"
            )
        setattr(holder, name, None)
        # A queue belongs to the loop that first waited at it.
        llm.engine_core.outputs_queue = asyncio.Queue()


def hears(llm: Any) -> bool:
    """Tell whether replies of an engine are read yet; they are not any more when its event loop is about to end."""
    return not any(task.cancelled() for _, _, task in _readers(llm))


def let_streams_go(llm: Any) -> None:
    """Let go whoever waits for outputs of an engine that is shut down.

    Source:
        vLLM 0.27.1, v1/engine/output_processor.py, OutputProcessor.propagate_error
    """
    from vllm.v1.engine.exceptions import EngineDeadError

    def tell() -> None:
        llm.output_processor.propagate_error(EngineDeadError())

    for _, _, task in _readers(llm):
        if not task.get_loop().is_closed():
            task.get_loop().call_soon_threadsafe(tell)
            return


def _readers(llm: Any) -> Iterator[tuple[Any, str, asyncio.Task[Any]]]:
    resources = getattr(llm.engine_core, "resources", None)
    for holder, name in ((llm, "output_handler"), (resources, "output_queue_task"), (resources, "stats_update_task")):
        task = getattr(holder, name, None)
        if task is not None:
            yield holder, name, task
