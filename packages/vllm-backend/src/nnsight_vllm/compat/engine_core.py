"""Our part of vLLM's engine core: a scheduler that ends requests whose block is over."""

from __future__ import annotations

import functools
from typing import Any

from nnsight_vllm.compat.runner_v1 import ENDED
from nnsight_vllm.compat.switch import options_of


def wrap_engine_core_init(init: Any) -> Any:
    """Wrap `EngineCore.__init__` to derive our scheduler from whatever class vLLM or the caller chose."""

    @functools.wraps(init)
    def traced_init(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        if options_of(vllm_config) is not None:
            scheduler = vllm_config.scheduler_config
            scheduler.scheduler_cls = traced_scheduler(scheduler.get_scheduler_cls())
        init(self, vllm_config, *args, **kwargs)

    return traced_init


def traced_scheduler(base: type) -> type:
    """Derive our scheduler from a class of vLLM's.

    Source:
        vLLM 0.27.1, v1/core/sched/scheduler.py, Scheduler.update_from_output and _update_request_with_output
    """
    if getattr(base, "nnsight_traced", False):
        return base

    class TracedScheduler(base):  # type: ignore[misc]
        """Ends a request when the runner says that its block is over, whatever `ignore_eos` and `min_tokens` say."""

        nnsight_traced = True
        nnsight_ended: frozenset[str] = frozenset()

        def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
            ended = getattr(model_runner_output, ENDED, None)
            self.nnsight_ended = frozenset(ended) if ended else frozenset()
            return super().update_from_output(scheduler_output, model_runner_output)

        def _update_request_with_output(self, request: Any, new_token_ids: list[int], *args: Any, **kwargs: Any) -> Any:
            tokens, stopped = super()._update_request_with_output(request, new_token_ids, *args, **kwargs)
            if not stopped and request.request_id in self.nnsight_ended:
                from vllm.v1.request import RequestStatus

                # Not FINISHED_STOPPED: the detokenizer would take the last token for a stop token and drop its text.
                request.status = RequestStatus.FINISHED_LENGTH_CAPPED
                request.stop_reason = "nnsight:stop"
                stopped = True
            return tokens, stopped

    TracedScheduler.__name__ = f"Traced{base.__name__}"
    TracedScheduler.__qualname__ = TracedScheduler.__name__
    return TracedScheduler
