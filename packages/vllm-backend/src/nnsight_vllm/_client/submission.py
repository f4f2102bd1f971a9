"""A request with blocks as vLLM takes it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nnsight._trace.messages import encode_program
from nnsight_vllm.compat.requests import attach, sequence_keys

if TYPE_CHECKING:
    from nnsight._program import Effects
    from nnsight._trace import Edit, Request
    from nnsight_vllm._client.engine import RunningEngine
    from nnsight_vllm._client.prepared import PreparedRequest


@dataclass(frozen=True)
class Submission:
    """One request whose blocks are asked about, ready to be handed to vLLM.

    Attributes:
        key: Our id of it.
        sequence_keys: What the outcome of each of its sequences comes home under.
        prompt: vLLM's prompt.
        params: vLLM's sampling parameters, which carry what is ours.
        keywords: Keywords of the request beside them, such as `lora_request`.
    """

    key: str
    sequence_keys: tuple[str, ...]
    prompt: dict[str, Any]
    params: Any
    keywords: dict[str, Any]

    @classmethod
    def of(cls, request: Request, engine: RunningEngine) -> Submission:
        """Write the program of a traced request and put it on its sampling parameters.

        Raises:
            UntransferableValueError: A value that the block names cannot travel.
            InvalidRequestError: The engine cannot compute the prompt as a block needs it.
        """
        prepared: PreparedRequest = request.prepared
        effects = request.program.effects
        program = {"program": encode_program(request.program), "writes": not effects.read_only}
        return cls._made(engine, prepared.prompt, prepared.params, prepared.keywords, request.edits, [effects], program)

    @classmethod
    def untraced(
        cls,
        engine: RunningEngine,
        prompt: Mapping[str, Any],
        params: Any,
        keywords: Mapping[str, Any],
        edits: Sequence[Edit] | None,
    ) -> Submission:
        """Ask about the edits of a request that has no block of its own.

        Args:
            engine: What it is for.
            prompt: vLLM's prompt.
            params: vLLM's sampling parameters.
            keywords: Keywords of the request beside them.
            edits: The edits that were chosen for it; None for all.

        Raises:
            InvalidRequestError: The engine cannot compute the prompt as a block needs it.
        """
        return cls._made(engine, prompt, params, keywords, edits, [], {})

    @classmethod
    def _made(
        cls,
        engine: RunningEngine,
        prompt: Mapping[str, Any],
        params: Any,
        keywords: Mapping[str, Any],
        edits: Sequence[Edit] | None,
        effects: Sequence[Effects],
        program: Mapping[str, Any],
    ) -> Submission:
        key, params = uuid.uuid4().hex, params.clone()
        beside = engine.edits if edits is None else edits
        all_effects = [*effects, *(edit.program.effects for edit in beside)]
        # Every block is asked, since one of them may refuse the prompt.
        whole = any([engine.keeps_whole(len(prompt["prompt_token_ids"]), each) for each in all_effects])
        # Without a choice, the engine core decides when the request gets there.
        chosen = {} if edits is None else {"edits": [edit.key for edit in edits]}
        attach(params, key=key, whole=whole, **program, **chosen)
        return cls(key, sequence_keys(params, key), dict(prompt), params, dict(keywords))
