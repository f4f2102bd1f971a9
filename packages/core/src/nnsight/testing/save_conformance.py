"""What every backend promises about names in a block, and what it brings home."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest
import torch

import nnsight
from nnsight.testing.subject import STEPS

if TYPE_CHECKING:
    from nnsight.testing.subject import Subject


class SaveConformance:
    """Saves, and names as in plain Python."""

    def test_values_of_every_kind_come_home(self, subject: Subject) -> None:
        model, layer = subject.model, subject.layers[0]
        with model.trace(*subject.prompts[0], **subject.keywords(1)) as tracer:
            number = (3).save()
            truth = True.save()
            other_truth = True  # noqa: F841 - not saved, whatever equals it
            text = "text".save()
            table = {"a": [1, 2]}.save()
            nothing = None.save()
            pair = (1, model.get(layer).output is not None).save()
            size = len(tracer.iter.__class__.__name__).save()
        assert (number, truth, text, table, nothing, pair) == (3, True, "text", {"a": [1, 2]}, None, (1, True))
        assert isinstance(size, int)
        assert "other_truth" not in tracer.saves

    def test_a_save_bound_to_no_variable_is_kept_under_its_source(self, subject: Subject) -> None:
        model, layer = subject.model, subject.layers[0]
        with model.trace(*subject.prompts[0], **subject.keywords(1)) as tracer:
            model.get(layer).output.save()
        assert list(tracer.saves) == ["model.get(layer).output"]

    def test_a_saved_value_comes_home_under_its_name_whatever_the_name_is_bound_to_later(
        self, subject: Subject
    ) -> None:
        model, stream, layer = subject.model, subject.stream, subject.layers[0]
        with model.trace(*subject.prompts[0], **subject.keywords(1)):
            states = stream(model.get(layer).output).save()
            copy = (states * 1).save()
            states = states * 2
            number = (3).save()
            number = number + 1
            first = (states * 1).save()
            first = (states * 3).save()
        assert torch.equal(states, copy)
        assert number == 3
        assert torch.equal(first, copy * 6)

    def test_what_is_added_to_a_saved_variable_comes_home(self, subject: Subject) -> None:
        model, stream, layer = subject.model, subject.stream, subject.layers[0]
        with model.trace(*subject.prompts[0], **subject.keywords(STEPS)) as tracer:
            total = torch.zeros(subject.hidden_size).save()
            count = (0).save()
            words = [].save()
            text = "".save()
            for step in tracer.iter[:STEPS]:
                total += stream(model.get(layer).output)[-1].to(total.device)
                count += 1
                words += [step]
                text += str(step)
                last = step.save()
        assert (count, words, text, last) == (STEPS, list(range(STEPS)), "0123"[:STEPS], STEPS - 1)
        assert total.abs().sum() > 0

    def test_saves_of_helpers_come_home_under_the_name_that_the_block_gives_them(self, subject: Subject) -> None:
        model, stream, layer = subject.model, subject.stream, subject.layers[0]
        keep = nnsight.save

        def size(states: torch.Tensor) -> Any:
            return len(states).save()

        def through(states: torch.Tensor) -> Any:
            return size(states)

        def described(states: torch.Tensor) -> tuple[int, ...]:
            shape = tuple(states.shape)
            width = shape[-1].save()  # noqa: F841 - comes home under its name here
            keep(shape)
            return shape

        def countdown(number: int) -> Any:
            if number:
                return countdown(number - 1)
            return number.save()

        def doubled(states: torch.Tensor, by: int = 2) -> Any:
            return (states * by).save()

        with model.trace(*subject.prompts[0], **subject.keywords(1)) as tracer:
            states = stream(model.get(layer).output)
            direct = size(states)
            passed = through(states)
            shape = described(states)
            zero = countdown(3)
            twice = functools.partial(doubled, by=2)(states)
            other = size(states) + 0
            unsaved = len(states)  # noqa: F841 - equal to what was saved, and not saved
            kept = keep(len(states))
        length = subject.lengths[0]
        assert (direct, passed, zero, kept) == (length, length, 0, length)
        assert shape == (length, subject.hidden_size)
        assert twice.shape == shape
        names = {"direct", "passed", "zero", "kept", "shape", "twice", "width", "len(states)"}
        assert set(tracer.saves) == names
        assert tracer.saves["len(states)"] == length
        with pytest.raises(NameError):
            other  # a sum is not what the helper saved

    def test_statements_of_the_language_work_inside_a_block(self, subject: Subject) -> None:
        model, layer = subject.model, subject.layers[0]
        scale = 2

        def helper(value: int) -> int:
            return value * scale

        with model.trace(*subject.prompts[0], **subject.keywords(1)):
            found = list().save()
            for number in range(3):
                if number == 1:
                    continue
                found.append(helper(number))
            try:
                raise KeyError("inside")
            except KeyError as error:
                found.append(str(error))
            squares = [number**2 for number in range(3)].save()
            double = (lambda value: value * 2)(4).save()
            if (length := len(squares)) > 2:
                found.append(f"{length} squares")
            match squares:
                case [0, *rest]:
                    found.append(rest)
            model.get(layer).output
        assert found == [0, 4, "'inside'", "3 squares", [1, 4]]
        assert (squares, double) == ([0, 1, 4], 8)

    def test_names_bound_outside_and_inside_begin_with_their_value(self, subject: Subject) -> None:
        model, layer = subject.model, subject.layers[0]
        count = 5
        with model.trace(*subject.prompts[0], **subject.keywords(1)):
            count = count + 1
            count.save()
            model.get(layer).output
        assert count == 6

    def test_captured_containers_are_copies_of_each_request(self, subject: Subject) -> None:
        model, layer = subject.model, subject.layers[0]
        shared: list[int] = []
        with model.trace(**subject.keywords(1)) as tracer:
            for prompt in subject.prompts[:2]:
                with tracer.invoke(*prompt):
                    shared.append(1)
                    model.get(layer).output
                    size = len(shared).save()
        assert size == [1, 1]
        assert shared == []

    def test_a_function_runs_as_a_block(self, subject: Subject) -> None:
        layer = subject.layers[0]

        def block(model: Any) -> int:
            states = model.get(layer).output
            kept = states[0] if isinstance(states, tuple) else states
            kept.save()
            return int(kept.shape[0])

        tracer = subject.model.run(*subject.prompts[0], block, **subject.keywords(1))
        assert tracer.value == subject.lengths[0]
        assert tracer.saves["kept"].shape == (subject.lengths[0], subject.hidden_size)
