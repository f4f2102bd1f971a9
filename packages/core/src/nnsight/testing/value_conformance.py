"""What every backend promises about values that a block reads and changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from nnsight.errors import MismatchedValueError, OutOfOrderError
from nnsight.testing.subject import STEPS

if TYPE_CHECKING:
    from nnsight.testing.subject import Subject


class ValueConformance:
    """Inputs and outputs of layers."""

    # Reading --------------------------------------------------------------------------------------------------------

    def test_prefill_serves_a_row_per_prompt_token_and_a_decode_step_one(self, subject: Subject) -> None:
        model, stream, layer = subject.model, subject.stream, subject.layers[1]
        for prompt, length in zip(subject.prompts, subject.lengths, strict=True):
            with model.trace(*prompt, **subject.keywords(2)) as tracer:
                shapes = list().save()
                for _ in tracer.iter[:2]:
                    shapes.append(tuple(stream(model.get(layer).output).shape))
            assert shapes == [(length, subject.hidden_size), (1, subject.hidden_size)]

    def test_every_layer_at_every_step_equals_the_reference(self, subject: Subject) -> None:
        model, stream, layers = subject.model, subject.stream, subject.layers
        reference = subject.reference(subject.prompts[0], STEPS, {})
        with model.trace(*subject.prompts[0], **subject.keywords(STEPS)) as tracer:
            kept = list().save()
            for _ in tracer.iter[:STEPS]:
                kept.append([stream(model.get(layer).output) for layer in layers])
            result = tracer.result.save()
        assert subject.tokens(result) == list(reference.tokens)
        for step in range(STEPS):
            for index in range(len(layers)):
                difference = (kept[step][index] - reference.streams[step][index]).abs().max()
                assert difference < subject.tolerance, f"step {step}, layer {index}: {difference}"

    def test_a_kept_value_never_changes(self, subject: Subject) -> None:
        model, layers = subject.model, subject.layers
        with model.trace(*subject.prompts[1], **subject.keywords(STEPS)) as tracer:
            kept, copies = list().save(), list().save()
            for _ in tracer.iter[:STEPS]:
                for layer in layers:
                    value = model.get(layer).output
                    tensor = value[0] if isinstance(value, tuple) else value
                    kept.append(tensor)
                    copies.append(tensor * 1)
        assert len(kept) == STEPS * len(layers)
        assert all(torch.equal(one, other) for one, other in zip(kept, copies, strict=True))

    def test_reading_changes_nothing(self, subject: Subject) -> None:
        model, layers = subject.model, subject.layers
        with model.trace(*subject.prompts[2], **subject.keywords(STEPS)) as tracer:
            plain = tracer.result.save()
        with model.trace(*subject.prompts[2], **subject.keywords(STEPS)) as tracer:
            for _ in tracer.iter[:STEPS]:
                for layer in layers:
                    model.get(layer).input
                    model.get(layer).output
            read = tracer.result.save()
        assert subject.tokens(plain) == subject.tokens(read)

    def test_inputs_of_a_layer_are_its_arguments(self, subject: Subject) -> None:
        model, layer = subject.model, subject.layers[1]
        with model.trace(*subject.prompts[0], **subject.keywords(1)):
            arguments = model.get(layer).inputs.save()
            output = model.get(layer).output.save()
        positional, named = arguments
        assert isinstance(positional, tuple)
        assert isinstance(named, dict)
        assert len(positional) + len(named) > 0
        assert output is not None

    # Writing --------------------------------------------------------------------------------------------------------

    def test_an_edit_in_place_has_the_effect_of_the_same_edit_in_the_reference(self, subject: Subject) -> None:
        model, stream, add, layers = subject.model, subject.stream, subject.add, subject.layers
        vector = torch.linspace(-2.0, 2.0, subject.hidden_size)
        reference = subject.reference(subject.prompts[0], STEPS, {1: lambda states: states + vector})
        with model.trace(*subject.prompts[0], **subject.keywords(STEPS)) as tracer:
            last = list().save()
            for _ in tracer.iter[:STEPS]:
                add(model.get(layers[1]), vector)
                last.append(stream(model.get(layers[-1]).output))
            result = tracer.result.save()
        assert subject.tokens(result) == list(reference.tokens)
        for step in range(STEPS):
            assert (last[step] - reference.streams[step][-1]).abs().max() < subject.tolerance

    def test_a_replacement_has_the_effect_of_the_same_edit_in_the_reference(self, subject: Subject) -> None:
        model, stream, replace, layers = subject.model, subject.stream, subject.replace, subject.layers
        reference = subject.reference(subject.prompts[1], 2, {0: lambda states: states * 0.5})
        with model.trace(*subject.prompts[1], **subject.keywords(2)) as tracer:
            last = list().save()
            for _ in tracer.iter[:2]:
                first = model.get(layers[0])
                replace(first, stream(first.output) * 0.5)
                last.append(stream(model.get(layers[-1]).output))
        for step in range(2):
            assert (last[step] - reference.streams[step][-1]).abs().max() < subject.tolerance

    def test_an_edit_of_some_rows_leaves_the_others(self, subject: Subject) -> None:
        model, layer = subject.model, subject.layers[0]
        with model.trace(*subject.prompts[0], **subject.keywords(1)):
            value = model.get(layer).output
            tensor = value[0] if isinstance(value, tuple) else value
            before = (tensor * 1).save()
            tensor[-1] += 1.0
            after = tensor.save()
        assert torch.equal(before[:-1], after[:-1])
        assert torch.equal(before[-1] + 1.0, after[-1])

    def test_an_edit_through_a_view_of_a_view_lands(self, subject: Subject) -> None:
        model, stream, layers = subject.model, subject.stream, subject.layers
        reference = subject.reference(subject.prompts[0], 1, {0: lambda states: states + 1.0})
        with model.trace(*subject.prompts[0], **subject.keywords(1)):
            value = model.get(layers[0]).output
            tensor = value[0] if isinstance(value, tuple) else value
            tensor[:][:, :].view(-1).add_(1.0)
            last = stream(model.get(layers[-1]).output).save()
        assert (last - reference.streams[0][-1]).abs().max() < subject.tolerance

    def test_a_late_edit_changes_only_the_copy_and_the_receipt_says_so(self, subject: Subject) -> None:
        model, layers, stream = subject.model, subject.layers, subject.stream
        reference = subject.reference(subject.prompts[0], 1, {})
        with model.trace(*subject.prompts[0], **subject.keywords(1)) as tracer:
            value = model.get(layers[0]).output
            early = value[0] if isinstance(value, tuple) else value
            last = stream(model.get(layers[-1]).output).save()
            early += 100.0
            early.save()
        assert (last - reference.streams[0][-1]).abs().max() < subject.tolerance
        assert any(layers[0] in warning for warning in tracer.receipt.warnings)

    def test_a_late_assignment_is_an_error_that_names_both_locations(self, subject: Subject) -> None:
        model, layers = subject.model, subject.layers
        with pytest.raises(OutOfOrderError) as raised, model.trace(*subject.prompts[0], **subject.keywords(1)):
            model.get(layers[-1]).output
            model.get(layers[0]).output = torch.zeros(1)
        assert f"{layers[0]}.output" in str(raised.value)
        assert f"{layers[-1]}.output" in str(raised.value)

    def test_a_replacement_of_another_shape_is_refused_at_its_line(self, subject: Subject) -> None:
        model, layer = subject.model, subject.layers[1]
        with pytest.raises(MismatchedValueError) as raised, model.trace(*subject.prompts[0], **subject.keywords(1)):
            early = model.get(layer).input.save()  # noqa: F841 - comes home with the error
            model.get(layer).output = torch.zeros(1, 1)
        assert "early" in raised.value.saves
        assert layer in str(raised.value)
