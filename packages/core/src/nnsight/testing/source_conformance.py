"""The promises of `.source` and `.skip`, as tests that any backend runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from nnsight.errors import MismatchedValueError, OutOfOrderError, UnknownLocationError

if TYPE_CHECKING:
    from nnsight.testing.subject import Subject


class SourceConformance:
    """Looking into forwards, and putting values in the place of calls; part of `BackendConformance`."""

    # Ops ----------------------------------------------------------------------------------------------------------

    def test_an_op_that_calls_a_module_equals_the_modules_output_at_every_step(self, subject: Subject) -> None:
        model, ops = subject.model, subject.ops
        with model.trace(*subject.prompts[0], **subject.keywords(3)) as tracer:
            pairs = list().save()
            for _ in tracer.iter[:3]:
                for path in subject.layers:
                    layer = model.get(path)
                    of_child = layer.get(ops.child).output
                    pairs.append((of_child, getattr(layer.source, ops.call).output))
        assert len(pairs) == 3 * len(subject.layers)
        assert all(torch.equal(one, other) for one, other in pairs)
        assert pairs[0][0].shape == (subject.lengths[0], subject.hidden_size)

    def test_an_op_is_given_what_the_module_that_it_calls_is_given(self, subject: Subject) -> None:
        model, ops, layer = subject.model, subject.ops, subject.layers[1]
        with model.trace(*subject.prompts[0], **subject.keywords(1)):
            op = getattr(model.get(layer).source, ops.call)
            first = op.input.save()
            arguments = op.inputs.save()
            of_child = model.get(layer).get(ops.child).input.save()
        assert torch.equal(first, of_child)
        assert torch.equal(arguments[0][0], of_child)
        assert isinstance(arguments[1], dict)

    def test_an_edit_of_an_op_has_the_effect_of_the_same_edit_of_the_module(self, subject: Subject) -> None:
        model, ops, layers, stream = subject.model, subject.ops, subject.layers, subject.stream
        with model.trace(*subject.prompts[0], **subject.keywords(2)) as tracer:
            plain = list().save()
            for _ in tracer.iter[:2]:
                plain.append(stream(model.get(layers[-1]).output))
        with model.trace(*subject.prompts[0], **subject.keywords(2)) as tracer:
            expected = list().save()
            for _ in tracer.iter[:2]:
                model.get(layers[1]).get(ops.child).output[:] += 0.25
                expected.append(stream(model.get(layers[-1]).output))
        with model.trace(*subject.prompts[0], **subject.keywords(2)) as tracer:
            in_place, replaced = list().save(), list().save()
            for step in tracer.iter[:2]:
                op = getattr(model.get(layers[1]).source, ops.call)
                if step == 0:
                    op.output[:] += 0.25
                else:
                    op.output = op.output + 0.25
                (in_place if step == 0 else replaced).append(stream(model.get(layers[-1]).output))
        for one, other, unchanged in zip([*in_place, *replaced], expected, plain, strict=True):
            assert (one - other).abs().max() < subject.tolerance
            assert (one - unchanged).abs().max() > subject.tolerance
        assert tracer.receipt.edits == {f"{layers[1]}.source.{ops.call}.output": 2}

    def test_an_edit_of_what_an_op_is_given_reaches_it(self, subject: Subject) -> None:
        model, ops, layer = subject.model, subject.ops, subject.layers[1]
        with model.trace(*subject.prompts[0], **subject.keywords(1)):
            op = getattr(model.get(layer).source, ops.call)
            op.input = op.input * 0.5
            seen = model.get(layer).get(ops.child).input.save()
        with model.trace(*subject.prompts[0], **subject.keywords(1)):
            before = model.get(layer).get(ops.child).input.save()
        assert (seen - before * 0.5).abs().max() < subject.tolerance

    def test_ops_of_the_function_that_an_op_calls_are_served(self, subject: Subject) -> None:
        model, layer = subject.model, subject.layers[1]
        below, call, inner = subject.ops.nested
        with model.trace(*subject.prompts[0], **subject.keywords(1)):
            module = model.get(f"{layer}.{below}" if below else layer)
            op = getattr(module.source, call)
            inside = getattr(op.source, inner).output.save()
            outside = op.output.save()
        both = [value if isinstance(value, tuple) else (value,) for value in (inside, outside)]
        assert all(torch.equal(one, other) for one, other in zip(*both, strict=True))
        assert both[0][0].shape[0] == subject.lengths[0]

    def test_an_op_has_a_path_and_travels_by_it(self, subject: Subject) -> None:
        model, ops, layer = subject.model, subject.ops, subject.layers[1]
        path = f"{layer}.source.{ops.call}"
        op = model.get(path)
        with model.trace(*subject.prompts[0], **subject.keywords(1)) as tracer:
            captured = op.output.save()
            again = model.get(f"{path}.output").save()
        assert torch.equal(captured, again)
        assert tracer.receipt.visits == {f"{path}.output": 1}

    def test_rows_of_requests_that_share_a_batch_are_told_apart(self, subject: Subject) -> None:
        model, ops, layer = subject.model, subject.ops, subject.layers[1]
        alone = []
        for prompt in subject.prompts[:2]:
            with model.trace(*prompt, **subject.keywords(1)):
                value = getattr(model.get(layer).source, ops.call).output.save()
            alone.append(value)
        with model.trace(**subject.keywords(1)) as tracer:
            for prompt in subject.prompts[:2]:
                with tracer.invoke(*prompt):
                    together = getattr(model.get(layer).source, ops.call).output.save()
        for one, other in zip(alone, together, strict=True):
            assert one.shape == other.shape
            assert (one - other).abs().max() < subject.tolerance

    def test_an_unknown_op_is_refused_before_anything_runs_with_those_there_are(self, subject: Subject) -> None:
        model, ops = subject.model, subject.ops
        layer = model.get(subject.layers[1])
        with (
            pytest.raises(UnknownLocationError, match=rf"no_such_op_0.*{ops.call}") as raised,
            model.trace(*subject.prompts[0], **subject.keywords(1)) as tracer,
        ):
            layer.source.no_such_op_0.output.save()
        assert subject.layers[1] in str(raised.value)
        assert tracer.saves == {}

    def test_an_op_that_was_passed_is_named_in_the_error(self, subject: Subject) -> None:
        model, ops, layer = subject.model, subject.ops, subject.layers[1]
        with pytest.raises(OutOfOrderError) as raised, model.trace(*subject.prompts[0], **subject.keywords(1)):
            model.get(layer).output
            getattr(model.get(layer).source, ops.call).output
        assert f"{layer}.source.{ops.call}.output" in str(raised.value)

    def test_a_source_prints_its_ops_beside_their_lines(self, subject: Subject) -> None:
        source, ops = subject.model.get(subject.layers[1]).source, subject.ops
        listing = str(source)
        assert any(ops.call in line and "->" in line for line in listing.splitlines())
        assert "def forward" in listing
        assert ops.call in dir(source)
        assert "->" in repr(getattr(source, ops.call))

    # Skips --------------------------------------------------------------------------------------------------------

    def test_a_skip_alone_has_the_effect_of_a_replacement(self, subject: Subject) -> None:
        model, ops, layers, stream = subject.model, subject.ops, subject.layers, subject.stream
        with model.trace(*subject.prompts[0], **subject.keywords(3)) as tracer:
            expected = list().save()
            for _ in tracer.iter[:3]:
                child = model.get(layers[1]).get(ops.child)
                child.output = child.output * 0 + 0.5
                expected.append(stream(model.get(layers[-1]).output))
        with model.trace(*subject.prompts[0], **subject.keywords(3)) as tracer:
            found, outputs = list().save(), list().save()
            for _ in tracer.iter[:3]:
                child = model.get(layers[1]).get(ops.child)
                rows = child.input.shape[0]
                child.skip(torch.full((rows, subject.hidden_size), 0.5))
                outputs.append(child.output)
                found.append(stream(model.get(layers[-1]).output))
        for one, other in zip(found, expected, strict=True):
            assert (one - other).abs().max() < subject.tolerance
        assert all(bool((output == 0.5).all()) for output in outputs)
        assert tracer.receipt.edits == {f"{layers[1]}.{ops.child}.skip": 3}

    def test_what_is_inside_a_skipped_module_is_not_reached(self, subject: Subject) -> None:
        model, ops, layer = subject.model, subject.ops, subject.layers[1]
        inner = f"{layer}.{ops.inner}"
        for _ in range(2):
            with pytest.raises(OutOfOrderError, match=inner), model.trace(*subject.prompts[0], **subject.keywords(1)):
                child = model.get(layer).get(ops.child)
                child.skip(torch.zeros(child.input.shape[0], subject.hidden_size))
                model.get(inner).output

    def test_a_skip_concerns_the_rows_of_its_request_alone(self, subject: Subject) -> None:
        model, ops, layer, stream = subject.model, subject.ops, subject.layers[1], subject.stream
        last = subject.layers[-1]
        reference = subject.reference(subject.prompts[1], 2, {})
        with model.trace(*subject.prompts[0], **subject.keywords(2)):
            child = model.get(layer).get(ops.child)
            child.skip(torch.zeros(child.input.shape[0], subject.hidden_size))
            alone = stream(model.get(last).output).save()
        with model.trace(**subject.keywords(2)) as tracer:
            with tracer.invoke(*subject.prompts[0]):
                child = model.get(layer).get(ops.child)
                child.skip(torch.zeros(child.input.shape[0], subject.hidden_size))
                skipping = stream(model.get(last).output).save()
            with tracer.invoke(*subject.prompts[1]):
                result = tracer.result.save()
                plain = list().save()
        assert (alone - skipping).abs().max() < subject.tolerance
        assert plain == []
        assert subject.tokens(result) == list(reference.tokens)

    def test_a_skip_of_an_op_has_the_effect_of_a_skip_of_the_module_that_it_calls(self, subject: Subject) -> None:
        model, ops, layers, stream = subject.model, subject.ops, subject.layers, subject.stream
        found = []
        for of_op in (True, False):
            with model.trace(*subject.prompts[0], **subject.keywords(2)) as tracer:
                last = list().save()
                for _ in tracer.iter[:2]:
                    layer = model.get(layers[1])
                    called = getattr(layer.source, ops.call) if of_op else layer.get(ops.child)
                    called.skip(torch.ones(called.input.shape[0], subject.hidden_size))
                    last.append(stream(model.get(layers[-1]).output))
            found.append(last)
        assert all(torch.allclose(one, other, atol=subject.tolerance) for one, other in zip(*found, strict=True))

    def test_a_layer_can_be_skipped_at_every_step(self, subject: Subject) -> None:
        model, layers, stream = subject.model, subject.layers, subject.stream
        reference = subject.reference(subject.prompts[0], 3, {2: lambda states: states * 0 + 0.25})
        with model.trace(*subject.prompts[0], **subject.keywords(3)) as tracer:
            last = list().save()
            for _ in tracer.iter[:3]:
                before = model.get(layers[1]).output
                states = torch.full_like(stream(before), 0.25)
                value = (states, torch.zeros_like(states)) if isinstance(before, tuple) else states
                model.get(layers[2]).skip(value)
                last.append(stream(model.get(layers[-1]).output))
            result = tracer.result.save()
        for step in range(3):
            assert (last[step] - reference.streams[step][-1]).abs().max() < subject.tolerance
        assert subject.tokens(result) == list(reference.tokens)

    def test_a_skip_of_a_module_that_was_called_is_out_of_order(self, subject: Subject) -> None:
        model, ops, layer = subject.model, subject.ops, subject.layers[1]
        with pytest.raises(OutOfOrderError, match=f"{layer}.{ops.child}.skip"):
            with model.trace(*subject.prompts[0], **subject.keywords(1)):
                value = model.get(layer).get(ops.child).output
                model.get(layer).get(ops.child).skip(value)


class ProcessSourceConformance:
    """What holds besides where the backend knows the shape of values."""

    def test_a_value_that_does_not_fit_the_skipped_module_ends_its_request_alone(self, subject: Any) -> None:
        model, ops, layer = subject.model, subject.ops, subject.layers[1]
        for _ in range(2):
            with pytest.raises(MismatchedValueError, match=f"{layer}.{ops.child}.skip") as raised:
                with model.trace(*subject.prompts[0], **subject.keywords(1)):
                    early = model.get(layer).input.save()  # noqa: F841 - comes home with the error
                    model.get(layer).get(ops.child).skip(torch.zeros(1, 1))
            assert "early" in raised.value.saves
            with model.trace(*subject.prompts[0], **subject.keywords(1)):
                rows = model.get(layer).get(ops.child).output.shape[0].save()
            assert rows == subject.lengths[0]
