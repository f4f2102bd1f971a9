"""What both of vLLM's model runners have in common, and which of the two an engine got.

A runner's class is derived on the fly from whatever class vLLM chose, so that the CPU's runner, the GPU's and a
caller's own are all served.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from nnsight_vllm.compat.requests import arrival_of, masks_of, stop_tokens_of

if TYPE_CHECKING:
    from nnsight_vllm.compat.seams import Span, StepListener

ENDED: Final = "nnsight_ended"
# Why a request ended that its block ended, as vLLM's outputs say it.
STOP_REASON: Final = "nnsight:stop"


class TracedRunner:
    """What a runner keeps for its listener.

    Attributes:
        nnsight_listener: Who is told what happens in each step.
        nnsight_stops: Stop tokens of the traced requests that have any.
        nnsight_rows: Row of each request in the batch of the step before.
        nnsight_in_flight: The output of the step before, where the scheduler may not have seen it yet.
    """

    NEEDS: ClassVar[tuple[str, ...]] = ()
    nnsight_generation = ""
    nnsight_listener: StepListener
    nnsight_stops: dict[str, frozenset[int]]
    nnsight_rows: dict[str, int]
    nnsight_in_flight: Any

    def sample_tokens(self, *args: Any, **kwargs: Any) -> Any:
        if self.nnsight_listener.active:
            grammar = kwargs["grammar_output"] if "grammar_output" in kwargs else args[0]
            self.nnsight_listener.constrain(masks_of(grammar))
        output = super().sample_tokens(*args, **kwargs)  # type: ignore[misc]
        return self.nnsight_finish(output) if self.nnsight_listener.active else output

    def nnsight_meet(self, request: Any) -> None:
        """See a request come into the batch, for the first time or after it was preempted."""
        listener = self.nnsight_listener
        if listener.knows(request.req_id):
            return
        arrival = arrival_of(request)
        if arrival is not None and listener.arrive(arrival):
            self.nnsight_stops[request.req_id] = stop_tokens_of(request)

    def nnsight_leave(self, request_ids: Sequence[str]) -> None:
        """See requests end."""
        self.nnsight_listener.depart(request_ids)
        for request_id in request_ids:
            self.nnsight_stops.pop(request_id, None)

    def nnsight_begin(self, request_ids: Sequence[str], spans: Sequence[Span], num_rows: int) -> None:
        """Enter a forward with the rows of the traced requests, `num_rows` of the batch in all."""
        real = [span for span in spans if not self._nnsight_is_phantom(span)]
        if real:
            self.nnsight_listener.begin(real, num_rows, len(request_ids))
        self.nnsight_rows = {request_id: row for row, request_id in enumerate(request_ids)}

    @contextlib.contextmanager
    def nnsight_samples_offered(self) -> Iterator[None]:
        """Serve the sampled ids, [requests] on the device, where the sampler chooses them.

        That is before it looks up their logprobs, so that those of a token which a block chose are the token's own, and
        before the next step takes them.

        Source:
            vLLM 0.27.1, v1/sample/sampler.py and v1/worker/gpu/sample/sampler.py, Sampler.sample
        """
        sampler: Any = self.sampler  # type: ignore[attr-defined]
        sample = sampler.sample

        def offering(*args: Any, **kwargs: Any) -> Any:
            sampled, processed = sample(*args, **kwargs)
            self.nnsight_listener.offer("samples", sampled.view(-1))
            return sampled, processed

        sampler.sample = offering
        try:
            yield
        finally:
            del sampler.sample

    def nnsight_finish(self, output: Any) -> Any:
        """Leave the step; what ended in it rides on the runner's output to the scheduler."""
        self.nnsight_in_flight = output if self._nnsight_runs_ahead() else None
        ended = self.nnsight_listener.finish()
        if ended:
            _attach(output, ended)
        return output

    def nnsight_host_copy(self, output: Any) -> tuple[Any, Any]:
        """Return the event and the host's copy of the ids, [requests, 1], of an output on its way."""
        raise NotImplementedError

    def _nnsight_runs_ahead(self) -> bool:
        config: Any = self.vllm_config  # type: ignore[attr-defined]
        return bool(config.scheduler_config.async_scheduling)

    def _nnsight_is_phantom(self, span: Span) -> bool:
        """Tell whether the request had sampled its stop token when this step was scheduled.

        Under asynchronous scheduling a step is scheduled before the scheduler has seen the last token; the output of
        such a step is dropped. Only requests with stop tokens are looked at, since that waits for the copy of the ids
        which the step before began; the device itself is not waited for.
        """
        request_id = span.request_id
        stops = self.nnsight_stops.get(request_id)
        output, row = self.nnsight_in_flight, self.nnsight_rows.get(request_id)
        if not stops or output is None or row is None or not hasattr(output, "get_output"):
            return False
        if span.position < self.nnsight_listener.num_prompt_tokens(request_id):
            return False  # the step before sampled nothing that counts
        event, ids = self.nnsight_host_copy(output)
        event.synchronize()
        return int(ids[row, -1]) in stops


def adapt_runner(runner: Any, listener: StepListener) -> None:
    """Make a runner tell `listener` what happens in each step.

    Raises:
        EngineError: The runner is none that we know.
    """
    kind = type(runner)
    mixin = _mixin_for(runner)
    runner.__class__ = type(f"Traced{kind.__name__}", (mixin, kind), {"__module__": __name__})
    runner.nnsight_listener = listener
    runner.nnsight_stops = {}
    runner.nnsight_rows = {}
    runner.nnsight_in_flight = None


def _mixin_for(runner: Any) -> type[TracedRunner]:
    from nnsight.errors import EngineError
    from nnsight_vllm.compat.runner_v1 import RunnerV1
    from nnsight_vllm.compat.runner_v2 import RunnerV2

    missing = {}
    for mixin in (RunnerV2, RunnerV1):
        lacks = [name for name in mixin.NEEDS if not callable(getattr(runner, name, None))]
        if not lacks:
            return mixin
        missing[mixin.nnsight_generation] = lacks
    detail = "; ".join(f"as a {name} runner it lacks {', '.join(names)}" for name, names in missing.items())
    raise EngineError(
        f"the model runner {type(runner).__module__}.{type(runner).__qualname__} is none that this version of "
        f"nnsight-vllm knows: {detail}"
    )


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


def ended_requests(output: Any) -> frozenset[str]:
    """Return the ids that ride on a runner's output."""
    ended: Sequence[str] = getattr(output, ENDED, None) or ()
    return frozenset(ended)
