"""What one block of a request has of a step: rows that it is served, and rows that are computed again.

Rows are told apart by their absolute position in the request. A request that was preempted computes its prompt and
what it had generated anew, in one forward or several: those rows were served already, and what the block changed in
them is written again; the block goes on at the first row that is new.

A prompt may be computed in several parts. A block that changes every row alike runs beside each of them; of one that
reads at places known beforehand, the rows there are kept until the last part, beside which it runs.

An edit that changes every row alike, and whose requests share what they compute, runs beside each forward: there is
nothing to keep for it, and nothing to write again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnsight._interleave import Pieces, RowScope, replays
from nnsight.errors import UnsupportedFeatureError

if TYPE_CHECKING:
    from nnsight._interleave import BlockRun
    from nnsight_vllm._worker.traced import TracedBlock
    from nnsight_vllm.compat.seams import Span


class Share:
    """One block in one step.

    Attributes:
        request_id: vLLM's own id of the request.
        step: The step that the request is in; the prompt is step 0.
        scopes: What takes part for it, with the rows of the batch.
    """

    def __init__(self, traced: TracedBlock, span: Span) -> None:
        """Look at the rows of its request."""
        self.traced = traced
        self.request_id = span.request_id
        end = span.end
        self.step = max(end - traced.num_prompt_tokens, 0)
        self.scopes: dict[BlockRun, RowScope] = {}
        self._span = span
        self._end = end
        self._samples = end >= traced.num_prompt_tokens
        self._failures: list[Exception] = []
        self._part: BlockRun | None = None

    def enter(self, num_rows: int, *, alone: bool) -> None:
        """Find out who takes part.

        Args:
            num_rows: Rows of the whole batch.
            alone: Whether no other request shares it.
        """
        traced, span = self.traced, self._span
        run = traced.run
        if traced.uniform:
            self.step = traced.num_served
            traced.num_served += 1
            if run.present:
                self.scopes[run] = RowScope(span.start, span.stop, num_rows, alone=alone)
            return
        num_again = max(min(traced.num_served, self._end) - span.position, 0)
        run.receipt.recomputed += num_again
        boundary = span.start + num_again
        if num_again and run.log is not None:
            self._replay(run, RowScope(span.start, boundary, num_rows), num_again)
        if boundary == span.stop:
            return
        position = span.position + num_again
        if run.log is not None:
            run.log.position = position
        if self._samples:
            traced.num_served = self._end
            if self.step > 0:
                run.pieces = None
            if run.present:
                self.scopes[run] = RowScope(boundary, span.stop, num_rows, alone=alone and not num_again)
        elif run.error is None:
            self._enter_part(run, RowScope(boundary, span.stop, num_rows))

    def _enter_part(self, run: BlockRun, scope: RowScope) -> None:
        """Take part in a step that computes a part of the prompt other than its last."""
        program = self.traced.program
        effects = program.effects
        if effects.row_local:
            self._part = part = program.start(self.traced.source.values(), grad=False, read_only=False)
            part.log, part.rank = run.log, run.rank
            self.scopes[part] = scope
        elif effects.read_only and effects.places is not None:
            if run.pieces is None:
                run.pieces = Pieces(effects.places)
            for gatherer in run.pieces.gatherers():
                gatherer.rank = run.rank
                self.scopes[gatherer] = scope
            # The block is served these rows with those of the last part.
            run.receipt.rows = (run.receipt.rows or 0) + scope.num_rows
        else:
            run.fail(
                UnsupportedFeatureError(
                    "the prompt was split over several steps, so the block would see slices of it; leave "
                    "enable_chunked_prefill at its default, or raise max_num_batched_tokens"
                )
            )
            return
        self.traced.num_served = self._end

    def value_scopes(self, num_requests: int) -> dict[BlockRun, RowScope]:
        """Return who takes part in serving a value of the request, such as its logits [requests, vocabulary]."""
        if not self._samples:
            return {}
        index, position = self._span.index, self._end - 1
        scope = RowScope(index, index + 1, num_requests)
        for run in self.scopes:
            if run.log is not None:
                run.log.position = position
        return dict.fromkeys(self.scopes, scope)

    def leave(self) -> None:
        """Let the request fail where its rows could not be computed as its block left them, or leaves them."""
        run, part = self.traced.run, self._part
        if part is not None:
            part.close()
            run.receipt.include(part.receipt)
            if part.error is not None:
                run.fail(part.error)
        if self._failures:
            run.fail(self._failures[0])

    def _replay(self, run: BlockRun, scope: RowScope, num_rows: int) -> None:
        log, first = run.log, self._span.position
        assert log is not None
        if log.problem is not None:
            run.fail(
                UnsupportedFeatureError(
                    "the request was preempted because the KV cache was full, and what its block had changed cannot "
                    f"be written again: {log.problem}; give the engine more cache (gpu_memory_utilization), or run "
                    "fewer requests at once"
                )
            )
            return
        over = self._samples and first + num_rows == self._end
        for replay in replays(log, first, num_rows, self._failures.append, samples=over):
            # Where several blocks changed a row, the last has the last word again.
            replay.rank = run.rank
            self.scopes[replay] = scope
