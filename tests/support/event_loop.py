"""One event loop for the tests of an asynchronous engine."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

PROMPT = "w1 w2 w3"
KEYWORDS: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}


class Loop:
    """One event loop for all tests of an engine, which belongs to the loop that it was first used in."""

    def __init__(self, model: Any) -> None:
        """Use `model` in a loop of its own."""
        self.model = model
        self._loop = asyncio.new_event_loop()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run something to its end."""
        return self._loop.run_until_complete(asyncio.wait_for(work, 120))

    def close(self) -> None:
        """Close the loop."""
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()


async def left_in_the_worker(model: Any) -> int:
    """Return how many traced requests the worker of an engine still knows."""
    (reply, *_) = await model.vllm_entrypoint.collective_rpc("nnsight_discard", args=(b"\x90",))
    return int(reply)
