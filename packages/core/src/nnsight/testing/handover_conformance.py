"""What every backend promises about variables that one invoke binds and a later one reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from nnsight.errors import HandoverError, OutsideTraceError

if TYPE_CHECKING:
    from nnsight.testing.subject import Subject


class HandoverConformance:
    """Variables of one invoke in another, as in plain Python."""

    def test_a_state_of_one_invoke_is_patched_into_the_next_in_one_trace(self, subject: Subject) -> None:
        model, stream, replace, layers = subject.model, subject.stream, subject.replace, subject.layers
        (clean, corrupted), layer = subject.prompts[:2], layers[1]
        with model.trace(**subject.keywords(1)) as tracer:
            with tracer.invoke(*clean):
                last = stream(model.get(layer).output)[-1:]
            with tracer.invoke(*corrupted):
                states = stream(model.get(layer).output)
                states[-1:] = last
                replace(model.get(layer), states)
                patched = stream(model.get(layers[-1]).output).save()
        given = subject.reference(clean, 1, {}).streams[0][1][-1:]

        def patch(states: torch.Tensor) -> torch.Tensor:
            return torch.cat([states[:-1], given.to(states)])

        expected = subject.reference(corrupted, 1, {1: patch}).streams[0][-1]
        assert (patched - expected).abs().max() < subject.tolerance
        assert "last" not in tracer.saves

    def test_invokes_that_read_each_others_variables_run_in_their_order(self, subject: Subject) -> None:
        model, stream, layer = subject.model, subject.stream, subject.layers[0]
        total = 100
        with model.trace(**subject.keywords(1)) as tracer:
            for prompt in subject.prompts:
                with tracer.invoke(*prompt):
                    rows = int(stream(model.get(layer).output).shape[0])
                    total += rows
            with tracer.invoke(*subject.prompts[0]):
                model.get(layer).output
                double = (2 * total).save()
        assert double == 2 * (100 + sum(subject.lengths))
        assert total == 100

    def test_what_the_trace_binds_between_invokes_counts(self, subject: Subject) -> None:
        model, layer = subject.model, subject.layers[0]
        with model.trace(**subject.keywords(1)) as tracer:
            for prompt in subject.prompts[:2]:
                count = 0
                with tracer.invoke(*prompt):
                    model.get(layer).output
                    count += 1
                    count.save()
        assert tracer.saves["count"] == [1, 1]

    def test_a_container_of_one_invoke_is_a_copy_in_the_next(self, subject: Subject) -> None:
        model, stream, layer = subject.model, subject.stream, subject.layers[0]
        with model.trace(**subject.keywords(3)) as tracer:
            with tracer.invoke(*subject.prompts[0]):
                seen: list[Any] = []
                for _ in tracer.iter[:3]:
                    seen.append(stream(model.get(layer).output)[-1])
            with tracer.invoke(*subject.prompts[1]):
                model.get(layer).output
                seen.append(None)
                count = len(seen).save()
            with tracer.invoke(*subject.prompts[2]):
                model.get(layer).output
                states = torch.stack([state for state in seen if state is not None]).save()
        assert count == 4
        assert states.shape == (3, subject.hidden_size)

    def test_a_function_may_make_the_invokes(self, subject: Subject) -> None:
        model, stream, layer = subject.model, subject.stream, subject.layers[0]

        def compare(tracer: Any, one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
            with tracer.invoke(*one):
                last = stream(model.get(layer).output)[-1]
            with tracer.invoke(*other):
                gap = float((stream(model.get(layer).output)[-1] - last).abs().max())
                gap.save()

        with model.trace(**subject.keywords(1)) as tracer:
            compare(tracer, subject.prompts[0], subject.prompts[0])
            compare(tracer, subject.prompts[0], subject.prompts[1])
        gaps: Any = tracer.saves["gap"]
        assert gaps[0] < subject.tolerance < gaps[1]

    def test_an_invoke_whose_value_failed_to_come_does_not_run_and_says_why(self, subject: Subject) -> None:
        model, layer = subject.model, subject.layers[0]
        with pytest.raises(ZeroDivisionError) as raised:
            with model.trace(**subject.keywords(1)) as tracer:
                with tracer.invoke(*subject.prompts[0]):
                    ratio = 1 / int(model.get(layer).output is None)
                with tracer.invoke(*subject.prompts[1]):
                    model.get(layer).output
                    scaled = (2 * ratio).save()  # noqa: F841 - never bound
                with tracer.invoke(*subject.prompts[2]):
                    model.get(layer).output
                    apart = "ran".save()
        assert apart == "ran"
        assert any("`ratio` of invoke 0" in note and "ZeroDivisionError" in note for note in raised.value.__notes__)

    def test_an_invoke_whose_value_was_never_bound_does_not_run_and_says_so(self, subject: Subject) -> None:
        model, layer = subject.model, subject.layers[0]
        with pytest.raises(HandoverError, match="`first` of invoke 0, which ended without binding it"):
            with model.trace(**subject.keywords(1)) as tracer:
                with tracer.invoke(*subject.prompts[0]):
                    if model.get(layer).output is None:
                        first = 1
                with tracer.invoke(*subject.prompts[1]):
                    model.get(layer).output
                    second = first.save()  # noqa: F841 - never bound

    def test_the_code_between_invokes_is_told_that_a_value_is_not_here_yet(self, subject: Subject) -> None:
        model, stream, layer = subject.model, subject.stream, subject.layers[0]
        with pytest.raises(OutsideTraceError, match="`rows` is bound in invoke 0"):
            with model.trace(**subject.keywords(1)) as tracer:
                with tracer.invoke(*subject.prompts[0]):
                    rows = int(stream(model.get(layer).output).shape[0])
                print(rows + 1)
