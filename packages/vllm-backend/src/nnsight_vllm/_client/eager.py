"""The eager engine: vLLM's `LLM` with every module's forward run as Python."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from nnsight_vllm._client.engine import (
    PATIENCE_S,
    RunningEngine,
    read_answers,
    refusal_of,
    write_edit,
    write_keys,
    write_question,
)
from nnsight_vllm._client.outcomes import read_outcomes
from nnsight_vllm._client.sampling import REQUEST_KEYWORDS
from nnsight_vllm._client.submission import Submission, submitting
from nnsight_vllm._edits import INSTALL, UNINSTALL
from nnsight_vllm._mailbox import WAITS_FOR_RESULT
from nnsight_vllm.compat import public

if TYPE_CHECKING:
    from nnsight._trace import Edit, Outcome, Request
    from nnsight_vllm._mailbox import Delivery, Message


class EagerEngine(RunningEngine):
    """One running engine and the requests that it serves."""

    def __init__(self, repo: str, keywords: Mapping[str, Any]) -> None:
        """Start the engine; see `RunningEngine`."""
        self._lock = threading.RLock()
        super().__init__(repo, keywords)

    def _build(self, repo: str, keywords: Mapping[str, Any]) -> Any:
        return public.build_llm(repo, keywords)

    def _ask_workers(self) -> Sequence[bytes]:
        return self._call("nnsight_handshake")

    @property
    def tokenizer(self) -> Any:
        """The engine's tokenizer."""
        return public.tokenizer_of(self.llm)

    def generate(self, prompts: Sequence[Any], params: Sequence[Any], **keywords: Any) -> list[Any]:
        """Run untraced requests."""
        with self._lock:
            return self._generate(prompts, params, **keywords)

    def execute(self, requests: Sequence[Request]) -> list[Outcome]:
        """Run traced requests to their ends, and bring home what they saved."""
        self.refuse_dead()
        with submitting(requests, self) as submissions:
            return self.submit(submissions)

    def submit(self, submissions: Sequence[Submission]) -> list[Outcome]:
        """Run requests to their ends, and bring home what their blocks saved."""
        self.refuse_dead()
        keys = [key for each in submissions for key in each.sequence_keys]
        posted = self.mailbox.expect(keys) if self.posts else None
        with self._lock:
            try:
                results = self._generate(
                    [each.prompt for each in submissions],
                    [each.params for each in submissions],
                    **_joined_keywords(submissions),
                )
            except BaseException:
                self._discard(keys)
                raise
            return self._bring_home(submissions, results, posted)

    def install(self, edit: Edit) -> None:
        """Have an edit run beside all requests that are made from now on.

        Raises:
            UntransferableValueError: A value that its block names cannot travel.
            EngineError: The engine died.
            Exception: A worker could not read the block.
        """
        self.refuse_dead()
        data = write_edit(edit)
        with self._lock:
            refusal = refusal_of(self._call(INSTALL, data))
        if refusal is not None:
            raise refusal

    def uninstall(self, edits: Sequence[Edit]) -> None:
        """Have edits run beside no further request."""
        with self._lock:
            if self.died is None:
                self._call(UNINSTALL, write_keys(edits))

    def _generate(self, prompts: Sequence[Any], params: Sequence[Any], **keywords: Any) -> list[Any]:
        self.refuse_dead()
        llm, doing = self.llm, f"ran {len(prompts)} request(s)"
        try:
            outputs = public.generate(llm, prompts, params, **keywords)
        except public.engine_dead_errors() as error:
            raise self.death(doing, error) from error
        except BaseException as error:
            if self.llm is not None:
                public.abort_all(llm)
            elif isinstance(error, Exception):
                raise self.death(doing, error) from error
            raise
        # Another thread that shuts the engine down has it end what runs, as if that were complete.
        self.note_death(doing)
        return outputs

    def _bring_home(
        self, submissions: Sequence[Submission], results: Sequence[Any], posted: Delivery | None
    ) -> list[Outcome]:
        pairs = list(zip(submissions, results, strict=True))
        by_key = {key: result for each, result in pairs for key in each.sequence_keys}
        try:
            found: dict[str, Message] = {} if posted is None else posted.wait(PATIENCE_S)
            missing = [key for key in by_key if key not in found]
            self.mailbox.forget(missing)
            found |= self._collect(dict.fromkeys(missing))
            waiting = [key for key, message in found.items() if message.data == WAITS_FOR_RESULT]
            found |= self._collect({key: by_key[key] for key in waiting})
            return [read_outcomes(found, each.sequence_keys, result) for each, result in pairs]
        except BaseException:
            self._remove_files()
            raise

    def _collect(self, results: Mapping[str, Any]) -> dict[str, Message]:
        """Ask the workers for outcomes, giving them the finished outputs that the blocks wait for."""
        return read_answers(self._call("nnsight_collect", write_question(results))) if results else {}

    def _discard(self, keys: Sequence[str]) -> None:
        self.mailbox.forget(keys)
        try:
            self._call("nnsight_discard", msgspec.msgpack.encode(list(keys)))
        except Exception:  # noqa: BLE001 - the error that led here is the one to show
            return

    def _call(self, method: str, data: bytes | None = None) -> list[bytes]:
        self.refuse_dead()
        try:
            return public.call_workers(self.llm, method, data)
        except public.engine_dead_errors() as error:
            raise self.death("was asked for what its requests saved", error) from error


def _joined_keywords(submissions: Sequence[Submission]) -> dict[str, Any]:
    keywords: dict[str, Any] = {}
    for name, default in REQUEST_KEYWORDS.items():
        if any(name in each.keywords for each in submissions):
            keywords[name] = [each.keywords.get(name, default) for each in submissions]
    return keywords
