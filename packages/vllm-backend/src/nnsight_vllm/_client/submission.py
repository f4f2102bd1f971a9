"""Requests with blocks as vLLM takes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import msgspec

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


class PrefillPolicies:
    """How the prompts of one trace are computed beside their blocks. Plugins are asked once about equal facts."""

    def __init__(self, engine: RunningEngine) -> None:
        """Ask about the requests of one trace."""
        self._engine = engine
        self._known: dict[tuple[int, bool, bool], bool] = {}

    def keep_whole(self, num_prompt_tokens: int, effects: Sequence[Effects]) -> bool:
        """Tell whether the scheduler must keep a prompt whole for one of the blocks beside it.

        Raises:
            InvalidRequestError: The prompt cannot be computed as a block needs it.
        """
        whole = False
        # Every block is asked, since one of them may refuse the prompt.
        for each in effects:
            facts = num_prompt_tokens, each.read_only, each.follows_pieces
            known = self._known.get(facts)
            if known is None:
                known = self._known[facts] = self._engine.keeps_whole(num_prompt_tokens, each)
            whole = whole or known
        return whole


# There is one for each request, and nothing that it holds can refer back to it.
class Submission(msgspec.Struct, gc=False):
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


def untraced(
    engine: RunningEngine, prepared: Sequence[PreparedRequest], edits: Sequence[Edit] | None
) -> list[Submission]:
    """Ask about the edits of requests that have no blocks of their own.

    Args:
        engine: Runs them.
        prepared: Their inputs.
        edits: The edits that were chosen for them; None for all.

    Raises:
        InvalidRequestError: The engine cannot compute a prompt as a block needs it.
    """
    policies = PrefillPolicies(engine)
    effects = _effects_of(engine, edits)
    return [_made(engine, each, edits, policies.keep_whole(each.num_tokens, effects), {}) for each in prepared]


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
        policies = PrefillPolicies(engine)
        submissions = [
            _traced(engine, policies, request, files.get(id(shipment.template), shipment.template), shipment.own)
            for request, shipment in zip(requests, shipments, strict=True)
        ]
        # The parameters of the requests hold what travels.
        del shipments
        yield submissions
    finally:
        for path in files.values():
            remove_shared(path)


def _traced(
    engine: RunningEngine, policies: PrefillPolicies, request: Request, template: bytes | str, own: bytes
) -> Submission:
    """Put a program on the sampling parameters of a request.

    Args:
        engine: Runs it.
        policies: How prompts are computed.
        request: The request.
        template: What its program shares with others, or the file that this lies in.
        own: The values of its own.
    """
    effects = request.program.effects
    program = {"program": template, "values": own, "writes": not effects.read_only}
    beside = [effects, *_effects_of(engine, request.edits)]
    whole = policies.keep_whole(request.prepared.num_tokens, beside)
    return _made(engine, request.prepared, request.edits, whole, program)


def _made(
    engine: RunningEngine,
    prepared: PreparedRequest,
    edits: Sequence[Edit] | None,
    whole: bool,
    program: Mapping[str, Any],
) -> Submission:
    key = engine.new_key()
    params = public.copy_of_params(prepared.params)
    # Without a choice, the engine core decides when the request gets there.
    chosen = {} if edits is None else {"edits": [edit.key for edit in edits]}
    attach(params, key=key, whole=whole, streams=prepared.streams, **program, **chosen)
    # vLLM is handed a copy, since a request may be run again.
    prompt = dict(prepared.prompt)
    return Submission(key, sequence_keys(params, key), prompt, params, prepared.keywords, prepared.streams)


def _effects_of(engine: RunningEngine, edits: Sequence[Edit] | None) -> list[Effects]:
    return [edit.program.effects for edit in (engine.edits if edits is None else edits)]


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
