"""Traced requests as vLLM takes them."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from nnsight._trace.shipping import Shipment, write_programs
from nnsight_vllm._transfer import remove_shared, write_shared
from nnsight_vllm.compat import public
from nnsight_vllm.compat.requests import attach_program, sequence_keys

if TYPE_CHECKING:
    from nnsight._trace import Request
    from nnsight_vllm._client.engine import RunningEngine
    from nnsight_vllm._client.prepared import PreparedRequest

# A template of several requests that is larger lies in shared memory, and each request says where.
_LARGEST_WITH_EACH: Final = 1 << 14


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
    def of(cls, request: Request, engine: RunningEngine, template: bytes | str, own: bytes) -> Submission:
        """Put a program on the sampling parameters of a request.

        Args:
            request: The request.
            engine: Runs it.
            template: What its program shares with others, or the file that this lies in.
            own: The values of its own.

        Raises:
            InvalidRequestError: The engine cannot compute the prompt as the block needs it.
        """
        prepared: PreparedRequest = request.prepared
        key = secrets.token_hex(16)
        prompt, params = dict(prepared.prompt), public.copy_of_params(prepared.params)
        effects = request.program.effects
        whole = engine.keeps_whole(len(prompt["prompt_token_ids"]), effects)
        public.mark_traced(params, prompt, salt=None if effects.read_only else f"nnsight:{key}")
        attach_program(params, key, template, own, whole=whole, streams=prepared.streams)
        return cls(request, key, sequence_keys(params, key), prompt, params, prepared.keywords)


@contextmanager
def submitting(requests: Sequence[Request], engine: RunningEngine) -> Iterator[list[Submission]]:
    """Write the programs of requests, and keep them within reach of the workers until the requests are over.

    Args:
        requests: The requests of a trace.
        engine: Runs them.

    Raises:
        UntransferableValueError: A value that a block names cannot travel.
        InvalidRequestError: The engine cannot compute a prompt as its block needs it.
    """
    shipments = write_programs([request.program for request in requests])
    files: dict[int, str] = {}
    try:
        if engine.shares_host:
            files = _write_large(shipments)
        yield [
            Submission.of(request, engine, files.get(id(shipment.template), shipment.template), shipment.own)
            for request, shipment in zip(requests, shipments, strict=True)
        ]
    finally:
        for path in files.values():
            remove_shared(path)


def _write_large(shipments: Sequence[Shipment]) -> dict[int, str]:
    """Put large templates that several requests share into files; return these by the identity of the template."""
    uses: dict[int, list[bytes]] = {}
    for shipment in shipments:
        uses.setdefault(id(shipment.template), []).append(shipment.template)
    files = {}
    for number, templates in uses.items():
        if len(templates) > 1 and len(templates[0]) > _LARGEST_WITH_EACH:
            path = write_shared([templates[0]])
            if path is not None:
                files[number] = path
    return files
