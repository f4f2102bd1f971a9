"""The asynchronous engine: vLLM's `AsyncLLM`, whose requests are streamed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec

from nnsight_vllm._client.engine import PATIENCE_S, RunningEngine, read_answers, write_question
from nnsight_vllm._client.outcomes import read_outcomes
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

    async def stream(self, request: Request) -> AsyncGenerator[tuple[Any, Outcome | None], None]:
        """Run a traced request and stream its outputs, the last with what became of the block.

        A stream that is closed early ends its request, and nothing of it is left in the engine.
        """
        submission = Submission.of(request, self)
        keys = submission.sequence_keys
        posted = {key: self.mailbox.expect(key) for key in keys} if self.posts else {}
        arrived = False
        try:
            running = self.generate(submission.prompt, submission.params, submission.key, **submission.keywords)
            async with aclosing(running) as outputs:
                async for output in outputs:
                    if not output.finished:
                        yield output, None
                        continue
                    found = await self._receive(keys, output, posted)
                    outcome = await asyncio.to_thread(read_outcomes, found, keys, output)
                    arrived = True
                    yield output, outcome
        finally:
            if not arrived:
                self.mailbox.forget(keys)
                if self.llm is not None:
                    await self._discard(keys)

    async def _receive(
        self, keys: Sequence[str], result: Any, posted: Mapping[str, Future[bytes]]
    ) -> dict[str, bytes | None]:
        """Receive what became of each sequence, giving the finished output to those blocks that wait for it."""
        found: dict[str, bytes | None] = {}
        for key, future in posted.items():
            try:
                posting: asyncio.Future[bytes] = asyncio.wrap_future(future)
                found[key] = await asyncio.wait_for(posting, PATIENCE_S)
            except TimeoutError:
                self.mailbox.forget([key])
        found |= await self._collect({key: None for key in keys if key not in found})
        return found | await self._collect({key: result for key, data in found.items() if data == WAITS_FOR_RESULT})

    async def _collect(self, results: Mapping[str, Any]) -> dict[str, bytes | None]:
        if not results:
            return {}
        try:
            replies = await self.llm.collective_rpc("nnsight_collect", args=(write_question(results),))
        except public.engine_dead_errors() as error:
            raise self.death("was asked for what a request saved", error) from error
        return read_answers(replies, results)

    async def _discard(self, keys: Sequence[str]) -> None:
        try:
            await self.llm.collective_rpc("nnsight_discard", args=(msgspec.msgpack.encode(list(keys)),))
        except Exception:  # noqa: BLE001 - the error that led here is the one to show
            return
