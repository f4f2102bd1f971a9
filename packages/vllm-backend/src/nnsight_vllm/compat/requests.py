"""What travels with a request: the program in `SamplingParams.extra_args`, and the tokens that end it."""

from __future__ import annotations

from typing import Any

from nnsight_vllm.compat.seams import Arrival
from nnsight_vllm.compat.switch import KEY


def attach(params: Any, **ours: Any) -> None:
    """Put what is ours on sampling parameters, beside whatever the caller put there.

    Args:
        params: The request's sampling parameters.
        **ours: `key`, under which its outcome is expected; `program` and whether it `writes`, for a traced request; the
            keys of the `edits` that were chosen for it, without which it gets all.
    """
    params.extra_args = {**(params.extra_args or {}), KEY: ours}


def ours_of(params: Any) -> dict[str, Any] | None:
    """Return what sampling parameters bring for us; None where they bring nothing."""
    extra = params.extra_args if params is not None else None
    ours = extra.get(KEY) if extra else None
    return ours if isinstance(ours, dict) else None


def arrival_of(request: Any) -> Arrival | None:
    """Return what a request brings for us, or None for one that no block runs beside and nobody asks about."""
    ours = ours_of(request.sampling_params)
    if ours is None or not (ours.get("edits") or "key" in ours or "program" in ours):
        return None
    edits = ours.get("edits")
    return Arrival(
        request.req_id,
        ours.get("program"),
        ours.get("key"),
        None if edits is None else tuple(edits),
        len(request.prompt_token_ids),
    )


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
