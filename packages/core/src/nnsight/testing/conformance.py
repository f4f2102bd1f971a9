"""The promises of a block, as tests that any backend runs.

A backend subclasses `BackendConformance` in a pytest module and provides a class- or session-scoped fixture `subject`
that returns a `Subject`. Each test is one promise to the user, named after it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from nnsight.errors import UntransferableValueError
from nnsight.testing.cache_conformance import CacheConformance
from nnsight.testing.edit_conformance import EditConformance
from nnsight.testing.error_conformance import ErrorConformance
from nnsight.testing.handover_conformance import HandoverConformance
from nnsight.testing.invoke_conformance import InvokeConformance
from nnsight.testing.save_conformance import SaveConformance
from nnsight.testing.session_conformance import SessionConformance
from nnsight.testing.source_conformance import ProcessSourceConformance, SourceConformance
from nnsight.testing.standard_conformance import StandardNamesConformance
from nnsight.testing.value_conformance import ValueConformance

if TYPE_CHECKING:
    from nnsight.testing.subject import Subject


class BackendConformance(
    ValueConformance,
    SaveConformance,
    InvokeConformance,
    ErrorConformance,
    SourceConformance,
    StandardNamesConformance,
    HandoverConformance,
    CacheConformance,
    SessionConformance,
    EditConformance,
):
    """What holds on every backend."""


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
