"""What nnsight finds through the entry point; imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable

from nnsight.events import EngineSpec
from nnsight.hookspecs import hookimpl


@hookimpl
def register_backends(register: Callable[[str, str], None]) -> None:
    """Register `ExampleModel` under the name `example`."""
    register("example", "nnsight_example_backend.model:ExampleModel")


@hookimpl
def register_engines(register: Callable[[EngineSpec], None]) -> None:
    """Register the only engine: one process."""
    capabilities = frozenset({"read", "edit", "steps", "every-location"})
    register(EngineSpec("example", "process", "nnsight_example_backend.process:WorkerProcess", capabilities))
