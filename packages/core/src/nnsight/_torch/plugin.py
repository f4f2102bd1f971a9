"""The in-process backend as a plugin."""

from __future__ import annotations

from collections.abc import Callable

from nnsight._torch.families import HF_FAMILIES
from nnsight.events import EngineSpec, RootModule
from nnsight.families import ModelFamily, find_family
from nnsight.hookspecs import hookimpl


@hookimpl
def register_backends(register: Callable[[str, str], None]) -> None:
    """Register `NNsight` under the name `torch`."""
    register("torch", "nnsight._torch.model:NNsight")


@hookimpl
def register_engines(register: Callable[[EngineSpec], None]) -> None:
    """Register the only engine: the caller's own process."""
    capabilities = frozenset({"read", "edit", "steps", "gradients", "every-location"})
    register(EngineSpec("torch", "in-process", "nnsight._torch.model:NNsight", capabilities))


@hookimpl(trylast=True)
def resolve_standard_names(root: RootModule) -> ModelFamily | None:
    """Find the standard names in models of Transformers."""
    return find_family(HF_FAMILIES, root.module)
