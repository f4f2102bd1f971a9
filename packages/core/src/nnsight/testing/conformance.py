"""The promises of a block, as tests that any backend runs.

A backend subclasses `BackendConformance` in a pytest module and provides a class- or session-scoped fixture `subject`
that returns a `Subject`.
"""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch

import nnsight
from nnsight.errors import (
    BlockEscapeError,
    LoopEndedEarlyWarning,
    MismatchedValueError,
    NNsightError,
    OutOfOrderError,
    UnknownLocationError,
    UntransferableValueError,
)
from nnsight.testing.cache_conformance import CacheConformance
from nnsight.testing.edit_conformance import EditConformance
from nnsight.testing.handover_conformance import HandoverConformance
from nnsight.testing.session_conformance import SessionConformance
from nnsight.testing.source_conformance import ProcessSourceConformance, SourceConformance
from nnsight.testing.standard_conformance import StandardNamesConformance

if TYPE_CHECKING:
    from nnsight.testing.subject import Subject

STEPS = 4


class BackendConformance(
    SourceConformance,
    StandardNamesConformance,
    HandoverConformance,
    CacheConformance,
    SessionConformance,
    EditConformance,
):
    """Each test is one promise to the user, named after it."""

    # Reading ------------------------------------------------------------------------------------------------------

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

    # Writing ------------------------------------------------------------------------------------------------------

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

    # Saves and names ----------------------------------------------------------------------------------------------

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

    # Steps --------------------------------------------------------------------------------------------------------

    def test_every_form_of_iter_selects_its_steps(self, subject: Subject) -> None:
        model, layer = subject.model, subject.layers[0]
        selections = {":2": [0, 1], "1:3": [1, 2], "0:4:2": [0, 2], "2": [2], "list": [0, 2], "all": [0, 1, 2, 3]}
        for name, expected in selections.items():
            with model.trace(*subject.prompts[0], **subject.keywords(STEPS)) as tracer:
                steps = list().save()
                chosen = {
                    ":2": lambda: tracer.iter[:2],
                    "1:3": lambda: tracer.iter[1:3],
                    "0:4:2": lambda: tracer.iter[0:4:2],
                    "2": lambda: tracer.iter[2],
                    "list": lambda: tracer.iter[[0, 2]],
                    "all": lambda: tracer.all(),
                }[name]()
                for step in chosen:
                    model.get(layer).output
                    steps.append(step)
            assert steps == expected, name

    def test_state_of_the_block_persists_across_steps(self, subject: Subject) -> None:
        model, stream, layer = subject.model, subject.stream, subject.layers[0]
        with model.trace(*subject.prompts[0], **subject.keywords(STEPS)) as tracer:
            total = 0.0
            seen = list().save()
            for _ in tracer.iter[:STEPS]:
                total += float(stream(model.get(layer).output)[-1].sum())
                seen.append(total)
        assert len(seen) == STEPS
        assert len(set(seen)) == STEPS

    def test_a_loop_that_outruns_the_request_keeps_what_it_has_and_warns_the_caller(self, subject: Subject) -> None:
        model, layer = subject.model, subject.layers[0]
        with pytest.warns(LoopEndedEarlyWarning, match="asked for 9 steps"):
            with model.trace(*subject.prompts[0], **subject.keywords(2)) as tracer:
                kept = list().save()
                for _ in tracer.iter[:9]:
                    model.get(layer).output
                    kept.append(1)
                after = "ran".save()
        assert (kept, after) == ([1, 1], "ran")

    # Invokes ------------------------------------------------------------------------------------------------------

    def test_a_name_saved_in_several_invokes_comes_back_as_a_list_in_order(self, subject: Subject) -> None:
        model, stream, layer = subject.model, subject.stream, subject.layers[0]
        with model.trace(**subject.keywords(1)) as tracer:
            for prompt in subject.prompts:
                with tracer.invoke(*prompt):
                    states = stream(model.get(layer).output).save()
            with tracer.invoke(*subject.prompts[0]):
                alone = stream(model.get(layer).output).save()
        assert [state.shape[0] for state in states] == list(subject.lengths)
        assert torch.allclose(alone, states[0], atol=subject.tolerance)

    def test_slots_of_a_container_saved_above_merge(self, subject: Subject) -> None:
        model, layer = subject.model, subject.layers[0]
        with model.trace(**subject.keywords(1)) as tracer:
            appended, slots, table = list().save(), [None, None].save(), {}.save()
            for index in range(2):
                with tracer.invoke(*subject.prompts[index]):
                    model.get(layer).output
                    appended.append(index)
                    slots[index] = index * 10
                    table[f"prompt {index}"] = index
        assert (appended, slots) == ([0, 1], [0, 10])
        assert table == {"prompt 0": 0, "prompt 1": 1}

    def test_one_steered_request_leaves_its_neighbours_alone(self, subject: Subject) -> None:
        model, stream, add, layers = subject.model, subject.stream, subject.add, subject.layers
        vector = torch.full((subject.hidden_size,), 30.0)
        plain = [subject.reference(prompt, 2, {}) for prompt in subject.prompts]
        with model.trace(**subject.keywords(2)) as tracer:
            with tracer.invoke(*subject.prompts[0]):
                for _ in tracer.iter[:2]:
                    add(model.get(layers[0]), vector)
                steered = tracer.result.save()
            for prompt in subject.prompts[1:]:
                with tracer.invoke(*prompt):
                    for _ in tracer.iter[:2]:
                        states = stream(model.get(layers[-1]).output).save()
                    results = tracer.result.save()
        for index, reference in enumerate(plain[1:]):
            assert subject.tokens(results[index]) == list(reference.tokens)
            assert (states[index] - reference.streams[1][-1]).abs().max() < subject.tolerance
        assert steered is not None

    def test_an_error_belongs_to_one_invoke_and_keeps_what_was_saved(self, subject: Subject) -> None:
        model, stream, layers = subject.model, subject.stream, subject.layers
        with pytest.raises(ZeroDivisionError) as raised:
            with model.trace(**subject.keywords(2)) as tracer:
                with tracer.invoke(*subject.prompts[0]):
                    before = stream(model.get(layers[0]).output).save()
                    before.sum() / 0 if before is None else 1 / 0
                with tracer.invoke(*subject.prompts[1]):
                    for _ in tracer.iter[:2]:
                        whole = stream(model.get(layers[-1]).output).save()
        assert before.shape[0] == subject.lengths[0]
        assert whole.shape == (1, subject.hidden_size)
        assert set(raised.value.saves) == {"before", "whole"}

    def test_the_result_reaches_a_helper_that_asks_for_it(self, subject: Subject) -> None:
        model = subject.model

        def final(tracer: Any) -> Any:
            return tracer.result

        with model.trace(*subject.prompts[0], **subject.keywords(2)) as tracer:
            of_helper = final(tracer).save()
            own = tracer.result.save()
        assert of_helper is own is tracer.result

    # Errors -------------------------------------------------------------------------------------------------------

    def test_an_unknown_location_offers_the_nearest_names(self, subject: Subject) -> None:
        model, layer = subject.model, subject.layers[0]
        wrong = layer[:-1] + "99"
        with (
            pytest.raises(UnknownLocationError, match=r"nearest|has"),
            model.trace(*subject.prompts[0], **subject.keywords(1)),
        ):
            model.get(wrong).output.save()

    def test_a_read_after_the_model_moved_on_names_both_locations(self, subject: Subject) -> None:
        model, layers = subject.model, subject.layers
        with pytest.raises(OutOfOrderError) as raised, model.trace(*subject.prompts[0], **subject.keywords(2)):
            late = model.get(layers[2]).output.save()  # noqa: F841 - comes home with the error
            model.get(layers[0]).output.save()
        assert f"{layers[0]}.output" in str(raised.value)
        assert f"{layers[2]}.output" in str(raised.value)
        assert set(raised.value.saves) == {"late"}

    def test_a_traceback_ends_on_the_line_of_the_block(self, subject: Subject) -> None:
        model, layer = subject.model, subject.layers[0]
        with (
            pytest.raises(ValueError, match="of my own") as raised,
            model.trace(*subject.prompts[0], **subject.keywords(1)),
        ):
            model.get(layer).output
            raise ValueError("of my own", 7)
        assert raised.value.args == ("of my own", 7)
        traceback = raised.value.__traceback__
        while traceback is not None and traceback.tb_next is not None:
            traceback = traceback.tb_next
        assert traceback is not None
        assert traceback.tb_frame.f_code.co_filename == __file__
        with open(__file__, encoding="utf-8") as file:
            assert "raise ValueError" in file.read().splitlines()[traceback.tb_lineno - 1]

    def test_a_return_across_the_edge_of_a_block_is_refused_with_its_line(self, subject: Subject) -> None:
        model = subject.model

        def escaping() -> None:
            with model.trace(*subject.prompts[0], **subject.keywords(1)):
                return

        with pytest.raises(BlockEscapeError, match="return"):
            escaping()

    def test_the_engine_serves_on_after_errors(self, subject: Subject) -> None:
        model, layer = subject.model, subject.layers[0]
        with pytest.raises(NNsightError), model.trace(*subject.prompts[0], **subject.keywords(1)):
            model.get(layer).output = torch.zeros(1, 1)
        reference = subject.reference(subject.prompts[0], 2, {})
        with model.trace(*subject.prompts[0], **subject.keywords(2)) as tracer:
            result = tracer.result.save()
        assert subject.tokens(result) == list(reference.tokens)

    def test_two_threads_trace_one_model_at_once(self, subject: Subject) -> None:
        found: dict[int, Any] = {}

        def work(index: int) -> None:
            model, stream, layer = subject.model, subject.stream, subject.layers[0]
            with model.trace(*subject.prompts[index], **subject.keywords(2)):
                states = stream(model.get(layer).output).save()
            found[index] = states

        threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [found[index].shape[0] for index in range(2)] == list(subject.lengths[:2])

    def test_a_receipt_counts_visits_and_edits(self, subject: Subject) -> None:
        model, add, layers = subject.model, subject.add, subject.layers
        vector = torch.ones(subject.hidden_size)
        with model.trace(*subject.prompts[0], **subject.keywords(3)) as tracer:
            for _ in tracer.iter[:3]:
                add(model.get(layers[0]), vector)
                model.get(layers[1]).output
        receipt = tracer.receipt
        assert receipt.steps == 3
        assert receipt.visits == {f"{layers[0]}.output": 3, f"{layers[1]}.output": 3}
        assert receipt.edits == {f"{layers[0]}.output": 3}


class ProcessConformance(BackendConformance, ProcessSourceConformance):
    """What holds besides where blocks run in another process."""

    def test_a_value_that_cannot_travel_is_refused_with_its_name(self, subject: Subject) -> None:
        model, layer = subject.model, subject.layers[0]
        lock = threading.Lock()
        with (
            pytest.raises(UntransferableValueError, match="lock"),
            model.trace(*subject.prompts[0], **subject.keywords(1)),
        ):
            model.get(layer).output
            print(lock)
