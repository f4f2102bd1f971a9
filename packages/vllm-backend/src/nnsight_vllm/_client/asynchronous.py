"""The asynchronous engine: vLLM's `AsyncLLM`, whose requests are streamed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from concurrent.futures import Future
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec

from nnsight_vllm._client.engine import PATIENCE_S, RunningEngine, read_answers, write_question
from nnsight_vllm._client.outcomes import read_outcome
from nnsight_vllm._client.submission import Submission
from nnsight_vllm._mailbox import WAITS_FOR_RESULT
from nnsight_vllm.compat import public

if TYPE_CHECKING:
    from nnsight._trace import Outcome, Request


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
        self.refuse_dead()
        try:
            async with aclosing(self.llm.generate(prompt, params, request_id, **keywords)) as outputs:
                async for output in outputs:
                    yield output
        except public.engine_dead_errors() as error:
            raise self.death("ran a request", error) from error

    async def stream(self, request: Request) -> AsyncGenerator[tuple[Any, Outcome | None], None]:
        """Run a traced request and stream its outputs, the last with what became of the block.

        A stream that is closed early ends its request, and nothing of it is left in the engine.
        """
        submission = Submission.of(request, self)
        posted = self.mailbox.expect(submission.key) if self.posts else None
        arrived = False
        try:
            running = self.generate(submission.prompt, submission.params, submission.key, **submission.keywords)
            async with aclosing(running) as outputs:
                async for output in outputs:
                    if not output.finished:
                        yield output, None
                        continue
                    outcome = await self._bring_home(submission.key, output, posted)
                    arrived = True
                    yield output, outcome
        finally:
            if not arrived:
                self.mailbox.forget([submission.key])
                if self.llm is not None:
                    await self._discard(submission.key)

    async def _bring_home(self, key: str, result: Any, posted: Future[bytes] | None) -> Outcome:
        data = None if posted is None else await self._receive(key, posted)
        if data is None:
            data = await self._collect(key, None)
        if data == WAITS_FOR_RESULT:
            data = await self._collect(key, result)
        return await asyncio.to_thread(read_outcome, data, result)

    async def _receive(self, key: str, posted: Future[bytes]) -> bytes | None:
        try:
            found: bytes = await asyncio.wait_for(asyncio.wrap_future(posted), PATIENCE_S)
        except TimeoutError:
            self.mailbox.forget([key])
            return None
        return found

    async def _collect(self, key: str, result: Any) -> bytes | None:
        try:
            replies = await self.llm.collective_rpc("nnsight_collect", args=(write_question({key: result}),))
        except public.engine_dead_errors() as error:
            raise self.death("was asked for what a request saved", error) from error
        return read_answers(replies, [key])[key]

    async def _discard(self, key: str) -> None:
        try:
            await self.llm.collective_rpc("nnsight_discard", args=(msgspec.msgpack.encode([key]),))
        except Exception:  # noqa: BLE001 - the error that led here is the one to show
            return
