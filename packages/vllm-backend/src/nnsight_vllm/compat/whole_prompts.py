"""Keeps prompts whole whose blocks could not follow them in pieces, beside prompts that are split.

vLLM's own switch, `enable_chunked_prefill=False`, is for every prompt of the engine, and a long one at the head of the
queue then waits until enough of the running requests are over. Here a marked prompt is passed over where what is left
of a step would split it, and given a step that has room for it: running requests sit that one step out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

from nnsight_vllm.compat.requests import needs_whole_prompt

# A prompt that is not admitted although it was given room, such as for want of cache, is given room again after twice
# as many steps each time, up to so many: those that sit out have to go on to free the cache.
_MAX_PAUSE: Final = 32


class WholePrompts:
    """Part of a scheduler, before whatever class vLLM chose.

    Source:
        vLLM 0.27.1, v1/core/sched/scheduler.py, Scheduler.schedule: the loop over waiting requests ends where
        `allocate_slots` returns None, and a running request need not take part in every step.
    """

    # The prompt that was passed over in the last step, and how many steps to wait before room is made for it again.
    nnsight_passed_over: Any = None
    nnsight_pause = 0
    nnsight_next_pause = 1
    nnsight_guarded = False
    # The prompt that room was made for in this step, and whether others went first.
    nnsight_expected: Any = None
    nnsight_others = False

    def add_request(self, request: Any) -> None:
        if not self.nnsight_guarded and needs_whole_prompt(request):
            # Engines that never see such a request run vLLM's own code alone.
            manager: Any = self.kv_cache_manager  # type: ignore[attr-defined]
            manager.allocate_slots = self._nnsight_guarding(manager.allocate_slots)
            self.nnsight_guarded = True
        super().add_request(request)  # type: ignore[misc]

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        request, self.nnsight_passed_over = self.nnsight_passed_over, None
        if request is None or request.is_finished():
            return super().schedule(*args, **kwargs)  # type: ignore[misc]
        if self.nnsight_pause > 0:
            self.nnsight_pause -= 1
            self.nnsight_passed_over = request
            return super().schedule(*args, **kwargs)  # type: ignore[misc]
        self.nnsight_expected, self.nnsight_others = request, False
        try:
            with self._nnsight_room_for(request.num_tokens):
                output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        finally:
            self.nnsight_expected = None
        if request.request_id in output.num_scheduled_tokens:
            self.nnsight_next_pause = 1
        else:
            self.nnsight_passed_over = request
            self.nnsight_pause = self.nnsight_next_pause
            self.nnsight_next_pause = min(2 * self.nnsight_next_pause, _MAX_PAUSE)
        return output

    def _nnsight_guarding(self, allocate_slots: Callable[..., Any]) -> Callable[..., Any]:
        def guarded_allocate_slots(request: Any, num_new_tokens: int, *args: Any, **kwargs: Any) -> Any:
            expected = self.nnsight_expected
            if needs_whole_prompt(request) and _has_not_begun(request) and num_new_tokens < request.num_tokens:
                if request is not expected or self.nnsight_others:
                    if self.nnsight_passed_over is None:
                        self.nnsight_passed_over = request
                    return None
                # There was room, so something else splits it, such as the blocks of a recurrent state: its worker
                # tells the caller.
            elif expected is not None and _is_waiting(request):
                self.nnsight_others = True
            return allocate_slots(request, num_new_tokens, *args, **kwargs)

        return guarded_allocate_slots

    @contextlib.contextmanager
    def _nnsight_room_for(self, num_tokens: int) -> Iterator[None]:
        """Let running requests sit a step out, as few as leave room for so many tokens."""
        scheduler: Any = self
        config = scheduler.scheduler_config
        before, limit, threshold = (
            scheduler.running,
            scheduler.max_num_running_reqs,
            config.long_prefill_token_threshold,
        )
        needs = {id(request): _num_due(request) for request in before}
        missing = num_tokens - (scheduler.max_num_scheduled_tokens - sum(needs.values()))
        out: set[int] = set()
        if len(before) < limit:
            # Those that take the most first, then the last that came.
            for request in sorted(reversed(before), key=lambda each: -needs[id(each)]):
                if missing <= 0:
                    break
                out.add(id(request))
                missing -= needs[id(request)]
        scheduler.running = [request for request in before if id(request) not in out]
        scheduler.max_num_running_reqs = limit - len(out)
        config.long_prefill_token_threshold = 0
        try:
            yield
        finally:
            config.long_prefill_token_threshold = threshold
            scheduler.max_num_running_reqs = limit
            left = {id(request) for request in scheduler.running} | out
            old = {id(request) for request in before}
            new = [request for request in scheduler.running if id(request) not in old]
            scheduler.running = [request for request in before if id(request) in left] + new


def _num_due(request: Any) -> int:
    """Return how many tokens a running request would have computed if nothing limited it."""
    return max(request.num_tokens_with_spec + request.num_output_placeholders - request.num_computed_tokens, 0)


def _has_not_begun(request: Any) -> bool:
    return request.num_computed_tokens == 0 and request.num_output_tokens == 0


def _is_waiting(request: Any) -> bool:
    from vllm.v1.request import RequestStatus

    return bool(request.status != RequestStatus.RUNNING)
