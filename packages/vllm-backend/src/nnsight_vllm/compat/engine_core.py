"""Our part of vLLM's engine core: a scheduler that ends requests whose block is over."""

from __future__ import annotations

import functools
from typing import Any

from nnsight_vllm.compat.caller import end_with_caller, outlive_interrupts
from nnsight_vllm.compat.runners import STOP_REASON, ended_requests
from nnsight_vllm.compat.switch import options_of
from nnsight_vllm.compat.whole_prompts import WholePrompts


def wrap_get_scheduler_cls(get_scheduler_cls: Any) -> Any:
    """Wrap `SchedulerConfig.get_scheduler_cls` to derive our scheduler from whatever class vLLM or the caller chose."""

    @functools.wraps(get_scheduler_cls)
    def traced_get_scheduler_cls(self: Any) -> type:
        return traced_scheduler(get_scheduler_cls(self))

    return traced_get_scheduler_cls


def traced_scheduler(base: type) -> type:
    """Derive our scheduler from a class of vLLM's.

    Source:
        vLLM 0.27.1, v1/core/sched/scheduler.py, Scheduler.update_from_output and _update_request_with_output
    """
    if getattr(base, "nnsight_traced", False):
        return base

    class TracedScheduler(WholePrompts, base):
        """Ends a request when the runner says that its block is over, whatever `ignore_eos` and `min_tokens` say."""

        nnsight_traced = True

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            """Make a scheduler of the class itself for engines that are none of ours."""
            config = kwargs["vllm_config"] if "vllm_config" in kwargs else args[0]
            return super().__new__(cls) if options_of(config) is not None else base(*args, **kwargs)

        nnsight_ended: frozenset[str] = frozenset()

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            end_with_caller()

        def add_request(self, *args: Any, **kwargs: Any) -> Any:
            # The engine core sets its handlers after it has built its scheduler.
            outlive_interrupts()
            return super().add_request(*args, **kwargs)

        def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
            self.nnsight_ended = ended_requests(model_runner_output)
            return super().update_from_output(scheduler_output, model_runner_output)

        def _update_request_with_output(self, request: Any, new_token_ids: list[int], *args: Any, **kwargs: Any) -> Any:
            tokens, stopped = super()._update_request_with_output(request, new_token_ids, *args, **kwargs)
            if not stopped and request.request_id in self.nnsight_ended:
                from vllm.v1.request import RequestStatus

                # Not FINISHED_STOPPED: the detokenizer would take the last token for a stop token and drop its text.
                request.status = RequestStatus.FINISHED_LENGTH_CAPPED
                request.stop_reason = STOP_REASON
                stopped = True
            return tokens, stopped

    TracedScheduler.__name__ = f"Traced{base.__name__}"
    TracedScheduler.__qualname__ = TracedScheduler.__name__
    return TracedScheduler
