"""Requests with blocks as vLLM takes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from nnsight._trace.shipping import Shipment, write_programs
from nnsight_vllm._transfer import remove_shared, write_shared
from nnsight_vllm.compat import public
from nnsight_vllm.compat.requests import attach, sequence_keys

if TYPE_CHECKING:
    from nnsight._program import Effects
    from nnsight._trace import Edit, Request
    from nnsight_vllm._client.engine import RunningEngine
    from nnsight_vllm._client.prepared import PreparedRequest

# A template of several requests that is larger lies in shared memory, and each request says where.
_LARGEST_WITH_EACH: Final = 1 << 14


@dataclass(frozen=True)
class Submission:
    """One request whose blocks are asked about, ready to be handed to vLLM.

    Attributes:
        key: Our id of it.
        sequence_keys: What the outcome of each of its sequences comes home under.
        prompt: vLLM's prompt.
        params: vLLM's sampling parameters, which carry what is ours.
        keywords: Keywords of the request beside them, such as `lora_request`.
        streams: Whether saves go home as they are made.
    """

    key: str
    sequence_keys: tuple[str, ...]
    prompt: dict[str, Any]
    params: Any
    keywords: dict[str, Any]
    streams: bool = False

    @classmethod
    def of(cls, request: Request, engine: RunningEngine, template: bytes | str, own: bytes) -> Submission:
        """Put a program on the sampling parameters of a request.

        Args:
            request: The request.
            engine: Runs it.
            template: What its program shares with others, or the file that this lies in.
            own: The values of its own.

        Raises:
            InvalidRequestError: The engine cannot compute the prompt as a block needs it.
        """
        effects = request.program.effects
        program = {"program": template, "values": own, "writes": not effects.read_only}
        return cls._made(engine, request.prepared, request.edits, [effects], program)

    @classmethod
    def untraced(cls, prepared: PreparedRequest, engine: RunningEngine, edits: Sequence[Edit] | None) -> Submission:
        """Ask about the edits of a request that has no block of its own.

        Args:
            prepared: Its input.
            engine: Runs it.
            edits: The edits that were chosen for it; None for all.

        Raises:
            InvalidRequestError: The engine cannot compute the prompt as a block needs it.
        """
        return cls._made(engine, prepared, edits, [], {})

    @classmethod
    def _made(
        cls,
        engine: RunningEngine,
        prepared: PreparedRequest,
        edits: Sequence[Edit] | None,
        effects: Sequence[Effects],
        program: Mapping[str, Any],
    ) -> Submission:
        key = engine.new_key()
        prompt, params, streams = dict(prepared.prompt), public.copy_of_params(prepared.params), prepared.streams
        beside = engine.edits if edits is None else edits
        all_effects = [*effects, *[edit.program.effects for edit in beside]]
        # Every block is asked, since one of them may refuse the prompt.
        whole = any([engine.keeps_whole(len(prompt["prompt_token_ids"]), each) for each in all_effects])
        # Without a choice, the engine core decides when the request gets there.
        chosen = {} if edits is None else {"edits": [edit.key for edit in edits]}
        attach(params, key=key, whole=whole, streams=streams, **program, **chosen)
        return cls(key, sequence_keys(params, key), prompt, params, prepared.keywords, streams)


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
