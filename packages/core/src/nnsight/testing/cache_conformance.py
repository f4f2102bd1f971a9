"""What every backend promises about `tracer.cache(...)`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from nnsight.errors import InvalidRequestError, UnknownLocationError

if TYPE_CHECKING:
    from nnsight.testing.subject import Subject

STEPS = 3


class CacheConformance:
    """Recording the calls of modules while the block goes on."""

    def test_a_cache_has_every_step_of_the_modules_that_it_was_asked_for(self, subject: Subject) -> None:
        model, layers = subject.model, subject.layers
        reference = subject.reference(subject.prompts[0], STEPS, {})
        with model.trace(*subject.prompts[0], **subject.keywords(STEPS)) as tracer:
            cache = tracer.cache([model.get(layers[0]), layers[2]])
        assert sorted(cache) == sorted([layers[0], layers[2]])
        for index in (0, 2):
            outputs = cache[layers[index]].output
            assert len(outputs) == STEPS
            for step in range(STEPS):
                states = subject.stream(outputs[step])
                assert (states - reference.streams[step][index]).abs().max() < subject.tolerance
                again = subject.stream(cache.steps[step][layers[index]].output)
                assert torch.equal(states, again)
        assert tracer.receipt.recorded == {f"{layers[0]}.output": STEPS, f"{layers[2]}.output": STEPS}
        assert tracer.receipt.visits == {}

    def test_a_cache_of_one_step_has_the_values_themselves(self, subject: Subject) -> None:
        model, stream, layer = subject.model, subject.stream, subject.layers[1]
        with model.trace(*subject.prompts[0], **subject.keywords(1)) as tracer:
            cache = tracer.cache(layer, include_inputs=True)
            arguments = model.get(layer).inputs.save()
            states = stream(model.get(layer).output).save()
        assert torch.equal(stream(cache[layer].output), states)
        recorded, given = (
            [value for value in each[0] if torch.is_tensor(value)] for each in (cache[layer].inputs, arguments)
        )
        assert all(torch.equal(one, other) for one, other in zip(recorded, given, strict=True))

    def test_a_cache_of_everything_has_every_layer_and_leads_to_it_by_name(self, subject: Subject) -> None:
        model, layers = subject.model, subject.layers
        with model.trace(*subject.prompts[0], **subject.keywords(1)) as tracer:
            cache = tracer.cache()
        assert set(layers) <= set(cache)
        found: Any = cache
        for name in layers[2].split("."):
            found = found[int(name)] if name.isdecimal() else getattr(found, name)
        assert found.output is cache[layers[2]].output
        assert subject.ops.child in dir(found)
        parent = layers[-1].rpartition(".")[0]
        assert cache[parent][-1].keys() == cache[layers[-1]].keys()

    def test_a_pattern_chooses_the_modules_of_a_cache(self, subject: Subject) -> None:
        model, layers = subject.model, subject.layers
        parent = layers[0].rpartition(".")[0]
        with model.trace(*subject.prompts[0], **subject.keywords(1)) as tracer:
            cache = tracer.cache(f"{parent}.*" if parent else "*")
            children = tracer.cache(f"{parent}.*.{subject.ops.child}" if parent else f"*.{subject.ops.child}")
        assert list(cache) == list(layers)
        assert list(children) == [f"{layer}.{subject.ops.child}" for layer in layers]

    def test_a_cache_records_what_the_model_goes_on_with(self, subject: Subject) -> None:
        model, stream, add, layers = subject.model, subject.stream, subject.add, subject.layers
        vector = torch.full((subject.hidden_size,), 0.5)
        with model.trace(*subject.prompts[0], **subject.keywords(2)) as tracer:
            cache = tracer.cache([layers[0], layers[1]], include_inputs=True)
            for _ in tracer.iter[:2]:
                add(model.get(layers[0]), vector)
        reference = subject.reference(subject.prompts[0], 2, {0: lambda states: states + vector})
        for step in range(2):
            for index in range(2):
                recorded = stream(cache[layers[index]].output[step])
                assert (recorded - reference.streams[step][index]).abs().max() < subject.tolerance
        assert len(cache[layers[1]].inputs) == 2

    def test_a_cache_begins_where_it_is_asked_for(self, subject: Subject) -> None:
        model, layers = subject.model, subject.layers
        with model.trace(*subject.prompts[0], **subject.keywords(3)) as tracer:
            for _ in tracer.iter[1]:
                model.get(layers[1]).output
                cache = tracer.cache([layers[0], layers[2]])
        assert list(cache.steps) == [1, 2]
        assert [len(cache.steps[step]) for step in (1, 2)] == [1, 2]
        assert len(cache[layers[2]].output) == 2

    def test_caches_hold_the_rows_of_their_own_request(self, subject: Subject) -> None:
        model, layer = subject.model, subject.layers[1]
        with model.trace(**subject.keywords(2)) as tracer:
            for prompt in subject.prompts:
                with tracer.invoke(*prompt):
                    cache = tracer.cache(layer)
        for prompt, length, found in zip(subject.prompts, subject.lengths, cache, strict=True):
            reference = subject.reference(prompt, 2, {})
            states = [subject.stream(output) for output in found[layer].output]
            assert [state.shape[0] for state in states] == [length, 1]
            for step in range(2):
                assert (states[step] - reference.streams[step][1]).abs().max() < subject.tolerance

    def test_recording_changes_nothing(self, subject: Subject) -> None:
        reference = subject.reference(subject.prompts[1], 4, {})
        with subject.model.trace(*subject.prompts[1], **subject.keywords(4)) as tracer:
            tracer.cache(include_inputs=True)
        assert subject.tokens(tracer.result) == list(reference.tokens)
        assert list(tracer.saves) == ["tracer.cache()"]

    def test_a_block_may_look_at_its_cache_while_it_runs(self, subject: Subject) -> None:
        model, stream, layers = subject.model, subject.stream, subject.layers
        with model.trace(*subject.prompts[0], **subject.keywords(1)) as tracer:
            cache = tracer.cache(layers[0], dtype=torch.float64)
            late = stream(model.get(layers[2]).output)
            gap = float((late - stream(cache[layers[0]].output)).abs().max()).save()
        assert gap > 0
        assert subject.stream(cache[layers[0]].output).dtype == torch.float64

    def test_a_cache_of_nothing_and_an_unknown_module_are_refused(self, subject: Subject) -> None:
        model, layer = subject.model, subject.layers[0]
        for modules, keywords, error in [
            ("nowhere.*", {}, UnknownLocationError),
            (f"{layer}x", {}, UnknownLocationError),
            (layer, {"include_output": False}, InvalidRequestError),
            (7, {}, InvalidRequestError),
        ]:
            with pytest.raises(error), model.trace(*subject.prompts[0], **subject.keywords(1)) as tracer:
                tracer.cache([modules], **keywords)

    def test_a_cache_says_what_it_does_not_hold(self, subject: Subject) -> None:
        model, layers = subject.model, subject.layers
        with model.trace(*subject.prompts[0], **subject.keywords(1)) as tracer:
            cache = tracer.cache(layers[0])
        with pytest.raises(UnknownLocationError, match="include_inputs=True"):
            _ = cache[layers[0]].inputs
        with pytest.raises(UnknownLocationError, match="no call of"):
            _ = cache[layers[1]]
