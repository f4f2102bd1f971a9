"""What travels with a request: the program in `SamplingParams.extra_args`, and the tokens that end it."""

from __future__ import annotations

from typing import Any

from nnsight_vllm.compat.seams import Arrival
from nnsight_vllm.compat.switch import KEY


def attach_program(params: Any, key: str, program: bytes | str, values: bytes, *, whole: bool, streams: bool) -> None:
    """Put a program on sampling parameters, beside whatever the caller put there.

    Args:
        params: The sampling parameters.
        key: The client's id of the request.
        program: The template of the program as it travels, or the file in shared memory that it lies in.
        values: The values of the request's own.
        whole: Whether the prompt must be computed in one step.
        streams: Whether saves go home as they are made.
    """
    ours: dict[str, object] = {"key": key, "program": program, "values": values, "whole": whole}
    params.extra_args = {**(params.extra_args or {}), KEY: ours | ({"streams": True} if streams else {})}


def needs_whole_prompt(request: Any) -> bool:
    """Tell whether a request of the scheduler carries a block that cannot follow its prompt in pieces."""
    params = request.sampling_params
    extra = params.extra_args if params is not None else None
    ours = extra.get(KEY) if extra else None
    return isinstance(ours, dict) and bool(ours.get("whole"))


def arrival_of(request: Any) -> Arrival | None:
    """Return what a request brings for us, or None for an untraced one."""
    params = request.sampling_params
    extra = params.extra_args if params is not None else None
    ours = extra.get(KEY) if extra else None
    if not isinstance(ours, dict):
        return None
    return Arrival(
        request.req_id,
        ours["program"],
        ours["values"],
        ours["key"],
        len(request.prompt_token_ids),
        streams=bool(ours.get("streams")),
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
