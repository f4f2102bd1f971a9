"""vLLM's second model runner (`v1/worker/gpu/model_runner.py`), adapted to our seams."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from nnsight_vllm.compat.runners import TracedRunner
from nnsight_vllm.compat.seams import Span


class RunnerV2(TracedRunner):
    """Tells a listener what happens in each step.

    Source:
        vLLM 0.27.1, v1/worker/gpu/model_runner.py, GPUModelRunner
    """

    NEEDS = ("finish_requests", "add_requests", "prepare_inputs", "sample", "sample_tokens")
    nnsight_generation = "V2"

    def finish_requests(self, scheduler_output: Any) -> Any:
        # Preempted requests are removed here too; ours stay known until they finish.
        if self.nnsight_listener.active:
            self.nnsight_leave(scheduler_output.finished_req_ids)
        return super().finish_requests(scheduler_output)  # type: ignore[misc]

    def add_requests(self, scheduler_output: Any) -> Any:
        # A preempted request comes back as a new one with the same id.
        for request in scheduler_output.scheduled_new_reqs:
            self.nnsight_meet(request)
        return super().add_requests(scheduler_output)  # type: ignore[misc]

    def prepare_inputs(self, *args: Any, **kwargs: Any) -> Any:
        # The last thing that a step does for real requests alone: dummy and profiling runs bypass it.
        batch = super().prepare_inputs(*args, **kwargs)  # type: ignore[misc]
        if self.nnsight_listener.active:
            self.nnsight_begin(batch.req_ids, self._nnsight_spans(batch), batch.num_tokens_after_padding)
        return batch

    def sample(self, *args: Any, **kwargs: Any) -> Any:
        if not self.nnsight_listener.active:
            return super().sample(*args, **kwargs)  # type: ignore[misc]
        with self._nnsight_logits_offered(), self.nnsight_samples_offered():
            return super().sample(*args, **kwargs)  # type: ignore[misc]

    def nnsight_host_copy(self, output: Any) -> tuple[Any, Any]:
        return output.copy_event, output.sampled_token_ids

    @contextlib.contextmanager
    def _nnsight_logits_offered(self) -> Iterator[None]:
        """Serve the logits where `sample` computes them, before a grammar masks them.

        No state of the runner holds them, and prompt logprobs call `compute_logits` too, outside of `sample`.
        """
        model: Any = self.model  # type: ignore[attr-defined]
        compute_logits = model.compute_logits

        def offering(*args: Any, **kwargs: Any) -> Any:
            logits = compute_logits(*args, **kwargs)
            if logits is not None:
                self.nnsight_listener.offer("logits", logits)
            return logits

        model.compute_logits = offering
        try:
            yield
        finally:
            del model.compute_logits

    def _nnsight_spans(self, batch: Any) -> list[Span]:
        """List the rows of the traced requests, in the order of the batch, which V2 sorts anew in each step."""
        listener = self.nnsight_listener
        starts = batch.query_start_loc_np
        spans: list[Span] = []
        for index, request_id in enumerate(batch.req_ids):
            if listener.knows(request_id):
                start, stop = int(starts[index]), int(starts[index + 1])
                position = int(batch.num_computed_tokens_np[index])
                spans.append(Span(request_id, index, start, stop, position))
        return spans
