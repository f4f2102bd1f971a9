"""A trace of an asynchronous engine, as its caller awaits or iterates it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from nnsight._trace import Outcome
from nnsight._trace.levels import hand_over
from nnsight.errors import EngineError, HandoverError, InvalidRequestError
from nnsight_vllm._client.submission import submitting

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from nnsight._trace import Request
    from nnsight_vllm._client.asynchronous import AsyncEngine
    from nnsight_vllm._client.submission import Submission

Arrive = Callable[[list[Outcome]], None]


class TraceStream:
    """The requests of one trace, which run while somebody awaits or iterates it.

    `await stream` runs them to their ends and returns the last output, or a list of them for a trace of invokes.
    `async for output in stream` yields vLLM's outputs as they come. Each output has the attributes `invoke`, its number
    in the trace, and, once it is finished, `saves`, `edits` and `receipt`, as has each of its completions.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        requests: Sequence[Request],
        observed: Callable[[int], AbstractContextManager[list[Outcome]]],
        arrive: Arrive,
        *,
        single: bool,
    ) -> None:
        """Prepare a stream; nothing runs before it is awaited.

        Args:
            engine: Runs the requests.
            requests: The requests of the trace.
            observed: Tells plugins of the run.
            arrive: Called with all outcomes; raises the first error.
            single: Whether the trace has an input of its own rather than invokes.
        """
        self._engine = engine
        self._requests = requests
        self._observed = observed
        self._arrive = arrive
        self._single = single
        self._used = False

    def __await__(self) -> Generator[Any, None, Any]:
        """Run the requests to their ends.

        Raises:
            Exception: What the block of a request raised; its `saves` holds what was saved.
        """
        return self._drain().__await__()

    async def __aiter__(self) -> AsyncGenerator[Any, None]:
        """Yield vLLM's outputs as they come; leaving early ends the requests.

        Raises:
            Exception: What the block of a request raised, when all requests are over.
        """
        if self._used:
            raise InvalidRequestError("this trace has run already; a stream is awaited or iterated once")
        self._used = True
        found: list[Outcome | None] = [None] * len(self._requests)
        with self._observed(len(self._requests)) as outcomes:
            async with aclosing(self._merged()) as merged:
                async for number, output, outcome in merged:
                    if outcome is not None:
                        found[number] = outcome
                    if output is None:
                        continue
                    output.invoke = number
                    yield output
            outcomes += [outcome for outcome in found if outcome is not None]
        self._arrive(outcomes)

    async def _drain(self) -> Any:
        last: list[Any] = [None] * len(self._requests)
        async with aclosing(self.__aiter__()) as outputs:
            async for output in outputs:
                last[output.invoke] = output
        return last[0] if self._single else last

    async def _merged(self) -> AsyncGenerator[tuple[int, Any, Outcome | None], None]:
        """Run the requests at once, but those that need values of others after these; yield what comes of any."""
        ready = [number for number, request in enumerate(self._requests) if not request.program.pending]
        with submitting([self._requests[number] for number in ready], self._engine) as made:
            if len(self._requests) == 1:
                async with aclosing(self._engine.stream(made[0])) as outputs:
                    async for output, outcome in outputs:
                        yield 0, output, outcome
                return
            async with aclosing(self._merged_several(dict(zip(ready, made, strict=True)))) as merged:
                async for item in merged:
                    yield item

    async def _merged_several(
        self, submissions: Mapping[int, Submission]
    ) -> AsyncGenerator[tuple[int, Any, Outcome | None], None]:
        waiting: asyncio.Queue[tuple[int, Any, Outcome | None] | BaseException | None] = asyncio.Queue()

        over: list[asyncio.Future[Outcome]] = [asyncio.get_running_loop().create_future() for _ in self._requests]

        async def stream(number: int, submission: Submission) -> None:
            async with aclosing(self._engine.stream(submission)) as outputs:
                async for output, outcome in outputs:
                    waiting.put_nowait((number, output, outcome))
                    if outcome is not None:
                        over[number].set_result(outcome)

        async def run(number: int, request: Request) -> None:
            try:
                if number in submissions:
                    await stream(number, submissions[number])
                else:
                    for pending in request.program.pending.values():
                        await over[pending.invoke]
                    done = [each.result() if each.done() else None for each in over]
                    handed = hand_over(request, done)
                    with submitting([handed], self._engine) as [submission]:
                        await stream(number, submission)
                waiting.put_nowait(None)
            except HandoverError as error:
                over[number].set_result(Outcome(error=error))
                waiting.put_nowait((number, None, over[number].result()))
                waiting.put_nowait(None)
            except Exception as error:  # noqa: BLE001 - raised again where the stream is read
                waiting.put_nowait(error)

        tasks = [asyncio.create_task(run(number, request)) for number, request in enumerate(self._requests)]
        try:
            left = len(tasks)
            while left:
                item = await waiting.get()
                if isinstance(item, BaseException):
                    raise item
                if item is None:
                    left -= 1
                else:
                    yield item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def gather_outputs(
    engine: AsyncEngine, prompts: Sequence[Any], params: Any, keywords: Mapping[str, Any], *, several: bool
) -> Any:
    """Run requests that no block runs beside at once, and return their last outputs in order."""

    async def last(prompt: Any) -> Any:
        found = None
        async with aclosing(engine.generate(prompt, params.clone(), uuid.uuid4().hex, **keywords)) as outputs:
            async for output in outputs:
                found = output
        return found

    found = await asyncio.gather(*(last(prompt) for prompt in prompts))
    return found if several else found[0]


async def gather_outcomes(engine: AsyncEngine, submissions: Sequence[Submission]) -> list[Outcome]:
    """Run requests with blocks at once, and return what became of each in order."""

    async def last(submission: Submission) -> Outcome:
        found: Outcome | None = None
        async with aclosing(engine.stream(submission)) as outputs:
            async for _, outcome in outputs:
                found = outcome or found
        return found or Outcome(error=EngineError("the request ended without a finished output"))

    return list(await asyncio.gather(*(last(submission) for submission in submissions)))
