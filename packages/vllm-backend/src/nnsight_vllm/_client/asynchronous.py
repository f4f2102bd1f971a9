"""The asynchronous engine: vLLM's `AsyncLLM`, whose requests are streamed."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

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
from nnsight_vllm._client.outcomes import read_news, read_outcomes
from nnsight_vllm._edits import INSTALL, UNINSTALL
from nnsight_vllm._mailbox import WAITS_FOR_RESULT
from nnsight_vllm.compat import public
from nnsight_vllm.compat.event_loops import enter_loop, hears

# So often a call of the workers looks whether they still live.
_LOOK_S: Final = 0.5

if TYPE_CHECKING:
    from nnsight._trace import Edit, Outcome
    from nnsight_vllm._client.submission import Submission
    from nnsight_vllm._mailbox import Delivery, Message


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
        """Bring the engine's event loop and its edits up to date, before a request is added to it.

        Raises:
            InvalidRequestError: Another event loop has requests of the engine.
            EngineError: The engine died.
            Exception: A worker could not read an edit, which is cleared then.
        """
        enter_loop(self.llm)
        if not self._changes and not self._changing.locked():
            return
        async with self._changing:
            while self._changes:
                method, data, edit = self._changes[0]
                replies = await self._call(method, data, "was told of an edit")
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
        """Run an untraced request and stream its outputs; the finished one has the completions of all sequences.

        Raises:
            InvalidRequestError: Another event loop has requests of the engine.
            EngineError: The engine was shut down, or died.
            Exception: A worker could not read an edit that was installed before it.
        """
        self.refuse_dead()
        # Within vLLM's own method, an error would come out as one of vLLM's.
        await self._change()
        completions = public.Completions(params)
        try:
            async with aclosing(self.llm.generate(prompt, params, request_id, **keywords)) as outputs:
                async for output in outputs:
                    if self.llm is None:
                        # What runs is ended then, as if it were complete.
                        self.note_death("ran a request")
                    completions.note(output)
                    yield output
        except public.engine_dead_errors() as error:
            raise self.death("ran a request", error) from error

    async def stream(self, submission: Submission) -> AsyncGenerator[tuple[Any, Outcome | None], None]:
        """Run a request and stream its outputs, the last with what became of its blocks.

        Where the request asks for it, every other output has what was saved since the one before as `saves`. A stream
        that is closed early ends its request, and nothing of it is left in the engine.
        """
        keys = submission.sequence_keys
        posted = self.mailbox.expect(keys) if self.posts else None
        heard = {key: self.mailbox.listen(key) for key in keys if submission.streams}
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

    async def _receive(self, keys: Sequence[str], result: Any, posted: Delivery | None) -> dict[str, Message]:
        """Receive what became of each sequence, giving the finished output to those blocks that wait for it."""
        found: dict[str, Message] = {}
        if posted is not None:
            arriving, before = asyncio.wrap_future(posted.complete), -1
            # As `Delivery.wait` does: patience is for the next message, not for those of all sequences.
            while not arriving.done() and len(posted.found) > before:
                before = len(posted.found)
                await asyncio.wait({arriving}, timeout=PATIENCE_S)
            found |= arriving.result() if arriving.done() else posted.found
            self.mailbox.forget([key for key in keys if key not in found])
        found |= await self._collect({key: None for key in keys if key not in found})
        waiting = [key for key, message in found.items() if message.data == WAITS_FOR_RESULT]
        return found | await self._collect(dict.fromkeys(waiting, result))

    async def _collect(self, results: Mapping[str, Any]) -> dict[str, Message]:
        if not results:
            return {}
        return read_answers(await self._call("nnsight_collect", write_question(results)))

    async def _discard(self, keys: Sequence[str]) -> None:
        try:
            await self._call("nnsight_discard", msgspec.msgpack.encode(list(keys)))
        except Exception:  # noqa: BLE001 - the error that led here is the one to show
            return

    async def _call(
        self, method: str, data: bytes, doing: str = "was asked for what a request saved"
    ) -> Sequence[bytes]:
        """Call a method of our session in every worker, as long as they live and are heard."""
        self.refuse_dead()
        llm = self.llm
        calling = asyncio.ensure_future(llm.collective_rpc(method, args=(data,)))
        try:
            while not (await asyncio.wait({calling}, timeout=_LOOK_S))[0]:
                self.note_death(doing)
                if not hears(llm):
                    raise EngineError(f"the event loop is ending, in which the engine {doing}")
            replies: Sequence[bytes] = calling.result()
        except public.engine_dead_errors() as error:
            raise self.death(doing, error) from error
        finally:
            calling.cancel()
        return replies


async def _attach_news(output: Any, heard: Mapping[str, deque[Message]], keys: Sequence[str]) -> None:
    """Put what has been saved since the output before on each completion, and on an output that has just one."""
    for completion in output.outputs:
        key = keys[completion.index]
        messages = [heard[key].popleft() for _ in range(len(heard[key]))]
        completion.saves = (await asyncio.to_thread(read_news, messages, key)).saves if messages else {}
    if len(keys) == 1:
        output.saves = output.outputs[0].saves
