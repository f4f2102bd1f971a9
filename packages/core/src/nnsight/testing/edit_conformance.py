"""What every backend promises about edits: blocks that run beside every later request of a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import torch

from nnsight.errors import InvalidRequestError, UnsupportedFeatureError

if TYPE_CHECKING:
    from nnsight.testing.subject import Subject


class EditConformance:
    """`model.edit()`."""

    @pytest.fixture(autouse=True)
    def _edits(self, request: pytest.FixtureRequest, subject: Subject) -> Iterator[None]:
        """Leave no edit behind, and ask a backend that has none for its refusal instead."""
        if not subject.edits and "edit" in request.node.name.split("["):
            with pytest.raises(UnsupportedFeatureError, match="has no edits"):
                subject.model.edit()
            pytest.skip("the backend has no edits, and says so")
        yield
        subject.model.clear_edits()

    def test_a_model_edit_runs_beside_every_later_trace_until_it_is_cleared(self, subject: Subject) -> None:
        model, stream, add, layers = subject.model, subject.stream, subject.add, subject.layers
        vector = torch.linspace(-2.0, 2.0, subject.hidden_size)
        plain = subject.reference(subject.prompts[0], 3, {})
        steered = subject.reference(subject.prompts[0], 3, {1: lambda states: states + vector})
        with model.edit() as (editor, edit):
            for _ in editor.all():
                add(model.get(layers[1]), vector)
        assert model.edits == (edit,)
        for expected in (steered, steered, plain):
            if expected is plain:
                edit.clear()
                assert not model.edits
            with model.trace(*subject.prompts[0], **subject.keywords(3)) as tracer:
                last = list().save()
                for _ in tracer.iter[:3]:
                    last.append(stream(model.get(layers[-1]).output))
                result = tracer.result.save()
            assert subject.tokens(result) == list(expected.tokens)
            for step in range(3):
                assert (last[step] - expected.streams[step][-1]).abs().max() < subject.tolerance

    def test_model_edits_run_in_their_order_and_before_the_block_of_a_trace(self, subject: Subject) -> None:
        model, stream, layers = subject.model, subject.stream, subject.layers
        add, replace = subject.add, subject.replace
        one, two, three = (torch.linspace(-1.0, 1.0, subject.hidden_size) * scale for scale in (1.0, 2.0, 3.0))

        with model.edit(name="first"):
            # Served at an earlier layer first, it comes to wait at the next after all others.
            model.get(layers[0]).output
            add(model.get(layers[1]), one)
        with model.edit(name="second"):
            layer = model.get(layers[1])
            replace(layer, stream(layer.output) * 2)
        with model.edit(name="third"):
            seen = (stream(model.get(layers[1]).output) * 1).save()
            add(model.get(layers[1]), two)
        with model.trace(*subject.prompts[1], **subject.keywords(1)) as tracer:
            own = (stream(model.get(layers[1]).output) * 1).save()
            add(model.get(layers[1]), three)
            last = stream(model.get(layers[-1]).output).save()

        found: list[torch.Tensor] = []

        def edited(states: torch.Tensor) -> torch.Tensor:
            doubled = (states + one) * 2
            found.extend((doubled, doubled + two))
            return doubled + two + three

        expected = subject.reference(subject.prompts[1], 1, {1: edited}).streams[0][-1]
        seen = tracer.edits["third"].saves["seen"]
        assert (seen - found[0]).abs().max() < 10 * subject.tolerance
        assert (own - found[1]).abs().max() < 10 * subject.tolerance
        assert (last - expected).abs().max() < 10 * subject.tolerance

    def test_what_a_model_edit_saves_is_kept_apart_from_other_saves(self, subject: Subject) -> None:
        model, stream, layers = subject.model, subject.stream, subject.layers
        with model.edit(name="probe"):
            hidden = stream(model.get(layers[0]).output).save()
            rows = int(hidden.shape[0])
            rows.save()
        with model.edit(name="other"):
            hidden = stream(model.get(layers[1]).output).save()
        hidden = None
        with model.trace() as tracer:
            for prompt in subject.prompts:
                with tracer.invoke(*prompt, **subject.keywords(1)):
                    hidden = stream(model.get(layers[2]).output).save()
        assert hidden is not None
        assert tracer.saves.keys() == {"hidden"}
        for index, (prompt, length) in enumerate(zip(subject.prompts, subject.lengths, strict=True)):
            expected = subject.reference(prompt, 1, {}).streams[0]
            edits = tracer.edits[index]
            assert list(edits) == ["probe", "other"]
            assert edits["probe"].saves["rows"] == length
            assert edits["probe"].receipt.steps == 1
            for found, layer in (
                (edits["probe"].saves["hidden"], 0),
                (edits["other"].saves["hidden"], 1),
                (hidden[index], 2),
            ):
                assert (found - expected[layer]).abs().max() < subject.tolerance

    def test_a_trace_chooses_its_model_edits_by_name_or_object(self, subject: Subject) -> None:
        model = subject.model
        with model.edit(name="one"):
            text = "one".save()
        with model.edit() as (_, unnamed):
            text = "two".save()
        with model.edit(name="three"):
            text = "three".save()  # noqa: F841 - read below
        assert [edit.name for edit in model.edits] == ["one", unnamed.name, "three"]
        choices = [None, ["three", "one"], [unnamed], [], ("three",)]
        with model.trace(edits=["one"], **subject.keywords(1)) as tracer:
            for choice in choices:
                with tracer.invoke(*subject.prompts[0], edits=choice):
                    "own".save()
            with tracer.invoke(*subject.prompts[0]):
                "own".save()
        every = ["one", "two", "three"]
        ran = [[edit.saves["text"] for edit in edits.values()] for edits in tracer.edits]
        assert ran == [every, ["one", "three"], ["two"], [], ["three"], ["one"]]

    def test_a_choice_of_model_edits_that_means_none_is_refused_with_what_there_is(self, subject: Subject) -> None:
        model, prompt = subject.model, subject.prompts[0]
        with pytest.raises(InvalidRequestError, match="'calm', which is no installed edit of this model; none is"):
            model.trace(*prompt, edits=["calm"], **subject.keywords(1))
        with model.edit(name="calm") as (_, edit):
            pass
        with pytest.raises(InvalidRequestError, match=r"'clam', which is .* there are: 'calm'"):
            model.trace(*prompt, edits=["clam"], **subject.keywords(1))
        with pytest.raises(InvalidRequestError, match=r"write edits=\['calm'\]"):
            model.trace(*prompt, edits="calm", **subject.keywords(1))
        with pytest.raises(InvalidRequestError, match="'calm' is installed already"):
            model.edit(name="calm")
        edit.clear()
        edit.clear()
        with pytest.raises(InvalidRequestError, match="'calm'"):
            model.trace(*prompt, edits=[edit], **subject.keywords(1))

    def test_an_error_in_a_model_edit_names_it_and_ends_that_request_alone(self, subject: Subject) -> None:
        model, stream, layers = subject.model, subject.stream, subject.layers
        subject_length = int(subject.lengths[1])
        with model.edit(name="sharp"):
            rows = stream(model.get(layers[0]).output).shape[0]
            kept = (rows * 1).save()  # noqa: F841 - comes home
            if rows == subject_length:
                raise RuntimeError("this prompt is refused")
        with (
            pytest.raises(RuntimeError, match="this prompt is refused") as raised,
            model.trace(*subject.prompts[1], **subject.keywords(2)) as tracer,
        ):
            own = stream(model.get(layers[0]).output).save()  # noqa: F841 - may come home
            for _ in tracer.iter[:2]:
                model.get(layers[-1]).output
        assert any("raised in the edit 'sharp'" in note for note in raised.value.__notes__)
        assert tracer.edits["sharp"].saves == {"kept": subject.lengths[1]}
        with model.trace(*subject.prompts[0], **subject.keywords(2)) as tracer:
            result = tracer.result.save()
        assert len(subject.tokens(result)) == 2
        assert tracer.edits["sharp"].saves == {"kept": subject.lengths[0]}

    def test_a_model_edit_begins_anew_beside_each_request(self, subject: Subject) -> None:
        model, stream, layers = subject.model, subject.stream, subject.layers
        seen: list[int] = []
        with model.edit(name="count") as (editor, _):
            for _ in editor.all():
                seen.append(int(stream(model.get(layers[0]).output).shape[0]))
            seen.save()
            ended = True
            ended.save()
        seen.append(-1)
        for prompt, length in zip(subject.prompts, subject.lengths, strict=True):
            with model.trace(*prompt, **subject.keywords(3)) as tracer:
                tracer.result.save()
            assert tracer.edits["count"].saves == {"seen": [length, 1, 1], "ended": True}

    def test_a_model_edit_may_end_its_request(self, subject: Subject) -> None:
        model, stream, layers = subject.model, subject.stream, subject.layers
        with model.edit(name="short") as (editor, _):
            for step in editor.all():
                model.get(layers[0]).output
                if step == 1:
                    editor.stop()
        with model.trace(*subject.prompts[0], **subject.keywords(4)) as tracer:
            steps = list().save()
            for step in tracer.all():
                stream(model.get(layers[0]).output)
                steps.append(step)
        assert steps in ([0], [0, 1])
