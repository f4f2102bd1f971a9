"""A traced request as vLLM takes it."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nnsight._trace.messages import encode_program
from nnsight_vllm.compat import public
from nnsight_vllm.compat.requests import attach_program, sequence_keys

if TYPE_CHECKING:
    from nnsight._trace import Request
    from nnsight_vllm._client.engine import RunningEngine
    from nnsight_vllm._client.prepared import PreparedRequest


@dataclass(frozen=True)
class Submission:
    """One traced request, ready to be handed to vLLM.

    Attributes:
        request: What it was made from.
        key: Our id of it.
        sequence_keys: What the outcome of each of its sequences comes home under.
        prompt: vLLM's prompt.
        params: vLLM's sampling parameters, which carry the program.
        keywords: Keywords of the request beside them, such as `lora_request`.
    """

    request: Request
    key: str
    sequence_keys: tuple[str, ...]
    prompt: dict[str, Any]
    params: Any
    keywords: dict[str, Any]

    @classmethod
    def of(cls, request: Request, engine: RunningEngine) -> Submission:
        """Write the program of a request and put it on its sampling parameters.

        Raises:
            UntransferableValueError: A value that the block names cannot travel.
            InvalidRequestError: The engine cannot compute the prompt as the block needs it.
        """
        prepared: PreparedRequest = request.prepared
        key = uuid.uuid4().hex
        prompt, params = dict(prepared.prompt), prepared.params.clone()
        effects = request.program.effects
        whole = engine.keeps_whole(len(prompt["prompt_token_ids"]), effects)
        public.mark_traced(params, prompt, salt=None if effects.read_only else f"nnsight:{key}")
        attach_program(params, key, encode_program(request.program), whole=whole)
        return cls(request, key, sequence_keys(params, key), prompt, params, prepared.keywords)
