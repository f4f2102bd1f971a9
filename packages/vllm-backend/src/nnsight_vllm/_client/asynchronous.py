"""The asynchronous engine: vLLM's `AsyncLLM`, whose requests are streamed."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from concurrent.futures import Future
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec

from nnsight.errors import EngineError
from nnsight_vllm._client.engine import PATIENCE_S, RunningEngine, read_answers, write_question
from nnsight_vllm._client.outcomes import read_news, read_outcome
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
        """Run an untraced request and stream its outputs.

        Raises:
            EngineError: The engine was shut down, or died.
        """
        if self.llm is None:
            raise EngineError("the engine was shut down; build another model")
        try:
            async with aclosing(self.llm.generate(prompt, params, request_id, **keywords)) as outputs:
                async for output in outputs:
                    yield output
        except public.engine_dead_errors() as error:
            raise EngineError(
                f"the engine died while it ran a request: {error}; the cause is in its log above"
            ) from error

    async def stream(self, submission: Submission) -> AsyncGenerator[tuple[Any, Outcome | None], None]:
        """Run a traced request and stream its outputs, the last with what became of the block.

        Where the request asks for it, every other output has what was saved since the one before as `saves`. A stream
        that is closed early ends its request, and nothing of it is left in the engine.
        """
        posted = self.mailbox.expect(submission.key) if self.posts else None
        heard = self.mailbox.listen(submission.key) if submission.request.prepared.streams else None
        arrived = False
        try:
            running = self.generate(submission.prompt, submission.params, submission.key, **submission.keywords)
            async with aclosing(running) as outputs:
                async for output in outputs:
                    if not output.finished:
                        if heard is not None:
                            output.saves = await self._news(heard, submission.key)
                        yield output, None
                        continue
                    outcome = await self._bring_home(submission.key, output, posted)
                    arrived = True
                    yield output, outcome
        finally:
            self.mailbox.forget([submission.key])
            if heard:
                # The values of a message may lie in a file, which goes when they are read.
                with contextlib.suppress(Exception):
                    read_news(heard, submission.key)
            if not arrived and self.llm is not None:
                await self._discard(submission.key)

    async def _news(self, heard: deque[Message], key: str) -> dict[str, object]:
        messages = [heard.popleft() for _ in range(len(heard))]
        if not messages:
            return {}
        return (await asyncio.to_thread(read_news, messages, key)).saves

    async def _bring_home(self, key: str, result: Any, posted: Future[Message] | None) -> Outcome:
        message = None if posted is None else await self._receive(key, posted)
        if message is None:
            message = await self._collect(key, None)
        if message is not None and message.data == WAITS_FOR_RESULT:
            message = await self._collect(key, result)
        return await asyncio.to_thread(read_outcome, message, key, result)

    async def _receive(self, key: str, posted: Future[Message]) -> Message | None:
        try:
            found: Message = await asyncio.wait_for(asyncio.wrap_future(posted), PATIENCE_S)
        except TimeoutError:
            self.mailbox.forget([key])
            return None
        return found

    async def _collect(self, key: str, result: Any) -> Message | None:
        replies = await self.llm.collective_rpc("nnsight_collect", args=(write_question({key: result}),))
        return read_answers(replies).get(key)

    async def _discard(self, key: str) -> None:
        try:
            await self.llm.collective_rpc("nnsight_discard", args=(msgspec.msgpack.encode([key]),))
        except Exception:  # noqa: BLE001 - the error that led here is the one to show
            return
