"""A request with blocks as vLLM takes it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nnsight._trace.messages import encode_program
from nnsight_vllm.compat.requests import attach

if TYPE_CHECKING:
    from nnsight._trace import Edit, Request
    from nnsight_vllm._client.prepared import PreparedRequest


@dataclass(frozen=True)
class Submission:
    """One request whose blocks are asked about, ready to be handed to vLLM.

    Attributes:
        key: Our id of it, which its outcome comes home under.
        prompt: vLLM's prompt.
        params: vLLM's sampling parameters, which carry what is ours.
        keywords: Keywords of the request beside them, such as `lora_request`.
    """

    key: str
    prompt: dict[str, Any]
    params: Any
    keywords: dict[str, Any]

    @classmethod
    def of(cls, request: Request) -> Submission:
        """Write the program of a traced request and put it on its sampling parameters.

        Raises:
            UntransferableValueError: A value that the block names cannot travel.
        """
        prepared: PreparedRequest = request.prepared
        program = {"program": encode_program(request.program), "writes": not request.program.effects.read_only}
        return cls._made(prepared.prompt, prepared.params, prepared.keywords, request.edits, program)

    @classmethod
    def untraced(
        cls, prompt: Mapping[str, Any], params: Any, keywords: Mapping[str, Any], edits: Sequence[Edit] | None
    ) -> Submission:
        """Ask about the edits of a request that has no block of its own.

        Args:
            prompt: vLLM's prompt.
            params: vLLM's sampling parameters.
            keywords: Keywords of the request beside them.
            edits: The edits that were chosen for it; None for all.
        """
        return cls._made(prompt, params, keywords, edits, {})

    @classmethod
    def _made(
        cls,
        prompt: Mapping[str, Any],
        params: Any,
        keywords: Mapping[str, Any],
        edits: Sequence[Edit] | None,
        program: Mapping[str, Any],
    ) -> Submission:
        key, params = uuid.uuid4().hex, params.clone()
        # Without a choice, the engine core decides when the request gets there.
        chosen = {} if edits is None else {"edits": [edit.key for edit in edits]}
        attach(params, key=key, **program, **chosen)
        given = {name: value for name, value in keywords.items() if value is not None}
        return cls(key, dict(prompt), params, given)
