"""Tests that a backend runs on itself: subclass `BackendConformance` in a pytest module and give it a `subject`."""

from nnsight.testing.conformance import BackendConformance, ProcessConformance
from nnsight.testing.source_conformance import SourceConformance
from nnsight.testing.subject import LayerOps, Reference, Subject

__all__ = ["BackendConformance", "LayerOps", "ProcessConformance", "Reference", "SourceConformance", "Subject"]
