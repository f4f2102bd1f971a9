"""What travels with a request: its program and edits in `SamplingParams.extra_args`, and the tokens that end it."""

from __future__ import annotations

from typing import Any

from nnsight_vllm.compat.seams import Arrival
from nnsight_vllm.compat.switch import KEY


def attach(params: Any, **ours: Any) -> None:
    """Put what is ours on sampling parameters, beside whatever the caller put there.

    Each sequence of the request has it; vLLM makes a request of its own for each where there are several, whose
    parameters say no more how many there are.

    Args:
        params: The sampling parameters.
        **ours: `key`, under which its outcome is expected. Of a traced request the `program`, which is the template as
            it travels or the file in shared memory that it lies in, the `values` of the request's own, whether it
            `writes`, and whether it `streams`, so that saves go home as they are made. `whole` where the prompt must be
            computed in one step. The keys of the `edits` that were chosen for it, without which it gets all.
    """
    params.extra_args = {**(params.extra_args or {}), KEY: {**ours, "several": params.n > 1}}
    # They are this request's alone already. vLLM's own copy is a deep one, of the program too.
    params.skip_clone = True


def ours_of(params: Any) -> dict[str, Any] | None:
    """Return what sampling parameters bring for us; None where they bring nothing."""
    extra = params.extra_args if params is not None else None
    ours = extra.get(KEY) if extra else None
    return ours if isinstance(ours, dict) else None


def sequence_keys(params: Any, key: str) -> tuple[str, ...]:
    """Return the key that the outcome of each sequence of a request comes home under."""
    return tuple(_sequence_key(key, index) for index in range(params.n)) if params.n > 1 else (key,)


def _sequence_key(key: str, index: int) -> str:
    return f"{key}.{index}"


def needs_whole_prompt(request: Any) -> bool:
    """Tell whether a request of the scheduler carries a block that cannot follow its prompt in pieces."""
    ours = ours_of(request.sampling_params)
    return ours is not None and bool(ours.get("whole"))


def arrival_of(request: Any) -> Arrival | None:
    """Return what a request brings for us, or None for one that no block runs beside and nobody asks about."""
    ours = ours_of(request.sampling_params)
    if ours is None or not (ours.get("edits") or "key" in ours or "program" in ours):
        return None
    key, edits = ours.get("key"), ours.get("edits")
    if key is not None and ours.get("several"):
        key = _sequence_key(key, _sequence_index(request.req_id))
    return Arrival(
        request.req_id,
        ours.get("program"),
        ours.get("values", b""),
        key,
        None if edits is None else tuple(edits),
        len(request.prompt_token_ids),
        streams=bool(ours.get("streams")),
    )


def _sequence_index(request_id: str) -> int:
    """Return which sequence of a request this is, told from the id of the request that vLLM made for it.

    Source:
        vLLM 0.27.1, v1/engine/parallel_sampling.py, ParentRequest.get_child_info: `"{index}_{parent}"`
    """
    return int(request_id.partition("_")[0])


def stop_tokens_of(request: Any) -> frozenset[int]:
    """Return the token ids that end a request when it samples them; empty where it never looks.

    Source:
        vLLM 0.27.1, v1/core/sched/utils.py, check_stop; sampling_params.py, SamplingParams.all_stop_token_ids
    """
    params = request.sampling_params
    tokens = set(params.stop_token_ids or ())
    if not params.ignore_eos:
        tokens |= set(params.all_stop_token_ids)
    return frozenset(tokens)


def masks_of(grammar_output: Any) -> dict[str, Any]:
    """Return which tokens the grammars of requests allow in a step, by request id, one bit each, 32 to a word.

    Source:
        vLLM 0.27.1, v1/structured_output/utils.py, apply_grammar_bitmask
    """
    if grammar_output is None:
        return {}
    # One row for each request: there are no draft tokens in an engine of ours.
    return dict(zip(grammar_output.structured_output_request_ids, grammar_output.grammar_bitmask, strict=True))
