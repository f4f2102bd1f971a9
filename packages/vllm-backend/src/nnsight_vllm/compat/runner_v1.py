"""vLLM's first model runner (`v1/worker/gpu_model_runner.py`), adapted to our seams.

The runner's class is derived on the fly from whatever class vLLM chose, so that the CPU's runner, the GPU's and a
caller's own are all served.
"""

from __future__ import annotations

from typing import Any

from nnsight_vllm.compat.requests import arrival_of, stop_tokens_of
from nnsight_vllm.compat.seams import Span, StepListener

ENDED = "nnsight_ended"


class RunnerV1Mixin:
    """Tells a listener what happens in each step.

    Source:
        vLLM 0.27.1, v1/worker/gpu_model_runner.py, GPUModelRunner
    """

    nnsight_listener: StepListener
    nnsight_spans: list[Span]
    nnsight_stops: dict[str, frozenset[int]]
    nnsight_scheduled: Any

    def _update_states(self, scheduler_output: Any) -> Any:
        listener = self.nnsight_listener
        self.nnsight_scheduled = scheduler_output
        if listener.active:
            for request_id in scheduler_output.finished_req_ids:
                listener.depart(request_id)
                self.nnsight_stops.pop(request_id, None)
            for request_id in scheduler_output.scheduled_cached_reqs.resumed_req_ids:
                listener.resume(request_id)
        for request in scheduler_output.scheduled_new_reqs:
            arrival = arrival_of(request)
            if arrival is not None:
                listener.arrive(arrival)
                self.nnsight_stops[request.req_id] = stop_tokens_of(request)
        return super()._update_states(scheduler_output)  # type: ignore[misc]

    def _model_forward(self, *args: Any, **kwargs: Any) -> Any:
        listener = self.nnsight_listener
        if listener.active:
            spans = self._nnsight_spans()
            if spans:
                positions = kwargs["positions"] if "positions" in kwargs else args[1]
                listener.begin(spans, positions.shape[-1], len(self.input_batch.req_ids))  # type: ignore[attr-defined]
        return super()._model_forward(*args, **kwargs)  # type: ignore[misc]

    def execute_model(self, *args: Any, **kwargs: Any) -> Any:
        output = super().execute_model(*args, **kwargs)  # type: ignore[misc]
        listener = self.nnsight_listener
        state = self.execute_model_state  # type: ignore[attr-defined]
        if listener.active and state is not None and state.logits is not None:
            listener.offer("logits", state.logits)
        return output

    def _sample(self, *args: Any, **kwargs: Any) -> Any:
        output = super()._sample(*args, **kwargs)  # type: ignore[misc]
        listener = self.nnsight_listener
        if listener.active:
            sampled = output.sampled_token_ids
            listener.offer("samples", sampled.view(-1) if sampled.shape[-1] == 1 else sampled)
        return output

    def sample_tokens(self, *args: Any, **kwargs: Any) -> Any:
        output = super().sample_tokens(*args, **kwargs)  # type: ignore[misc]
        listener = self.nnsight_listener
        if listener.active:
            ended = listener.finish()
            if ended:
                _attach(output, ended)
        return output

    def _nnsight_spans(self) -> list[Span]:
        """List the rows of the traced requests, in the order of the batch."""
        listener = self.nnsight_listener
        scheduled = self.nnsight_scheduled.num_scheduled_tokens
        spans: list[Span] = []
        start = 0
        for index, request_id in enumerate(self.input_batch.req_ids):  # type: ignore[attr-defined]
            stop = start + scheduled[request_id]
            if listener.knows(request_id):
                state = self.requests[request_id]  # type: ignore[attr-defined]
                end = state.num_computed_tokens + scheduled[request_id]
                step = end - state.num_prompt_tokens
                partial = end < state.num_tokens and step < 0
                if not (step > 0 and self._nnsight_is_phantom(request_id)):
                    spans.append(Span(request_id, index, start, stop, max(step, 0), partial))
            start = stop
        return spans

    def _nnsight_is_phantom(self, request_id: str) -> bool:
        """Tell whether the request had sampled its stop token when this step was scheduled.

        Under asynchronous scheduling a step is scheduled before the scheduler has seen the last token; the output of
        such a step is dropped. Only requests with stop tokens are looked at, since looking waits for the device.
        """
        stops = self.nnsight_stops.get(request_id)
        batch: Any = self.input_batch  # type: ignore[attr-defined]
        previous = getattr(batch, "prev_sampled_token_ids", None)
        if not stops or previous is None:
            return False
        index = (getattr(batch, "prev_req_id_to_index", None) or {}).get(request_id)
        return index is not None and int(previous[index, -1]) in stops


def adapt_runner(runner: Any, listener: StepListener) -> None:
    """Make a runner tell `listener` what happens in each step."""
    kind = type(runner)
    runner.__class__ = type(f"Traced{kind.__name__}", (RunnerV1Mixin, kind), {"__module__": __name__})
    runner.nnsight_listener = listener
    runner.nnsight_stops = {}
    runner.nnsight_scheduled = None


def _attach(output: Any, ended: list[str]) -> None:
    """Put the ids of ended requests on the runner's output, which the scheduler reads."""
    if hasattr(output, "get_output"):
        inner = output.get_output

        def get_output() -> Any:
            result = inner()
            setattr(result, ENDED, ended)
            return result

        output.get_output = get_output
    else:
        setattr(output, ENDED, ended)
