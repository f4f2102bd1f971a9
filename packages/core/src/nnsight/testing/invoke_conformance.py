"""What every backend promises about steps of a request, and several requests of one trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from nnsight.errors import LoopEndedEarlyWarning
from nnsight.testing.subject import STEPS

if TYPE_CHECKING:
    from nnsight.testing.subject import Subject


class InvokeConformance:
    """Steps and invokes."""

    # Steps ----------------------------------------------------------------------------------------------------------

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

    # Invokes --------------------------------------------------------------------------------------------------------

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
