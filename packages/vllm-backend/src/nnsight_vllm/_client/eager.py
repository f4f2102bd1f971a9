"""The eager engine: vLLM's `LLM` with every module's forward run as Python."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

import nnsight_vllm
from nnsight._interleave import Receipt
from nnsight._program.failures import rebuild_error
from nnsight._trace import Outcome, Request
from nnsight._trace.messages import block_codecs, decode_values, encode_program
from nnsight._wire import encode
from nnsight.errors import EngineError, InvalidRequestError
from nnsight.events import PromptFacts
from nnsight.plugins import plugin_manager
from nnsight_vllm._client.guard import refuse_unguarded_script
from nnsight_vllm._transfer import PREFIX, read_shared, remove_shared, shared_folder
from nnsight_vllm.compat import public
from nnsight_vllm.compat.records import refuse_missing_seams
from nnsight_vllm.compat.requests import attach_program

if TYPE_CHECKING:
    from nnsight_vllm._client.prepared import PreparedRequest


class EagerEngine:
    """One running engine and the requests that it serves."""

    def __init__(self, repo: str, keywords: Mapping[str, Any]) -> None:
        """Start the engine and check that every worker carries our session.

        Raises:
            MissingMainGuardError: The running script would start its engine again in every spawned process.
            EngineError: A worker came up without our session, or vLLM lacks something that it needs.
        """
        refuse_missing_seams()
        refuse_unguarded_script()
        self._lock = threading.RLock()
        self.workers: list[dict[str, Any]] = []
        self.llm: Any = public.build_llm(repo, keywords)
        try:
            self.workers = self._handshake()
        except BaseException:
            self.shutdown()
            raise
        self._max_model_len = public.max_model_len(self.llm)
        self._budget, self._splits = public.step_budget(self.llm)

    @property
    def tokenizer(self) -> Any:
        """The engine's tokenizer."""
        return public.tokenizer_of(self.llm)

    @property
    def max_model_len(self) -> int:
        """The longest sequence that the engine takes, in tokens."""
        return self._max_model_len

    def check(self, num_prompt_tokens: int) -> None:
        """Refuse a traced prompt that could not be computed as its block needs it.

        Raises:
            InvalidRequestError: With the reason of the plugin that decided.
        """
        facts = PromptFacts(num_prompt_tokens, self._budget, self._splits, read_only=False)
        policy = plugin_manager().hook.resolve_prefill_policy(facts=facts)
        if policy is not None and policy.how == "refused":
            raise InvalidRequestError(policy.reason)

    def generate(self, prompts: Sequence[Any], params: Sequence[Any], **keywords: Any) -> list[Any]:
        """Run untraced requests."""
        with self._lock:
            return self._generate(prompts, params, **keywords)

    def execute(self, requests: Sequence[Request]) -> list[Outcome]:
        """Run traced requests to their ends, and bring home what they saved."""
        prompts, params, keys = [], [], []
        for request in requests:
            prepared: PreparedRequest = request.prepared
            key = uuid.uuid4().hex
            prompt, sampling = dict(prepared.prompt), prepared.params.clone()
            read_only = request.program.effects.read_only
            public.mark_traced(sampling, prompt, salt=None if read_only else f"nnsight:{key}")
            attach_program(sampling, key, encode_program(request.program))
            prompts.append(prompt)
            params.append(sampling)
            keys.append(key)
        with self._lock:
            try:
                results = self._generate(prompts, params, **_joined_keywords(requests))
            except BaseException:
                self._discard(keys)
                raise
            return self._collect(requests, keys, results)

    def shutdown(self) -> None:
        """End the engine's processes."""
        llm, self.llm = self.llm, None
        if llm is not None:
            public.shut_down(llm)
            self._remove_files()

    def _remove_files(self) -> None:
        for worker in self.workers:
            for path in shared_folder().glob(f"{PREFIX}{worker['process']}-*"):
                remove_shared(str(path))

    def _generate(self, prompts: Sequence[Any], params: Sequence[Any], **keywords: Any) -> list[Any]:
        if self.llm is None:
            raise EngineError("the engine was shut down; build another model")
        try:
            return public.generate(self.llm, prompts, params, **keywords)
        except public.engine_dead_errors() as error:
            raise EngineError(
                f"the engine died while it ran {len(prompts)} request(s): {error}; the cause is in its log above"
            ) from error
        except BaseException:
            public.abort_all(self.llm)
            raise

    def _collect(self, requests: Sequence[Request], keys: Sequence[str], results: Sequence[Any]) -> list[Outcome]:
        asked = []
        for request, key, result in zip(requests, keys, results, strict=True):
            wanted = request.program.effects.uses_result
            asked.append([key, encode(result, codecs=block_codecs(), name="result") if wanted else None])
        replies = self._call("nnsight_collect", msgspec.msgpack.encode(asked))
        parts = msgspec.msgpack.decode(next(reply for reply in replies if reply))
        try:
            return [_outcome(part, result) for part, result in zip(parts, results, strict=True)]
        except BaseException:
            self._remove_files()
            raise

    def _discard(self, keys: Sequence[str]) -> None:
        try:
            self._call("nnsight_discard", msgspec.msgpack.encode(list(keys)))
        except Exception:  # noqa: BLE001 - the error that led here is the one to show
            return

    def _call(self, method: str, data: bytes | None = None) -> list[bytes]:
        return public.call_workers(self.llm, method, data)

    def _handshake(self) -> list[dict[str, Any]]:
        try:
            replies = [json.loads(reply) for reply in self._call("nnsight_handshake")]
        except Exception as error:
            raise EngineError(
                f"the engine came up without nnsight in its workers ({error}). They load it through the entry point "
                "vllm.general_plugins: if VLLM_PLUGINS is set it must include 'nnsight', and the workers must run in "
                "the environment that nnsight-vllm is installed in; `nnsight doctor` shows what they see"
            ) from error
        for reply in replies:
            if reply["missing"]:
                raise EngineError(f"worker {reply['rank']} lacks: {'; '.join(reply['missing'])}")
            if reply["nnsight"] != nnsight_vllm.__version__:
                raise EngineError(
                    f"worker {reply['rank']} runs nnsight-vllm {reply['nnsight']}, this process "
                    f"{nnsight_vllm.__version__}; install one version in both"
                )
        return replies


def _joined_keywords(requests: Sequence[Request]) -> dict[str, Any]:
    keywords: dict[str, Any] = {}
    for name in ("lora_request", "priority"):
        values = [request.prepared.keywords.get(name) for request in requests]
        if any(value is not None for value in values):
            keywords[name] = values
    return keywords


def _values(place: bytes | str, result: Any) -> dict[str, Any]:
    if isinstance(place, str):
        return read_shared(place, lambda data, fetch: decode_values(data, result, fetch=fetch))
    return decode_values(place, result)


def _outcome(data: bytes | None, result: Any) -> Outcome:
    if data is None:
        return Outcome(
            result=result,
            error=EngineError("the engine returned no receipt for a traced request, so its block may not have run"),
        )
    parts = msgspec.msgpack.decode(data)
    named, unnamed, changes = (_values(parts[name], result) for name in ("named", "unnamed", "changes"))
    error = rebuild_error(parts["error"]) if parts["error"] is not None else None
    return Outcome(named, unnamed, changes, result, error, Receipt.from_dict(parts["receipt"]))
