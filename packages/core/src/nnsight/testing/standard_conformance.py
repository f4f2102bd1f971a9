"""The promises of standard names; part of `BackendConformance`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from nnsight.errors import UnknownLocationError

if TYPE_CHECKING:
    from nnsight.testing.subject import Subject

STEPS = 4


class StandardNamesConformance:
    """What holds for the stream before and after each layer, or the refusal of a model whose family is not known."""

    def test_the_stream_before_and_after_each_layer_has_a_standard_name(self, subject: Subject) -> None:
        model, layers = subject.model, subject.layers
        if not subject.standard_names:
            self._refuses_standard_names(subject)
            return
        reference = subject.reference(subject.prompts[0], STEPS, {})
        with model.trace(*subject.prompts[0], **subject.keywords(STEPS)) as tracer:
            kept = list().save()
            for _ in tracer.iter[:STEPS]:
                kept.append([(layer.resid_pre, layer.resid_post) for layer in model.layers])
        assert len(model.layers) == len(layers)
        for step in range(STEPS):
            streams = reference.streams[step]
            for index, (before, after) in enumerate(kept[step]):
                assert (after - streams[index]).abs().max() < subject.tolerance
                assert not index or (before - streams[index - 1]).abs().max() < subject.tolerance
        visits = tracer.receipt.visits
        assert visits == {f"{layer}.{name}": STEPS for layer in layers for name in ("resid_pre", "resid_post")}

    def test_a_write_under_a_standard_name_has_the_effect_of_the_same_edit(self, subject: Subject) -> None:
        model, layers = subject.model, subject.layers
        if not subject.standard_names:
            self._refuses_standard_names(subject)
            return
        vector = torch.linspace(-2.0, 2.0, subject.hidden_size)
        reference = subject.reference(subject.prompts[0], STEPS, {1: lambda states: states + vector})
        plain = subject.reference(subject.prompts[1], STEPS, {})
        with model.trace(**subject.keywords(STEPS)) as tracer:
            with tracer.invoke(*subject.prompts[0]):
                last = list().save()
                for _ in tracer.iter[:STEPS]:
                    states = model.get(layers[1]).resid_post
                    states += vector.to(states.device)
                    last.append(model.get(layers[-1]).resid_post)
                edited = tracer.result.save()
            with tracer.invoke(*subject.prompts[0]):
                for _ in tracer.iter[:STEPS]:
                    following = model.get(layers[2])
                    following.resid_pre = following.resid_pre + vector.to(following.resid_pre.device)
                assigned = tracer.result.save()
            with tracer.invoke(*subject.prompts[1]):
                neighbour = tracer.result.save()
        for step in range(STEPS):
            assert (last[step] - reference.streams[step][-1]).abs().max() < subject.tolerance
        assert subject.tokens(edited) == subject.tokens(assigned) == list(reference.tokens)
        assert subject.tokens(neighbour) == list(plain.tokens)
        assert tracer.receipt[0].edits == {f"{layers[1]}.resid_post": STEPS}

    def _refuses_standard_names(self, subject: Subject) -> None:
        model, layer = subject.model, subject.layers[1]
        with (
            pytest.raises(UnknownLocationError, match="resolve_standard_names"),
            model.trace(*subject.prompts[0], **subject.keywords(1)),
        ):
            model.get(layer).resid_post.save()
