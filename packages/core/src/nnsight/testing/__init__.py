"""Tests that a backend runs on itself: subclass `BackendConformance` in a pytest module and give it a `subject`."""

from nnsight.testing.conformance import BackendConformance, ProcessConformance
from nnsight.testing.subject import Reference, Subject

__all__ = ["BackendConformance", "ProcessConformance", "Reference", "Subject"]
