"""vLLM's first model runner (`v1/worker/gpu_model_runner.py`), adapted to our seams."""

from __future__ import annotations

from typing import Any

from nnsight_vllm.compat.runners import TracedRunner
from nnsight_vllm.compat.seams import Span


class RunnerV1(TracedRunner):
    """Tells a listener what happens in each step.

    Source:
        vLLM 0.27.1, v1/worker/gpu_model_runner.py, GPUModelRunner
    """

    NEEDS = ("_update_states", "_model_forward", "_sample", "sample_tokens", "execute_model")
    nnsight_generation = "V1"
    nnsight_scheduled: Any

    def _update_states(self, scheduler_output: Any) -> Any:
        self.nnsight_scheduled = scheduler_output
        if self.nnsight_listener.active:
            self.nnsight_leave(scheduler_output.finished_req_ids)
        for request in scheduler_output.scheduled_new_reqs:
            self.nnsight_meet(request)
        return super()._update_states(scheduler_output)  # type: ignore[misc]

    def _model_forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.nnsight_listener.active:
            positions = kwargs["positions"] if "positions" in kwargs else args[1]
            # Positions are [rows], or [3, rows] for multimodal rotary embeddings.
            self.nnsight_begin(self.input_batch.req_ids, self._nnsight_spans(), positions.shape[-1])  # type: ignore[attr-defined]
        return super()._model_forward(*args, **kwargs)  # type: ignore[misc]

    def execute_model(self, *args: Any, **kwargs: Any) -> Any:
        output = super().execute_model(*args, **kwargs)  # type: ignore[misc]
        state = self.execute_model_state  # type: ignore[attr-defined]
        if self.nnsight_listener.active and state is not None and state.logits is not None:
            self.nnsight_listener.offer("logits", state.logits)
        return output

    def _sample(self, *args: Any, **kwargs: Any) -> Any:
        if not self.nnsight_listener.active:
            return super()._sample(*args, **kwargs)  # type: ignore[misc]
        with self.nnsight_samples_offered():
            return super()._sample(*args, **kwargs)  # type: ignore[misc]

    def nnsight_host_copy(self, output: Any) -> tuple[Any, Any]:
        return output.async_copy_ready_event, output.sampled_token_ids_cpu

    def _nnsight_spans(self) -> list[Span]:
        """List the rows of the traced requests, in the order of the batch."""
        knows = self.nnsight_listener.knows
        scheduled = self.nnsight_scheduled.num_scheduled_tokens
        spans: list[Span] = []
        start = 0
        for index, request_id in enumerate(self.input_batch.req_ids):  # type: ignore[attr-defined]
            stop = start + scheduled[request_id]
            if knows(request_id):
                state = self.requests[request_id]  # type: ignore[attr-defined]
                spans.append(Span(request_id, index, start, stop, position=state.num_computed_tokens))
            start = stop
        return spans
