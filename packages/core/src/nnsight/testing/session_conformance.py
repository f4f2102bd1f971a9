"""What every backend promises about loops over steps and sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from nnsight.errors import OutOfOrderError, UnsupportedFeatureError

if TYPE_CHECKING:
    from nnsight.testing.subject import Subject


class SessionConformance:
    """Loops over steps, and traces that belong together."""

    # Steps --------------------------------------------------------------------------------------------------------

    def test_loops_over_steps_follow_each_other(self, subject: Subject) -> None:
        model, stream, layer = subject.model, subject.stream, subject.layers[0]
        with model.trace(*subject.prompts[0], **subject.keywords(6)) as tracer:
            seen = list().save()
            for step in tracer.iter[:2]:
                seen.append((step, stream(model.get(layer).output).shape[0]))
            for step in tracer.iter[2:6:2]:
                seen.append((step, stream(model.get(layer).output).shape[0]))
            for step in tracer.iter[5]:
                model.get(layer).output
                seen.append((step, 0))
        assert seen == [(0, subject.lengths[0]), (1, 1), (2, 1), (4, 1), (5, 0)]

    def test_a_loop_that_was_left_may_be_followed_by_another(self, subject: Subject) -> None:
        model, layer = subject.model, subject.layers[0]
        with model.trace(*subject.prompts[0], **subject.keywords(4)) as tracer:
            seen = list().save()
            for step in tracer.iter[:4]:
                seen.append(step)
                if step == 1:
                    break
            for step in tracer.iter[[1, 3]]:
                model.get(layer).output
                seen.append(step)
        assert seen == [0, 1, 1, 3]

    def test_a_loop_inside_a_loop_over_steps_is_refused_with_the_reason(self, subject: Subject) -> None:
        model, layer = subject.model, subject.layers[0]
        with (
            pytest.raises(UnsupportedFeatureError, match=r"iter\[1:3\] stands inside the loop over tracer\.all\(\)"),
            model.trace(*subject.prompts[0], **subject.keywords(3)) as tracer,
        ):
            for _ in tracer.all():
                for _ in tracer.iter[1:3]:
                    model.get(layer).output

    def test_a_loop_over_steps_that_are_gone_is_refused(self, subject: Subject) -> None:
        model, layer = subject.model, subject.layers[0]
        with (
            pytest.raises(OutOfOrderError, match="step 0 was asked for when the request was in step 2"),
            model.trace(*subject.prompts[0], **subject.keywords(4)) as tracer,
        ):
            for _ in tracer.iter[2]:
                model.get(layer).output
            for _ in tracer.iter[:2]:
                model.get(layer).output

    # Sessions -----------------------------------------------------------------------------------------------------

    def test_a_session_gives_its_traces_keywords_and_collects_their_saves(self, subject: Subject) -> None:
        model, stream, layers = subject.model, subject.stream, subject.layers
        with model.session(**subject.keywords(2)) as session:
            with model.trace(*subject.prompts[0]) as one:
                first = stream(model.get(layers[0]).output).save()
            with model.trace(*subject.prompts[1], **subject.keywords(1)) as other:
                second = stream(model.get(layers[0]).output).save()
            with model.trace() as last:
                for prompt in subject.prompts[:2]:
                    with last.invoke(*prompt):
                        rows = int(stream(model.get(layers[1]).output).shape[0])
                        rows.save()
        results = [one.result, other.result, *last.result]
        assert [len(subject.tokens(result)) for result in results] == [2, 1, 2, 2]
        assert session.saves.keys() == {"first", "second", "rows"}
        assert session.saves["first"] is first
        assert second.shape[0] == subject.lengths[1]
        assert session.saves["rows"] == list(subject.lengths[:2])

    def test_a_trace_of_a_session_reads_what_an_earlier_one_bound(self, subject: Subject) -> None:
        model, stream, replace, layers = subject.model, subject.stream, subject.replace, subject.layers
        with model.session(**subject.keywords(1)) as session:
            with model.trace(*subject.prompts[0]):
                last = stream(model.get(layers[1]).output)[-1:]
                unused = last * 2  # noqa: F841 - stays where it is
            with model.trace(*subject.prompts[1]):
                states = stream(model.get(layers[1]).output)
                states[-1:] = last
                replace(model.get(layers[1]), states)
                patched = stream(model.get(layers[-1]).output).save()
        given = subject.reference(subject.prompts[0], 1, {}).streams[0][1][-1:]
        assert (last - given).abs().max() < subject.tolerance

        def patch(found: torch.Tensor) -> torch.Tensor:
            return torch.cat([found[:-1], given.to(found)])

        expected = subject.reference(subject.prompts[1], 1, {1: patch}).streams[0][-1]
        assert (patched - expected).abs().max() < subject.tolerance
        assert session.saves.keys() == {"last", "patched"}

    def test_a_session_goes_on_after_an_error_that_is_caught(self, subject: Subject) -> None:
        model, stream, layer = subject.model, subject.stream, subject.layers[0]
        total = 0
        with model.session(**subject.keywords(1)) as session:
            for index, prompt in enumerate(subject.prompts):
                try:
                    with model.trace(*prompt):
                        total = total + int(stream(model.get(layer).output).shape[0])
                        kept = (1 // index).save()
                except ZeroDivisionError:
                    continue
        assert total == sum(subject.lengths)
        assert kept == 0
        assert session.saves["kept"] == 0
