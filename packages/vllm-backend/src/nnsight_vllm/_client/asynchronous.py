"""The asynchronous engine: vLLM's `AsyncLLM`, whose requests are streamed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec

from nnsight.errors import EngineError
from nnsight_vllm._client.engine import (
    PATIENCE_S,
    RunningEngine,
    read_answers,
    refusal_of,
    write_edit,
    write_keys,
    write_question,
)
from nnsight_vllm._client.outcomes import put_on_output, read_outcome
from nnsight_vllm._edits import INSTALL, UNINSTALL
from nnsight_vllm._mailbox import WAITS_FOR_RESULT
from nnsight_vllm.compat import public

if TYPE_CHECKING:
    from nnsight._trace import Edit, Outcome
    from nnsight_vllm._client.submission import Submission


class AsyncEngine(RunningEngine):
    """One running engine; its requests share the event loop that the first of them was run in."""

    def __init__(self, repo: str, keywords: Mapping[str, Any]) -> None:
        """Start the engine; see `RunningEngine`."""
        # Edits that were installed or cleared since the last request: a `with` statement cannot wait for the engine.
        self._changes: deque[tuple[str, bytes, Edit | None]] = deque()
        self._changing = asyncio.Lock()
        super().__init__(repo, keywords)
        public.prepare_requests(self.llm, self._change)

    def _build(self, repo: str, keywords: Mapping[str, Any]) -> Any:
        return public.build_async_llm(repo, keywords)

    def install(self, edit: Edit) -> None:
        """Have an edit run beside all requests that are made from now on; it is sent before the next of them.

        Raises:
            UntransferableValueError: A value that its block names cannot travel.
        """
        self._changes.append((INSTALL, write_edit(edit), edit))

    def uninstall(self, edits: Sequence[Edit]) -> None:
        """Have edits run beside no further request."""
        self._changes.append((UNINSTALL, write_keys(edits), None))

    async def _change(self) -> None:
        """Bring the engine's edits up to date, before a request is added to it.

        Raises:
            Exception: A worker could not read an edit, which is cleared then.
        """
        if not self._changes and not self._changing.locked():
            return
        async with self._changing:
            while self._changes:
                method, data, edit = self._changes[0]
                replies = await self.llm.collective_rpc(method, args=(data,))
                self._changes.popleft()
                refusal = None if edit is None else refusal_of(replies)
                if refusal is not None and edit is not None:
                    edit.clear()
                    raise refusal

    @property
    def tokenizer(self) -> Any:
        """The engine's tokenizer."""
        return self.llm.get_tokenizer()

    async def generate(self, prompt: Any, params: Any, request_id: str, **keywords: Any) -> AsyncGenerator[Any, None]:
        """Run an untraced request and stream its outputs.

        Raises:
            EngineError: The engine was shut down, or died.
            Exception: A worker could not read an edit that was installed before it.
        """
        if self.llm is None:
            raise EngineError("the engine was shut down; build another model")
        try:
            # Within vLLM's own method, an error would come out as one of vLLM's.
            await self._change()
            async with aclosing(self.llm.generate(prompt, params, request_id, **keywords)) as outputs:
                async for output in outputs:
                    yield output
        except public.engine_dead_errors() as error:
            raise EngineError(
                f"the engine died while it ran a request: {error}; the cause is in its log above"
            ) from error

    async def stream(self, submission: Submission) -> AsyncGenerator[tuple[Any, Outcome | None], None]:
        """Run a request and stream its outputs, the last with what became of its blocks.

        A stream that is closed early ends its request, and nothing of it is left in the engine.
        """
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
                    put_on_output(output, outcome)
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
        replies = await self.llm.collective_rpc("nnsight_collect", args=(write_question({key: result}),))
        return read_answers(replies, [key])[key]

    async def _discard(self, key: str) -> None:
        try:
            await self.llm.collective_rpc("nnsight_discard", args=(msgspec.msgpack.encode([key]),))
        except Exception:  # noqa: BLE001 - the error that led here is the one to show
            return
