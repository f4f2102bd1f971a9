"""The asynchronous engine: vLLM's `AsyncLLM`, whose requests are streamed."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec

from nnsight_vllm._client.engine import PATIENCE_S, RunningEngine, read_answers, write_question
from nnsight_vllm._client.outcomes import read_news, read_outcomes
from nnsight_vllm._mailbox import WAITS_FOR_RESULT
from nnsight_vllm.compat import public

if TYPE_CHECKING:
    from nnsight._trace import Outcome
    from nnsight_vllm._client.submission import Submission
    from nnsight_vllm._mailbox import Message


class AsyncEngine(RunningEngine):
    """One running engine; its requests share the event loop that the first of them was run in."""

    def _build(self, repo: str, keywords: Mapping[str, Any]) -> Any:
        return public.build_async_llm(repo, keywords)

    @property
    def tokenizer(self) -> Any:
        """The engine's tokenizer."""
        return self.llm.get_tokenizer()

    async def generate(self, prompt: Any, params: Any, request_id: str, **keywords: Any) -> AsyncGenerator[Any, None]:
        """Run an untraced request and stream its outputs; the finished one has the completions of all sequences.

        Raises:
            EngineError: The engine was shut down, or died.
        """
        self.refuse_dead()
        completions = public.Completions(params)
        try:
            async with aclosing(self.llm.generate(prompt, params, request_id, **keywords)) as outputs:
                async for output in outputs:
                    completions.note(output)
                    yield output
        except public.engine_dead_errors() as error:
            raise self.death("ran a request", error) from error

    async def stream(self, submission: Submission) -> AsyncGenerator[tuple[Any, Outcome | None], None]:
        """Run a traced request and stream its outputs, the last with what became of the block.

        Where the request asks for it, every other output has what was saved since the one before as `saves`. A stream
        that is closed early ends its request, and nothing of it is left in the engine.
        """
        keys = submission.sequence_keys
        posted = {key: self.mailbox.expect(key) for key in keys} if self.posts else {}
        heard = {key: self.mailbox.listen(key) for key in keys if submission.request.prepared.streams}
        arrived = False
        try:
            running = self.generate(submission.prompt, submission.params, submission.key, **submission.keywords)
            async with aclosing(running) as outputs:
                async for output in outputs:
                    if not output.finished:
                        if heard:
                            await _attach_news(output, heard, keys)
                        yield output, None
                        continue
                    found = await self._receive(keys, output, posted)
                    outcome = await asyncio.to_thread(read_outcomes, found, keys, output)
                    arrived = True
                    yield output, outcome
        finally:
            self.mailbox.forget(keys)
            for key, messages in heard.items():
                # The values of a message may lie in a file, which goes when they are read.
                with contextlib.suppress(Exception):
                    read_news(messages, key)
            if not arrived and self.llm is not None:
                await self._discard(keys)

    async def _receive(
        self, keys: Sequence[str], result: Any, posted: Mapping[str, Future[Message]]
    ) -> dict[str, Message]:
        """Receive what became of each sequence, giving the finished output to those blocks that wait for it."""
        found: dict[str, Message] = {}
        for key, future in posted.items():
            try:
                posting: asyncio.Future[Message] = asyncio.wrap_future(future)
                found[key] = await asyncio.wait_for(posting, PATIENCE_S)
            except TimeoutError:
                self.mailbox.forget([key])
        found |= await self._collect({key: None for key in keys if key not in found})
        waiting = [key for key, message in found.items() if message.data == WAITS_FOR_RESULT]
        return found | await self._collect(dict.fromkeys(waiting, result))

    async def _collect(self, results: Mapping[str, Any]) -> dict[str, Message]:
        if not results:
            return {}
        try:
            replies = await self.llm.collective_rpc("nnsight_collect", args=(write_question(results),))
        except public.engine_dead_errors() as error:
            raise self.death("was asked for what a request saved", error) from error
        return read_answers(replies)

    async def _discard(self, keys: Sequence[str]) -> None:
        try:
            await self.llm.collective_rpc("nnsight_discard", args=(msgspec.msgpack.encode(list(keys)),))
        except Exception:  # noqa: BLE001 - the error that led here is the one to show
            return


async def _attach_news(output: Any, heard: Mapping[str, deque[Message]], keys: Sequence[str]) -> None:
    """Put what has been saved since the output before on each completion, and on an output that has just one."""
    for completion in output.outputs:
        key = keys[completion.index]
        messages = [heard[key].popleft() for _ in range(len(heard[key]))]
        completion.saves = (await asyncio.to_thread(read_news, messages, key)).saves if messages else {}
    if len(keys) == 1:
        output.saves = output.outputs[0].saves
